#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An owner that stands still (SIGSTOP) for less than its watch lives keeps the
# lock, and one that somebody waits for hands it over when it runs again.
# Standing still for longer while librbd, or another of ours, wants to write
# costs it the lock and its right to write: when it runs again every request
# fails with ESHUTDOWN, none of its writes gets into the image, and it can be
# closed.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rados
requires_module
own_cluster --osds 1 --watch-timeout 8 --conf 'objecter tick interval = 1'
new_pool pool

export pool
qemu_python <<'PY'
import errno
import os
import re
import signal
import struct
import time

from peers import (REQUEST, Librbd, Notifies, blocklist, connect, create,
                   header_of, lock_of, owner_of, sound, watchers_of)
from qemu import Load, Nbd, Qemu, errno_of, expect, wait_for

POOL = os.environ['pool']
K, M = 1 << 10, 1 << 20
c, io = connect(POOL)
ids = {name: create(io, name, 32 * M, 20) for name in ('librbd', 'ours')}

with Qemu.storage_daemon() as qsd, Qemu.storage_daemon() as other, \
        Librbd(POOL, 'librbd') as peer:
    disks = {}
    for name in ids:
        qsd.add(node_name=name, pool=POOL, image=name, discard='unmap')
        disks[name] = qsd.nbd(name)
        for i in range(32):
            disks[name].write(i * M, b'before' + bytes(506))
    other.add(node_name='ours', pool=POOL, image='ours')
    heir = other.nbd('ours')

    # Shortly, and nobody wants it.
    owned = lock_of(POOL, 'librbd')
    os.kill(qsd.pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(qsd.pid, signal.SIGCONT)
    disks['librbd'].write(0, b'before' + bytes(506))
    expect(owned, lock_of(POOL, 'librbd'), 'after a short stop')
    assert owner_of(POOL, 'librbd')

    # Shortly, and somebody does: he gets it from us, not by force.
    notifies = Notifies(io, ids['librbd'])
    os.kill(qsd.pid, signal.SIGSTOP)
    write = peer.send_write(K, b'asked' + bytes(507))
    wait_for('librbd asks', lambda: notifies.count(REQUEST))
    os.kill(qsd.pid, signal.SIGCONT)
    peer.finish(write)
    expect(peer.client, owner_of(POOL, 'librbd'))
    expect([], blocklist(), 'after short stops')
    disks['librbd'].write(0, b'before' + bytes(506))
    assert owner_of(POOL, 'librbd') not in (peer.client, None)
    expect('', qsd.log())
    # A watcher that may miss the end of its client's sleep is in the way.
    notifies.close()

    # For long, with writes on their way: some that it has taken, some that
    # wait in the socket (few and small, for nobody takes them from there).
    owners = {name: lock_of(POOL, name) for name in disks}
    loads = {name: Load(Nbd(qsd, name), 3000) for name in disks}
    for load in loads.values():
        load.beat()
    os.kill(qsd.pid, signal.SIGSTOP)
    queued = {name: [disk.send(Nbd.WRITE, i * M + 128 * K, 512, b'q' * 512)
                     for i in range(16, 24)]
              for name, disk in disks.items()}
    takers = peer.send_write(0, b'taken' + bytes(507)), \
        heir.send(Nbd.WRITE, 0, 512, b'taken' + bytes(507))
    peer.finish(takers[0])
    heir.finish(takers[1])
    after = {'librbd': peer.read(0, 32 * M), 'ours': heir.read(0, 32 * M)}
    expect(peer.client, owner_of(POOL, 'librbd'))
    for name, disk in disks.items():
        assert owners[name][0] != owner_of(POOL, name)
        assert owners[name][2] in blocklist()
        expect(b'taken', after[name][:5])

    os.kill(qsd.pid, signal.SIGCONT)
    for name, disk in disks.items():
        load = loads[name]
        load.join(120)
        assert not load.is_alive(), 'writes hang'
        assert not load.error, load.error
        expect(errno.ESHUTDOWN, load.failed)
        for slot, number in enumerate(load.acked):
            found = struct.unpack_from('<Q', after[name], slot * 4096)[0]
            assert found >= number or slot == 0, \
                f'slot {slot}: {number} was written, {found} is there'
        for handle in queued[name]:
            expect(errno.ESHUTDOWN, disk.wait(handle)[0], 'queued write')
        for call, *args in ((disk.write, 0, bytes(512)), (disk.read, 0, 512),
                            (disk.trim, 0, M), (disk.zeroes, 0, M),
                            (disk.flush,)):
            expect('ESHUTDOWN', errno_of(call, *args), f'{name}, {call}')
        lines = [x for x in qsd.log().splitlines()
                 if f"image '{POOL}/{name}'" in x and 'blocklisted' in x]
        expect(1, len(lines), f'lines that say why:\n{qsd.log()}')
    for name, read in ('librbd', peer.read), ('ours', heir.read):
        expect(True, after[name] == read(0, 32 * M), f'{name} is unchanged')

    # The rest of the world goes on.
    peer.write(M, b'peer' * 128)
    heir.write(M, b'heir' * 128)
    for name, disk in disks.items():
        loads[name].disk.close(end_export=False)
        disk.close()
        qsd.cmd('blockdev-del', node_name=name)
    # With a new connection, it may again.
    qsd.add(node_name='again', pool=POOL, image='librbd')
    with qsd.nbd('again') as disk:
        expect(b'peer', disk.read(M, 4))
        disk.write(0, b'again' + bytes(507))
    expect(b'again', peer.read(0, 5))
    heir.close()
for name in ids:
    sound(POOL, name)
PY
