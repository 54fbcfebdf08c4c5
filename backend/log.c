/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The library never prints.  It hands complete lines to the sink that the
 * program set; the sink is called under a lock, so lines never interleave and
 * a sink that is being replaced is not running any more.
 */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>

static GMutex sink_lock;
static pinrbd_log_fn *sink;
static void *sink_opaque;
static gint sink_level = -1;    /* atomic: read before any formatting */

void pinrbd_log_set(pinrbd_log_fn *fn, void *opaque,
                    enum pinrbd_log_level level)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&sink_lock);

    sink = fn;
    sink_opaque = opaque;
    g_atomic_int_set(&sink_level, fn ? (gint)level : -1);
}

void plog(enum pinrbd_log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    if ((gint)level > g_atomic_int_get(&sink_level)) {
        return;
    }
    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);

    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&sink_lock);
    if (sink) {
        sink(sink_opaque, level, line);
    }
}

int perror_set(struct pinrbd_error *reterr, int code, const char *fmt, ...)
{
    va_list ap;

    if (reterr) {
        reterr->code = code;
        va_start(ap, fmt);
        vsnprintf(reterr->text, sizeof(reterr->text), fmt, ap);
        va_end(ap);
    }
    return code;
}

bool plog_limit_pass(struct plog_limit *limit, unsigned every_ms,
                     unsigned *ret_held_back)
{
    gint64 now = g_get_monotonic_time();
    gint64 next = __atomic_load_n(&limit->next_us, __ATOMIC_RELAXED);

    if (now < next ||
        !__atomic_compare_exchange_n(&limit->next_us, &next,
                                     now + every_ms * G_GINT64_CONSTANT(1000),
                                     false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&limit->held_back, 1, __ATOMIC_RELAXED);
        return false;
    }
    *ret_held_back = __atomic_exchange_n(&limit->held_back, 0,
                                         __ATOMIC_RELAXED);
    return true;
}

const char *pinrbd_version(void)
{
    return PINRBD_VERSION;
}
