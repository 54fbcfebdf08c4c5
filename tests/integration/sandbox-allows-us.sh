#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Under the seccomp filter that libvirt sets, which kills QEMU for a fork and
# refuses changes of affinity and scheduling, disks open, work, are plugged
# and unplugged, and close.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-system-x86_64
requires_module
use_cluster
new_pool pool
rbd create "$pool/a" --size 8M --image-feature layering
rbd create "$pool/b" --size 8M --image-feature layering

export pool
qemu_python <<'PY'
import glob
import os
import re

import rados
import rbd
from qemu import Qemu, expect, wait_for

POOL = os.environ['pool']
with Qemu.system(
        '-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,'
        'resourcecontrol=deny', '-object', 'iothread,id=t',
        '-blockdev', f'rbd,node-name=a,pool={POOL},image=a,discard=unmap',
        '-device', 'virtio-blk-pci,drive=a,share-rw=on,iothread=t',
        env={'PINRBD_LOG_LEVEL': 'info'}) as vm:
    # Each thread has the filter, those that the driver started too.
    modes = {}
    for path in glob.glob(f'/proc/{vm.pid}/task/*/status'):
        with open(path) as f:
            status = f.read()
        modes[re.search(r'^Name:\s*(.*)', status, re.M)[1]] = \
            re.search(r'^Seccomp:\s*(\d)', status, re.M)[1]
    expect({'2'}, set(modes.values()), modes)
    assert any('msgr' in name for name in modes), modes
    vm.cmd('cont')
    vm.io_ok('a', 'write -P 1 0 5M')
    vm.io_ok('a', 'read -P 1 0 5M')
    vm.io_ok('a', 'discard 1M 1M')
    vm.cmd('block_resize', node_name='a', size=9 << 20)
    for i in range(3):
        vm.cmd('blockdev-add', driver='rbd', node_name='b', pool=POOL,
               image='b')
        vm.io_ok('b', f'write -P {i + 1} 0 5M')
        vm.io_ok('b', f'read -P {i + 1} 0 5M')
        vm.cmd('blockdev-reopen', options=[
            {'driver': 'rbd', 'node-name': 'b', 'pool': POOL, 'image': 'b',
             'read-only': True}])
        vm.cmd('blockdev-del', node_name='b')
    # What others do is followed on threads of librados and of our own.
    with rados.Rados(conffile='') as c, c.open_ioctx(POOL) as io, \
            rbd.Image(io, 'a') as image:
        image.create_snap('snap')
        image.resize(10 << 20)
    wait_for('the new size is seen',
             lambda: f'size is {10 << 20} bytes now' in vm.log())
    vm.io_ok('a', 'write -P 2 6M 1M')
    # Another connection, and one that cannot be made.
    vm.cmd('blockdev-add', driver='rbd', node_name='b', pool=POOL, image='b',
           user='limited')
    vm.fails('cannot connect to the Ceph cluster as client.nobody: '
             'Permission denied', 'blockdev-add', driver='rbd',
             node_name='c', pool=POOL, image='b', user='nobody')
    vm.io_ok('b', 'read -P 3 0 5M')
PY
stock qemu-io -f raw -c 'read -P 1 0 1M' -c 'read -P 0 1M 1M' "rbd:$pool/a" \
    > "$tmp/out"
assert_eq 2 "$(grep -c 'read 1048576/1048576 bytes' "$tmp/out")"
