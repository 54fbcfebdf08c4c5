#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# What a guest trims on a virtio-scsi disk is gone from the cluster, and what it
# keeps is not.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
requires qemu-system-x86_64 rbd rados
use_cluster
new_pool pool
rbd create "$pool/disk" --size 128M --image-feature layering
prefix=$(rbd info "$pool/disk" | sed -n 's/.*block_name_prefix: //p')

objects() { rados -p "$pool" ls | grep -c "^$prefix"; }

scsi_boot() { # [BOOT-OPTIONS]: script on stdin
    ours boot -M virtio_scsi -M sd_mod -s - "$@" -- \
        -device virtio-scsi-pci,id=scsi \
        -blockdev "driver=rbd,node-name=disk,pool=$pool,image=disk,\
conf=$CEPH_CONF,cache.direct=on,discard=unmap" \
        -device scsi-hd,drive=disk
}

scsi_boot > "$tmp/sum" << 'GUEST'
set -e
tries=0
while [ ! -b /dev/sda ] && [ $tries -lt 600 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
# One block group: no copies of the superblock in objects that shall go. And
# mke2fs does not discard the disk first.
mke2fs -q -t ext4 -b 4096 -E nodiscard /dev/sda
mount /dev/sda /mnt
dd if=/dev/urandom of=/mnt/keep bs=1M count=5 2>/dev/null
tr '\0' x < /dev/zero | dd of=/mnt/drop bs=1M count=60 iflag=fullblock 2>/dev/null
sync
sha256sum < /mnt/keep
umount /mnt
GUEST
full=$(objects)
((full >= 16)) || fail "only $full objects after writing 65 MiB"

scsi_boot -f "$tmp/sum:sum" << 'GUEST'
set -e
tries=0
while [ ! -b /dev/sda ] && [ $tries -lt 600 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
mount /dev/sda /mnt
rm /mnt/drop
sync
fstrim -v /mnt
sha256sum < /mnt/keep | cmp - /sum
umount /mnt
GUEST
left=$(objects)
echo "$full objects, $left after the trim"
((left <= full - 13)) || fail "$left of $full objects are left after the trim"

rbd export --no-progress "$pool/disk" - > "$tmp/raw"
e2fsck -fn "$tmp/raw"
debugfs -R "dump /keep $tmp/keep" "$tmp/raw"
assert_eq "$(cat "$tmp/sum")" "$(sha256sum < "$tmp/keep")" "the file that stays"
