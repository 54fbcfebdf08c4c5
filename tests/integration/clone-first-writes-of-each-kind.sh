#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The first request to an object of a clone, and the second: of each kind, on
# what each kind of parent object shows through, with and without snapshots of
# the clone, for clones of version 1 and 2, with and without exclusive lock
# and object map. What is read is what librbd reads and what the requests
# should have left: what was discarded never shows the parent again. Nor does
# anything change, in the head or a snapshot, when `rbd flatten' takes the
# parent away.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python "${1-}" <<'PY'
import os
import random
import sys

import rbd
from peers import connect, tool
from qemu import Qemu, expect
from revisions import DEFAULT, GRAIN, K, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
place = Place(connect(POOL)[0], POOL)
S = 2 * GRAIN                   # object size


def write(off, n):
    return lambda r, disk, at: r.write(disk, at + off, rng.randbytes(n))


def discard(off, n):
    return lambda r, disk, at: r.discard(disk, at + off, n)


def zero(off, n, unmap=True):
    return lambda r, disk, at: r.zero(disk, at + off, n, unmap)


REQUESTS = {
    'nothing': lambda r, disk, at: None,
    'write at the start': write(0, 4 * K),
    'write inside': write(20 * K + 512, 1000),
    'write at the end': write(S - 512, 512),
    'write of zeroes': lambda r, disk, at: r.write(disk, at + K, bytes(K)),
    'write of all': write(0, S),
    'write into the next': write(S - 4 * K, 8 * K),
    'discard of the front': discard(0, GRAIN),
    'discard of the end': discard(GRAIN, GRAIN),
    'discard of all': discard(0, S),
    'discard into the next': discard(GRAIN, S),
    'zeroes inside': zero(30 * K, 5000),
    'zeroes to the end': zero(S - 3 * K, 3 * K),
    'zeroes of all': zero(0, S),
    'thick zeroes of all': zero(0, S, False),
    'thick zeroes inside': zero(K, K, False),
}
# What the object of the parent holds; each request leaves the next object
# for those that reach into it.
SHOWN = {'data': lambda: rng.randbytes(S), 'absent': lambda: b'',
         'a short one': lambda: rng.randbytes(40 * K),
         'zeroes': lambda: bytes(S), 'empty': lambda: None}
CASES = [(shown, kind) for shown in SHOWN for kind in REQUESTS]
SIZE = 2 * S * len(CASES)

parent = Revisions.create(place, 'parent', SIZE, 17)
with parent.open() as image:
    for i, (shown, _) in enumerate(CASES):
        for at in 2 * i * S, (2 * i + 1) * S:
            data = SHOWN[shown]()
            if data is None:
                # An object of no bytes.
                image.write(b'x', at)
                image.discard(at, S - GRAIN)
                image.discard(at, GRAIN)
                image.write_zeroes(at, S)
                continue
            if data:
                image.write(data, at)
                parent.head[at:at + len(data)] = data
parent.snap('base')
# What the parent is now is nobody's business.
with parent.open() as image:
    for at in range(0, SIZE, S):
        image.write(b'later' * 100, at)
LAYERING, LOCK, DEEP = (rbd.RBD_FEATURE_LAYERING,
                        rbd.RBD_FEATURE_EXCLUSIVE_LOCK,
                        rbd.RBD_FEATURE_DEEP_FLATTEN)


def go(qsd, name, version, features, early_snap):
    child = parent.clone('base', name, 17, features, version=version)
    place.add(qsd, name)
    disk = qsd.nbd(name)
    child.compare('as cloned', disk)
    if early_snap:
        child.snap('before')
    for i, (_, kind) in enumerate(CASES):
        REQUESTS[kind](child, disk, 2 * i * S)
    child.compare('after the first requests', disk)
    child.maps('after the first requests')
    if early_snap:
        child.snap('between')
    for i in range(len(CASES)):
        kind = rng.choice(list(REQUESTS))
        REQUESTS[kind](child, disk, 2 * i * S)
    child.compare('after the second requests', disk)
    child.maps('after the second requests')
    child.compare_snaps(qsd, 'after the second requests')
    disk.close()
    qsd.cmd('blockdev-del', node_name=name)

    tool('rbd', 'flatten', '--no-progress', f'{POOL}/{name}')
    with child.open(read_only=True) as image:
        try:
            raise AssertionError(f'parent left: {image.parent_info()}')
        except rbd.ImageNotFound:
            pass
    # Without deep-flatten, snapshots keep the parent.
    expect([] if features & DEEP or not early_snap else [name], children())
    child.compare('after flatten')
    child.compare_snaps(qsd, 'after flatten')
    child.maps('after flatten')
    child.remove()


def children():
    with parent.open('base', read_only=True) as image:
        return [c['image'] for c in image.list_children2()]


with Qemu.storage_daemon() as qsd:
    for version, features, early_snap in (
            (1, DEFAULT, False), (2, DEFAULT, True), (1, LAYERING, True),
            (2, LAYERING | LOCK | DEEP, True), (2, LAYERING, False)):
        name = f'v{version}-{features:x}-{"snap" if early_snap else "plain"}'
        go(qsd, name, version, features, early_snap)
        print(f'{name}: {2 * len(CASES)} requests')
PY
