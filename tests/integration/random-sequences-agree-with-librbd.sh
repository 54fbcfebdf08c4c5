#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Random sequences of everything that can be done to an image, by our driver
# and by librbd in turns, while both have it open and our lock is asked for,
# given and asked back all the time: write, discard, write zeroes, create,
# remove, protect and roll back snapshots, resize, clone, flatten, close and
# open again; some of it with writes of ours on their way; and now and then our
# client is killed. The bytes that must be there are kept in memory.
#
# After each sequence the head and every snapshot of the image and of those it
# was cloned from are what they must be, as librbd reads them and as we do;
# the object maps are exact (tests/lib/objectmap.py, tests/lib/model.py); `rbd
# du' says what they say; and after `rbd rm' nothing is left.
#
#   random-sequences-agree-with-librbd.sh [-n N] [-j N] [--stock] [SEED]...
#
#   SEED      run these only; a sequence depends on its seed alone
#   -n N      this many with seeds that follow a random one (60)
#   -j N      this many at a time (3)
#   --stock   QEMU's own driver in place of ours: is a finding one of ours?
#   --break WHAT   plant an error in each: 'data' or 'map'; all must fail
#
# A sequence that fails prints its steps.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
own_cluster --osds 1 --watch-timeout 5 --conf 'objecter tick interval = 1'
new_pool pool
new_pool data
rbd namespace create "$pool/space"

export pool data
qemu_python "$@" <<'PY'
import argparse
import faulthandler
import json
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import threading
import time
import traceback

import peers
import rados
import rbd
from model import SECTOR, Model
from objectmap import CLEAN, EXISTS, STATES, ObjectMaps
from qemu import Nbd, Qemu, environment, expect

args = argparse.ArgumentParser()
args.add_argument('-n', type=int, default=60)
args.add_argument('-j', type=int, default=3)
args.add_argument('--stock', action='store_true')
args.add_argument('--break', dest='plant', choices=['data', 'map'])
args.add_argument('seeds', nargs='*', type=int)
args = args.parse_args()
K, M = 1 << 10, 1 << 20
POOL, DATA = os.environ['pool'], os.environ['data']
HANG_S = 240            # ends a sequence that hangs
FAILURES = 3 if not args.plant else 1 << 30     # enough to look at
LAYERING, LOCK, MAP, FAST, DEEP = 1, 4, 8, 16, 32
DEFAULT = LAYERING | LOCK | MAP | FAST | DEEP


class Place:
    """A pool, or a namespace of it."""

    def __init__(self, cluster, namespace):
        self.cluster, self.namespace = cluster, namespace
        self.io = cluster.open_ioctx(POOL)
        self.io.set_namespace(namespace)

    def node(self, name, **more):
        return dict(driver='rbd', pool=POOL, image=name, **more,
                    **({'namespace': self.namespace} if self.namespace else {}))


class Librbd:
    """An image that librbd has open."""

    def __init__(self, model, name):
        self.name, self.image = name, model.open()

    def write(self, off, data):
        self.image.write(data, off)

    def discard(self, off, n):
        self.image.discard(off, n)

    def zero(self, off, n, thick):
        self.image.write_zeroes(
            off, n, rbd.RBD_WRITE_ZEROES_FLAG_THICK_PROVISION if thick else 0)

    def read(self, off, n):
        return self.image.read(off, n)

    def resize(self, size):
        self.image.resize(size)

    def close(self):
        self.image.close()


class Ours:
    """A node of our driver, exported."""
    name = 'we'

    def __init__(self, qsd, model):
        self.qsd, self.model, self.node = qsd, model, model.name
        qsd.cmd('blockdev-add', node_name=self.node, discard='unmap',
                **model.place.node(model.name))
        self.disk = qsd.nbd(self.node)

    def sync(self):
        """To the size that others have made it."""
        if self.disk.size != len(self.model):
            self.resize(len(self.model))

    def write(self, off, data):
        self.disk.write(off, data)

    def discard(self, off, n):
        self.disk.trim(off, n)

    def zero(self, off, n, thick):
        self.disk.zeroes(off, n, unmap=not thick)

    def read(self, off, n):
        return self.disk.read(off, n)

    def resize(self, size):
        # No export allows its node to be resized.
        self.disk.close()
        self.qsd.cmd('block_resize', node_name=self.node, size=size)
        self.disk = self.qsd.nbd(self.node)

    def snap(self, name, sequence):
        sequence.say('we create snapshot', name)
        self.qsd.cmd('blockdev-snapshot-internal-sync', device=self.node,
                     name=name)

    def remove_snap(self, name, sequence):
        sequence.say('we remove snapshot', name)
        self.qsd.cmd('blockdev-snapshot-delete-internal-sync',
                     device=self.node, name=name)

    def close(self):
        self.disk.close()
        self.qsd.cmd('blockdev-del', node_name=self.node)


class Sequence:
    def __init__(self, worker, seed):
        self.worker, self.seed = worker, seed
        self.rng = rng = random.Random(seed)
        self.steps = []
        self.ours = self.held = None
        self.parents = []               # of clones, that we keep open
        self.names = 0
        self.kills = seed % 10 == 0     # they cost seconds
        features = rng.choice([DEFAULT] * 5 + [
            LAYERING, LAYERING | LOCK, LAYERING | LOCK | DEEP,
            LAYERING | LOCK | MAP, DEFAULT & ~DEEP])
        if self.kills and rng.random() < .8:
            features = DEFAULT
        self.place = worker.places[rng.choice(['', '', 'space'])]
        layout = self.random_layout()
        size = rng.randrange(256 * K, 1 * M if layout[0] == 12 else 2 * M,
                             SECTOR)
        name = f's{seed}'
        self.say('create', name, self.place.namespace, hex(features), size,
                 *layout)
        rbd.RBD().create(self.place.io, name, size, layout[0], False, features,
                         *layout[1:])
        self.model = Model(self.place, name, *layout[:3], features,
                           bytes(size))
        self.all = [self.model]

    def say(self, *what):
        self.steps.append(' '.join(str(x) for x in what))

    def random_layout(self):
        """order, stripe unit, stripe count, data pool"""
        rng = self.rng
        order = rng.randrange(12, 17)
        unit = count = 0
        if rng.random() < .3:
            unit = 1 << rng.randrange(max(9, order - 4), order + 1)
            count = rng.randrange(2, 6)
        return order, unit, count, rng.choice([None, None, DATA])

    def fresh(self, kind):
        self.names += 1
        return f'{kind}{self.names}'

    # --- who acts -------------------------------------------------------------

    def us(self):
        if not self.ours:
            self.say('we open', self.model.name)
            self.ours = Ours(self.worker.daemon(), self.model)
        self.ours.sync()
        return self.ours

    def librbd(self):
        """As held open, or opened for this alone: call done() after."""
        if self.rng.random() < .5:
            return Librbd(self.model, 'librbd, newly opened,')
        if not self.held:
            self.say('librbd opens', self.model.name)
            self.held = Librbd(self.model, 'librbd')
        # Its requests look at the size before they look for news.
        expect(len(self.model), self.held.image.size(), 'size in librbd')
        return self.held

    def any(self):
        return self.us() if self.rng.random() < .6 else self.librbd()

    def done(self, party):
        if party not in (self.ours, self.held):
            party.close()

    def close_ours(self):
        if self.ours:
            self.say('we close')
            self.ours.close()
            self.ours = None

    def close_held(self):
        if self.held:
            self.say('librbd closes')
            self.held.close()
            self.held = None

    def qemu_img(self, *argv):
        """Ours, on the image, which our daemon has closed before."""
        self.close_ours()
        node = 'json:' + json.dumps(self.place.node(self.model.name))
        command = ['qemu-img', *argv, node] if argv[0] == 'snapshot' else \
            ['qemu-img', *argv[:-1], node, argv[-1]]
        self.say(*command)
        done = subprocess.run(command, env=environment(args.stock), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode == 0, f'{done.returncode}: {done.stderr}'

    # --- requests -------------------------------------------------------------

    def extent(self, size=None):
        """Near borders of objects and stripes more often than not."""
        rng, model = self.rng, self.model
        size = size or len(model)
        off = rng.randrange(size)
        if rng.random() < .7:
            border = rng.choice([model.layout.unit, model.layout.object_size,
                                 model.layout.object_size])
            off = off // border * border + rng.choice(
                [0, 0, 0, 0, -SECTOR, SECTOR, -1, 1])
        n = rng.choice([SECTOR, 4 * K, model.layout.unit,
                        model.layout.object_size,
                        2 * model.layout.object_size,
                        rng.randrange(1, 200 * K)]) + \
            rng.choice([0, 0, 0, 0, -1, 1])
        off = min(max(off, 0), size - 1)
        return off, max(1, min(n, size - off))

    def bytes(self, n):
        return self.rng.randbytes(n) if self.rng.random() < .9 else bytes(n)

    def step_write(self):
        party = self.any()
        off, n = self.extent()
        data = self.bytes(n)
        self.say(party.name, 'write', off, n)
        party.write(off, data)
        self.model.write(off, data)
        self.done(party)

    def step_discard(self):
        party = self.any()
        off, n = self.extent()
        self.say(party.name, 'discard', off, n)
        party.discard(off, n)
        self.model.settle_discard(off, party.read(off, n), 'discard')
        self.done(party)

    def step_zero(self):
        party = self.any()
        off, n = self.extent()
        thick = self.rng.random() < .3
        if thick and party is not self.ours:
            # Unaligned, librbd waits for itself if it has to take the lock
            # and then finds a new snapshot.
            end = max(off + n, SECTOR) // SECTOR * SECTOR
            off = min(off // SECTOR * SECTOR, end - SECTOR)
            n = end - off
        self.say(party.name, 'write thick' if thick else 'write', 'zeroes',
                 off, n)
        party.zero(off, n, thick)
        self.model.write(off, bytes(n))
        self.done(party)

    def step_read(self):
        party = self.any()
        off, n = self.extent()
        self.say(party.name, 'read', off, n)
        self.model.same(self.model.head.data[off:off + n], party.read(off, n),
                        f'what {party.name} read at {off:#x}')
        self.done(party)

    # --- maintenance ----------------------------------------------------------

    def step_snap(self):
        if len(self.model.snaps) >= 4:
            return self.step_remove_snap()
        name = self.fresh('snap')
        which = self.rng.random()
        if which < .2:
            self.qemu_img('snapshot', '-c', name)
        elif which < .4:
            self.us().snap(name, self)
        else:
            party = self.librbd()
            self.say(party.name, 'snap create', name)
            party.image.create_snap(name)
            self.done(party)
        self.model.snap(name)

    def unprotect(self, image, name):
        if self.model.snaps[name].protected:
            self.say('unprotect', name)
            image.unprotect_snap(name)
            self.model.snaps[name].protected = False

    def step_remove_snap(self):
        if not self.model.snaps:
            return
        name = self.rng.choice(list(self.model.snaps))
        party = self.librbd()
        if self.model.snaps[name].protected:
            self.say(party.name, 'snap rm', name, 'fails')
            self.fails(rbd.ImageBusy, party.image.remove_snap, name)
            self.unprotect(party.image, name)
        which = self.rng.random()
        if which < .2:
            self.done(party)
            self.qemu_img('snapshot', '-d', name)
        elif which < .4:
            self.done(party)
            self.us().remove_snap(name, self)
        else:
            self.say(party.name, 'snap rm', name)
            party.image.remove_snap(name)
            self.done(party)
        self.model.remove_snap(name)

    def step_protect(self):
        if not self.model.snaps:
            return
        name = self.rng.choice(list(self.model.snaps))
        party = self.librbd()
        if self.model.snaps[name].protected:
            self.unprotect(party.image, name)
        else:
            self.say(party.name, 'snap protect', name)
            party.image.protect_snap(name)
            self.model.snaps[name].protected = True
            self.fails(rbd.ImageExists, party.image.create_snap, name)
        self.done(party)

    @staticmethod
    def fails(kind, call, *argv):
        try:
            call(*argv)
        except kind:
            return
        raise AssertionError(f'{call.__name__}{argv} succeeded')

    def new_size(self):
        rng, old = self.rng, len(self.model)
        object_size = self.model.layout.object_size
        size = rng.choice([rng.randrange(128 * K, old + 512 * K),
                           old + object_size, old - object_size,
                           old // object_size * object_size])
        most = M if object_size == 4 * K else 3 * M
        return max(64 * K, min(size, most)) // SECTOR * SECTOR

    def step_resize(self):
        size = self.new_size()
        which = self.rng.random()
        if which < .2:
            self.qemu_img('resize', *(['--shrink'] if size < len(self.model)
                                      else []), str(size))
        else:
            party = self.us() if which < .5 else self.librbd()
            self.say(party.name, 'resize', size)
            party.resize(size)
            self.done(party)
        self.model.resize(size)

    def step_rollback(self):
        if not self.model.snaps:
            return
        name = self.rng.choice(list(self.model.snaps))
        ours = self.rng.random() < .3
        if ours:
            self.close_held()
            self.qemu_img('snapshot', '-a', name)
        else:
            # librbd does not ask for the lock for this.
            party = self.librbd()
            off, n = self.extent()
            self.say(party.name, 'write', off, n, 'rollback', name)
            self.model.touch(off, n)
            party.write(off, self.bytes(n))
            party.image.rollback_to_snap(name)
            self.done(party)
        self.model.rollback(name, by_librbd=not ours)

    def step_clone(self):
        if len(self.all) > 2:
            return self.step_flatten()
        if not self.model.snaps:
            self.step_snap()
        rng, parent = self.rng, self.model
        snap = rng.choice(list(parent.snaps))
        version = rng.choice([1, 2, 2])
        layout = self.random_layout()
        features = DEFAULT if rng.random() < .7 else parent.features
        name = f's{self.seed}-{len(self.all)}'
        self.say('clone', parent.name, snap, 'to', name, 'version', version,
                 hex(features), *layout)
        with parent.open() as image:
            if version == 1 and not parent.snaps[snap].protected:
                image.protect_snap(snap)
                parent.snaps[snap].protected = True
        self.worker.cluster.conf_set('rbd_default_clone_format', str(version))
        rbd.RBD().clone(self.place.io, parent.name, snap, self.place.io, name,
                        features, *layout)
        self.close_held()
        if rng.random() < .5:
            self.close_ours()
        elif self.ours:
            self.parents.append(self.ours)
            self.ours = None
        self.model = Model(self.place, name, *layout[:3], features,
                           parent.snaps[snap].data, copies=True)
        if version == 2 and not parent.snaps[snap].protected and \
                rng.random() < .3:
            self.say('snap rm', parent.name, snap)
            with parent.open() as image:
                image.remove_snap(snap)
            parent.remove_snap(snap)
            parent.loose = True
        self.all.append(self.model)

    def may_flatten(self):
        # A client that is killed between the update of the map and the copy
        # leaves EXISTS; librbd's flatten believes it, and the data is lost.
        return self.model.copies and not self.model.killed

    def step_flatten(self):
        if not self.may_flatten():
            return
        party = self.librbd()
        self.say(party.name, 'flatten')
        party.image.flatten()
        self.model.flatten()
        self.done(party)

    def step_features(self):
        """The object maps go, and come back."""
        model = self.model
        if not model.features & LOCK:
            return
        party = self.librbd()
        if model.features & MAP:
            self.say(party.name, 'object-map disable')
            party.image.update_features(model.features & (MAP | FAST), False)
            model.features &= ~(MAP | FAST)
        else:
            self.say(party.name, 'object-map enable, rebuild')
            party.image.update_features(MAP | FAST, True)
            model.features |= MAP | FAST
            for snap, _ in model.revisions():
                with model.open(snap) as image:
                    image.rebuild_object_map()
            model.maps_rebuilt()
        self.done(party)

    def step_reopen(self):
        if self.rng.random() < .5:
            self.close_ours()
        else:
            self.close_held()

    # --- with requests on their way -------------------------------------------

    def send_writes(self, below, zeroes=False):
        """[(offset, data, handle)] of requests of ours that do not overlap."""
        flying = []
        us = self.us()
        for _ in range(self.rng.randrange(2, 9)):
            off, n = self.extent(below)
            if any(off < o + len(d) and o < off + n for o, d, _ in flying):
                continue
            if zeroes and self.rng.random() < .4:
                data = bytes(n)
                handle = us.disk.send(Nbd.ZEROES, off, n)
            else:
                data = self.bytes(n)
                handle = us.disk.send(Nbd.WRITE, off, n, data)
            self.say('we send', 'zeroes' if not any(data) else 'write', off, n)
            flying.append((off, data, handle))
        return flying

    def send_reads(self, flying):
        """[(offset, length, handle)] of reads that writes do not change."""
        reads = []
        for _ in range(self.rng.randrange(4)):
            off, n = self.extent()
            if not any(off < o + len(d) and o < off + n for o, d, _ in flying):
                self.say('we send read', off, n)
                reads.append((off, n, self.ours.disk.send(Nbd.READ, off, n)))
        return reads

    def step_storm(self):
        """librbd changes the image under our writes."""
        model = self.model
        kind = self.rng.choice(['snap', 'snap', 'our snap', 'remove', 'resize',
                                'flatten', 'write', 'protect'])
        size = self.new_size()
        self.us()
        party = self.librbd()
        flying = self.send_writes(min(size, len(model)) if kind == 'resize'
                                  else None, zeroes=True)
        # Before we create one, QEMU waits until all answers have been taken.
        reads = self.send_reads(flying) \
            if kind not in ('write', 'resize', 'our snap') else []
        snap = None
        if kind in ('snap', 'our snap') and len(model.snaps) < 4:
            snap = self.fresh('snap')
            if kind == 'snap':
                self.say(party.name, 'meanwhile snap create', snap)
                party.image.create_snap(snap)
            else:
                self.ours.snap(snap, self)
            model.snap(snap)
        elif kind == 'remove':
            free = [s for s in model.snaps if not model.snaps[s].protected]
            if free:
                name = self.rng.choice(free)
                self.say(party.name, 'meanwhile snap rm', name)
                party.image.remove_snap(name)
                model.remove_snap(name)
        elif kind == 'resize':
            self.say(party.name, 'meanwhile resize', size)
            party.image.resize(size)
            model.resize(size)
        elif kind == 'flatten' and self.may_flatten():
            self.say(party.name, 'meanwhile flatten')
            party.image.flatten()
            model.flatten()
        elif kind == 'protect' and model.snaps:
            name = self.rng.choice(list(self.model.snaps))
            if not model.snaps[name].protected:
                self.say(party.name, 'meanwhile protect', name)
                party.image.protect_snap(name)
                model.snaps[name].protected = True
        elif kind == 'write':
            for _ in range(3):
                off, n = self.extent()
                if not any(off < o + len(d) and o < off + n
                           for o, d, _ in flying):
                    data = self.bytes(n)
                    self.say(party.name, 'meanwhile write', off, n)
                    party.write(off, data)
                    model.write(off, data)
        for off, n, handle in reads:
            model.same(model.head.data[off:off + n],
                       self.ours.disk.finish(handle), f'read at {off:#x}')
        for _, _, handle in flying:
            self.ours.disk.finish(handle)
        self.done(party)
        if snap:
            with model.open(snap, read_only=True) as image:
                for off, data, _ in flying:
                    model.settle(model.snaps[snap], off, data,
                                 image.read(off, len(data)), snap)
                    # Written before the snapshot or after it.
                    numbers = model.layout.objects(off, len(data))
                    model.snaps[snap].changed |= numbers
        for off, data, _ in flying:
            model.write(off, data)

    def step_kill(self):
        model = self.model
        self.us()
        # Without a lock nobody knows when the last of it arrives.
        flying = self.send_writes(None, zeroes=True) \
            if model.features & LOCK else []
        for _, _, handle in flying[:self.rng.randrange(len(flying) + 1)]:
            self.ours.disk.finish(handle)
        self.say('we are killed')
        self.worker.kill()
        self.ours, self.parents = None, []
        for off, data, _ in flying:
            model.killed |= model.layout.objects(off, len(data))
            model.touch(off, len(data))
        self.take_over(flying)

    def take_over(self, flying):
        """Somebody writes after a client died that had @flying on its way."""
        model = self.model
        party = self.any()
        off, n = self.extent()
        data = self.bytes(n)
        self.say(party.name, 'write', off, n)
        party.write(off, data)
        self.done(party)
        with model.open(read_only=True) as image:
            for o, d, _ in flying:
                # What lies beneath that write cannot be seen any more.
                for a, b in ((o, min(o + len(d), off)),
                             (max(o, off + n), o + len(d))):
                    if a < b:
                        model.settle(model.head, a, d[a - o:b - o],
                                     image.read(a, b - a), 'after the kill')
        model.write(off, data)

    def step_kill_librbd(self):
        """A librbd that owns the lock dies; we take over."""
        if self.place.namespace or not self.model.features & LOCK:
            return
        us = self.us()
        off, n = self.extent()
        data = self.bytes(n)
        with peers.Librbd(POOL, self.model.name) as peer:
            self.say('another librbd writes', off, n, 'and is killed')
            peer.write(off, data)
            self.model.write(off, data)
            peer.kill()
        off, n = self.extent()
        data = self.bytes(n)
        self.say('we write', off, n)
        us.write(off, data)
        self.model.write(off, data)

    # --- all of it ------------------------------------------------------------

    def run(self):
        steps = {
            self.step_write: 30, self.step_discard: 10, self.step_zero: 8,
            self.step_read: 8, self.step_snap: 9, self.step_remove_snap: 5,
            self.step_protect: 3, self.step_resize: 7, self.step_rollback: 3,
            self.step_clone: 4, self.step_flatten: 2, self.step_reopen: 5,
            self.step_storm: 10, self.step_features: 1,
        }
        n = self.rng.randrange(12, 30)
        killed = self.rng.randrange(6, n) if self.kills else None
        for i in range(n):
            self.rng.choices(list(steps), list(steps.values()))[0]()
            if i == killed:
                self.rng.choice([self.step_kill, self.step_kill,
                                 self.step_kill_librbd])()
        if self.rng.random() < .5:
            self.close_ours()
            self.close_held()
        self.plant()
        self.verify()
        self.close_ours()
        self.close_held()
        for it in self.parents:
            it.close()
        self.remove()

    def plant(self):
        """An error that has to be found."""
        model, rng = self.model, self.rng
        if args.plant == 'map' and model.features & MAP:
            maps = ObjectMaps(self.worker.cluster, self.place.io, model.id())
            revision = rng.choice(maps.revisions)
            states = maps.load(revision)
            n = rng.randrange(len(states))
            state = rng.choice([s for s in range(4) if s != states[n] and
                                {s, states[n]} != {EXISTS, CLEAN}])
            self.say('plant', STATES[state], 'for object', n, 'of', revision)
            self.place.io.execute(
                maps.map_name(revision), 'rbd', 'object_map_update',
                struct.pack('<QQBB', n, n + 1, state, 0))
        elif args.plant:
            it = rng.choice([*model.snaps.values(), model.head])
            data = bytearray(it.data)
            at = rng.randrange(len(data))
            data[at] ^= 1
            it.data = data
            self.say('plant another byte at', at)

    def verify(self):
        self.say('verify')
        for model in self.all:
            model.compare()
            maps = model.maps()
            if model.features & FAST:
                self.compare_du(model, maps)
            self.compare_ours(model)

    def compare_du(self, model, maps):
        du = json.loads(subprocess.run(
            ['rbd', 'du', '--format', 'json', '--pool', POOL, '--namespace',
             model.place.namespace, '--image', model.name], check=True,
            capture_output=True, stdin=subprocess.DEVNULL).stdout)
        said = {i.get('snapshot'): (i['provisioned_size'], i['used_size'])
                for i in du['images']}
        used = maps.used()
        if not model.loose and not model.rolled():
            expect({model.ids.get(r): (maps.sizes[r], used[r])
                    for r in maps.revisions}, said, f'rbd du of {model.name}')

    def compare_ours(self, model):
        """All as our driver reads it, through nodes of their own."""
        qsd = self.worker.daemon()
        for snap, data in model.revisions():
            qsd.cmd('blockdev-add', node_name='ro', read_only=True,
                    **model.place.node(model.name, **(
                        {'snapshot': snap} if snap else {})))
            with qsd.nbd('ro', writable=False) as disk:
                model.same(data, disk.read(0, len(data)),
                           f'{snap or "head"} as we read it')
            qsd.cmd('blockdev-del', node_name='ro')

        self.compare_map(model)

    def compare_map(self, model):
        """What the block layer is told to be zero is zero."""
        snap, data = self.rng.choice(model.revisions())
        node = model.place.node(model.name, **({'snapshot': snap} if snap
                                               else {}))
        found = json.loads(subprocess.run(
            ['qemu-img', 'map', '--output=json', 'json:' + json.dumps(node)],
            check=True, env=environment(args.stock), stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL).stdout)
        expect(len(data), sum(e['length'] for e in found), 'qemu-img map')
        for e in found:
            assert not e['zero'] or not any(
                data[e['start']:e['start'] + e['length']]), \
                f'{model.name}, {snap or "head"}: qemu-img map says zero: {e}'

    def remove(self):
        """As `rbd snap purge' and `rbd rm', children first."""
        self.say('remove all')
        for model in reversed(self.all):
            image_id = model.id()
            with model.open() as image:
                data = self.worker.cluster.open_ioctx2(image.data_pool_id())
                data.set_namespace(model.place.namespace)
                for name, it in reversed(model.snaps.items()):
                    if it.protected:
                        image.unprotect_snap(name)
                    image.remove_snap(name)
            rbd.RBD().remove(model.place.io, model.name)
            left = []
            for io in model.place.io, data:
                for entry in io.list_objects():
                    if image_id in entry.key:
                        try:
                            io.stat(entry.key)
                            left.append(entry.key)
                        except rados.ObjectNotFound:
                            pass    # of snapshots; trimmed in due time
            expect([], left, f'what is left of {model.name}')


class Worker:
    """Runs sequences in a process of its own, with one daemon of ours."""

    def __init__(self):
        self.qsd = None
        self.cluster = rados.Rados(conffile='', conf={'rbd_cache': 'false'})
        self.cluster.connect()
        self.places = {ns: Place(self.cluster, ns) for ns in ('', 'space')}

    def daemon(self):
        if not self.qsd:
            self.qsd = Qemu.storage_daemon(stock=args.stock)
        return self.qsd

    def kill(self):
        self.qsd.p.kill()
        self.qsd.p.wait()
        self.qsd = None

    def run(self, seed):
        """None, or what went wrong."""
        sequence = None
        watchdog = threading.Timer(HANG_S, lambda: self.hang(seed, sequence))
        watchdog.daemon = True
        watchdog.start()
        try:
            sequence = Sequence(self, seed)
            sequence.run()
        except BaseException:
            report(seed, sequence, traceback.format_exc(),
                   self.qsd.log() if self.qsd else '')
            # Nothing of it may disturb the next.
            if sequence and sequence.held:
                sequence.held.close()
            if self.qsd:
                self.kill()
            return False
        finally:
            watchdog.cancel()
        return True

    def hang(self, seed, sequence):
        report(seed, sequence, f'hangs, {HANG_S} s',
               self.qsd.log() if self.qsd else '')
        faulthandler.dump_traceback(file=sys.stdout)
        sys.stdout.flush()
        if self.qsd:
            self.qsd.p.kill()
        os._exit(1)

def report(seed, sequence, error, log):
    """One piece, also when several report."""
    if args.plant:
        print(f'seed {seed} found:', ' '.join(error.split('\n')[-3:])[:120])
        return
    steps = sequence.steps if sequence else []
    lines = [f'--- seed {seed} fails', *(
        f'{i:4} {step}' for i, step in enumerate(steps)), error.rstrip()]
    if log:
        lines += ['--- stderr of the daemon', log.rstrip()]
    os.write(1, ('\n'.join(lines) + '\n').encode())


def work(seeds, taken, failed):
    worker = Worker()
    while failed.value < FAILURES:
        with taken.get_lock():
            i = taken.value
            taken.value += 1
        if i >= len(seeds):
            break
        if not worker.run(seeds[i]):
            with failed.get_lock():
                failed.value += 1
    if worker.qsd:
        worker.qsd.quit()


first = random.randrange(1 << 31)
seeds = args.seeds or range(first, first + args.n)
print(f'seeds {seeds[0]} to {seeds[-1]}', flush=True)
start = time.monotonic()
fork = multiprocessing.get_context('fork')
taken, failed = fork.Value('i', 0), fork.Value('i', 0)
workers = [fork.Process(target=work, args=(seeds, taken, failed))
           for _ in range(min(args.j, len(seeds)))]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
done = min(taken.value, len(seeds))
print(f'{done} sequences, {failed.value} failed, '
      f'{time.monotonic() - start:.0f} s')
broken = failed.value or any(w.exitcode for w in workers)
if args.plant:
    expect(done, failed.value, 'sequences that found what was planted')
elif broken:
    sys.exit(1)
PY
