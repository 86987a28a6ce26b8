package engine

// Relieve is what happens under memory pressure.
func (e *Engine) Relieve() { e.relieve() }

// Unload leaves what is durable of a sandbox on disk alone. It returns how many
// checkpoints that are.
func (e *Engine) Unload(sandbox string) (n int) {
	b, err := e.box(sandbox)
	if err != nil {
		return 0
	}
	e.standbys.drop(b, "")
	for _, x := range b.tree.Nodes() {
		if x.Data.unload() {
			n++
		}
	}
	return n
}
