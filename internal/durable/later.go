package durable

import (
	"context"
	"io"

	"github.com/sandtree/sandtree/internal/fault"
)

func notYet(what string) error { return fault.New(fault.Unsupported, "%s is not built yet", what) }

// Export writes records, with all that they refer to, as one stream. Parents
// that are not among them are not needed to import it.
func (r *Repository) Export(ctx context.Context, w io.Writer, ids ...string) error {
	return notYet("export")
}

// ImportOptions say what [Repository.Import] may take.
type ImportOptions struct {
	// OtherKernel takes records of another kernel release, if all that
	// programs have of the kernel in their memory is the same on this one.
	OtherKernel bool
	// MaxBytes bounds the decompressed size of all chunks; 0 is 1 TiB.
	MaxBytes int64
	// Rename gives records other ids; nil keeps them. Parents are renamed
	// with them.
	Rename func(id string) string
}

// Import reads an export. The stream is taken for hostile: nothing of it is
// kept unless all of it is right, and this machine can run it. The error of one
// that cannot is Unsupported and names the difference. An id that is taken is
// refused with Exists.
func (r *Repository) Import(ctx context.Context, from io.Reader, o ImportOptions) ([]Info, error) {
	return nil, notYet("import")
}

// VerifyExport is [Repository.Verify] for an export.
func VerifyExport(ctx context.Context, from io.Reader) ([]Info, []Problem, error) {
	return nil, nil, notYet("verify an export")
}
