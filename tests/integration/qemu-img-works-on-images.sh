#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# qemu-img creates, shows, converts, compares, maps and measures through us
# as through QEMU's own driver, and Ceph's tools accept the images it makes.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires jq
requires_module
use_cluster
new_pool pool
rbd namespace create "$pool/space"
img() { ours qemu-img "$@"; }

# --- create ------------------------------------------------------------------

info_of() { # IMAGE: what librbd thinks of it, without name, id and times
    rbd info --format json "$1" | /usr/bin/python3 -c '
import json, sys
i = json.load(sys.stdin)
for k in "name", "id", "block_name_prefix", "create_timestamp":
    assert i.pop(k), k
for k in "access_timestamp", "modify_timestamp":
    i.pop(k)
print(json.dumps(i, sort_keys=True))'
}

create() { # OPTIONS-OF-RBD QEMU-IMG-OPTIONS...
    local options=$1
    shift
    img create -q -f raw "rbd:$pool/new" "$@"
    # shellcheck disable=SC2086 # several options
    rbd create "$pool/ref" $options
    assert_eq "$(info_of "$pool/ref")" "$(info_of "$pool/new")" "create $*"
    rbd rm --no-progress "$pool/ref"
    # One that we made, stock QEMU and librbd use, and remove.
    rbd bench --io-type write --io-size 4K --io-total 64K "$pool/new" \
        > /dev/null
    stock qemu-io -f raw -c 'write -P 1 0 64k' "rbd:$pool/new" > /dev/null
    rbd snap create --no-progress "$pool/new@s"
    rbd snap purge --no-progress "$pool/new"
    rbd rm --no-progress "$pool/new"
}
create '--size 1M' 1M
assert_match 'exclusive-lock, object-map, fast-diff, deep-flatten' \
    "$(img create -q -f raw "rbd:$pool/f" 1M; rbd info "$pool/f")"
rbd rm --no-progress "$pool/f"

# Defaults of the pool, which a client finds that may use a namespace only, and
# of the client.
as_rbd() { # [CLIENT-OPTION...]: both with these in the client's file
    local name
    {
        cat "$CEPH_CONF"
        echo '[client]'
        printf '%s\n' "$@"
    } > "$tmp/conf"
    for name in "$pool" "$pool/space"; do
        rbd -c "$tmp/conf" create "$name/ref" --size 9M
        img create -q -f raw "rbd:$name/new:conf=$tmp/conf:id=$client" 9M
        assert_eq "$(info_of "$name/ref")" "$(info_of "$name/new")" \
            "defaults: $*"
        assert_match "$expected" "$(rbd info "$name/new")"
        rbd rm --no-progress "$name/ref"
        rbd rm --no-progress "$name/new"
    done
}
client=admin expected='features: layering, exclusive-lock$'
as_rbd 'rbd default features = layering,exclusive-lock'
as_rbd 'rbd default features = 5'
expected='features: $'
as_rbd 'rbd default features = 0'
expected='order 20 '
as_rbd 'rbd default order = 20'
expected='stripe count: 3'
as_rbd 'rbd default stripe unit = 64K' 'rbd default stripe count = 3'
new_pool data
expected="data_pool: $data"
as_rbd "rbd default data pool = $data"

keyring=$tmp/keyring
ceph auth get-or-create "client.$pool" mon 'profile rbd' \
    osd "profile rbd pool=$pool namespace=space" > "$keyring"
cleanup_fn ceph auth rm "client.$pool"
rbd config pool set "$pool" rbd_default_features layering
rbd config pool set "$pool" rbd_default_stripe_unit 64K
rbd config pool set "$pool" rbd_default_stripe_count 4
expected='features: layering, striping$'
as_rbd 'rbd default features = 61'
img create -q -f raw "rbd:$pool/space/f:id=$pool:keyring=$keyring" 1M
assert_match "$expected" "$(rbd info "$pool/space/f")"
rbd rm --no-progress "$pool/space/f"
for key in features stripe_unit stripe_count; do
    rbd config pool rm "$pool" "rbd_default_$key"
done
printf '[client]\nrbd default features = 125\n' | cat "$CEPH_CONF" - \
    > "$tmp/conf"
assert_fails_with "image 'f': cannot be created with features that are not \
supported (journaling)" ours qemu-img create -f raw \
    "rbd:$pool/f:conf=$tmp/conf" 1M

create '--size 6M --object-size 4K' -o cluster_size=4k 6M
create '--size 6M --object-size 32M' -o cluster_size=32M 6M
# Sizes are rounded up to sectors.
create '--size 1049088B' 1048676
assert_eq "" "$(rbd ls "$pool")"
assert_eq "" "$(rados -p "$pool" ls | grep -vE '^rbd_(directory|info|namespace|trash)$')"

img create -q -f rbd -o size=1M "rbd:$pool/space/new"
img create -q -f qcow2 "rbd:$pool/q:id=limited" 64M
assert_eq new "$(rbd ls "$pool/space")"
assert_match '^cluster_size: 4194304' "$(img info "rbd:$pool/space/new")"

refused() { # TEXT ARGUMENTS...
    local text=$1
    shift
    assert_fails_with "qemu-img: $text" ours qemu-img create "$@"
    assert_eq 'q' "$(rbd ls "$pool")" 'images afterwards'
}
refused "rbd:$pool/q: error rbd create: File exists" -f raw "rbd:$pool/q" 1M
refused "rbd:$pool/x@s: Can't use snapshot name for image creation" \
    -f raw "rbd:$pool/x@s" 1M
refused "rbd:$pool/x: obj size needs to be power of 2" \
    -f raw -o cluster_size=3000 "rbd:$pool/x" 1M
refused "rbd:$pool/x: obj size too small" \
    -f raw -o cluster_size=2048 "rbd:$pool/x" 1M
refused "rbd:$pool/x: obj size too large" \
    -f raw -o cluster_size=64M "rbd:$pool/x" 1M
refused "rbd:$pool/void/x: namespace '$pool/void' does not exist" \
    -f raw "rbd:$pool/void/x" 1M
refused "rbd:nowhere/x: cannot open pool 'nowhere': No such file or directory" \
    -f raw rbd:nowhere/x 1M
refused "rbd:$pool/x: Encryption inside the RBD image is not supported; put \
QEMU's 'luks' format on top of the image" \
    -f raw -o encrypt.format=luks "rbd:$pool/x" 1M
refused "rbd:$pool/x:pin=x: drive options: option 'pin' cannot be 'x', only \
auto|always|never" -f raw "rbd:$pool/x:pin=x" 1M

# --- convert, compare, map, bench --------------------------------------------

# A source with data, holes and an odd end.
/usr/bin/python3 - "$tmp/source" <<'PY'
import random, sys
random.seed(7)
with open(sys.argv[1], 'wb') as f:
    for at in 0, 1 << 20, (4 << 20) - 700, 9 << 20:
        f.seek(at)
        f.write(random.randbytes(150000))
    f.truncate((10 << 20) + 512)
PY
img convert -f raw -O raw "$tmp/source" "rbd:$pool/copy"
rbd export --no-progress "$pool/copy" - | cmp - "$tmp/source"
img compare -f raw "$tmp/source" "rbd:$pool/copy" > /dev/null
img convert -n -m 8 -W -f raw -O raw "$tmp/source" "rbd:$pool/copy"
img convert -f raw -O qcow2 "rbd:$pool/copy" "$tmp/back.qcow2"
img compare "$tmp/back.qcow2" "rbd:$pool/copy" > /dev/null
img convert -f raw -O qcow2 "rbd:$pool/copy" "rbd:$pool/copy2"
img compare -F qcow2 -f raw "rbd:$pool/copy" "rbd:$pool/copy2" > /dev/null
stock qemu-img compare -F qcow2 -f raw "rbd:$pool/copy" "rbd:$pool/copy2" \
    > /dev/null
img check -q "rbd:$pool/copy2"
# Into an image that has old data, sparsely.
rbd bench --io-type write --io-size 1M --io-total 8M "$pool/copy" > /dev/null
img convert -n -f raw -O raw "$tmp/source" "rbd:$pool/copy"
rbd export --no-progress "$pool/copy" - | cmp - "$tmp/source"

rc=0
img compare "rbd:$pool/copy" "rbd:$pool/space/new" > "$tmp/out" || rc=$?
assert_eq 1 "$rc" 'status of compare'
assert_match 'Content mismatch at offset 0' "$(< "$tmp/out")"

# Without the lock the object map may be old: all is data.
assert_eq "[{ \"start\": 0, \"length\": 10486272, \"depth\": 0, \"present\": \
true, \"zero\": false, \"data\": true, \"offset\": 0}]" \
    "$(img map --output=json "rbd:$pool/copy")"
# That of a snapshot never is: whole objects that the source has not.
img convert -f raw -O raw -o cluster_size=1M "$tmp/source" "rbd:$pool/sparse"
rbd snap create --no-progress "$pool/sparse@s"
img map --output=json "rbd:$pool/sparse@s" > "$tmp/out"
assert_eq '0 2097152 true
2097152 1048576 false
3145728 2097152 true
5242880 4194304 false
9437184 1048576 true
10485760 512 false' "$(jq -r '.[] | "\(.start) \(.length) \(.data)"' \
    "$tmp/out")"

# --- pinrbd info -------------------------------------------------------------

rbd create "$pool/space/base" --size 1M
rbd snap create --no-progress "$pool/space/base@s"
rbd clone --rbd-default-clone-format 2 "$pool/space/base@s" "$pool/info" \
    --image-feature layering,exclusive-lock
pinrbd info "$pool/info" > "$tmp/out"
assert_match '^features +layering, exclusive-lock, operations$' \
    "$(< "$tmp/out")"
assert_match "^parent +pool [0-9]+, namespace space, image id [0-9a-f]+, \
snapshot [0-9]+$" "$(< "$tmp/out")"
assert_eq '' "$(grep '^flags' "$tmp/out" || true)"
# The new map waits for a rebuild.
rbd feature enable "$pool/info" object-map fast-diff
assert_match 'flags: object map invalid, fast diff invalid$' \
    "$(rbd info "$pool/info")"
assert_match '^flags +object map invalid, fast diff invalid$' \
    "$(pinrbd info "$pool/info")"
assert_eq 3 "$(pinrbd info --format json "$pool/info" | jq .flags)"

# --- clones ------------------------------------------------------------------

rbd snap protect "$pool/sparse@s"
rbd clone "$pool/sparse@s" "$pool/clone"
assert_match '^virtual size: 10 MiB' "$(img info "rbd:$pool/clone")"
img compare -f raw "$tmp/source" "rbd:$pool/clone" > /dev/null
img resize -q -f raw "rbd:$pool/clone" 12M
img resize -q --shrink -f raw "rbd:$pool/clone" 6M
img resize -q -f raw "rbd:$pool/clone" 11M
head -c 6M "$tmp/source" > "$tmp/cut"
truncate -s 11M "$tmp/cut"
img compare -f raw "$tmp/cut" "rbd:$pool/clone" > /dev/null
ours qemu-io -f raw -c 'write -P 7 2560k 1M' -c 'discard 0 1M' \
    "rbd:$pool/clone" > "$tmp/out"
assert_match '^discard' "$(< "$tmp/out")"
rbd export --no-progress "$pool/clone" "$tmp/clone"
img compare -f raw "$tmp/clone" "rbd:$pool/clone" > /dev/null
stock qemu-img compare -f raw "$tmp/clone" "rbd:$pool/clone" > /dev/null
# The parent's holes are holes of a clone's snapshot.
rbd snap create --no-progress "$pool/clone@s"
stock qemu-img convert -f raw -O raw "rbd:$pool/clone@s" "$tmp/from-stock"
img convert -f raw -O raw "rbd:$pool/clone@s" "$tmp/from-ours"
cmp "$tmp/from-stock" "$tmp/from-ours"
img map --output=json "rbd:$pool/clone@s" > "$tmp/out"
assert_match '"start": 6291456, "length": 5242880, .*"zero": true' \
    "$(< "$tmp/out")"
# Onto a clone, whose old data must not show through.
img convert -n -f raw -O raw "$tmp/cut" "rbd:$pool/clone"
rbd export --no-progress "$pool/clone" - | cmp - "$tmp/cut"
# An overlay in a file, committed to the clone.
img create -q -f qcow2 -b "rbd:$pool/clone" -F raw "$tmp/overlay"
ours qemu-io -c 'write -P 9 3500k 1M' "$tmp/overlay" > /dev/null
img commit -q "$tmp/overlay"
ours qemu-io -f raw -c 'write -P 9 3500k 1M' "$tmp/cut" > /dev/null
rbd export --no-progress "$pool/clone" - | cmp - "$tmp/cut"
for image in clone sparse copy; do
    rbd object-map check --no-progress "$pool/$image"
    assert_match 'flags: $' "$(rbd info "$pool/$image")"
done

for options in '-s 4k -d 16' '-w -s 4k -d 16' '-w -s 64k -d 4 -S 1234567' \
    '-w -s 4k -d 4 --flush-interval=12'; do
    # shellcheck disable=SC2086 # several options
    img bench -f raw -c 60 $options "rbd:$pool/copy" > "$tmp/out"
    assert_match '^Run completed in' "$(< "$tmp/out")"
done
