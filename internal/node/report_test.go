package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
)

// The report of the daemon's end takes the room that was kept for it, and one that
// was longer leaves nothing that is read.
func TestReportIsWrittenOverWhatIsThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stopped.json")
	if err := reserveReport(file); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"all of it", strings.Repeat("x", 2*reportRoom), "a little"} {
		if err := reserveReport(file); err != nil {
			t.Fatal(err)
		}
		want := hostcontrol.Stopped{Hibernated: len(what), Lost: []hostcontrol.Loss{{Name: "one", What: what}}}
		if err := writeReport(file, want); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(file)
		if err != nil || st.Size() < reportRoom {
			t.Errorf("the file has %d bytes, %v", st.Size(), err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		var got hostcontrol.Stopped
		err = json.NewDecoder(f).Decode(&got)
		_ = f.Close()
		if err != nil || got.Hibernated != want.Hibernated || got.Lost[0] != want.Lost[0] {
			t.Errorf("%d bytes of a loss are read as %d, %v", len(what), got.Hibernated, err)
		}
	}
}
