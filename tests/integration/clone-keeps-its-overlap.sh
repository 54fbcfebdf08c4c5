#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What a clone has once been cut by never shows its parent again, however it
# grows afterwards, while its older snapshots still do: each revision has its
# own overlap. Cut at borders of objects and inside of them, by librbd while
# our driver has the image open, as owner of its lock or not.
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

import rbd
from peers import connect, owner_of, tool
from qemu import Qemu, expect
from revisions import DEFAULT, GRAIN, M, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
place = Place(connect(POOL)[0], POOL)
SIZE = 3 * M
parent = Revisions.create(place, 'parent', SIZE, 18)
parent.fill(rng, share=1)
parent.snap('base')

LAYOUTS = {
    # name: (order, stripe unit, stripe count, features)
    'plain': (18, 0, 0, DEFAULT),
    'large': (21, 0, 0, DEFAULT),
    'striped': (18, GRAIN, 3, DEFAULT),
    'no-map': (17, 0, 0, rbd.RBD_FEATURE_LAYERING |
               rbd.RBD_FEATURE_EXCLUSIVE_LOCK),
    'no-lock': (18, 0, 0, rbd.RBD_FEATURE_LAYERING),
}


def requests(image, disk, n):
    for _ in range(n):
        image.random(disk, rng)


def overlaps(image):
    got = {}
    for snap in [*image.snaps, None]:
        with image.open(snap, read_only=True) as r:
            got[snap] = r.overlap()
    return got


def go(qsd, name, owner, order, unit, count, features):
    image = parent.clone('base', name, order, features, unit, count)
    expected = {}
    low = SIZE
    place.add(qsd, name)

    def resize(size):
        nonlocal low
        with image.open() as other:
            other.resize(size)
        image.resized(size)
        low = min(low, size)

    def work(n):
        """A guest that uses the size there is now."""
        with image.open(read_only=True) as r:
            size = r.size()
        expect(len(image.head), size, 'size')
        qsd.cmd('block_resize', node_name=name, size=size)
        disk = qsd.nbd(name)
        image.compare('as the guest finds it', disk)
        requests(image, disk, n)
        image.compare(f'after {n} requests', disk)
        if owner and features != rbd.RBD_FEATURE_LAYERING:
            disk.write(0, bytes(image.head[:512]))
            assert owner_of(POOL, name)
        disk.close()
        if not owner:
            # The lock goes with the node; a new one has none yet.
            qsd.cmd('blockdev-del', node_name=name)
            place.add(qsd, name)

    def snap(title):
        image.snap(title)
        expected[title] = min(low, len(image.head))

    work(5)
    snap('full')
    work(5)
    # Inside of an object, and of a page of it.
    resize(rng.randrange(20, 36) * GRAIN // 2 + 512)
    image.compare('cut')
    snap('small')
    resize(SIZE + 2 * GRAIN)
    image.compare('grown')
    snap('grown')
    work(12)
    resize(rng.randrange(1, 4) * image.object_size)
    resize(2 * M)
    image.compare('cut and grown at once')
    work(12)
    snap('last')
    if name.startswith('plain'):
        # Nothing of the parent is left.
        resize(0)
        resize(M)
        work(5)
    expected[None] = min(low, len(image.head))
    expect(expected, overlaps(image), f'{name}: overlaps')
    image.compare_snaps(qsd, 'at the end')
    image.maps('at the end')
    qsd.cmd('blockdev-del', node_name=name)
    tool('rbd', 'flatten', '--no-progress', f'{POOL}/{name}')
    image.compare('after flatten')
    image.maps('after flatten')
    image.remove()
    print(f'{name}: equal')


def cut_in_the_header(qsd):
    """
    A client that cuts its image removes objects, and brings the parent's data
    to snapshots before; one that only sets the size, to a border of objects,
    shows that each snapshot is read with an overlap of its own.
    """
    image = parent.clone('base', 'header', 18)
    image.snap('full')
    place.io.execute(f'rbd_header.{image.id}', 'rbd', 'set_size',
                     struct.pack('<Q', M))
    image.resized(M)
    image.snap('small')
    with image.open() as other:
        other.resize(SIZE)
    image.resized(SIZE)
    expect({'full': SIZE, 'small': M, None: M}, overlaps(image))
    place.add(qsd, 'header')
    with qsd.nbd('header') as disk:
        image.compare('cut in the header', disk)
        image.compare_snaps(qsd, 'cut in the header')
        requests(image, disk, 15)
        image.compare('cut in the header and written', disk)
        image.compare_snaps(qsd, 'cut in the header and written')
    qsd.cmd('blockdev-del', node_name='header')


with Qemu.storage_daemon() as qsd:
    cut_in_the_header(qsd)
    for name, (order, unit, count, features) in LAYOUTS.items():
        for owner in (True, False):
            if owner or name in ('plain', 'striped'):
                go(qsd, f'{name}-{"owner" if owner else "other"}', owner,
                   order, unit, count, features)
PY
