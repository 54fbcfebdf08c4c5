#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A guest makes an ext4 on our disk, writes files and powers off. The host finds
# them with Ceph's and e2fsprogs' own tools, and a second boot finds them too.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
requires qemu-system-x86_64 rbd jq e2fsck debugfs
use_cluster
new_pool pool
rbd create "$pool/disk" --size 128M --image-feature layering

disk="driver=rbd,node-name=disk,pool=$pool,image=disk,conf=$CEPH_CONF"
disk+=",cache.direct=on,discard=unmap"

export PINRBD_STATS_FILE=$tmp/stats
ours boot -b "$disk" -s - > "$tmp/sums" << 'GUEST'
set -e
mke2fs -q -t ext4 /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/random bs=64k count=48 2>/dev/null
seq 50000 > /mnt/numbers
dd if=/dev/urandom of=/mnt/sparse bs=1k count=3 seek=20000 2>/dev/null
sync
cd /mnt
sha256sum random numbers sparse
cd /
umount /mnt
GUEST
assert_eq 3 "$(grep -c . "$tmp/sums")" "checksums of the guest"

# The driver's own account: all of the megabytes went out uncopied.
jq -e '.failed == 0 and .writes > 0 and .flushes > 0 and
    .pinned_bytes > 3000000 and
    .pinned_bytes + .copied_small_bytes == .write_bytes' "$tmp/stats" ||
    fail "unexpected counters: $(cat "$tmp/stats")"

rbd export --no-progress "$pool/disk" - > "$tmp/raw"
e2fsck -fn "$tmp/raw"
while read -r sum file; do
    debugfs -R "dump /$file $tmp/file" "$tmp/raw"
    assert_eq "$sum" "$(sha256sum < "$tmp/file" | cut -d' ' -f1)" "$file"
done < "$tmp/sums"

ours boot -b "$disk" -f "$tmp/sums:sums" -s - << 'GUEST'
set -e
mount -o ro /dev/vda /mnt
cd /mnt
sha256sum -c /sums
GUEST
