package machine

import "strings"

// kernelOnly are flags of /proc/cpuinfo that say something to the kernel, or of
// it, and nothing to programs. All others are taken for something that a program
// may have looked at, so that a flag that is new is needed rather than missed
// (arch/x86/include/asm/cpufeatures.h).
var kernelOnly = func() map[string]bool {
	m := map[string]bool{}
	for f := range strings.FieldsSeq(`
		de pse mce apic mtrr pge mca pat pse36 dts acpi ss ht tm pbe vme
		nx gbpages pdpe1gb lm syscall nopl rep_good up art arch_perfmon pebs bts
		constant_tsc nonstop_tsc nonstop_tsc_s3 tsc_reliable tsc_known_freq tsc_adjust tsc_deadline_timer tsc_scale
		xtopology extd_apicid cpuid aperfmperf amd_dcm extapic ibs skinit wdt topoext
		perfctr_core perfctr_nb perfctr_llc perfctr_l2 bpext ptsc nodeid_msr tce lwp
		dtes64 ds_cpl vmx smx est tm2 sdbg xtpr pdcm pcid dca x2apic hypervisor
		cr8_legacy svm osvw ibs cmp_legacy
		cpb cat_l3 cat_l2 cdp_l3 cdp_l2 hw_pstate proc_feedback invpcid_single pti mba rdt_a cqm cqm_llc
		cqm_occup_llc cqm_mbm_total cqm_mbm_local split_lock_detect bus_lock_detect
		epb ida arat pln pts hwp hwp_notify hwp_act_window hwp_epp hwp_pkg_req hfi dtherm
		tpr_shadow flexpriority ept vpid ept_ad vnmi vmmcall
		npt lbrv svm_lock nrip_save tsc_scale vmcb_clean flushbyasid decodeassists pausefilter pfthreshold
		avic v_vmsave_vmload vgif x2avic v_spec_ctrl sev sev_es sev_snp sme debug_swap ibpb_brtype srso_no
		smep smap umip invpcid la57 lam
		ibrs ibpb stibp ssbd ibrs_enhanced spec_ctrl intel_stibp arch_capabilities flush_l1d md_clear
		virt_ssbd amd_ssbd amd_ibrs amd_stibp amd_psfd amd_ppin ibpb_exit_to_user
		overflow_recov succor smca xsaves intel_pt intel_ppin amd_lbr_v2 amd_lbr_pmc_freeze perfmon_v2
		retpoline rsb_ctxsw tsx_force_abort stibp_always_on irperf xsaveerptr wbnoinvd
		arch_lbr brs bhi_ctrl`) {
		m[f] = true
	}
	return m
}()
