package image

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/xattr"
)

// Socket is what a socket has beside what every open file has. Addresses are
// struct sockaddr as the kernel gives them, nil if there is none; indices are
// those of Tree.Files.
type Socket struct {
	Domain, Type, Protocol int // socket(2)
	// State is TCP_ESTABLISHED, TCP_CLOSE, TCP_LISTEN and so on
	// (net/tcp_states.h), which the kernel uses for all families.
	State         int
	Local, Remote []byte
	// UID and GID own the socket's inode, as numbered inside.
	UID, GID int
	Options  []SocketOption
	// Filter is the classic BPF program that it receives by, an array of struct
	// sock_filter (SO_ATTACH_FILTER).
	Filter []byte
	// Queue is what it received and nobody has read.
	Queue []Message
	// Shutdown has 1 if it receives no more, 2 if it sends no more.
	Shutdown int
	// Failed: an error waits to be reported (SO_ERROR).
	Failed bool
	// Backlog is a listening socket's.
	Backlog int
	// Waiting are the clients whose connections wait to be accepted, in order
	// where the kernel tells it; -1 for one that was closed.
	Waiting []int
	// Early is what the connections of Waiting have received already, one for each;
	// nil if they have received nothing.
	Early []Early
	// Peer is the other end of a connection, -1 if there is none that a
	// descriptor refers to. PeerGone: it was closed.
	Peer     int
	PeerGone bool
	// Groups are those that a netlink socket has joined.
	Groups []int
	Unix   *UnixSocket
	TCP    *TCPSocket
}

// Early is what a connection has received that nobody has accepted.
type Early struct {
	Queue []Message
	// Address and Client (of unix sockets) tell of a client that was closed.
	Address []byte
	Client  *Peer
}

// SocketOption is an option that is not as in a new socket (getsockopt(2)).
type SocketOption struct {
	Level, Name int
	Value       []byte
}

// Message is a part of a queue: of a stream, bytes that were sent together with
// the same descriptors and credentials; else one message.
type Message struct {
	Data []byte
	// From is the sender's address, of datagrams.
	From []byte
	// Files are the descriptors that it carries.
	Files []int
	// Sender is who sent it, if the socket is told (SO_PASSCRED).
	Sender *Peer
}

// Peer is who is at the other end of a unix socket, as numbered inside.
type Peer struct {
	PID      int // 0: it has ended
	UID, GID int
	Groups   []int
}

// UnixRole says how a unix socket came to be what it is.
type UnixRole string

// Roles of unix sockets.
const (
	UnixPair     UnixRole = "pair"     // from socketpair(2)
	UnixClient   UnixRole = "client"   // has called connect(2)
	UnixAccepted UnixRole = "accepted" // came from accept(2)
	UnixPlain    UnixRole = "plain"    // none of those
)

// UnixSocket is what unix sockets have besides.
type UnixSocket struct {
	Role UnixRole
	// Credentials are what SO_PEERCRED shows: who called socketpair; of a
	// listening socket, who called listen; of its clients, the same; of an
	// accepted one, who called connect. Nil if nobody has.
	Credentials *Peer
	// Name groups sockets that share one binding: a listening socket and those
	// that it has accepted. 0 for those without a name.
	Name int
	// Path is where the file of the name is, Base the directory from which the
	// address leads there if that is relative. Gone: the file was deleted.
	Path, Base string
	Gone       bool
	// FileMode, FileUID and FileGID are the file's, the ids as numbered inside.
	FileMode         uint32
	FileAttributes   []xattr.Attribute // with ids as numbered inside
	FileModified     unix.Timespec     // zero in images of older versions
	FileUID, FileGID int
}

// TCPSocket is what TCP sockets have besides.
type TCPSocket struct {
	// Ended: it was connected and is not any more, and who it was connected to
	// is not known. Refused: it never came so far.
	Ended, Refused bool
	// Unsent was written and has not been received by the other end yet.
	Unsent []byte
	// Options are TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK and TCPI_OPT_WSCALE of
	// TCP_INFO, the scales those of windows.
	Options                 int
	SendScale, ReceiveScale int
	SegmentSize             uint32 // that it has told the other end
	// SendWindow is how much the other end will take of what it has not
	// received yet; -1 if the kernel does not tell.
	SendWindow int64
}
