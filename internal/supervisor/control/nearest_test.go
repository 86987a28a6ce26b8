package control

import "testing"

func TestNearest(t *testing.T) {
	parents := map[string]string{"d": "c", "c": "b", "b": "a", "a": "", "x": "y", "y": "x"}
	for _, c := range []struct{ from, there, want string }{
		{"d", "d", "d"}, {"d", "b", "b"}, {"d", "a", "a"}, {"d", "", ""}, {"", "a", ""}, {"x", "a", ""}, {"unknown", "a", ""},
	} {
		if got := Nearest(c.from, parents, func(id string) bool { return id == c.there }); got != c.want {
			t.Errorf("from %q, where %q is there: %q, want %q", c.from, c.there, got, c.want)
		}
	}
}
