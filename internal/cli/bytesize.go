package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// byteSize is a flag's value in bytes: "512M", "4G", "1.5GiB", "4096". The
// units are powers of 1024, as in docker and systemd.
type byteSize int64

// Set parses a size; it implements pflag.Value.
func (b *byteSize) Set(s string) error {
	number := strings.TrimRight(strings.ToUpper(strings.TrimSpace(s)), "IB")
	unit := 1.0
	if number != "" {
		if i := strings.IndexByte("KMGTP", number[len(number)-1]); i >= 0 {
			unit = math.Pow(1024, float64(i+1))
			number = number[:len(number)-1]
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n < 0 || math.IsNaN(n) || n*unit >= math.MaxInt64 {
		return fmt.Errorf("%q is no size; write 512M or 4G", s)
	}
	*b = byteSize(n * unit)
	return nil
}

// Type names the value in help texts.
func (b *byteSize) Type() string { return "size" }

func (b *byteSize) String() string {
	if *b == 0 {
		return ""
	}
	return formatBytes(int64(*b))
}

// formatBytes writes a number of bytes with three digits: "1.5M", "12K".
func formatBytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%dB", n)
	}
	f := float64(n)
	for _, unit := range "KMGTPE" {
		f /= 1024
		if f < 999.5 || unit == 'E' {
			if f < 9.95 {
				return fmt.Sprintf("%.1f%c", f, unit)
			}
			return fmt.Sprintf("%.0f%c", f, unit)
		}
	}
	return ""
}

// formatNS writes a number of nanoseconds in milliseconds, for figures that
// are compared: "1.24 ms".
func formatNS(ns int64) string {
	return fmt.Sprintf("%.2f ms", float64(ns)/1e6)
}

// formatAge says how long ago t was, in its largest unit: "3m", "2d".
func formatAge(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
