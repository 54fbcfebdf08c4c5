#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The librados transport against the promises of rados_op.h, on a cluster of
# its own: the test pauses it and stops its OSD.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires ceph rados
# An OSD that stood still longer than its read lease does not always get out of
# "waiting for readable" (16.2, alone in its cluster): so the lease is long.
own_cluster --osds 1 --conf 'osd heartbeat grace = 600'
new_pool pool
"$build/tests/integration/transport_test" "$pool" \
    "$("$top/tests/cluster/cluster" pid "$cluster" osd.0)" \
    "$("$top/tests/cluster/cluster" pid "$cluster" mon.a)"
