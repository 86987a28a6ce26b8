package cli

import (
	"testing"
	"time"
)

func TestByteSize(t *testing.T) {
	for in, want := range map[string]byteSize{
		"0": 0, "4096": 4096, "1K": 1024, "512M": 512 << 20, "4G": 4 << 30, "4g": 4 << 30,
		"1.5GiB": 3 << 29, "10MB": 10 << 20, "2T": 2 << 40, "7B": 7,
	} {
		var b byteSize
		if err := b.Set(in); err != nil || b != want {
			t.Errorf("%q = %d, %v; want %d", in, b, err, want)
		}
	}
	for _, in := range []string{"", "G", "-1G", "many", "1Q", "NaN", "9999999P", "1e400"} {
		var b byteSize
		if err := b.Set(in); err == nil {
			t.Errorf("%q was taken as %d", in, b)
		}
	}
}

func TestFormatBytes(t *testing.T) {
	for in, want := range map[int64]string{
		0: "0B", 1023: "1023B", 1024: "1.0K", 1536: "1.5K", 10 << 10: "10K",
		999 << 10: "999K", 1000 << 10: "1.0M", 4 << 30: "4.0G", 1 << 62: "4.0E",
	} {
		if got := formatBytes(in); got != want {
			t.Errorf("%d = %q, want %q", in, got, want)
		}
	}
}

func TestFormatAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m",
		47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := formatAge(now.Add(-d), now); got != want {
			t.Errorf("%v ago = %q, want %q", d, got, want)
		}
	}
	if got := formatAge(time.Time{}, now); got != "-" {
		t.Errorf("no time = %q", got)
	}
}
