#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# QEMU's iotests for qcow2 images whose output differs from the reference on rbd,
# whoever the driver is: with ours it is what it is with stock. README.md has
# the reasons.
. "$(dirname "${BASH_SOURCE[0]}")/common"
compare_with_stock qcow2 029 066 068 104 114 130
