package descriptor

import (
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
)

// What a terminal in packet mode tells its master is read at once by most, so that it is of the moment.
func TestNewsForTheMaster(t *testing.T) {
	p := newBody(t).python(t, `
import os, sys, fcntl, struct, termios
m, s = os.openpty(); os.dup2(m, 70); os.close(m); fcntl.ioctl(70, termios.TIOCPKT, struct.pack("i", 1)); termios.tcflush(s, termios.TCIOFLUSH)
print("ready", flush=True); sys.stdin.read()`)
	_, err := p.capture(t)
	if !fault.Is(err, fault.Uncapturable) || !fault.Passes(err) || !strings.Contains(err.Error(), "the master of the terminal /dev/pts/0 with news of that to be read as descriptor 70") {
		t.Error(err)
	}
}
