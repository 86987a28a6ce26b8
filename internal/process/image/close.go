package image

// Close frees the content that the tree has in anonymous files.
func (t *Tree) Close() {
	if t == nil {
		return
	}
	for _, s := range t.Shared {
		_ = s.Close()
	}
	for _, g := range t.SystemV.Segments {
		if g.Content != nil && g.Content.File != nil {
			_ = g.Content.Close()
		}
	}
	for _, f := range t.Files {
		if f.Blob != nil && f.Blob.File != nil {
			_ = f.Blob.Close()
		}
	}
}
