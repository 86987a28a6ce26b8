// Package plot draws line charts as SVG, for times along an axis: both scales
// may be logarithmic, and each line says its name at its end. It knows no more
// than that, so that a program can draw without a library of fonts.
package plot

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Point is one measurement.
type Point struct{ X, Y float64 }

// Line is one series of a chart, by increasing X.
type Line struct {
	Name   string
	Points []Point
}

// Chart is a line chart. A logarithmic scale leaves out what is not positive.
type Chart struct {
	Title, XLabel, YLabel string
	LogX, LogY            bool
	Lines                 []Line
}

// Size of a chart, and of its margins, in pixels.
const (
	width, height            = 760, 440
	left, right, top, bottom = 70, 170, 44, 56
)

// colours are told apart by people with any colour vision (Okabe and Ito).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// scale maps values to pixels.
type scale struct {
	log      bool
	min, max float64
	from, to float64 // pixels
}

func (s scale) at(v float64) float64 {
	a, b := s.min, s.max
	if s.log {
		v, a, b = math.Log10(v), math.Log10(a), math.Log10(b)
	}
	if a == b {
		return (s.from + s.to) / 2
	}
	return s.from + (v-a)/(b-a)*(s.to-s.from)
}

// shows reports whether a scale can show a value.
func (s scale) shows(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!s.log || v > 0)
}

// ticks are round values within the scale.
func (s scale) ticks() []float64 {
	var all []float64
	if s.log {
		for decade := math.Floor(math.Log10(s.min)); decade <= math.Ceil(math.Log10(s.max)); decade++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, decade); v >= s.min*0.999 && v <= s.max*1.001 {
					all = append(all, v)
				}
			}
		}
		return all
	}
	if s.min >= s.max {
		return []float64{s.min}
	}
	step := math.Pow(10, math.Floor(math.Log10((s.max-s.min)/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (s.max-s.min)/(step*m) <= 6 {
			step *= m
			break
		}
	}
	for n := math.Ceil(s.min / step); n*step <= s.max && len(all) < 10; n++ {
		all = append(all, n*step)
	}
	return all
}

// Write draws the chart.
func (c Chart) Write(w io.Writer) error {
	x := scale{log: c.LogX, from: left, to: width - right}
	y := scale{log: c.LogY, from: height - bottom, to: top}
	c.fit(&x, func(p Point) float64 { return p.X })
	c.fit(&y, func(p Point) float64 { return p.Y })
	if !c.LogY {
		y.min = 0
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	text(&b, left, 24, "start", 15, c.Title)
	text(&b, (left+width-right)/2, height-14, "middle", 12, c.XLabel)
	fmt.Fprintf(&b, `<g transform="translate(18 %d) rotate(-90)">`, (top+height-bottom)/2)
	text(&b, 0, 0, "middle", 12, c.YLabel)
	b.WriteString("</g>\n")
	for _, v := range x.ticks() {
		rule(&b, x.at(v), top, x.at(v), height-bottom)
		text(&b, x.at(v), height-bottom+18, "middle", 12, number(v))
	}
	for _, v := range y.ticks() {
		rule(&b, left, y.at(v), width-right, y.at(v))
		text(&b, left-8, y.at(v)+4, "end", 12, number(v))
	}
	c.lines(&b, x, y)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// fit sets a scale's ends to those of the points.
func (c Chart) fit(s *scale, of func(Point) float64) {
	s.min, s.max = math.Inf(1), math.Inf(-1)
	for _, l := range c.Lines {
		for _, p := range l.Points {
			if v := of(p); s.shows(v) {
				s.min, s.max = min(s.min, v), max(s.max, v)
			}
		}
	}
	if s.min > s.max { // nothing to show
		s.min, s.max = 1, 10
	}
}

// lines draws the series and their names, which are moved apart where lines
// end beside each other.
func (c Chart) lines(b *strings.Builder, x, y scale) {
	var taken []float64
	for i, l := range c.Lines {
		colour := colours[i%len(colours)]
		var path []string
		var end float64
		for _, p := range l.Points {
			if !x.shows(p.X) || !y.shows(p.Y) {
				continue
			}
			end = y.at(p.Y)
			path = append(path, fmt.Sprintf("%.1f,%.1f", x.at(p.X), end))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`+"\n", x.at(p.X), end, colour)
		}
		if len(path) == 0 {
			continue
		}
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>`+"\n", colour, strings.Join(path, " "))
		end = free(taken, end)
		taken = append(taken, end)
		fmt.Fprintf(b, `<g fill="%s">`, colour)
		text(b, width-right+8, end+4, "start", 12, l.Name)
		b.WriteString("</g>\n")
	}
}

// free is the place nearest to at, from there upwards and downwards in turn,
// where no other name is.
func free(taken []float64, at float64) float64 {
	const lineHeight = 14
	for n := 0; ; n++ {
		for _, sign := range []float64{-1, 1} {
			place, ok := at+sign*float64(n), true
			for _, t := range taken {
				ok = ok && math.Abs(t-place) >= lineHeight
			}
			if ok {
				return place
			}
		}
	}
}

func text(b *strings.Builder, x, y float64, anchor string, size int, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d">`, x, y, anchor, size)
	_ = xml.EscapeText(b, []byte(s))
	b.WriteString("</text>\n")
}

// rule draws a line of the grid.
func rule(b *strings.Builder, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", x1, y1, x2, y2)
}

// number writes a tick's value shortly.
func number(v float64) string {
	if v >= 10_000 {
		return strconv.FormatFloat(v/1000, 'g', 4, 64) + "k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
