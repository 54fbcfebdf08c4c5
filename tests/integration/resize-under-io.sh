#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# An image that another client resizes while we write to it: what it gained
# can be used after block_resize, what it lost gives errors and nothing else,
# and a size of ours that is old never cuts it. So it is without any features
# and, the owner of the lock being asked to do it, with all usual ones. QEMU
# grows and cuts images itself, two of them at once, too.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import os
import subprocess
import threading

import rbd
from peers import DEFAULT, connect, sound
from qemu import Nbd, Qemu, environment, errno_of, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
PLAIN = rbd.RBD_FEATURE_LAYERING
c, io = connect(POOL)


def create(name, size, features=DEFAULT):
    rbd.RBD().create(io, name, size, 20, False, features)
    return rbd.Image(io, name)


def node_size(qsd, node):
    nodes = qsd.cmd('query-named-block-nodes', flat=True)
    return next(n['image']['virtual-size'] for n in nodes
                if n['node-name'] == node)


class Writes(threading.Thread):
    """Writes to the first MiB all the time; none may fail."""

    def __init__(self, disk):
        super().__init__()
        self.disk, self.stop, self.n, self.error = disk, False, 0, None

    def run(self):
        try:
            while not self.stop:
                flying = [self.disk.send(
                    self.disk.WRITE, (self.n + i) % 256 * 4096, 4096,
                    bytes([(self.n + i) % 251]) * 4096) for i in range(8)]
                for handle in flying:
                    self.disk.finish(handle)
                self.n += 8
        except BaseException as e:
            self.error = e

    def some(self):
        goal = self.n + 16
        wait_for('writes go on', lambda: self.error or self.n > goal)
        if self.error:
            raise self.error

    def end(self):
        self.stop = True
        self.join()
        if self.error:
            raise self.error


# --- grown and shrunk by another client, under writes -----------------------


def resized(name, features):
    image = create(name, 8 * M, features)
    image.write(b'old' * 1000, 5 * M)
    with Qemu.storage_daemon() as qsd:
        qsd.add(node_name='n', pool=POOL, image=name)
        with qsd.nbd('n') as disk:
            writes = Writes(disk)
            writes.start()
            writes.some()

            image.resize(12 * M)
            writes.some()
            writes.end()
        # An NBD export does not allow to change its node's size.
        qsd.cmd('block_resize', node_name='n', size=12 * M)
        expect(12 * M, node_size(qsd, 'n'), 'size after growing')
        expect(12 * M, image.size(), 'size in the header')
        with qsd.nbd('n') as disk:
            expect(12 * M, disk.size, 'size of the export')
            second = Nbd(qsd, 'n')  # a thread each
            writes = Writes(second)
            writes.start()
            disk.write(11 * M, b'new' * 1000)
            expect(b'new' * 1000, image.read(11 * M, 3000))
            # Cut it behind our back: block layer and NBD go on to believe in
            # 12 MiB.
            image.resize(3 * M)
            writes.some()
            writes.end()
            second.close(end_export=False)
            expect(b'\0' * 4096, disk.read(2 * M, 4096))
            expect('EINVAL', errno_of(disk.read, 5 * M, 4096), 'read')
            expect('EINVAL', errno_of(disk.write, 5 * M, b'x' * 4096), 'write')
            expect('EINVAL', errno_of(disk.write, 3 * M - 512, b'x' * 1024),
                   'write across the end')
            expect('EINVAL', errno_of(disk.zeroes, 5 * M, 4096), 'zeroes')
            disk.write(3 * M - 512, b'x' * 512)
            disk.flush()
            expect(3 * M, image.size(), 'the size is still what was set')

            # Grown again it is empty where it was cut, and writable.
            image.resize(9 * M)
            expect(b'\0' * 4096, disk.read(5 * M, 4096), 'what was cut')
            disk.write(8 * M - 512, b'y' * 512)
            # librbd clips reads to the size it knows; asking makes it look.
            expect(9 * M, image.size())
            expect(b'y' * 512, image.read(8 * M - 512, 512))
            disk.write(6 * M, b'z' * M)
        # By us, below what was written.
        qsd.cmd('block_resize', node_name='n', size=6 * M + 512)
        expect(6 * M + 512, image.size(), 'the size we set')
        expect(b'z' * 512, image.read(6 * M, 512))
        qsd.cmd('block_resize', node_name='n', size=7 * M)
        expect(7 * M, image.size(), 'the size we set')
        cut = b'z' * 512 + bytes(M - 512)
        assert image.read(6 * M, M) == cut, 'what we cut is not empty'
        with qsd.nbd('n') as disk:
            assert disk.read(6 * M, M) == cut, 'what we cut, as we read it'
        log = qsd.log()
        assert (f"image '{POOL}/{name}': read of 4096 bytes at {5 * M} failed: "
                'Invalid argument') in log, log
    image.close()
    if features == DEFAULT:
        sound(POOL, name)


for features in PLAIN, DEFAULT:
    resized(f'i{features:x}', features)

# --- grown by QEMU, under a guest's disk --------------------------------------

image = create('d', 8 * M)
with Qemu.system('-blockdev', f'rbd,node-name=n,pool={POOL},image=d',
                 '-device', 'virtio-blk-pci,drive=n,share-rw=on,id=v') as vm:
    vm.cmd('cont')
    vm.io_ok('n', 'write -P 1 7M 1M')
    assert 'Input/output error' in vm.io('n', 'write 8M 4k')
    vm.cmd('block_resize', node_name='n', size=16 * M)
    vm.io_ok('n', 'write -P 2 15M 1M')
    expect(16 * M, image.size())
    expect(b'\1' * M + b'\0' * 7 * M + b'\2' * M, image.read(7 * M, 9 * M))
image.close()

# --- a qcow2 on it, and its stale idea of the size --------------------------

def grow_behind_qcow2(stock):
    """Size after a qcow2 allocates in an image that was grown meanwhile."""
    name = f'q{int(stock)}'
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2',
                    f'rbd:{POOL}/{name}', '64M'], check=True,
                   env=environment(stock))
    with Qemu.storage_daemon(stock=stock) as qsd:
        qsd.add(node_name='f', pool=POOL, image=name)
        qsd.cmd('blockdev-add', driver='qcow2', node_name='q', file='f')
        with qsd.nbd('q') as disk:
            disk.write(0, b'1' * 65536)
            disk.flush()
            with rbd.Image(io, name) as other:
                before = other.size()
                assert before < 40 * M
                other.resize(40 * M)
            disk.write(20 * M, b'2' * 65536)
            disk.flush()
            expect(b'1' * 65536, disk.read(0, 65536))
            expect(b'2' * 65536, disk.read(20 * M, 65536))
    with rbd.Image(io, name) as other:
        size = other.size()
    subprocess.run(['qemu-img', 'check', '-q', f'rbd:{POOL}/{name}'],
                   check=True, env=environment())
    return size


print('qcow2: stock left', grow_behind_qcow2(True), 'of', 40 * M)
expect(40 * M, grow_behind_qcow2(False), 'size after our write')

# --- two clients at once -----------------------------------------------------

for features in PLAIN, DEFAULT:
    name = f'g{features:x}'
    image = create(name, M, features)
    image.write(b'keep' * 1024, M - 4096)
    with Qemu.storage_daemon() as a, Qemu.storage_daemon() as b:
        for q in a, b:
            q.add(node_name='n', pool=POOL, image=name)
        for i in range(1, 13):
            # Both are on their way at the same time; what comes second counts.
            sizes = M + i * 8192, M + i * 8192 + 4096
            for q, size in zip((a, b), sizes[::(-1) ** i]):
                q.send('block_resize', node_name='n', size=size)
            for q in a, b:
                q.receive()
            assert image.size() in sizes, (image.size(), sizes)
        expect(b'keep' * 1024, image.read(M - 4096, 4096))
    image.close()
sound(POOL, name)
PY

# --- qemu-img resize ---------------------------------------------------------

rbd create "$pool/r" --size 2M
ours qemu-img resize -q -f raw "rbd:$pool/r" 4M
assert_match 'size 4 MiB' "$(rbd info "$pool/r")"
ours qemu-img resize -q -f raw "rbd:$pool/r" +1M
assert_match 'size 5 MiB' "$(rbd info "$pool/r")"
ours qemu-io -f raw -c 'write -P 7 0 5M' "rbd:$pool/r" > /dev/null
assert_fails_with 'Use the --shrink option to perform a shrink operation.' \
    ours qemu-img resize -f raw "rbd:$pool/r" 1M
ours qemu-img resize -q --shrink -f raw "rbd:$pool/r" 1M
assert_match 'size 1 MiB' "$(rbd info "$pool/r")"
ours qemu-img resize -q -f raw "rbd:$pool/r" 5M
ours qemu-io -f raw -c 'read -P 7 0 1M' -c 'read -P 0 1M 4M' "rbd:$pool/r" \
    > "$tmp/out"
assert_match '^read' "$(< "$tmp/out")"
! grep -i failed "$tmp/out" || fail 'wrong bytes after shrinking and growing'
assert_fails_with "Unsupported preallocation mode 'full'" \
    ours qemu-img resize --preallocation=full -f raw "rbd:$pool/r" 8M
assert_match 'size 5 MiB' "$(rbd info "$pool/r")"
assert_match 'flags: $' "$(rbd info "$pool/r")"
