# SPDX-License-Identifier: GPL-2.0-or-later
#
# The other clients of an image, for tests of sharing it: librbd in a process
# of its own, which can be killed or stopped; a watcher of the header, which
# sees every notify; and what the cluster itself says about lock and watches,
# asked by the stock tools.
#
#   with Librbd('pool', 'image') as peer:
#       peer.write(0, b'abc')           blocks; raises OSError
#       n = peer.send('write', 0, 'YWJj')   ... in the background
#       peer.finish(n)
#       peer.kill()
#
# Run as a program, this file is that process: one JSON list a line in, one
# JSON list a line out, each command in a thread of its own.
import atexit
import base64
import errno
import json
import os
import re
import struct
import subprocess
import sys
import threading

import rados
import rbd

# What `rbd create` gives an image: layering, exclusive-lock, object-map,
# fast-diff, deep-flatten.
DEFAULT = 0x3d

# Numbers of librbd's notifies on a header.
ACQUIRED, RELEASED, REQUEST, UPDATE, PROGRESS = range(5)
SNAP_CREATE = 8


def connect(pool):
    """A connection that never ends before the process, and the pool in it."""
    cluster = rados.Rados(conffile='')
    cluster.conf_set('rbd_cache', 'false')
    cluster.connect()
    return cluster, cluster.open_ioctx(pool)


def create(io, name, size, order=22, features=DEFAULT):
    """Make an image; its id."""
    rbd.RBD().create(io, name, size, order, False, features)
    with rbd.Image(io, name, read_only=True) as image:
        return image.id()


# --- what the cluster says ----------------------------------------------------

def tool(*argv):
    """Output of a command that must succeed."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, \
        f'{" ".join(argv)}: status {done.returncode}\n{done.stderr}'
    return done.stdout


def fails(text, *argv):
    """The command fails and says @text."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode > 0, f'{" ".join(argv)}: succeeded\n{said}'
    assert text in said, f'{" ".join(argv)}: not {text!r} but\n{said}'


def header_of(pool, image):
    info = json.loads(tool('rbd', 'info', '--format', 'json',
                           f'{pool}/{image}'))
    return f'rbd_header.{info["id"]}'


def lock_of(pool, image):
    """The owner as `rbd lock ls` shows it: (client, cookie, address)."""
    locks = json.loads(tool('rbd', 'lock', 'ls', '--format', 'json',
                            f'{pool}/{image}'))
    assert len(locks) < 2, locks
    return locks and (locks[0]['locker'], locks[0]['id'], locks[0]['address'])


def watchers_of(pool, header):
    """[(client, handle, address)] of all watches on the header."""
    lines = tool('rados', '-p', pool, 'listwatchers', header)
    return [(client, int(handle), addr) for addr, client, handle in re.findall(
        r'^watcher=(\S+) (client\.\d+) cookie=(\d+)$', lines, re.M)]


def owner_of(pool, image):
    """
    The name of the owner, None if there is none. An owner's lock must be what
    librbd expects of one: exclusive, tag internal, and its cookie a watch.
    """
    header = header_of(pool, image)
    info = json.loads(tool('rados', '-p', pool, 'lock', 'info', header,
                           'rbd_lock'))
    if not info['lockers']:
        return None
    locker, = info['lockers']
    assert (info['type'], info['tag']) == ('exclusive', 'internal'), info
    match = re.fullmatch(r'auto (\d+)', locker['cookie'])
    assert match, f'cookie {locker["cookie"]!r}'
    live = [(c, h) for c, h, _ in watchers_of(pool, header)]
    assert (locker['name'], int(match[1])) in live, \
        f'{locker} is not the lock of one of the watches {live}'
    return locker['name']


def blocklist():
    """The addresses that are shut out."""
    text = tool('ceph', 'osd', 'blocklist', 'ls', '--format', 'json')
    # 16.2 says on stdout, too, how many there are.
    found, _ = json.JSONDecoder().raw_decode(text.lstrip())
    return [x['addr'] for x in found]


def sound(pool, image):
    """No object map of the image is wrong."""
    tool('rbd', 'object-map', 'check', '--no-progress', f'{pool}/{image}')
    info = json.loads(tool('rbd', 'info', '--format', 'json',
                           f'{pool}/{image}'))
    assert not info['flags'], f'flags of {image}: {info["flags"]}'


class Notifies:
    """
    All notifies on an image's header from now on, [(number, payload)]. It
    acks each as a watcher does that owns nothing.
    """

    def __init__(self, io, image_id):
        self.seen = []
        self.watch = io.watch(f'rbd_header.{image_id}', self._got, None, None)
        # The bindings want it gone before the connection.
        atexit.register(self.close)

    def _got(self, _notify, _from, _watch, data):
        number, = struct.unpack_from('<I', data, 6) if data else (UPDATE,)
        self.seen.append((number, data))

    def count(self, number):
        return sum(n == number for n, _ in self.seen)

    def close(self):
        atexit.unregister(self.close)
        self.watch.close()


# --- librbd in a process of its own -------------------------------------------

class Librbd:
    """Without a cache: a write that has returned is on the OSDs."""

    def __init__(self, pool, image, user='admin', **conf):
        self.p = subprocess.Popen(
            ['/usr/bin/python3', __file__, pool, image, user,
             json.dumps({k: str(v) for k, v in conf.items()})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.p.pid
        self.sent = 0
        self.done = {}
        hello = self.p.stdout.readline()
        assert hello, 'librbd did not start'
        self.client, self.address = json.loads(hello)

    def send(self, name, *args):
        self.sent += 1
        print(json.dumps([self.sent, name, *args]), file=self.p.stdin,
              flush=True)
        return self.sent

    def wait(self, n):
        """(errno, value) of a command that was sent."""
        while n not in self.done:
            line = self.p.stdout.readline()
            assert line, f'librbd ended: {self.p.wait()}'
            got, err, value = json.loads(line)
            self.done[got] = (err, value)
        return self.done.pop(n)

    def finish(self, n):
        err, value = self.wait(n)
        if err:
            raise OSError(err, os.strerror(err))
        return value

    def send_write(self, off, data):
        return self.send('write', off, base64.b64encode(data).decode())

    def write(self, off, data):
        self.finish(self.send_write(off, data))

    def read(self, off, n):
        return base64.b64decode(self.finish(self.send('read', off, n)))

    def lock_acquire(self):
        self.finish(self.send('lock_acquire'))

    def lock_release(self):
        self.finish(self.send('lock_release'))

    def kill(self):
        self.p.kill()
        self.p.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None and self.p.poll() is None:
            self.p.stdin.close()
            assert self.p.wait(120) == 0, f'librbd: {self.p.returncode}'
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()


def serve(pool, name, user, conf):
    cluster = rados.Rados(conffile='', rados_id=user,
                          conf={'rbd_cache': 'false', **conf})
    cluster.connect()
    io = cluster.open_ioctx(pool)
    image = rbd.Image(io, name)
    handlers = {
        'write': lambda off, data: image.write(base64.b64decode(data), off),
        'read': lambda off, n: base64.b64encode(image.read(off, n)).decode(),
        'lock_acquire': lambda: image.lock_acquire(
            rbd.RBD_LOCK_MODE_EXCLUSIVE),
        'lock_release': image.lock_release,
        'snap_create': image.create_snap,
    }
    out = threading.Lock()

    def answer(n, call, *args):
        err, value = 0, None
        try:
            value = handlers[call](*args)
        except (rbd.Error, rados.Error) as e:
            err = getattr(e, 'errno', None) or errno.EIO
        with out:
            print(json.dumps([n, abs(err), value]), flush=True)

    print(json.dumps([f'client.{cluster.get_instance_id()}',
                      cluster.get_addrs()]), flush=True)
    threads = []
    for line in sys.stdin:
        threads.append(threading.Thread(target=answer, args=json.loads(line)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    image.close()
    io.close()
    cluster.shutdown()


if __name__ == '__main__':
    serve(*sys.argv[1:4], json.loads(sys.argv[4]))
