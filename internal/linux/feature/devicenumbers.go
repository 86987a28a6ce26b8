package feature

import (
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/statdev"
)

// deviceNumbers is in All beside the other features of files.
var deviceNumbers = Feature{
	Name: "device numbers", Kernel: "5.5",
	For:     "files keep their st_dev through rollbacks and in forks, as programs remember it (BPF behind the stat calls)",
	Without: "st_dev changes: SQLite loses its locks where a process opens one more connection after a rollback, find, du and rm -r may stop in the middle of a walk",
	Help:    "a kernel that is not locked down (Secure Boot, lockdown=), with CONFIG_DEBUG_INFO_BTF, CONFIG_FUNCTION_TRACER and CONFIG_BPF_EVENTS",
	probe:   probeDeviceNumbers,
}

// probeDeviceNumbers follows the calls for a moment, for nobody.
func probeDeviceNumbers() error {
	a, err := statdev.Attach()
	if err != nil {
		if fault.Is(err, fault.Unsupported) {
			err = fmt.Errorf("%w: %w", err, errAbsent)
		}
		return err
	}
	a.Close()
	return nil
}
