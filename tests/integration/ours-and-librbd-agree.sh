#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What we write is what librbd reads, and the reverse, whatever the layout of
# the image; and we leave the same objects in the cluster as librbd does.
#
# Each image has a twin. Random requests go to the image through our driver
# and to the twin through librbd; then librbd reads both. After that librbd
# changes both, and our driver reads the image. Half of the layouts have the
# features that `rbd create' gives, the others none. A seed can be given as
# argument; it is printed.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool
new_pool data
rbd namespace create "$pool/space"

export pool data
qemu_python "${1-}" <<'PY'
import os
import random
import sys

import rados
import rbd
from peers import DEFAULT, sound
from qemu import Qemu, expect

SEED = int(sys.argv[1]) if sys.argv[1] else random.randrange(1 << 32)
print(f'seed {SEED}')
K, M = 1 << 10, 1 << 20
POOL, DATA = os.environ['pool'], os.environ['data']
PLAIN = rbd.RBD_FEATURE_LAYERING
LAYOUTS = {
    # name: size, order, stripe unit, stripe count, data pool, namespace,
    #       features
    'order-12': (512 * K + 3 * K, 12, 0, 0, None, '', DEFAULT),
    'order-20': (5 * M + 512, 20, 0, 0, None, '', PLAIN),
    'order-22': (13 * M, 22, 0, 0, None, '', DEFAULT),
    'order-25': (66 * M + 4 * K, 25, 0, 0, None, '', PLAIN),
    'stripes-64K-4': (9 * M, 20, 64 * K, 4, None, '', PLAIN),
    'stripes-4K-3': (1 * M, 14, 4 * K, 3, None, '', DEFAULT),
    'stripes-1M-5': (14 * M, 21, 1 * M, 5, None, '', PLAIN),
    'data-pool': (9 * M, 22, 0, 0, DATA, '', DEFAULT),
    'namespace': (9 * M, 22, 0, 0, None, 'space', PLAIN),
    'all-of-it': (5 * M, 18, 32 * K, 3, DATA, 'space', DEFAULT),
}
cluster = rados.Rados(conffile='')
cluster.connect()


class Layout:
    def __init__(self, name, size, order, unit, count, data, ns, features):
        self.name, self.size, self.ns, self.data = name, size, ns, data
        self.object_size = 1 << order
        self.unit = unit or self.object_size
        self.rng = random.Random(f'{SEED} {name}')
        self.io = cluster.open_ioctx(POOL)
        self.io.set_namespace(ns)
        for image in (name, name + '.twin'):
            rbd.RBD().create(self.io, image, size, order, False,
                             features, unit, count, data)
        self.image = rbd.Image(self.io, name)
        self.twin = rbd.Image(self.io, name + '.twin')

    def extent(self):
        """Mostly near borders of objects and stripes, of all sizes."""
        rng = self.rng
        off = rng.randrange(self.size)
        if rng.random() < .6:
            border = rng.choice([self.unit, self.object_size, 64 * K])
            off = off // border * border + rng.choice([0, 0, 0, -1, 1, -512,
                                                       512, -4096, 4096])
            off = min(max(off, 0), self.size - 1)
        n = rng.choice([1, 511, 512, 4 * K, 64 * K, 128 * K, self.unit,
                        self.object_size, rng.randrange(1, 3 * M)])
        n += rng.choice([0, 0, 0, 1, -1])
        return off, max(1, min(n, self.size - off, 32 * M))  # 32 MiB: NBD

    def data_of(self, n):
        return self.rng.randbytes(n)

    def request(self):
        """(kind, offset, length, data)"""
        kind = self.rng.choices(['write', 'discard', 'unmap', 'zero'],
                                [6, 2, 2, 1])[0]
        off, n = self.extent()
        return kind, off, n, self.data_of(n) if kind == 'write' else b''

    def objects(self, image):
        """Suffix and size of each object with data."""
        prefix = image.block_name_prefix()
        io = cluster.open_ioctx(self.data or POOL)
        io.set_namespace(self.ns)
        return {o.key[len(prefix):]: io.stat(o.key)[0]
                for o in io.list_objects() if o.key.startswith(prefix)}

    def compare(self, what, a, off=0):
        """The bytes @a read at @off from the image, and its twin's."""
        b = self.twin.read(off, len(a))
        if a != b:
            bad = [off + i for i in range(len(a)) if a[i] != b[i]]
            raise AssertionError(f'{self.name}, {what}: {len(bad)} bytes '
                                 f'differ from {bad[0]} to {bad[-1]}')

    def compare_all(self, what):
        self.compare(what + ', as librbd reads it',
                     self.image.read(0, self.size))
        expect(self.objects(self.twin), self.objects(self.image),
               f'{self.name}, {what}: objects and their sizes')


def by_librbd(image, kind, off, n, data):
    if kind == 'write':
        image.write(data, off)
    elif kind == 'discard':
        image.discard(off, n)
    elif kind == 'unmap':
        image.write_zeroes(off, n)
    else:
        image.write_zeroes(off, n, rbd.RBD_WRITE_ZEROES_FLAG_THICK_PROVISION)


def by_us(disk, kind, off, n, data):
    if kind == 'write':
        disk.write(off, data)
    elif kind == 'discard':
        disk.trim(off, n)
    else:
        disk.zeroes(off, n, unmap=kind == 'unmap')


def overlapping(a, b):
    return a[1] < b[1] + b[2] and b[1] < a[1] + a[2]


with Qemu.storage_daemon() as qsd:
    for name, values in LAYOUTS.items():
        l = Layout(name, *values)
        qsd.add(node_name=name, pool=POOL, image=name, namespace=l.ns,
                discard='unmap')
        disk = qsd.nbd(name)
        expect((l.size + 511) // 512 * 512, disk.size, f'{name}: size')

        # All at once where they do not overlap: many requests in flight.
        for _ in range(4):
            flying = []
            for _ in range(12):
                r = l.request()
                if any(overlapping(r, f) for f, _ in flying):
                    continue
                kinds = {'write': disk.WRITE, 'discard': disk.TRIM}
                h = disk.send(kinds.get(r[0], disk.ZEROES), r[1], r[2], r[3],
                              disk.NO_HOLE if r[0] == 'zero' else 0)
                flying.append((r, h))
            for r, h in flying:
                disk.finish(h)
                by_librbd(l.twin, *r)
            l.compare_all('after our requests')

        for _ in range(16):
            r = l.request()
            by_us(disk, *r)
            by_librbd(l.twin, *r)
            off, n = l.extent()
            l.compare(f'after our {r[:3]}, as we read it', disk.read(off, n),
                      off)
        l.compare_all('after our requests one by one')

        for _ in range(3):
            for _ in range(6):
                r = l.request()
                by_librbd(l.image, *r)
                by_librbd(l.twin, *r)
            l.image.flush()
            for off in range(0, l.size, 3 * M + 17):
                n = min(3 * M + 17, l.size - off)
                l.compare("after librbd's requests, as we read it",
                          disk.read(off, n), off)
        disk.close()
        qsd.cmd('blockdev-del', node_name=name)
        l.image.close()
        l.twin.close()
        if values[-1] == DEFAULT:
            sound('/'.join(x for x in (POOL, l.ns) if x), name)
        print(f'{name}: equal')
PY
