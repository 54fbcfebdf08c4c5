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
own_cluster --osds 1 --watch-timeout 5
new_pool pool

export pool
qemu_python <<'PY'
import json
import os
import re
import signal

import rados
import rbd
from qemu import Nbd, Qemu, TMP, expect, wait_for

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


ENV = {'PINRBD_LOG_LEVEL': 'info', 'PINRBD_STATS_FILE': f'{TMP}/stats'}
with Qemu.storage_daemon(env=ENV) as qsd:
    qsd.add(node_name='n', pool=POOL, image='disk')
    disk = qsd.nbd('n')
    for i in range(8):
        disk.write(i * M, filled(b'a'))
    disk.flush()
    assert watched()

    for turn, byte in enumerate((b'b', b'c', b'd')):
        name = f'snap{turn}'
        log = len(qsd.log())
        os.kill(qsd.pid, signal.SIGSTOP)
        # Waits for it when it wakes up: a write to an object that somebody
        # has written since the snapshot. Its context is old, and the OSD, the
        # only one who can know, says so.
        early = disk.send(Nbd.WRITE, 0, 4096, filled(byte))
        wait_for('the watch ends', lambda: not watched())
        with rbd.Image(io, 'disk') as image:
            image.create_snap(name)
            image.resize((16 + turn + 1) * M)
            image.write(b'other', 8192)
        before = snapshot(name)
        os.kill(qsd.pid, signal.SIGCONT)
        disk.finish(early)
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
    with open(f'{TMP}/stats') as f:
        counters = json.load(f)
    assert counters['old_snapc'] >= 1, counters
    expect(0, counters['failed'])
PY
