package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
)

func TestDrawTree(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(id, name, parent string) *client.CheckpointInfo {
		return &client.CheckpointInfo{ID: id, Name: name, Parent: parent, Created: now.Add(-time.Minute), FrozenNS: 1_240_000, Durable: client.DurableYes, DirtyBytes: 2 << 20, FileBytes: 4096}
	}
	failed := at("cp-6", "", "cp-5")
	failed.Durable, failed.DurableReason = client.DurableFailed, "no space left on device"
	var b strings.Builder
	drawTree(&b, client.Tree{
		ID: "sb-1", Name: "try", At: "cp-3",
		Checkpoints: []*client.CheckpointInfo{
			at("cp-1", "first", ""), at("cp-2", "", "cp-1"), at("cp-3", "left", "cp-2"), at("cp-4", "b\x1b[2Jad", "cp-1"),
			at("cp-5", "orphan", "cp-removed"), failed,
		},
	}, now)
	want := `try              AGE  MEMORY  DISK  FROZEN   DURABLE  ID
├─ first         1m   2.0M    4.0K  1.24 ms  yes      cp-1
│  ├─ cp-2       1m   2.0M    4.0K  1.24 ms  yes      cp-2
│  │  └─ left *  1m   2.0M    4.0K  1.24 ms  yes      cp-3
│  └─ b?[2Jad    1m   2.0M    4.0K  1.24 ms  yes      cp-4
└─ orphan        1m   2.0M    4.0K  1.24 ms  yes      cp-5
   └─ cp-6       1m   2.0M    4.0K  1.24 ms  failed   cp-6
cp-6 is not durable: no space left on device
`
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
