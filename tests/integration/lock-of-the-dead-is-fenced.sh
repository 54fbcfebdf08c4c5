#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An owner that is killed keeps the lock until its watch ends. The log says
# for whom we wait; then exactly that client is blocklisted, before its lock
# is broken, and the waiting writes go on. The same when the owner was ours
# and librbd or another of ours waits. An owner that only stood still cannot
# write any more when it runs again.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rados
requires_module
own_cluster --osds 1 --watch-timeout 5 --conf 'objecter tick interval = 1'
new_pool pool

export pool
qemu_python <<'PY'
import errno
import os
import re
import signal

from peers import (Librbd, blocklist, connect, create, lock_of, owner_of,
                   sound, tool)
from qemu import Load, Nbd, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c, io = connect(POOL)
IMAGES = 'dead-librbd', 'frozen-librbd', 'dead-ours', 'both-ours'
for name in IMAGES:
    create(io, name, 16 * M, 20)


def locked_by(name):
    return lock_of(POOL, name)[::2]     # client, address


with Qemu.storage_daemon() as qsd, \
        Librbd(POOL, 'dead-librbd') as dead, \
        Librbd(POOL, 'frozen-librbd') as frozen, \
        Librbd(POOL, 'dead-ours') as heir:
    disks = {}
    for name in IMAGES:
        if name != 'dead-ours':
            qsd.add(node_name=name, pool=POOL, image=name)
            disks[name] = qsd.nbd(name)

    # Owners, each with writes on its way, die or freeze.
    owners = {}
    for name, peer in ('dead-librbd', dead), ('frozen-librbd', frozen):
        for i in range(16):
            peer.write(i * M, b'dead' * 128)
        owners[name] = locked_by(name)
        expect(peer.client, owners[name][0])
        for i in range(16):
            peer.send_write(i * M + 512, b'last' * 128)
    killed, loads = [], {}
    for name in 'dead-ours', 'both-ours':
        victim = Qemu.storage_daemon()
        victim.add(node_name='n', pool=POOL, image=name)
        loads[name] = Load(victim.nbd('n'), 3000)
        loads[name].beat()
        owners[name] = locked_by(name)
        killed.append(victim)
    assert len(set(owners.values())) == 4, owners
    dead.kill()
    os.kill(frozen.pid, signal.SIGSTOP)
    for victim in killed:
        victim.p.kill()
        victim.p.wait()
    for load in loads.values():
        load.join(120)
        assert not load.is_alive()
    expect([], blocklist(), 'while all watches live')

    # Everybody else wants to write.
    writes = {name: [disk.send(Nbd.WRITE, i * M + 1024, 512, b'ours' * 128)
                     for i in range(8)]
              for name, disk in disks.items()}
    librbd_write = heir.send_write(M + 1024, b'heir' * 128)
    for name in disks:
        client = owners[name][0]
        wait_for(f'the log says whom {name} waits for', lambda n=name, c=client:
                 re.search(f"image '{POOL}/{n}': .*{c}\\b", qsd.log()))
    # Reading waits for nobody.
    expect(b'dead', disks['dead-librbd'].read(0, 4))
    for name, disk in disks.items():
        for handle in writes[name]:
            disk.finish(handle)
    heir.finish(librbd_write)

    shut_out = blocklist()
    expect(sorted(address for _, address in owners.values()),
           sorted(shut_out), 'who is blocklisted')
    us = {owner_of(POOL, name) for name in disks}
    assert len(us) == 1 and not us & {x[0] for x in owners.values()}, us
    expect(heir.client, owner_of(POOL, 'dead-ours'))

    # It comes back, does not know, and is kept out.
    before = disks['frozen-librbd'].read(0, 16 * M)
    late = frozen.send_write(0, b'LATE' * 128)
    os.kill(frozen.pid, signal.SIGCONT)
    expect(errno.ESHUTDOWN, frozen.wait(late)[0], 'write of the fenced owner')
    expect(True, before == disks['frozen-librbd'].read(0, 16 * M),
           'nothing changed')
    frozen.kill()

    for name, disk in disks.items():
        expect(b'ours' * 128, disk.read(1024, 512))
        for i in range(8, 16):
            disk.write(i * M + 1024, b'more' * 128)
    # What the dead had been told is written is there.
    for i in range(16):
        for name in 'dead-librbd', 'frozen-librbd':
            expect(b'dead' * 128, disks[name].read(i * M, 512))
    for name, load in loads.items():
        for slot, number in enumerate(load.acked):
            if not number or slot * 4096 % M == 0:
                continue
            read = heir.read if name == 'dead-ours' else disks[name].read
            found = int.from_bytes(read(slot * 4096, 8), 'little')
            assert found >= number, \
                f'{name}, slot {slot}: {number} was written, {found} is there'
    for disk in disks.values():
        disk.close()

for name in IMAGES:
    sound(POOL, name)
    tool('rbd', 'rm', '--no-progress', f'{POOL}/{name}')
left = [x for x in tool('rados', '-p', POOL, 'ls').split()
        if x.startswith('rbd_data') or x.startswith('rbd_object_map')]
expect([], left, 'objects that the maps had forgotten')
PY
