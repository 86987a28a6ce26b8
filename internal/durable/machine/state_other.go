//go:build !amd64

package machine

func state() (components uint64, size uint32, layout []Component) { return 0, 0, nil }
