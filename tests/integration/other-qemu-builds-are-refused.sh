#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A module that was made for another build of QEMU is refused, with a message
# and without a crash, by each program: by its stamp, and should that fit, by
# the layout of the structures that the driver fills in. What is no module is
# refused as well. Only where there is none, stock QEMU's driver opens the image.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-system-x86_64 qemu-storage-daemon qemu-nbd
requires_module
use_cluster
new_pool pool
rbd create "$pool/i" --size 1M --image-feature layering

stamp=$(grep -aoE -m1 'qemu_stamp_[0-9a-f]{40}' "$build/modules/block-rbd.so" |
    head -n 1)
[[ -n $stamp ]] || fail 'no stamp in the module'
other=${stamp:0:-4}ffff
[[ $other != "$stamp" ]] || other=${stamp:0:-4}0000
mkdir "$tmp/modules"
sed "s/$stamp/$other/g" "$build/modules/block-rbd.so" \
    > "$tmp/modules/block-rbd.so"
cmp -s "$build/modules/block-rbd.so" "$tmp/modules/block-rbd.so" &&
    fail 'the module was not changed'

refused() { # COMMAND...
    assert_fails_with 'Only modules from the same build can be loaded' \
        env QEMU_MODULE_DIR="$tmp/modules" timeout -k 5 60 "$@"
    assert_match "block-rbd.so" "$output"
}
refused qemu-img info "rbd:$pool/i"
refused qemu-io -c 'read 0 512' "rbd:$pool/i"
refused qemu-nbd -k "$tmp/sock" "rbd:$pool/i"
refused qemu-storage-daemon --blockdev \
    "rbd,node-name=n,pool=$pool,image=i"
refused qemu-system-x86_64 -nodefaults -display none -S -blockdev \
    "rbd,node-name=n,pool=$pool,image=i"
# The right one is taken.
ours qemu-img info "rbd:$pool/i" > /dev/null

module=$tmp/modules/block-rbd.so
no_module() { # REASON
    assert_fails_with "Could not open 'rbd:$pool/i': $1" \
        env QEMU_MODULE_DIR="$tmp/modules" qemu-img info "rbd:$pool/i"
}
echo 'no module' > "$module"
no_module "failed to open module: $module: file too short"
# A library that does not say that it is a module of QEMU.
cp "$(ldconfig -p | sed -n 's/.*libz\.so\.1 .*=> //p' | head -n 1)" "$module"
no_module "failed to initialize module: $module"

# QEMU looks on; its own driver takes no option of ours.
rm "$module"
for folder in "$tmp/modules" "$tmp/none"; do
    QEMU_MODULE_DIR=$folder qemu-io -f raw -c 'read -P 0 0 1M' "rbd:$pool/i"
    assert_fails_with 'invalid conf option pin' env QEMU_MODULE_DIR="$folder" \
        qemu-img info "rbd:$pool/i:pin=never"
done
ours qemu-img info "rbd:$pool/i:pin=never" > /dev/null
