#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A node goes on working while QEMU moves it to an iothread and back, drains
# it, reopens it read-only and read-write, adds and removes guest devices on
# it and takes it over into a mirror; the data is what librbd says it is.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-system-x86_64 qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import os

import rados
import rbd
from qemu import Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)


def create(name):
    rbd.RBD().create(io, name, 16 * M, 20, False, rbd.RBD_FEATURE_LAYERING)
    return rbd.Image(io, name)


def watchers(image):
    return len(list(image.watchers_list()))


image = create('i')
NODE = {'driver': 'rbd', 'pool': POOL, 'image': 'i', 'node-name': 'n',
        'discard': 'unmap'}
with Qemu.system('-object', 'iothread,id=t0', '-object', 'iothread,id=t1',
                 '-device', 'virtio-scsi-pci,id=iothread,iothread=t0',
                 '-device', 'virtio-scsi-pci,id=main') as vm:
    vm.cmd('blockdev-add', **NODE)
    vm.cmd('cont')
    mine = watchers(image)
    model = bytearray(16 * M)

    def check_io(n, plugged=False):
        # QEMU 7.2's own write -z aborts, with any driver, while a device in
        # an iothread has the node.
        zero = 'write -P 0' if plugged else 'write -z'
        off, fill = n % 8 * 2 * M, n % 250 + 1
        for line in (f'write -P {fill} {off} 2M',
                     f'read -P {fill} {off} 2M',
                     f'write -P 7 {off + 4096 + 13} 100k',
                     f'discard {off + M} 512k',
                     f'{zero} {off + 64} 1000',
                     f'write -f -P 9 {off + 1500000} 1',
                     f'read -P 9 {off + 1500000} 1'):
            vm.io_ok('n', line)
        expect('', vm.io('n', 'flush'), 'flush')
        model[off:off + 2 * M] = bytes([fill]) * 2 * M
        model[off + 4109:off + 4109 + 102400] = b'\7' * 102400
        model[off + M:off + M + 524288] = bytes(524288)
        model[off + 64:off + 1064] = bytes(1000)
        model[off + 1500000] = 9
        got = image.read(off, 2 * M)
        assert got == model[off:off + 2 * M], f'librbd reads other data ({n})'

    # There and back, into different threads. HMP's qemu-io keeps what it
    # opened in the node's own thread.
    n = 0
    for where in 't0', 't1', None, 't0', None:
        vm.cmd('x-blockdev-set-iothread', node_name='n', iothread=where)
        check_io(n := n + 1)
    for detect in 'unmap', 'off':
        vm.cmd('blockdev-reopen', options=[{**NODE, 'detect-zeroes': detect}])
        check_io(n := n + 1)

    # Read-only has no watch; read-write gets one again, and works.
    for _ in range(3):
        vm.cmd('blockdev-reopen', options=[{**NODE, 'read-only': True}])
        expect(mine - 1, watchers(image), 'watchers while read-only')
        text = vm.io('n', 'write 0 4k')
        assert 'read-only' in text, text
        vm.io_ok('n', 'read 0 1M')
        vm.cmd('blockdev-reopen', options=[NODE])
        expect(mine, watchers(image), 'watchers after reopening')
        check_io(n := n + 1)
    # What decides on the data cannot be changed.
    for key, value in ('image', 'j'), ('pool', 'q'), ('snapshot', 's'):
        vm.fails(f"Cannot change the option '{key}'", 'blockdev-reopen',
                 options=[{**NODE, key: value}])
    check_io(n := n + 1)

    # Hot plug and unplug of a guest's disk, at last in an iothread.
    for i, bus in enumerate(('main.0', 'main.0', 'iothread.0')):
        vm.cmd('device_add', driver='scsi-hd', bus=bus, drive='n',
               id=f'disk{i}', share_rw=True)
        check_io(n := n + 1, plugged=True)
        vm.cmd('stop')
        vm.cmd('cont')
        check_io(n := n + 1, plugged=True)
        vm.cmd('device_del', id=f'disk{i}')
        wait_for('the disk is gone', lambda: f'disk{i}' not in vm.hmp(
            'info block'))
    check_io(n := n + 1)

    # Mirror into a second image of ours, under writes, and switch over.
    target = create('j')
    vm.cmd('blockdev-add', **{**NODE, 'image': 'j', 'node-name': 'm'})
    vm.cmd('blockdev-mirror', job_id='job', device='n', target='m',
           sync='full', granularity=65536)
    check_io(n := n + 1)
    wait_for('mirror is ready', lambda: any(
        j['status'] == 'ready' for j in vm.cmd('query-jobs')))
    check_io(n := n + 1)
    vm.cmd('job-complete', id='job')
    wait_for('mirror is done', lambda: not vm.cmd('query-block-jobs'))
    assert not any(e['data'].get('error') for e in vm.events if
                   e['event'].startswith('BLOCK_JOB')), vm.events
    assert target.read(0, 16 * M) == model, 'the mirror has other data'
    vm.cmd('blockdev-del', node_name='n')
    expect(mine - 1, watchers(image), 'watchers when the node is gone')
    vm.cmd('blockdev-del', node_name='m')
    expect(1, watchers(target))
assert image.read(0, 16 * M) == model
PY
