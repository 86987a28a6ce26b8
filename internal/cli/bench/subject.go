package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/sandtree/sandtree/client"
)

// program is what runs in the sandboxes that are checkpointed: it holds a
// heap, changes part of it and some files when told so, and answers each word.
const program = `
import os, sys
heap = bytearray(%d)
heap[::4096] = b"\1" * len(range(0, len(heap), 4096))
os.makedirs("/tmp/bench", exist_ok=True)
turn = 0
while True:
    word = sys.stdin.readline().strip()
    if not word:
        break
    if word.startswith("dirty"):
        turn += 1
        at = turn * %[2]d %% len(heap)
        heap[at:at + %[2]d:4096] = bytes([turn %% 256]) * len(range(at, min(at + %[2]d, len(heap)), 4096))
        for i in range(%[3]d):
            with open("/tmp/bench/%%d" %% i, "wb") as f:
                f.write(os.urandom(4096))
    print(word, flush=True)
`

// subject is a sandbox with the program, and a shell beside it.
type subject struct {
	sandbox *client.Sandbox
	session string
	voice   *voice
}

// subject starts one.
func (r *runner) subject(ctx context.Context) (*subject, error) {
	sb, err := r.c.CreateSandbox(ctx, client.SandboxConfig{Template: r.cfg.Template})
	if err != nil {
		return nil, err
	}
	s := &subject{sandbox: sb}
	if err := s.start(ctx, r.cfg); err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

func (s *subject) start(ctx context.Context, cfg Config) error {
	if _, err := s.sandbox.Start(ctx, client.Command{Argv: []string{"bash", "-c", "while read -r line; do echo $line; done"}}); err != nil {
		return err
	}
	text := fmt.Sprintf(program, cfg.HeapBytes, cfg.DirtyBytes, cfg.DirtyFiles)
	a, err := s.sandbox.Exec(ctx, client.Command{Argv: []string{"python3", "-c", text}})
	if err != nil {
		return err
	}
	s.session = a.Session.ID
	s.voice = listen(a)
	return s.voice.ask("dirty")
}

func (s *subject) close(ctx context.Context) {
	if s.voice != nil {
		_ = s.voice.Close()
	}
	_ = s.sandbox.Remove(context.WithoutCancel(ctx), true)
}

// attachTo speaks to the copy of the program in a fork of its sandbox.
func attachTo(ctx context.Context, sb *client.Sandbox, argv0 string) (*voice, error) {
	all, err := sb.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if !s.Ended && s.Argv[0] == argv0 {
			a, err := s.Attach(ctx, client.AttachOptions{})
			if err != nil {
				return nil, err
			}
			return listen(a), nil
		}
	}
	return nil, fmt.Errorf("no session of %s in fork %s", argv0, sb.ID)
}

// voice is an attachment to the program.
type voice struct {
	*client.Attachment
	lines *bufio.Scanner
	ended chan error // what the session's end was
}

// words makes each word another, so that a replayed answer is not taken for
// a new one.
var words atomic.Int64

// listen reads an attachment's output as lines.
func listen(a *client.Attachment) *voice {
	r, w := io.Pipe()
	v := &voice{Attachment: a, lines: bufio.NewScanner(r), ended: make(chan error, 1)}
	go func() {
		var errs strings.Builder
		end, err := a.Copy(client.Stdio{Out: w, Err: &errs})
		if err == nil {
			err = fmt.Errorf("the program ended with %d: %s", end.ExitCode, strings.TrimSpace(errs.String()))
		}
		v.ended <- err
		_ = w.CloseWithError(err)
	}()
	return v
}

// ask says a word and waits for it to come back.
func (v *voice) ask(word string) error {
	word += "-" + strconv.FormatInt(words.Add(1), 10)
	if _, err := io.WriteString(v, word+"\n"); err != nil {
		return fmt.Errorf("tell the program %s: %w", word, err)
	}
	for v.lines.Scan() {
		if v.lines.Text() == word {
			return nil
		}
	}
	return fmt.Errorf("no answer to %s: %w", word, <-v.ended)
}
