package engine

import (
	"log/slog"
	"sync"

	"github.com/sandtree/sandtree/internal/linux/acceptqueue"
)

// unaccepted is what reads data of connections that nobody has accepted. It is opened
// when the first checkpoint needs it: that takes a tenth of a second, and most
// families never do.
type unaccepted struct {
	log *slog.Logger

	mu     sync.Mutex
	wanted bool
	tried  bool
	reader *acceptqueue.Reader
}

// ask returns it, or nil and notes that it is wanted. The processes may stand.
func (u *unaccepted) ask() *acceptqueue.Reader {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wanted = true
	return u.reader
}

// prepare opens it if it was wanted. No process of the caller's stands.
func (u *unaccepted) prepare() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.wanted || u.tried {
		return
	}
	u.tried = true
	var err error
	if u.reader, err = acceptqueue.Open(); err != nil {
		u.log.Warn("checkpoints wait until connections with unread data are accepted", "error", err)
	}
}

func (u *unaccepted) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reader.Close()
	u.reader, u.tried = nil, true
}
