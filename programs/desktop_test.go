package programs_test

// desktop are the programs of the second root of scripts/programs-rootfs, which is
// large. They are run alone.
var desktop = []program{
	{name: "java", argv: []string{"sh", "-c", "ecj -proc:none -source 11 -target 11 -d /tmp/classes Heap.java && exec java -cp /tmp/classes -Xmx96m -XX:+UseG1GC Heap"}},
	{name: "jupyter", argv: []string{"python3", "notebook.py"}},
	{name: "x desktop", argv: []string{"python3", "desktop.py"}},
}
