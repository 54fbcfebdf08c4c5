#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Our own options are found in the drive's options, in the environment, in
# section [pinrbd] of the file conf= names and in the host file, and win in this
# order; a wrong key or value is refused by name and place, and librados and
# Ceph's tools put up with all of it. Which file stats-file names, and what was
# copied, tell which source decided.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
use_cluster
new_pool pool
rbd namespace create "$pool/space"
for image in "$pool"/{i,other} "$pool/space/i"; do
    rbd create "$image" --size 4M --image-feature layering
done

# write EXPECTED-FILE EXPECTED-PIN IMAGE-OPTIONS: write 64 KiB; the counters
# have to arrive in $tmp/EXPECTED-FILE and say what EXPECTED-PIN does.
write() {
    local line field
    rm -f "$tmp"/*.stats
    ours qemu-io -c 'write 0 64k' --image-opts "driver=rbd,$3" > "$tmp/out"
    assert_eq "$tmp/$1.stats" "$(ls "$tmp"/*.stats)" "stats-file of $3"
    line=$(< "$tmp/$1.stats")
    case $2 in
    auto | always) field=pinned_bytes ;;
    never) field=copied_never_bytes ;;
    small) field=copied_small_bytes ;;
    esac
    assert_match "\"$field\": 65536" "$line"
    assert_eq 1 "$(grep -oE '"(pinned|copied_[a-z]*)_bytes": 65536' \
        <<< "$line" | wc -l)" "counters that moved in $line"
}

host=$tmp/host.conf
cat > "$host" <<END
# The host's file.
[pinrbd]
stats-file = $tmp/host.stats
pin=never
[pool elsewhere]
stats-file = $tmp/wrong.stats
[pool $pool]
stats-file=$tmp/pool.stats
[image $pool/i]
stats_file = $tmp/image.stats
pin = always
[image $pool/space/i]
stats-file = $tmp/space.stats
END
conf=$tmp/ceph.conf
{
    cat "$CEPH_CONF"
    cat <<END
; what librados leaves alone
[ pinrbd ]  ; ours
    stats file = "$tmp/conf.stats"  # quoted
    pin threshold = \\
        1M
    Pin = auto
[client.nobody]
pin = never
END
} > "$conf"

# The built-in defaults, then one source after the other. The host file of
# this machine must not matter.
empty=$tmp/empty.conf
: > "$empty"
export PINRBD_CONF=$empty
write drive auto "pool=$pool,image=i,stats-file=$tmp/drive.stats"
write drive small \
    "pool=$pool,image=i,stats-file=$tmp/drive.stats,pin-threshold=128K"
export PINRBD_CONF=$host
write pool never "pool=$pool,image=other"
write image always "pool=$pool,image=i"
write space never "pool=$pool,image=i,namespace=space"
write space never "pool=$pool,image=space/i"
write conf small "pool=$pool,image=i,conf=$conf"
write conf small "pool=$pool,image=other,conf=$conf,user=limited"
export PINRBD_STATS_FILE=$tmp/env.stats
write env small "pool=$pool,image=i,conf=$conf"
write env always "pool=$pool,image=i"
PINRBD_PIN=never write env never "pool=$pool,image=i,conf=$conf"
PINRBD_PIN=never write drive always \
    "pool=$pool,image=i,conf=$conf,pin=always,stats-file=$tmp/drive.stats"
PINRBD_PIN=never write drive auto \
    "pool=$pool,image=i,conf=$conf,pin_threshold=4k,pin=auto,stats_file=$tmp/drive.stats"
unset PINRBD_STATS_FILE

# Ceph's own tools and stock QEMU read the same file.
assert_eq 'i other' "$(rbd -c "$conf" ls "$pool" | sort | xargs)"
CEPH_CONF=$conf stock qemu-img info "rbd:$pool/i:conf=$conf" > /dev/null

# Image metadata is not a source: whoever may write an image must not choose
# a file on the host.
rbd image-meta set "$pool/i" pinrbd.stats-file "$tmp/meta.stats"
write image always "pool=$pool,image=i"

refused() { # TEXT COMMAND...
    local text=$1
    shift
    assert_fails_with "qemu-img: Could not open 'rbd:$pool/i': $text" \
        "$@" qemu-img info "rbd:$pool/i"
}
QEMU_MODULE_DIR=$build/modules
export QEMU_MODULE_DIR
echo '[pinrbd]
pim=auto' > "$tmp/bad"
refused "$tmp/bad, section [pinrbd]: unknown option 'pim' (value 'auto')" \
    env "PINRBD_CONF=$tmp/bad"
echo "[image $pool/i]
pin-threshold=10kB" > "$tmp/bad"
refused "$tmp/bad, section [image $pool/i]: option 'pin-threshold' cannot be \
'10kB', only a number of bytes with or without a suffix K, M or G" \
    env "PINRBD_CONF=$tmp/bad"
echo '[pinrdb]' > "$tmp/bad"
refused "$tmp/bad: unknown section [pinrdb], there are [pinrbd], [pool POOL] \
and [image POOL/IMAGE]" env "PINRBD_CONF=$tmp/bad"
echo 'pin=auto' > "$tmp/bad"
refused "$tmp/bad: Key file does not start with a group" \
    env "PINRBD_CONF=$tmp/bad"
refused "$tmp/none: cannot read the host file: No such file or directory" \
    env "PINRBD_CONF=$tmp/none"
refused "environment variable PINRBD_CLUSTER_HANDLE: option 'cluster-handle' \
cannot be 'mine', only shared|own" env PINRBD_CLUSTER_HANDLE=mine
refused "environment variable PINRBD_BLOCK_SIZE: option 'block-size' cannot \
be '1024', only 0|512|4096" env PINRBD_BLOCK_SIZE=1024
printf '[pinrbd]\npin = auto\nbase-cash = 1\n' > "$tmp/bad"
assert_fails_with "$tmp/bad, section [pinrbd], line 3: unknown option \
'base-cash' (value '1')" qemu-img info "rbd:$pool/i:conf=$tmp/bad"

# What is not in our section is not ours to refuse.
printf '[client]\npinrbd-nonsense = 1\n[pinrbd.old]\npin = maybe\n' |
    cat "$CEPH_CONF" - > "$tmp/odd"
qemu-img info "rbd:$pool/i:conf=$tmp/odd" > /dev/null
