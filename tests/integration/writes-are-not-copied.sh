#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# With the defaults, no byte of writes of 64 KiB and more is copied in our
# code, however they are aligned and cut into vectors; pin=never copies all,
# pin=always none, and pin-threshold decides by the part for each object.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
use_cluster
new_pool pool
rbd create "$pool/i" --size 64M --image-feature layering
rbd create "$pool/s" --size 64M --image-feature layering --object-size 1M \
    --stripe-unit 64K --stripe-count 4

# counters IMAGE-OPTIONS QEMU-IO-COMMAND...: sets the counters of a run.
counters() {
    local options=$1 commands=() command
    shift
    for command; do
        commands+=(-c "$command")
    done
    rm -f "$tmp/stats"
    ours qemu-io "${commands[@]}" --image-opts \
        "driver=rbd,pool=$pool,stats-file=$tmp/stats,$options" > "$tmp/out"
    ! grep -i 'fail' "$tmp/out" || fail "$options: $*"
    stats=$(< "$tmp/stats")
}

# expect NAME NUMBER
expect() {
    assert_match "\"$1\": $2(,|})" "$stats"
}

big=('write -P 1 0 64k' 'write -P 2 4M 4M' 'write -P 3 1234567 1000001'
    'write -P 4 4063232 262144' 'writev -P 5 16M 4096 61440 7 65529'
    'aio_write -P 6 20M 1M' 'aio_write -P 7 25000003 65536'
    'aio_write -P 8 30M 8M' 'aio_flush' 'write -f -P 9 40M 128k')
bytes=$((65536 + 4194304 + 1000001 + 262144 + 131072 + 1048576 + 65536 + \
    8388608 + 131072))
for image in i s; do
    # Copied are at most parts on the far side of an object's border, which
    # pin-threshold=0 excludes.
    counters "image=$image,pin-threshold=0" "${big[@]}"
    expect write_bytes "$bytes"
    expect pinned_bytes "$bytes"
    expect copied_small_bytes 0
    expect copied_never_bytes 0
    expect failed 0
    counters "image=$image,pin=always" "${big[@]}" 'write -P 10 0 1'
    expect pinned_bytes $((bytes + 1))
    expect copied_small_bytes 0
    counters "image=$image,pin=never" "${big[@]}" 'write -P 10 0 1'
    expect pinned_bytes 0
    expect copied_never_bytes $((bytes + 1))
    expect copied_small_bytes 0
done

# With nothing but the defaults, whole parts of 64 KiB.
aligned=('write -P 1 0 64k' 'write -P 2 4M 4M' 'write -P 3 1M 960k'
    'write -P 4 8126464 128k' 'aio_write -P 6 20M 1M' 'aio_flush'
    'writev -P 5 16M 4096 61440 7 65529')
bytes=$((65536 + 4194304 + 983040 + 131072 + 1048576 + 131072))
for image in i s; do
    counters "image=$image" "${aligned[@]}"
    expect write_bytes "$bytes"
    expect pinned_bytes "$bytes"
    expect copied_small_bytes 0
    expect copied_never_bytes 0
done

# Below the threshold, bytes are copied and counted as such; reads are copied
# once, writes of zeroes not at all.
counters "image=i,pin-threshold=8k" 'write 0 4k' 'write 64k 8k' \
    'write 128k 8191' 'write 4192256 12k' 'read 0 1M' 'read 60M 1M' \
    'write -z 1M 1M' 'discard 2M 1M' 'write 3M 64k'
expect copied_small_bytes $((4096 + 8191 + 2048))
expect pinned_bytes $((8192 + 10240 + 65536))
expect writes 5
expect zeroes 1
expect discards 1
expect reads 2
expect read_bytes $((2 << 20))
# Object 0 is there, object 15 is not, and nothing comes of it.
expect read_copied_bytes $((1 << 20))

# Same bytes whatever way they took.
ours qemu-io -c 'read -P 6 20M 1M' \
    -c 'read -P 5 16M 128k' -f raw "rbd:$pool/i" > "$tmp/out"
assert_eq 0 "$(grep -c failed "$tmp/out")"
stock qemu-io -c 'read -P 2 4M 3M' -c 'read -P 6 20M 1M' \
    -c 'read -P 5 16M 128k' -f raw "rbd:$pool/s" > "$tmp/out"
assert_eq 0 "$(grep -c failed "$tmp/out")"
