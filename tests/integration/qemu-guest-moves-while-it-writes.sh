#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# A guest writes to its disk all the time and is moved from one emulator to
# the next: no write that it saw completed is lost, none fails, whichever
# driver the two have. A migration that fails after the source has given up
# the image goes on there.
#
# The guest is one sector, at the start of the image: it writes its counter to
# one sector after the other, through the BIOS, and tells each number to port
# 0xe9 when the write is done. What all emulators of a guest have logged of
# that, in order, is 1, 2, 3, ...
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires qemu-system-x86_64 as objcopy
requires_module
use_cluster
new_pool pool

cat > "$tmp/guest.s" <<'ASM'
        .code16
        .intel_syntax noprefix
        xor     ax, ax
        mov     ds, ax
        mov     es, ax
        mov     ss, ax
        mov     sp, 0x7c00
        mov     [0x7e00], dl            # our disk
        mov     dword ptr [0x7e04], 0   # the counter
        mov     dword ptr [0x7e10], 0x00010010  # one sector
        mov     dword ptr [0x7e14], 0x8000      # ... of memory
        mov     dword ptr [0x7e1c], 0
next:   inc     dword ptr [0x7e04]
        mov     eax, [0x7e04]
        cld
        mov     di, 0x8000
        mov     cx, 128
        rep stosd
        mov     eax, [0x7e04]
        and     eax, 1023
        shl     eax, 4
        add     eax, 2048
        mov     [0x7e18], eax           # sector of the disk
        mov     si, 0x7e10
        mov     ax, 0x4300              # write
        mov     dl, [0x7e00]
        int     0x13
        mov     eax, [0x7e04]
        jnc     1f
        mov     eax, 0xffffffff
1:      mov     dx, 0xe9
        mov     cx, 4
2:      out     dx, al
        shr     eax, 8
        loop    2b
        jmp     next
ASM
as --32 -o "$tmp/guest.o" "$tmp/guest.s"
objcopy -O binary -j .text "$tmp/guest.o" "$tmp/guest"

export pool
qemu_python <<'PY'
import os
import struct

import rbd
from objectmap import ObjectMaps
from peers import (DEFAULT, RELEASED, Notifies, blocklist, connect, header_of,
                   owner_of, watchers_of)
from qemu import TMP, Qemu, expect, wait_for

POOL = os.environ['pool']
M = 1 << 20
c, io = connect(POOL)
fenced = blocklist()
with open(f'{TMP}/guest', 'rb') as f:
    CODE = f.read()
assert len(CODE) <= 510, len(CODE)
boot_sector = CODE + bytes(510 - len(CODE)) + b'\x55\xaa'


class Guest:
    """All emulators that it ever ran on."""

    def __init__(self, image):
        self.image = image
        rbd.RBD().create(io, image, 16 * M, 20, False, DEFAULT)
        with rbd.Image(io, image) as i:
            i.write(boot_sector, 0)
            self.id = i.id()
        self.logs = []

    def emulator(self, *args, stock=False, **env):
        log = f'{TMP}/{self.image}.{len(self.logs)}'
        self.logs.append(log)
        return Qemu.system(
            '-object', 'iothread,id=t0', '-debugcon', f'file:{log}',
            '-blockdev', f'rbd,node-name=n,pool={POOL},image={self.image}',
            '-device', 'virtio-blk-pci,drive=n,iothread=t0,bootindex=1',
            *args, stock=stock, env=env)

    def incoming(self, name, *args, **kw):
        return self.emulator('-incoming', f'unix:{TMP}/{name}', *args, **kw)

    def runs(self):
        """It does, on the newest emulator, for a while from now on."""
        log = self.logs[-1]
        target = os.path.getsize(log) + 4 * 150
        wait_for(f'{self.image} goes on', lambda: os.path.getsize(log) >=
                 target)

    def ran(self):
        """How many writes were done."""
        data = b''
        for log in self.logs:
            with open(log, 'rb') as f:
                data += f.read()
        n = len(data) // 4
        numbers = struct.unpack_from(f'<{n}I', data)
        assert numbers == tuple(range(1, n + 1)), (
            f'{self.image}: not all writes were done: ' +
            str([(i, x) for i, x in enumerate(numbers, 1) if i != x][:5]))
        return n

    def check(self):
        """The image, after its emulators have ended."""
        n = self.ran()
        with rbd.Image(io, self.image, read_only=True) as i:
            data = i.read(0, 16 * M)
            complaints = ObjectMaps(c, io, i.id()).check()
        assert not complaints, complaints
        assert data[:512] == boot_sector
        for slot in range(1024):
            at = M + slot * 8192
            got, = struct.unpack_from('<I', data, at)
            last = n - (n - slot) % 1024
            # The next one may have been on its way.
            good = {max(last, 0)} | ({n + 1} if (n + 1) % 1024 == slot
                                     else set())
            assert got in good, (f'{self.image}: {n} writes were done, sector '
                                 f'{slot} is of {got}, not of {good}')
            assert data[at:at + 512] == struct.pack('<I', got) * 128
            assert not any(data[at + 512:at + 8192]), f'behind {slot}'
        print(f'{self.image}: {n} writes')


def migrate(source, path, status='completed'):
    source.cmd('migrate', uri=f'unix:{TMP}/{path}')
    wait_for('the end of a migration', lambda: source.cmd(
        'query-migrate')['status'] in ('completed', 'failed'))
    expect(status, source.cmd('query-migrate')['status'], 'migration')


# --- from one to the next ----------------------------------------------------

for name, hosts, env in (
        ('cooperative', (0, 0, 0), {}),
        ('exclusive', (0, 0, 0), {'PINRBD_LOCK_POLICY': 'exclusive'}),
        ('mixed', (1, 0, 1), {})):
    guest = Guest(name)
    emulator = guest.emulator(stock=hosts[0], **env)
    emulator.cmd('cont')
    guest.runs()
    for i, stock in enumerate(hosts[1:]):
        following = guest.incoming(f'{name}{i}', stock=stock, **env)
        migrate(emulator, f'{name}{i}')
        wait_for('the guest is there', lambda: following.cmd(
            'query-status')['status'] == 'paused')
        following.cmd('cont')
        guest.runs()
        emulator.quit()
        emulator = following
    emulator.quit()
    guest.check()

# --- and back ----------------------------------------------------------------

# The destination finds a device that it does not have; that is at the end,
# when the source has stopped and let go.
guest = Guest('back')
notifies = Notifies(io, guest.id)
header = header_of(POOL, 'back')
with guest.emulator('-device', 'virtio-rng-pci') as source:
    source.cmd('migrate-set-capabilities', capabilities=[
        {'capability': 'return-path', 'state': True}])
    source.cmd('cont')
    guest.runs()
    owner = owner_of(POOL, 'back')
    for i in range(3):
        released = notifies.count(RELEASED)
        other = Qemu.system(
            '-incoming', f'unix:{TMP}/back{i}', '-object', 'iothread,id=t0',
            '-debugcon', f'file:{TMP}/nothing{i}',
            '-blockdev', f'rbd,node-name=n,pool={POOL},image=back',
            '-device', 'virtio-blk-pci,drive=n,iothread=t0,bootindex=1')
        migrate(source, f'back{i}', 'failed')
        guest.runs()
        expect(released + 1, notifies.count(RELEASED), 'times let go')
        expect(owner, owner_of(POOL, 'back'), 'owner')
        expect(1, other.p.wait(120), 'status of the destination')
        expect(0, os.path.getsize(f'{TMP}/nothing{i}'), 'what ran there')
    expect('running', source.cmd('query-status')['status'])
    expect(owner in [x for x, _, _ in watchers_of(POOL, header)], True)
notifies.close()
guest.check()
expect(fenced, blocklist(), 'clients shut out')
PY
