# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# What every test script starts with:
#
#   #!/usr/bin/env bash
#   . "$(dirname "${BASH_SOURCE[0]}")/../lib/functions.sh"
#   requires rbd qemu-img
#   use_cluster
#   new_pool pool
#   rbd create "$pool/image" --size 16M
#   assert_match 'virtual size: 16 MiB' "$(ours qemu-img info "rbd:$pool/image")"
#
# A test ends with 0 (passed), 77 (skipped, the last line says why) or anything
# else (failed). It stops at the first command that fails, saying where. What
# it has to take back goes onto the clean-up stack at once (cleanup_fn) and is
# taken back, last first, however the test ends. Cleaning up happens in the
# test's main shell only, so call the functions below as commands, not inside
# $(...), unless they print something.
#
# Variables: $top (source tree), $build (build folder), $tmp (this test's own
# folder, removed at its end).

set -Eeuo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(realpath -m "${PINRBD_BUILD:-$top/build}")
# Programs of the system, /usr/sbin ones too, before a user's own.
PATH=$build:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
export LC_ALL=C.UTF-8
unset CEPH_ARGS QEMU_MODULE_DIR PINRBD_CONF

_cleanups=()

# cleanup_fn COMMAND...: run it when the test ends.
cleanup_fn() {
    _cleanups+=("${*@Q}")
}

_on_exit() {
    local rc=$? i
    trap - EXIT ERR
    trap '' HUP INT TERM
    set +e
    for ((i = ${#_cleanups[@]} - 1; i >= 0; i--)); do
        eval "${_cleanups[i]}" || echo "clean-up failed: ${_cleanups[i]}" >&2
    done
    exit "$rc"
}

# The lines of the test itself that led here.
_where() {
    local i
    for ((i = 1; i < ${#FUNCNAME[@]}; i++)); do
        [[ ${BASH_SOURCE[i]} == */lib/functions.sh ]] ||
            echo "  at ${BASH_SOURCE[i]}:${BASH_LINENO[i - 1]}" >&2
    done
}

_on_error() {
    local rc=$?
    ((BASH_SUBSHELL == 0)) || return "$rc"
    echo "FAILED with status $rc: $1" >&2
    _where
    return "$rc"
}

trap _on_exit EXIT
trap '_on_error "$BASH_COMMAND"' ERR
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

tmp=$(mktemp -d "${TMPDIR:-/tmp}/pinrbd-test.XXXXXX")
cleanup_fn rm -rf "$tmp"

# --- how a test ends ----------------------------------------------------------

skip() {
    echo "skip: $*"
    exit 77
}

# fail TEXT...: with the place in the test that found it.
fail() {
    trap - ERR
    echo "FAILED: $*" >&2
    _where
    exit 1
}

# requires COMMAND...: skip the test where one is missing.
requires() {
    local cmd
    for cmd; do
        command -v "$cmd" > /dev/null || skip "no $cmd here"
    done
}

# requires_module: ... where our module or stock QEMU's is missing.
requires_module() {
    requires qemu-img qemu-io
    [[ -e $build/modules/block-rbd.so ]] || skip "no $build/modules: make build"
}

# --- assertions ---------------------------------------------------------------

assert_eq() { # EXPECTED ACTUAL [WHAT]
    [[ $1 == "$2" ]] || fail "${3-values differ}:
  expected: $1
  got:      $2"
}

assert_match() { # REGULAR-EXPRESSION TEXT [WHAT]
    grep -qE -- "$1" <<< "$2" || fail "${3-text does not match}:
  expected: $1
  got:      $2"
}

# assert_fails_with TEXT COMMAND...: the command fails, not by a signal, and
# says TEXT. Its output is left in $output.
assert_fails_with() {
    local text=$1 rc=0
    shift
    output=$("$@" 2>&1 < /dev/null) || rc=$?
    ((rc != 0)) || fail "succeeded, but should fail with '$text': $*
$output"
    ((rc < 124)) || fail "ended with status $rc: $*
$output"
    [[ $output == *"$text"* ]] || fail "failed as it should, but not with
  expected: $text
  got:      $output"
}

# wait_for SECONDS COMMAND...: poll until it succeeds. The bound is there only
# so that a broken test ends: make it generous.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        ((SECONDS < end)) || fail "did not happen in time: $*"
        sleep 0.1
    done
}

# --- the cluster --------------------------------------------------------------

cluster() { "$top/tests/cluster/cluster" "$@"; }

# use_cluster: the cluster that all tests of a run share ($cluster is its
# folder); a test run by hand gets its own. Do nothing to its daemons.
use_cluster() {
    if [[ -n ${PINRBD_CLUSTER-} ]]; then
        cluster=$PINRBD_CLUSTER
        export CEPH_CONF=$cluster/ceph.conf
    else
        # shellcheck disable=SC2119
        own_cluster
    fi
}

# own_cluster [OPTIONS of cluster start]: one that this test may hurt. May be
# called more than once; $cluster and CEPH_CONF name the last.
_own_clusters=0
# shellcheck disable=SC2120 # tests give the options
own_cluster() {
    requires ceph-mon ceph-osd ceph-mgr ceph rbd
    _own_clusters=$((_own_clusters + 1))
    cluster=$tmp/cluster$_own_clusters
    cleanup_fn cluster stop "$cluster"
    cluster start "$cluster" "$@"
    export CEPH_CONF=$cluster/ceph.conf
}

# new_pool VARIABLE [PGS]: a pool of this test alone, its name in VARIABLE.
_pools=0
new_pool() {
    local _name
    _pools=$((_pools + 1))
    _name=$(basename "$0" .sh)
    _name=${_name//[^a-zA-Z0-9-]/-}-$$-$_pools
    cluster pool "$cluster" "$_name" "${2-8}"
    # Pools of a cluster of our own go with it.
    [[ $cluster == "$tmp"/* ]] || cleanup_fn cluster rm-pool "$cluster" "$_name"
    printf -v "$1" %s "$_name"
}

# Ceph's own clients, quiet and never waiting for ever.
rbd() { timeout -k 5 300 rbd "$@"; }
ceph() { timeout -k 5 300 ceph --connect-timeout 60 "$@"; }
rados() { timeout -k 5 300 rados "$@"; }

# --- QEMU ---------------------------------------------------------------------

# ours COMMAND...: with our module as QEMU's rbd driver.
ours() { QEMU_MODULE_DIR=$build/modules "$@"; }

# stock COMMAND...: with the driver that QEMU comes with.
stock() { (unset QEMU_MODULE_DIR; "$@"); }

boot() { "$top/tests/guest/boot" "$@"; }

# qemu_python [ARGUMENTS]: run the Python program on stdin, with the bindings
# of Ceph and with tests/lib/qemu.py to import.
qemu_python() {
    build=$build tmp=$tmp PYTHONPATH=$top/tests/lib PYTHONDONTWRITEBYTECODE=1 \
        /usr/bin/python3 - "$@"
}

# background VARIABLE [ours|stock] PROGRAM...: start it, its process id in
# VARIABLE; it is killed at the end of the test if it still runs.
background() {
    local _var=$1
    shift
    case $1 in
    ours)
        shift
        set -- env QEMU_MODULE_DIR="$build/modules" "$@"
        ;;
    stock) shift ;;
    esac
    "$@" < /dev/null &
    printf -v "$_var" %s "$!"
    cleanup_fn _kill_and_reap "$!"
}

_kill_and_reap() {
    kill -KILL "$1" 2>/dev/null
    wait "$1" 2>/dev/null
    return 0
}
