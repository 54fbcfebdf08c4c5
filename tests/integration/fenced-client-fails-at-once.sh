#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A client that the cluster has blocklisted, in the middle of writes: all its
# I/O on that connection fails at once and for good, one line says why, closing
# does not hang, and another client can use the image. The same process can
# open it again, on a new connection. An image with a connection of its own is
# not hit.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
own_cluster --osds 1
new_pool pool

cat > "$tmp/host.conf" <<END
[image $pool/own]
cluster-handle = own
END

export pool
qemu_python <<'PY'
import json
import os

import rados
import rbd
from qemu import Nbd, Qemu, TMP, errno_of, expect, wait_for

POOL = os.environ['pool']
K, M = 1 << 10, 1 << 20
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)
NAMES = 'busy', 'idle', 'own'
for name in NAMES:
    rbd.RBD().create(io, name, 16 * M, 20, False, rbd.RBD_FEATURE_LAYERING)


def watcher(name):
    with rbd.Image(io, name, read_only=True) as image:
        return [w['addr'] for w in image.watchers_list()]


def blocklist(addr):
    ret, _, text = c.mon_command(json.dumps(
        {'prefix': 'osd blocklist', 'blocklistop': 'add', 'addr': addr}), b'')
    assert ret == 0, text


with Qemu.storage_daemon(env={'PINRBD_CONF': f'{TMP}/host.conf'}) as qsd:
    disks = {}
    for name in NAMES:
        qsd.add(node_name=name, pool=POOL, image=name, discard='unmap')
        disks[name] = qsd.nbd(name)
        disks[name].write(0, b'before' + bytes(506))
    address, = watcher('busy')
    expect([address], watcher('idle'), 'connection of the second image')
    assert watcher('own') != [address]

    # Always 32 writes on their way, until one fails.
    busy = disks['busy']
    flying, n, told = [], 0, False
    while True:
        while len(flying) < 32:
            n += 1
            flying.append(busy.send(Nbd.WRITE, n % 240 * 64 * K, 64 * K,
                                    b'w' * 64 * K))
        if busy.wait(flying.pop(0))[0]:
            break
        if n > 200 and not told:
            blocklist(address)
            told = True
    assert told, 'a write failed before the client was blocklisted'
    # A write that the OSD had done may still say so; new ones all fail.
    for handle in flying:
        busy.wait(handle)
    for name in 'busy', 'idle':
        # Somebody who does nothing has to be told by the first answer.
        disk = disks[name]
        wait_for(f'{name} fails',
                 lambda d=disk: errno_of(d.write, 4 * K, bytes(512)))
        for call, *args in ((disk.write, 0, b'after' + bytes(507)),
                            (disk.write, 0, bytes(512), True),
                            (disk.read, 0, 512), (disk.trim, 0, M),
                            (disk.zeroes, 0, M), (disk.flush,)):
            expect('ESHUTDOWN', errno_of(call, *args), f'{name}, {call}')

    reason = 'this client is blocklisted by the cluster; all I/O fails from ' \
        'now on'
    for name in 'busy', 'idle':
        lines = [x for x in qsd.log().splitlines()
                 if f"'{POOL}/{name}'" in x and 'blocklisted' in x]
        expect([f"qemu-storage-daemon: rbd: image '{POOL}/{name}': {reason}"],
               lines, 'lines that say why')
    expect([], [x for x in qsd.log().splitlines() if '/own' in x])

    # Not hit, and not in doubt.
    disks['own'].write(512, b'alive' + bytes(507))
    expect(b'before', disks['own'].read(0, 6))

    # Others have the image as it was when we were shut out.
    with rbd.Image(io, 'busy') as image:
        assert image.read(4 * K, 4 * K) in (bytes(4 * K), b'w' * 4 * K)
        image.write(b'others', 0)

    # The monitor's command returns when the image is closed.
    for name in 'busy', 'idle':
        disks[name].close()
        qsd.cmd('blockdev-del', node_name=name)
    expect([], watcher('busy'), 'watchers of what is closed')

    for name in 'busy', 'idle':
        qsd.add(node_name=f'{name}-again', pool=POOL, image=name)
        disks[name] = qsd.nbd(f'{name}-again')
    expect(b'others', disks['busy'].read(0, 6))
    disks['busy'].write(8 * M, b'again' + bytes(507), True)
    again, = watcher('busy')
    assert again not in (address, *watcher('own'))
    expect([again], watcher('idle'), 'the new connection is shared, too')
    with rbd.Image(io, 'busy') as image:
        expect(b'again', image.read(8 * M, 5))
    for disk in disks.values():
        disk.close()

# With an emulator, and nothing but an idle image: it learns by itself, by
# asking whether its watch is alive, before anything is written.
with Qemu.system('-drive', f'if=none,id=d,format=raw,file=rbd:{POOL}/idle') \
        as qemu:
    address, = watcher('idle')
    blocklist(address)
    wait_for('the idle image knows', lambda: reason in qemu.log())
    expect(f"qemu-system-x86_64: rbd: image '{POOL}/idle': {reason}",
           qemu.log().splitlines()[-1])
PY
