#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An image that is open is not removed by rbd rm. Should its header vanish all
# the same, all requests fail at once, one line says why, closing works, and
# the image does not open again.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import os

import rados
import rbd
from qemu import Qemu, errno_of, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)
rbd.RBD().create(io, 'i', 8 * M, 20, False, rbd.RBD_FEATURE_LAYERING)


def requests(disk):
    """One of each, all on their way at once; their errors."""
    sent = [disk.send(disk.WRITE, 0, 4096, b'new!' * 1024),
            disk.send(disk.WRITE, 4 * M, 100000, b'x' * 100000),
            disk.send(disk.READ, M, 4096),
            disk.send(disk.TRIM, 0, 2 * M),
            disk.send(disk.ZEROES, 2 * M, M)]
    return {disk.wait(handle)[0] for handle in sent}


with Qemu.storage_daemon() as qsd:
    qsd.add(node_name='n', pool=POOL, image='i', discard='unmap')
    disk = qsd.nbd('n')
    disk.write(0, b'old.' * 1024)
    try:
        rbd.RBD().remove(io, 'i')
        raise AssertionError('removed in spite of the watch')
    except rbd.ImageBusy:
        pass
    expect({0}, requests(disk), 'errors after the attempt')
    with rbd.Image(io, 'i', read_only=True) as i:
        header = 'rbd_header.' + i.id()
    io.remove_object(header)
    # NBD has no ENOENT, and says EINVAL.
    wait_for('it is known', lambda: requests(disk) == {22})
    expect('EINVAL', errno_of(disk.read, 0, 512))
    expect(1, qsd.log().count(
        f"image '{POOL}/i': its header is gone, the image was removed; all "
        'I/O fails from now on'), qsd.log())
    disk.close()
    qsd.cmd('blockdev-del', node_name='n')
    qsd.fails(f"image '{POOL}/i': object {header} does not exist",
              'blockdev-add', driver='rbd', node_name='n', pool=POOL,
              image='i')
PY
