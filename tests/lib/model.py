# SPDX-License-Identifier: GPL-2.0-or-later
#
# What must be in an image, kept in memory beside it: the bytes of its head and
# of each snapshot, and which objects have been changed since the snapshot
# before, so that its object maps can be held against it. Nothing here talks to
# a cluster except the last part, which compares.
#
# What is not known at once is left open and then looked up (settle): of a write
# that was on its way when a snapshot was taken or its client was killed, each
# sector is the old or the new one; a discard may leave the ends of its range.
import objectmap
import rbd
from objectmap import ObjectMaps
from qemu import expect

SECTOR = 512
# What a discard covers of this, aligned in its object, must be zero after it.
GRAIN = 64 << 10


class Revision:
    def __init__(self, data):
        self.data = data
        self.changed = set()    # objects, since the snapshot before
        self.rolled = False     # the map came with a rollback
        self.protected = False


class Model(objectmap.Allow):
    def __init__(self, place, name, order, unit, count, features, data,
                 copies=False):
        self.place, self.name, self.features = place, name, features
        self.layout = objectmap.Layout(order, unit, count)
        self.head = Revision(bytearray(data))
        self.snaps = {}             # name -> Revision, oldest first
        self.copies = copies        # data may come from a parent
        self.killed = set()         # objects with requests that died
        self.loose = False          # a removed snapshot lives on for a clone
        self.ids = {}

    def __len__(self):
        return len(self.head.data)

    # --- changes --------------------------------------------------------------

    def touch(self, off, n):
        numbers = self.layout.objects(off, n)
        self.head.changed |= numbers
        if self.copies and self.snaps:
            # Their data came from the parent, now it is their own.
            next(iter(self.snaps.values())).changed |= numbers

    def write(self, off, data):
        self.touch(off, len(data))
        self.head.data[off:off + len(data)] = data

    def resize(self, size):
        old = len(self)
        if size < old:
            self.touch(size, old - size)
            del self.head.data[size:]
        else:
            self.head.data += bytes(size - old)

    def snap(self, name):
        self.snaps[name] = Revision(bytes(self.head.data))
        self.snaps[name].changed = self.head.changed
        self.snaps[name].rolled = self.head.rolled
        self.head.changed, self.head.rolled = set(), False

    def remove_snap(self, name):
        later = [*self.snaps.values(), self.head]
        newer = later[list(self.snaps).index(name) + 1]
        it = self.snaps.pop(name)
        newer.changed |= it.changed
        newer.rolled |= it.rolled

    def rollback(self, name, by_librbd):
        self.head = Revision(bytearray(self.snaps[name].data))
        # librbd copies the map; who writes all anew may say so.
        self.head.changed = set(self.snaps[name].changed) if by_librbd else \
            self.layout.objects(0, len(self))
        self.head.rolled = True

    def flatten(self):
        self.touch(0, len(self))
        self.copies = False

    def maps_rebuilt(self):
        """From what is there: nobody knows what has changed when."""
        self.killed = set()
        for it in [*self.snaps.values(), self.head]:
            it.changed = self.layout.objects(0, len(it.data))
            it.rolled = False

    # --- what had two outcomes ------------------------------------------------

    def settle_discard(self, off, got, what):
        """@got was read where @len(got) bytes have been discarded."""
        n = len(got)
        self.touch(off, n)
        old = self.head.data[off:off + n]
        for i in range(0, n, SECTOR) if got != bytes(n) else ():
            for a, b in zip(got[i:i + SECTOR], old[i:i + SECTOR]):
                assert a in (0, b), f'{what}: {off + i:#x} is neither'
        must = self.layout.extents(off, n)
        grain = min(GRAIN, self.layout.object_size)
        for number, inside, at, length in self.layout.pieces(off, n):
            first, last = must[number]
            first = (first + grain - 1) // grain * grain
            last = last // grain * grain
            a, b = max(first, inside), min(last, inside + length)
            a, b = at - off + a - inside, at - off + b - inside
            assert a >= b or got[a:b] == bytes(b - a), \
                f'{what}: {off + a:#x} to {off + b:#x} not zero'
        self.head.data[off:off + n] = got

    def settle(self, revision, off, new, got, what):
        """Each sector is what it was or what the request makes of it."""
        data = bytearray(revision.data)
        for at in range(off // SECTOR * SECTOR, off + len(new), SECTOR):
            a = max(at, off) - off
            b = min(at + SECTOR, off + len(new)) - off
            outcomes = (data[off + a:off + b], new[a:b])
            assert got[a:b] in outcomes, \
                f'{what}: sector {at:#x} is neither old nor new'
            data[off + a:off + b] = got[a:b]
        revision.data = data if revision is self.head else bytes(data)

    # --- what the object maps may hold too much (objectmap.Allow) --------------

    def absent(self, revision, number):
        return number in self.killed

    def pending(self, number):
        return number in self.killed

    def clean(self, revision, number):
        # A rollback gives the head the map of the snapshot: it says what was
        # clean to an older one. librbd leaves that so.
        it = self.revision(revision)
        return it is None or it.rolled

    def revision(self, snap_id):
        return self.head if snap_id is None else \
            self.snaps.get(self.ids.get(snap_id))

    def changed(self, revision, number):
        it = self.revision(revision)
        return self.loose or it is None or it.rolled or number in it.changed

    def rolled(self):
        """Is there a map that came with a rollback?"""
        return any(it.rolled for it in [self.head, *self.snaps.values()])

    # --- comparing ------------------------------------------------------------

    def open(self, snap=None, read_only=False):
        return rbd.Image(self.place.io, self.name, snapshot=snap,
                         read_only=read_only)

    def same(self, expected, got, what):
        if expected == got:
            return
        expect(len(expected), len(got), f'{self.name}, {what}: length')
        bad = [i for i in range(len(got)) if got[i] != expected[i]]
        objects = sorted(self.layout.objects(bad[0], bad[-1] - bad[0] + 1))
        raise AssertionError(
            f'{self.name}, {what}: {len(bad)} bytes differ, {bad[0]:#x} to '
            f'{bad[-1]:#x} (objects {objects[0]} to {objects[-1]}): expected '
            f'{bytes(expected[bad[0]:bad[0] + 8]).hex()}, got '
            f'{bytes(got[bad[0]:bad[0] + 8]).hex()}')

    def revisions(self):
        """[(snapshot or None, bytes)]"""
        return [*((name, it.data) for name, it in self.snaps.items()),
                (None, self.head.data)]

    def compare(self):
        """All as librbd reads it."""
        for snap, data in self.revisions():
            with self.open(snap, read_only=True) as image:
                self.same(data, image.read(0, image.size()) if image.size()
                          else b'', f'{snap or "head"} as librbd reads it')
                user = [s for s in image.list_snaps() if s['namespace'] ==
                        rbd.RBD_SNAP_NAMESPACE_TYPE_USER]
        expect(list(self.snaps), [s['name'] for s in user],
               f'{self.name}: snapshots')
        self.ids = {s['id']: s['name'] for s in user}

    def maps(self):
        maps = ObjectMaps(self.place.cluster, self.place.io, self.id())
        found = maps.check(self)
        assert not found, f'{self.name}:\n  ' + '\n  '.join(found)
        return maps

    def id(self):
        with self.open(read_only=True) as image:
            return image.id()
