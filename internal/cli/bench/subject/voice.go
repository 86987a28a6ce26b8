package subject

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/sandtree/sandtree/client"
)

// Voice is an attachment to a program that answers each word with the word,
// and what else it has to say on the same line.
type Voice struct {
	attachment *client.Attachment
	lines      *bufio.Scanner
	ended      chan error // what the session's end was
}

// words makes each word another, so that a replayed answer is not taken for
// a new one.
var words atomic.Int64

// listen reads an attachment's output as lines.
func listen(a *client.Attachment) *Voice {
	r, w := io.Pipe()
	v := &Voice{attachment: a, lines: bufio.NewScanner(r), ended: make(chan error, 1)}
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

// Ask says a word and returns what follows it in the answer.
func (v *Voice) Ask(word string) (string, error) {
	word += "-" + strconv.FormatInt(words.Add(1), 10)
	if _, err := io.WriteString(v.attachment, word+"\n"); err != nil {
		return "", fmt.Errorf("tell the program %s: %w", word, err)
	}
	for v.lines.Scan() {
		if said, rest, _ := strings.Cut(v.lines.Text(), " "); said == word {
			return rest, nil
		}
	}
	select {
	case err := <-v.ended:
		return "", fmt.Errorf("no answer to %s: %w", word, err)
	default:
		return "", fmt.Errorf("no answer to %s: %w", word, v.lines.Err())
	}
}

// Tell says a word and waits until the program has done what it says.
func (v *Voice) Tell(word string) error {
	_, err := v.Ask(word)
	return err
}

// Close ends the attachment; the program goes on.
func (v *Voice) Close() { _ = v.attachment.Close() }
