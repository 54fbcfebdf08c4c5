#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What `rbd' finds and does while a guest of ours writes to a default image:
# who watches it and owns its lock, what it uses, what has changed since a
# snapshot, copies, metadata; renamed or in the trash it goes on, and it cannot
# be removed. The guest never sees an error, and in the end all of its data is
# there. A rollback is possible once the guest has gone.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python "${1-}" <<'PY'
import json
import os
import random
import re
import struct
import sys

from peers import (connect, fails, header_of, lock_of, owner_of, sound, tool,
                   watchers_of)
from qemu import TMP, Load, Nbd, Qemu, expect
from revisions import K, M, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
place = Place(connect(POOL)[0], POOL)
ORDER, S, SIZE = 17, 128 * K, 8 * M
LOAD = 2 * M            # the guest's writes go to the first part, ...
S0 = LOAD // S          # ... and the first objects
I = f'{POOL}/i'
QUIET = '--no-progress'


def from_json(*argv):
    return json.loads(tool(*argv, '--format', 'json'))


def exported(spec):
    tool('rbd', 'export', QUIET, spec, f'{TMP}/out')
    with open(f'{TMP}/out', 'rb') as f:
        data = f.read()
    os.remove(f'{TMP}/out')
    return data


def changed(*options):
    """Bytes of the quiet part that `rbd diff' lists: {(offset, length)}."""
    return {(max(x['offset'], LOAD), x['offset'] + x['length'])
            for x in from_json('rbd', 'diff', *options, I)
            if x['offset'] + x['length'] > LOAD}


def guests_part(data, load, what):
    """Each slot holds a number that the guest has sent."""
    for at in range(0, LOAD, 4096):
        block = data[at:at + 4096]
        number, = struct.unpack_from('<Q', block)
        assert block == load.fill(number), f'{what}: torn slot at {at}'
        assert number <= load.number, f'{what}: {number} was never written'


image = Revisions.create(place, 'i', SIZE, ORDER)
with Qemu.storage_daemon() as qsd:
    place.add(qsd, 'i')
    disk = qsd.nbd('i')
    disk.zeroes(0, LOAD, unmap=False)
    load = Load(Nbd(qsd, 'i'), LOAD // 4096, depth=8, seed=SEED)

    def quiet_compare(what, data):
        image.same(image.head[LOAD:], data[LOAD:], what)
        guests_part(data, load, what)

    # Some objects of the quiet part; each has one more write after snapshots.
    for n in range(S0, SIZE // S, 3):
        image.write(disk, n * S, rng.randbytes(S))
    load.beat()

    # --- looking ---
    owner = owner_of(POOL, 'i')
    client, _, address = lock_of(POOL, 'i')
    expect(owner, client, 'owner in `rbd lock ls\'')
    expect([(client, address)],
           [(c, a) for c, _, a in watchers_of(POOL, header_of(POOL, 'i'))])
    status = from_json('rbd', 'status', I)
    expect([address], [w['address'] for w in status['watchers']], 'status')
    expect([int(client.partition('.')[2])],
           [w['client'] for w in status['watchers']])
    objects = S0 + len(range(S0, SIZE // S, 3))
    expect([objects * S], [x['used_size'] for x in
                           from_json('rbd', 'du', I)['images']], 'rbd du')
    expect({(n * S, (n + 1) * S) for n in range(S0, SIZE // S, 3)}
           | {(LOAD, (S0 + 1) * S)}, changed('--whole-object'))
    load.beat()

    # --- snapshots ---
    def snap(name):
        tool('rbd', 'snap', 'create', QUIET, f'{I}@{name}')
        image.snaps[name] = bytes(image.head)   # but for the guest's part

    snap('a')
    write, small, gone = (LOAD + n * S for n in (3, 6, 9))
    image.write(disk, write + 4096, rng.randbytes(8192))
    image.write(disk, small, rng.randbytes(512))
    image.discard(disk, gone, S)
    load.beat()
    snap('b')
    since = ['--from-snap', 'a']
    expect({(at, at + S) for at in (write, small, gone)},
           changed(*since, '--whole-object'), 'diff of whole objects')
    expect({(write + 4096, write + 12288), (small, small + 512),
            (gone, gone + S)}, changed(*since), 'diff')
    for name in 'a', 'b':
        data = exported(f'{I}@{name}')
        guests_part(data, load, name)
        image.same(image.snaps[name][LOAD:], data[LOAD:], f'export of {name}')
        image.snaps[name] = data
    quiet_compare('export of the head', exported(I))
    load.beat()
    for command in ('cp',), ('deep', 'cp'):
        tool('rbd', *command, QUIET, f'{I}@b', f'{POOL}/copy')
        image.same(image.snaps['b'], exported(f'{POOL}/copy'), command)
        tool('rbd', 'snap', 'purge', QUIET, f'{POOL}/copy')
        tool('rbd', 'rm', QUIET, f'{POOL}/copy')
    tool('rbd', 'export-diff', QUIET, f'{I}@a', f'{TMP}/a')
    tool('rbd', 'export-diff', QUIET, *since, f'{I}@b', f'{TMP}/b')
    tool('rbd', 'create', f'{POOL}/copy', '--size', f'{SIZE}B')
    for name in 'a', 'b':
        tool('rbd', 'import-diff', QUIET, f'{TMP}/{name}', f'{POOL}/copy')
        image.same(image.snaps[name], exported(f'{POOL}/copy'), 'import-diff')
    tool('rbd', 'snap', 'purge', QUIET, f'{POOL}/copy')
    load.beat()
    tool('rbd', 'snap', 'protect', f'{I}@a')
    fails('is protected from removal', 'rbd', 'snap', 'rm', QUIET, f'{I}@a')
    tool('rbd', 'snap', 'unprotect', f'{I}@a')
    tool('rbd', 'snap', 'rename', f'{I}@a', f'{I}@c')
    image.snaps['c'] = image.snaps.pop('a')
    expect(['b', 'c'], sorted(x['name'] for x in
                              from_json('rbd', 'snap', 'ls', I)))

    # --- metadata, name, trash ---
    tool('rbd', 'image-meta', 'set', I, 'owner', 'nobody')
    expect('nobody\n', tool('rbd', 'image-meta', 'get', I, 'owner'))
    tool('rbd', 'image-meta', 'remove', I, 'owner')
    load.beat()
    tool('rbd', 'rename', I, f'{POOL}/renamed')
    load.beat()
    expect(['copy', 'renamed'], sorted(from_json('rbd', 'ls', POOL)))
    expect(SIZE, from_json('rbd', 'info', f'{POOL}/renamed')['size'])
    qsd.fails(f"image '{POOL}/i' does not exist", 'blockdev-add',
              driver='rbd', node_name='x', pool=POOL, image='i')
    qsd.add(node_name='x', pool=POOL, image='renamed', read_only=True)
    with qsd.nbd('x', writable=False) as other:
        assert other.read(LOAD, M) == image.head[LOAD:LOAD + M]
    qsd.cmd('blockdev-del', node_name='x')
    tool('rbd', 'snap', 'create', QUIET, f'{POOL}/renamed@d')
    tool('rbd', 'snap', 'rm', QUIET, f'{POOL}/renamed@d')
    load.beat()
    tool('rbd', 'rename', f'{POOL}/renamed', I)
    tool('rbd', 'snap', 'rm', QUIET, f'{I}@c')
    tool('rbd', 'trash', 'mv', I)
    load.beat()
    fails('No such file', 'rbd', 'info', I)
    image.write(disk, SIZE - S, b'in the trash' * 100)
    fails('image has snapshots', 'rbd', 'trash', 'rm', QUIET,
          f'{POOL}/{image.id}')
    load.beat()
    tool('rbd', 'trash', 'restore', '--pool', POOL, image.id)
    tool('rbd', 'snap', 'rm', QUIET, f'{I}@b')
    del image.snaps['c']
    del image.snaps['b']
    fails('image still has watchers', 'rbd', 'rm', QUIET, I)
    tool('rbd', 'trash', 'mv', I)
    fails('image still has watchers', 'rbd', 'trash', 'rm', QUIET,
          f'{POOL}/{image.id}')
    tool('rbd', 'trash', 'restore', '--pool', POOL, image.id)
    load.beat()
    snap('last')
    last_quiet = bytes(image.head)
    image.write(disk, LOAD, rng.randbytes(M))
    fails('Read-only file system', 'rbd', 'snap', 'rollback', QUIET,
          f'{I}@last')
    load.stop()
    expect(owner, owner_of(POOL, 'i'), 'owner in the end')
    load.check(lambda off, n: b''.join(
        disk.read(off + at, min(M, n - at)) for at in range(0, n, M)))
    for slot, number in enumerate(load.acked):
        image.head[slot * 4096:(slot + 1) * 4096] = load.fill(number)
    image.snaps['last'] = exported(f'{I}@last')
    image.same(last_quiet[LOAD:], image.snaps['last'][LOAD:], 'last')
    image.compare('in the end', disk)
    image.maps('in the end')
    sound(POOL, 'i')
    load.disk.close(end_export=False)
    disk.close()
    qsd.cmd('blockdev-del', node_name='i')
    assert re.search(r'failed|error|invalid', qsd.log()) is None, qsd.log()

    tool('rbd', 'snap', 'rollback', QUIET, f'{I}@last')
    image.head = bytearray(image.snaps['last'])
    place.add(qsd, 'i')
    with qsd.nbd('i') as disk:
        image.compare('rolled back', disk)
        for _ in range(10):
            image.random(disk, rng)
        image.compare('rolled back and used', disk)
    qsd.cmd('blockdev-del', node_name='i')
    image.maps('rolled back and used')
    image.remove()
    print(f'{load.done} writes, longest stall {load.longest_s:.2f} s')
PY
