package durable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/chunkstore"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/durable/machine"
	"github.com/sandtree/sandtree/internal/durable/pack"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
)

// The steps of an import that can be made to fail, beside those of packs and
// records.
var (
	failReceived = failpoint.New("durable.import.received")
	failVerified = failpoint.New("durable.import.verified")
)

// ImportOptions say what [Repository.Import] may take.
type ImportOptions struct {
	// OtherKernel takes records of another kernel release, if all that
	// programs have of the kernel in their memory is the same on this one.
	OtherKernel bool
	// MaxBytes bounds the length of all chunks together, and the memory and
	// files of each record; 0 is 1 TiB.
	MaxBytes int64
	// Rename gives records other ids; nil keeps them. Parents are renamed
	// with them.
	Rename func(id string) string
}

const defaultMaxBytes = 1 << 40

// Import reads an export. The stream is taken for hostile: nothing of it is
// kept unless all of it is right, and this machine can run it. The error of one
// that cannot is Unsupported and names the difference. An id that is taken is
// refused with Exists.
func (r *Repository) Import(ctx context.Context, from io.Reader, o ImportOptions) ([]Info, error) {
	infos, err := r.importAll(ctx, from, o)
	if err != nil {
		return nil, disk.Errorf("%w", foreign(err))
	}
	return infos, nil
}

// foreign gives errors of what somebody else made their kind.
func foreign(err error) error {
	var known *fault.Error
	if errors.As(err, &known) {
		return err
	}
	for _, bad := range []error{errExport, errCorrupt, chunk.ErrCorrupt, pack.ErrCorrupt, cbor.ErrMalformed, cbor.ErrLimit} {
		if errors.Is(err, bad) {
			return fault.New(fault.Invalid, "%w", err).WithHint("the file is damaged, or was not made by sandtree export")
		}
	}
	return err
}

func (r *Repository) importAll(ctx context.Context, from io.Reader, o ImportOptions) (infos []Info, err error) {
	here, err := machine.Here()
	if err != nil {
		return nil, err
	}
	l, err := r.chunks.Lease()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release()) }()
	in := &incoming{r: r, o: o, ids: map[chunk.ID]bool{}}
	if in.o.MaxBytes <= 0 {
		in.o.MaxBytes = defaultMaxBytes
	}
	if in.session, err = r.chunks.Begin(ctx, l); err != nil {
		return nil, err
	}
	defer in.session.Abort()
	if err := in.receive(ctx, from); err != nil {
		return nil, err
	}
	if err := failReceived.Hit(); err != nil {
		return nil, err
	}
	for _, rec := range in.records {
		if err := rec.Info.Machine.Check(here, machine.Options{OtherKernel: o.OtherKernel}); err != nil {
			return nil, fmt.Errorf("record %s: %w", rec.Info.ID, err)
		}
	}
	if err := in.rename(); err != nil {
		return nil, err
	}
	problems, err := in.verify(ctx)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: record %s: %s", errCorrupt, problems[0].Record, problems[0].What)
	}
	if err := failVerified.Hit(); err != nil {
		return nil, err
	}
	if _, err := in.session.Commit(); err != nil {
		return nil, err
	}
	for i, rec := range in.records {
		b, err := rec.encode()
		if err == nil {
			err = r.publishRecord(l, rec.Info.ID, b)
		}
		if err != nil {
			for _, done := range in.records[:i] {
				err = errors.Join(err, r.Remove(done.Info.ID))
			}
			return nil, err
		}
		infos = append(infos, rec.Info)
	}
	return infos, nil
}

// incoming is an import under way.
type incoming struct {
	r       *Repository
	o       ImportOptions
	session *chunkstore.Session
	ids     map[chunk.ID]bool // that the stream had
	bytes   int64
	records []*record
}

// receive reads the stream to its end. The chunks are in packs then, which are
// not published.
func (in *incoming) receive(ctx context.Context, from io.Reader) error {
	s, err := scan(from)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	var b []byte
	for {
		if err := ctx.Err(); err != nil {
			return fault.New(fault.Canceled, "%w", err)
		}
		kind, body, err := s.next()
		if err != nil {
			return err
		}
		switch kind {
		case frameEnd:
			return in.session.Flush()
		case frameChunk:
			if b, err = in.chunk(b[:0], body); err != nil {
				return err
			}
		case frameRecord:
			rec, err := decodeRecord(body)
			if err != nil {
				return err
			}
			if known[rec.Info.ID] {
				return fmt.Errorf("%w: record %s is there twice", errExport, rec.Info.ID)
			}
			known[rec.Info.ID] = true
			if rec.Info.MemoryBytes > in.o.MaxBytes || rec.Info.FileBytes > in.o.MaxBytes {
				return in.tooLarge()
			}
			in.records = append(in.records, rec)
		}
	}
}

func (in *incoming) tooLarge() error {
	return fault.New(fault.Invalid, "it has more than %d bytes", in.o.MaxBytes)
}

func (in *incoming) chunk(buf, body []byte) ([]byte, error) {
	id := chunk.ID(body[:len(chunk.ID{})])
	length := binary.BigEndian.Uint32(body[len(id):])
	if in.ids[id] {
		return buf, fmt.Errorf("%w: chunk %s is there twice", errExport, id)
	}
	in.ids[id] = true
	if in.bytes += int64(length); in.bytes > in.o.MaxBytes {
		return buf, in.tooLarge()
	}
	if length > chunk.Max {
		return buf, fmt.Errorf("%w: chunk %s of %d bytes", errExport, id, length)
	}
	b, err := chunk.Decode(buf, body[len(id)+4:], id, int(length))
	if err != nil {
		return buf, err
	}
	_, err = in.session.Put(b)
	return b, err
}

// rename gives records their ids here, and refuses those that are taken and
// parents in a circle.
func (in *incoming) rename() error {
	parents, names := map[string]string{}, map[string]string{}
	for _, rec := range in.records {
		parents[rec.Info.ID] = rec.Info.Parent
	}
	for id := range parents {
		steps := 0
		for at := parents[id]; at != ""; at = parents[at] {
			if steps++; steps > len(parents) {
				return fmt.Errorf("%w: record %s descends from itself", errExport, id)
			}
		}
		names[id] = id
		if in.o.Rename != nil {
			names[id] = in.o.Rename(id)
		}
	}
	taken := map[string]bool{}
	for _, rec := range in.records {
		id := names[rec.Info.ID]
		if err := validID(id); err != nil {
			return err
		}
		if taken[id] {
			return fault.New(fault.Invalid, "two records would have the id %s", id)
		}
		taken[id] = true
		if err := in.r.unused(id); err != nil {
			return err
		}
		rec.Info.ID = id
		if p, ok := names[rec.Info.Parent]; ok {
			rec.Info.Parent = p
		}
	}
	return nil
}

// verify checks all records against what the stream had. Chunks that only the
// repository has do not count: whoever knows a name must not get what is in
// other checkpoints by it.
func (in *incoming) verify(ctx context.Context) (problems []Problem, err error) {
	v := newVerification(streamOnly{in})
	for _, rec := range in.records {
		found, err := v.record(ctx, rec)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// streamOnly reads chunks that came with the stream.
type streamOnly struct{ in *incoming }

var _ content.Getter = streamOnly{}

// Append implements [content.Getter].
func (s streamOnly) Append(dst []byte, id chunk.ID) ([]byte, error) {
	if !s.in.ids[id] {
		return dst, fmt.Errorf("%w: %s is not in it", chunk.ErrCorrupt, id)
	}
	return s.in.session.Append(dst, id)
}

// VerifyExport is [Repository.Verify] for an export. The chunks are kept in a
// temporary directory meanwhile. An export that cannot be read to its end is an
// error of the kind Invalid.
func VerifyExport(ctx context.Context, from io.Reader) (infos []Info, problems []Problem, err error) {
	defer func() {
		if err != nil {
			err = disk.Errorf("verify an export: %w", foreign(err))
		}
	}()
	dir, err := os.MkdirTemp("", "sandtree-verify-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r, err := Open(dir, Options{})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	l, err := r.chunks.Lease()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Release() }()
	in := &incoming{r: r, o: ImportOptions{MaxBytes: defaultMaxBytes}, ids: map[chunk.ID]bool{}}
	if in.session, err = r.chunks.Begin(ctx, l); err != nil {
		return nil, nil, err
	}
	defer in.session.Abort()
	if err := in.receive(ctx, from); err != nil {
		return nil, nil, err
	}
	if err := in.rename(); err != nil {
		return nil, nil, err
	}
	for _, rec := range in.records {
		infos = append(infos, rec.Info)
	}
	problems, err = in.verify(ctx)
	return infos, problems, err
}
