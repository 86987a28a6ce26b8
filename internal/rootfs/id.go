package rootfs

import "github.com/sandtree/sandtree/internal/fault"

// maxID leaves room for what a store puts before an id in its own names.
const maxID = 127

// ValidID refuses an id that no upper or snapshot may have: ids are of
// lower-case letters, digits, dot, underscore and dash, start with a letter or
// digit, and have up to 127 characters. Names that start with a dot are a
// store's own.
func ValidID(s string) error {
	ok := s != "" && len(s) <= maxID && s[0] != '.' && s[0] != '_' && s[0] != '-'
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if !ok {
		return fault.New(fault.Invalid, "%.140q is not an id of a file state", s)
	}
	return nil
}
