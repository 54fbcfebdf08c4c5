#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A cluster that cannot be reached, and settings that are wrong, are refused
# with the reason, and never with a wait beyond client_mount_timeout: that is
# 300 s by default, so an answer within the guard of `limited' shows that the
# few seconds asked for here were honoured.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires ceph-authtool setpriv
requires_module
own_cluster --osds 1
new_pool pool
rbd create "$pool/image" --size 1M --image-feature layering

limited() { timeout -k 5 120 "$@"; }

# refused REASON [NAME=VALUE...] FILE: qemu-img info says exactly that.
refused() {
    local reason=$1 file=${*: -1} rc=0 got
    got=$(ours env "${@:2:$# - 2}" timeout -k 5 120 qemu-img info "$file" 2>&1 \
        < /dev/null) || rc=$?
    assert_eq "1 qemu-img: Could not open '$file': $reason" "$rc $got"
}

good="rbd:$pool/image"
quick=client_mount_timeout=3
ours qemu-img info "$good:$quick" > /dev/null

# --- the conf file ------------------------------------------------------------

conf=$tmp/conf
unreadable() { # REASON
    local rc=0 got
    refused "error reading conf file $conf: $1" "$good:conf=$conf"
    got=$(pinrbd info --conf "$conf" "$pool/image" 2>&1) || rc=$?
    assert_match "^1 pinrbd: error reading conf file $conf: " "$rc $got"
}
unreadable 'No such file or directory'
mkdir "$conf"
unreadable 'Is a directory'
rmdir "$conf"
ln -s "$conf" "$conf"
unreadable 'Too many levels of symbolic links'
rm "$conf"
printf 'mon host = 127.0.0.1\0' > "$conf"
unreadable 'not a text file'

cp "$CEPH_CONF" "$conf"
chmod 0 "$conf"
denied=(limited)
if ((EUID == 0)); then
    # Root may read all; not without these.
    caps=-dac_override,-dac_read_search
    denied=(setpriv --bounding-set "$caps" --inh-caps "$caps")
fi
assert_fails_with "error reading conf file $conf: Permission denied" \
    ours "${denied[@]}" qemu-img info "$good:conf=$conf"
chmod 600 "$conf"

# What Ceph's own reader does not take is refused, whatever ours makes of it.
echo 'this is no setting' > "$conf"
refused_noise=$(ours qemu-img info "$good:conf=$conf" 2>&1) && fail 'opened'
assert_eq "qemu-img: warning: rbd: conf file $conf: line 1 makes no sense and \
was skipped
qemu-img: Could not open '$good:conf=$conf': error reading conf file $conf: \
Invalid argument" "$refused_noise"

# No monitor at all in it. librados has a line of its own about that.
: > "$conf"
assert_fails_with 'cannot connect to the Ceph cluster as client.admin: No such' \
    ours limited qemu-img info "$good:conf=$conf"

# --- options ------------------------------------------------------------------

refused 'invalid conf option frob: No such file or directory' "$good:frob=1"
refused "invalid conf option client_mount_timeout: value 'soon': \
Invalid argument" "$good:client_mount_timeout=soon"
assert_fails_with "Parameter 'frob' is unexpected" ours qemu-img info \
    --image-opts "driver=rbd,pool=$pool,image=image,frob=1"
assert_fails_with "drive options: option 'pin-threshold' cannot be '-1', only \
a number of bytes with or without a suffix K, M or G" ours qemu-img info \
    --image-opts "driver=rbd,pool=$pool,image=image,pin-threshold=-1"

{
    cat "$CEPH_CONF"
    printf '%s\n' '[pinrbd]' '; ours' 'pin = never' 'Frob_Nob = 1'
} > "$conf"
line=$(wc -l < "$conf")
refused "$conf, section [pinrbd], line $line: unknown option 'frob-nob' \
(value '1')" "$good:conf=$conf"
sed -i '$s/.*/pin = often/' "$conf"
refused "$conf, section [pinrbd], line $line: option 'pin' cannot be 'often', \
only auto|always|never" "$good:conf=$conf"
# Also where something more important says it right.
refused "$conf, section [pinrbd], line $line: option 'pin' cannot be 'often', \
only auto|always|never" "$good:conf=$conf:pin=auto"
sed -i '$d' "$conf"
ours qemu-img info "$good:conf=$conf" > /dev/null

refused "environment variable PINRBD_CLUSTER_HANDLE: option 'cluster-handle' \
cannot be 'two', only shared|own" PINRBD_CLUSTER_HANDLE=two "$good"
# What is no option there may be somebody else's.
ours env PINRBD_FROB=1 qemu-img info "$good" > /dev/null

host=$tmp/host.conf
host_refused() { # REASON, on stdin the file
    cat > "$host"
    refused "$host$1" PINRBD_CONF="$host" "$good"
}
refused "$host: cannot read the host file: No such file or directory" \
    PINRBD_CONF="$host" "$good"
refused "$tmp: cannot read the host file: Is a directory" \
    PINRBD_CONF="$tmp" "$good"
host_refused ", section [pinrbd]: unknown option 'frob' (value '1')" <<'END'
[pinrbd]
frob = 1
END
host_refused ", section [pool $pool]: option 'block-size' cannot be '1024', \
only 0|512|4096" <<END
[pool $pool]
block-size = 1024
END
host_refused ", section [image $pool/image]: option 'log-level' cannot be \
'loud', only error|warn|info|debug" <<END
[pinrbd]
log-level = info
[image $pool/image]
log-level = loud
END
host_refused ": unknown section [pools x], there are [pinrbd], [pool POOL] and \
[image POOL/IMAGE]" <<'END'
[pools x]
pin = never
END
# shellcheck disable=SC1111 # the quotes are glib's
host_refused ": Key file contains line “noise” which is not a key-value pair, \
group, or comment" <<'END'
noise
END
PINRBD_CONF=$host assert_fails_with "$host: Key file contains line" \
    ours qemu-io -c quit "$good"
# Sections of other images are not looked at.
printf '[%s]\nfrob = 1\n' 'pool other' "image $pool/other" > "$host"
ours env PINRBD_CONF="$host" qemu-img info "$good" > /dev/null

# --- who we are ---------------------------------------------------------------

cannot='cannot connect to the Ceph cluster as client'
key=$(ceph-authtool "$cluster/keyring" -n client.admin --print-key)
refused "$cannot.nobody: Permission denied" "$good:id=nobody:$quick"
refused "$cannot.limited: Permission denied" \
    "$good:id=limited:key=$key:$quick"
# Whoever is not known at all gets no other answer.
refused "$cannot.nobody: Permission denied" "$good:id=nobody:key=$key:$quick"
refused "$cannot.admin: Invalid argument" "$good:key=noise:$quick"
refused "$cannot.admin: No such file or directory" \
    "$good:keyring=$tmp/none:$quick"
rc=0
got=$(limited pinrbd info --id nobody "$pool/image" 2>&1) || rc=$?
assert_eq "1 pinrbd: $cannot.nobody: Permission denied" "$rc $got"

# Allowed to read only: a reason that helps, and reading works.
ceph auth get-or-create client.reader mon 'profile rbd' \
    osd "profile rbd-read-only pool=$pool" > "$tmp/reader.keyring"
reader="$good:id=reader:keyring=$tmp/reader.keyring"
assert_fails_with "image '$pool/image': not allowed to watch its header; \
for writing, client.reader needs the OSD capability \`profile rbd' on the pool" \
    ours limited qemu-io -f raw -c quit "$reader"
ours limited qemu-io -r -f raw -c 'read -P 0 0 1M' "$reader"

# --- nobody answers -----------------------------------------------------------

# A host that is there, and no monitor on it.
port=$(qemu_python <<'PY'
import socket
s = socket.socket()
s.bind(('127.0.0.1', 0))
print(s.getsockname()[1])
PY
)
refused "$cannot.admin: Connection timed out" \
    "$good:mon_host=[v2\\:127.0.0.1\\:$port]:$quick"

# OSDs that do not answer: the monitor does, the image's objects cannot be read.
cluster kill-osd "$cluster" 0 STOP
refused "image '$pool/image': cannot read its id from object rbd_id.image: \
Connection timed out" "$good:$quick"
cluster kill-osd "$cluster" 0 CONT
ours limited qemu-img info "$good:$quick" > /dev/null

cluster stop-mon "$cluster"
quick=client_mount_timeout=1
refused "$cannot.admin: Connection timed out" "$good:$quick"
{
    cat "$CEPH_CONF"
    echo '[client]'
    echo 'client mount timeout = 1'
} > "$conf"
refused "$cannot.admin: Connection timed out" "$good:conf=$conf"
rc=0
got=$(limited pinrbd info --conf "$conf" "$pool/image" 2>&1) || rc=$?
assert_eq "1 pinrbd: $cannot.admin: Connection timed out" "$rc $got"
assert_fails_with "$cannot.admin: Connection timed out" \
    ours limited qemu-img create -f raw "$good-2:$quick" 1M

# A connection from before can go on: images need no monitor to be opened. Only
# it can say whether there is a pool that nobody has heard of.
cluster start-mon "$cluster"
sed -i "\$s/1/4/" "$conf"
export pool conf top cluster
qemu_python <<'PY'
import os
import subprocess

from qemu import Qemu

POOL = os.environ['pool']
CONF = os.environ['conf']
with Qemu.storage_daemon() as qsd:
    qsd.add(node_name='a', pool=POOL, image='image', conf=CONF)
    subprocess.check_call([os.environ['top'] + '/tests/cluster/cluster',
                           'stop-mon', os.environ['cluster']])
    qsd.add(node_name='b', pool=POOL, image='image', conf=CONF)
    qsd.fails(f"image '{POOL}/none' does not exist", 'blockdev-add',
              driver='rbd', node_name='c', pool=POOL, image='none', conf=CONF)
    qsd.fails("cannot open pool 'nowhere': Connection timed out",
              'blockdev-add', driver='rbd', node_name='c', pool='nowhere',
              image='image', conf=CONF)
PY

cluster start-mon "$cluster"
ours limited qemu-img info "$good" > /dev/null
