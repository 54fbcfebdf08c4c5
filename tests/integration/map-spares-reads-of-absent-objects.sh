#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What the object map says does not exist is not asked for: once our driver
# owns the lock, and for a snapshot from the start, reads of absent objects
# send nothing at all, in a clone not even to absent objects of its parent.
# The driver counts them, and so does the OSD. Discards of absent objects send
# nothing either.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
own_cluster --osds 1
new_pool pool

export pool cluster
qemu_python <<'PY'
import json
import os
import subprocess

from peers import connect
from qemu import TMP, Qemu, expect
from revisions import K, Place, Revisions

POOL = os.environ['pool']
ASOK = f'{os.environ["cluster"]}/osd.0.asok'
STATS = f'{TMP}/stats'
S, OBJECTS = 64 * K, 64
SIZE = S * OBJECTS
place = Place(connect(POOL)[0], POOL)


def osd_operations():
    """All operations of clients that the OSD has seen."""
    out = subprocess.run(['ceph', '--admin-daemon', ASOK, 'perf', 'dump',
                          'osd'], check=True, capture_output=True).stdout
    osd = json.loads(out)['osd']
    return osd['op_before_queue_op_lat']['avgcount']


def session(qsd, name, work, **options):
    """What the driver counted, and the OSD while @work ran."""
    place.add(qsd, name, **options)
    writable = not options.get('read_only')
    disk = qsd.nbd(name, writable=writable)
    if writable:
        disk.write(0, b'lock' * 128)
    before = osd_operations()
    work(disk)
    seen = osd_operations() - before
    disk.close()
    qsd.cmd('blockdev-del', node_name=name)
    with open(STATS, encoding='ascii') as f:
        return json.loads(f.readlines()[-1]), seen


def read_all(disk):
    for i in range(1, OBJECTS):
        expect(bytes(S), disk.read(i * S, S))


def read_small(disk):
    for i in range(1, OBJECTS):
        expect(bytes(512), disk.read(i * S + 1024, 512))


def discard_all(disk):
    disk.trim(S, SIZE - S)
    disk.zeroes(S, SIZE - S)


def costs_nothing(qsd, name, work, n_absent, writes=1, **options):
    stats, seen = session(qsd, name, work, **options)
    # Now and then the OSD is asked something else, a watch's ping perhaps.
    assert seen < 8, f'{name}: the OSD has seen {seen} operations'
    expect(writes, stats['object_ops'], f'{name}: operations on objects')
    expect(n_absent, stats['absent_reads'], f'{name}: reads not sent')


with Qemu.storage_daemon(env={'PINRBD_STATS_FILE': STATS}) as qsd:
    image = Revisions.create(place, 'i', SIZE, 16)
    costs_nothing(qsd, 'i', read_all, OBJECTS - 1)
    costs_nothing(qsd, 'i', read_small, OBJECTS - 1)
    costs_nothing(qsd, 'i', discard_all, 0)
    # All objects exist for a while.
    stats, seen = session(qsd, 'i', lambda disk: (
        disk.write(S, b'x' * (SIZE - S)), disk.read(S, SIZE - S),
        disk.trim(S, SIZE - S), read_all(disk)))
    expect(OBJECTS - 1, stats['absent_reads'], 'reads after a discard')
    expect(1 + 3 * (OBJECTS - 1), stats['object_ops'])
    image.maps('in the end')

    # A snapshot, which needs no lock.
    with image.open() as other:
        other.create_snap('s')
    costs_nothing(qsd, 'i', read_all, OBJECTS - 1, 0, snapshot='s',
                  read_only=True)

    # Without the lock the map may be old: all is asked for.
    stats, seen = session(qsd, 'i', read_all, read_only=True)
    expect(0, stats['absent_reads'])
    expect(OBJECTS - 1, stats['object_ops'])

    # A clone of nothing.
    image.snaps['s'] = bytes(SIZE)
    child = image.clone('s', 'child', 16)
    stats, seen = session(qsd, 'child', read_all)
    assert seen < 8, f'child: the OSD has seen {seen} operations'
    expect(OBJECTS - 1, stats['absent_reads'], 'child: reads not sent')
    # Its first write has read the parent, too.
    expect(OBJECTS, stats['parent_reads'], 'child: reads of the parent')
PY
