package descriptor

import (
	"net/netip"
	"testing"

	"github.com/sandtree/sandtree/internal/linux/sockdiag"
)

func TestWhoListensForAConnection(t *testing.T) {
	at := netip.MustParseAddrPort
	all := func(listening ...string) (out []sockdiag.Inet) {
		for _, a := range listening {
			out = append(out, sockdiag.Inet{State: stateListen, Local: at(a), Unread: 1})
		}
		return append(out, sockdiag.Inet{State: stateEstablished, Local: at("127.0.0.9:80")})
	}
	for _, c := range []struct {
		name, listens string
		onlySix       bool
		all           []sockdiag.Inet
		local         string
		want          bool
	}{
		{"its address", "127.0.0.1:80", false, all("127.0.0.1:80"), "127.0.0.1:80", true},
		{"another port", "127.0.0.1:80", false, all("127.0.0.1:80"), "127.0.0.1:81", false},
		{"another address", "127.0.0.1:80", false, all("127.0.0.1:80"), "127.0.0.2:80", false},
		{"any of IPv4", "0.0.0.0:80", false, all("0.0.0.0:80", "[::]:80"), "127.0.0.9:80", true},
		{"any of IPv4, not IPv6", "0.0.0.0:80", false, all("0.0.0.0:80", "[::]:80"), "[::1]:80", false},
		{"any of IPv4, but one has the address", "0.0.0.0:80", false, all("0.0.0.0:80", "127.0.0.1:80"), "127.0.0.1:80", false},
		{"any of IPv4, and one that has the address since", "0.0.0.0:80", false, []sockdiag.Inet{{State: stateListen, Local: at("127.0.0.1:80")}}, "127.0.0.1:80", true},
		{"any", "[::]:80", false, all("[::]:80"), "127.0.0.1:80", true},
		{"any of IPv6", "[::]:80", true, all("[::]:80"), "[::1]:80", true},
		{"any of IPv6, not IPv4", "[::]:80", true, all("[::]:80", "127.0.0.1:80"), "127.0.0.2:80", false},
		{"any, but one is for IPv4", "[::]:80", false, all("[::]:80", "0.0.0.0:80"), "127.0.0.1:80", false},
		{"any, but one has the address", "[::]:80", false, all("[::]:80", "[::1]:80"), "[::1]:80", false},
	} {
		if got := listensFor(at(c.listens), c.onlySix, c.all, at(c.local)); got != c.want {
			t.Errorf("%s: %s listens for a connection to %s: %t", c.name, c.listens, c.local, got)
		}
	}
}
