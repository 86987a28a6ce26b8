#!/bin/sh
# Generates api/ from proto/. The plugins' versions are pinned in proto/tools/go.mod;
# protoc comes from the package protobuf-compiler and only parses, so its
# version does not show in the output.
set -eu
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
GOBIN=$bin GOFLAGS=-mod=mod go -C proto/tools install \
	google.golang.org/protobuf/cmd/protoc-gen-go \
	connectrpc.com/connect/cmd/protoc-gen-connect-go
rm -rf api/sandtree
mkdir -p api
PATH=$bin:$PATH protoc -I proto \
	--go_out=api --go_opt=paths=source_relative \
	--connect-go_out=api --connect-go_opt=paths=source_relative \
	proto/sandtree/v1/*.proto
# protoc-gen-go notes protoc's version in a comment.
find api/sandtree -name '*.pb.go' -exec sed -i '/^\/\/ .*protoc  *v[0-9]/d' {} +
