package cli

import (
	"strings"
	"testing"

	"github.com/sandtree/sandtree/client"
)

func TestWriteExplained(t *testing.T) {
	var b strings.Builder
	cp := &client.Checkpoint{CheckpointInfo: client.CheckpointInfo{
		ID: "cp-x", FrozenNS: 2_500_000, DirtyBytes: 1 << 20, StageNS: map[string]int64{"stop": 1_000_000, "resume": 2_000_000},
	}}
	writeExplained(&b, cp, []client.CapturedItem{
		{Kind: "session", Count: 2},
		{Process: 7, Command: "evil\x1b[2J", Kind: "memfd", What: "3 /a", Count: 1, Bytes: 4096},
	})
	for _, want := range []string{"session", `evil\x1b[2J`, "memfd", "4.0K", "3 /a", "cp-x  frozen 2.50 ms, 1.0M of memory"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Error("what is inside reaches the terminal")
	}
	if r, s := strings.Index(b.String(), "resume"), strings.Index(b.String(), "stop"); r > s {
		t.Error("the longest stage does not come first")
	}
}
