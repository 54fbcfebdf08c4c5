#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# lock-fights-lose-nothing.sh [SECONDS] [SEED]
#
# Two clients write to one default image as fast as they can, wherever they
# like, and so take the exclusive lock from each other over and over: two of
# ours on one image, one of ours and one of librbd on another. No request
# fails. What was acknowledged is there: for the one that wrote it, for the
# other, in the snapshots that somebody else takes of it meanwhile, and at the
# end. Nothing gets into a snapshot later.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python "${1-15}" "${2-}" <<'PY'
import os
import random
import struct
import sys
import threading
import time

import rbd
from peers import ACQUIRED, Notifies, connect, create, owner_of, sound, tool
from qemu import Nbd, Qemu, wait_for

POOL = os.environ['pool']
SECONDS = float(sys.argv[1])
SEED = int(sys.argv[2]) if sys.argv[2] else random.randrange(1 << 32)
print(f'seed {SEED}')
K = 1 << 10
SLOT, SLOTS, ORDER, DEPTH, SNAPS = 4 * K, 2048, 15, 8, 6
c, io = connect(POOL)


class OverNbd:
    def __init__(self, disk):
        self.disk = disk

    def send_write(self, off, data):
        return self.disk.send(Nbd.WRITE, off, len(data), data)

    def send_read(self, off, n):
        return self.disk.send(Nbd.READ, off, n)

    def finish(self, handle):
        return self.disk.finish(handle)


class OverLibrbd:
    def __init__(self, image):
        self.image = image

    def send_write(self, off, data):
        return self.image.aio_write(data, off, lambda _: None), None

    def send_read(self, off, n):
        box = []
        return self.image.aio_read(
            off, n, lambda _, data: box.append(data)), box

    def finish(self, handle):
        completion, box = handle
        completion.wait_for_complete_and_cb()
        if completion.get_return_value() < 0:
            raise OSError(-completion.get_return_value(), 'librbd')
        return box and box[0]


class Fight:
    """
    Slots whose number is 0 or 1 modulo 3 are for writes of that side alone,
    so that what has to be there is known at any time; the others are for both.
    """

    def __init__(self, name):
        self.name = name
        self.acked = [0] * SLOTS    # in a side's own slots: its last number
        # [(side, number, sent, acknowledged)] of each slot
        self.writes = [[] for _ in range(SLOTS)]
        self.sides = []
        self.snaps = []             # (name, just before, just after)

    def check_own(self, slot, data, floor):
        """A slot of one side, read while the fight goes on."""
        side, number = struct.unpack_from('<QQ', data)
        assert data == data[:16] * (SLOT // 16), f'slot {slot} is torn'
        assert number >= floor and (not number or side == slot % 3), \
            f'{self.name}, slot {slot}: write {floor} was acknowledged, ' \
            f'{number} of side {side} is there'

    def check_all(self, what, data, before, after):
        """
        Each slot has the last of the writes that were acknowledged before, or
        one that may have come later, but none sent after. If one is there that
        came later, so is what was acknowledged when it was sent.
        """
        found = []
        for slot, writes in enumerate(self.writes):
            side, number = struct.unpack_from('<QQ', data, slot * SLOT)
            sent = ended = 0
            if number:
                (_, _, sent, ended), = [x for x in writes
                                        if x[:2] == (side, number)]
            found.append((side, number, sent, ended))
        latest = max(found, key=lambda x: x[2])
        assert latest[2] < after, f'{self.name}, {what}: {latest} came later'
        before = max(before, latest[2])
        for slot, writes in enumerate(self.writes):
            lost = [x for x in writes
                    if x[2] > found[slot][3] and x[3] < before]
            assert not lost, f'{self.name}, {what}, slot {slot}: ' \
                f'{found[slot]} is there, with {latest}, but not {lost}'


class Side(threading.Thread):
    def __init__(self, fight, number, io_):
        super().__init__(daemon=True)
        self.fight, self.number, self.io = fight, number, io_
        self.rng = random.Random(f'{SEED} {fight.name} {number}')
        self.writes = 0
        self.stop = False
        self.error = None
        fight.sides.append(self)

    def run(self):
        try:
            self.work()
        except BaseException as e:
            self.error = e

    def work(self):
        flying, n = [], 0
        while flying or not self.stop:
            if not self.stop and len(flying) < DEPTH:
                n += 1
                job = self.read() if n % 4 == 0 else self.write(n, flying)
                if job:
                    flying.append(job)
                continue
            _, end, handle = flying.pop(0)
            end(self.io.finish(handle))

    def write(self, n, flying):
        slot = self.rng.randrange(SLOTS)
        if slot % 3 == 1 - self.number or slot in [x[0] for x in flying]:
            return None
        sent = time.monotonic()
        data = struct.pack('<QQ', self.number, n) * (SLOT // 16)

        def end(_):
            if slot % 3 < 2:
                self.fight.acked[slot] = n
            self.fight.writes[slot].append(
                (self.number, n, sent, time.monotonic()))
            self.writes += 1

        return slot, end, self.io.send_write(slot * SLOT, data)

    def read(self):
        """A slot of either side, most often one that has been written."""
        for _ in range(20):
            slot = self.rng.randrange(SLOTS)
            if slot % 3 != 2 and self.fight.acked[slot]:
                break
        if slot % 3 == 2:
            return None
        floor = self.fight.acked[slot]
        return (None, lambda data: self.fight.check_own(slot, data, floor),
                self.io.send_read(slot * SLOT, SLOT))


with Qemu.storage_daemon() as one, Qemu.storage_daemon() as two:
    fights = []
    for name in 'ours', 'librbd':
        image_id = create(io, name, SLOT * SLOTS, ORDER)
        fight = Fight(name)
        fights.append(fight)
        fight.notifies = Notifies(io, image_id)
        one.add(node_name=name, pool=POOL, image=name)
        Side(fight, 0, OverNbd(one.nbd(name)))
    two.add(node_name='ours', pool=POOL, image='ours')
    Side(fights[0], 1, OverNbd(two.nbd('ours')))
    image = rbd.Image(io, 'librbd')
    Side(fights[1], 1, OverLibrbd(image))

    sides = [x for fight in fights for x in fight.sides]
    for side in sides:
        side.start()
    begin = time.monotonic()

    def enough(share):
        """A fight is one if both got the lock more than once."""
        return any(x.error for x in sides) or \
            time.monotonic() > begin + SECONDS * share and \
            all(x.writes > 50 * share for x in sides) and \
            all(x.notifies.count(ACQUIRED) > 4 for x in fights)

    for n in range(1, SNAPS + 1):
        wait_for('both sides of both fights get to write',
                 lambda: enough(n / (SNAPS + 1)), SECONDS + 120)
        for fight in fights:
            before = time.monotonic()
            tool('rbd', 'snap', 'create', '--no-progress',
                 f'{POOL}/{fight.name}@{n}')
            fight.snaps.append((str(n), before, time.monotonic()))
    wait_for('both sides of both fights get to write', lambda: enough(1),
             SECONDS + 120)
    for side in sides:
        side.stop = True
    for side in sides:
        side.join(120)
        if side.error:
            raise side.error
        assert not side.is_alive(), f'{side.fight.name} {side.number} hangs'
    for fight in fights:
        print(f'{fight.name}: {fight.notifies.count(ACQUIRED)} times the lock '
              f'was taken, {[x.writes for x in fight.sides]} writes')
        fight.notifies.close()
        owner_of(POOL, fight.name)      # in order, if there is one
    image.close()
    for qemu in one, two:
        for fight in fights:
            for side in fight.sides:
                if getattr(side.io, 'disk', None) and \
                        side.io.disk.qemu is qemu:
                    side.io.disk.close()
        assert qemu.log() == '', qemu.log()

for fight in fights:
    end = time.monotonic()
    for name, before, after in fight.snaps + [(None, end, end)]:
        with rbd.Image(io, fight.name, name, read_only=True) as image:
            fight.check_all(name, image.read(0, SLOT * SLOTS), before, after)
    sound(POOL, fight.name)
PY
