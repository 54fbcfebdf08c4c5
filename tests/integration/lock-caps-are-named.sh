#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A user whose capabilities do not allow what locking needs is told which one
# is missing. Without the right to blocklist, a dead owner's lock is not
# broken: the writes wait, and nothing is written, until somebody with the
# right removes the lock. Without the right to run class methods, opening or
# writing fails with a text that names it.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rbd
requires_module
own_cluster --osds 1 --watch-timeout 4 --conf 'objecter tick interval = 1'
new_pool pool

export pool cluster
qemu_python <<'PY'
import os
import re

from peers import (Librbd, blocklist, connect, create, lock_of, owner_of,
                   sound, tool)
from qemu import Nbd, Qemu, QmpError, errno_of, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c, io = connect(POOL)
for name in 'i', 'j':
    create(io, name, 16 * M)


def user(name, **caps):
    """Make a user; adds its key to the keyring that all clients read."""
    pairs = [x for pair in caps.items() for x in pair]
    key = tool('ceph', 'auth', 'get-or-create', f'client.{name}', *pairs)
    with open(f'{os.environ["cluster"]}/keyring', 'a') as f:
        f.write(key)


user('noblock', mon='allow r', osd='profile rbd')
user('noclass', mon='profile rbd', osd=f'allow rw pool={POOL}')
user('noclasswrite', mon='profile rbd', osd=f'allow rw class-read pool={POOL}')
user('nowrite', mon='profile rbd', osd='profile rbd-read-only')

# The owner dies.
dead = Librbd(POOL, 'i')
dead.write(0, b'dead' * 128)
client, cookie, address = lock_of(POOL, 'i')
dead.kill()

with Qemu.storage_daemon() as qsd:
    qsd.add(node_name='n', pool=POOL, image='i', user='noblock')
    disk = qsd.nbd('n')
    writes = [disk.send(Nbd.WRITE, i * M, 512, b'ours' * 128)
              for i in range(8)]
    lacks = wait_for('the log names the capability', lambda: [
        x for x in qsd.log().splitlines() if 'capability' in x])
    print(*lacks, sep='\n')
    assert f"image '{POOL}/i'" in lacks[0] and client in lacks[0] and \
        re.search("monitor capability .profile rbd. .*osd blocklist",
                  lacks[0]), lacks
    expect((client, cookie, address), lock_of(POOL, 'i'), 'lock of the dead')
    expect([], blocklist())
    # Reading goes on, and finds nothing new.
    expect(b'dead' * 128, disk.read(0, 512))
    expect(0, len(disk.done), 'writes that ended')

    # One with the right does it.
    tool('rbd', 'lock', 'rm', f'{POOL}/i', cookie, client)
    expect([address], blocklist())
    for handle in writes:
        disk.finish(handle)
    assert owner_of(POOL, 'i') not in (client, None)
    expect(b'ours', disk.read(0, 4))
    # Said, but not over and over.
    told = [x for x in qsd.log().splitlines() if 'capability' in x]
    assert len(told) < 4, told
    disk.close()
    qsd.cmd('blockdev-del', node_name='n')

    for name in 'noclass', 'noclasswrite', 'nowrite':
        log = len(qsd.log())
        try:
            qsd.add(node_name=name, pool=POOL, image='j', user=name)
        except QmpError as e:
            said = str(e)
        else:
            assert name != 'noclass', 'opened without the right to read'
            disk = qsd.nbd(name)
            expect('EPERM', errno_of(disk.write, 0, b'!' * 512), name)
            # Reading does not need it.
            expect(bytes(512), disk.read(0, 512))
            disk.close()
            qsd.cmd('blockdev-del', node_name=name)
            said = qsd.log()[log:]
        print(f'{name}: {said}')
        assert f"image '{POOL}/j'" in said and \
            'OSD capability `profile rbd' in said, said
    expect(None, owner_of(POOL, 'j'))
for name in 'i', 'j':
    sound(POOL, name)
PY
