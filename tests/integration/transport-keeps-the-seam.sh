#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The librados transport against the promises of rados_op.h, on a cluster of
# its own: the test pauses it and stops its OSD.
. "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
requires ceph rados
own_cluster --osds 1
new_pool pool
"$build/tests/integration/transport_test" "$pool" \
    "$("$top/tests/cluster/cluster" pid "$cluster" osd.0)"
