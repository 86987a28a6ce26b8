package image

import (
	"debug/elf"
	"encoding/binary"
	"io"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/erofs"
)

// machines maps ELF's numbers to Go's names of architectures, by which images
// are named too.
var machines = map[elf.Machine]string{
	elf.EM_X86_64:    "amd64",
	elf.EM_386:       "386",
	elf.EM_AARCH64:   "arm64",
	elf.EM_ARM:       "arm",
	elf.EM_RISCV:     "riscv64",
	elf.EM_S390:      "s390x",
	elf.EM_PPC64:     "ppc64le",
	elf.EM_LOONGARCH: "loong64",
	elf.EM_MIPS:      "mips64le",
}

// probed are programs that tell what machine a root file system is for.
var probed = []string{"bin/sh", "usr/bin/env", "bin/bash", "bin/busybox", "sbin/init"}

// checkMachine refuses a tree whose programs are for another architecture than
// the platform's: what a plain root file system, or a wrong configuration, does
// not say. A tree without any of the probed programs passes.
func checkMachine(t *erofs.Tree, platform string) error {
	_, want, _ := strings.Cut(platform, "/")
	want, _, _ = strings.Cut(want, "/")
	for _, path := range probed {
		arch, err := machineOf(t.Follow(path))
		if err != nil {
			return err
		}
		if arch == "" {
			continue
		}
		if arch != want {
			return fault.New(fault.Invalid, "image is for %s, going by its /%s, not for %s", arch, path, want)
		}
		return nil
	}
	return nil
}

// machineOf returns the architecture of a program, or nothing.
func machineOf(n *erofs.Node) (string, error) {
	const head = 20 // up to e_machine, see elf(5)
	if n == nil || n.Open == nil || n.Size < head {
		return "", nil
	}
	r, err := n.Open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	var b [head]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return "", err
	}
	if string(b[:4]) != elf.ELFMAG {
		return "", nil
	}
	if elf.Data(b[elf.EI_DATA]) == elf.ELFDATA2MSB {
		return machines[elf.Machine(binary.BigEndian.Uint16(b[18:]))], nil
	}
	return machines[elf.Machine(binary.LittleEndian.Uint16(b[18:]))], nil
}
