# What the targets need is installed by scripts/install-deps where it is
# missing; that, tests and the demo want root.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  := -s -w -X github.com/sandtree/sandtree/internal/version.stamped=$(VERSION)
LINT     := go tool -modfile=tools/go.mod golangci-lint
FUZZTIME ?= 10s
BIN      := bin/sandtree

.PHONY: all build test test-programs test-often try test-kernels lint generate check-generated template demo bench bench-growth bench-peers fuzz clean
all: build

# One static binary.
build:
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/sandtree

# Packages one after another: tests start real processes, mounts and daemons.
# TESTFLAGS adds flags (-run X), PKGS narrows the packages.
PKGS ?= ./...
test: test-deps build
	go vet ./...
	SANDTREE_TEST_ROOTFS=$$(scripts/test-rootfs) CGO_ENABLED=1 \
		go test -race -p 1 -timeout 20m -json $(TESTFLAGS) $(PKGS) | go run ./scripts/testreport

.PHONY: test-deps
test-deps:
	scripts/install-deps gcc libc6-dev binutils git python3 procps util-linux e2fsprogs mmdebstrap ca-certificates
	scripts/test-rootfs >/dev/null

# Real programs through checkpoints, rollbacks and forks, those that need packages
# too: with the root of most (packages), and with the large one (desktop). TESTFLAGS
# and PROGRAMFLAGS narrow and widen: TESTFLAGS='-run /postgres' PROGRAMFLAGS='-rollbacks 100'.
PROGRAMS ?= packages desktop
test-programs: test-deps build
	for root in $(PROGRAMS); do \
		tar=$$(scripts/programs-rootfs $$root); \
		SANDTREE_TEST_ROOTFS=$$tar CGO_ENABLED=0 \
			go test -timeout 30m -v $(TESTFLAGS) ./programs -args -$$root -rollbacks 20 -forks 4 $(PROGRAMFLAGS); \
	done

# Servers with clients at work, 10,000 checkpoints of each at 50 a second.
test-often: test-deps build
	SANDTREE_TEST_ROOTFS=$$(scripts/programs-rootfs) CGO_ENABLED=0 \
		go test -timeout 9h -v -run TestCheckpointsOften ./programs -args -packages -often 10000

# Any command through a checkpoint, rollbacks and forks: what becomes different, or
# what is refused. TRYFLAGS='-template web -ready "test -e /run/up" -check ./whole'.
override CMD := $(value CMD)
export CMD
try: build
	scripts/try $(TRYFLAGS) -- "$$CMD"

# The core on packaged kernels, emulated: KERNELS names Debian's suites.
# PACKAGES="./internal/linux/..." runs the tests of packages there instead.
test-kernels: build
	PACKAGES="$(PACKAGES)" TESTFLAGS="$(TESTFLAGS)" scripts/test-kernels $(KERNELS)

lint:
	$(LINT) run

# Everything that is generated: the wire protocol's code, the stubs' machine code.
generate:
	scripts/install-deps protobuf-compiler libprotobuf-dev binutils
	sh proto/generate.sh
	go generate ./...

# Fails where a committed file is not what `make generate` makes.
check-generated:
	scripts/install-deps protobuf-compiler libprotobuf-dev binutils git
	scripts/check-generated

# The default template, called debian.
template: build
	scripts/template

# The main job: a search over candidate patches as a tree of checkpoints.
# DEMOFLAGS=--short makes it a minute or two.
demo: build
	scripts/demo $(DEMOFLAGS)

# Search drivers over the Go SDK, on the demo's project.
.PHONY: examples
examples: build
	scripts/examples

# BENCHFLAGS adds flags, as in BENCHFLAGS='-n 200 --busy'.
bench: build template
	$(BIN) bench $(BENCHFLAGS)

# How times grow along each axis, with a plot of each in build/growth. Takes
# half an hour or more; GROWTHFLAGS='--axis depth --max 50' a minute.
bench-growth: build template
	$(BIN) bench growth --svg build/growth $(GROWTHFLAGS)

# What bench compares with, where it is installed: CRIU, runc, docker.
bench-peers:
	scripts/bench-peers

# 10,000 random operations over 20 sandboxes with kills in between; an hour or
# less. The tests have a short one. SOAKFLAGS='-soak 1000 -soakseed N' changes it.
.PHONY: soak
soak: test-deps
	SANDTREE_TEST_ROOTFS=$$(scripts/test-rootfs) go test ./internal/soak -run Soak -count 1 -v -timeout 6h -args -soak 10000 -soakboxes 20 $(SOAKFLAGS)

# Programs in random states through checkpoints, rollbacks, forks and the disk;
# the tests take some, this takes FUZZED of them, from FUZZEDSEED on if that is set,
# and begins no further ones after FUZZEDWITHIN (4m).
FUZZED ?= 1000
FUZZEDSEED ?=
FUZZEDWITHIN ?= 0
.PHONY: fuzz-programs
fuzz-programs: test-deps
	SANDTREE_TEST_ROOTFS=$$(scripts/test-rootfs) go test ./internal/engine -run TestFuzzedPrograms -count 1 -v -timeout 6h -args -fuzzed $(FUZZED) -fuzzedwithin $(FUZZEDWITHIN) $(if $(FUZZEDSEED),-fuzzedseed $(FUZZEDSEED),-fuzzedrandom)

# Every fuzz target for FUZZTIME.
fuzz:
	scripts/fuzz $(FUZZTIME)

clean:
	rm -rf bin build
