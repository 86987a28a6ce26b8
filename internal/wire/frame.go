package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Bounds of one frame. A peer that exceeds them is cut off.
const (
	// MaxBody is the largest body, in bytes.
	MaxBody = 32 << 20
	// MaxFiles is the largest number of descriptors of one frame.
	MaxFiles = 1024

	// maxRights is SCM_MAX_FD of the kernel: what one sendmsg may carry.
	maxRights  = 253
	headerSize = 8
	flagMore   = 1
)

// message is the body of a frame. Which fields are set says what it is: a
// request (ID, Verb), its end by the caller (ID, Cancel), a reply (ID alone,
// with Data or Error) or an event (Event).
type message struct {
	ID     uint64          `json:"id,omitempty"`
	Verb   string          `json:"verb,omitempty"`
	Cancel bool            `json:"cancel,omitempty"`
	Event  string          `json:"event,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
	Error  *failure        `json:"error,omitempty"`
}

// frame is a message as it was received. damage is not nil if the message is
// whole but descriptors of it were lost, since this process has no room for
// them.
type frame struct {
	message
	files  []*os.File
	damage error
}

func (f *frame) close() { closeAll(f.files) }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// source is the receiving half of a socket.
type source interface {
	// receive is recvmsg(2): bytes into p and control messages into oob.
	receive(p, oob []byte) (n, oobn, flags int, err error)
	// Read drops descriptors that are attached to what it reads.
	io.Reader
}

var errProtocol = errors.New("broken frame")

// reader takes frames from a source. It is not safe for concurrent use.
type reader struct {
	src source
	oob []byte
}

func newReader(src source) *reader {
	return &reader{src: src, oob: make([]byte, unix.CmsgSpace(maxRights*4))}
}

// next returns the next frame. After an error the stream is of no more use;
// io.EOF means that it ended between frames. No descriptor stays open on error.
func (r *reader) next() (_ *frame, err error) {
	f := new(frame)
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	for {
		size, more, err := r.header(f)
		if err != nil {
			if len(f.files) > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if more {
			if size != 0 {
				return nil, fmt.Errorf("%w: a frame that carries descriptors for the next has a body", errProtocol)
			}
			continue
		}
		// The buffer grows with what arrives, not with what is claimed.
		var body bytes.Buffer
		if n, err := io.CopyN(&body, r.src, int64(size)); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("read body, %d of %d bytes: %w", n, size, err)
		}
		if err := json.Unmarshal(body.Bytes(), &f.message); err != nil {
			return nil, fmt.Errorf("%w: %w", errProtocol, err)
		}
		return f, nil
	}
}

// header reads one header and adds its descriptors to f.
func (r *reader) header(f *frame) (size uint32, more bool, err error) {
	var h [headerSize]byte
	n, oobn, flags, err := r.src.receive(h[:], r.oob)
	if err != nil {
		return 0, false, err
	}
	if n == 0 {
		return 0, false, io.EOF
	}
	fds, err := rights(r.oob[:oobn])
	for _, fd := range fds {
		f.files = append(f.files, os.NewFile(uintptr(fd), fmt.Sprintf("received %d", fd)))
	}
	if err != nil {
		return 0, false, err
	}
	if _, err := io.ReadFull(r.src, h[n:]); err != nil {
		return 0, false, fmt.Errorf("read header: %w", io.ErrUnexpectedEOF)
	}
	size = binary.BigEndian.Uint32(h[0:])
	count := int(binary.BigEndian.Uint16(h[4:]))
	fl := binary.BigEndian.Uint16(h[6:])
	switch {
	case size > MaxBody:
		return 0, false, fmt.Errorf("%w: body of %d bytes, at most %d are allowed", errProtocol, size, MaxBody)
	case fl&^flagMore != 0:
		return 0, false, fmt.Errorf("%w: unknown flags %#x", errProtocol, fl)
	case fl&flagMore != 0 && count == 0:
		return 0, false, fmt.Errorf("%w: a frame that should carry descriptors has none", errProtocol)
	case len(f.files) > MaxFiles:
		return 0, false, fmt.Errorf("%w: more than %d descriptors", errProtocol, MaxFiles)
	case len(fds) < count && flags&unix.MSG_CTRUNC != 0:
		// Installing stopped at RLIMIT_NOFILE; the rest is gone for good, but
		// the stream itself is in order.
		f.damage = fault.New(fault.Exhausted, "receive %d descriptors: room for %d: %w", count, len(fds), unix.EMFILE)
	case len(fds) != count:
		return 0, false, fmt.Errorf("%w: %d descriptors, %d announced", errProtocol, len(fds), count)
	}
	return size, fl&flagMore != 0, nil
}

// rights returns the descriptors in control messages, also beside an error.
func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: control message: %w", errProtocol, err)
	}
	var all []int
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&msgs[i])
		all = append(all, fds...)
		if err != nil {
			return all, fmt.Errorf("%w: descriptors: %w", errProtocol, err)
		}
	}
	return all, nil
}

// encode returns header and body of a message with count descriptors in its
// own header.
func encode(m *message, count int) ([]byte, error) {
	if len(m.Data) > MaxBody {
		return nil, tooLong(len(m.Data))
	}
	body, err := json.Marshal(m)
	if err != nil {
		return nil, fault.New(fault.Internal, "encode message: %w", err)
	}
	if len(body) > MaxBody {
		return nil, tooLong(len(body))
	}
	b := make([]byte, headerSize, headerSize+len(body))
	putHeader(b, len(body), count, 0)
	return append(b, body...), nil
}

func tooLong(n int) error {
	return fault.New(fault.Exhausted, "message of %d bytes: at most %d are sent as one", n, MaxBody)
}

func putHeader(b []byte, size, count int, flags uint16) {
	binary.BigEndian.PutUint32(b[0:], uint32(size))
	binary.BigEndian.PutUint16(b[4:], uint16(count))
	binary.BigEndian.PutUint16(b[6:], flags)
}
