package engine

// Relieve is what happens under memory pressure.
func (e *Engine) Relieve() { e.relieve() }
