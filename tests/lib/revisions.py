# SPDX-License-Identifier: GPL-2.0-or-later
#
# An image and what must be in it: the bytes of its head and of each of its
# snapshots, kept in memory beside it. Requests go to a disk of ours and to
# these bytes; librbd, with no cache, says what is in the image.
#
#   place = Place(connect(pool)[0], pool)
#   parent = Revisions.create(place, 'parent', 8 << 20, order=20)
#   parent.fill(rng)
#   parent.snap('base')
#   child = parent.clone('base', 'child')
#   child.write(disk, 0, b'abc')
#   child.compare('after a write')
#   child.maps('after a write')
#
# What discards leave of their unaligned ends is the client's choice, so those
# made here are aligned to GRAIN, in images whose units are, too.
import rados
import rbd

from objectmap import Allow, ObjectMaps
from peers import DEFAULT
from qemu import expect

K, M = 1 << 10, 1 << 20
GRAIN = 64 * K
OPERATIONS = 1 << 8


class Place:
    """A pool, or a namespace of it."""

    def __init__(self, cluster, pool, namespace=''):
        self.cluster, self.pool, self.namespace = cluster, pool, namespace
        self.io = cluster.open_ioctx(pool)
        self.io.set_namespace(namespace)

    def add(self, qsd, name, **options):
        """Make an image of it a node of ours."""
        if self.namespace:
            options['namespace'] = self.namespace
        qsd.add(**{'node_name': name, 'pool': self.pool, 'image': name,
                   'discard': 'unmap', **options})


class Revisions:
    def __init__(self, place, name, order, head):
        self.place, self.name = place, name
        self.io = place.io
        self.object_size = 1 << order
        self.head = bytearray(head)
        self.snaps = {}                     # oldest first
        with self.open(read_only=True) as image:
            self.id, pool = image.id(), image.data_pool_id()
        self.data = place.cluster.open_ioctx2(pool)     # its objects
        self.data.set_namespace(place.namespace)

    @classmethod
    def create(cls, place, name, size, order=18, features=DEFAULT, unit=0,
               count=0, data_pool=None):
        rbd.RBD().create(place.io, name, size, order, False, features, unit,
                         count, data_pool)
        return cls(place, name, order, bytes(size))

    def clone(self, snap, name, order=18, features=DEFAULT, unit=0, count=0,
              data_pool=None, place=None, version=2):
        """A clone of one of our snapshots."""
        place = place or self.place
        if version == 1:
            with self.open() as image:
                if not image.is_protected_snap(snap):
                    image.protect_snap(snap)
        place.cluster.conf_set('rbd_default_clone_format', str(version))
        rbd.RBD().clone(self.io, self.name, snap, place.io, name, features,
                        order, unit, count, data_pool)
        child = Revisions(place, name, order, self.snaps[snap])
        with child.open(read_only=True) as image:
            v2 = 2                          # op feature clone-child
            expect(version == 2, bool(image.features() & OPERATIONS and
                                      image.op_features() & v2), 'clone v2')
        return child

    def open(self, snap=None, read_only=False):
        return rbd.Image(self.io, self.name, snapshot=snap,
                         read_only=read_only)

    def remove(self):
        """As `rbd snap purge' and `rbd rm' would."""
        with self.open() as image:
            for snap in reversed(list(self.snaps)):
                if image.is_protected_snap(snap):
                    image.unprotect_snap(snap)
                image.remove_snap(snap)
        rbd.RBD().remove(self.io, self.name)
        # What only snapshots had goes in the OSDs' own time.
        left = [o.key for io in (self.io, self.data)
                for o in io.list_objects()
                if self.id in o.key and exists(io, o.key)]
        expect([], left, f'what is left of {self.name}')

    # --- changing both --------------------------------------------------------

    def snap(self, name, image=None):
        if image:
            image.create_snap(name)
        else:
            with self.open() as image:
                image.create_snap(name)
        self.snaps[name] = bytes(self.head)

    def fill(self, rng, share=.7):
        """Through librbd: whole, half and no objects, and some of zeroes."""
        with self.open() as image:
            for off in range(0, len(self.head), self.object_size):
                if rng.random() >= share:
                    continue
                n = min(self.object_size, len(self.head) - off)
                kind = rng.randrange(4)
                data = bytes(n) if kind == 0 else \
                    rng.randbytes(n // 2 if kind == 1 else n)
                image.write(data, off)
                self.head[off:off + len(data)] = data

    def write(self, disk, off, data):
        disk.write(off, data)
        self.head[off:off + len(data)] = data

    def discard(self, disk, off, n):
        end = off + n
        assert off % GRAIN == 0 and (end % GRAIN == 0 or end == len(self.head))
        disk.trim(off, n)
        self.head[off:end] = bytes(n)

    def zero(self, disk, off, n, unmap=True):
        disk.zeroes(off, n, unmap)
        self.head[off:off + n] = bytes(n)

    def random(self, disk, rng, n=None):
        """One request, near a border of objects more often than not."""
        size = len(self.head)
        kind = rng.choices(['write', 'discard', 'zero', 'thick'],
                           [6, 3, 2, 1])[0]
        off = rng.randrange(size)
        if rng.random() < .6:
            off = off // self.object_size * self.object_size + \
                rng.choice([0, 0, -512, 512, -4096])
        n = rng.choice([512, 4 * K, GRAIN, self.object_size,
                        2 * self.object_size, rng.randrange(1, M)])
        if kind == 'discard':
            off, n = off // GRAIN * GRAIN, (n + GRAIN - 1) // GRAIN * GRAIN
        off = min(max(off, 0), size - 1)
        n = min(n, size - off)
        if kind == 'write':
            self.write(disk, off, rng.randbytes(n))
        elif kind == 'discard':
            self.discard(disk, off, n)
        else:
            self.zero(disk, off, n, kind == 'zero')
        return kind, off, n

    def resized(self, size):
        """What another client has done to the head."""
        self.head = self.head[:size] + bytes(max(0, size - len(self.head)))

    # --- looking --------------------------------------------------------------

    def same(self, expected, got, what):
        if expected == got:
            return
        expect(len(expected), len(got), f'{self.name}, {what}: length')
        bad = [i for i in range(len(got)) if got[i] != expected[i]]
        raise AssertionError(
            f'{self.name}, {what}: {len(bad)} bytes differ, {bad[0]:#x} to '
            f'{bad[-1]:#x}, objects '
            f'{sorted({i // self.object_size for i in bad})}: expected '
            f'{expected[bad[0]:bad[0] + 8].hex()}, got '
            f'{bytes(got[bad[0]:bad[0] + 8]).hex()}')

    def compare(self, what, disk=None):
        """
        The head and all snapshots, as librbd reads them; with @disk, which is
        the head, also as we do.
        """
        for snap, data in [*self.snaps.items(), (None, self.head)]:
            with self.open(snap, read_only=True) as image:
                self.same(data, image.read(0, image.size()),
                          f'{what}, {snap or "head"}')
        if disk:
            self.same(self.head, read_all(disk, len(self.head)),
                      f'{what}, head as we read it')

    def compare_snaps(self, qsd, what):
        """All snapshots, as we read them."""
        for snap, data in self.snaps.items():
            self.place.add(qsd, 'snap', image=self.name, snapshot=snap,
                           read_only=True)
            with qsd.nbd('snap', writable=False) as disk:
                self.same(data, read_all(disk, len(data)),
                          f'{what}, {snap} as we read it')
            qsd.cmd('blockdev-del', node_name='snap')

    def maps(self, what, exact=True):
        """
        All object maps are as they must be; without @exact they may have
        entries of objects that do not exist.
        """
        allow = Allow()
        if not exact:
            allow.absent = lambda revision, number: True
        found = ObjectMaps(self.place.cluster, self.io, self.id).check(allow)
        expect([], found, f'{self.name}, {what}: object maps')


def read_all(disk, n):
    return b''.join(disk.read(off, min(M, n - off)) for off in range(0, n, M))


def exists(io, oid):
    try:
        io.stat(oid)
        return True
    except rados.ObjectNotFound:
        return False
