package cli

import "os"

// terminalType is the TERM that a program on a terminal of ours finds.
func terminalType() string {
	if t := os.Getenv("TERM"); t != "" {
		return t
	}
	return "xterm"
}
