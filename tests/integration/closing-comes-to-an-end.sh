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
rbd create "$pool/plain" --size 64M --image-feature layering
rbd create "$pool/owned" --size 64M

export pool cluster top
qemu_python <<'PY'
import os
import subprocess

from qemu import Qemu, expect

POOL = os.environ['pool']


def said(image, text):
    return f"qemu-storage-daemon: warning: rbd: image '{POOL}/{image}': {text}\n"


GONE = 'the cluster does not answer; its watch is left to expire and its ' \
    'connection stays open'
LOCK = 'its lock could not be given back; others take it when our watch is gone'
with Qemu.storage_daemon() as qsd:
    for image in 'plain', 'owned':
        qsd.add(node_name=image, pool=POOL, image=image)
        with qsd.nbd(image) as disk:
            disk.write(0, b'x' * 4096)
    subprocess.check_call([os.environ['top'] + '/tests/cluster/cluster',
                           'kill-osd', os.environ['cluster'], '0', 'STOP'])
    for image in 'plain', 'owned':
        qsd.cmd('blockdev-del', node_name=image)
    expect(said('plain', GONE) + said('owned', LOCK) + said('owned', GONE),
           qsd.log())
PY
