#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Where the parent is and how it is laid out does not matter to its clone:
# another pool, another namespace, a data pool of its own, objects of another
# size, striping, the trash; nor how many ancestors there are. Random requests
# through our driver leave what they should, as librbd reads it in the head
# and all snapshots, before and after `rbd flatten'.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool
new_pool other
new_pool data
rbd namespace create "$pool/space"
rbd namespace create "$other/room"

export pool other data
qemu_python "${1-}" <<'PY'
import os
import random
import sys

import rbd
from peers import connect, tool
from qemu import Qemu
from revisions import GRAIN, M, Place, Revisions

SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
DATA = os.environ['data']
cluster, _ = connect(os.environ['pool'])
here = Place(cluster, os.environ['pool'])
space = Place(cluster, os.environ['pool'], 'space')
other = Place(cluster, os.environ['other'])
room = Place(cluster, os.environ['other'], 'room')
SIZE = 3 * M + 3 * GRAIN


def layout(order=18, unit=0, count=0, data_pool=None):
    return {'order': order, 'unit': unit, 'count': count,
            'data_pool': data_pool}


STRIPES = layout(19, GRAIN, 3)
# Generations from the oldest ancestor to the clone: where, and how.
FAMILIES = {
    'pool': [(other, layout()), (here, layout())],
    'namespace': [(here, layout()), (space, layout())],
    'out-of-namespace': [(room, layout()), (here, layout(17))],
    'both-namespaces': [(room, layout(20)), (space, layout())],
    'data-pools': [(here, layout(data_pool=DATA)),
                   (other, layout(data_pool=DATA))],
    'own-data-pool': [(room, layout(data_pool=DATA)), (space, layout())],
    'larger-objects': [(here, layout(20)), (here, layout(16))],
    'smaller-objects': [(here, layout(16)), (here, layout(21))],
    'striped-parent': [(here, STRIPES), (here, layout(18))],
    'striped-child': [(here, layout(18)), (here, STRIPES)],
    'stripes': [(other, layout(20, GRAIN, 4)), (here, layout(18, GRAIN, 5))],
    'three': [(other, layout(17, data_pool=DATA)), (room, layout(20)),
              (here, STRIPES), (space, layout(18))],
    'ten': [((here, other)[i % 2], layout(16 + i % 4)) for i in range(11)],
}


def some_requests(image, qsd, node, rng, n, snaps=0):
    disk = qsd.nbd(node)
    what = []
    for i in range(n):
        if snaps and i % (n // (snaps + 1)) == n // (snaps + 1) - 1:
            image.snap(f'snap-{len(image.snaps)}')
        what.append(image.random(disk, rng))
        if i % 8 == 0:
            off = rng.randrange(len(image.head))
            size = rng.randrange(1, M)
            image.same(image.head[off:off + size], disk.read(
                off, min(size, len(image.head) - off)),
                f'as we read it after {what[-8:]}')
    image.compare(f'after {n} requests', disk)
    disk.close()
    qsd.cmd('blockdev-del', node_name=node)


def go(qsd, name, generations):
    rng = random.Random(f'{SEED} {name}')
    place, how = generations[0]
    image = Revisions.create(place, f'{name}-0', SIZE, **how)
    image.fill(rng)
    family = [image]
    for n, (place, how) in enumerate(generations[1:], 1):
        image.snap('base')
        # Later writes to a parent are no business of its clones.
        with image.open() as parent:
            for _ in range(4):
                parent.write(b'later' * 1000, rng.randrange(SIZE - 5000))
        image = image.clone('base', f'{name}-{n}', place=place, **how)
        family.append(image)
        place.add(qsd, f'{name}-{n}')
        last = n == len(generations) - 1
        if last:
            # All of its ancestors: the clone holds their snapshots.
            for ancestor in family[:-1]:
                rbd.RBD().trash_move(ancestor.io, ancestor.name, 0)
        some_requests(image, qsd, image.name, rng, 60 if last else 12,
                      snaps=2 if last else 0)
        image.maps('after the requests')

    spec = '/'.join(x for x in (place.pool, place.namespace, image.name) if x)
    # Opened anew, with the ancestors in the trash.
    place.add(qsd, image.name)
    some_requests(image, qsd, image.name, rng, 12)
    tool('rbd', 'flatten', '--no-progress', spec)
    image.compare('after flatten')
    image.maps('after flatten')
    image.compare_snaps(qsd, 'after flatten')
    with image.open(read_only=True) as flat:
        try:
            raise AssertionError(f'parent left: {flat.parent_info()}')
        except rbd.ImageNotFound:
            pass
    place.add(qsd, image.name)
    some_requests(image, qsd, image.name, rng, 6)
    image.maps('after requests without a parent')
    image.remove()
    print(f'{name}: {len(generations)} generations')


with Qemu.storage_daemon() as qsd:
    for name, generations in FAMILIES.items():
        go(qsd, name, generations)
PY
