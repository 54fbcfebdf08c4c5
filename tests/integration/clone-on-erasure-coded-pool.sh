#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Images whose data is in an erasure coded pool with overwrites: random
# requests, snapshots, clones and their copyups (deep ones are two operations
# in a row) and a flatten leave what they should, as librbd reads it.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
# Overwrites are meant for BlueStore; memstore keeps no checksums, but does
# them, and is quicker.
own_cluster --osds 3 \
    --conf 'mon debug no require bluestore for ec overwrites = true'
new_pool pool
ceph osd erasure-code-profile set two-one k=2 m=1 crush-failure-domain=osd
ceph osd pool create coded 8 8 erasure two-one
ceph osd pool set coded allow_ec_overwrites true
ceph osd pool application enable coded rbd

export pool
qemu_python "${1-}" <<'PY'
import os
import random
import sys

from peers import connect, tool
from qemu import Qemu
from revisions import GRAIN, M, Place, Revisions

POOL = os.environ['pool']
SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
place = Place(connect(POOL)[0], POOL)
SIZE = 2 * M


def work(qsd, image, n):
    place.add(qsd, image.name)
    with qsd.nbd(image.name) as disk:
        for i in range(n):
            if i and i % 12 == 0:
                image.snap(f's{i}')
            image.random(disk, rng)
        image.compare(f'after {n} requests', disk)
    qsd.cmd('blockdev-del', node_name=image.name)
    image.maps(f'after {n} requests')


with Qemu.storage_daemon() as qsd:
    parent = Revisions.create(place, 'parent', SIZE, 18, data_pool='coded')
    work(qsd, parent, 30)
    parent.snap('base')
    for name, data_pool, layout in (('coded', 'coded', (18,)),
                                    ('plain', None, (17,)),
                                    ('stripes', 'coded', (18, 0x3d, GRAIN, 2))):
        child = parent.clone('base', f'child-{name}', *layout,
                             data_pool=data_pool)
        work(qsd, child, 40)
        tool('rbd', 'flatten', '--no-progress', f'{POOL}/{child.name}')
        child.compare('after flatten')
        child.maps('after flatten')
        child.remove()
        print(f'{name}: equal')
PY
