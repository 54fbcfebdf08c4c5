#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The OSD that keeps the header of an image is restarted while our client owns
# the lock and writes; then our client loses its watch, which nobody used to
# take the lock from it. No request fails, the lock stays with us, and
# afterwards its cookie is a live watch, so that no other client takes us for
# dead. A lock that is handed over at such a time gets there.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rados
requires_module
own_cluster --osds 2 --size 2 --watch-timeout 5 \
    --conf 'objecter tick interval = 1' --conf 'osd pool default pg num = 4'
new_pool pool

export pool cluster top
qemu_python <<'PY'
import json
import os
import signal
import time

from peers import (Librbd, blocklist, connect, create, header_of, lock_of,
                   owner_of, sound, tool, watchers_of)
from qemu import Load, Nbd, Qemu, expect, wait_for

POOL, FOLDER = os.environ['pool'], os.environ['cluster']
CLUSTER = f'{os.environ["top"]}/tests/cluster/cluster'
M = 1 << 20
c, io = connect(POOL)
create(io, 'i', 16 * M, 20)
header = header_of(POOL, 'i')


def primary(obj):
    return json.loads(tool('ceph', 'osd', 'map', POOL, obj, '--format',
                           'json'))['acting_primary']


def consistent():
    """owner_of() finds lock and watches at two moments."""
    try:
        return owner_of(POOL, 'i')
    except AssertionError:
        return None


with Qemu.storage_daemon(env={'PINRBD_LOG_LEVEL': 'info'}) as qsd, \
        Librbd(POOL, 'i') as peer:
    peer.read(0, 512)
    qsd.add(node_name='n', pool=POOL, image='i')
    disk = qsd.nbd('n')
    load = Load(Nbd(qsd, 'n'), 3500, depth=16)
    load.beat()
    owner = owner_of(POOL, 'i')
    assert owner not in (None, peer.client)

    # Down and up again: the other OSD leads in between, where a map says so.
    tool(CLUSTER, 'restart-osd', FOLDER, str(primary(header)))
    load.beat()
    expect(owner, wait_for('lock and watch agree', consistent))
    # Nobody has forgotten whom to tell.
    peer.write(15 * M, b'peer' * 128)
    load.beat()
    expect(owner, wait_for('ours has it again', lambda:
                           owner == consistent() and owner))
    # Both, one after the other, while the lock changes hands.
    for osd in 0, 1:
        write = peer.send_write(15 * M + 1024, b'peer' * 128)
        tool(CLUSTER, 'restart-osd', FOLDER, str(osd))
        peer.finish(write)
        load.beat()
        expect(owner, wait_for('ours has it again', lambda:
                               owner == consistent() and owner))

    # The watch ends, for its client stands still. Nobody takes the lock.
    cookie = lock_of(POOL, 'i')[1]
    load.stop()
    load.disk.close(end_export=False)
    os.kill(qsd.pid, signal.SIGSTOP)
    wait_for('the watch ends', lambda: [
        x[0] for x in watchers_of(POOL, header)] == [peer.client])
    expect(cookie, lock_of(POOL, 'i')[1])
    os.kill(qsd.pid, signal.SIGCONT)
    again = Load(Nbd(qsd, 'n'), 3500, depth=16, after=load)
    again.beat()
    wait_for('it watches again', lambda: owner in [
        x[0] for x in watchers_of(POOL, header)])
    expect(owner, wait_for('lock and watch agree', consistent))
    print(f'{cookie} before, {lock_of(POOL, "i")[1]} now')
    # It is reached under the new one.
    peer.write(15 * M + 512, b'peer' * 128)
    again.beat()
    again.stop()
    again.check(lambda off, n: b''.join(
        peer.read(off + i, min(M, n - i)) for i in range(0, n, M)))
    expect(b'peer' * 384, disk.read(15 * M, 1536))
    expect([], blocklist())
    again.disk.close(end_export=False)
    disk.close()
sound(POOL, 'i')
PY
