#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Many small requests of all kinds in flight to objects that a clone does not
# have yet: each brings the parent's data or waits for the one that does, and
# all of them survive, with and without snapshots. Reads meanwhile see each
# block either as it was or as it becomes, and never as it was again once its
# request has been acknowledged.
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
import threading

import rbd
from peers import connect
from qemu import TMP, Nbd, Qemu, expect
from revisions import DEFAULT, K, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
place = Place(connect(POOL)[0], POOL)
ORDER, OBJECTS, BLOCK, DEPTH = 18, 24, 4 * K, 96
S = 1 << ORDER
SIZE = OBJECTS * S
parent = Revisions.create(place, 'parent', SIZE, 20)
parent.fill(rng, share=1)
parent.snap('base')


class Reader(threading.Thread):
    """Reads that overlap the requests in flight."""

    def __init__(self, disk, image, done):
        super().__init__(daemon=True)
        self.rng = random.Random(f'{SEED} reader')
        self.disk, self.done, self.error, self.n = disk, done, None, 0
        self.old = bytes(image.head)
        self.new = {}           # block -> what its request leaves
        self.ending = False
        self.start()

    def run(self):
        try:
            while not self.ending:
                self.look()
        except BaseException as e:
            self.error = e

    def look(self):
        off = self.rng.randrange(OBJECTS) * S + \
            self.rng.randrange(S // BLOCK) * BLOCK
        n = min(BLOCK * self.rng.randrange(1, 32), SIZE - off)
        done = set(self.done)
        data = self.disk.read(off, n)
        self.n += 1
        for at in range(off, off + n, BLOCK):
            got = data[at - off:at - off + BLOCK]
            new = self.new.get(at // BLOCK)
            old = self.old[at:at + BLOCK]
            if got != new:
                assert got == old, f'block {at // BLOCK}: neither old nor new'
                assert at // BLOCK not in done, \
                    f'block {at // BLOCK}: old after it was acknowledged'


def requests():
    """[(kind, off, n, data)], none touching another, in random order."""
    todo = []
    for obj in range(OBJECTS):
        end = (obj + 1) * S
        off = obj * S
        # Of an object or two, all by one request.
        if obj % 8 == 7:
            todo.append(('write', off, S, rng.randbytes(S)))
            continue
        while off < end:
            kind = rng.choices(['write', 'zero', 'discard', 'skip'],
                               [8, 2, 1, 3])[0]
            n = BLOCK * rng.choice([1, 1, 1, 2, 5])
            if kind == 'discard':
                if off % (64 * K):
                    continue
                n = 64 * K
            n = min(n, end - off)
            if kind != 'skip':
                todo.append((kind, off, n, rng.randbytes(n)
                             if kind == 'write' else bytes(n)))
            off += n
    # First requests to several objects at a time, and a crowd to each.
    queues = {}
    for r in todo:
        queues.setdefault(r[1] // S, []).append(r)
    for q in queues.values():
        rng.shuffle(q)
    order = []
    while queues:
        for obj in rng.sample(list(queues), min(3, len(queues))):
            order += queues[obj][:20]
            del queues[obj][:20]
            if not queues[obj]:
                del queues[obj]
    return order


def go(qsd, name, features, snaps):
    image = parent.clone('base', name, ORDER, features)
    for i in range(snaps):
        image.snap(f's{i}')
    place.add(qsd, name)
    disk = qsd.nbd(name)
    todo, done, flying = requests(), [], []
    reader = Reader(Nbd(qsd, name), image, done)
    for kind, off, n, data in todo:
        for at in range(off, off + n, BLOCK):
            reader.new[at // BLOCK] = data[at - off:at - off + BLOCK]
    while todo or flying:
        while todo and len(flying) < DEPTH:
            kind, off, n, data = todo.pop(0)
            flying.append((off, n, data, disk.send(
                {'write': disk.WRITE, 'zero': disk.ZEROES,
                 'discard': disk.TRIM}[kind], off, n,
                data if kind == 'write' else b'')))
        off, n, data, handle = flying.pop(0)
        disk.finish(handle)
        image.head[off:off + n] = data
        done += range(off // BLOCK, (off + n) // BLOCK)
    reader.ending = True
    reader.join()
    if reader.error:
        raise reader.error
    assert reader.n > 10, f'only {reader.n} reads'
    reader.disk.close(end_export=False)
    image.compare('after all requests', disk)
    image.maps('after all requests')
    disk.close()
    qsd.cmd('blockdev-del', node_name=name)
    with open(STATS, encoding='ascii') as f:
        counted = json.loads(f.readlines()[-1])
    expect(f'{POOL}/{name}', counted['image'])
    with image.open() as other:
        other.flatten()
    image.compare('after flatten')
    image.maps('after flatten')
    print(f"{name}: {counted['writes']} writes beside {reader.n} reads, "
          f"{counted['copyups']} copyups")
    # Where no map says what exists, requests learn it one by one.
    assert 0 < counted['copyups'] and (
        counted['copyups'] <= OBJECTS or features != DEFAULT), counted


LAYERING, LOCK = rbd.RBD_FEATURE_LAYERING, rbd.RBD_FEATURE_EXCLUSIVE_LOCK
STATS = f'{TMP}/stats'
with Qemu.storage_daemon(env={'PINRBD_STATS_FILE': STATS}) as qsd:
    for features, snaps in ((DEFAULT, 0), (DEFAULT, 2), (LAYERING, 0),
                            (LAYERING | LOCK, 1)):
        go(qsd, f'c{features:x}-{snaps}', features, snaps)
PY
