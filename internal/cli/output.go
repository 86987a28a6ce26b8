package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// show prints v with --json, and what text writes otherwise.
func (inv *invocation) show(v any, text func(w io.Writer)) error {
	if inv.json {
		return printJSON(inv.out, v)
	}
	text(inv.out)
	return nil
}

// showTable prints v with --json, and otherwise a table: a header and one row
// for each thing. A table without rows is its header.
func (inv *invocation) showTable(v any, header string, rows func(row func(cells ...any))) error {
	return inv.show(v, func(w io.Writer) {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, strings.Join(strings.Fields(header), "\t"))
		rows(func(cells ...any) {
			for i, c := range cells {
				if i > 0 {
					fmt.Fprint(t, "\t")
				}
				fmt.Fprint(t, printable(fmt.Sprint(c)))
			}
			fmt.Fprintln(t)
		})
		_ = t.Flush()
	})
}

// printable replaces what would move a terminal's cursor: file names and
// command lines come from inside sandboxes.
func printable(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// named returns a thing's name, or its id if it has none.
func named(name, id string) string {
	if name != "" {
		return name
	}
	return id
}

func formatCount(n int64) string { return strconv.FormatInt(n, 10) }
