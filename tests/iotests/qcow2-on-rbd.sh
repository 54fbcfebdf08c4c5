#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# QEMU's iotests for qcow2 images, as far as they run on rbd: README.md.
. "$(dirname "${BASH_SOURCE[0]}")/common"
run_iotests qcow2 001 002 003 004 007 008 009 010 011 015 017 021 022 025 027 \
    032 033 035 047 062 073 105 143 145 181 197 201 215
