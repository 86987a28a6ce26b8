// Command sandtree runs whole Linux environments that can be checkpointed,
// rolled back and forked, files and processes together.
package main

import (
	"os"

	"github.com/sandtree/sandtree/internal/cli"
)

func main() { os.Exit(cli.Main()) }
