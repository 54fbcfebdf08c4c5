# SPDX-License-Identifier: GPL-2.0-or-later
#
# Talk to QEMU programs from a test: QMP over stdio, and a small NBD client,
# which can write any bytes anywhere, and has all requests a guest has.
#
#   with Qemu.storage_daemon() as qsd:
#       qsd.add(driver='rbd', node_name='n', pool=pool, image='i')
#       with qsd.nbd('n') as disk:
#           disk.write(0, b'abc')
#       qsd.cmd('blockdev-del', node_name='n')
#   qsd.log()       all that it said on stderr
#
# Our driver is used unless stock=True. Leaving the block quits the program in
# order and fails if it does not end with status 0.
import errno
import json
import os
import random
import re
import socket
import struct
import subprocess
import tempfile
import threading
import time

BUILD = os.environ['build']
TMP = os.environ['tmp']
# Ends a test that hangs; nothing is expected to come near it.
GUARD_S = 120


def wait_for(what, condition, seconds=GUARD_S):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f'did not happen in time: {what}'
        time.sleep(0.05)


def expect(expected, got, what='value'):
    assert expected == got, f'{what}:\n  expected: {expected}\n  got:      {got}'


def environment(stock=False, env=None):
    new = dict(os.environ)
    if not stock:
        new['QEMU_MODULE_DIR'] = f'{BUILD}/modules'
    new.update(env or {})
    return new


class QmpError(Exception):
    pass


class Qemu:
    """A running QEMU program with QMP on its stdin and stdout."""

    def __init__(self, argv, stock=False, env=None):
        self.err = tempfile.NamedTemporaryFile(dir=TMP, prefix='qemu-err.')
        self.events = []
        self.printed = []       # lines on stdout that are not QMP
        self.p = subprocess.Popen(
            ['stdbuf', '-oL', *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.err, env=environment(stock, env), text=True)
        self.pid = self.p.pid
        greeting = self.p.stdout.readline()
        assert greeting, f'{argv} did not start:\n{self.log()}'
        self.cmd('qmp_capabilities')

    @classmethod
    def storage_daemon(cls, *args, **kw):
        return cls(['qemu-storage-daemon', '--chardev', 'stdio,id=qmp',
                    '--monitor', 'chardev=qmp', *args], **kw)

    @classmethod
    def system(cls, *args, **kw):
        return cls(['qemu-system-x86_64', '-accel', 'tcg', '-M', 'pc',
                    '-m', '64', '-S', '-nodefaults', '-display', 'none',
                    '-qmp', 'stdio', *args], **kw)

    def send(self, name, /, **args):
        args = {k.replace('_', '-'): v for k, v in args.items()}
        print(json.dumps({'execute': name, 'arguments': args}),
              file=self.p.stdin, flush=True)

    def receive(self):
        """The answer to the oldest command that has none yet."""
        while True:
            line = self.p.stdout.readline()
            assert line, f'QEMU ended ({self.p.wait()}):\n{self.log()}'
            if not line.startswith('{'):
                self.printed.append(line)
                continue
            answer = json.loads(line)
            if 'event' in answer:
                self.events.append(answer)
            elif 'error' in answer:
                raise QmpError(answer['error']['desc'])
            else:
                return answer['return']

    def cmd(self, name, /, **args):
        self.send(name, **args)
        return self.receive()

    def hmp(self, line):
        return self.cmd('human-monitor-command', command_line=line)

    def io(self, node, line):
        """HMP's qemu-io on a node; returns what it printed."""
        self.printed.clear()
        text = self.hmp(f'qemu-io {node} "{line}"')
        return ''.join(self.printed) + text

    def io_ok(self, node, line):
        text = self.io(node, line)
        assert 'ops;' in text and 'verif' not in text, f'{line}: {text}'

    def fails(self, text, name, /, **args):
        """The command fails, and says exactly @text (or what matches it)."""
        try:
            got = self.cmd(name, **args)
        except QmpError as e:
            got = str(e)
            if isinstance(text, re.Pattern):
                assert text.fullmatch(got), f'{got!r} is not {text.pattern!r}'
            else:
                expect(text, got, f'error of {name}')
            return
        raise AssertionError(f'{name} succeeded: {got}')

    def add(self, **options):
        opts = {'driver': 'rbd', **options}
        self.cmd('blockdev-add', **opts)

    def nbd(self, node, writable=True):
        if not hasattr(self, 'socket_path'):
            self.socket_path = tempfile.mktemp(dir=TMP, prefix='nbd.')
            self.cmd('nbd-server-start', max_connections=16, addr={
                'type': 'unix', 'data': {'path': self.socket_path}})
        self.cmd('block-export-add', type='nbd', id=f'x-{node}',
                 node_name=node, name=node, writable=writable)
        return Nbd(self, node)

    def end_nbd(self, node):
        """Take the export back; connections to it must have ended."""
        def deleted():
            try:
                self.cmd('block-export-del', id=f'x-{node}')
                return True
            except QmpError as e:
                # The server has not seen the end of a connection yet.
                assert 'still in use' in str(e), e
                return False

        wait_for('the export lets go', deleted)
        wait_for('the export is gone', lambda: not any(
            x['id'] == f'x-{node}' for x in self.cmd('query-block-exports')))

    def threads(self):
        return len(os.listdir(f'/proc/{self.pid}/task'))

    def log(self):
        with open(self.err.name, errors='replace') as f:
            return f.read()

    def quit(self):
        self.cmd('quit')
        rc = self.p.wait(GUARD_S)
        assert rc == 0, f'ended with {rc}:\n{self.log()}'

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None and self.p.poll() is None:
            self.quit()
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()
        if kind is not None:
            print(f'--- stderr of {self.p.args[0]}:\n{self.log()}')


class Nbd:
    """One connection; requests may be sent ahead and waited for later."""
    READ, WRITE, DISC, FLUSH, TRIM, ZEROES = 0, 1, 2, 3, 4, 6
    FUA, NO_HOLE = 1, 2

    def __init__(self, qemu, node):
        self.qemu = qemu
        self.node = node
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(GUARD_S)
        self.s.connect(qemu.socket_path)
        magic, opt, _ = struct.unpack('>8s8sH', self._get(18))
        assert magic == b'NBDMAGIC' and opt == b'IHAVEOPT'
        # fixed newstyle, no zeroes; option EXPORT_NAME
        self.s.sendall(struct.pack('>I8sII', 3, b'IHAVEOPT', 1, len(node)) +
                       node.encode())
        self.size, _ = struct.unpack('>QH', self._get(10))
        self.handle = 0
        self.waiting = {}       # handle -> (length of a read, or 0)
        self.done = {}          # handle -> (errno, data)

    def _get(self, n):
        parts = []
        while n:
            part = self.s.recv(min(n, 1 << 20))
            assert part, f'NBD server hung up:\n{self.qemu.log()}'
            parts.append(part)
            n -= len(part)
        return b''.join(parts)

    def send(self, kind, off, n, data=b'', flags=0):
        self.handle += 1
        self.waiting[self.handle] = n if kind == self.READ else 0
        self.s.sendall(struct.pack('>IHHQQI', 0x25609513, flags, kind,
                                   self.handle, off, n) + data)
        return self.handle

    def wait(self, handle):
        """(errno, data) of a request that was sent."""
        while handle not in self.done:
            magic, err, got = struct.unpack('>IIQ', self._get(16))
            assert magic == 0x67446698
            n = self.waiting.pop(got)
            self.done[got] = (err, self._get(n) if not err else b'')
        return self.done.pop(handle)

    def finish(self, handle):
        err, data = self.wait(handle)
        if err:
            raise OSError(err, os.strerror(err))
        return data

    def read(self, off, n):
        return self.finish(self.send(self.READ, off, n))

    def write(self, off, data, fua=False):
        self.finish(self.send(self.WRITE, off, len(data), data,
                              self.FUA if fua else 0))

    def trim(self, off, n):
        self.finish(self.send(self.TRIM, off, n))

    def zeroes(self, off, n, unmap=True):
        self.finish(self.send(self.ZEROES, off, n, b'',
                              0 if unmap else self.NO_HOLE))

    def flush(self):
        self.finish(self.send(self.FLUSH, 0, 0))

    def close(self, end_export=True):
        self.s.sendall(struct.pack('>IHHQQI', 0x25609513, 0, self.DISC, 0,
                                   0, 0))
        self.s.close()
        if end_export:
            self.qemu.end_nbd(self.node)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        else:
            self.s.close()


def errno_of(call, *args):
    try:
        call(*args)
    except OSError as e:
        return errno.errorcode.get(e.errno, e.errno)
    return 0


class Load(threading.Thread):
    """
    A guest that keeps @depth writes in flight until it is stopped, or until
    one fails: each fills one of @slots slots of @n bytes with its own number.
    The connection is its own from here on. It can go on @after another one,
    which has ended.
    """

    def __init__(self, disk, slots, n=4096, depth=8, seed=0, after=None):
        super().__init__(daemon=True)
        self.disk, self.slots, self.n, self.depth = disk, slots, n, depth
        self.rng = random.Random(seed)
        self.number = after.number if after else 0
        # Of the last acknowledged write to each slot.
        self.acked = list(after.acked) if after else [0] * slots
        self.done = 0               # acknowledged writes
        self.ending = False
        self.failed = None          # errno of the first failure
        self.error = None           # anything else that went wrong
        self.longest_s = 0.0        # without any acknowledgement
        self.start()

    def fill(self, number):
        return struct.pack('<Q', number) * (self.n // 8)

    def run(self):
        try:
            self.work()
        except BaseException as e:
            self.error = e

    def work(self):
        flying = []
        last = time.monotonic()
        while flying or not (self.ending or self.failed):
            if len(flying) < self.depth and not (self.ending or self.failed):
                busy = [slot for _, slot, _ in flying]
                slot = self.rng.randrange(self.slots)
                if slot in busy:
                    continue
                self.number += 1
                flying.append((self.number, slot, self.disk.send(
                    Nbd.WRITE, slot * self.n, self.n, self.fill(self.number))))
                continue
            number, slot, handle = flying.pop(0)
            err, _ = self.disk.wait(handle)
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - last)
            last = now
            if err:
                self.failed = self.failed or err
            else:
                self.acked[slot] = number
                self.done += 1

    def beat(self):
        """Wait until writes that are sent from now on have been done."""
        target = self.done + 2 * self.depth + 1
        wait_for('the guest goes on', lambda: self.done >= target or
                 self.failed or self.error)
        self.alive()

    def alive(self):
        name = errno.errorcode.get(self.failed)
        assert not self.failed, f"a write failed: {name}"
        assert not self.error, repr(self.error)

    def stop(self):
        self.ending = True
        self.join(GUARD_S)
        assert not self.is_alive(), 'writes never ended'
        self.alive()

    def check(self, read):
        """What @read(off, n) finds is what was acknowledged last."""
        data = read(0, self.slots * self.n)
        for slot, number in enumerate(self.acked):
            at = slot * self.n
            if data[at:at + self.n] != self.fill(number):
                found, = struct.unpack_from('<Q', data, at)
                raise AssertionError(
                    f'slot {slot}: write {number} was acknowledged, '
                    f'{found} is there')
