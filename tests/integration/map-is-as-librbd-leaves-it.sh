#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The same requests, snapshots and sizes, to an image through our driver and
# to its twin through librbd: afterwards the object maps of the head and of
# all snapshots agree entry by entry, and so do `rbd du' and `rbd diff', which
# read them. `rbd object-map check' finds nothing. Plain images and clones.
# Only what a flatten brings, which is as the snapshots have it, our map may
# call clean where that of librbd 16 says changed.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python "${1-}" <<'PY'
import json
import os
import random
import sys

import rbd
from objectmap import CLEAN, ObjectMaps
from peers import connect, tool
from qemu import Qemu, expect
from revisions import DEFAULT, GRAIN, M, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
place = Place(connect(POOL)[0], POOL)
SIZE = 6 * M


class ByLibrbd:
    """Requests as Revisions sends them to a disk, to an image of librbd."""

    def __init__(self, image):
        self.image = image

    def write(self, off, data):
        self.image.write(data, off)

    def trim(self, off, n):
        self.image.discard(off, n)

    def zeroes(self, off, n, unmap=True):
        self.image.write_zeroes(
            off, n, 0 if unmap else rbd.RBD_WRITE_ZEROES_FLAG_THICK_PROVISION)


def states(image):
    """name -> states of all objects, oldest snapshot first."""
    with image.open(read_only=True) as r:
        names = {s['id']: s['name'] for s in r.list_snaps()}
    maps = ObjectMaps(place.cluster, place.io, image.id)
    return {names.get(r): maps.load(r) for r in maps.revisions}


def used(image):
    """What `rbd du' prints, but for names and ids."""
    out = json.loads(tool('rbd', 'du', '--format', 'json',
                          f'{POOL}/{image.name}'))
    return [(x.get('snapshot'), x['provisioned_size'], x['used_size'])
            for x in out['images']]


def changed(image, start):
    """Which objects: how much of each is a matter of rounding to sectors."""
    objects = set()
    with image.open(read_only=True) as r:
        size = r.stat()['obj_size']
        r.diff_iterate(0, r.size(), start,
                       lambda off, *_: objects.add(off // size),
                       whole_object=True)
    return sorted(objects)


def agree(ours, twin, what, clone):
    a, b = states(twin), states(ours)
    expect(list(a), list(b))
    for snap in a:
        expect(a[snap], b[snap], f'{ours.name}, {what}, map of {snap}')
    expect(used(twin), used(ours), f'{ours.name}, {what}: rbd du')
    if ours.name.startswith('stripes'):
        return              # an object is in many places of the image
    for start in [None, *ours.snaps]:
        expect(changed(twin, start), changed(ours, start),
               f'{ours.name}, {what}: difference from {start}')


def go(qsd, name, make):
    ours, twin = make(name), make(f'{name}-twin')
    rng = random.Random(f'{SEED} {name}')
    place.add(qsd, name)
    disk = qsd.nbd(name)
    image, other = ours.open(), twin.open()
    sides = (ours, disk, image), (twin, ByLibrbd(other), other)

    def requests(n):
        for _ in range(n):
            # The same for both.
            seed = rng.random()
            for side, to, _ in sides:
                side.random(to, random.Random(seed))

    def each(call):
        for side, _, i in sides:
            call(side, i)

    clone = name != 'plain'
    requests(25)
    agree(ours, twin, 'at first', clone)
    each(lambda side, i: side.snap('a', i))
    requests(12)
    each(lambda side, i: side.snap('b', i))
    requests(6)
    each(lambda side, i: side.snap('c', i))
    each(lambda side, i: side.snap('d', i))
    requests(3)
    agree(ours, twin, 'with snapshots', clone)
    for gone in 'b', 'd':
        for side, _, i in sides:
            i.remove_snap(gone)
            del side.snaps[gone]
    requests(6)
    agree(ours, twin, 'with fewer snapshots', clone)
    # Inside of an object librbd may copy up what a smaller overlap cuts, too.
    for size in SIZE // 2, SIZE:
        for side, _, i in sides:
            i.resize(size)
            side.resized(size)
        agree(ours, twin, f'resized to {size}', clone)
    requests(12)
    if clone:
        agree(ours, twin, 'before a flatten', clone)
        absent = [n for n, s in enumerate(states(ours)[None]) if not s]
        each(lambda side, i: i.flatten())
        a, b = states(twin), states(ours)
        for n in absent:
            if b[None][n] == CLEAN:
                a[None][n] = CLEAN
        expect(a, b, f'{name}, after a flatten')
        ours.maps('after a flatten')
        requests(3)
    else:
        agree(ours, twin, 'at the end', clone)
    ours.compare('at the end', disk)
    ours.maps('at the end')
    tool('rbd', 'object-map', 'check', '--no-progress', f'{POOL}/{name}')
    disk.close()
    qsd.cmd('blockdev-del', node_name=name)
    each(lambda side, i: i.close())
    print(f'{name}: equal')


parent = Revisions.create(place, 'parent', SIZE, 20)
parent.fill(random.Random(SEED))
parent.snap('base')
with Qemu.storage_daemon() as qsd:
    go(qsd, 'plain', lambda name: Revisions.create(place, name, SIZE, 17))
    go(qsd, 'clone', lambda name: parent.clone('base', name, 17))
    go(qsd, 'stripes', lambda name: parent.clone('base', name, 18, DEFAULT,
                                                  GRAIN, 3))
PY
