/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keeping the header watched.  Short OSD outages are invisible here, the
 * transport re-registers by itself with the same cookie.  A watch that expired
 * (a long outage, a suspended process) is dead: it is cleared away and a new
 * one registered, with growing pauses.  A fenced client gets -ESHUTDOWN and
 * stays off: registering again for ever would help nobody.
 *
 *                    started: error, never was on
 *          +---------------------------------------------+
 *          v                                             |
 *         OFF --watch_start()--> STARTING --started: 0--> ON
 *          ^                      ^   |                   |  failed
 *          |                timer |   | started: error    v
 *          |                      |   v                 BROKEN
 *          +--fenced, no header-- WAITING <--stopped--    | timer
 *          ^                               CLEARING <-----+
 *          +--stopped-- STOPPING <--timer-- ENDING <--watch_stop()-- ON
 *
 * Callbacks of the transport only change the state; what they lead to is done
 * by the timer, on the watchdog thread, so that nothing is called back into
 * the transport from inside it.
 */
#include "watch.h"

#include <errno.h>

#include "codec.h"

#define BACKOFF_MIN_MS 20
#define BACKOFF_MAX_MS 10000

/* The version librbd sends (16.2 to 20.2). */
#define NOTIFY_VERSION 7
#define NOTIFY_COMPAT 1

int notify_decode(const void *payload, size_t len, unsigned *ret_op)
{
    struct pdec d;
    struct pdec body;
    uint32_t op;

    if (!len) {
        *ret_op = NOTIFY_HEADER_UPDATE;
        return 0;
    }
    pdec_init(&d, payload, len);
    pdec_block(&d, NOTIFY_VERSION, &body);
    op = pdec_u32(&body);
    if (!pdec_ok(&d) || !pdec_ok(&body)) {
        return -EBADMSG;
    }
    *ret_op = op;
    return 0;
}

size_t notify_encode(enum notify_op op, uint8_t buf[NOTIFY_MAX])
{
    struct penc e;
    size_t block;

    penc_init(&e, buf, NOTIFY_MAX);
    block = penc_block(&e, NOTIFY_VERSION, NOTIFY_COMPAT);
    penc_u32(&e, op);
    penc_block_end(&e, block);
    return penc_len(&e);
}

static void enter_locked(struct header_watch *hw, enum watch_state state)
{
    hw->state = state;
    g_cond_broadcast(&hw->changed);
}

static void wait_backoff_locked(struct header_watch *hw)
{
    enter_locked(hw, WATCH_WAITING);
    ptimer_arm(&hw->timer, hw->backoff_ms);
    hw->backoff_ms = MIN(hw->backoff_ms * 2, BACKOFF_MAX_MS);
}

static void end_locked(struct header_watch *hw)
{
    enter_locked(hw, WATCH_ENDING);
    ptimer_arm(&hw->timer, 0);
}

/* ---- callbacks of the transport ---------------------------------------- */

static void started(struct rados_watch *w, int result)
{
    struct header_watch *hw = w->opaque;
    bool regained = false;
    bool gone = false;

    g_mutex_lock(&hw->lock);
    hw->result = result;
    if (result == 0 && hw->stop_wanted) {
        end_locked(hw);
    } else if (result == 0) {
        regained = hw->was_on;
        hw->was_on = true;
        hw->backoff_ms = BACKOFF_MIN_MS;
        enter_locked(hw, WATCH_ON);
    } else if (!hw->was_on || hw->stop_wanted) {
        enter_locked(hw, WATCH_OFF);
    } else if (result == -ESHUTDOWN || result == -ENOENT) {
        gone = true;
        enter_locked(hw, WATCH_OFF);
    } else {
        wait_backoff_locked(hw);
    }
    g_mutex_unlock(&hw->lock);

    if (regained) {
        hw->regained(hw->opaque);
    }
    if (gone) {
        hw->gone(hw->opaque, result);
    }
}

static void failed(struct rados_watch *w, int err)
{
    struct header_watch *hw = w->opaque;
    bool lost = false;

    g_mutex_lock(&hw->lock);
    if (hw->state == WATCH_ON && !hw->stop_wanted) {
        lost = true;
        enter_locked(hw, WATCH_BROKEN);
    }
    g_mutex_unlock(&hw->lock);

    if (lost) {
        hw->lost(hw->opaque, err);
        ptimer_arm(&hw->timer, 0);
    }
}

static void stopped(struct rados_watch *w, G_GNUC_UNUSED int result)
{
    struct header_watch *hw = w->opaque;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&hw->lock);

    if (hw->state == WATCH_CLEARING && !hw->stop_wanted) {
        wait_backoff_locked(hw);
    } else {
        enter_locked(hw, WATCH_OFF);
    }
}

static void notified(struct rados_watch *w, uint64_t notify_id,
                     G_GNUC_UNUSED uint64_t notifier, const void *payload,
                     size_t len)
{
    struct header_watch *hw = w->opaque;
    unsigned op;

    if (notify_decode(payload, len, &op) < 0) {
        watch_ack(hw, notify_id, false);
        return;
    }
    hw->message(hw->opaque, op, notify_id);
}

/* ---- what follows, on the watchdog thread ------------------------------ */

static void timer_fired(struct ptimer *t)
{
    struct header_watch *hw = (void *)((char *)t -
                                       offsetof(struct header_watch, timer));
    enum watch_state state;

    g_mutex_lock(&hw->lock);
    state = hw->state;
    if (hw->stop_wanted && state == WATCH_WAITING) {
        enter_locked(hw, WATCH_OFF);
    } else if (state == WATCH_WAITING) {
        enter_locked(hw, WATCH_STARTING);
    } else if (state == WATCH_BROKEN) {
        enter_locked(hw, WATCH_CLEARING);
    } else if (state == WATCH_ENDING) {
        enter_locked(hw, WATCH_STOPPING);
    }
    state = hw->state == state ? WATCH_OFF : hw->state;
    g_mutex_unlock(&hw->lock);

    if (state == WATCH_STARTING) {
        hw->pool->t->watch_start(hw->pool, &hw->w);
    } else if (state == WATCH_CLEARING || state == WATCH_STOPPING) {
        hw->pool->t->watch_stop(hw->pool, &hw->w);
    }
}

/* ---- control ----------------------------------------------------------- */

void watch_init(struct header_watch *hw)
{
    g_mutex_init(&hw->lock);
    g_cond_init(&hw->changed);
    hw->state = WATCH_OFF;
    hw->timer = (struct ptimer) { .fire = timer_fired };
}

void watch_clear(struct header_watch *hw)
{
    ptimer_cancel(&hw->timer);
    g_mutex_clear(&hw->lock);
    g_cond_clear(&hw->changed);
}

static bool wait_locked(struct header_watch *hw, gint64 deadline_us)
{
    if (!deadline_us) {
        g_cond_wait(&hw->changed, &hw->lock);
        return true;
    }
    return g_cond_wait_until(&hw->changed, &hw->lock, deadline_us);
}

int watch_start(struct header_watch *hw, gint64 deadline_us)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&hw->lock);

    while (hw->state != WATCH_OFF) {    /* an earlier stop that timed out */
        if (!wait_locked(hw, deadline_us)) {
            return -ETIMEDOUT;
        }
    }
    hw->was_on = false;
    hw->stop_wanted = false;
    hw->backoff_ms = BACKOFF_MIN_MS;
    hw->w = (struct rados_watch) {
        .oid = hw->oid, .started = started, .notified = notified,
        .failed = failed, .stopped = stopped, .opaque = hw,
    };
    enter_locked(hw, WATCH_STARTING);
    hw->pool->t->watch_start(hw->pool, &hw->w);
    while (hw->state == WATCH_STARTING) {
        if (!wait_locked(hw, deadline_us)) {
            hw->stop_wanted = true;
            return -ETIMEDOUT;
        }
    }
    return hw->result;
}

int watch_stop(struct header_watch *hw, gint64 deadline_us)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&hw->lock);

    hw->stop_wanted = true;
    if (hw->state == WATCH_ON) {
        end_locked(hw);
    } else if (hw->state == WATCH_WAITING) {
        ptimer_arm(&hw->timer, 0);
    }
    while (hw->state != WATCH_OFF) {
        if (!wait_locked(hw, deadline_us)) {
            return -ETIMEDOUT;
        }
    }
    return 0;
}

void watch_poll(struct header_watch *hw)
{
    bool on;
    int r;

    g_mutex_lock(&hw->lock);
    on = hw->state == WATCH_ON && !hw->stop_wanted;
    g_mutex_unlock(&hw->lock);
    if (on) {
        r = hw->pool->t->watch_check(hw->pool, &hw->w);
        if (r < 0) {
            failed(&hw->w, r);
        }
    }
}

void watch_ack(struct header_watch *hw, uint64_t notify_id, bool with_result)
{
    uint8_t buf[NOTIFY_MAX];
    struct penc e;

    penc_init(&e, buf, sizeof(buf));
    if (with_result) {
        size_t block = penc_block(&e, 1, 1);

        penc_u32(&e, 0);
        penc_block_end(&e, block);
    }
    hw->pool->t->notify_ack(hw->pool, hw->oid, notify_id, hw->w.cookie,
                            buf, penc_len(&e));
}
