// Package id makes the ids of what a node owns.
package id

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

// Prefixes of ids.
const (
	Sandbox    = "sb"
	Checkpoint = "cp"
	Session    = "se"
	Template   = "tp"
)

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// New returns a new id: a prefix and 65 random bits, "cp-" and 13 letters and
// digits.
func New(prefix string) string { return prefix + "-" + random(9)[:13] }

// NewSandbox returns a new id of a sandbox, in which its owner is readable:
// "sb-", the node's tag, "-", and 13 letters and digits.
func NewSandbox(tag string) string { return Sandbox + "-" + tag + "-" + random(9)[:13] }

// NewTag returns a tag for a new node: 4 letters and digits.
func NewTag() string { return random(3)[:4] }

// Looks says whether a text has the form of an id with one of the prefixes: a
// name must not.
func Looks(s string) bool {
	p, rest, ok := strings.Cut(s, "-")
	if !ok || len(rest) < 13 {
		return false
	}
	switch p {
	case Sandbox, Checkpoint, Session, Template, "im":
	default:
		return false
	}
	for _, part := range strings.Split(rest, "-") {
		if strings.Trim(part, "abcdefghijklmnopqrstuvwxyz234567") != "" {
			return false
		}
	}
	return true
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return encoding.EncodeToString(b)
}
