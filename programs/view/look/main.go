// Command look prints what the kernel says of all processes of a sandbox, in which
// it runs, as JSON: see [view.Whole].
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/sandtree/sandtree/programs/view"
)

func main() {
	v, err := view.Whole()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(v)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
