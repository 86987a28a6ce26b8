package soak

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandtree/sandtree/client"
)

// voice speaks to the program in a sandbox. A connection that the node's death
// breaks may lose what was on its way in, so a question may be asked again;
// words tell which answer is whose.
type voice struct {
	c       *client.Client
	k       *disasters
	session string
	a       *client.Attachment
	lines   chan string // closed when the attachment has ended
	why     chan error
}

var words atomic.Int64

const (
	// answerWithin is how long an answer may take before it is asked for
	// again.
	answerWithin = 20 * time.Second
	asks         = 4
)

// errStruck says that the program may not be what it was when it was asked.
var errStruck = errors.New("it was struck by a disaster")

func newVoice(c *client.Client, a *client.Attachment, k *disasters) *voice {
	v := &voice{c: c, k: k, session: a.Session.ID}
	v.listen(a)
	return v
}

// listen reads an attachment from its beginning to its end.
func (v *voice) listen(a *client.Attachment) {
	lines, why := make(chan string, 1000), make(chan error, 1)
	v.a, v.lines, v.why = a, lines, why
	r, w := io.Pipe()
	go func() {
		var errs strings.Builder
		end, err := a.Copy(client.Stdio{Out: w, Err: &errs})
		if err == nil {
			err = fmt.Errorf("the program ended with %d %s: %s", end.ExitCode, end.Reason, errs.String())
		}
		why <- err
		_ = w.Close()
	}()
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- s.Text()
		}
	}()
}

// again leaves the attachment and joins the session anew.
func (v *voice) again(ctx context.Context) error {
	v.close()
	return through(ctx, func() error {
		a, err := v.c.SessionHandle(v.session).Attach(ctx, client.AttachOptions{})
		if err == nil {
			v.listen(a)
		}
		return err
	})
}

// close ends the attachment and lets its reader end.
func (v *voice) close() {
	_ = v.a.Close()
	for range v.lines { //revive:disable-line:empty-block
	}
}

// ask asks the program, more than once if need be, and returns its answer.
func (v *voice) ask(ctx context.Context, command string) (string, error) {
	var last error
	struck := v.k.next()
	for range asks {
		select {
		case <-struck:
			return "", errStruck
		default:
		}
		if last != nil {
			if err := v.again(ctx); err != nil {
				return "", err
			}
		}
		word := fmt.Sprintf("w%d", words.Add(1))
		if _, last = io.WriteString(v.a, word+" "+command+"\n"); last != nil {
			if errors.Is(last, io.EOF) { // it has ended, and said why
				v.close()
				last = <-v.why
				v.why <- last
			}
			continue
		}
		var answer string
		if answer, last = v.await(ctx, word, struck); last == nil {
			return answer, nil
		}
	}
	return "", fmt.Errorf("no answer to %q: %w", command, last)
}

func (v *voice) await(ctx context.Context, word string, struck <-chan struct{}) (string, error) {
	patience := time.NewTimer(answerWithin)
	defer patience.Stop()
	for {
		select {
		case line, ok := <-v.lines:
			if !ok {
				err := <-v.why
				v.why <- err
				return "", err
			}
			if answer, ours := strings.CutPrefix(line, word+" "); ours {
				return answer, nil
			}
		case <-patience.C:
			return "", fmt.Errorf("none within %v", answerWithin)
		case <-struck:
			return "", errStruck
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}
