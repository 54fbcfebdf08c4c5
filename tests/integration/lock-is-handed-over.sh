#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# lock-is-handed-over.sh [WRITES] [SEED]
#
# We and librbd share a default image: whoever writes asks the other for the
# exclusive lock and gets it; opening, reading and idling take it from nobody.
# Our lock looks like one of librbd's. Overlapping writes of both sides in
# turn, each read by the other side at once, are all there.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rados
requires_module
use_cluster
new_pool pool

export pool
qemu_python "${1-200}" "${2-}" <<'PY'
import os
import random
import struct
import sys

from peers import (Librbd, connect, create, header_of, lock_of, owner_of,
                   sound, watchers_of)
from qemu import Qemu, expect

POOL = os.environ['pool']
WRITES = int(sys.argv[1])
SEED = int(sys.argv[2]) if sys.argv[2] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
K, M = 1 << 10, 1 << 20
SIZE = 16 * M
c, io = connect(POOL)
create(io, 'i', SIZE)
header = header_of(POOL, 'i')

with Qemu.storage_daemon() as qsd, Librbd(POOL, 'i') as peer:
    peer.write(0, b'peer' * 128)
    expect(peer.client, owner_of(POOL, 'i'), 'who wrote first')

    # Ours has come, and reads.
    qsd.add(node_name='n', pool=POOL, image='i')
    disk = qsd.nbd('n')
    expect(b'peer', disk.read(0, 4))
    disk.flush()
    ours, = [x for x in watchers_of(POOL, header) if x[0] != peer.client]
    expect(peer.client, owner_of(POOL, 'i'), 'after our read')

    disk.write(512, b'ours' * 128)
    expect(ours[0], owner_of(POOL, 'i'), 'after our write')
    expect((ours[0], f'auto {ours[1]}', ours[2]), lock_of(POOL, 'i'),
           'rbd lock ls')
    expect(b'peer' * 128 + b'ours' * 128, peer.read(0, 1024))
    expect(ours[0], owner_of(POOL, 'i'), 'after a read of librbd')

    # Ours owns and is idle.
    peer.write(256, b'PEER' * 128)
    expect(peer.client, owner_of(POOL, 'i'), 'after a write of librbd')
    expect(b'peer' * 64 + b'PEER' * 128 + b'ours' * 64, disk.read(0, 1024))

    model = bytearray(SIZE)
    model[:1024] = b'peer' * 64 + b'PEER' * 128 + b'ours' * 64
    sides = (disk, peer)
    for n in range(WRITES):
        length = rng.randrange(1, 32 * K // 512) * 512
        # Around the ends of objects, where two may be hit.
        off = rng.randrange(4) * 4 * M + \
            rng.randrange(4 * M // 512 - 64, 4 * M // 512) * 512
        length = min(length, SIZE - off)
        data = (struct.pack('<II', n + 1, n % 2) * (length // 8))[:length]
        sides[n % 2].write(off, data)
        model[off:off + length] = data
        near, far = max(0, off - 4 * K), min(SIZE, off + length + 4 * K)
        expect(True, sides[(n + 1) % 2].read(near, far - near) ==
               model[near:far], f'write {n} is what the other side reads')
    for side in sides:
        assert b''.join(side.read(i * M, M) for i in range(16)) == model
    assert owner_of(POOL, 'i')
    disk.close()
    qsd.cmd('blockdev-del', node_name='n')
    # All is given back at the end, watch and lock.
    assert [x[0] for x in watchers_of(POOL, header)] == [peer.client]
    assert owner_of(POOL, 'i') in (None, peer.client)

expect(None, owner_of(POOL, 'i'), 'when all are gone')
sound(POOL, 'i')
PY
