package client

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// FileInfo describes a file inside a sandbox.
type FileInfo struct {
	Path     string    `json:"path"`
	Mode     uint32    `json:"mode"` // st_mode
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // of a symbolic link
}

// Stat describes a file; a symbolic link is followed unless noFollow is set.
func (s *Sandbox) Stat(ctx context.Context, path string, noFollow bool) (FileInfo, error) {
	r, err := s.c.files.Stat(ctx, connect.NewRequest(&sandtreev1.StatRequest{Sandbox: s.ID, Path: path, NoFollow: noFollow}))
	if err != nil {
		return FileInfo{}, wrap(err)
	}
	m := r.Msg.GetFile()
	return FileInfo{
		Path: m.GetPath(), Mode: m.GetMode(), UID: m.GetUid(), GID: m.GetGid(), Size: m.GetSize(),
		Modified: m.GetModified().AsTime(), Target: m.GetTarget(),
	}, nil
}

// CopyResult counts what was copied.
type CopyResult struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// CopyTo unpacks a tar below an existing directory of the sandbox: regular
// files, directories and links, with their modes. Owner, "uid:gid", replaces
// the owners in the tar; empty keeps them.
func (s *Sandbox) CopyTo(ctx context.Context, dir, owner string, tar io.Reader) (CopyResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st := s.c.files.CopyTo(ctx)
	send := func(m *sandtreev1.CopyToRequest) error { return st.Send(m) }
	err := send(&sandtreev1.CopyToRequest{Message: &sandtreev1.CopyToRequest_Open{Open: &sandtreev1.CopyToOpen{
		Sandbox: s.ID, Path: dir, Owner: owner,
	}}})
	if err == nil {
		err = sendChunks(ctx, tar, func(p []byte) error {
			return send(&sandtreev1.CopyToRequest{Message: &sandtreev1.CopyToRequest_Data{Data: p}})
		})
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return CopyResult{}, err
	}
	r, err := st.CloseAndReceive()
	if err != nil {
		return CopyResult{}, wrap(err)
	}
	return CopyResult{Files: r.Msg.GetFiles(), Bytes: r.Msg.GetBytes()}, nil
}

// CopyFrom writes a file or directory of the sandbox as a tar, whose names
// begin with the path's last element. Follow copies what a symbolic link at
// path points to. What a hostile sandbox sends is a well-formed tar; its
// names still need the care of any foreign tar.
func (s *Sandbox) CopyFrom(ctx context.Context, path string, follow bool, tar io.Writer) error {
	st, err := s.c.files.CopyFrom(ctx, connect.NewRequest(&sandtreev1.CopyFromRequest{Sandbox: s.ID, Path: path, Follow: follow}))
	if err != nil {
		return wrap(err)
	}
	defer func() { _ = st.Close() }()
	for st.Receive() {
		if _, err := tar.Write(st.Msg().GetData()); err != nil {
			return err
		}
	}
	return wrap(st.Err())
}

// WriteConfig says what [Sandbox.WriteFile] writes.
type WriteConfig struct {
	Path     string
	Mode     uint32 // permission bits; 0 means 0644
	UID, GID uint32 // inside
}

// WriteFile makes or replaces one regular file with what r yields, and
// returns how many bytes that were.
func (s *Sandbox) WriteFile(ctx context.Context, cfg WriteConfig, r io.Reader) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st := s.c.files.Write(ctx)
	err := st.Send(&sandtreev1.WriteFileRequest{Message: &sandtreev1.WriteFileRequest_Open{Open: &sandtreev1.WriteFileOpen{
		Sandbox: s.ID, Path: cfg.Path, Mode: cfg.Mode, Uid: cfg.UID, Gid: cfg.GID,
	}}})
	if err == nil {
		err = sendChunks(ctx, r, func(p []byte) error {
			return st.Send(&sandtreev1.WriteFileRequest{Message: &sandtreev1.WriteFileRequest_Data{Data: p}})
		})
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	reply, err := st.CloseAndReceive()
	if err != nil {
		return 0, wrap(err)
	}
	return reply.Msg.GetBytes(), nil
}

// ReadFile writes one regular file's content to w.
func (s *Sandbox) ReadFile(ctx context.Context, path string, w io.Writer) error {
	st, err := s.c.files.Read(ctx, connect.NewRequest(&sandtreev1.ReadFileRequest{Sandbox: s.ID, Path: path}))
	if err != nil {
		return wrap(err)
	}
	defer func() { _ = st.Close() }()
	for st.Receive() {
		if _, err := w.Write(st.Msg().GetData()); err != nil {
			return err
		}
	}
	return wrap(st.Err())
}
