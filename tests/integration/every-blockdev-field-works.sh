#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Each field of QEMU's BlockdevOptionsRbd does what its description says, in
# -blockdev, in QMP's blockdev-add and in -drive, in the emulator and in the
# storage daemon. What QAPI does not know is refused by name there.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon qemu-system-x86_64 ceph-authtool
requires_module
use_cluster
new_pool pool

export pool
qemu_python <<'PY'
import base64
import json
import os
import re
import subprocess

import rados
import rbd
from qemu import Qemu, environment, expect

POOL = os.environ['pool']
CONF = os.environ['CEPH_CONF']
with open(CONF) as f:
    text = f.read()
mon = re.search(r'^mon host = .*?v2:([\d.]+):(\d+)', text, re.M).groups()
keyring = re.search(r'^keyring = (.*)', text, re.M)[1]
def key_of(name):
    return subprocess.check_output(['ceph-authtool', keyring, '-n', name,
                                    '--print-key'], text=True).strip()
KEY = key_of('client.limited')

c = rados.Rados(conffile='')
c.connect()
io = c.open_ioctx(POOL)
rbd.RBD().namespace_create(io, 'space')
for ns, name, mib in (('', 'i', 1), ('', 'j', 2), ('space', 'i', 3)):
    io.set_namespace(ns)
    rbd.RBD().create(io, name, mib << 20, 0, False, rbd.RBD_FEATURE_LAYERING)
    with rbd.Image(io, name) as image:
        image.create_snap('before')
        image.resize((mib << 20) + 4096)

M = 1 << 20
# Without any file of Ceph: all comes from the options.
BARE = {'conf': '/dev/null', 'user': 'limited', 'key-secret': 'sec',
        'server': [{'host': mon[0], 'port': mon[1]}]}
SECRET = ('--object', f'secret,id=sec,format=base64,data={KEY}')
WRONG = base64.b64encode(base64.b64decode(KEY)[:12] + os.urandom(16)).decode()
SECRETS = (*SECRET, '--object', f'secret,id=wrong,format=base64,data={WRONG}')

GOOD = [
    (M + 4096, {'pool': POOL, 'image': 'i'}),
    (M + 4096, {'pool': POOL, 'namespace': '', 'image': 'i'}),
    (M, {'pool': POOL, 'image': 'i', 'snapshot': 'before',
         'read-only': True}),
    (M, {'pool': POOL, 'image': 'i', 'snapshot': 'before',
         'auto-read-only': True}),
    (3 * M + 4096, {'pool': POOL, 'namespace': 'space', 'image': 'i'}),
    (3 * M, {'pool': POOL, 'namespace': 'space', 'image': 'i',
             'snapshot': 'before', 'read-only': True}),
    (3 * M + 4096, {'pool': POOL, 'image': 'space/i'}),
    (2 * M + 4096, {'pool': POOL, 'image': 'j', 'conf': CONF}),
    (2 * M + 4096, {'pool': POOL, 'image': 'j', 'user': 'limited'}),
    (2 * M + 4096, {'pool': POOL, 'image': 'j',
                    'auth-client-required': ['cephx']}),
    (2 * M + 4096, {'pool': POOL, 'image': 'j',
                    'auth-client-required': ['cephx', 'none'], **BARE}),
    (M + 4096, {'pool': POOL, 'image': 'i', **BARE}),
    # What libvirt generates.
    (M + 4096, {'pool': POOL, 'image': 'i', **BARE,
                'auth-client-required': ['cephx', 'none'],
                'cache': {'direct': True, 'no-flush': False},
                'auto-read-only': True, 'discard': 'unmap'}),
    # One of two monitors does not exist.
    (M + 4096, {'pool': POOL, 'image': 'i', **BARE,
                'server': [{'host': '127.0.0.1', 'port': '9'},
                           *BARE['server']]}),
]
NO_MON = ('cannot connect to the Ceph cluster as client.limited: ')
BAD = [
    ("Parameter 'pin' is unexpected", {'pool': POOL, 'image': 'i',
                                       'pin': 'never'}),
    ("Parameter 'pool' is missing", {'image': 'i'}),
    ("Parameter 'image' is missing", {'pool': POOL}),
    ("image name is empty", {'pool': POOL, 'image': ''}),
    ("image name is empty", {'pool': POOL, 'image': 'space/'}),
    ("pool name is empty", {'pool': '', 'image': 'i'}),
    ("pool 'nowhere' does not exist", {'pool': 'nowhere', 'image': 'i'}),
    (f"image '{POOL}/x' does not exist", {'pool': POOL, 'image': 'x'}),
    (f"image '{POOL}/void/i': namespace 'void' does not exist",
     {'pool': POOL, 'namespace': 'void', 'image': 'i'}),
    (f"image '{POOL}/i@x': snapshot 'x' does not exist",
     {'pool': POOL, 'image': 'i', 'snapshot': 'x', 'read-only': True}),
    ("rbd snapshots are read-only",
     {'pool': POOL, 'image': 'i', 'snapshot': 'before'}),
    ("error reading conf file /none: No such file or directory",
     {'pool': POOL, 'image': 'i', 'conf': '/none'}),
    ("No secret with id 'sec2'", {'pool': POOL, 'image': 'i', **BARE,
                                  'key-secret': 'sec2'}),
    # A host without a protocol is tried as both, and librados waits for an
    # answer of the one that is not there; so the file names the monitor.
    (NO_MON + 'Permission denied',
     {'pool': POOL, 'image': 'i', 'user': 'limited', 'key-secret': 'wrong'}),
    (NO_MON + 'Permission denied',
     {'pool': POOL, 'image': 'i', 'user': 'limited', 'key-secret': 'sec',
      'auth-client-required': ['none']}),
    ("Parameter 'null' does not accept value 'krb'",
     {'pool': POOL, 'image': 'i', 'auth-client-required': ['krb']}),
    ("Encryption inside the RBD image is not supported; put QEMU's 'luks' "
     "driver on top of the image",
     {'pool': POOL, 'image': 'i',
      'encrypt': {'format': 'luks', 'key-secret': 'sec'}}),
]


def size_of(qemu, node):
    nodes = qemu.cmd('query-named-block-nodes', flat=True)
    return next(n['image']['virtual-size'] for n in nodes
                if n['node-name'] == node)


for start in Qemu.storage_daemon, Qemu.system:
    args = [x if start == Qemu.storage_daemon else x.replace('--', '-')
            for x in SECRETS]
    with start(*args) as qemu:
        for i, (size, options) in enumerate(GOOD):
            qemu.add(node_name=f'n{i}', **options)
            expect(size, size_of(qemu, f'n{i}'), f'size of {options}')
        for i in range(len(GOOD)):
            qemu.cmd('blockdev-del', node_name=f'n{i}')
        for text, options in BAD:
            qemu.fails(text, 'blockdev-add', driver='rbd', node_name='bad',
                       **options)

# The command line takes the same fields, as JSON and dotted.
for start, dash in (Qemu.storage_daemon, '--'), (Qemu.system, '-'):
    args = [x.replace('--', dash) for x in SECRET]
    for i, (size, options) in enumerate(GOOD):
        options = {'driver': 'rbd', 'node-name': f'n{i}', **options}
        args += [f'{dash}blockdev', json.dumps(options)]
    args += [f'{dash}blockdev',
             f'rbd,node-name=dots,pool={POOL},image=i,namespace=space,'
             f'conf=/dev/null,user=limited,key-secret=sec,'
             f'server.0.host={mon[0]},server.0.port={mon[1]},'
             'auth-client-required.0=cephx']
    with start(*args) as qemu:
        for i, (size, options) in enumerate(GOOD):
            expect(size, size_of(qemu, f'n{i}'), f'{dash}blockdev {options}')
        expect(3 * M + 4096, size_of(qemu, 'dots'))

# -drive has our own options too, and our second name once rbd was used.
drives = [
    (M + 4096, f'driver=rbd,pool={POOL},image=i,pin=never'),
    (M + 4096, f'format=raw,file=rbd:{POOL}/i:pin=always'),
    (3 * M + 4096, f'format=raw,file.driver=rbd,file.pool={POOL},'
                   'file.image=i,file.namespace=space,'
                   'file.pin-threshold=8k'),
    (M, f'format=raw,file.driver=rbd,file.pool={POOL},file.image=i,'
        'file.snapshot=before,readonly=on'),
    (2 * M + 4096, f'format=raw,file.driver=rbd,file.pool={POOL},'
                   'file.image=j,file.conf=/dev/null,file.user=limited,'
                   f'file.server.0.host={mon[0]},'
                   f'file.server.0.port={mon[1]},file.key-secret=sec'),
    (2 * M + 4096, f'format=raw,file.driver=rbd,file.pool={POOL},'
                   'file.image=j,file.conf=/dev/null,file.user=limited,'
                   f'file.server.0.host={mon[0]},'
                   f'file.server.0.port={mon[1]},file.password-secret=sec'),
    (2 * M + 4096, f'driver=pinrbd,pool={POOL},image=j'),
    (2 * M + 4096, f'format=raw,file=pinrbd:{POOL}/j'),
    (2 * M + 4096, 'file=json:{"driver":"raw",,"file":{"driver":"rbd",,'
                   '"pool":"%s",,"image":"j",,"pin":"never"}}' % POOL),
]
args = [x.replace('--', '-') for x in SECRET]
for i, (_, drive) in enumerate(drives):
    args += ['-drive', f'if=none,id=d{i},{drive}']
with Qemu.system(*args) as qemu:
    sizes = {b['device']: b['inserted']['image']['virtual-size']
             for b in qemu.cmd('query-block') if 'inserted' in b}
    for i, (size, drive) in enumerate(drives):
        expect(size, sizes[f'd{i}'], f'-drive {drive}')

for drive, text in (
        (f'driver=rbd,pool={POOL},image=i,frob=1',
         "Parameter 'frob' is unexpected"),
        (f'driver=rbd,pool={POOL},image=i,pin=x',
         "drive options: option 'pin' cannot be 'x', only auto|always|never"),
        (f'driver=rbd,pool={POOL},image=i,key-secret=sec,password-secret=sec',
         "Legacy 'password-secret' clashes with 'key-secret'")):
    p = subprocess.run(
        ['qemu-system-x86_64', '-nodefaults', '-display', 'none', '-S',
         *(x.replace('--', '-') for x in SECRET),
         '-drive', f'if=none,{drive}'], env=environment(), text=True,
        capture_output=True, timeout=120)
    expect(1, p.returncode, drive)
    expect(f'qemu-system-x86_64: -drive if=none,{drive}: {text}\n', p.stderr)
PY
