#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Every form of a file name, with its escapes, opens the image it names, and
# the same one that QEMU's own driver opens. Each image has a size of its own,
# so the size tells which it is.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
use_cluster
new_pool pool
rbd namespace create "$pool/space"

export pool
qemu_python <<'PY'
import os
import rados
import rbd
pool = os.environ['pool']
c = rados.Rados(conffile='')
c.connect()
for ns, name, mib in (('', 'plain', 1), ('', 'a:b', 2), ('', 'a=b', 3),
                      ('', 'a\\b', 4), ('', 'ä b', 5), ('space', 'plain', 6),
                      ('space', 'a:b', 7)):
    io = c.open_ioctx(pool)
    io.set_namespace(ns)
    rbd.RBD().create(io, name, mib << 20, 0, False, rbd.RBD_FEATURE_LAYERING)
    with rbd.Image(io, name) as image:
        # Snapshots of half the size, one with every special character.
        image.resize(mib << 19)
        image.create_snap('snap')
        image.create_snap('s:n@p=/')
        image.resize(mib << 20)
PY

size_of() { # stock|ours FILE
    "$1" qemu-img info --output=json "$2" |
        sed -n 's/.*"virtual-size": \([0-9]*\).*/\1/p'
}

mon=$(sed -n 's/^mon host = //p' "$CEPH_CONF")
keyring=$(sed -n 's/^keyring = //p' "$CEPH_CONF")
key=$(ceph-authtool "$keyring" -n client.limited --print-key)
mon_escaped=${mon//:/\\:}

while read -r kib tail; do
    file=${tail//POOL/$pool}
    assert_eq "$((kib * 1024))" "$(size_of ours "$file")" "size of $file"
    # Stock QEMU's is the reference, but not for what it cannot do.
    case $file in
    *pin* | *stats-file* | *'"space/plain'*) ;;
    *) assert_eq "$((kib * 1024))" "$(size_of stock "$file")" "stock, $file" ;;
    esac
done <<END
1024 rbd:POOL/plain
512  rbd:POOL/plain@snap
512  rbd:POOL/plain@s\:n\@p\=\/
512  rbd:POOL/plain@s\:n@p=/
1024 rbd:POOL/plain:conf=$CEPH_CONF
1024 rbd:POOL/plain:conf=$CEPH_CONF:id=admin:client_mount_timeout=60
512  rbd:POOL/plain@snap:id=limited
1024 rbd:POOL/plain:id=limited:key=$key:conf=/dev/null:mon_host=$mon_escaped
1024 rbd:POOL/pl\ain
2048 rbd:POOL/a\:b
1024 rbd:POOL/a\:b@snap:id=admin
3072 rbd:POOL/a=b
3072 rbd:POOL/a\=b
4096 rbd:POOL/a\\\\b
5120 rbd:POOL/ä b
6144 rbd:POOL/space/plain
7168 rbd:POOL/space/a\:b
3584 rbd:POOL/space/a\:b@snap:id=admin
1024 rbd:POOL//plain
1024 rbd:POOL/plain:pin=never:pin-threshold=1M
512  rbd:POOL/plain@snap:pin=always:id=admin:stats-file=$tmp/stats
6144 json:{"driver":"rbd","pool":"POOL","namespace":"space","image":"plain"}
5120 json:{"driver":"rbd","pool":"POOL","image":"ä b"}
2048 json:{"driver":"raw","file":{"driver":"rbd","pool":"POOL","image":"a:b"}}
6144 json:{"driver":"rbd","pool":"POOL","image":"space/plain"}
1024 json:{"driver":"rbd","pool":"POOL","image":"plain","pin-threshold":4096}
1024 json:{"driver":"rbd","pool":"POOL","image":"plain","pin_threshold":"4k"}
END
[[ -s $tmp/stats ]] || fail 'the option stats-file in a file name did nothing'

# The older way to write options that are all in a string.
old=$(ours qemu-img info "json:{\"driver\":\"rbd\",\"filename\":\
\"rbd:$pool/a\\\\:b:id=limited:pin=never\"}" 2>&1)
assert_match 'RBD options encoded in the filename as keyvalue pairs' "$old"
assert_match '\(2097152 bytes\)' "$old"

# Our second name exists as soon as the first was used, and may name options.
both=$(ours qemu-io -c "open rbd:$pool/plain" -c length -c close \
    -c "open pinrbd:$pool/a\\:b:pin=never" -c length -c close \
    -c "open -o driver=pinrbd,pool=$pool,image=space/plain" -c length)
assert_eq $'1 MiB\n2 MiB\n6 MiB' "$both"

# What is no file name is refused, and says why.
refused() { # FILE TEXT
    assert_fails_with "Could not open '$1': $2" ours qemu-img info "$1"
}
refused rbd: 'Pool name is required'
refused "rbd:$pool" 'Pool name is required'
refused rbd:/plain 'pool name is empty'
refused "rbd:$pool/" 'image name is empty'
refused "rbd:$pool/@snap" 'image name is empty'
refused "rbd:$pool/plain@" 'snapshot name is empty'
refused "rbd:$pool/a:b" 'conf option b has no value'
refused "rbd:$pool/plain:nonsense=1" \
    'invalid conf option nonsense: No such file or directory'
refused "rbd:$pool/plain:id=limited:pin" 'conf option pin has no value'
refused "rbd:$pool/plain:pin=maybe" \
    "drive options: option 'pin' cannot be 'maybe', only auto|always|never"
