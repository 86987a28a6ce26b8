package descriptor

import (
	"bytes"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// Options that golang.org/x/sys does not name (linux/in.h, linux/in6.h,
// linux/tcp.h, linux/udp.h).
const (
	ipLocalPortRange = 51 // IP_LOCAL_PORT_RANGE, 6.3
	tcpInq           = 36 // TCP_INQ
	udpNoCheck6Tx    = 101
	udpNoCheck6Rx    = 102
	udpGRO           = 104
	udpSegment       = 103
)

// internetOptions are those of ip(7), ipv6(7), tcp(7) and udp(7).
func internetOptions(t socketType) (all []option) {
	stream := t.typ == unix.SOCK_STREAM
	all = append(all, ipOptions...)
	if !stream {
		all = append(all, ipDatagramOptions...)
	}
	if t.domain == unix.AF_INET6 {
		all = append(all, ipv6Options...)
		if !stream {
			all = append(all, ipv6DatagramOptions...)
		}
	}
	if stream {
		return append(all, tcpOptions...)
	}
	return append(all, udpOptions...)
}

var ipOptions = []option{
	{unix.IPPROTO_IP, unix.IP_FREEBIND, 4, fresh},
	{unix.IPPROTO_IP, unix.IP_TRANSPARENT, 4, fresh},
	{unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 4, fresh},
	{unix.IPPROTO_IP, ipLocalPortRange, 4, fresh},
	{unix.IPPROTO_IP, unix.IP_TOS, 4, always},
	{unix.IPPROTO_IP, unix.IP_TTL, 4, always},
	{unix.IPPROTO_IP, unix.IP_RECVERR, 4, always},
	{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, 4, always},
}

var ipDatagramOptions = []option{
	{unix.IPPROTO_IP, unix.IP_RECVTOS, 4, always},
	{unix.IPPROTO_IP, unix.IP_RECVTTL, 4, always},
	{unix.IPPROTO_IP, unix.IP_RECVOPTS, 4, always},
	{unix.IPPROTO_IP, unix.IP_RETOPTS, 4, always},
	{unix.IPPROTO_IP, unix.IP_PKTINFO, 4, always},
	{unix.IPPROTO_IP, unix.IP_RECVORIGDSTADDR, 4, always},
	{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 4, always},
	{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 4, always},
	{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 4, always},
}

var ipv6Options = []option{
	{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 4, early}, // see addressToBind
	{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, 4, always},
}

var ipv6DatagramOptions = []option{
	{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVORIGDSTADDR, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 4, always},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 4, always},
}

var tcpOptions = []option{
	{unix.IPPROTO_TCP, unix.TCP_CONGESTION, 0, early},
	{unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 4, fresh},
	{unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, 4, fresh},
	{unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 4, fresh},
	{unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 4, fresh},
	{unix.IPPROTO_TCP, unix.TCP_NODELAY, 4, always},
	{unix.IPPROTO_TCP, unix.TCP_CORK, 4, always},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 4, always},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 4, always},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4, always},
	{unix.IPPROTO_TCP, unix.TCP_SYNCNT, 4, always},
	{unix.IPPROTO_TCP, unix.TCP_LINGER2, 4, always},
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 4, always},
	{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 4, always},
	{unix.IPPROTO_TCP, tcpInq, 4, always},
}

var udpOptions = []option{
	{unix.SOL_UDP, unix.UDP_CORK, 4, always},
	{unix.SOL_UDP, udpSegment, 4, always},
	{unix.SOL_UDP, udpGRO, 4, always},
	{unix.SOL_UDP, udpNoCheck6Tx, 4, always},
	{unix.SOL_UDP, udpNoCheck6Rx, 4, always},
}

var netlinkOptions = []option{
	{unix.SOL_NETLINK, unix.NETLINK_PKTINFO, 4, always},
	{unix.SOL_NETLINK, unix.NETLINK_BROADCAST_ERROR, 4, always},
	{unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 4, always},
	{unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 4, always},
	{unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 4, always},
	{unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 4, always},
}

// addressToBind is the address to which a socket is bound that is to have another one
// in the end. One that its program has bound to an address of IPv6 takes that family
// alone from then on (IPV6_V6ONLY, which cannot be taken back), so one that does not
// has its address of the connection.
func addressToBind(s *image.Socket, address []byte) []byte {
	const at, size = 8, 16 // sin6_addr
	connects := s.Remote != nil || s.TCP != nil && s.TCP.Ended
	if s.Domain != unix.AF_INET6 || !connects || len(address) < at+size || netip.AddrFrom16([size]byte(address[at:at+size])) != netip.IPv6Loopback() {
		return address
	}
	for i := range s.Options {
		if o := &s.Options[i]; o.Level == unix.IPPROTO_IPV6 && o.Name == unix.IPV6_V6ONLY && word(o.Value) != 0 {
			return address
		}
	}
	out := bytes.Clone(address)
	clear(out[at : at+size])
	return out
}
