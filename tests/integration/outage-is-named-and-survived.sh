#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An OSD that hangs or restarts: no request fails or is lost. While requests
# wait, the log says which image, what waits, for how long and why, and QEMU's
# monitor answers. Afterwards the header is watched again, so changes made by
# others are seen.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
# One OSD: none of the others could call it dead and take its place.
# An OSD that stood still longer than its read lease does not always get out of
# "waiting for readable" (16.2, alone in its cluster): so the lease is long.
own_cluster --osds 1 --conf 'osd heartbeat grace = 600'
new_pool pool

export pool cluster top
qemu_python <<'PY'
import os
import re
import subprocess
import threading

import rados
import rbd
from qemu import Nbd, Qemu, expect, wait_for

POOL, CLUSTER = os.environ['pool'], os.environ['cluster']
K, M = 1 << 10, 1 << 20
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)
rbd.RBD().create(io, 'disk', 64 * M, 20, False, rbd.RBD_FEATURE_LAYERING)


def cluster(command, *args):
    subprocess.check_call([f"{os.environ['top']}/tests/cluster/cluster",
                           command, CLUSTER, *args])


def watchers():
    with rbd.Image(io, 'disk', read_only=True) as image:
        return list(image.watchers_list())


def resize(size):
    with rbd.Image(io, 'disk') as image:
        image.resize(size)


def size_seen(qsd):
    """The last size that our driver has seen; QEMU itself never asks again."""
    sizes = re.findall('size is ([0-9]+) bytes now', qsd.log())
    return int(sizes[-1]) if sizes else None


def check(blocks):
    """The image has, at each offset, 64 KiB of that byte."""
    with rbd.Image(io, 'disk', read_only=True) as image:
        for off, byte in blocks.items():
            assert image.read(off, 64 * K) == bytes([byte]) * 64 * K, off


with Qemu.storage_daemon(env={'PINRBD_LOG_LEVEL': 'info'}) as qsd:
    qsd.add(node_name='n', pool=POOL, image='disk')
    disk = qsd.nbd('n')
    disk.write(0, b'\x01' * 64 * K)
    expect('', qsd.log())
    expect(1, len(watchers()))

    # --- an OSD that hangs ----------------------------------------------------
    cluster('kill-osd', '0', 'STOP')
    blocks = {(i + 1) * M: i + 1 for i in range(8)}
    flying = [disk.send(Nbd.WRITE, off, 64 * K, bytes([byte]) * 64 * K)
              for off, byte in blocks.items()]
    flying += [disk.send(Nbd.READ, 0, 4 * K), disk.send(Nbd.FLUSH, 0, 0)]
    wait_for('a line about the outage', lambda: 'requests wait' in qsd.log())
    line = re.fullmatch(
        rf"qemu-storage-daemon: warning: rbd: image '{POOL}/disk': (\d+) "
        r'requests wait, the oldest \(write of 65536 bytes at (\d+)\) for '
        r'(\d+) s; the OSDs have not answered\n', qsd.log())
    assert line, qsd.log()
    expect(10, int(line[1]), 'waiting requests')
    assert int(line[2]) in blocks, line[0]
    assert int(line[3]) >= 15, line[0]
    expect('n', qsd.cmd('query-named-block-nodes')[0]['node-name'])
    cluster('kill-osd', '0', 'CONT')
    for handle in flying:
        disk.finish(handle)
    check({0: 1, **blocks})
    # The OSD may find at once that the watch was silent too long, or not.
    wait_for('the watch is there', lambda: len(watchers()) == 1)
    resize(80 * M)
    wait_for('the new size is seen', lambda: size_seen(qsd) == 80 * M)

    # --- an OSD that restarts -------------------------------------------------
    rounds, stop, failures = [0], threading.Event(), []
    blocks = {}

    def keep_writing():
        try:
            with_other = Nbd(qsd, 'n')
            while not stop.is_set():
                rounds[0] += 1
                batch = {(i * 7 % 40 + 10) * M: (rounds[0] + i) % 256
                         for i in range(16)}
                handles = [with_other.send(Nbd.WRITE, off, 64 * K,
                                           bytes([byte]) * 64 * K)
                           for off, byte in batch.items()]
                for handle in handles:
                    with_other.finish(handle)
                blocks.update(batch)
            with_other.close(end_export=False)
        except BaseException as e:
            failures.append(e)

    writer = threading.Thread(target=keep_writing, daemon=True)
    writer.start()
    wait_for('writes', lambda: rounds[0] > 5 or failures)
    cluster('restart-osd', '0')
    seen = rounds[0]
    wait_for('writes go on', lambda: rounds[0] > seen + 5 or failures)
    stop.set()
    writer.join()
    expect([], failures)
    check(blocks)
    wait_for('the watch is there', lambda: len(watchers()) == 1)
    # Whoever resizes waits for the answer of all that watch.
    resize(96 * M)
    expect(96 * M, size_seen(qsd), 'size after the restart')
    resize(72 * M)
    expect(72 * M, size_seen(qsd), 'size after the second')
    # A write after that is in no danger of an old snapshot context.
    with rbd.Image(io, 'disk') as image:
        image.create_snap('snap')
    disk.write(0, b'\xff' * 64 * K)
    with rbd.Image(io, 'disk', snapshot='snap') as image:
        assert image.read(0, 64 * K) == b'\x01' * 64 * K
    disk.close()
PY
