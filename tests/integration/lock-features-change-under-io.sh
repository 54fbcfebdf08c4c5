#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# `rbd feature disable` and `enable` of fast-diff, object-map and
# exclusive-lock while a guest writes: no error, and each time our client does
# what the features say: no lock without exclusive-lock, a lock and an exact
# object map with them.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon rbd
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import json
import os

import rbd
from peers import connect, create, lock_of, owner_of, sound, tool
from qemu import Load, Nbd, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
SPEC = f'{POOL}/i'
c, io = connect(POOL)
create(io, 'i', 32 * M, 16)


def features():
    return set(json.loads(tool('rbd', 'info', '--format', 'json',
                               SPEC))['features'])


def flags():
    return json.loads(tool('rbd', 'info', '--format', 'json', SPEC))['flags']


def change(how, *names):
    tool('rbd', 'feature', how, SPEC, *names)
    found = features()
    for name in names:
        assert (name in found) == (how == 'enable'), (how, found)
    load.beat()
    if 'exclusive-lock' in found:
        wait_for('the guest owns', lambda: owner_of(POOL, 'i'))
        expect(owner, owner_of(POOL, 'i'))
    else:
        expect([], lock_of(POOL, 'i'), 'lock of an image that has none')
    load.beat()


def rebuild():
    assert flags(), 'a map that was just made has no flags'
    tool('rbd', 'object-map', 'rebuild', '--no-progress', SPEC)
    load.beat()
    expect([], flags(), 'flags after a rebuild')


with Qemu.storage_daemon() as qsd:
    qsd.add(node_name='n', pool=POOL, image='i', discard='unmap')
    disk = qsd.nbd('n')
    load = Load(Nbd(qsd, 'n'), 4096, depth=8)
    load.beat()
    owner = owner_of(POOL, 'i')
    # `rbd` switches fast-diff together with object-map.
    for turn in range(2):
        change('disable', 'object-map', 'fast-diff')
        change('disable', 'exclusive-lock')
        # Nobody keeps a map now; the next one must not be the old one.
        disk.write((24 + turn) * M, b'unmapped' * 64)
        change('enable', 'exclusive-lock')
        change('enable', 'object-map', 'fast-diff')
        rebuild()
        change('disable', 'object-map', 'fast-diff')
        change('disable', 'exclusive-lock')
        change('enable', 'exclusive-lock', 'object-map', 'fast-diff')
        rebuild()
        disk.write((26 + turn) * M, b'mapped__' * 64)
        expect(b'unmapped', disk.read((24 + turn) * M, 8))
        load.beat()
        load.alive()
    load.stop()
    with rbd.Image(io, 'i', read_only=True) as image:
        load.check(image.read)
        for at, text in (24, b'unmapped'), (25, b'unmapped'), \
                (26, b'mapped__'), (27, b'mapped__'):
            expect(text * 64, image.read(at * M, 512))
    load.disk.close(end_export=False)
    disk.close()
    expect('', qsd.log())
sound(POOL, 'i')
tool('rbd', 'rm', '--no-progress', SPEC)
left = [x for x in tool('rados', '-p', POOL, 'ls').split()
        if x.startswith('rbd_data') or x.startswith('rbd_object_map')]
expect([], left, 'objects that the maps had forgotten')
PY
