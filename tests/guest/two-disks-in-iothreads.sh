#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Two of our disks, each in an iothread of its own, written at the same time:
# no byte of one gets to the other, and both share one connection.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
requires qemu-system-x86_64 rbd jq cmp
use_cluster
new_pool pool

disk() { # NAME
    echo "driver=rbd,node-name=$1,pool=$pool,image=$1,conf=$CEPH_CONF,\
cache.direct=on"
}

for name in one two; do
    rbd create "$pool/$name" --size 64M --image-feature layering
    # Text, so that a stray byte is seen: "one 00000001", "one 00000002", ...
    seq -f "$name %08.0f" 1300000 > "$tmp/$name"
    truncate -s 16M "$tmp/$name"
done

PINRBD_STATS_FILE=$tmp/stats ours boot -c 2 -s - \
    -f "$tmp/one:one" -f "$tmp/two:two" -- \
    -object iothread,id=thread1 -object iothread,id=thread2 \
    -blockdev "$(disk one)" \
    -device virtio-blk-pci,drive=one,iothread=thread1,serial=one \
    -blockdev "$(disk two)" \
    -device virtio-blk-pci,drive=two,iothread=thread2,serial=two,num-queues=2 \
    << 'GUEST'
set -e
tries=0
while [ ! -b /dev/vdb ] && [ $tries -lt 600 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
for disk in vda vdb; do
    name=$(cat /sys/block/$disk/serial)
    (
        dd if=/$name of=/dev/$disk bs=256k oflag=direct
        # The same again, small, behind it.
        dd if=/$name of=/dev/$disk bs=4k count=512 seek=8192 oflag=direct
    ) 2>/dev/null &
done
wait
sync
echo 3 > /proc/sys/vm/drop_caches
for disk in vda vdb; do
    name=$(cat /sys/block/$disk/serial)
    dd if=/dev/$disk bs=1M count=16 2>/dev/null | cmp - /$name
done
GUEST

for name in one two; do
    rbd export --no-progress "$pool/$name" - > "$tmp/raw"
    cmp -n $((16 << 20)) "$tmp/raw" "$tmp/$name"
    cmp -n $((2 << 20)) "$tmp/raw" "$tmp/$name" $((32 << 20)) 0
    rm "$tmp/raw"
done
jq -s -e 'length == 2 and
    all(.failed == 0 and .write_bytes >= 18 * 1048576)' "$tmp/stats" ||
    fail "unexpected counters: $(cat "$tmp/stats")"
