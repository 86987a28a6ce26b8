package tree_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/tree"
)

type resource struct{ freed *int }

func (r resource) Free() { *r.freed++ }

func TestRemovedNodesAreFreedWhenUnused(t *testing.T) {
	tr := tree.New[resource]()
	freed := map[string]*int{}
	add := func(id, name string) {
		t.Helper()
		freed[id] = new(int)
		if err := tr.Add(id, name, resource{freed[id]}); err != nil {
			t.Fatal(err)
		}
	}
	add("a", "first")
	add("b", "")
	add("c", "third")
	_, release, err := tr.Use("b")
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Remove("b"); err != nil {
		t.Fatal(err)
	}
	if *freed["b"] != 0 {
		t.Error("freed while in use")
	}
	release()
	release()
	if *freed["b"] != 1 {
		t.Errorf("freed %d times", *freed["b"])
	}
	for _, n := range tr.Nodes() {
		if n.ID == "c" && n.Parent != "a" {
			t.Errorf("c is under %q, want a", n.Parent)
		}
	}
	if _, _, err := tr.Use("b"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a removed node: %v", err)
	}
	if n, release, err := tr.Use("first"); err != nil || n.ID != "a" {
		t.Errorf("by name: %v %v", n, err)
	} else {
		release()
	}
	tr.Clear()
	if *freed["a"] != 1 || *freed["c"] != 1 || tr.At() != "" {
		t.Errorf("clear: %d %d, at %q", *freed["a"], *freed["c"], tr.At())
	}
}

func TestTreeFollowsTheLiveState(t *testing.T) {
	tr := tree.New[resource]()
	n := new(int)
	for _, id := range []string{"a", "b"} {
		if err := tr.Add(id, id+"name", resource{n}); err != nil {
			t.Fatal(err)
		}
	}
	tr.MoveTo("a")
	if err := tr.Add("c", "", resource{n}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a": "", "b": "a", "c": "a"}
	for _, x := range tr.Nodes() {
		if x.Parent != want[x.ID] {
			t.Errorf("%s is under %q, want %q", x.ID, x.Parent, want[x.ID])
		}
	}
	if err := tr.Add("d", "aname", resource{n}); !fault.Is(err, fault.Exists) {
		t.Errorf("a name twice: %v", err)
	}
	if err := tr.Add("a", "", resource{n}); !fault.Is(err, fault.Exists) {
		t.Errorf("an id twice: %v", err)
	}
	if err := tr.Remove("c"); err != nil || tr.At() != "a" {
		t.Errorf("remove where the state stands: %v, at %q", err, tr.At())
	}
}

func TestUselessIsWhatNobodyElseCanUse(t *testing.T) {
	tr := tree.New[resource]()
	freed := new(int)
	n, release, err := tr.AddUsed("a", "", resource{freed})
	if err != nil || tr.At() != "a" {
		t.Fatal(err, tr.At())
	}
	if tr.Useless(n) {
		t.Error("useless while it is in the tree")
	}
	_, other, err := tr.Use("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if tr.Useless(n) {
		t.Error("useless while another uses it")
	}
	other()
	if !tr.Useless(n) {
		t.Error("not useless, though only the caller has it")
	}
	if release(); *freed != 1 {
		t.Errorf("freed %d times", *freed)
	}
	if _, _, err := tr.AddUsed("b", "", resource{freed}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tr.AddUsed("b", "", resource{freed}); !fault.Is(err, fault.Exists) {
		t.Errorf("twice: %v", err)
	}
}
