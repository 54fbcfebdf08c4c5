#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Snapshots that another client takes while we write with many requests in
# flight hold a state that was real at one moment: a write that is missing in
# a snapshot had not finished when any write that is in it was sent. They
# never change afterwards, as they would by writes with an old snapshot
# context. Our running driver knows of them, and shows them read-only. So it is
# for an image of no features, for one as `rbd create' makes it, and for clones
# of both kinds, whose snapshots show the parent where nothing was written or
# discarded, also after a flatten.
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
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import rbd
from peers import connect
from qemu import Qemu, expect
from revisions import K, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
SLOT, OBJECT, OBJECTS, DEPTH, SNAPS = 4 * K, 64 * K, 24, 12, 20
EACH = OBJECT // SLOT
SLOTS = EACH * OBJECTS
SIZE = SLOT * SLOTS
place = Place(connect(POOL)[0], POOL)


class Writer(threading.Thread):
    """
    Numbers its requests. Each fills one of the slots with its number; in a
    clone, some discard a whole object of the first @discards slots, each
    object once.
    """

    def __init__(self, disk, discards, rng):
        super().__init__(daemon=True)
        self.disk, self.discards, self.rng = disk, discards, rng
        self.sent, self.finished = [], {}   # moments of requests, by number
        self.slots = []                     # which slots request N filled
        self.discarded = {}                 # slot -> number
        self.stop = False
        self.error = None
        self.start()

    def run(self):
        try:
            self.work()
        except BaseException as e:
            self.error = e

    def request(self, n, busy):
        """Its slots and a function that sends it, or None."""
        slot = self.rng.randrange(SLOTS)
        slots = [slot]
        discard = slot < self.discards and self.rng.random() < .02 and \
            slot not in self.discarded
        if discard:
            slots = list(range(slot // EACH * EACH, (slot // EACH + 1) * EACH))
        if busy.intersection(slots):
            return None
        if discard:
            self.discarded.update((s, n) for s in slots)
            return slots, lambda: self.disk.send(
                self.disk.TRIM, slots[0] * SLOT, OBJECT)
        return slots, lambda: self.disk.send(
            self.disk.WRITE, slot * SLOT, SLOT,
            struct.pack('<Q', n) * (SLOT // 8))

    def work(self):
        clock = 0
        flying = []
        while flying or not self.stop:
            if not self.stop and len(flying) < DEPTH:
                n = len(self.sent)
                r = self.request(n, {s for m, _ in flying
                                     for s in self.slots[m]}) if n else \
                    ([], None)
                if r:
                    clock += 1
                    self.sent.append(clock)
                    self.slots.append(r[0])
                    # There is no request 0: slots begin with it.
                    if n:
                        flying.append((n, r[1]()))
            else:
                n, handle = flying.pop(0)
                self.disk.finish(handle)
                clock += 1
                self.finished[n] = clock


def check(writer, data, first, what):
    """@data is a state that existed at one moment; @first was the first."""
    last = {}
    for slot in range(SLOTS):
        block = data[slot * SLOT:(slot + 1) * SLOT]
        if block == first[slot * SLOT:(slot + 1) * SLOT]:
            continue
        assert block == block[:8] * (SLOT // 8), f'{what}: torn slot {slot}'
        n, = struct.unpack('<Q', block[:8])
        if n == 0:
            assert slot in writer.discarded, f'{what}: slot {slot} is empty'
            n = writer.discarded[slot]
        assert n < len(writer.sent), f'{what}: slot {slot} has {n}'
        assert slot in writer.slots[n], f'{what}: slot of request {n}'
        last[slot] = n
    inside, outside = 0, 1 << 62
    for n in range(1, len(writer.sent)):
        seen = [n <= last.get(slot, 0) for slot in writer.slots[n]]
        # A discard may be hidden in some of its slots by later writes.
        if any(seen):
            inside = max(inside, writer.sent[n])
        if not all(seen):
            outside = min(outside, writer.finished[n])
    assert inside < outside, f'{what}: a request sent at {inside} is in it, ' \
        f'one that had finished at {outside} is not'
    return inside


def nodes_snaps(qsd):
    nodes = qsd.cmd('query-named-block-nodes', flat=True)
    info = next(n['image'] for n in nodes if n['node-name'] == 'n')
    return [s['name'] for s in info.get('snapshots', [])]


def go(name, image, discards):
    rng = random.Random(f'{SEED} {name}')
    first = bytes(image.head)

    def read(snap=None):
        with image.open(snap, read_only=True) as r:
            return r.read(0, SIZE)

    with image.open() as other, Qemu.storage_daemon() as qsd:
        place.add(qsd, 'n', image=name)
        expect([], nodes_snaps(qsd))
        disk = qsd.nbd('n')
        writer = Writer(disk, discards, rng)
        snaps, names = {}, []
        for i in range(SNAPS):
            # Not always at the same point of its work.
            goal = len(writer.sent) + rng.randrange(20, 200)
            while len(writer.sent) < goal and not writer.error:
                time.sleep(.001)
            snap = f's{i}'
            other.create_snap(snap)
            names.append(snap)
            # create_snap waits for the watchers' acks, ours among them.
            expect(names, nodes_snaps(qsd), 'snapshots the driver knows')
            snaps[snap] = read(snap)
        other.remove_snap('s3')
        names.remove('s3')
        expect(names, nodes_snaps(qsd), 'after one is removed')
        writer.stop = True
        writer.join()
        if writer.error:
            raise writer.error

        moments = [check(writer, snaps[f's{i}'], first, f'{name}@s{i}')
                   for i in range(SNAPS)]
        expect(sorted(moments), moments, 'order of the snapshots')
        head = read()
        check(writer, head, first, f'head of {name}')
        assert disk.read(0, SIZE) == head

        def unchanged(when):
            assert read() == head, f'head of {name} has changed {when}'
            for snap in names:
                assert read(snap) == snaps[snap], \
                    f'{name}@{snap} has changed {when}'

        unchanged('by the end')
        image.head = head
        image.snaps = {snap: snaps[snap] for snap in names}
        image.maps('at the end')
        if discards:
            assert writer.discarded
            other.flatten()
            unchanged('by the flatten')
            image.maps('after the flatten')
        disk.close()

        # As another node, read-only whatever is asked for.
        qsd.add(node_name='s', pool=POOL, image=name, snapshot='s5',
                auto_read_only=True)
        with qsd.nbd('s', writable=False) as snap:
            assert snap.read(0, SIZE) == snaps['s5'], 's5 as we read it'
        ro = {'driver': 'rbd', 'pool': POOL, 'image': name, 'snapshot': 's5',
              'node-name': 's'}
        qsd.fails("Cannot change node 's' to r/w when using RBD snapshot",
                  'blockdev-reopen', options=[{**ro, 'read-only': False}])
        qsd.cmd('blockdev-del', node_name='s')
    print(f'{name}: {len(writer.sent)} writes, {SNAPS} snapshots')


PLAIN = rbd.RBD_FEATURE_LAYERING
# Slots that no request can have filled, and some absent objects.
SHOWN = OBJECTS - 4
parent = Revisions.create(place, 'parent', SIZE, 16)
with parent.open() as image:
    for i in range(SHOWN):
        data = b''.join(struct.pack('<QQ', 1 << 63, slot) * (SLOT // 16)
                        for slot in range(i * EACH, (i + 1) * EACH))
        image.write(data, i * OBJECT)
        parent.head[i * OBJECT:(i + 1) * OBJECT] = data
parent.snap('base')
IMAGES = {
    'i': (Revisions.create(place, 'i', SIZE, 16, PLAIN), 0),
    'default': (Revisions.create(place, 'default', SIZE, 16), 0),
    'clone': (parent.clone('base', 'clone', 16), SHOWN * EACH),
    'plain-clone': (parent.clone('base', 'plain-clone', 16, PLAIN),
                    SHOWN * EACH),
}
with ThreadPoolExecutor(len(IMAGES)) as pool:
    for done in [pool.submit(go, name, *how)
                 for name, how in IMAGES.items()]:
        done.result()
PY

# Sizes and names as QEMU's tools show them, each of its time.
rbd resize "$pool/i" --size 3M --no-progress
rbd snap create "$pool/i@grown" --no-progress
rbd snap protect "$pool/i@grown"
list=$(ours qemu-img snapshot -l "rbd:$pool/i")
assert_eq "$(stock qemu-img snapshot -l "rbd:$pool/i" | awk '{print $1, $2}')" \
    "$(awk '{print $1, $2}' <<< "$list")" 'snapshot names'
assert_match '^grown +grown +3 MiB +20' "$list"
assert_match '^grown +grown +3 MiB +20' "$(ours qemu-img info "rbd:$pool/i")"
assert_match '\(1572864 bytes\)' "$(ours qemu-img info "rbd:$pool/i@s11")"
assert_match '\(3145728 bytes\)' "$(ours qemu-img info "rbd:$pool/i@grown")"
ours qemu-img compare "rbd:$pool/i@s11" "rbd:$pool/i@s11"

assert_fails_with "can't open device rbd:$pool/i@s11: rbd snapshots are \
read-only" ours qemu-io -c 'write 0 512' "rbd:$pool/i@s11"
