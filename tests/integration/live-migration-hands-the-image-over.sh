#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Live migration between two emulators: the destination reads what the source
# wrote, writes itself, and what the source lets go of it neither watches nor
# locks any more. A size, a snapshot and features that changed meanwhile are
# known. A migration that fails leaves the source at work. Our driver and
# QEMU's own hand over to each other. Nobody is fenced for it.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-system-x86_64
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import os

import rbd
from objectmap import ObjectMaps
from peers import (DEFAULT, blocklist, connect, header_of, owner_of, tool,
                   watchers_of)
from qemu import TMP, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
PLAIN = rbd.RBD_FEATURE_LAYERING
c, io = connect(POOL)
HERE = f'client.{c.get_instance_id()}'
fenced = blocklist()
headers = {}


def create(name, features=DEFAULT):
    rbd.RBD().create(io, name, 8 * M, 20, False, features)
    headers[name] = header_of(POOL, name)
    return rbd.Image(io, name, read_only=True)


def machine(image, *args, stock=False, **env):
    return Qemu.system(
        '-object', 'iothread,id=t0',
        '-blockdev', f'rbd,node-name=n,pool={POOL},image={image}',
        '-device', 'virtio-blk-pci,drive=n,share-rw=on,iothread=t0', *args,
        stock=stock, env=env)


def migrate(source, path, status='completed'):
    source.cmd('migrate', uri=f'unix:{path}')
    wait_for(f'migration has {status}', lambda: source.cmd(
        'query-migrate')['status'] in ('completed', 'failed'))
    expect(status, source.cmd('query-migrate')['status'], 'migration')


def arrived(destination):
    wait_for('the destination is there', lambda: destination.cmd(
        'query-status')['status'] == 'paused')


def watchers(image):
    """Of others than this program."""
    return {client for client, _, _ in watchers_of(POOL, headers[image])
            if client != HERE}


def exact(name, image):
    complaints = ObjectMaps(c, io, image.id()).check()
    assert not complaints, f'{name}: {complaints}'


# --- there -------------------------------------------------------------------

def move(name, features, stock_a, stock_b, **env):
    path = f'{TMP}/{name}'
    image = create(name, features)
    locks = features & rbd.RBD_FEATURE_EXCLUSIVE_LOCK
    with machine(name, stock=stock_a, **env) as a:
        a.cmd('cont')
        a.io_ok('n', 'write -P 1 0 4M')
        source, = watchers(name)
        owner = source if locks else None
        expect(owner, owner_of(POOL, name), 'owner while only one runs')
        with machine(name, '-incoming', f'unix:{path}', stock=stock_b,
                     **env) as b:
            if not stock_b:
                expect({source}, watchers(name), 'watchers of two')
            # After the destination has opened it, and read its first sector.
            a.io_ok('n', 'write -P 2 0 1M')
            a.io_ok('n', 'write -P 3 4M 512k')
            if not stock_b:
                b.io_ok('n', 'read -P 2 0 4k')
                tool('rbd', 'resize', '--no-progress', '--size', '9M',
                     f'{POOL}/{name}')
                tool('rbd', 'snap', 'create', '--no-progress',
                     f'{POOL}/{name}@s')
                a.io_ok('n', 'write -P 6 6M 1M')
                if locks:
                    wait_for('the source has the lock back', lambda: owner_of(
                        POOL, name) == source)
            else:
                a.io_ok('n', 'write -P 6 6M 1M')
            migrate(a, path)
            if locks and not stock_a:
                # It was given up, not taken away.
                assert owner_of(POOL, name) != source, 'the source owns it'
            arrived(b)
            b.cmd('cont')
            expect('postmigrate', a.cmd('query-status')['status'])
            if not stock_a:
                assert source not in watchers(name), 'the source watches'
            for pattern, off, n in ((2, 0, M), (1, M, 3 * M),
                                    (3, 4 * M, M // 2), (0, 5 * M, M),
                                    (6, 6 * M, M)):
                b.io_ok('n', f'read -P {pattern} {off} {n}')
            b.io_ok('n', 'write -P 4 512k 1M')
            if locks:
                assert owner_of(POOL, name) in watchers(name) - {source}
            if not stock_b:
                size = next(d['image']['virtual-size'] for d in b.cmd(
                    'query-named-block-nodes', flat=True)
                    if d['node-name'] == 'n')
                expect(9 * M, size, 'size on the destination')
                b.io_ok('n', 'write -P 5 8704k 512k')
        model = (b'\2' * (M // 2) + b'\4' * M + b'\1' * (M * 5 // 2) +
                 b'\3' * (M // 2) + b'\0' * (M * 3 // 2) + b'\6' * M + b'\0' *
                 M)
        assert image.read(0, 8 * M) == model, f'{name}: other data'
        # The guest of the source does not run any more: it does not write.
        if not stock_a:
            text = a.io('n', 'write 0 4k')
            assert 'ops;' not in text, text
            assert image.read(0, 8 * M) == model, f'{name}: source wrote'
    if not stock_b:
        with rbd.Image(io, name, snapshot='s') as snap:
            assert snap.read(0, 8 * M) == (
                b'\2' * M + b'\1' * 3 * M + b'\3' * (M // 2) +
                b'\0' * (M * 7 // 2)), 'the snapshot has other data'
    exact(name, image)
    image.close()
    print(f'{name}: good')


move('plain', PLAIN, False, False)
for stock_a, stock_b in (False, False), (True, False), (False, True):
    move(f'from-{stock_a}-to-{stock_b}', DEFAULT, stock_a, stock_b)
move('exclusive', DEFAULT, False, False, PINRBD_LOCK_POLICY='exclusive')

# --- a migration that fails --------------------------------------------------

def back(name, **env):
    image = create(name)
    with machine(name, **env) as a:
        a.cmd('cont')
        a.io_ok('n', 'write -P 1 0 1M')
        source, = watchers(name)
        # Nobody listens.
        migrate(a, f'{TMP}/nobody', 'failed')
        a.io_ok('n', 'write -P 2 1M 1M')
        expect('running', a.cmd('query-status')['status'])
        expect(source, owner_of(POOL, name), 'owner')

        # All goes well, but nothing runs on the destination and it goes away:
        # the source may take the image back.
        with machine(name, '-incoming', f'unix:{TMP}/{name}', **env) as b:
            a.cmd('stop')
            migrate(a, f'{TMP}/{name}')
            arrived(b)
            # Only the destination, which takes the image at the end.
            wait_for('only the destination watches', lambda: len(watchers(
                name)) == 1 and source not in watchers(name))
        expect(set(), watchers(name))
        a.cmd('cont')
        expect({source}, watchers(name), 'the source again')
        a.io_ok('n', 'read -P 2 1M 1M')
        a.io_ok('n', 'write -P 3 2M 1M')
        expect(source, owner_of(POOL, name), 'owner')

        # The destination had begun to write when the source took it back.
        if not env:
            with machine(name, '-incoming', f'unix:{TMP}/{name}') as b:
                a.cmd('stop')
                migrate(a, f'{TMP}/{name}')
                arrived(b)
                b.cmd('cont')
                b.io_ok('n', 'write -P 4 3M 1M')
                assert owner_of(POOL, name) in watchers(name) - {source}
                b.cmd('stop')
                a.cmd('cont')
                a.io_ok('n', 'read -P 4 3M 1M')
                a.io_ok('n', 'write -P 5 4M 1M')
                expect(source, owner_of(POOL, name), 'owner')
    expected = b''.join(bytes([i]) * M for i in range(1, 6))
    if env:
        expected = expected[:3 * M] + bytes(2 * M)
    assert image.read(0, 5 * M) == expected, f'{name}: other data'
    exact(name, image)
    image.close()


back('back')
back('back-exclusive', PINRBD_LOCK_POLICY='exclusive')
expect(fenced, blocklist(), 'clients shut out')
PY
