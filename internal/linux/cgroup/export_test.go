package cgroup

import (
	"os"
	"path/filepath"
	"strings"
)

// Idle tells whether the group's controller calls it idle.
func (g *Group) Idle() bool {
	dir, _ := g.dirOf(CPU)
	text, _ := os.ReadFile(filepath.Join(dir, "cpu.idle"))
	return dir != "" && strings.TrimSpace(string(text)) == "1"
}
