#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Live migration between two emulators: the destination reads what the source
# wrote, writes itself, and what the source lets go of it no longer watches. A
# size that changed meanwhile is known. A migration that fails leaves the
# source at work. Our driver and QEMU's own hand over to each other.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-system-x86_64
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import os

import rados
import rbd
from qemu import TMP, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)


def machine(image, *args, stock=False):
    return Qemu.system(
        '-blockdev', f'rbd,node-name=n,pool={POOL},image={image}',
        '-device', 'virtio-blk-pci,drive=n,share-rw=on', *args, stock=stock)


def migrate(source, path, status='completed'):
    source.cmd('migrate', uri=f'unix:{path}')
    wait_for(f'migration has {status}', lambda: source.cmd(
        'query-migrate')['status'] in ('completed', 'failed'))
    expect(status, source.cmd('query-migrate')['status'], 'migration')


def watchers(image):
    return len(list(image.watchers_list()))


for stock_a, stock_b in (False, False), (True, False), (False, True):
    name = f'from-{stock_a}-to-{stock_b}'
    path = f'{TMP}/{name}'
    rbd.RBD().create(io, name, 8 * M, 20, False, rbd.RBD_FEATURE_LAYERING)
    image = rbd.Image(io, name)
    with machine(name, stock=stock_a) as a:
        a.cmd('cont')
        a.io_ok('n', 'write -P 1 0 4M')
        if not stock_a:
            expect(2, watchers(image), 'watchers: the source and this')
        with machine(name, '-incoming', f'unix:{path}', stock=stock_b) as b:
            if not stock_a and not stock_b:
                expect(2, watchers(image), 'watchers with a destination')
            # After the destination has opened it, and read its first sector.
            a.io_ok('n', 'write -P 2 0 1M')
            a.io_ok('n', 'write -P 3 4M 512k')
            if not stock_b:
                image.resize(9 * M)
            migrate(a, path)
            wait_for('the destination is there', lambda: b.cmd(
                'query-status')['status'] == 'paused')
            b.cmd('cont')
            expect('postmigrate', a.cmd('query-status')['status'])
            if not stock_a and not stock_b:
                expect(2, watchers(image), 'watchers: the destination, this')
            for pattern, off, n in ((2, 0, M), (1, M, 3 * M),
                                    (3, 4 * M, M // 2)):
                b.io_ok('n', f'read -P {pattern} {off} {n}')
            b.io_ok('n', 'write -P 4 512k 1M')
            if not stock_b:
                size = next(d['image']['virtual-size'] for d in b.cmd(
                    'query-named-block-nodes', flat=True)
                    if d['node-name'] == 'n')
                expect(9 * M, size, 'size on the destination')
                b.io_ok('n', 'write -P 5 8704k 512k')
        model = (b'\2' * (M // 2) + b'\4' * M + b'\1' * (M * 5 // 2) +
                 b'\3' * (M // 2) + b'\0' * (M * 7 // 2))
        assert image.read(0, 8 * M) == model, f'{name}: other data'
        # The guest of the source does not run any more: it does not write.
        if not stock_a:
            text = a.io('n', 'write 0 4k')
            assert 'ops;' not in text, text
            assert image.read(0, 8 * M) == model, f'{name}: source wrote'
    image.close()
    print(f'{name}: good')

# --- a migration that fails ----------------------------------------------------

rbd.RBD().create(io, 'back', 8 * M, 20, False, rbd.RBD_FEATURE_LAYERING)
image = rbd.Image(io, 'back')
with machine('back') as a:
    a.cmd('cont')
    a.io_ok('n', 'write -P 1 0 1M')
    # Nobody listens, then somebody who is another machine.
    migrate(a, f'{TMP}/nobody', 'failed')
    a.io_ok('n', 'write -P 2 1M 1M')
    expect('running', a.cmd('query-status')['status'])

    # All goes well, but nothing runs on the destination and it goes away:
    # the source may take the image back.
    with machine('back', '-incoming', f'unix:{TMP}/back') as b:
        a.cmd('stop')
        migrate(a, f'{TMP}/back')
        # Ours and the destination's, which takes the image at the end.
        wait_for('only the destination watches', lambda: watchers(image) == 2)
    a.cmd('cont')
    expect(2, watchers(image), 'watchers: the source again')
    a.io_ok('n', 'read -P 2 1M 1M')
    a.io_ok('n', 'write -P 3 2M 1M')
assert image.read(0, 4 * M) == (b'\1' * M + b'\2' * M + b'\3' * M +
                                b'\0' * M)
PY
