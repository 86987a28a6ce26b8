package descriptor

import "golang.org/x/sys/unix"

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

var ipv4Options = []option{
	{unix.IPPROTO_IP, unix.IP_TOS, 4, false},
	{unix.IPPROTO_IP, unix.IP_TTL, 4, false},
	{unix.IPPROTO_IP, unix.IP_RECVTOS, 4, false},
	{unix.IPPROTO_IP, unix.IP_RECVTTL, 4, false},
	{unix.IPPROTO_IP, unix.IP_RECVOPTS, 4, false},
	{unix.IPPROTO_IP, unix.IP_RETOPTS, 4, false},
	{unix.IPPROTO_IP, unix.IP_PKTINFO, 4, false},
	{unix.IPPROTO_IP, unix.IP_RECVERR, 4, false},
	{unix.IPPROTO_IP, unix.IP_RECVORIGDSTADDR, 4, false},
	{unix.IPPROTO_IP, unix.IP_CHECKSUM, 4, false},
	{unix.IPPROTO_IP, unix.IP_RECVFRAGSIZE, 4, false},
	{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, 4, false},
	{unix.IPPROTO_IP, unix.IP_FREEBIND, 4, true},
	{unix.IPPROTO_IP, unix.IP_TRANSPARENT, 4, true},
	{unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 4, true},
	{unix.IPPROTO_IP, ipLocalPortRange, 4, true},
	{unix.IPPROTO_IP, unix.IP_MINTTL, 4, false},
}

var ipv6Options = []option{
	{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 4, true},
	{unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 4, true},
	{unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 4, true},
	{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVORIGDSTADDR, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL, 4, false},
	{unix.IPPROTO_IPV6, unix.IPV6_ADDR_PREFERENCES, 4, false},
}

// multicastOptions are of all but TCP.
var multicastOptions = map[int][]option{
	unix.AF_INET: {
		{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 4, false},
		{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 4, false},
		{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 4, false},
	},
	unix.AF_INET6: {
		{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 4, false},
		{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 4, false},
		{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 4, false},
	},
}

var tcpOptions = []option{
	{unix.IPPROTO_TCP, unix.TCP_CONGESTION, 0, true},
	{unix.IPPROTO_TCP, unix.TCP_NODELAY, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_CORK, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_SYNCNT, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_LINGER2, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 4, true},
	{unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 4, false},
	{unix.IPPROTO_TCP, tcpInq, 4, false},
	{unix.IPPROTO_TCP, unix.TCP_TX_DELAY, 4, false},
}

var udpOptions = []option{
	{unix.SOL_UDP, unix.UDP_CORK, 4, false},
	{unix.SOL_UDP, udpSegment, 4, false},
	{unix.SOL_UDP, udpGRO, 4, false},
	{unix.SOL_UDP, udpNoCheck6Tx, 4, false},
	{unix.SOL_UDP, udpNoCheck6Rx, 4, false},
}

var netlinkOptions = []option{
	{unix.SOL_NETLINK, unix.NETLINK_PKTINFO, 4, false},
	{unix.SOL_NETLINK, unix.NETLINK_BROADCAST_ERROR, 4, false},
	{unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 4, false},
	{unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 4, false},
	{unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 4, false},
	{unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 4, false},
}
