# SPDX-License-Identifier: GPL-2.0-or-later
#
# Are the object maps of an image right? Asked of the OSDs alone: this knows
# no librbd and none of our own code, only the format of the objects.
#
#   maps = ObjectMaps(cluster, ioctx of the image's pool and namespace, id)
#   complaints = maps.check()           [] if all is well
#   maps.used()                         what `rbd du' must say
#
# A revision is a snapshot (its id) or the head (None). For each revision with
# a map, oldest first:
#
#   - the header's flags of the revision are 0: nothing is marked invalid;
#   - the map decodes, its checksums are right, it has one entry for each object
#     of the revision's size and nothing behind the last one;
#   - NONEXISTENT exactly where the revision has no such object. Objects that
#     are there with a map that denies them are lost data, without exception;
#   - EXISTS_CLEAN only where the object is what it was in the snapshot before,
#     so nowhere in the oldest revision;
#   - no PENDING;
#   - the head has no object beyond its end.
#
# What may be there too much is for the caller to say (Allow): an entry for an
# object that is missing harms nobody, and there are operations after which
# librbd leaves one, too.
import struct

import rados

NONEXISTENT, EXISTS, PENDING, CLEAN = range(4)
STATES = ('NONEXISTENT', 'EXISTS', 'PENDING', 'EXISTS_CLEAN')
STRIPING, OBJECT_MAP, FAST_DIFF = 2, 8, 16
NOSNAP = 0xfffffffffffffffe
BLOCK = 4096


def _crc_table():
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82f63b78 if n & 1 else 0)
        yield n


_CRC = tuple(_crc_table())


def crc32c(data):
    """Castagnoli as Ceph's: starts with 0, not inverted at the end."""
    crc = 0
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xff]
    return crc


class Damaged(Exception):
    pass


def decode(raw):
    """States of all objects from the bytes of a map; raises Damaged."""
    def need(condition, text):
        if not condition:
            raise Damaged(text)

    need(len(raw) >= 22, f'only {len(raw)} bytes')
    length, version, compat, body, count = struct.unpack_from('<IBBIQ', raw)
    need((length, version, compat, body) == (14, 1, 1, 8),
         f'header {raw[:10].hex()}')
    n = (count + 3) // 4
    blocks = (n + BLOCK - 1) // BLOCK
    data, footer = raw[18:18 + n], raw[18 + n:]
    need(len(footer) == 12 + 4 * blocks,
         f'{len(raw)} bytes for {count} objects')
    size, header_crc, listed = struct.unpack_from('<III', footer)
    need((size, listed) == (8 + 4 * blocks, blocks),
         f'footer of {size} bytes, {listed} blocks')
    need(header_crc == crc32c(raw[4:18]), 'checksum of the header')
    for i in range(blocks):
        crc, = struct.unpack_from('<I', footer, 12 + 4 * i)
        need(crc == crc32c(data[i * BLOCK:(i + 1) * BLOCK]),
             f'checksum of block {i}')
    states = [data[i // 4] >> 6 - 2 * (i % 4) & 3 for i in range(4 * n)]
    need(not any(states[count:]), 'entries behind the last one')
    return states[:count]


class Layout:
    """Where the bytes of an image are."""

    def __init__(self, order, unit=0, count=1):
        self.object_size = 1 << order
        self.count = count or 1
        self.unit = unit if unit and self.count > 1 else self.object_size

    def pieces(self, off, n):
        """(object, offset in it, offset in the image, length) of an extent."""
        end = off + n
        while off < end:
            stripe, position = divmod(off // self.unit, self.count)
            row, at = divmod(stripe, self.object_size // self.unit)
            inside = off % self.unit
            length = min(self.unit - inside, end - off)
            yield (row * self.count + position, at * self.unit + inside, off,
                   length)
            off += length

    def extents(self, off, n):
        """object -> [first, last + 1]: the range in it. One, as stripes of an
        extent follow each other in an object."""
        found = {}
        for number, inside, _, length in self.pieces(off, n):
            extent = found.setdefault(number, [inside, inside])
            extent[1] = inside + length
        return found

    def objects(self, off, n):
        return set(self.extents(off, n))

    def objects_of(self, size):
        """How many objects an image of this size may have."""
        return max(self.objects(0, size), default=-1) + 1


class Allow:
    """What may be left; this allows nothing."""

    def absent(self, revision, number):
        """EXISTS or EXISTS_CLEAN of an object that is not there."""
        return False

    def pending(self, number):
        """PENDING."""
        return False

    def changed(self, revision, number):
        """EXISTS of an object that is what it was in the snapshot before."""
        return True

    def clean(self, revision, number):
        """EXISTS_CLEAN of an object that is not what it was."""
        return False


class ObjectMaps:
    def __init__(self, cluster, io, image_id):
        self.io, self.id = io, image_id
        self.features, _ = struct.unpack(
            '<QQ', self._ask('get_features', struct.pack('<QB', NOSNAP, 0)))
        raw = self._ask('get_snapcontext')
        _, n = struct.unpack_from('<QI', raw)
        snaps = sorted(struct.unpack_from(f'<{n}Q', raw, 12))
        self.revisions = [*snaps, None]         # oldest first
        self.sizes = {}
        for revision in self.revisions:
            order, size = struct.unpack('<BQ', self._ask(
                'get_size', self._key(revision)))
            self.sizes[revision] = size
        raw = self._ask('get_object_prefix')
        self.prefix = raw[4:].decode()
        pool, = struct.unpack('<q', self._ask('get_data_pool'))
        self.data = cluster.open_ioctx2(io.get_pool_id() if pool < 0 else pool)
        self.data.set_namespace(io.get_namespace())
        unit, count = 0, 1
        if self.features & STRIPING:
            unit, count = struct.unpack('<QQ',
                                        self._ask('get_stripe_unit_count'))
        self.layout = Layout(order, unit, count)

    @staticmethod
    def _key(revision):
        return struct.pack('<Q', NOSNAP if revision is None else revision)

    def _ask(self, method, data=b''):
        return self.io.execute(f'rbd_header.{self.id}', 'rbd', method, data)[1]

    def map_name(self, revision):
        return f'rbd_object_map.{self.id}' + \
            ('' if revision is None else f'.{revision:016x}')

    def load(self, revision):
        """States of a revision's objects; raises Damaged."""
        try:
            return decode(self.io.read(self.map_name(revision), 1 << 20))
        except rados.ObjectNotFound:
            raise Damaged('missing') from None

    def contents(self, revision):
        """number -> bytes of each object the revision has."""
        found, failed = {}, []

        def asked(number):
            def answer(completion, data):
                result = completion.get_return_value()
                if result >= 0:
                    # Of an empty object the bindings return any bytes.
                    found[number] = data[:result]
                elif result != -2:
                    failed.append(result)
            return answer

        self.data.set_read(rados.LIBRADOS_SNAP_HEAD if revision is None
                           else revision)
        waiting = [
            self.data.aio_read(f'{self.prefix}.{number:016x}',
                               self.layout.object_size, 0, asked(number))
            for number in range(self.layout.objects_of(self.sizes[revision]))]
        for completion in waiting:
            completion.wait_for_complete_and_cb()
        self.data.set_read(rados.LIBRADOS_SNAP_HEAD)
        assert not failed, f'reading objects: {failed}'
        return found

    def numbers(self):
        """Of all objects that are there for the head, beyond its end too."""
        found = set()
        for entry in self.data.list_objects():
            if not entry.key.startswith(self.prefix + '.'):
                continue
            try:
                self.data.stat(entry.key)   # snapshots' objects are listed
            except rados.ObjectNotFound:
                continue
            found.add(int(entry.key[len(self.prefix) + 1:], 16))
        return found

    def check(self, allow=Allow()):
        """What is wrong, one line each."""
        found = []
        count = self.layout.objects_of(self.sizes[None])
        found += [f'head: object {n} is beyond the end'
                  for n in sorted(self.numbers()) if n >= count]
        if not self.features & OBJECT_MAP:
            return found
        older = None
        for revision in self.revisions:
            what = 'head' if revision is None else f'snapshot {revision}'
            now = self.contents(revision)
            found += [f'{what}: {text}' for text in
                      self._check_one(revision, now, older, allow)]
            older = now
        return found

    def _check_one(self, revision, now, older, allow):
        flags, = struct.unpack('<Q', self._ask('get_flags',
                                               self._key(revision)))
        if flags:
            yield f'flags {flags:#x}'
        try:
            states = self.load(revision)
        except Damaged as e:
            yield f'object map: {e}'
            return
        count = self.layout.objects_of(self.sizes[revision])
        if len(states) != count:
            yield f'{len(states)} entries for {count} objects'
        states += [NONEXISTENT] * (count - len(states))
        for n, state in enumerate(states[:count]):
            there = n in now
            same = older is not None and now.get(n) == older.get(n)
            if state == PENDING:
                wrong = not allow.pending(n)
            elif not there:
                wrong = state != NONEXISTENT and not allow.absent(revision, n)
            elif state == NONEXISTENT:
                wrong = True
            elif state == CLEAN:
                wrong = not self.features & FAST_DIFF or \
                    not (same or allow.clean(revision, n))
            else:
                wrong = self.features & FAST_DIFF and same and \
                    not allow.changed(revision, n)
            if wrong:
                yield f'object {n} is {STATES[state]}, but ' + (
                    'is not there' if not there else 'it is there' +
                    ('' if older is None else ', and is what it was'
                     if same else ', and is not what it was'))

    def used(self):
        """
        revision -> bytes that `rbd du' counts: those of the image that are in
        objects which the map says exist and are not clean.
        """
        result = {}
        for revision in self.revisions:
            states = self.load(revision)
            oldest = revision == self.revisions[0]
            result[revision] = sum(
                length for n, _, _, length in
                self.layout.pieces(0, self.sizes[revision])
                if states[n] in (EXISTS, PENDING) or
                oldest and states[n] == CLEAN)
        return result
