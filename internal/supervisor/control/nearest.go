package control

// Nearest goes up from a checkpoint, which need not be there any more, to the first that
// is. Parents are by id, of all checkpoints that there were. Empty: none is there.
func Nearest(id string, parents map[string]string, there func(id string) bool) string {
	for range len(parents) + 1 { // what was written down may be a ring
		if id == "" || there(id) {
			return id
		}
		id = parents[id]
	}
	return ""
}
