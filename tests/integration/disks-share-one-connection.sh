#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Images with the same effective Ceph settings share one connection of the
# process: one disk more adds no thread. What [pinrbd] says makes no
# difference, another key or monitor option does, and cluster-handle=own asks
# for a connection of its own. The last image takes the connection with it.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import os

import rados
import rbd
from qemu import TMP, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)
for i in range(24):
    rbd.RBD().create(io, f'i{i}', 8 * M, 20, False, rbd.RBD_FEATURE_LAYERING)

with open(os.environ['CEPH_CONF']) as f:
    text = f.read()


def conf(name, more):
    """A copy of ceph.conf with @more in [global], or its own section."""
    with open(f'{TMP}/{name}', 'w') as f:
        f.write(text.replace('[global]', '[global]\n' + more, 1)
                if not more.startswith('[') else text + more)
    return f'{TMP}/{name}'


with Qemu.storage_daemon() as qsd:
    disks = []

    def open_disk(**options):
        """Threads that one disk more has started, after I/O on it."""
        before = qsd.threads()
        n = len(disks)
        disks.append(n)
        qsd.add(node_name=f'n{n}', pool=POOL, image=f'i{n}', **options)
        disk = qsd.nbd(f'n{n}')
        for off in range(0, 8 * M, M):
            disk.write(off, bytes([n + 1]) * 8192)
        disk.flush()
        disk.close()
        # The thread that opened it may not have ended yet.
        wait_for('the control thread has ended', lambda: not any(
            'pinrbd-control' in comm for comm in comms()))
        return qsd.threads() - before

    def comms():
        for task in os.listdir(f'/proc/{qsd.pid}/task'):
            try:
                with open(f'/proc/{qsd.pid}/task/{task}/comm') as f:
                    yield f.read()
            except FileNotFoundError:
                pass

    start = qsd.threads()
    first = open_disk()
    assert first >= 5, f'{first} threads: librados has more'
    for _ in range(9):
        expect(0, open_disk(), 'threads of one disk more')

    # The same settings in other files, and what is ours, change nothing.
    expect(0, open_disk(conf=os.environ['CEPH_CONF']))
    expect(0, open_disk(conf=conf('same', '')))
    expect(0, open_disk(conf=conf('pin', '[pinrbd]\npin = never\n')))
    expect(0, open_disk(conf=conf('shared',
                                  '[pinrbd]\ncluster-handle = shared\n')))
    expect(0, open_disk(conf=conf('else', '[client.else]\nrados osd op '
                                          'timeout = 7\n')))
    expect(0, open_disk(user='admin'))

    # Another identity or another setting of librados does.
    assert open_disk(user='limited') > 0
    expect(0, open_disk(user='limited'))
    assert open_disk(conf=conf('slow', 'rados osd op timeout = 7\n')) > 0
    expect(0, open_disk(conf=conf('slow2', 'rados_osd_op_timeout=7.0\n')))
    own = conf('own', '[pinrbd]\ncluster-handle = own\n')
    assert open_disk(conf=own) > 0
    assert open_disk(conf=own) > 0

    for n in disks[1:]:
        qsd.cmd('blockdev-del', node_name=f'n{n}')
    expect(first, qsd.threads() - start, 'threads for the one disk left')
    with qsd.nbd('n0') as disk:
        expect(b'\1' * 8192, disk.read(0, 8192))
    qsd.cmd('blockdev-del', node_name='n0')
    # Only the watchdog stays.
    expect(1, qsd.threads() - start, 'threads without disks')
    assert open_disk() > 0

for n in disks[:-1]:
    with rbd.Image(io, f'i{n}', read_only=True) as image:
        expect(bytes([n + 1]) * 8192, image.read(7 * M, 8192), f'disk {n}')
PY
