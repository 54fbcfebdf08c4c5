#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# QEMU's block jobs on default images and clones, while somebody writes:
# mirror and backup from and to them, an external snapshot and its commit. The
# result is what librbd reads from both, no object map is wrong afterwards,
# and holes are known and stay holes.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import json
import os

import rbd
from objectmap import ObjectMaps
from peers import DEFAULT, connect, owner_of, tool
from qemu import Load, Nbd, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
SIZE = 16 * M
SLOTS = 1024                    # of 4 KiB: the first quarter of the image
c, io = connect(POOL)


def create(name):
    rbd.RBD().create(io, name, SIZE, 20, False, DEFAULT)


def fill(name, first):
    """Some objects, some holes."""
    with rbd.Image(io, name) as image:
        for i in 0, 1, 5, 9, 12:
            image.write(bytes([first + i]) * (M // 2 + 4096), i * M + 1000)


def clone(name, first):
    parent = f'{name}-parent'
    create(parent)
    fill(parent, first)
    with rbd.Image(io, parent) as image:
        image.create_snap('s')
        image.protect_snap('s')
    rbd.RBD().clone(io, parent, 's', io, name, DEFAULT)


def content(name):
    with rbd.Image(io, name, read_only=True) as image:
        return image.read(0, image.size())


def finished(qemu, job):
    """The job is over, and well."""
    found, = wait_for(f'{job} ends', lambda: [
        j for j in qemu.cmd('query-jobs') if j['id'] == job and
        j['status'] == 'concluded'])
    assert 'error' not in found, found
    qemu.cmd('job-dismiss', id=job)


def ready(qemu, job):
    wait_for(f'{job} is ready', lambda: any(
        j['id'] == job and j['status'] == 'ready'
        for j in qemu.cmd('query-jobs')))


def holes(qemu, node):
    """What the export of a node says."""
    return [(e['start'], e['length']) for e in json.loads(tool(
        'qemu-img', 'map', '--output=json',
        f'nbd+unix:///{node}?socket={qemu.socket_path}')) if not e['data']]


class Writes:
    """Somebody who writes to a node, now and then."""

    def __init__(self, qemu, node):
        self.qemu, self.node, self.load = qemu, node, None
        qemu.nbd(node).close(end_export=False)

    def start(self):
        self.load = Load(Nbd(self.qemu, self.node), SLOTS, after=self.load)
        self.load.beat()

    def stop(self, image):
        """What the image has then."""
        self.load.stop()
        self.load.disk.close(end_export=False)
        data = content(image)
        self.check(data, image)
        return data

    def check(self, data, image):
        """All that was acknowledged is there."""
        load = self.load
        assert any(load.acked)
        for i, number in enumerate(load.acked):
            at = i * load.n
            assert not number or data[at:at + load.n] == load.fill(number), \
                f'{image}: write {number} to slot {i} is not there'


create('image')
fill('image', 1)
clone('clone', 21)
create('mirror')
clone('target', 41)             # its data and its parent's must all go
create('backup')
fill('backup', 61)
NAMES = 'image', 'clone', 'mirror', 'target', 'backup'

with Qemu.storage_daemon() as qsd:
    for name in NAMES:
        qsd.add(node_name=name, pool=POOL, image=name, discard='unmap')

    # --- mirror and backup ---------------------------------------------------

    for source, target in ('image', 'mirror'), ('clone', 'target'):
        writes = Writes(qsd, source)
        # The map may be old before the lock is ours.
        expect([], holes(qsd, source), f'holes of {source}, not locked')
        writes.start()
        # QEMU may go on to believe the last answer of before.
        expect([(6 * M, 3 * M), (10 * M, 2 * M), (13 * M, 2 * M)],
               [(off, min(n, 15 * M - off)) for off, n in holes(
                   qsd, source) if off >= 6 * M], f'holes of {source}')
        qsd.cmd('blockdev-mirror', job_id='m', device=source, target=target,
                sync='full', auto_dismiss=False)
        ready(qsd, 'm')
        writes.load.beat()
        data = writes.stop(source)
        qsd.cmd('job-complete', id='m')
        finished(qsd, 'm')
        assert content(target) == data, f'{target} is not what {source} is'
        print(f'{source}: mirrored with {writes.load.number} writes')

        # What is there when it starts, whatever is written meanwhile. The
        # mirror has taken the source's place, and the export has followed.
        qsd.cmd('blockdev-backup', job_id='b', device=target,
                target='backup', sync='full', auto_dismiss=False,
                speed=4 * M)
        writes.start()
        writes.load.beat()
        qsd.cmd('block-job-set-speed', device='b', speed=0)
        finished(qsd, 'b')
        writes.load.beat()
        now = writes.stop(target)
        assert content('backup') == data, f'backup of {target}'
        assert now != data
        qsd.end_nbd(source)

    # --- external snapshot and commit ----------------------------------------

    qsd.cmd('blockdev-create', job_id='c', options={
        'driver': 'rbd', 'size': 32 * M,
        'location': {'pool': POOL, 'image': 'overlay'}})
    finished(qsd, 'c')
    qsd.add(node_name='overlay-file', pool=POOL, image='overlay')
    qsd.cmd('blockdev-create', job_id='c', options={
        'driver': 'qcow2', 'size': SIZE, 'file': 'overlay-file'})
    finished(qsd, 'c')
    qsd.cmd('blockdev-add', driver='qcow2', node_name='overlay',
            file='overlay-file', backing=None)
    before = content('target')
    qsd.cmd('blockdev-snapshot', node='target', overlay='overlay')
    writes = Writes(qsd, 'overlay')
    writes.start()
    writes.load.stop()
    assert content('target') == before, 'what the overlay covers changed'
    writes.load.disk.close(end_export=False)
    writes.start()
    qsd.cmd('block-commit', job_id='k', device='overlay', auto_dismiss=False)
    ready(qsd, 'k')
    writes.load.beat()
    writes.load.stop()
    writes.load.disk.close(end_export=False)
    qsd.cmd('job-complete', id='k')
    finished(qsd, 'k')
    after = content('target')
    writes.check(after, 'target')
    assert after[4 * M:] == before[4 * M:] and after != before
    qsd.end_nbd('overlay')
    qsd.cmd('blockdev-del', node_name='overlay')
    qsd.cmd('blockdev-del', node_name='overlay-file')

    for name in NAMES:
        qsd.cmd('blockdev-del', node_name=name)
        expect(None, owner_of(POOL, name), f'owner of {name}')

for name in NAMES:
    with rbd.Image(io, name, read_only=True) as image:
        complaints = ObjectMaps(c, io, image.id()).check()
        used = []
        image.diff_iterate(0, SIZE, None, lambda off, n, exists: used.append(
            (off, n)) if exists else None, include_parent=False,
            whole_object=True)
    assert not complaints, f'{name}: {complaints}'
    # The last object is in none of these, nor in a parent.
    if name in ('image', 'clone', 'mirror'):
        assert max(off + n for off, n in used) <= 15 * M, f'{name}: {used}'
PY
