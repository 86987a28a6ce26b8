package acceptqueue

import (
	"fmt"

	"github.com/cilium/ebpf/btf"
)

// layout is where members of the kernel's structures are, in bytes from their
// beginning.
type layout struct {
	taskFiles, taskPID           int // struct task_struct
	filesTable, tableFiles       int // struct files_struct, struct fdtable
	filePrivate, socketSock      int // struct file, struct socket
	pipeBuffers, bufferPage      int // struct pipe_inode_info, struct pipe_buffer
	pidLevel, pidNumbers, upid   int // struct pid; the size of struct upid
	credUID, credGID             int // struct cred
	sockSize, sockQueue          int // struct sock
	sockPeerPID, sockPeerCred    int
	sockFamily, sockState        int
	sockPort, sockRemotePort     int
	sockAddr, sockRemoteAddr     int
	sockAddr6, sockRemoteAddr6   int
	acceptHead                   int // struct inet_connection_sock
	requestNext, requestSock     int // struct request_sock
	tcpSize, tcpCopied, tcpNext  int // struct tcp_sock
	skbSize, skbNext, skbLen     int // struct sk_buff
	skbDataLen, skbData, skbHead int
	skbEnd, skbControl, skbSock  int
	tcpSeq, tcpFlags             int // struct tcp_skb_cb, in the control block
	unixPID, unixUID, unixGID    int // struct unix_skb_parms, there
	unixFiles                    int
	listCount, listFiles         int // struct scm_fp_list
	unixPeer, unixAddress        int // struct unix_sock
	addressLen, addressName      int // struct unix_address
	sharedFrags, sharedList      int // struct skb_shared_info
	sharedFrag, sharedSize       int
	fragSize, fragPage           int // its fragments
	fragLen, fragOffset          int
	pageSize                     int // of struct page
}

// kernelLayout asks the kernel's types.
func kernelLayout() (*layout, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, err
	}
	t := types{spec: spec, known: map[string]*btf.Struct{}}
	l := &layout{}
	for _, m := range []struct {
		to   *int
		in   string
		path []string
	}{
		{&l.taskFiles, "task_struct", []string{"files"}}, {&l.taskPID, "task_struct", []string{"thread_pid"}},
		{&l.filesTable, "files_struct", []string{"fdt"}}, {&l.tableFiles, "fdtable", []string{"fd"}},
		{&l.filePrivate, "file", []string{"private_data"}}, {&l.socketSock, "socket", []string{"sk"}},
		{&l.pipeBuffers, "pipe_inode_info", []string{"bufs"}}, {&l.bufferPage, "pipe_buffer", []string{"page"}},
		{&l.pidLevel, "pid", []string{"level"}}, {&l.pidNumbers, "pid", []string{"numbers"}}, {&l.upid, "upid", nil},
		{&l.credUID, "cred", []string{"euid"}}, {&l.credGID, "cred", []string{"egid"}},
		{&l.sockSize, "sock", nil}, {&l.sockQueue, "sock", []string{"sk_receive_queue"}},
		{&l.sockPeerPID, "sock", []string{"sk_peer_pid"}}, {&l.sockPeerCred, "sock", []string{"sk_peer_cred"}},
		{&l.sockFamily, "sock_common", []string{"skc_family"}}, {&l.sockState, "sock_common", []string{"skc_state"}},
		{&l.sockPort, "sock_common", []string{"skc_num"}}, {&l.sockRemotePort, "sock_common", []string{"skc_dport"}},
		{&l.sockAddr, "sock_common", []string{"skc_rcv_saddr"}}, {&l.sockRemoteAddr, "sock_common", []string{"skc_daddr"}},
		{&l.sockAddr6, "sock_common", []string{"skc_v6_rcv_saddr"}}, {&l.sockRemoteAddr6, "sock_common", []string{"skc_v6_daddr"}},
		{&l.acceptHead, "inet_connection_sock", []string{"icsk_accept_queue", "rskq_accept_head"}},
		{&l.requestNext, "request_sock", []string{"dl_next"}}, {&l.requestSock, "request_sock", []string{"sk"}},
		{&l.tcpSize, "tcp_sock", nil}, {&l.tcpCopied, "tcp_sock", []string{"copied_seq"}}, {&l.tcpNext, "tcp_sock", []string{"rcv_nxt"}},
		{&l.skbSize, "sk_buff", nil}, {&l.skbNext, "sk_buff", []string{"next"}}, {&l.skbLen, "sk_buff", []string{"len"}},
		{&l.skbDataLen, "sk_buff", []string{"data_len"}}, {&l.skbData, "sk_buff", []string{"data"}}, {&l.skbHead, "sk_buff", []string{"head"}},
		{&l.skbEnd, "sk_buff", []string{"end"}}, {&l.skbControl, "sk_buff", []string{"cb"}}, {&l.skbSock, "sk_buff", []string{"sk"}},
		{&l.tcpSeq, "tcp_skb_cb", []string{"seq"}}, {&l.tcpFlags, "tcp_skb_cb", []string{"tcp_flags"}},
		{&l.unixPID, "unix_skb_parms", []string{"pid"}}, {&l.unixUID, "unix_skb_parms", []string{"uid"}},
		{&l.unixGID, "unix_skb_parms", []string{"gid"}}, {&l.unixFiles, "unix_skb_parms", []string{"fp"}},
		{&l.listCount, "scm_fp_list", []string{"count"}}, {&l.listFiles, "scm_fp_list", []string{"fp"}},
		{&l.unixPeer, "unix_sock", []string{"peer"}}, {&l.unixAddress, "unix_sock", []string{"addr"}},
		{&l.addressLen, "unix_address", []string{"len"}}, {&l.addressName, "unix_address", []string{"name"}},
		{&l.sharedSize, "skb_shared_info", nil}, {&l.sharedFrags, "skb_shared_info", []string{"nr_frags"}},
		{&l.sharedList, "skb_shared_info", []string{"frag_list"}}, {&l.sharedFrag, "skb_shared_info", []string{"frags"}},
		{&l.pageSize, "page", nil},
	} {
		if err := t.find(m.to, m.in, m.path...); err != nil {
			return nil, err
		}
	}
	// Fragments are a struct skb_frag since Linux 6.8, and were a struct bio_vec.
	if t.find(&l.fragSize, "skb_frag") == nil && t.find(&l.fragLen, "skb_frag", "len") == nil {
		err = t.find(&l.fragOffset, "skb_frag", "offset")
		if err == nil && t.find(&l.fragPage, "skb_frag", "netmem") != nil {
			err = t.find(&l.fragPage, "skb_frag", "bv_page")
		}
		return l, err
	}
	for _, m := range []struct {
		to   *int
		path []string
	}{{&l.fragSize, nil}, {&l.fragPage, []string{"bv_page"}}, {&l.fragLen, []string{"bv_len"}}, {&l.fragOffset, []string{"bv_offset"}}} {
		if err := t.find(m.to, "bio_vec", m.path...); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// types finds members by name.
type types struct {
	spec  *btf.Spec
	known map[string]*btf.Struct
}

// find tells where a member is, or how large a structure is.
func (t *types) find(to *int, in string, path ...string) error {
	s := t.known[in]
	if s == nil {
		if err := t.spec.TypeByName(in, &s); err != nil {
			return err
		}
		t.known[in] = s
	}
	if len(path) == 0 {
		*to = int(s.Size)
		return nil
	}
	members := s.Members
	at := 0
	for _, name := range path {
		off, inner, ok := member(members, name)
		if !ok {
			return fmt.Errorf("struct %s has no member %v", in, path)
		}
		at, members = at+off, inner
	}
	*to = at
	return nil
}

// member finds one by name, also in members without a name. inner are its own.
func member(all []btf.Member, name string) (at int, inner []btf.Member, ok bool) {
	for _, m := range all {
		var own []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			own = t.Members
		case *btf.Union:
			own = t.Members
		}
		if m.Name == name {
			return int(m.Offset.Bytes()), own, true
		}
		if m.Name == "" {
			if off, inner, ok := member(own, name); ok {
				return int(m.Offset.Bytes()) + off, inner, true
			}
		}
	}
	return 0, nil, false
}
