#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# QEMU's iotests for raw images, as far as they run on rbd: README.md.
. "$(dirname "${BASH_SOURCE[0]}")/common"
run_iotests raw 001 002 003 004 008 009 010 011 021 025 032 033 077 143 145 181 \
    197 215
