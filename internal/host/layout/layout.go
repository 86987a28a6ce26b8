// Package layout derives every name and path of a daemon from its state
// directory, so that daemons on different state directories share nothing.
//
//	STATE/lock              held by the host while it runs
//	STATE/held              held by the host and all that it starts
//	STATE/families.json     which family has which range of user ids
//	STATE/pools/F.img       the pool of a family: a btrfs in a file
//	STATE/durable/F         its durable checkpoints
//	STATE/mnt/pools/F       where it is mounted, in the daemon's mount namespace
//	STATE/mnt/layers/DIGEST an EROFS layer, mounted there too
//	STATE/images            content store of images     (the node's)
//	STATE/node              its database                (the node's)
//	STATE/sessions          output of sessions          (the node's)
//	RUN/api.sock            the API
//	RUN/state               STATE as the node sees it
//
// RUN is /run/sandtree/NAME. NAME is "default" for the default state
// directory, else a hash of its path; the daemon's cgroups have it too.
package layout

import (
	"crypto/sha256"
	"encoding/base32"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
)

// DefaultState is the state directory if none is given.
const DefaultState = "/var/lib/sandtree"

// runRoot holds what does not outlive a boot.
const runRoot = "/run/sandtree"

// NodeID is the user and group id that the node runs as unless told otherwise.
// It is the id below the first family's range, far above those of accounts
// and of systemd's dynamic users, so that no file or process outside has it.
const NodeID = 0x1fffffff

// Layout is the set of names of one daemon. Its paths are absolute and have
// no symbolic links.
type Layout struct {
	// State is the state directory.
	State string
	// Name tells daemons apart on one host, such as "default".
	Name string
}

// Of returns the layout of a state directory, which need not exist yet; empty
// means [DefaultState].
func Of(state string) (Layout, error) {
	if state == "" {
		state = DefaultState
	}
	abs, err := filepath.Abs(state)
	if err != nil {
		return Layout{}, fault.New(fault.Invalid, "state directory %s: %w", state, err)
	}
	abs, err = resolve(abs)
	if err != nil {
		return Layout{}, fault.New(fault.Invalid, "state directory %s: %w", state, err)
	}
	if abs == "/" {
		return Layout{}, fault.New(fault.Invalid, "the state directory cannot be /")
	}
	l := Layout{State: abs, Name: "default"}
	if def, err := resolve(DefaultState); err != nil || abs != def {
		h := sha256.Sum256([]byte(abs))
		l.Name = strings.ToLower(base32.StdEncoding.EncodeToString(h[:])[:10])
	}
	return l, nil
}

// resolve follows the symbolic links of the part of a path that exists.
func resolve(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil || !os.IsNotExist(err) || path == "/" {
		return real, err
	}
	dir, err := resolve(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// Run is the directory for what does not outlive a boot.
func (l Layout) Run() string { return filepath.Join(runRoot, l.Name) }

// Socket is the default path of the API socket.
func (l Layout) Socket() string { return filepath.Join(l.Run(), "api.sock") }

// NodeState is the state directory as the node sees it: a mount in the
// daemon's namespace whose parents everybody may search, as those of State
// need not be.
func (l Layout) NodeState() string { return filepath.Join(l.Run(), "state") }

// Lock is the file that the host holds a lock of.
func (l Layout) Lock() string { return filepath.Join(l.State, "lock") }

// Held is the file that the host and its children hold a lock of together.
func (l Layout) Held() string { return filepath.Join(l.State, "held") }

// Families is the file with the families' ranges of user ids.
func (l Layout) Families() string { return filepath.Join(l.State, "families.json") }

// Pools is the directory of the families' pool files.
func (l Layout) Pools() string { return filepath.Join(l.State, "pools") }

// Durable is the directory of the families' durable checkpoints.
func (l Layout) Durable() string { return filepath.Join(l.State, "durable") }

// Repository is where a family's durable checkpoints are.
func (l Layout) Repository(family string) string { return filepath.Join(l.Durable(), family) }

// Mounts is the directory below which pools and layers are mounted.
func (l Layout) Mounts() string { return filepath.Join(l.State, "mnt") }

// PoolMount is where a family's pool is mounted.
func (l Layout) PoolMount(family string) string { return filepath.Join(l.Mounts(), "pools", family) }

// AttachPoint is an empty directory at which a family's store may attach mounts
// of its own.
func (l Layout) AttachPoint(family string) string {
	return filepath.Join(l.Mounts(), "attached", family)
}

// LayerMount is where a layer is mounted. digest is its sha256 in hex.
func (l Layout) LayerMount(digest string) string { return filepath.Join(l.Mounts(), "layers", digest) }

// Layers is the directory of the EROFS layers, each DIGEST.erofs.
func (l Layout) Layers() string { return filepath.Join(l.State, "images", "layers") }

// NodeDirs are the directories that belong to the node.
func (l Layout) NodeDirs() []string {
	return []string{
		filepath.Join(l.State, "images"),
		filepath.Join(l.State, "node"),
		filepath.Join(l.State, "sessions"),
	}
}
