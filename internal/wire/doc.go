// Package wire is the remote procedure call between sandtree's own processes:
// frames over a connected unix stream socket, with descriptors.
//
// # Frames
//
// A frame is a header of eight bytes and a body. The header holds, big endian,
// the body's length (4 bytes), the number of descriptors that came with the
// header (2 bytes) and flags (2 bytes). Descriptors travel as SCM_RIGHTS
// (unix(7)) attached to the header's first byte: the kernel never joins bytes
// that carry descriptors with those before them, so the receiver, which reads
// headers with recvmsg and bodies with read, always finds them with the frame
// they belong to, and drops any that are attached elsewhere. One message holds at most 253
// descriptors (SCM_MAX_FD); a frame with more is preceded by frames without a
// body that carry the first ones and have the flag "more" set.
//
// A body is one JSON object, see message.
//
// # Calls
//
// One side is the client ([Conn]), the other the server ([Peer]). Calls run
// concurrently; replies come in the order in which they are ready. A call whose
// context ends returns at once and tells the server, whose handler sees its own
// context end. Whether the verb was carried out is then unknown, so verbs
// that change something name it by an id that can be asked about.
// Errors keep their kind and hint ([fault.Error]). When the peer is gone, all
// pending calls fail with [fault.Unavailable]. The server may send events at
// any time; they reach the client one by one, in order.
//
// # Descriptors
//
// Descriptors are [os.File] values. Those given to a call stay the caller's;
// those that a handler was given are closed when it returns, and those that it
// returns are closed when they were sent. Those a call returns are the
// caller's to close. All are close-on-exec. Nobody's blocking mode is changed.
package wire
