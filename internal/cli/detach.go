package cli

import "io"

// The keys that leave a session running and give the terminal back: ctrl-p
// and then ctrl-q, as in other container tools.
const (
	detachFirst  = 0x10
	detachSecond = 0x11
)

// detachReader passes a terminal's input on until the detach keys come, and
// then ends with io.EOF and detached set. The first key is held back until
// the next one shows whether it belongs to the pair.
type detachReader struct {
	src      io.Reader
	held     bool
	out      []byte // read, judged and not passed on yet
	detached bool
}

func (d *detachReader) Read(p []byte) (int, error) {
	for len(d.out) == 0 {
		if d.detached {
			return 0, io.EOF
		}
		buf := make([]byte, len(p))
		n, err := d.src.Read(buf)
		d.judge(buf[:n])
		if err != nil && len(d.out) == 0 {
			return 0, err
		}
	}
	n := copy(p, d.out)
	d.out = d.out[n:]
	return n, nil
}

func (d *detachReader) judge(b []byte) {
	for _, c := range b {
		switch {
		case d.held && c == detachSecond:
			d.detached = true
			return
		case d.held && c == detachFirst: // twice: pass one, hold the other
			d.out = append(d.out, c)
		case c == detachFirst:
			d.held = true
		case d.held:
			d.held = false
			d.out = append(d.out, detachFirst, c)
		default:
			d.out = append(d.out, c)
		}
	}
}
