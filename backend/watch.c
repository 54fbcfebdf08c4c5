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

/* The version from which the requests below carry an async id. */
#define NOTIFY_VERSION_ASYNC 7

/* ---- messages ----------------------------------------------------------- */

static void decode_client(struct pdec *d, struct notify_client *c)
{
    c->gid = pdec_u64(d);
    c->handle = pdec_u64(d);
}

static void decode_async(struct pdec *d, struct notify_msg *m)
{
    decode_client(d, &m->async.client);
    m->async.id = pdec_u64(d);
    m->has_async = pdec_ok(d);
}

static void decode_snap(struct pdec *d, struct notify_msg *m)
{
    struct pdec ns;

    pdec_text(d, m->name, sizeof(m->name));
    pdec_block(d, 1, &ns);
    m->snap_type = pdec_u32(&ns);
    if (!pdec_ok(&ns)) {
        pdec_fail(d);
    }
}

/* The fields behind the op; true if all that we act upon could be read. */
static bool decode_fields(struct pdec *d, unsigned version,
                          struct notify_msg *m)
{
    size_t len;

    switch (m->op) {
    case NOTIFY_ACQUIRED_LOCK:
    case NOTIFY_RELEASED_LOCK:
    case NOTIFY_REQUEST_LOCK:
        decode_client(d, &m->client);
        break;
    case NOTIFY_ASYNC_PROGRESS:
        decode_async(d, m);
        m->off = pdec_u64(d);
        m->total = pdec_u64(d);
        break;
    case NOTIFY_ASYNC_COMPLETE:
        decode_async(d, m);
        m->result = (int32_t)pdec_u32(d);
        break;
    case NOTIFY_RESIZE:
        m->size = pdec_u64(d);
        decode_async(d, m);
        m->allow_shrink = pdec_left(d) ? pdec_u8(d) : true;
        break;
    case NOTIFY_SNAP_CREATE:
    case NOTIFY_SNAP_REMOVE:
        if (version < NOTIFY_VERSION_ASYNC) {
            break;
        }
        decode_snap(d, m);
        decode_async(d, m);
        if (m->op == NOTIFY_SNAP_CREATE) {
            m->snap_flags = pdec_u64(d);
        }
        break;
    case NOTIFY_SNAP_RENAME:
        (void)pdec_u64(d);
        decode_snap(d, m);      /* the new name */
        decode_async(d, m);
        break;
    case NOTIFY_SNAP_PROTECT:
    case NOTIFY_SNAP_UNPROTECT:
        decode_snap(d, m);
        decode_async(d, m);
        break;
    case NOTIFY_RENAME:
        pdec_text(d, m->name, sizeof(m->name));
        decode_async(d, m);
        break;
    case NOTIFY_UPDATE_FEATURES:
        (void)pdec_u64(d);
        (void)pdec_u8(d);
        decode_async(d, m);
        break;
    case NOTIFY_METADATA_UPDATE:
        (void)pdec_blob(d, &len);
        if (pdec_u8(d)) {
            (void)pdec_blob(d, &len);
        }
        decode_async(d, m);
        break;
    case NOTIFY_FLATTEN:
    case NOTIFY_REBUILD_OBJECT_MAP:
    case NOTIFY_MIGRATE:
    case NOTIFY_SPARSIFY:
    case NOTIFY_QUIESCE:
    case NOTIFY_UNQUIESCE:
        decode_async(d, m);
        break;
    default:
        break;
    }
    return pdec_ok(d);
}

int notify_decode(const void *payload, size_t len, struct notify_msg *ret)
{
    struct notify_msg m = { .op = NOTIFY_HEADER_UPDATE };
    struct pdec d;
    struct pdec body;
    unsigned version;

    if (len) {
        pdec_init(&d, payload, len);
        version = pdec_block(&d, NOTIFY_VERSION, &body);
        m.op = pdec_u32(&body);
        if (!pdec_ok(&d) || !pdec_ok(&body)) {
            return -EBADMSG;
        }
        if (!decode_fields(&body, version, &m)) {
            if (m.op < NOTIFY_FLATTEN) {
                return -EBADMSG;
            }
            m = (struct notify_msg) { .op = m.op };
        }
    }
    *ret = m;
    return 0;
}

static void encode_client(struct penc *e, const struct notify_client *c)
{
    penc_u64(e, c->gid);
    penc_u64(e, c->handle);
}

static void encode_async(struct penc *e, const struct notify_async *a)
{
    encode_client(e, &a->client);
    penc_u64(e, a->id);
}

size_t notify_encode(const struct notify_msg *m, uint8_t buf[NOTIFY_MAX])
{
    struct penc e;
    size_t block;

    penc_init(&e, buf, NOTIFY_MAX);
    block = penc_block(&e, NOTIFY_VERSION, NOTIFY_COMPAT);
    penc_u32(&e, m->op);
    switch (m->op) {
    case NOTIFY_ACQUIRED_LOCK:
    case NOTIFY_RELEASED_LOCK:
        encode_client(&e, &m->client);
        break;
    case NOTIFY_REQUEST_LOCK:
        encode_client(&e, &m->client);
        penc_u8(&e, 0);         /* not by force */
        break;
    case NOTIFY_ASYNC_PROGRESS:
        encode_async(&e, &m->async);
        penc_u64(&e, m->off);
        penc_u64(&e, m->total);
        break;
    case NOTIFY_ASYNC_COMPLETE:
        encode_async(&e, &m->async);
        penc_u32(&e, m->result);
        break;
    case NOTIFY_QUIESCE:
    case NOTIFY_UNQUIESCE:
        encode_async(&e, &m->async);
        break;
    default:
        break;
    }
    penc_block_end(&e, block);
    return penc_len(&e);
}

/* A response: what a watcher's acknowledgement holds when it is not empty. */
static bool decode_response(const char *data, size_t len, int *ret)
{
    struct pdec d;
    struct pdec body;

    pdec_init(&d, data, len);
    pdec_block(&d, 1, &body);
    *ret = (int32_t)pdec_u32(&body);
    return pdec_ok(&d) && pdec_ok(&body);
}

int notify_reply_decode(const void *reply, size_t len,
                        const struct notify_client *who,
                        struct notify_reply *ret)
{
    struct notify_reply r = { 0 };
    struct pdec d;

    pdec_init(&d, reply, len);
    for (unsigned list = 0; list < 2; list++) {     /* acked, then missing */
        uint32_t n = pdec_count(&d, list ? 16 : 20);

        for (uint32_t i = 0; i < n; i++) {
            struct notify_client c;
            size_t ack_len = 0;
            const char *ack = NULL;

            decode_client(&d, &c);
            if (!list) {
                ack = pdec_blob(&d, &ack_len);
            }
            r.listed |= c.gid == who->gid && c.handle == who->handle;
            if (ack_len && decode_response(ack, ack_len, &r.result)) {
                r.answered = true;
            }
        }
    }
    if (!pdec_ok(&d)) {
        return -EBADMSG;
    }
    *ret = r;
    return 0;
}

/* ---- states ------------------------------------------------------------- */

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
    struct notify_msg m;

    if (notify_decode(payload, len, &m) < 0) {
        watch_ack(hw, notify_id);
        return;
    }
    hw->message(hw->opaque, &m, notify_id);
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
        .oid = hw->oid, .timeout_s = hw->timeout_s, .started = started,
        .notified = notified,
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

static bool is_on(struct header_watch *hw)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&hw->lock);

    return hw->state == WATCH_ON && !hw->stop_wanted;
}

int watch_age_ms(struct header_watch *hw)
{
    return is_on(hw) ? hw->pool->t->watch_check(hw->pool, &hw->w) : -ENOTCONN;
}

void watch_poll(struct header_watch *hw)
{
    int r = is_on(hw) ? hw->pool->t->watch_check(hw->pool, &hw->w) : 0;

    if (r < 0) {
        failed(&hw->w, r);
    }
}

bool watch_cookie(struct header_watch *hw, uint64_t *ret)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&hw->lock);

    /* The transport sets it, before it says that the watch has started. */
    if (hw->state != WATCH_ON || hw->stop_wanted) {
        return false;
    }
    *ret = hw->w.cookie;
    return true;
}

static void ack(struct header_watch *hw, uint64_t notify_id,
                const void *payload, size_t len)
{
    hw->pool->t->notify_ack(hw->pool, hw->oid, notify_id, hw->w.cookie,
                            payload, len);
}

void watch_ack(struct header_watch *hw, uint64_t notify_id)
{
    ack(hw, notify_id, "", 0);
}

void watch_ack_result(struct header_watch *hw, uint64_t notify_id, int result)
{
    uint8_t buf[16];
    struct penc e;
    size_t block;

    penc_init(&e, buf, sizeof(buf));
    block = penc_block(&e, 1, 1);
    penc_u32(&e, result);
    penc_block_end(&e, block);
    ack(hw, notify_id, buf, penc_len(&e));
}
