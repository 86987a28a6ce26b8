#!/bin/sh
# Makes empty.img.gz, the empty btrfs that every pool starts from.
#
# Needs btrfs-progs and python3. Run it by hand when a parameter changes, and
# commit the result: it differs each time, by the time of day and by ids that
# mkfs draws. Nodes are of 4 KiB, because the cost of a snapshot grows with the
# size of the nodes that it rewrites, and metadata is not duplicated, because a
# pool is not the only copy of anything. 128 MiB is what a new pool is before it
# grows to its real size.
#
# The result is gzip over records of {offset, length: little-endian uint64;
# bytes}, one for each run of blocks that are not zero, until the end.
set -eu
here=$(dirname "$0")
img=$(mktemp)
trap 'rm -f "$img"' EXIT
truncate -s 128M "$img"
mkfs.btrfs -q --nodesize 4096 --sectorsize 4096 --metadata single --data single \
	--features skinny-metadata,no-holes --runtime-features free-space-tree \
	--uuid 73616e64-7472-4565-8070-6f6f6c000001 --nodiscard "$img"
python3 - "$img" "$here/empty.img.gz" <<'EOF'
import gzip, struct, sys
data = open(sys.argv[1], "rb").read()
block, out, at = 4096, bytearray(), 0
while at < len(data):
    if not any(data[at:at + block]):
        at += block
        continue
    end = at
    while end < len(data) and any(data[end:end + block]):
        end += block
    out += struct.pack("<QQ", at, end - at) + data[at:end]
    at = end
with open(sys.argv[2], "wb") as f:
    f.write(gzip.compress(bytes(out), 9, mtime=0))
EOF
