#!/bin/sh
# Assembles stub.S and writes its bytes and labels to ../stub_amd64.go.
# Needs binutils; run by "go generate ./internal/tracee".
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
as --64 -o "$tmp/stub.o" stub.S
objcopy -O binary -j .text "$tmp/stub.o" "$tmp/stub.bin"
label() { printf '0x%x' "0x$(nm "$tmp/stub.o" | awk -v s="$1" '$3 == s { print $1 }')"; }
{
	echo "// Code generated from stub/stub.S by stub/generate.sh. DO NOT EDIT."
	echo
	echo "package tracee"
	echo
	echo "// Offsets of the stub's labels in its code."
	echo "const ("
	echo "	stubStart = $(label _start) // where the program begins"
	echo "	stubPark  = $(label park) // sleeps for ever"
	echo "	stubBatch = $(label batch) // runs a batch"
	echo "	stubServe = $(label serve) // waits for batches on the control socket"
	echo ")"
	echo
	echo "// stubCode is the stub's machine code."
	echo "var stubCode = []byte{"
	od -An -v -tx1 -w12 "$tmp/stub.bin" | sed 's/ \([0-9a-f][0-9a-f]\)/ 0x\1,/g; s/^ /	/'
	echo "}"
} >"$tmp/out.go"
gofmt "$tmp/out.go" >../stub_amd64.go
