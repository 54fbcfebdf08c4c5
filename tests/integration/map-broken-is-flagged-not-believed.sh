#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An object map that is damaged, in each way that leaves something: our driver
# marks it invalid before it writes, says so, and from there on believes
# nothing of it, so all reads and writes are right. `rbd object-map rebuild'
# makes it valid again, beside the running driver too, and valid it stays. A
# map that is only too long, as an interrupted shrink leaves it, is fine. With
# a snapshot's map damaged the snapshot is read all the same, and removed.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python "${1-}" <<'PY'
import os
import random
import struct
import sys

import rados
import rbd
from objectmap import ObjectMaps
from peers import connect, sound, tool
from qemu import Qemu, expect
from revisions import DEFAULT, K, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
place = Place(connect(POOL)[0], POOL)
io = place.io
S, OBJECTS = 64 * K, 40
WITHOUT_DIFF = rbd.RBD_FEATURE_LAYERING | rbd.RBD_FEATURE_EXCLUSIVE_LOCK | \
    rbd.RBD_FEATURE_OBJECT_MAP


def vector(states):
    """As object_map_save takes it."""
    raw = bytearray((len(states) + 3) // 4)
    for i, state in enumerate(states):
        raw[i // 4] |= state << 6 - 2 * (i % 4)
    return struct.pack('<IBBIQ', 14, 1, 1, 8, len(states)) + raw + bytes(4)


def flip(oid, off):
    byte, = io.read(oid, 1, off)
    io.write(oid, bytes([byte ^ 0xff]), off)


def save(oid, states):
    io.execute(oid, 'rbd', 'object_map_save', vector(states))


# 4 bytes, header block, data, 4 bytes, checksums of header and data.
DATA, CRC = 18, 18 + OBJECTS // 4 + 4
DAMAGE = {
    'a state': lambda oid: flip(oid, DATA),
    'the last state': lambda oid: flip(oid, DATA + OBJECTS // 4 - 1),
    'the count': lambda oid: flip(oid, 10),
    'checksum of the header': lambda oid: flip(oid, CRC),
    'checksum of the data': lambda oid: flip(oid, CRC + 8),
    'cut in half': lambda oid: io.trunc(oid, DATA + 4),
    'empty': lambda oid: io.trunc(oid, 0),
    'deleted': lambda oid: io.remove_object(oid),
    'noise': lambda oid: io.write_full(oid, rng.randbytes(100)),
    'shorter': lambda oid: save(oid, [0] * (OBJECTS // 2)),
    'of no objects': lambda oid: save(oid, []),
}


def flags(image, snap=None):
    with image.open(snap, read_only=True) as r:
        return r.flags()


def go(qsd, n, what, features, snap):
    image = Revisions.create(place, f'i{n}', S * OBJECTS, 16, features)
    # librbd takes fast-diff along at a wish for object-map.
    with rados.WriteOpCtx() as op:
        io.set_omap(op, ('features',), (struct.pack('<Q', features),))
        io.operate_write_op(op, f'rbd_header.{image.id}')
    with image.open() as other:
        for i in range(0, OBJECTS, 2):
            data = rng.randbytes(S)
            other.write(data, i * S)
            image.head[i * S:(i + 1) * S] = data
    if snap:
        image.snap('s')
    oid = f'rbd_object_map.{image.id}'
    broken = 1 if features == WITHOUT_DIFF else 3
    DAMAGE[what](oid)

    image_name = f'{POOL}/{image.name}'
    log = len(qsd.log())
    place.add(qsd, image.name)
    disk = qsd.nbd(image.name)
    image.compare('before anything', disk)
    expect(0, flags(image), 'flags before the first write')
    image.write(disk, S, b'first' * 100)
    expect(broken, flags(image), f'{what}: flags after the first write')
    assert image_name in qsd.log()[log:] and 'object map' in qsd.log()[log:], \
        f'{what}: log {qsd.log()[log:]!r}'
    image.compare('after the first write', disk)
    for _ in range(30):
        image.random(disk, rng)
    image.compare('after more', disk)
    expect(broken, flags(image), f'{what}: flags after more')

    # Beside the driver, which owns the lock and has to give it up for this.
    tool('rbd', 'object-map', 'rebuild', '--no-progress', image_name)
    expect(0, flags(image), f'{what}: flags after the rebuild')
    # rbd's rebuild may leave EXISTS for objects that do not exist.
    image.maps('after the rebuild', exact=False)
    for _ in range(20):
        image.random(disk, rng)
    image.compare('after the rebuild', disk)
    image.maps('after more requests', exact=False)
    disk.close()
    qsd.cmd('blockdev-del', node_name=image.name)
    image.maps('at the end', exact=False)
    tool('rbd', 'object-map', 'check', '--no-progress', image_name)
    expect(0, flags(image), f'{what}: flags after `rbd object-map check\'')
    image.remove()


def too_long(qsd):
    """More entries than objects: nothing is wrong with that."""
    image = Revisions.create(place, 'long', S * OBJECTS, 16)
    io.execute(f'rbd_object_map.{image.id}', 'rbd', 'object_map_resize',
               struct.pack('<QB', OBJECTS + 7, 0))
    place.add(qsd, 'long')
    with qsd.nbd('long') as disk:
        for _ in range(30):
            image.random(disk, rng)
        image.compare('of a map too long', disk)
        sound(POOL, 'long')
    qsd.cmd('blockdev-del', node_name='long')


def flagged(qsd):
    """Marked invalid, it says that nothing exists, with good checksums."""
    image = Revisions.create(place, 'flagged', S * OBJECTS, 16)
    image.fill(rng, 1)
    image.snap('s')
    for snap in None, 's':
        with image.open(snap, read_only=True) as r:
            ids = {s['name']: s['id'] for s in r.list_snaps()}
        suffix = f'.{ids[snap]:016x}' if snap else ''
        save(f'rbd_object_map.{image.id}{suffix}', [0] * OBJECTS)
        io.execute(f'rbd_header.{image.id}', 'rbd', 'set_flags',
                   struct.pack('<QQQ', 3, 3, ids[snap] if snap else
                               (1 << 64) - 2))
    place.add(qsd, 'flagged')
    place.add(qsd, 'old', image='flagged', snapshot='s', read_only=True)
    with qsd.nbd('old', writable=False) as disk:
        image.same(image.snaps['s'], disk.read(0, S * OBJECTS), 'snapshot')
    qsd.cmd('blockdev-del', node_name='old')
    with qsd.nbd('flagged') as disk:
        for _ in range(30):
            image.random(disk, rng)
        image.compare('flagged before', disk)
        expect(3, flags(image), 'flags')
        with image.open(read_only=True) as r:
            prefix = r.block_name_prefix()
        # It is kept up all the same, as librbd does.
        disk.zeroes(0, S * OBJECTS)
        disk.write(7 * S, b'x' * 512)
        expect([7], [i for i, s in enumerate(ObjectMaps(
            place.cluster, io, image.id).load(None)) if s],
               'states of a map that is kept up')
        io.stat(f'{prefix}.{7:016x}')
        image.head[:] = bytes(S * OBJECTS)
        image.head[7 * S:7 * S + 512] = b'x' * 512
        with image.open() as other:
            other.remove_snap('s')
        del image.snaps['s']
        image.compare('after the snapshot is removed', disk)
    qsd.cmd('blockdev-del', node_name='flagged')
    tool('rbd', 'object-map', 'rebuild', '--no-progress', f'{POOL}/flagged')
    image.maps('after the rebuild')


def of_a_snapshot(qsd, n, what):
    """Damage to the older of two; we remove it, as owner of the lock."""
    image = Revisions.create(place, f's{n}', S * OBJECTS, 16)
    image.fill(rng, .5)
    image.snap('old')
    with image.open() as other:
        other.write(b'newer' * 1000, 3 * S)
        image.head[3 * S:3 * S + 5000] = b'newer' * 1000
        snap_id = other.snap_get_id('old')
    image.snap('new')
    DAMAGE[what](f'rbd_object_map.{image.id}.{snap_id:016x}')
    place.add(qsd, 'old', image=image.name, snapshot='old', read_only=True)
    with qsd.nbd('old', writable=False) as disk:
        image.same(image.snaps['old'], disk.read(0, S * OBJECTS), 'snapshot')
    qsd.cmd('blockdev-del', node_name='old')
    place.add(qsd, image.name)
    with qsd.nbd(image.name) as disk:
        for _ in range(10):
            image.random(disk, rng)
        with image.open() as other:
            other.remove_snap('old')
        del image.snaps['old']
        for _ in range(10):
            image.random(disk, rng)
        image.compare(f'{what}: snapshot removed', disk)
    qsd.cmd('blockdev-del', node_name=image.name)
    # The newer one's states may be unknown now; then it says so.
    for snap in 'new', None:
        if flags(image, snap):
            print(f'{what}, in the map of a snapshot: {snap} is flagged')
            tool('rbd', 'object-map', 'rebuild', '--no-progress',
                 f'{POOL}/{image.name}' + (f'@{snap}' if snap else ''))
    image.maps(f'{what}: rebuilt', exact=False)
    image.remove()


with Qemu.storage_daemon() as qsd:
    too_long(qsd)
    flagged(qsd)
    for n, what in enumerate(DAMAGE):
        go(qsd, n, what, DEFAULT if n % 3 else WITHOUT_DIFF, n % 3 > 1)
        print(f'{what}: flagged, rebuilt')
    for n, what in enumerate(('a state', 'empty', 'deleted', 'noise')):
        of_a_snapshot(qsd, n, what)
PY
