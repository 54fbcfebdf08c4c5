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
import os

from qemu import Qemu

POOL = os.environ['pool']
with Qemu.system(
        '-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,'
        'resourcecontrol=deny', '-object', 'iothread,id=t',
        '-blockdev', f'rbd,node-name=a,pool={POOL},image=a,discard=unmap',
        '-device', 'virtio-blk-pci,drive=a,share-rw=on,iothread=t') as vm:
    with open(f'/proc/{vm.pid}/status') as f:
        assert 'Seccomp:\t2\n' in f.read(), 'no filter is active'
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
