#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A client that took the lock by hand (lock_acquire) refuses to give it away.
# Our writes try again for a while, then fail with "read-only file system" and
# the log names the owner; reads go on all the time. An owner that gives up in
# between is not noticed by the guest. After its release all is as before.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import errno
import os
import re
import subprocess

from peers import REQUEST, Librbd, Notifies, connect, create, owner_of, sound
from qemu import Nbd, Qemu, environment, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c, io = connect(POOL)
image_id = create(io, 'i', 16 * M)

with Qemu.storage_daemon() as qsd, Librbd(POOL, 'i') as peer:
    qsd.add(node_name='n', pool=POOL, image='i')
    disk = qsd.nbd('n')
    disk.write(0, b'ours' * 128)
    ours = owner_of(POOL, 'i')
    peer.lock_acquire()
    expect(peer.client, owner_of(POOL, 'i'))

    # A short refusal, as `rbd rm` gives while it looks at the image.
    notifies = Notifies(io, image_id)
    early = disk.send(Nbd.WRITE, M, 512, b'late' * 128)
    wait_for('ours asks and is refused',
             lambda: notifies.count(REQUEST) > 1)
    expect(b'ours', disk.read(0, 4))
    peer.lock_release()
    expect(0, disk.wait(early)[0], 'a write that waited for the release')
    expect(ours, owner_of(POOL, 'i'))
    expect('', qsd.log())
    peer.lock_acquire()

    # A long one. A second client of ours shows the number; NBD has no name
    # for it.
    alone = subprocess.Popen(
        ['qemu-io', '-f', 'raw', '-c', 'write -P 1 2M 512',
         f'rbd:{POOL}/i'], env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    before = notifies.count(REQUEST)
    writes = [disk.send(Nbd.WRITE, i * M, 512, b'lost' * 128)
              for i in range(8)]
    expect(b'ours', disk.read(0, 4))
    for handle in writes:
        expect(errno.EPERM, disk.wait(handle)[0], 'refused write')
    asked = notifies.count(REQUEST) - before
    assert 1 < asked < 60, f'asked {asked} times'
    said = alone.communicate(timeout=120)[0]
    assert 'write failed: Read-only file system' in said, said
    for text in qsd.log(), said:
        # One says that writes wait, one that they fail.
        lines = [x for x in text.splitlines() if peer.client in x]
        assert 0 < len(lines) < 3 and re.search(
            f"image '{POOL}/i': writes fail .*lock.* {peer.client} "
            f"\\({peer.address}\\)", lines[-1]), text
    expect(b'ours', peer.read(0, 4))
    expect(bytes(4), peer.read(2 * M, 4))

    # It refuses still; the others may flush and read.
    disk.flush()
    expect(b'late', disk.read(M, 4))
    peer.lock_release()
    disk.write(0, b'gone' * 128)
    expect(ours, owner_of(POOL, 'i'))
    expect(b'gone', peer.read(0, 4))
    notifies.close()
    disk.close()
sound(POOL, 'i')
PY
