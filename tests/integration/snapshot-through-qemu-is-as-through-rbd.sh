#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# QEMU's own commands for snapshots: taken of a node that a guest writes to,
# gone back to and removed with qemu-img, of a default image and a clone, also
# after the size has changed. `rbd' sees what it would have made itself, and
# what cannot be done says why.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon qemu-system-x86_64
requires_module
use_cluster
new_pool pool

export pool
qemu_python "${1-}" <<'PY'
import os
import random
import subprocess
import sys

from peers import connect, sound
from qemu import Load, Qemu, environment, expect
from revisions import M, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
place = Place(connect(POOL)[0], POOL)
SIZE = 2 * M


def img(*argv):
    """(status, what it said)"""
    done = subprocess.run(['qemu-img', *argv], env=environment(), text=True,
                          capture_output=True, stdin=subprocess.DEVNULL,
                          timeout=120)
    return done.returncode, (done.stdout + done.stderr).strip()


def names(image):
    with image.open(read_only=True) as r:
        return [s['name'] for s in r.list_snaps()]


def go(qsd, image):
    spec = f'rbd:{POOL}/{image.name}'

    def requests(n):
        place.add(qsd, image.name)
        with qsd.nbd(image.name) as disk:
            for _ in range(n):
                image.random(disk, rng)
            image.compare(f'after {n} requests', disk)
        qsd.cmd('blockdev-del', node_name=image.name)

    def snapshot(option, name):
        status, said = img('snapshot', option, name, spec)
        expect(0, status, said)

    requests(8)
    for name in 'a', 'b':
        snapshot('-c', name)
        image.snaps[name] = bytes(image.head)
        requests(8)
    expect(['a', 'b'], names(image))
    image.maps('with two snapshots')
    expect((0, ''), img('resize', '-q', '-f', 'raw', spec, '3M'))
    image.resized(3 * M)
    requests(8)

    # Back, and to the size of that time.
    snapshot('-a', 'a')
    image.head = bytearray(image.snaps['a'])
    image.compare('back at a')
    requests(8)
    snapshot('-a', 'b')
    image.head = bytearray(image.snaps['b'])
    image.compare('back at b')
    snapshot('-d', 'a')
    del image.snaps['a']
    requests(4)
    image.compare('after a is removed')
    expect(['b'], names(image))
    for option, name, text in (
            ('-c', 'b', 'File exists'), ('-d', 'none', 'none'),
            ('-a', 'none', 'No such file or directory')):
        status, said = img('snapshot', option, name, spec)
        assert status == 1 and text in said, (option, name, status, said)
    with image.open() as other:
        other.protect_snap('b')
    status, said = img('snapshot', '-d', 'b', spec)
    assert status == 1 and "snapshot 'b': it is protected" in said, said
    with image.open() as other:
        other.unprotect_snap('b')
    snapshot('-d', 'b')
    del image.snaps['b']
    requests(2)
    expect([], names(image))
    sound(POOL, image.name)
    image.remove()
    print(f'{image.name}: equal')


parent = Revisions.create(place, 'parent', SIZE, 18)
parent.fill(rng)
parent.snap('base')
with Qemu.storage_daemon() as qsd:
    go(qsd, Revisions.create(place, 'plain', SIZE, 17))
    go(qsd, parent.clone('base', 'clone', 17))

# Of a running machine's disk.
image = Revisions.create(place, 'vm', SIZE, 17)
with Qemu.system('-drive', f'driver=rbd,pool={POOL},image=vm,id=d,'
                 'node-name=vm,if=none',
                 '-device', 'virtio-blk-pci,drive=d,share-rw=on') as vm:
    vm.cmd('cont')
    load = Load(vm.nbd('vm'), SIZE // 4096, depth=8, seed=SEED)
    load.beat()
    for name in 's1', 's2':
        vm.cmd('blockdev-snapshot-internal-sync', device='d', name=name)
        load.beat()
    expect(['s1', 's2'], names(image))
    vm.cmd('blockdev-snapshot-delete-internal-sync', device='d', name='s1')
    load.beat()
    load.stop()
    with image.open(read_only=True) as r:
        load.check(r.read)
    load.disk.close()
expect(['s2'], names(image))
sound(POOL, 'vm')
PY
