#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A disk whose OSDs do not answer can be taken out, and then QEMU ended: what
# cannot be taken back in the cluster is left there, with a message.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
own_cluster --osds 1
new_pool pool
rbd create "$pool/i" --size 64M --image-feature layering

export pool cluster top
qemu_python <<'PY'
import os
import subprocess

from qemu import Qemu, expect

POOL = os.environ['pool']
with Qemu.storage_daemon() as qsd:
    qsd.add(node_name='n', pool=POOL, image='i')
    with qsd.nbd('n') as disk:
        disk.write(0, b'x' * 4096)
    subprocess.check_call([os.environ['top'] + '/tests/cluster/cluster',
                           'kill-osd', os.environ['cluster'], '0', 'STOP'])
    qsd.cmd('blockdev-del', node_name='n')
    expect(f"qemu-storage-daemon: warning: rbd: image '{POOL}/i': the cluster "
           'does not answer; its watch is left to expire and its connection '
           'stays open\n', qsd.log())
PY
