#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An administrator shuts our client out while it writes to a default image,
# with `ceph osd blocklist add`, or takes its lock with `rbd lock rm`, which
# does the same; or while it waits for a lock that it cannot get. Each time
# all requests fail with ESHUTDOWN, waiting ones too, nothing hangs, closing
# works, and the image is in order for the next client.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rados
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import errno
import os
import struct

import rbd
from peers import (Librbd, connect, create, header_of, lock_of, owner_of,
                   sound, tool, watchers_of)
from qemu import Load, Nbd, Qemu, errno_of, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c, io = connect(POOL)
NAMES = 'blocklist', 'lock-rm', 'manual', 'foreign'
for name in NAMES:
    create(io, name, 16 * M, 20)
    with rbd.Image(io, name) as image:
        image.write(b'before' + bytes(506), 0)


def shut_out(name):
    client, cookie, address = lock_of(POOL, name)
    if name == 'lock-rm':
        tool('rbd', 'lock', 'rm', f'{POOL}/{name}', cookie, client)
    else:
        tool('ceph', 'osd', 'blocklist', 'add', address)


def is_over(disk):
    """Somebody who does nothing has to be told by an answer."""
    wait_for('writes fail', lambda: errno_of(disk.write, 512, bytes(512)))
    for call, *args in ((disk.write, 0, b'after' + bytes(507)),
                        (disk.write, 0, bytes(512), True),
                        (disk.read, 0, 512), (disk.trim, 0, M),
                        (disk.zeroes, 0, M), (disk.flush,)):
        expect('ESHUTDOWN', errno_of(call, *args), f'{name}, {call}')


def said_once(qsd, name):
    lines = [x for x in qsd.log().splitlines()
             if f"image '{POOL}/{name}'" in x and 'blocklisted' in x]
    expect(1, len(lines), f'lines that say why:\n{qsd.log()}')


# While it owns.
for name in 'blocklist', 'lock-rm':
    with Qemu.storage_daemon() as qsd:
        qsd.add(node_name='n', pool=POOL, image=name, discard='unmap')
        disk = qsd.nbd('n')
        expect(b'before', disk.read(0, 6))
        load = Load(Nbd(qsd, 'n'), 3000, depth=32)
        load.beat()
        shut_out(name)
        load.join(120)
        assert not load.is_alive(), 'writes hang'
        assert load.error is None, load.error
        expect(errno.ESHUTDOWN, load.failed)
        is_over(disk)
        said_once(qsd, name)
        with rbd.Image(io, name) as image:
            image.write(b'others', 4096 * 3000)
            data = image.read(0, 4096 * 3000)
            for slot, number in enumerate(load.acked):
                found = struct.unpack_from('<Q', data, slot * 4096)[0]
                assert found >= number or slot == 0, \
                    f'slot {slot}: {number} was written, {found} is there'
        load.disk.close(end_export=False)
        disk.close()
        qsd.cmd('blockdev-del', node_name='n')
    expect(None, owner_of(POOL, name))
    sound(POOL, name)

# While it waits for the lock of somebody else.
with Librbd(POOL, 'manual') as peer:
    peer.lock_acquire()
    tool('rbd', 'lock', 'add', f'{POOL}/foreign', 'by-hand')
    for name in 'manual', 'foreign':
        with Qemu.storage_daemon() as qsd:
            qsd.add(node_name='n', pool=POOL, image=name, discard='unmap')
            disk = qsd.nbd('n')
            (_, _, address), = [
                x for x in watchers_of(POOL, header_of(POOL, name))
                if x[0] != peer.client]
            writes = [disk.send(Nbd.WRITE, i * M, 512, b'after' + bytes(507))
                      for i in range(8)]
            expect(b'before', disk.read(0, 6))
            tool('ceph', 'osd', 'blocklist', 'add', address)
            for handle in writes:
                expect(errno.ESHUTDOWN, disk.wait(handle)[0], name)
            is_over(disk)
            said_once(qsd, name)
            disk.close()
            qsd.cmd('blockdev-del', node_name='n')
        assert lock_of(POOL, name)
        expect(b'before', peer.read(0, 6))
    peer.lock_release()
PY
