package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/sandtree/sandtree/client"
)

// requests numbers the requests to all test processes.
var requests atomic.Int64

// warm is the connection to a test process.
type warm struct {
	a     *client.Attachment
	lines *bufio.Scanner
	ended chan error
}

// Score is what the tests say of the project.
type Score struct {
	ID     int64    `json:"id"`    // of the request
	Error  string   `json:"error"` // why the edits do not apply, and nothing was changed
	Passed int      `json:"passed"`
	Failed []string `json:"failed"`
	Broken []string `json:"broken"` // test files that cannot even be loaded
	TestNS int64    `json:"test_ns"`
}

func talk(a *client.Attachment) *warm {
	r, w := io.Pipe()
	t := &warm{a: a, lines: bufio.NewScanner(r), ended: make(chan error, 1)}
	t.lines.Buffer(nil, 1<<20)
	go func() {
		var said strings.Builder
		end, err := a.Copy(client.Stdio{Out: w, Err: &said})
		if err == nil {
			err = fmt.Errorf("the test process ended with %d %s: %s", end.ExitCode, end.Reason, strings.TrimSpace(said.String()))
		}
		t.ended <- err
		_ = w.CloseWithError(err)
	}()
	return t
}

// try asks for the score after some edits.
func (t *warm) try(edits []Edit) (Score, error) {
	id := requests.Add(1)
	if edits == nil {
		edits = []Edit{}
	}
	line, err := json.Marshal(struct {
		ID    int64  `json:"id"`
		Edits []Edit `json:"edits"`
	}{id, edits})
	if err != nil {
		return Score{}, err
	}
	if _, err := t.a.Write(append(line, '\n')); err != nil {
		return Score{}, fmt.Errorf("ask the test process: %w", err)
	}
	for t.lines.Scan() {
		var r Score
		if err := json.Unmarshal(t.lines.Bytes(), &r); err != nil {
			return r, fmt.Errorf("the test process said %q", t.lines.Text())
		}
		if r.ID == id { // an earlier one is a log that is shown again
			return r, nil
		}
	}
	return Score{}, fmt.Errorf("ask the test process: %w", <-t.ended)
}
