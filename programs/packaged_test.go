package programs_test

// packaged are the programs that need packages: `make test-programs` runs them.
var packaged = []program{}
