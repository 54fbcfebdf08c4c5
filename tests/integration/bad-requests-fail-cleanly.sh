#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An image that somebody shrinks while we have it open: requests that reach
# beyond the new end fail, change nothing and are counted, all others work;
# grown again, what was cut off reads as zeroes. Requests of odd sizes at odd
# places, and of no size, do what librbd does.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import json
import os
import random
import re
import subprocess

import rados
import rbd
from qemu import TMP, environment, expect

POOL = os.environ['pool']
K, M = 1 << 10, 1 << 20
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)


class QemuIo:
    """qemu-io at work on one image."""

    def __init__(self, name, *args):
        self.stats = f'{TMP}/{name}.stats'
        self.err = open(f'{TMP}/{name}.err', 'w+')
        self.p = subprocess.Popen(
            ['qemu-io', *args, '-f', 'raw',
             f'rbd:{POOL}/{name}:stats-file={self.stats}'],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err,
            env=environment(), bufsize=0)
        self.answer()
        self.failed = 0

    def answer(self):
        got = b''
        while not got.endswith(b'qemu-io> '):
            part = self.p.stdout.read(1)
            assert part, f'qemu-io ended ({self.p.wait()}): {got}'
            got += part
        return got.decode().removesuffix('qemu-io> ')

    def do(self, command):
        self.p.stdin.write(command.encode() + b'\n')
        return self.answer()

    def works(self, command):
        """What it said besides how long it took."""
        got = self.do(command)
        assert re.search(r'^[\d.]+ (bytes|[KM]iB), 1 ops;', got, re.M) and \
            'failed' not in got, f'{command}: {got}'
        return got

    def fails(self, command):
        expect(f'{command.split()[0]} failed: Invalid argument\n', self.do(command),
               command)
        self.failed += 1

    def end(self):
        self.p.stdin.write(b'quit\n')
        expect(1 if self.failed else 0, self.p.wait(), 'status of qemu-io')
        with open(self.stats) as f:
            counters = json.load(f)
        expect(self.failed, counters['failed'], 'failed requests')
        self.err.seek(0)
        return counters, self.err.read().splitlines()


def create(name, size, **layout):
    rbd.RBD().create(io, name, size, 20, False,
                     rbd.RBD_FEATURE_LAYERING | (rbd.RBD_FEATURE_STRIPINGV2
                                                 if layout else 0), **layout)
    return rbd.Image(io, name)


def check(image, size, changes, what):
    """The image has @size and all bytes are 'a' but for @changes."""
    expect(size, image.size(), what)
    model = bytearray(b'a' * size)
    for off, n, byte in changes:
        model[off:off + n] = byte * n
    assert image.read(0, size) == model, f'{what}: content'


# --- the image shrinks --------------------------------------------------------

for name, layout in (('plain', {}),
                     ('striped', {'stripe_unit': 64 * K, 'stripe_count': 3})):
    image = create(name, 4 * M, **layout)
    image.write(b'a' * 4 * M, 0)
    qio = QemuIo(name, '-d', 'unmap')
    qio.works('write -P 0x62 3M 64k')
    qio.works('read -P 0x62 3M 64k')

    # It returns when everyone who has the image open knows.
    size = M + 12345
    image.resize(size)
    for command in ('read 2M 4k', f'read {size - 1} 4k', 'read 1M 1M', 'read 0 4M', 'write 2M 4k',
                    f'write {size} 1', f'write {size - 1} 2',
                    'write 1M 64k', 'write 0 3M', 'write -z 3M 1M',
                    f'write -z {size - 1} 2', 'write -z -u 1M 1M',
                    'write -f 2M 512', f'discard {size // 512 * 512} 1M',
                    'discard 2M 1M', 'readv 2M 512 512 1024',
                    'writev 2M 1 2 3', 'write 4095k 1k'):
        qio.fails(command)
    # QEMU knows that nothing was there when it opened the image.
    expect('write failed: Input/output error\n', qio.do('write 4M 1'))
    check(image, size, [], f'{name}, after requests beyond its end')
    qio.works(f'read -P 0x61 {size - 4096} 4k')
    # The last bytes, and the sector that the end is in: QEMU counts in those.
    qio.works(f'write -P 0x63 {size - 3} 3')
    qio.works(f'read -P 0 {size} {512 - size % 512}')
    check(image, size, [(size - 3, 3, b'c')], f'{name}, at its new end')

    image.resize(4 * M)
    changes = [(size - 3, 3, b'c'), (size, 4 * M - size, b'\0')]
    qio.works(f'read -P 0 {size} {4 * M - size}')
    qio.works('write -P 0x64 3M 513')
    qio.works(f'write -P 0x65 {size} 7')
    changes += [(3 * M, 513, b'd'), (size, 7, b'e')]
    check(image, 4 * M, changes, f'{name}, grown again')

    image.resize(0)
    qio.fails('read 0 1')
    qio.fails('write 0 1')
    qio.do('flush')
    expect(0, image.size(), f'{name}, of no size')

    counters, log = qio.end()
    first = f"image '{POOL}/{name}': read of 4096 bytes at {2 * M} failed: " \
        'Invalid argument; failures not reported since the last message: 0'
    assert log[0].endswith('rbd: ' + first), log
    assert len(log) < qio.failed, log       # a guest cannot flood the log
    expect([], [o.key for o in io.list_objects()
                if o.key.startswith(image.block_name_prefix())],
           f'objects of {name} at size 0')
    image.close()

# --- odd requests -------------------------------------------------------------

SEED = random.randrange(1 << 32)
print(f'seed {SEED}')
rng = random.Random(SEED)
for name, layout in (('odd', {}),
                     ('odd-striped', {'stripe_unit': 4 * K,
                                      'stripe_count': 3})):
    size = 2 * M + 777
    image = create(name, size, **layout)
    model = bytearray(size)
    qio = QemuIo(name)
    written = requests = 0
    borders = [0, 1, 511, 512, 513, 4 * K - 1, 4 * K, M - 1, M, size - 1]
    for off in borders + [rng.randrange(size) | 1 for _ in range(20)]:
        n = min(rng.choice([1, 1, 1, 2, 3, 511, 513, 5 * K + 1]), size - off)
        byte = rng.randrange(1, 256)
        qio.works(f'write -P {byte} {off} {n}')
        model[off:off + n] = bytes([byte]) * n
        written += n
        requests += 1
        assert image.read(off, n) == model[off:off + n], (off, n)
        off = rng.randrange(size) | 1
        byte = bytes([rng.randrange(1, 256)])
        image.write(byte, off)
        model[off] = byte[0]
        qio.works(f'read -P {byte[0]} {off} 1')
    for off in 0, 1, M, size - 1, size:
        for command in 'read', 'write', 'write -z', 'discard', 'write -f':
            if command == 'write -f' and off == size:
                continue
            got = qio.do(f'{command} {off} 0')
            assert 'failed' not in got, f'{command} {off} 0: {got}'
    qio.works(f'readv {size - 6} 1 2 3')
    qio.works(f'writev -P 9 {M - 3} 1 2 3 4')
    model[M - 3:M + 7] = b'\x09' * 10
    written += 10
    assert image.read(0, size) == model, f'{name}: content'
    counters, log = qio.end()
    expect([], log)
    # They came to us as they are, not rounded to sectors by reading first.
    expect(written, counters['write_bytes'], 'bytes written')
    image.close()
PY
