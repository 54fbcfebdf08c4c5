#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A lock that is none of librbd's kind (`rbd lock add`, exclusive or shared):
# our writes wait for it, the log says which it is, and waiting costs next to
# nothing. `rbd lock rm` lets them go on, without an error.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rbd
requires_module
own_cluster --osds 1
new_pool pool

export pool cluster
qemu_python <<'PY'
import json
import os
import re
import time

from peers import connect, create, lock_of, owner_of, sound, tool
from qemu import Nbd, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c, io = connect(POOL)
create(io, 'i', 16 * M)


def operations():
    """Done by the OSD for all clients so far."""
    perf = json.loads(tool('ceph', 'daemon',
                           f'{os.environ["cluster"]}/osd.0.asok',
                           'perf', 'dump'))
    return perf['osd']['op']


with Qemu.storage_daemon() as qsd:
    qsd.add(node_name='n', pool=POOL, image='i')
    disk = qsd.nbd('n')
    disk.write(0, b'before' + bytes(506))
    for turn, shared in enumerate(([], ['--shared', 'tag'])):
        # The command has to find the lock free.
        with Qemu.storage_daemon() as other:
            other.add(node_name='n', pool=POOL, image='i')
            other_disk = other.nbd('n')
            other_disk.write(0, b'others' + bytes(506))
            other_disk.close()
        expect(None, owner_of(POOL, 'i'))
        tool('rbd', 'lock', 'add', *shared, f'{POOL}/i', 'by-hand')
        locker, cookie, _ = lock_of(POOL, 'i')
        expect('by-hand', cookie)

        log = len(qsd.log())
        writes = [disk.send(Nbd.WRITE, i * M, 512, b'after' + bytes(507))
                  for i in range(8)]
        wait_for('the log says what it waits for', lambda: re.search(
            f"image '{POOL}/i': .*lock.*", qsd.log()[log:]))
        lines = qsd.log()[log:].splitlines()
        assert len(lines) == 1 and locker in lines[0] and \
            'rbd lock add' in lines[0], lines
        expect(b'others', disk.read(0, 6))
        begin = operations()
        time.sleep(4)       # a span to count in
        count = operations() - begin
        assert count < 60, f'{count} operations in 4 s of waiting'
        expect(0, len(disk.done), 'writes that did not wait')
        expect((locker, cookie), lock_of(POOL, 'i')[:2])
        expect(b'others', disk.read(0, 6))

        tool('rbd', 'lock', 'rm', f'{POOL}/i', cookie, locker)
        for handle in writes:
            disk.finish(handle)
        assert owner_of(POOL, 'i')
        expect(b'after', disk.read(0, 5))
    disk.close()
sound(POOL, 'i')
PY
