#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A guest on one driver reads what a guest on the other has written: ext4 made
# on ours and filled on the stock driver, and the reverse.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
requires qemu-system-x86_64 rbd e2fsck
use_cluster
new_pool pool

cat > "$tmp/make" << 'GUEST'
set -e
mke2fs -q -t ext4 /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/first bs=64k count=32 2>/dev/null
(cd /mnt && sha256sum first > sums)
umount /mnt
GUEST

cat > "$tmp/change" << 'GUEST'
set -e
mount -o discard /dev/vda /mnt
cd /mnt
sha256sum -c sums
# New, changed in the middle, deleted.
dd if=/dev/urandom of=second bs=4k count=300 2>/dev/null
dd if=/dev/urandom of=first bs=3000 count=7 seek=11 conv=notrunc 2>/dev/null
seq 100000 > third
sync
rm third
sha256sum first second > sums
cd /
umount /mnt
GUEST

cat > "$tmp/check" << 'GUEST'
set -e
e2fsck -fn /dev/vda
mount -o ro /dev/vda /mnt
cd /mnt
sha256sum -c sums
[ ! -e third ]
GUEST

for pair in 'ours stock' 'stock ours'; do
    read -r first second <<< "$pair"
    image=$first-first
    echo "== $image"
    rbd create "$pool/$image" --size 64M --image-feature layering
    disk="driver=rbd,node-name=disk,pool=$pool,image=$image,conf=$CEPH_CONF"
    disk+=",cache.direct=on,discard=unmap"
    "$first" boot -b "$disk" -s "$tmp/make"
    "$second" boot -b "$disk" -s "$tmp/change"
    "$first" boot -b "$disk" -s "$tmp/check"
done
