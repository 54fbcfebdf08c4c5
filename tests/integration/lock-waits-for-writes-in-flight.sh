#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Another client asks for the lock, or for a snapshot, while writes of ours are
# on their way to an OSD that does not answer. It gets neither before they are
# done: else they would change a snapshot that is there. New writes of ours
# wait meanwhile, reads go on, and nobody takes us for dead.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rados
requires_module
own_cluster --osds 2
new_pool pool 16

export pool cluster top
qemu_python <<'PY'
import json
import os
import signal
import time

import rbd
from peers import (RELEASED, REQUEST, SNAP_CREATE, Librbd, Notifies,
                   blocklist, connect, create, owner_of, sound, tool)
from qemu import Nbd, Qemu, expect, wait_for

POOL = os.environ['pool']
CLUSTER = f'{os.environ["top"]}/tests/cluster/cluster'
M = 1 << 20
c, io = connect(POOL)


def osd_of(obj):
    """The OSD that leads for an object."""
    ret, out, text = c.mon_command(json.dumps({
        'prefix': 'osd map', 'pool': POOL, 'object': obj,
        'format': 'json'}), b'')
    assert ret == 0, text
    return json.loads(out)['acting_primary']


def pid_of(osd):
    return int(tool(CLUSTER, 'pid', os.environ['cluster'], f'osd.{osd}'))


def stands_still(pid):
    with open(f'/proc/{pid}/stat') as f:
        return f.read().rsplit(')', 1)[1].split()[0] == 'T'


# An image whose metadata is on one OSD, and data on both.
for n in range(64):
    name = f'image{n}'
    image_id = create(io, name, 16 * M, 20)
    good = osd_of(f'rbd_header.{image_id}')
    osds = [osd_of(f'rbd_data.{image_id}.{i:016x}') for i in range(16)]
    here = [i for i in range(16) if osds[i] == good]
    there = [i for i in range(16) if osds[i] != good]
    if good == osd_of(f'rbd_object_map.{image_id}') and len(here) > 1 and \
            there:
        break
else:
    raise AssertionError('no image is spread as this test needs it')

with Qemu.storage_daemon() as qsd, Librbd(POOL, name) as peer:
    peer.read(here[0] * M, 512)
    qsd.add(node_name='n', pool=POOL, image=name)
    disk = qsd.nbd('n')
    for i in range(16):
        disk.write(i * M, b'before' + bytes(506))
    owner = owner_of(POOL, name)
    notifies = Notifies(io, image_id)

    bad = pid_of(1 - good)
    for turn, asked, start in (
            (b'write', REQUEST, lambda: peer.send_write(
                here[1] * M, b'theirs' + bytes(506))),
            (b'snaps', SNAP_CREATE, lambda: peer.send('snap_create', 's'))):
        before = len(notifies.seen)
        os.kill(bad, signal.SIGSTOP)
        try:
            wait_for('the OSD stands still', lambda: stands_still(bad))
            flying = [disk.send(Nbd.WRITE, i * M, 512, turn + bytes(507))
                      for i in there]
            # Its answer shows that those above are on their way.
            disk.write(here[0] * M, b'early' + bytes(507))
            theirs = start()
            wait_for('librbd asks', lambda: asked in [
                n for n, _ in notifies.seen[before:]])
            late = disk.send(Nbd.WRITE, here[0] * M, 512, b'late-' + bytes(507))
            assert disk.read(here[0] * M, 5) in (b'early', b'late-')
            time.sleep(2)       # for what must not happen
            expect(owner, owner_of(POOL, name), 'owner while a write flies')
            assert RELEASED not in [n for n, _ in notifies.seen[before:]]
            expect('[]', tool('rbd', 'snap', 'ls', '--format', 'json',
                              f'{POOL}/{name}').strip())
            assert not set(flying) & set(disk.done), 'they were not in flight'
        finally:
            os.kill(bad, signal.SIGCONT)
        for handle in flying:
            disk.finish(handle)
        disk.finish(late)
        peer.finish(theirs)
        wait_for('ours has it', lambda: owner_of(POOL, name) == owner)
    expect(b'theirs', disk.read(here[1] * M, 6))
    with rbd.Image(io, name, 's', read_only=True) as image:
        before = image.read(0, 16 * M)
        for i in there:
            expect(b'snaps', before[i * M:i * M + 5], 'in the snapshot')
        for i in range(16):
            disk.write(i * M, b'after' + bytes(507))
        assert before == image.read(0, 16 * M), 'the snapshot has changed'
    expect([], blocklist())
    notifies.close()
    disk.close()
sound(POOL, name)
PY
