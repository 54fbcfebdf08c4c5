/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Blocking on top of the seam, for open, create, resize and close.  A lost
 * cluster must not hold a caller longer than its deadline; since the transport
 * may still be reading our memory, giving up means cancel first and then wait
 * for the completion, which a cancelled operation gets at once.
 */
#include "rados_sync.h"

#include <errno.h>

void waiter_init(struct waiter *w)
{
    g_mutex_init(&w->lock);
    g_cond_init(&w->cond);
    w->done = false;
    w->result = 0;
}

void waiter_clear(struct waiter *w)
{
    g_mutex_clear(&w->lock);
    g_cond_clear(&w->cond);
}

void waiter_wake(struct waiter *w, int result)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&w->lock);

    w->done = true;
    w->result = result;
    g_cond_broadcast(&w->cond);
}

bool waiter_wait(struct waiter *w, gint64 deadline_us, int *ret_result)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&w->lock);

    while (!w->done) {
        if (!deadline_us) {
            g_cond_wait(&w->cond, &w->lock);
        } else if (!g_cond_wait_until(&w->cond, &w->lock, deadline_us)) {
            break;
        }
    }
    if (!w->done) {
        return false;
    }
    *ret_result = w->result;
    return true;
}

gint64 deadline_after(unsigned timeout_ms)
{
    return timeout_ms ? g_get_monotonic_time() +
                        timeout_ms * G_GINT64_CONSTANT(1000) : 0;
}

static void op_done(struct rados_op *op)
{
    waiter_wake(op->opaque, op->result);
}

int rados_op_sync(struct rados_pool *pool, struct rados_op *op,
                  gint64 deadline_us)
{
    struct waiter w;
    int r;

    waiter_init(&w);
    op->done = op_done;
    op->opaque = &w;
    rados_submit(pool, op);
    if (!waiter_wait(&w, deadline_us, &r)) {
        rados_cancel(pool, op);
        waiter_wait(&w, 0, &r);
        if (r == -ECANCELED) {
            r = -ETIMEDOUT;
        }
    }
    waiter_clear(&w);
    return r;
}

int rados_call_sync(struct rados_pool *pool, const char *oid, const char *cls,
                    const char *method, const void *in, size_t in_len,
                    gint64 deadline_us)
{
    struct iovec iov = { (void *)in, in_len };
    struct rados_step step = {
        .kind = RADOS_CALL, .cls = cls, .method = method,
        .iov = &iov, .n_iov = in_len ? 1 : 0,
    };
    struct rados_op op = {
        .oid = oid, .steps = &step, .n_steps = 1,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
    };

    return rados_op_sync(pool, &op, deadline_us);
}

int rados_query_sync(struct rados_pool *pool, const char *oid,
                     const char *cls, const char *method, const void *in,
                     size_t in_len, gint64 deadline_us, GByteArray *ret)
{
    struct iovec iov = { (void *)in, in_len };
    struct rados_step step = {
        .kind = RADOS_CALL, .cls = cls, .method = method,
        .iov = &iov, .n_iov = in_len ? 1 : 0,
    };
    struct rados_op op = { .oid = oid, .steps = &step, .n_steps = 1 };
    int r = rados_op_sync(pool, &op, deadline_us);

    if (r == 0) {
        g_byte_array_append(ret, step.out.data, step.out.len);
    }
    rados_op_done_with(pool, &op);
    return r;
}

/*
 * A notify cannot be taken back: whoever gives up waiting for it leaves it to
 * its callback.
 */
struct notified {
    unsigned refs;              /* atomic: the sender's, and the callback's */
    const struct rados_transport *t;
    struct waiter w;
    struct rados_notify n;
    char *oid;
};

static void notified_unref(struct notified *s)
{
    if (__atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        s->t->notify_release(&s->n);
        waiter_clear(&s->w);
        g_free(s->oid);
        g_free(s);
    }
}

static void notify_done(struct rados_notify *n)
{
    struct notified *s = n->opaque;

    waiter_wake(&s->w, n->result);
    notified_unref(s);
}

int rados_notify_sync(struct rados_pool *pool, const char *oid,
                      const void *payload, size_t len, unsigned timeout_ms,
                      GByteArray *reply)
{
    struct notified *s = g_new0(struct notified, 1);
    int r;

    s->refs = 2;
    s->t = pool->t;
    s->oid = g_strdup(oid);
    waiter_init(&s->w);
    s->n = (struct rados_notify) {
        .oid = s->oid, .payload = payload, .payload_len = len,
        .timeout_ms = timeout_ms, .done = notify_done, .opaque = s,
    };
    pool->t->notify(pool, &s->n);
    if (!waiter_wait(&s->w, deadline_after(2 * timeout_ms), &r)) {
        notified_unref(s);      /* no OSD is there to time it out */
        return -ETIMEDOUT;
    }
    if (reply && s->n.reply.len) {
        g_byte_array_append(reply, s->n.reply.data, s->n.reply.len);
    }
    notified_unref(s);
    return r;
}
