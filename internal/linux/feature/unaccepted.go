package feature

import (
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/acceptqueue"
)

// unaccepted is in All beside the other features of sockets.
var unaccepted = Feature{
	Name: "unaccepted connections", Kernel: "5.10",
	For:     "connections are kept that have sent data before their server accepted them (read from the kernel's memory by BPF)",
	Without: "a checkpoint waits until they are accepted, and is refused if that takes longer than 0.2 s",
	Help:    "a kernel with CONFIG_DEBUG_INFO_BTF and CONFIG_BPF_EVENTS, not locked down for confidentiality",
	probe:   probeUnaccepted,
}

// probeUnaccepted opens the reader for a moment.
func probeUnaccepted() error {
	r, err := acceptqueue.Open()
	if err != nil {
		if fault.Is(err, fault.Unsupported) {
			err = fmt.Errorf("%w: %w", err, errAbsent)
		}
		return err
	}
	r.Close()
	return nil
}
