// Command sandtree runs whole Linux environments that can be checkpointed,
// rolled back and forked, files and processes together.
package main

func main() {}
