package plot_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/cli/bench/plot"
)

func draw(t *testing.T, c plot.Chart) string {
	t.Helper()
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(b.Bytes())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("no XML: %v\n%s", err, &b)
		}
	}
	if s := b.String(); strings.Contains(s, "NaN") || strings.Contains(s, "Inf") || strings.Contains(s, "%!") {
		t.Errorf("no numbers in\n%s", s)
	}
	return b.String()
}

func TestWrite(t *testing.T) {
	lines := []plot.Line{
		{Name: "frozen", Points: []plot.Point{{X: 1, Y: 2}, {X: 10, Y: 3}, {X: 200, Y: 4}}},
		{Name: `roll<back> & "more"`, Points: []plot.Point{{X: 1, Y: 4}, {X: 200, Y: 4}}},
	}
	for _, log := range []bool{false, true} {
		s := draw(t, plot.Chart{Title: "depth", XLabel: "checkpoints", YLabel: "ms", LogX: log, LogY: log, Lines: lines})
		if n := strings.Count(s, "<polyline"); n != 2 {
			t.Errorf("%d lines, want 2", n)
		}
		if !strings.Contains(s, "roll&lt;back&gt; &amp;") {
			t.Error("a name is not escaped")
		}
	}
}

func TestWriteOddPoints(t *testing.T) {
	for name, points := range map[string][]plot.Point{
		"none":     nil,
		"one":      {{X: 1, Y: 1}},
		"zero":     {{X: 0, Y: 0}, {X: 1, Y: 1}},
		"all zero": {{X: 0, Y: 0}},
		"nan":      {{X: 1, Y: math.NaN()}, {X: math.Inf(1), Y: 2}},
		"equal":    {{X: 1, Y: 3}, {X: 2, Y: 3}},
		"tiny":     {{X: 1e-9, Y: 1e-9}, {X: 1e9, Y: 1e9}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, log := range []bool{false, true} {
				draw(t, plot.Chart{LogX: log, LogY: log, Lines: []plot.Line{{Name: "x", Points: points}}})
			}
		})
	}
}
