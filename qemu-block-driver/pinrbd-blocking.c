/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Running a blocking call on a short-lived thread.
 *
 *   caller           waits by                  woken by
 *   coroutine        yielding                  aio_co_wake() from the thread
 *   main thread      polling the event loop    aio_wait_kick()
 *   anything else    calling directly          -
 *
 * Polling is what qcow2 does in its open, close and reopen callbacks when it
 * reads or writes metadata there, so callers are prepared for it.  While the
 * loop is polled this way the monitors rest: no other command gets in between.
 *
 * "Anything else" is the migration thread.  It holds the big lock, and QEMU
 * would take it for the main thread; but two threads polling one event loop
 * is not something to add to.  The library bounds each of its calls.
 *
 * The thread is joined each time, so that none is left when QEMU exits.  It
 * is a plain thread: QEMU's sandbox allows those, and nothing here touches
 * affinity or scheduling.
 */
#include "qemu/osdep.h"

#include <sys/syscall.h>

#include "block/aio-wait.h"
#include "qemu/coroutine.h"

#include "pinrbd-blocking.h"
#include "pinrbd-compat.h"

struct blocking {
    pinrbd_blocking_fn *fn;
    void *arg;
    Coroutine *co;      /* NULL: the main thread polls */
    int result;
    bool done;          /* atomic; only for polling */
};

static gpointer blocking_thread(gpointer opaque)
{
    struct blocking *b = opaque;

    b->result = b->fn(b->arg);
    if (b->co) {
        aio_co_wake(b->co);
    } else {
        qatomic_store_release(&b->done, true);
        aio_wait_kick();
    }
    return NULL;
}

static bool in_main_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

int pinrbd_run_blocking(BlockDriverState *bs, pinrbd_blocking_fn *fn,
                        void *arg)
{
    bool in_coroutine = qemu_in_coroutine();
    struct blocking b = {
        .fn = fn,
        .arg = arg,
        .co = in_coroutine ? qemu_coroutine_self() : NULL,
    };
    GThread *thread;

    if (!in_coroutine && !in_main_thread()) {
        return fn(arg);
    }
    thread = g_thread_try_new("pinrbd-control", blocking_thread, &b, NULL);
    if (!thread) {
        return fn(arg);
    }
    if (in_coroutine) {
        qemu_coroutine_yield();
    } else {
        BDRV_POLL_WHILE(bs, !qatomic_load_acquire(&b.done));
    }
    g_thread_join(thread);
    return b.result;
}
