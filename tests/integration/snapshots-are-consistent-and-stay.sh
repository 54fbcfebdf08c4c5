#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Snapshots that another client takes while we write with many requests in
# flight hold a state that was real at one moment: a write that is missing in
# a snapshot had not finished when any write that is in it was sent. They
# never change afterwards, as they would by writes with an old snapshot
# context. Our running driver knows of them, and shows them read-only.
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

import rados
import rbd
from qemu import Qemu, expect

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
K = 1 << 10
SLOT, SLOTS, DEPTH, SNAPS = 4 * K, 256, 12, 12
SIZE = SLOT * SLOTS

c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)
rbd.RBD().create(io, 'i', SIZE, 16, False, rbd.RBD_FEATURE_LAYERING)
image = rbd.Image(io, 'i')


class Writer(threading.Thread):
    """Numbers its writes; each fills one of the slots with its number."""

    def __init__(self, disk):
        super().__init__()
        self.disk = disk
        self.sent, self.finished = [], {}   # moments of writes, by number
        self.slot = []                      # where write N went
        self.stop = False
        self.error = None

    def run(self):
        try:
            self.work()
        except BaseException as e:
            self.error = e

    def work(self):
        clock = 0
        flying = []
        while flying or not self.stop:
            if not self.stop and len(flying) < DEPTH:
                busy = {self.slot[n] for n, _ in flying}
                slot = rng.randrange(SLOTS)
                if slot in busy:
                    continue
                n = len(self.sent)
                clock += 1
                self.sent.append(clock)
                self.slot.append(slot)
                data = struct.pack('<Q', n) * (SLOT // 8)
                flying.append((n, self.disk.send(
                    self.disk.WRITE, slot * SLOT, SLOT, data)))
            else:
                n, handle = flying.pop(0)
                self.disk.finish(handle)
                clock += 1
                self.finished[n] = clock


def check(writer, data, what):
    """@data is a state that existed at one moment."""
    last = {}
    for slot in range(SLOTS):
        block = data[slot * SLOT:(slot + 1) * SLOT]
        n, = struct.unpack('<Q', block[:8])
        assert block == block[:8] * (SLOT // 8), f'{what}: torn slot {slot}'
        if any(block):
            expect(slot, writer.slot[n], f'{what}: slot of write {n}')
            last[slot] = n
    inside, outside = 0, 1 << 62
    for n, slot in enumerate(writer.slot):
        # Write 0 looks like a slot that was never written.
        if n == 0:
            continue
        if n <= last.get(slot, 0):
            inside = max(inside, writer.sent[n])
        else:
            outside = min(outside, writer.finished[n])
    assert inside < outside, f'{what}: a write sent at {inside} is in it, ' \
        f'one that had finished at {outside} is not'
    return inside


def read_snap(name):
    with rbd.Image(io, 'i', snapshot=name, read_only=True) as snap:
        return snap.read(0, SIZE)


def nodes_snaps(qsd):
    nodes = qsd.cmd('query-named-block-nodes', flat=True)
    info = next(n['image'] for n in nodes if n['node-name'] == 'n')
    return [s['name'] for s in info.get('snapshots', [])]


with Qemu.storage_daemon() as qsd:
    qsd.add(node_name='n', pool=POOL, image='i')
    expect([], nodes_snaps(qsd))
    disk = qsd.nbd('n')
    writer = Writer(disk)
    writer.start()
    first, names = {}, []
    for i in range(SNAPS):
        # Not always at the same point of its work.
        goal = len(writer.sent) + rng.randrange(20, 200)
        while len(writer.sent) < goal and not writer.error:
            time.sleep(.001)
        name = f's{i}'
        image.create_snap(name)
        names.append(name)
        # create_snap waits for the watchers' acks, ours among them.
        expect(names, nodes_snaps(qsd), 'snapshots the running driver knows')
        first[name] = read_snap(name)
    image.remove_snap('s3')
    names.remove('s3')
    expect(names, nodes_snaps(qsd), 'after one is removed')
    writer.stop = True
    writer.join()
    if writer.error:
        raise writer.error

    moments = [check(writer, first[f's{i}'], f's{i}') for i in range(SNAPS)]
    expect(sorted(moments), moments, 'order of the snapshots')
    for name in names:
        assert read_snap(name) == first[name], f'{name} has changed'
    head = image.read(0, SIZE)
    check(writer, head, 'the head')
    assert disk.read(0, SIZE) == head
    disk.close()

    # As another node, read-only whatever is asked for.
    qsd.add(node_name='s', pool=POOL, image='i', snapshot='s5',
            auto_read_only=True)
    with qsd.nbd('s', writable=False) as snap:
        assert snap.read(0, SIZE) == first['s5'], 's5 as we read it'
    ro = {'driver': 'rbd', 'pool': POOL, 'image': 'i', 'snapshot': 's5',
          'node-name': 's'}
    qsd.fails("Cannot change node 's' to r/w when using RBD snapshot",
              'blockdev-reopen', options=[{**ro, 'read-only': False}])
    qsd.cmd('blockdev-del', node_name='s')
    print(f'{len(writer.sent)} writes, {SNAPS} snapshots')
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
assert_match '\(1048576 bytes\)' "$(ours qemu-img info "rbd:$pool/i@s11")"
assert_match '\(3145728 bytes\)' "$(ours qemu-img info "rbd:$pool/i@grown")"
ours qemu-img compare "rbd:$pool/i@s11" "rbd:$pool/i@s11"

assert_fails_with "can't open device rbd:$pool/i@s11: rbd snapshots are \
read-only" ours qemu-io -c 'write 0 512' "rbd:$pool/i@s11"
