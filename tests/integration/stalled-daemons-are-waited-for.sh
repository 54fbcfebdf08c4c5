#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Daemons that do not answer: requests wait, a line of the log says which and
# what for, and when the daemons go on all of it completes. What a person
# waits for, opening and closing, comes to an end with a message instead.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-storage-daemon
requires_module
own_cluster --osds 1
new_pool pool
for image in a b c; do
    rbd create "$pool/$image" --size 64M --image-feature layering
done
osd=$(cluster pid "$cluster" osd.0)
mon=$(cluster pid "$cluster" mon.a)
cleanup_fn kill -CONT "$osd" "$mon"

export pool osd mon
qemu_python <<'PY'
import os
import re
import signal

from qemu import Qemu, expect, wait_for

POOL, OSD = os.environ['pool'], int(os.environ['osd'])
MON = int(os.environ['mon'])
BOUNDED = {'CEPH_ARGS': '--client_mount_timeout=3'}

with Qemu.storage_daemon() as a, Qemu.storage_daemon(env=BOUNDED) as b:
    a.add(node_name='n', pool=POOL, image='a')
    b.add(node_name='n', pool=POOL, image='b')
    disk = a.nbd('n')
    disk.write(0, b'0' * 4096)

    # The monitor is silent: what is open goes on, what opens gives up.
    os.kill(MON, signal.SIGSTOP)
    disk.write(0, b'1' * 4096)
    b.fails('cannot connect to the Ceph cluster as client.limited: '
            'Connection timed out', 'blockdev-add', driver='rbd',
            node_name='x', pool=POOL, image='c', user='limited')
    os.kill(MON, signal.SIGCONT)
    b.add(node_name='x', pool=POOL, image='c', user='limited')
    b.cmd('blockdev-del', node_name='x')

    os.kill(OSD, signal.SIGSTOP)
    writes = [disk.send(disk.WRITE, i << 20, 8192, bytes([i + 1]) * 8192)
              for i in range(8)]
    flush = disk.send(disk.FLUSH, 0, 0)
    read = disk.send(disk.READ, 0, 8192)

    b.fails(re.compile(rf"image '{POOL}/c': cannot read its id.*: "
                       'Connection timed out'),
            'blockdev-add', driver='rbd', node_name='x', pool=POOL,
            image='c')
    # Its watch cannot be taken back: that is said, and the node is gone.
    b.cmd('blockdev-del', node_name='n')
    assert (f"image '{POOL}/b': the cluster does not answer; its watch is "
            'left to expire and its connection stays open') in b.log(), b.log()

    wait_for('the log says what waits', lambda: re.search(
        rf"image '{POOL}/a': 10 requests wait, the oldest \(write of 8192 "
        r"bytes at \d+\) for \d+ s; the OSDs have not answered",
        a.log()))
    expect({}, disk.done, 'answers of an OSD that is stopped')

    os.kill(OSD, signal.SIGCONT)
    for handle in writes:
        disk.finish(handle)
    disk.finish(flush)
    disk.finish(read)
    for i in range(8):
        expect(bytes([i + 1]) * 8192, disk.read(i << 20, 8192))
    disk.close()
    # No more than that: the line does not come for what has completed.
    expect(1, a.log().count('requests wait'), 'lines')
    b.add(node_name='n', pool=POOL, image='b')
PY

# An address where no monitor is, and one that nobody has.
for address in '127.0.0.1\:1' '127.0.0.1\:1;127.0.0.1\:2'; do
    file="rbd:$pool/a:mon_host=$address:client_mount_timeout=3"
    assert_fails_with "Could not open '$file': cannot connect to the Ceph \
cluster as client.admin: Connection timed out" ours qemu-img info "$file"
    assert_fails_with "qemu-img: $file: cannot connect to the Ceph cluster as \
client.admin: Connection timed out" ours qemu-img create -f raw "$file" 1M
done
