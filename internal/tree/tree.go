// Package tree keeps the checkpoint trees of sandboxes: which checkpoint came
// from which, and what may go.
//
// A node owns what its checkpoint is made of, as a [Resource]. Nodes do not
// need each other's: a node that is removed frees what it owns as soon as
// nobody uses it, and its children are shown under its parent from then on.
package tree

import (
	"slices"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
)

// Resource is what a checkpoint is made of. Free is called once, when the
// checkpoint is removed and nobody uses it any more.
type Resource interface{ Free() }

// Node is one checkpoint.
type Node[R Resource] struct {
	ID     string
	Name   string
	Parent string // id; empty for a root
	Data   R

	users   int
	removed bool
}

// Tree is the checkpoints of one sandbox. It is safe for use by many
// goroutines.
type Tree[R Resource] struct {
	mu    sync.Mutex
	nodes map[string]*Node[R]
	order []*Node[R] // as they were made: parents before children
	at    string     // what the live state descends from
}

// New returns an empty tree.
func New[R Resource]() *Tree[R] { return &Tree[R]{nodes: map[string]*Node[R]{}} }

// Add commits a checkpoint below the one that the live state descends from,
// and makes the live state descend from it. An id or a name that the tree has
// already is refused with Exists.
func (t *Tree[R]) Add(id, name string, data R) error {
	_, release, err := t.AddUsed(id, name, data)
	if err == nil {
		release()
	}
	return err
}

// AddUsed is [Tree.Add] and, before anybody else can remove it, [Tree.Use].
func (t *Tree[R]) AddUsed(id, name string, data R) (n *Node[R], release func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.add(t.at, id, name, data); err != nil {
		return nil, nil, err
	}
	t.at = id
	n, release = t.use(t.nodes[id])
	return n, release, nil
}

// Restore puts a checkpoint below another one, or at the root if parent is
// empty, and leaves the live state where it is. What has no checkpoint parent
// in the tree is refused with NotFound.
func (t *Tree[R]) Restore(parent, id, name string, data R) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if parent != "" && t.nodes[parent] == nil {
		return fault.New(fault.NotFound, "there is no checkpoint %q", parent)
	}
	return t.add(parent, id, name, data)
}

func (t *Tree[R]) add(parent, id, name string, data R) error {
	if err := t.free(id, name); err != nil {
		return err
	}
	n := &Node[R]{ID: id, Name: name, Parent: parent, Data: data}
	t.nodes[id] = n
	t.order = append(t.order, n)
	return nil
}

// Check refuses an id or name that [Tree.Add] would refuse.
func (t *Tree[R]) Check(id, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free(id, name)
}

func (t *Tree[R]) free(id, name string) error {
	for _, n := range t.order {
		if n.ID == id {
			return fault.New(fault.Exists, "checkpoint %s exists already", id)
		}
		if name != "" && n.Name == name {
			return fault.New(fault.Exists, "a checkpoint named %q exists already: %s", name, n.ID).
				WithHint("choose another name, or remove that one")
		}
	}
	return nil
}

// Use returns a checkpoint by id or name, which is not freed until release is
// called.
func (t *Tree[R]) Use(ref string) (n *Node[R], release func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = t.find(ref)
	if n == nil {
		return nil, nil, fault.New(fault.NotFound, "the sandbox has no checkpoint %q", ref)
	}
	n, release = t.use(n)
	return n, release, nil
}

// use counts a user; t.mu is held.
func (t *Tree[R]) use(n *Node[R]) (_ *Node[R], release func()) {
	n.users++
	return n, sync.OnceFunc(func() { t.release(n) })
}

// Useless reports whether a checkpoint that the caller uses was removed and nobody
// else uses it: nobody ever will.
func (t *Tree[R]) Useless(n *Node[R]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.removed && n.users == 1
}

func (t *Tree[R]) find(ref string) *Node[R] {
	if n := t.nodes[ref]; n != nil {
		return n
	}
	for _, n := range t.order {
		if n.Name == ref && ref != "" {
			return n
		}
	}
	return nil
}

func (t *Tree[R]) release(n *Node[R]) {
	t.mu.Lock()
	n.users--
	last := n.users == 0 && n.removed
	t.mu.Unlock()
	if last {
		n.Data.Free()
	}
}

// Remove takes a checkpoint out of the tree. Its children become its parent's.
func (t *Tree[R]) Remove(ref string) error {
	t.mu.Lock()
	n := t.find(ref)
	if n == nil {
		t.mu.Unlock()
		return fault.New(fault.NotFound, "the sandbox has no checkpoint %q", ref)
	}
	t.take(n)
	last := n.users == 0
	t.mu.Unlock()
	if last {
		n.Data.Free()
	}
	return nil
}

func (t *Tree[R]) take(n *Node[R]) {
	n.removed = true
	delete(t.nodes, n.ID)
	t.order = slices.DeleteFunc(t.order, func(o *Node[R]) bool { return o == n })
	for _, o := range t.order {
		if o.Parent == n.ID {
			o.Parent = n.Parent
		}
	}
	if t.at == n.ID {
		t.at = n.Parent
	}
}

// Clear removes all checkpoints.
func (t *Tree[R]) Clear() {
	t.mu.Lock()
	var gone []*Node[R]
	for _, n := range slices.Clone(t.order) {
		t.take(n)
		if n.users == 0 {
			gone = append(gone, n)
		}
	}
	t.mu.Unlock()
	for _, n := range gone {
		n.Data.Free()
	}
}

// MoveTo makes the live state descend from a checkpoint: it was rolled back.
func (t *Tree[R]) MoveTo(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes[id] != nil {
		t.at = id
	}
}

// At is the checkpoint that the live state descends from, or empty.
func (t *Tree[R]) At() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// Parent is the checkpoint above another, or empty.
func (t *Tree[R]) Parent(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.nodes[id]; n != nil {
		return n.Parent
	}
	return ""
}

// Nodes lists the checkpoints, parents before children. The nodes are copies.
func (t *Tree[R]) Nodes() []Node[R] {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Node[R], len(t.order))
	for i, n := range t.order {
		out[i] = *n
	}
	return out
}
