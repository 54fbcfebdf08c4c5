#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# `rbd flatten' and `rbd sparsify' of a clone that a guest of ours writes to
# and reads all the time end, and nobody's data is wrong before, meanwhile or
# after: neither the guest's nor what the snapshots show. Then the parent is
# removed for good; the guest, and those that have the image or a snapshot open
# read-only since before, do not miss it.
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
import threading
import time

import rbd
from peers import connect, tool
from qemu import Load, Nbd, Qemu, expect
from revisions import DEFAULT, K, M, Place, Revisions, read_all

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
place = Place(connect(POOL)[0], POOL)
SIZE, USED = 24 * M, 6 * M      # the guest writes in the first part


class Reader(threading.Thread):
    """Compares what no one writes with what it must be, until told to end."""

    def __init__(self, name, disk, data):
        super().__init__(name=name, daemon=True)
        self.rng = random.Random(f'{SEED} {name}')
        self.disk, self.data = disk, data
        self.n, self.ending, self.error = 0, False, None
        self.start()

    def run(self):
        try:
            while not self.ending:
                off = self.rng.randrange(USED, SIZE - 1)
                n = min(self.rng.choice([512, 4 * K, 200 * K]), SIZE - off)
                got = self.disk.read(off, n)
                if got != self.data[off:off + n]:
                    bad = [i for i in range(n) if got[i] != self.data[off + i]]
                    raise AssertionError(
                        f'{self.name}: read of {n} at {off}: wrong from '
                        f'{off + bad[0]} to {off + bad[-1]}, '
                        f'{got[bad[0]:bad[0] + 8].hex()}')
                self.n += 1
        except BaseException as e:
            self.error = e

    def end(self):
        self.ending = True
        self.join()
        if self.error:
            raise self.error
        assert self.n, f'{self.name}: no reads'


def parent_of(image):
    with image.open(read_only=True) as r:
        try:
            return r.parent_info()
        except rbd.ImageNotFound:
            return None


def go(qsd, name, snaps, features, version):
    parent = Revisions.create(place, f'{name}-parent', SIZE, 20)
    parent.fill(rng, share=.8)
    parent.snap('base')
    image = parent.clone('base', name, 18, features, version=version)
    place.add(qsd, name)
    qsd.add(node_name='ro', pool=POOL, image=name, read_only=True)
    disk, ro = qsd.nbd(name), qsd.nbd('ro', writable=False)
    for i in range(snaps):
        # Snapshots that differ, of objects the clone has and has not.
        for _ in range(4):
            image.random(disk, rng)
        image.snap(f's{i}')
    if snaps:
        place.add(qsd, 'old', image=name, snapshot='s0', read_only=True)
        old = qsd.nbd('old', writable=False)
        image.same(image.snaps['s0'], read_all(old, SIZE), 's0 before')
    # In the guest's part anything may be, from here on.
    load = Load(Nbd(qsd, name), USED // 4096, depth=8, seed=SEED)
    reader = Reader('guest', Nbd(qsd, name), bytes(image.head))
    other = Reader('read-only', ro, bytes(image.head))
    load.beat()
    spec = f'{POOL}/{name}'
    begin = time.monotonic()
    tool('rbd', 'flatten', '--no-progress', spec)
    took = time.monotonic() - begin
    expect(None, parent_of(image), 'parent')
    load.beat()
    other.end()
    # Who has an image open read-only is not told, as with librbd: it goes on
    # to see the parent where sparsify removes an object.
    tool('rbd', 'sparsify', '--no-progress', spec)
    load.beat()
    if features & rbd.RBD_FEATURE_DEEP_FLATTEN or not snaps:
        parent.remove()
        other = Reader('read-only', ro, bytes(image.head))
        load.beat()
        other.end()
    load.beat()
    reader.end()
    load.stop()
    for slot, number in enumerate(load.acked):
        if number:
            image.head[slot * 4096:(slot + 1) * 4096] = load.fill(number)
    image.compare('after flatten and sparsify', disk)
    image.maps('after flatten and sparsify')
    for _ in range(20):
        image.random(disk, rng)
    image.compare('after requests without a parent', disk)
    image.maps('after requests without a parent')
    if snaps:
        # Open all the time, and no one has told it that the parent is gone.
        image.same(image.snaps['s0'], read_all(old, SIZE), 's0 after')
        old.close()
        qsd.cmd('blockdev-del', node_name='old')
    for d in load.disk, reader.disk:
        d.close(end_export=False)
    disk.close()
    ro.close()
    for node in name, 'ro':
        qsd.cmd('blockdev-del', node_name=node)
    image.remove()
    print(f'{name}: flatten took {took:.2f} s, {load.done} writes, '
          f'{reader.n} + {other.n} reads, longest stall {load.longest_s:.2f} s')


LAYERING = rbd.RBD_FEATURE_LAYERING
with Qemu.storage_daemon() as qsd:
    for features, snaps, version in ((DEFAULT, 0, 1), (DEFAULT, 3, 2),
                                     (LAYERING, 1, 2)):
        go(qsd, f'c{features:x}-{snaps}', snaps, features, version)
PY
