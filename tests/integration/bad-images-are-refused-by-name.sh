#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An image that cannot be used is refused with one sentence that names it and
# the reason: what does not exist, format 1, each way in which a header can be
# corrupt, features that we would not keep valid, clones without their parents.
# qemu-io, qemu-img and `pinrbd info' say the same, end with status 1, and
# change nothing.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
use_cluster
new_pool pool
rbd namespace create "$pool/space"

export pool
qemu_python <<'PY'
import os
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor

import rados
import rbd
from qemu import BUILD, GUARD_S, environment, expect

POOL = os.environ['pool']
ENV = environment()
M = 1 << 20
LAYERING, STRIPING, LOCK, MAP, DIFF, DEEP, JOURNAL, MIGRATING, SECONDARY, \
    DIRTY = (1 << bit for bit in (0, 1, 2, 3, 4, 5, 6, 9, 10, 11))
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)


def u32(n):
    return struct.pack('<I', n)


def u64(n):
    return struct.pack('<Q', n)


def text(s):
    return u32(len(s)) + s.encode()


def set_value(oid, key, value):
    with rados.WriteOpCtx() as op:
        if value is None:
            io.remove_omap_keys(op, (key,))
        else:
            io.set_omap(op, (key,), (value,))
        io.operate_write_op(op, oid)


def omap(oid):
    with rados.ReadOpCtx() as op:
        values, _ = io.get_omap_vals(op, '', '', 1000)
        io.operate_read_op(op, oid)
        return dict(values)


def dump():
    """All that is in the pool."""
    io.set_namespace(rados.LIBRADOS_ALL_NSPACES)
    objects = [(o.nspace, o.key) for o in io.list_objects()]
    got = {}
    for ns, oid in objects:
        io.set_namespace(ns)
        got[ns, oid] = (io.read(oid, 4 * M), omap(oid),
                        sorted(io.get_xattrs(oid)))
    io.set_namespace('')
    return got


def run(*argv):
    """(status, first line, rest)"""
    p = subprocess.run(argv, env=ENV, text=True, capture_output=True,
                       stdin=subprocess.DEVNULL, timeout=GUARD_S)
    first, _, rest = (p.stdout + p.stderr).partition('\n')
    return p.returncode, first, rest


def check(name, writing, reading):
    """The reason, or None where it works, to open @name in either way."""
    file = f'rbd:{POOL}/{name}'
    qemu_io = 'qemu-io', '-f', 'raw', '-c', 'read -P 0x5a 0 4k', file
    good = 0, 'read 4096/4096 bytes at offset 0'

    def bad(front, reason):
        return 1, front + reason, ''

    expect(bad(f"qemu-io: can't open device {file}: ", writing) if writing
           else good, run(*qemu_io)[:3 if writing else 2], f'{name}, r/w')
    got = run(qemu_io[0], '-r', *qemu_io[1:])
    expect(bad(f"qemu-io: can't open device {file}: ", reading) if reading
           else good, got[:3 if reading else 2], f'{name}, read-only')
    got = run('qemu-img', 'info', file)
    if reading:
        expect(bad(f"qemu-img: Could not open '{file}': ", reading), got)
        expect(bad('pinrbd: ', reading),
               run(f'{BUILD}/pinrbd', 'info', f'{POOL}/{name}'))
    else:
        expect(0, got[0], f'{name}, qemu-img info')
        expect(0, run(f'{BUILD}/pinrbd', 'info', f'{POOL}/{name}')[0])


CASES = []


def refused(name, reason, writing=None):
    CASES.append((name, writing or reason, reason))


def image(name, features=LAYERING, **layout):
    rbd.RBD().create(io, name, 4 * M, 22, False, features, **layout)
    with rbd.Image(io, name) as i:
        i.write(b'\x5a' * 4096, 0)
        return 'rbd_header.' + i.id()


# --- what does not exist, and what is no image --------------------------------

image('good')
CASES.append(('good', None, None))
refused('none', f"image '{POOL}/none' does not exist")
refused('space/none', f"image '{POOL}/space/none' does not exist")
refused('void/good',
        f"image '{POOL}/void/good': namespace 'void' does not exist")
refused('good@none', f"image '{POOL}/good@none': snapshot 'none' does not "
        'exist', writing='rbd snapshots are read-only')

io.write_full('old.rbd', struct.pack(
    '<40s24s4s8s4sQQIIQ', b'<<< Rados Block Device Image >>>\n', b'rb.0.1.2',
    b'RBD', b'001.005', bytes([22, 0, 0, 0]), M, 0, 0, 0, 0))
with rbd.Image(io, 'old') as i:
    assert i.old_format()
refused('old', f"image '{POOL}/old' has format 1, which is not supported; "
        "`rbd migration' makes it format 2")

io.write_full('rbd_id.noise', b'noise')
refused('noise', f"image '{POOL}/noise': cannot read its id from object "
        'rbd_id.noise: Input/output error')
for name, value in (('long', text('a' * 1000)), ('empty', text('')),
                    ('zero', text('a\0b'))):
    io.write_full(f'rbd_id.{name}', value)
    refused(name, f"image '{POOL}/{name}': the value of object rbd_id.{name} "
            'is not an image id')
io.write_full('rbd_id.stale', text('feed'))
refused('stale',
        f"image '{POOL}/stale': object rbd_header.feed does not exist")

# --- corrupt headers ----------------------------------------------------------

n = 0


def corrupt(key, value, reason, features=LAYERING, snaps=0, edit=None,
            **layout):
    """Image whose header has @value for @key, or what @edit makes of it."""
    global n
    n += 1
    name = f'corrupt-{n}-{key}'
    header = image(name, features, **layout)
    with rbd.Image(io, name) as i:
        for j in range(snaps):
            i.create_snap(f's{j}')
    key = sorted(omap(header))[-1] if key == 'snapshot' else key
    set_value(header, key, edit(omap(header), key) if edit else value)
    refused(name, f"image '{POOL}/{name}': {reason}")


# What the OSD cannot decode it calls an I/O error, but which value it was is
# known.
for key, method in (('size', 'get_size'), ('order', 'get_size'),
                    ('object_prefix', 'get_object_prefix'),
                    ('features', 'get_features'),
                    ('snap_seq', 'get_snapcontext')):
    corrupt(key, None, f'cannot read its header: {method}: missing')
for key, value, method in (
        ('size', b'', 'get_size'), ('size', bytes(7), 'get_size'),
        ('order', b'', 'get_size'),
        ('object_prefix', text('rbd_data.1')[:-1], 'get_object_prefix'),
        ('features', bytes(7), 'get_features'),
        ('flags', bytes(1), 'get_flags'),
        ('snap_seq', bytes(4), 'get_snapcontext'),
        ('data_pool_id', bytes(1), 'get_data_pool'),
        ('parent', b'', 'parent_get'),
        ('parent', b'\1\1\4\0\0\0', 'parent_get'),
        ('op_features', bytes(3), 'op_features_get'),
        # The OSD looks through the snapshots for a parent.
        ('snapshot_zz', b'abc', 'parent_get')):
    corrupt(key, value,
            f'cannot read its header: {method}: Input/output error')
for size in 1 << 63, (1 << 64) - 1:
    corrupt('size', u64(size),
            'corrupt header: get_size: image size out of range')
for order in 0, 11, 26, 64, 255:
    corrupt('order', bytes([order]),
            'corrupt header: get_size: object size out of range')
for prefix in '', 'a' * 300, 'rbd_data\0.1':
    corrupt('object_prefix', text(prefix),
            'corrupt header: get_object_prefix: truncated or too long')
corrupt('data_pool_id', struct.pack('<q', -2),
        'corrupt header: get_data_pool: truncated or negative')
corrupt('data_pool_id', u64(1 << 40), 'cannot open its data pool (id '
        f'{1 << 40}): No such file or directory')
for key, value in (('stripe_unit', 0), ('stripe_unit', 3000),
                   ('stripe_unit', 8 * M), ('stripe_count', 0),
                   ('stripe_count', 1 << 40), ('stripe_count', (1 << 64) - 1)):
    corrupt(key, u64(value), 'corrupt header: get_stripe_unit_count: values '
            'do not fit the object size', LAYERING | STRIPING,
            stripe_unit=64 << 10, stripe_count=4)

corrupt('snap_seq', u64(1), 'corrupt header: get_snapcontext: id above the '
        'sequence number', snaps=2)
corrupt('snapshot', None, 'cannot read its header: parent_get: Input/output '
        'error', snaps=2, edit=lambda values, key: values[key][:-1])
corrupt('snapshot', None, 'corrupt header: snapshot_get: record of another '
        'snapshot', snaps=2, edit=lambda values, key: values[sorted(
            k for k in values if k.startswith('snapshot_'))[0]])
corrupt('snapshot', None, 'corrupt header: snapshot_get: size out of range',
        snaps=1, edit=lambda values, key: values[key].replace(
            u64(4 * M), u64(1 << 63), 1))

# --- what we would not keep valid, and what we do not understand --------------


def keeps(name, features):
    """Readable only, because of @features."""
    CASES.append((name, f"image '{POOL}/{name}' cannot keep its features "
                  f'valid when writing ({features}); it can be opened '
                  'read-only', None))


# What `rbd create' makes, and less of it, is as good as none.
for name, features in (('lock', LOCK), ('diff', LOCK | MAP | DIFF),
                       ('usual', LOCK | MAP | DIFF | DEEP)):
    image(name, LAYERING | features)
    CASES.append((name, None, None))
# librbd does not make these two at a wish.
set_value(image('map'), 'features', u64(LAYERING | LOCK | MAP))
CASES.append(('map', None, None))
set_value(image('secondary'), 'features', u64(LAYERING | SECONDARY))
keeps('secondary', 'non-primary')
image('journal', LAYERING | LOCK | JOURNAL)
keeps('journal', 'journaling')

# Mirrored by snapshots: the primary is ours to write, the other is not.
rbd.RBD().mirror_mode_set(io, rbd.RBD_MIRROR_MODE_IMAGE)
for name in 'primary', 'demoted':
    image(name, LAYERING | LOCK | MAP | DIFF)
    with rbd.Image(io, name) as i:
        i.mirror_image_enable(rbd.RBD_MIRROR_IMAGE_MODE_SNAPSHOT)
        if name == 'demoted':
            i.mirror_image_demote()
CASES.append(('primary', None, None))
keeps('demoted', 'non-primary')

for name, features, names, names_writing in (
        ('dirty', LAYERING | DIRTY, 'dirty-cache', None),
        ('bit-20', LAYERING | 1 << 20, 'unknown bit 20', None),
        ('bit-63', 1 << 63, 'unknown bit 63', None),
        ('bit-12-lock', LOCK | 1 << 12, 'unknown bit 12', None),
        ('bit-12-journal', LOCK | JOURNAL | 1 << 12, 'unknown bit 12',
         'journaling, unknown bit 12')):
    set_value(image(name), 'features', u64(features))
    front = f"image '{POOL}/{name}' has features that are not supported "
    refused(name, f'{front}({names})', f'{front}({names_writing or names})')

image('source')
rbd.RBD().migration_prepare(io, 'source', io, 'target', LAYERING)
refused('target', f"image '{POOL}/target' has features that are not "
        'supported (migrating)')
# It is in the trash meanwhile.
refused('source', f"image '{POOL}/source' does not exist")

# --- clones -------------------------------------------------------------------


def clone(name, parent='base', snap='snap'):
    rbd.RBD().clone(io, parent, snap, io, name, LAYERING)
    with rbd.Image(io, name) as i:
        return i.id()


def parent_record(pool, image_id, snap_id):
    body = struct.pack('<q', pool) + text('') + text(image_id) + \
        struct.pack('<QBQ', snap_id, 1, 4 * M)
    return struct.pack('<BBI', 2, 2, len(body)) + body


def parent_of(name, pool, image_id, snap_id, reason):
    """A clone that is refused for its parent."""
    where = POOL if pool == here else pool
    refused(name, f"image '{where}/{image_id}@{snap_id}, parent of "
            f"{POOL}/{name}'{reason}")


def other_parent(name, pool, image_id, snap_id, reason):
    set_value(f'rbd_header.{clone(name)}', 'parent',
              parent_record(pool, image_id, snap_id))
    parent_of(name, pool, image_id, snap_id, reason)


base = image('base').partition('.')[2]
with rbd.Image(io, 'base') as i:
    i.create_snap('snap')
    i.protect_snap('snap')
    snap = i.snap_get_id('snap')
here = c.pool_lookup(POOL)
for name in 'clone', 'flat':
    clone(name)
with rbd.Image(io, 'flat') as i:
    i.flatten()
CASES += [(name, None, None) for name in ('clone', 'flat', 'base')]
other_parent('no-pool', 99999, base, snap,
             ': cannot open its pool: No such file or directory')
other_parent('no-parent', here, 'feed', snap,
             ': object rbd_header.feed does not exist')
other_parent('no-snap', here, base, 77,
             ' has lost the snapshot that was opened')

# A chain without an end, of one.
self_id = clone('self')
with rbd.Image(io, 'self') as i:
    i.create_snap('mine')
    set_value(f'rbd_header.{self_id}', 'parent',
              parent_record(here, self_id, i.snap_get_id('mine')))
refused('self', f"image '{POOL}/self': its chain of "
        'parents has more than 64 images')

# What is wrong with a parent is wrong with its clones.
for name, bit, names in (('bad', 1 << 20, 'unknown bit 20'),
                         ('dirt', DIRTY, 'dirty-cache')):
    header = image(name)
    with rbd.Image(io, name) as i:
        i.create_snap('snap')
        i.protect_snap('snap')
        snap = i.snap_get_id('snap')
    clone(f'of-{name}', name)
    set_value(header, 'features', u64(LAYERING | bit))
    parent_of(f'of-{name}', here, header.partition('.')[2], snap,
              f' has features that are not supported ({names})')

# --- ask ----------------------------------------------------------------------

before = dump()
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda case: check(*case), CASES))
after = dump()
expect(sorted(before), sorted(after), 'objects in the pool')
for oid in before:
    expect(before[oid], after[oid], f'object {oid}')
print(f'{len(CASES)} images')

expect((1, "pinrbd: pool 'nowhere' does not exist", ''),
       run(f'{BUILD}/pinrbd', 'info', 'nowhere/good'))
expect((1, "qemu-img: Could not open 'rbd:nowhere/good': "
        "pool 'nowhere' does not exist", ''),
       run('qemu-img', 'info', 'rbd:nowhere/good'))
PY

# --- size 0 -------------------------------------------------------------------

rbd create "$pool/nothing" --size 0 --image-feature layering
assert_match '^virtual size: 0 B \(0 bytes\)' \
    "$(ours qemu-img info "rbd:$pool/nothing")"
assert_match '^size +0 bytes$' "$(pinrbd info "$pool/nothing")"
assert_eq '0 bytes' "$(ours qemu-io -f raw -c length "rbd:$pool/nothing")"
ours qemu-io -f raw -c flush "rbd:$pool/nothing"
ours qemu-img convert -f raw -O raw "rbd:$pool/nothing" "$tmp/nothing"
[[ -e $tmp/nothing && ! -s $tmp/nothing ]] || fail 'an empty image has bytes'
for request in 'read 0 1' 'write 0 1' 'discard 0 512'; do
    # QEMU itself knows the end.
    assert_fails_with "${request%% *} failed: Input/output error" \
        ours qemu-io -f raw -c "$request" "rbd:$pool/nothing"
done
assert_match 'size 0 B in 0 objects' "$(rbd info "$pool/nothing")"

# --- usage of pinrbd ----------------------------------------------------------

usage() { # TEXT ARGUMENTS...
    local rc=0 got
    got=$(pinrbd "${@:2}" 2>&1) || rc=$?
    assert_eq "2 $1" "$rc ${got%%$'\n'*}" "pinrbd ${*:2}"
}
usage 'usage: pinrbd COMMAND [OPTION...] [ARGUMENT...]'
usage "pinrbd: unknown command 'inform'" inform "$pool/good"
usage 'pinrbd info: one image is needed' info
usage 'pinrbd info: one image is needed' info "$pool/good" "$pool/good"
usage 'pinrbd info: Unknown option --frob' info --frob "$pool/good"
usage "pinrbd info: format 'xml' is neither text nor json" \
    info --format xml "$pool/good"
for spec in "$pool" "$pool/" /good "$pool/a/b/c" "$pool//good" "$pool/good@"
do
    usage "pinrbd: '$spec' is not of the form \
POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]" info "$spec"
done
