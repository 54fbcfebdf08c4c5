#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A process that stands still for longer than its watch lives misses what
# others do to the image: here a snapshot and a resize. When it runs again it
# notices, says so, watches anew and reads the header before it writes, so
# the snapshot stays what it was; and it keeps following the image.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
own_cluster --osds 1 --watch-timeout 4
new_pool pool

export pool
qemu_python <<'PY'
import os
import re
import signal
import time

import rados
import rbd
from qemu import Nbd, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)
rbd.RBD().create(io, 'disk', 16 * M, 20, False, rbd.RBD_FEATURE_LAYERING)


def watched():
    with rbd.Image(io, 'disk', read_only=True) as image:
        return len(list(image.watchers_list())) > 0


def snapshot(name):
    with rbd.Image(io, 'disk', snapshot=name) as image:
        return image.read(0, 16 * M)


def filled(byte):
    return byte * 4096


with Qemu.storage_daemon(env={'PINRBD_LOG_LEVEL': 'info'}) as qsd:
    qsd.add(node_name='n', pool=POOL, image='disk')
    disk = qsd.nbd('n')
    for i in range(8):
        disk.write(i * M, filled(b'a'))
    disk.flush()
    assert watched()

    # The second time it stands still for so long that it can tell by itself:
    # then even writes that were waiting for it, to objects that nobody has
    # written, keep out of the snapshot. The first time only the OSD can know,
    # for objects that somebody has written since.
    for turn, byte, seconds in (0, b'b', 0), (1, b'c', 11):
        name = f'snap{turn}'
        log = len(qsd.log())
        os.kill(qsd.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        early = [disk.send(Nbd.WRITE, 0, 4096, filled(byte))]
        if seconds:
            # Few and small, for nobody takes them from the socket.
            early += [disk.send(Nbd.WRITE, i * M, 512, byte * 512)
                      for i in range(8, 12)]
        wait_for('the watch ends', lambda: not watched() and
                 time.monotonic() - stopped > seconds)
        with rbd.Image(io, 'disk') as image:
            image.create_snap(name)
            image.resize((16 + turn + 1) * M)
            image.write(b'other', 8192)
        before = snapshot(name)
        os.kill(qsd.pid, signal.SIGCONT)
        for handle in early:
            disk.finish(handle)
        wait_for('it notices',
                 lambda: 'header is registered again' in qsd.log()[log:])
        assert watched()

        # It has read the header, or reads it while these wait: in either case
        # they carry the new context.
        for i in range(1, 12):
            disk.write(i * M, filled(byte))
        lines = re.sub(f"qemu-storage-daemon: (warning: |info: )?rbd: image "
                       f"'{POOL}/disk': ", '', qsd.log()[log:]).splitlines()
        expect([
            'the watch on its header is lost (Transport endpoint is not '
            'connected); writes are held until it is registered again',
            'the watch on its header is registered again'],
            [x for x in lines if 'watch' in x])
        assert f'size is {(17 + turn) * M} bytes now' in lines, lines
        still = [x for x in lines if re.fullmatch(
            r'this process stood still for \d+ s; writes are held until the '
            'header has been read', x)]
        expect(1 if seconds else 0, len(still), 'lines about the stop')
        assert snapshot(name) == before, f'{name} was changed'
        expect(filled(byte), disk.read(0, 4096))
        expect(b'other', disk.read(8192, 5))

        # The new watch is a good one: this is told, not found out.
        with rbd.Image(io, 'disk') as image:
            image.create_snap(f'told{turn}')
        before = snapshot(f'told{turn}')
        disk.write(0, filled(b'!'))
        disk.write(13 * M, filled(b'!'))
        assert snapshot(f'told{turn}') == before, 'after the loss'
        disk.write(0, filled(byte))
    disk.close()
    qsd.cmd('blockdev-del', node_name='n')
PY
