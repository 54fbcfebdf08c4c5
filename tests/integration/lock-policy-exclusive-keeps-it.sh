#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# lock-policy=exclusive: a running VM owns its image from the opening on, and
# no other client gets to write. A second VM that opens it is refused by a
# message that names the owner; other writers fail with "read-only file
# system". Maintenance by `rbd` works all the same, and the VM goes on as
# owner after it.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rbd
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import os

import rbd
from peers import connect, create, fails, lock_of, owner_of, sound, tool
from qemu import Load, Nbd, Qemu, QmpError, errno_of, expect

POOL = os.environ['pool']
M = 1 << 20
c, io = connect(POOL)
create(io, 'i', 16 * M, 20)
SPEC = f'{POOL}/i'
ours = {'PINRBD_LOCK_POLICY': 'exclusive'}

with Qemu.storage_daemon(env=ours) as vm, \
        Qemu.storage_daemon(env=ours) as second, \
        Qemu.storage_daemon() as writer:
    vm.add(node_name='n', pool=POOL, image='i')
    owner = owner_of(POOL, 'i')
    assert owner, 'no lock after opening'
    address = lock_of(POOL, 'i')[2]
    disk = vm.nbd('n')
    load = Load(Nbd(vm, 'n'), 2000)
    load.beat()

    # A second VM, and one of ours that would cooperate: both ask for a while.
    second.send('blockdev-add', driver='rbd', node_name='n', pool=POOL,
                image='i')
    writer.add(node_name='n', pool=POOL, image='i')
    with writer.nbd('n') as other:
        expect('EPERM', errno_of(other.write, 15 * M, b'other' + bytes(507)))
    writer.cmd('blockdev-del', node_name='n')
    try:
        second.receive()
    except QmpError as e:
        said = str(e)
    else:
        raise AssertionError('a second VM could open it')
    print(said)
    for text in said, writer.log():
        assert f"'{SPEC}'" in text and owner in text and address in text, text
    # To look on is allowed.
    second.add(node_name='r', pool=POOL, image='i', read_only=True)
    second.cmd('blockdev-del', node_name='r')
    expect(owner, owner_of(POOL, 'i'))

    # Other clients.
    with rbd.Image(io, 'i') as image:
        try:
            image.write(b'librbd', 15 * M)
            raise AssertionError('librbd could write')
        except rbd.ReadOnlyImage:
            pass
    fails('Read-only file system', 'rbd', 'bench', '--io-type', 'write',
          '--io-size', '4K', '--io-total', '64K', SPEC)
    expect(bytes(6), disk.read(15 * M, 6))
    expect(owner, owner_of(POOL, 'i'))
    load.beat()

    # Maintenance.
    for argv in (('snap', 'create', '--no-progress', f'{SPEC}@s'),
                 ('resize', '--no-progress', '--size', '20M', SPEC),
                 ('resize', '--no-progress', '--size', '18M',
                  '--allow-shrink', SPEC),
                 ('image-meta', 'set', SPEC, 'key', 'value'),
                 ('snap', 'rm', '--no-progress', f'{SPEC}@s'),
                 ('feature', 'disable', SPEC, 'object-map', 'fast-diff'),
                 ('feature', 'enable', SPEC, 'object-map', 'fast-diff'),
                 ('object-map', 'rebuild', '--no-progress', SPEC)):
        tool('rbd', *argv)
        load.beat()
        expect(owner, owner_of(POOL, 'i'), f'the owner after {argv}')
    expect('value', tool('rbd', 'image-meta', 'get', SPEC, 'key').strip())
    # What was done for maintenance has not opened the door.
    fails('Read-only file system', 'rbd', 'bench', '--io-type', 'write',
          '--io-size', '4K', '--io-total', '64K', SPEC)
    load.stop()
    load.disk.close(end_export=False)
    disk.close()
    vm.cmd('blockdev-del', node_name='n')
    expect(None, owner_of(POOL, 'i'), 'after closing')

    second.add(node_name='n', pool=POOL, image='i')
    assert owner_of(POOL, 'i') not in (None, owner)
    with second.nbd('n') as disk:
        expect(18 * M, disk.size)
        load.check(lambda off, n: b''.join(
            disk.read(off + i, min(M, n - i)) for i in range(0, n, M)))
sound(POOL, 'i')
PY
