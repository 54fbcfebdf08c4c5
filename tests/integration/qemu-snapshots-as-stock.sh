#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Snapshots through QEMU's monitor and through qemu-img: what a user types
# gives the same answers as with QEMU's own driver (saving a VM's state is
# refused), and afterwards image and snapshots are what librbd reads. A
# rollback may change the size, and clones have snapshots, too.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-system-x86_64
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import os
import re
import subprocess

import rbd
from objectmap import ObjectMaps
from peers import DEFAULT, connect
from qemu import Qemu, QmpError, environment, expect

POOL = os.environ['pool']
M = 1 << 20
c, io = connect(POOL)


def create(name, order=20):
    rbd.RBD().create(io, name, 8 * M, order, False, DEFAULT)


def clone(name):
    create(f'{name}-parent')
    with rbd.Image(io, f'{name}-parent') as parent:
        parent.write(b'\7' * 6 * M, 0)
        parent.create_snap('base')
        parent.protect_snap('base')
    rbd.RBD().clone(io, f'{name}-parent', 'base', io, name, DEFAULT)


def plain(text):
    """Without times, which the stock driver does not know."""
    text = re.sub(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d', 'DATE', str(text))
    text = re.sub(r'(00:00:00\.000) +0?', r'\1', text)
    text = re.sub(r"'(date-sec|date-nsec|icount)': \d+(, )?", '', text)
    return text.replace('stock-', '').replace('ours-', '')


def state(name):
    """What librbd sees."""
    with rbd.Image(io, name, read_only=True) as image:
        found = [(s['name'], s['size']) for s in image.list_snaps()]
        complaints = ObjectMaps(c, io, image.id()).check()
        data = [image.read(0, image.size())]
    assert not complaints, f'{name}: {complaints}'
    for snap, _ in found:
        with rbd.Image(io, name, snap) as image:
            data.append(image.read(0, image.size()))
    return found, data


def same(what, answers):
    for ours, stock in zip(answers[False], answers[True]):
        expect(stock, ours, what)


# --- in the monitor ----------------------------------------------------------

HMP = ('savevm vm', 'info snapshots', 'snapshot_blkdev_internal d one',
       'qemu-io d "write -P 2 0 4M"',
       'snapshot_blkdev_internal d one', 'info snapshots', 'delvm none',
       'snapshot_delete_blkdev_internal d none',
       'snapshot_blkdev_internal d two', 'qemu-io d "write -P 3 2M 4M"',
       'snapshot_blkdev_internal d three', 'delvm two', 'info snapshots',
       'loadvm one', 'info snapshots', 'savevm one', 'info snapshots')
QMP = [('blockdev-snapshot-internal-sync', {'device': 'd', 'name': 'two'}),
       ('blockdev-snapshot-internal-sync', {'device': 'd', 'name': 'two'}),
       ('blockdev-snapshot-internal-sync', {'device': 'd', 'name': ''}),
       ('blockdev-snapshot-internal-sync', {'device': 'd',
                                            'name': 'x' * 128}),
       ('blockdev-snapshot-delete-internal-sync', {'device': 'd',
                                                   'name': 'none'}),
       ('blockdev-snapshot-delete-internal-sync', {'device': 'd', 'id': 'x',
                                                   'name': 'two'}),
       ('blockdev-snapshot-delete-internal-sync', {'device': 'd', 'id': 'two',
                                                   'name': 'two'}),
       ('blockdev-snapshot-internal-sync', {'device': 'd', 'name': 'four'})]


def monitor(name, stock):
    answers = []
    with Qemu.system('-drive', f'if=none,id=d,format=raw,file=rbd:{POOL}/'
                     f'{name}', '-object', 'iothread,id=t0', '-device',
                     'virtio-blk-pci,drive=d,share-rw=on,iothread=t0',
                     stock=stock) as vm:
        vm.cmd('cont')
        vm.io_ok('d', 'write -P 1 0 8M')
        for line in HMP:
            answers.append((line, plain(vm.hmp(line))))
        for command, args in QMP:
            try:
                answer = vm.cmd(command, **args)
            except QmpError as e:
                answer = f'error: {e}'
            answers.append((command, args, plain(answer)))
        if not stock:
            # The stock driver leaves 'five' behind.
            vm.fails("Cannot find device='no' nor node-name='no'",
                     'transaction', actions=[
                         {'type': 'blockdev-snapshot-internal-sync',
                          'data': {'device': d, 'name': 'five'}}
                         for d in ('d', 'no')])
    return answers


for kind, make in ('image', create), ('clone', clone):
    answers, states = {}, {}
    for stock in True, False:
        name = f'{"stock" if stock else "ours"}-{kind}'
        make(name)
        answers[stock] = monitor(name, stock)
        states[stock] = state(name)
    same(f'monitor, {kind}', answers)
    assert states[True] == states[False], f'{kind}: other data than stock'
    # savevm has removed the one of the same name before it failed.
    expect([('three', 8 * M), ('four', 8 * M)], states[False][0], 'snapshots')

# --- qemu-img ----------------------------------------------------------------

TOOL = [('snapshot', '-c', 'one'), ('snapshot', '-c', 'one'),
        ('snapshot', '-c', ''), ('snapshot', '-c', 'x' * 200),
        ('io', 'write -P 2 1M 5M'), ('resize', '12M'), ('io', 'write 11M 1M'),
        ('snapshot', '-c', 'two'), ('snapshot', '-l'), ('info',),
        ('snapshot', '-a', 'one'), ('io', 'length'),
        ('resize', '--shrink', '5M'), ('io', 'write -P 4 4M 1M'),
        ('snapshot', '-c', 'three'), ('snapshot', '-a', 'two'),
        ('io', 'length'), ('snapshot', '-l'), ('protect',),
        ('snapshot', '-d', 'one'), ('unprotect',), ('snapshot', '-d', 'one'),
        ('snapshot', '-d', 'none'), ('snapshot', '-a', 'none'),
        ('snapshot', '-a', 'three'), ('io', 'length'), ('snapshot', '-l')]
# Where we say which snapshot of which image, and the stock driver does not.
WORDS = [(r'rbd: image \'[^ ]*\': cannot create snapshot \'one\': File exists',
          'failed to create snap: File exists'),
         (r'image \'[^ ]*\': cannot remove snapshot \'one\': it is protected',
          'Failed to remove the snapshot: Device or resource busy'),
         (r'qemu-img: rbd: image \'[^ ]*\': cannot roll back to snapshot '
          r'\'none\': it does not exist\n', '')]


def run(name, stock, words):
    if words[0] in ('protect', 'unprotect'):
        with rbd.Image(io, name) as image:
            getattr(image, f'{words[0]}_snap')('one')
        return None
    target = f'rbd:{POOL}/{name}'
    if words[0] == 'io':
        argv = ['qemu-io', '-f', 'raw', '-c', words[1], target]
    elif words[0] == 'resize':
        argv = ['qemu-img', 'resize', '-f', 'raw', *words[1:-1], target,
                words[-1]]
    else:
        argv = ['qemu-img', *words, target]
    p = subprocess.run(argv, env=environment(stock), capture_output=True,
                       text=True, timeout=120)
    text = re.sub(r'[0-9.]+ sec \(.*', '', p.stdout + p.stderr)
    if not stock:
        for pattern, other in WORDS:
            text = re.sub(pattern, other, text)
    return words, p.returncode, plain(text)


for kind, make in ('file', create), ('copy', clone):
    answers, states = {}, {}
    for stock in True, False:
        name = f'{"stock" if stock else "ours"}-{kind}'
        make(name)
        answers[stock] = [run(name, stock, words) for words in TOOL]
        states[stock] = state(name)
    same(f'qemu-img, {kind}', answers)
    assert states[True] == states[False], f'{kind}: other data than stock'
    expect([('two', 12 * M), ('three', 5 * M)], states[False][0])
    expect(5 * M, len(states[False][1][0]), 'size after going back')
PY
