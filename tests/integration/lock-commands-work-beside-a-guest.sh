#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Every command of `rbd` that touches an image, on a default image that our
# client owns: once while the guest idles, once while it writes. Each ends as
# it does beside librbd, without a storm of notifies; the guest sees no error,
# its data is right at the end, and the lock is the guest's again.
#
# The few that a running owner makes fail are listed with what they say.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rbd
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import glob
import os
import time
from collections import Counter

import rbd
from peers import (PROGRESS, Notifies, connect, create, fails, lock_of, owner_of, sound,
                   tool)
from qemu import TMP, Load, Nbd, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
S = f'{POOL}/i'
c, io = connect(POOL)
create(io, 'parent', 24 * M, 20)
with rbd.Image(io, 'parent') as image:
    for i in range(24):
        image.write(b'parent' * 1000, i * M)
    image.create_snap('base')
tool('rbd', 'clone', '--rbd-default-clone-format', '2', '--object-size', '1M',
     f'{POOL}/parent@base', S)
with rbd.Image(io, 'i', read_only=True) as image:
    image_id = image.id()

QUIET = '--no-progress'
COMMANDS = [
    # what is allowed to fail says why; None: it works
    (('info', S), None),
    (('status', S), None),
    (('lock', 'ls', S), None),
    (('snap', 'create', QUIET, f'{S}@a'), None),
    (('snap', 'create', QUIET, f'{S}@b'), None),
    (('snap', 'ls', S), None),
    (('snap', 'rename', f'{S}@a', f'{S}@c'), None),
    (('snap', 'protect', f'{S}@c'), None),
    (('snap', 'unprotect', f'{S}@c'), None),
    (('snap', 'limit', 'set', '--limit', '9', S), None),
    (('snap', 'limit', 'clear', S), None),
    (('snap', 'rollback', QUIET, f'{S}@c'), 'Read-only file system'),
    (('clone', '--rbd-default-clone-format', '2', f'{S}@c',
      f'{POOL}/clone'), None),
    (('rm', QUIET, f'{POOL}/clone'), None),
    (('cp', QUIET, S, f'{POOL}/copy'), None),
    (('rm', QUIET, f'{POOL}/copy'), None),
    (('deep', 'cp', '--rbd-default-clone-format', '2', QUIET, S,
      f'{POOL}/copy'), None),
    (('snap', 'purge', QUIET, f'{POOL}/copy'), None),
    (('rm', QUIET, f'{POOL}/copy'), None),
    (('du', S), None),
    (('diff', S), None),
    (('diff', '--from-snap', 'c', '--whole-object', S), None),
    (('export', QUIET, S, f'{TMP}/out.1'), None),
    (('export-diff', QUIET, '--from-snap', 'c', f'{S}@b',
      f'{TMP}/out.2'), None),
    (('snap', 'rm', QUIET, f'{S}@b'), None),
    (('snap', 'purge', QUIET, S), None),
    (('resize', QUIET, '--size', '28M', S), None),
    (('resize', QUIET, '--size', '26M', '--allow-shrink', S), None),
    (('resize', QUIET, '--size', '24M', '--allow-shrink', S), None),
    (('image-meta', 'set', S, 'key', 'value'), None),
    (('image-meta', 'list', S), None),
    (('image-meta', 'remove', S, 'key'), None),
    (('config', 'image', 'set', S, 'rbd_cache', 'false'), None),
    (('config', 'image', 'rm', S, 'rbd_cache'), None),
    (('rename', S, f'{POOL}/renamed'), None),
    (('rename', f'{POOL}/renamed', S), None),
    (('feature', 'disable', S, 'object-map', 'fast-diff'), None),
    (('feature', 'enable', S, 'object-map', 'fast-diff'), None),
    (('object-map', 'rebuild', QUIET, S), None),
    (('object-map', 'check', QUIET, S), None),
    (('bench', '--io-type', 'write', '--io-size', '4K', '--io-threads', '1',
      '--io-total', '64K', f'{POOL}/i'), None),
    (('sparsify', QUIET, S), None),
    (('flatten', QUIET, S), None),
    (('migration', 'prepare', S, f'{POOL}/target'), 'image has watchers'),
    (('rm', QUIET, S), 'image still has watchers'),
    (('trash', 'mv', S), None),
    (('trash', 'restore', '--pool', POOL, image_id), None),
]


def run(command, refusal, notifies, state, limit):
    before = len(notifies.seen)
    begin = time.monotonic()
    if refusal:
        fails(refusal, 'rbd', *command)
    else:
        tool('rbd', *command)
    took = time.monotonic() - begin
    numbers = Counter(n for n, _ in notifies.seen[before:])
    what = ' '.join(command[:2])
    print(f'{state:8} {what:24} {took:5.2f} s  {dict(numbers)}')
    for name in glob.glob(f'{TMP}/out.*'):
        os.remove(name)
    # An owner that does it itself may report as often as it likes.
    del numbers[PROGRESS]
    assert sum(numbers.values()) <= limit, f'{what}: {numbers}'


with Qemu.storage_daemon() as qsd:
    qsd.add(node_name='n', pool=POOL, image='i')
    disk = qsd.nbd('n')
    expect(b'parent', disk.read(20 * M, 6))
    disk.write(22 * M, b'owner' + bytes(507))
    owner = owner_of(POOL, 'i')
    assert owner
    notifies = Notifies(io, image_id)

    # What `rbd bench` writes is between those of the guest.
    for command, refusal in COMMANDS:
        if command[0] not in ('bench', 'flatten'):
            run(command, refusal, notifies, 'idle', 10)
        disk.write(22 * M, b'owner' + bytes(507))
    expect(owner, owner_of(POOL, 'i'))

    # The slots of the guest begin where `bench` has ended.
    load = Load(Nbd(qsd, 'n'), 5000, depth=8)
    for command, refusal in COMMANDS:
        load.longest_s = 0
        if command[0] == 'bench':
            continue
        run(command, refusal, notifies, 'writing', 16)
        load.beat()
        print(f'         longest stall {load.longest_s:.2f} s')
    load.stop()
    expect(owner, owner_of(POOL, 'i'))
    run(('bench', '--io-type', 'write', '--io-size', '4K', '--io-threads',
         '1', '--io-total', '64K', '--io-pattern', 'seq', S), None, notifies,
        'idle', 10)
    # It has written the first 16 slots, not as the guest did.
    for slot in range(16):
        disk.write(slot * 4096, load.fill(load.acked[slot]))
    load.check(lambda off, n: b''.join(
        disk.read(off + i, min(M, n - i)) for i in range(0, n, M)))
    with rbd.Image(io, 'i', read_only=True) as image:
        load.check(image.read)
        expect(b'parent' * 1000, image.read(20 * M, 6000))
        expect(b'owner', image.read(22 * M, 5))
    load.disk.close(end_export=False)
    disk.close()
    notifies.close()
sound(POOL, 'i')
PY
