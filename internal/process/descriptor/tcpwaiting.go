package descriptor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/sockdiag"
	"github.com/sandtree/sandtree/internal/linux/tcprepair"
)

// waiting finds the clients whose connections a listening socket has not
// accepted yet.
func (tcpFamily) waiting(c *Capturer, d *description, n int) error {
	if n == 0 {
		return nil
	}
	all, err := c.tcpSockets()
	if err != nil {
		return err
	}
	local, onlySix := inetAddress(d.socket.Local), 0
	if d.socket.Domain == unix.AF_INET6 {
		if onlySix, err = unix.GetsockoptInt(d.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err != nil {
			return fmt.Errorf("IPV6_V6ONLY: %w", err)
		}
	}
	for i := range all {
		e := &all[i]
		if e.Inode != 0 || e.State != stateEstablished && e.State != stateCloseWait || !listensFor(local, onlySix != 0, all, e.Local) {
			continue
		}
		if e.Unread > uint32(boolInt(e.State == stateCloseWait)) { // the end of a stream counts as one
			return c.earlyTCP(d)
		}
		if len(d.socket.Waiting) < n && !slices.Contains(c.queued, i) {
			d.socket.Waiting = append(d.socket.Waiting, c.endOf(ends{e.Remote, e.Local}))
			c.queued = append(c.queued, i)
		}
	}
	early, err := c.orderWaiting(d.socket.Waiting)
	if err == nil && early {
		return c.earlyTCP(d)
	}
	return err
}

// orderWaiting puts clients whose connections wait into the order in which they
// have connected, as far as milliseconds tell. early: one of them has written something, which
// may have been on its way when the kernel was asked what had arrived.
func (c *Capturer) orderWaiting(clients []int) (early bool, err error) {
	since := map[int]uint32{}
	for _, at := range clients {
		if at < 0 {
			continue
		}
		i, err := tcprepair.Get(c.descriptions[at].fd)
		if err != nil {
			return false, err
		}
		since[at] = i.Quiet
		unsent, err := unix.IoctlGetInt(c.descriptions[at].fd, unix.SIOCOUTQ)
		if err != nil {
			return false, fmt.Errorf("unacknowledged bytes: %w", err)
		}
		ended := boolInt(sentFIN(i.State)) // the end of a stream counts as one
		early = early || i.Sent > 0 || unsent > ended
	}
	slices.SortStableFunc(clients, func(a, b int) int { return cmp.Compare(since[b], since[a]) })
	return early, nil
}

// listensFor reports whether a connection to an address comes to the socket that
// listens at local. Several can listen at one port: the kernel takes the one with the
// address, else the one for all addresses of the family, else the one for all
// (compute_score in net/ipv4/inet_hashtables.c). One where nothing waits may listen
// since later. onlySix: that at local has IPV6_V6ONLY.
func listensFor(local netip.AddrPort, onlySix bool, all []sockdiag.Inet, to netip.AddrPort) bool {
	if local == to {
		return true
	}
	a, four := local.Addr(), to.Addr().Is4()
	if local.Port() != to.Port() || !a.IsUnspecified() || four != a.Is4() && (a.Is4() || onlySix) {
		return false
	}
	family := netip.IPv6Unspecified()
	if four {
		family = netip.IPv4Unspecified()
	}
	return !slices.ContainsFunc(all, func(o sockdiag.Inet) bool {
		return o.State == stateListen && o.Unread > 0 && (o.Local == to || o.Local == netip.AddrPortFrom(family, to.Port()) && o.Local != local)
	})
}
