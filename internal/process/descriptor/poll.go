package descriptor

import "golang.org/x/sys/unix"

// poll is poll(2). A signal ends that at any time, also one that only looks, whatever
// its handler asks for (signal(7)), and the runtime of Go sends itself signals.
func poll(fds []unix.PollFd, timeout int) (n int, err error) {
	for {
		if n, err = unix.Poll(fds, timeout); err != unix.EINTR {
			return n, err
		}
	}
}
