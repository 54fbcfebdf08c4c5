#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Another client asks for the lock while writes of ours are on their way to an
# OSD that does not answer. It does not get the lock before they are done:
# what it does to the image next, a snapshot, would come between. Meanwhile
# new writes of ours wait, reads go on, and the owner keeps saying that it is
# there.
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
from peers import (RELEASED, REQUEST, Librbd, Notifies, blocklist, connect,
                   create, owner_of, sound, tool)
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
    os.kill(bad, signal.SIGSTOP)
    try:
        wait_for('the OSD stands still', lambda: stands_still(bad))
        flying = [disk.send(Nbd.WRITE, i * M, 512, b'flying' + bytes(506))
                  for i in there]
        # Answered ones show that those above are on their way.
        disk.write(here[0] * M, b'answer' + bytes(506))
        snap = peer.send('snap_create', 's')
        theirs = peer.send_write(here[1] * M, b'theirs' + bytes(506))
        wait_for('librbd asks', lambda: notifies.count(REQUEST))
        late = disk.send(Nbd.WRITE, here[0] * M, 512, b'late' + bytes(508))
        assert disk.read(here[0] * M, 4) in (b'answ', b'late')
        time.sleep(2)       # for what must not happen
        expect(owner, owner_of(POOL, name), 'who owns while a write flies')
        expect(0, notifies.count(RELEASED),
               f'times the lock was given back: {notifies.seen}')
        assert not set(flying) & set(disk.done), 'they were not in flight'
    finally:
        os.kill(bad, signal.SIGCONT)
    for handle in flying:
        disk.finish(handle)
    disk.finish(late)
    peer.finish(snap)
    peer.finish(theirs)
    with rbd.Image(io, name, 's', read_only=True) as image:
        for i in there:
            expect(b'flying', disk.read(i * M, 6))
            expect(b'flying', image.read(i * M, 6), 'in the snapshot')
    expect(b'late', disk.read(here[0] * M, 4))
    expect(b'theirs', disk.read(here[1] * M, 6))
    expect([], blocklist())
    notifies.close()
    disk.close()
sound(POOL, name)
PY
