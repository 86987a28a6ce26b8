package engine

import (
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tree"
)

// A command that ends between the moment when its descriptors are taken and the
// reply must not shift those of the others.
func TestDescribeRebornKeepsSessionsWithTheirDescriptors(t *testing.T) {
	now := time.Now()
	first := control.Session{ID: "a", Started: now}
	second := control.Session{ID: "b", Started: now.Add(1)}
	b := &box{tree: tree.New[*checkpoint]()}
	b.sessions.all = map[string]*session{"a": {Session: first}, "b": {Session: second}, "c": {Session: control.Session{ID: "c", Started: now.Add(2), Ended: true}}}
	b.sessions.all["a"].Ended = true
	got := b.describeReborn([]control.Session{first, second}).Sessions
	if len(got) != 3 || got[0].Ended || got[1].Ended || !got[2].Ended {
		t.Errorf("%+v: want a and b as they were, and the ended c", got)
	}
}
