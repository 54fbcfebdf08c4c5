/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Maintenance for other clients.  While we own the lock `rbd' asks us for it.
 * What would make the guest wait for long if `rbd' did it, for that it needs
 * the lock, we do ourselves: snapshots, resizing, and the long part of a
 * flatten.  Everything else is answered with -EOPNOTSUPP, upon which `rbd' asks
 * for the lock and does it.  So it ends a flatten, too: detaching a child from
 * its parent touches both images, and with nothing left to copy it is quick.
 *
 *      request -> answer 0 -> progress every few seconds -> AsyncComplete
 *
 * A request that is repeated, since an answer got lost, is told what became of
 * the first.
 */
#include "maintenance.h"

#include <errno.h>
#include <inttypes.h>

#include "change.h"
#include "jobs.h"

#define TASK_RUNNING 1          /* in struct task_result */
#define PROGRESS_MS 5000
#define COMPLETE_TRIES 5
#define HOLD_OFF_MS 5000        /* time for `rbd' to do what we do not */
#define HOLD_OFF_LONG_MS 30000

struct task {
    struct pinrbd_image *image;
    struct notify_msg m;
    struct ptimer timer;
    uint64_t progress;          /* atomic: bytes */
    uint64_t total;             /* atomic */
    GMutex lock;
    GCond idle;
    bool sending;               /* under lock: the notify is on its way */
    struct rados_notify notify;
    uint8_t payload[NOTIFY_MAX];
};

static void progress_sent(struct rados_notify *n)
{
    struct task *t = n->opaque;

    n->opaque = NULL;
    t->image->md_pool->t->notify_release(n);
    g_mutex_lock(&t->lock);
    t->sending = false;
    g_cond_broadcast(&t->idle);
    g_mutex_unlock(&t->lock);
}

static void progress_fired(struct ptimer *timer)
{
    struct task *t = (void *)((char *)timer - offsetof(struct task, timer));
    struct rados_pool *pool = t->image->md_pool;
    struct notify_msg m = {
        .op = NOTIFY_ASYNC_PROGRESS, .async = t->m.async,
        .off = __atomic_load_n(&t->progress, __ATOMIC_RELAXED),
        .total = __atomic_load_n(&t->total, __ATOMIC_RELAXED),
    };
    bool busy;

    m.off = MIN(m.off, m.total);
    g_mutex_lock(&t->lock);
    busy = t->sending;
    t->sending = true;
    g_mutex_unlock(&t->lock);
    if (!busy) {
        t->notify = (struct rados_notify) {
            .oid = t->image->header_oid, .payload = t->payload,
            .payload_len = notify_encode(&m, t->payload),
            .timeout_ms = PROGRESS_MS, .done = progress_sent, .opaque = t,
        };
        pool->t->notify(pool, &t->notify);
    }
    ptimer_arm(timer, PROGRESS_MS);
}

static void set_yields(struct pinrbd_image *image, bool yields)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->maintenance.yields = yields;
}

static int flatten(struct task *t)
{
    struct pinrbd_image *image = t->image;
    struct image_meta *meta = image_meta(image);
    uint64_t overlap = meta->parent_overlap;
    int r = 0;

    meta_unref(meta);
    __atomic_store_n(&t->total, overlap, __ATOMIC_RELAXED);
    if (overlap) {
        set_yields(image, true);
        r = change_range(image, REQUEST_FLATTEN, 0, 0, overlap, &t->progress);
        set_yields(image, false);
    }
    return r < 0 ? r : -EOPNOTSUPP;
}

static int task_do(struct task *t)
{
    struct pinrbd_image *image = t->image;
    const struct notify_msg *m = &t->m;

    switch (m->op) {
    case NOTIFY_RESIZE:
        __atomic_store_n(&t->total, pinrbd_image_size(image),
                         __ATOMIC_RELAXED);
        if (m->size > INT64_MAX || (!m->allow_shrink &&
                                    m->size < pinrbd_image_size(image))) {
            return -EINVAL;
        }
        return resize_image(image, m->size, 0, &t->progress);
    case NOTIFY_SNAP_CREATE:
        return snapshot_create(image, m->name, m->snap_flags);
    case NOTIFY_SNAP_REMOVE:
        return snapshot_remove(image, m->name);
    case NOTIFY_FLATTEN:
        return flatten(t);
    default:
        return -EOPNOTSUPP;
    }
}

static unsigned hold_off_ms(const struct notify_msg *m)
{
    switch (m->op) {
    case NOTIFY_FLATTEN:
    case NOTIFY_SPARSIFY:
    case NOTIFY_REBUILD_OBJECT_MAP:
    case NOTIFY_MIGRATE:
    case NOTIFY_RESIZE:
        return HOLD_OFF_LONG_MS;
    default:
        return HOLD_OFF_MS;
    }
}

static struct task_result *known_locked(struct pinrbd_image *image,
                                        const struct notify_async *async)
{
    struct maintenance *mt = &image->maintenance;

    for (unsigned i = 0; i < TASKS_REMEMBERED; i++) {
        const struct notify_async *a = &mt->known[i].async;

        if (a->id == async->id && a->client.gid == async->client.gid &&
            a->client.handle == async->client.handle) {
            return &mt->known[i];
        }
    }
    return NULL;
}

static void task_job(void *opaque)
{
    struct task *t = opaque;
    struct pinrbd_image *image = t->image;
    struct notify_msg end = {
        .op = NOTIFY_ASYNC_COMPLETE, .async = t->m.async,
    };
    struct task_result *known;
    GMutexLocker *locker;
    int r;

    ptimer_arm(&t->timer, PROGRESS_MS);
    locker = control_locker_new(image);
    r = change_interrupted(image) ? -EINTR :
        image_lock_pin(image, change_deadline(image));
    if (r == 0) {
        r = task_do(t);
        image_lock_unpin(image);
    }
    g_mutex_locker_free(locker);
    ptimer_cancel(&t->timer);

    /* told to end: the client tries again, with whoever owns the lock then */
    end.result = r == -EINTR ? -ERESTART : r;
    if (r == -EOPNOTSUPP) {
        image_lock_expect(image, &t->m.async.client, hold_off_ms(&t->m));
    }
    plog(PINRBD_LOG_INFO, "image '%s': maintenance (%u) for client.%" PRIu64
         " ended with %d", image->spec, t->m.op, t->m.async.client.gid,
         end.result);
    g_mutex_lock(&image->lock);
    known = known_locked(image, &t->m.async);
    if (known && end.result == -ERESTART) {
        *known = (struct task_result) { 0 };    /* it comes again, the same */
    } else if (known) {
        known->result = end.result;
    }
    g_mutex_unlock(&image->lock);
    r = -ETIMEDOUT;
    for (unsigned i = 0; r == -ETIMEDOUT && i < COMPLETE_TRIES; i++) {
        r = image_notify(image, &end, NULL);
    }
    g_mutex_lock(&t->lock);
    while (t->sending) {
        g_cond_wait(&t->idle, &t->lock);
    }
    g_mutex_unlock(&t->lock);
    g_mutex_clear(&t->lock);
    g_cond_clear(&t->idle);
    g_free(t);

    g_mutex_lock(&image->lock);
    image->maintenance.tasks--;
    g_cond_broadcast(&image->changed);
    g_mutex_unlock(&image->lock);
    image_release(image);
}

static bool can_do(const struct notify_msg *m)
{
    return m->has_async &&
           (m->op == NOTIFY_RESIZE || m->op == NOTIFY_FLATTEN ||
            ((m->op == NOTIFY_SNAP_CREATE || m->op == NOTIFY_SNAP_REMOVE) &&
             m->snap_type == 0));
}

/* 0: begun, or 1: known already, *@ret_answer says how far; -ERESTART. */
static int task_begin_locked(struct pinrbd_image *image,
                             const struct notify_msg *m, int *ret_answer)
{
    struct maintenance *mt = &image->maintenance;
    struct task_result *known = known_locked(image, &m->async);

    if (known) {
        *ret_answer = known->result == TASK_RUNNING ? 0 : known->result;
        return 1;
    }
    if (mt->interrupted || image->closing) {
        return -ERESTART;
    }
    mt->known[mt->next_known++ % TASKS_REMEMBERED] = (struct task_result) {
        m->async, TASK_RUNNING,
    };
    mt->tasks++;
    image_hold(image);
    *ret_answer = 0;
    return 0;
}

bool maintenance_requested(struct pinrbd_image *image,
                           const struct notify_msg *m, int *ret_answer)
{
    struct task *t;
    bool owned;
    int r = 1;

    g_mutex_lock(&image->lock);
    owned = image->lk.owned;
    if (owned && can_do(m)) {
        r = task_begin_locked(image, m, ret_answer);
    }
    g_mutex_unlock(&image->lock);
    if (!owned) {
        return false;
    }
    if (!can_do(m)) {
        if (m->has_async) {
            image_lock_expect(image, &m->async.client, hold_off_ms(m));
        }
        *ret_answer = -EOPNOTSUPP;
    } else if (r < 0) {
        *ret_answer = r;
    } else if (r == 0) {
        t = g_new0(struct task, 1);
        t->image = image;
        t->m = *m;
        t->timer.fire = progress_fired;
        g_mutex_init(&t->lock);
        g_cond_init(&t->idle);
        job_start("pinrbd-task", task_job, t);
    }
    return true;
}

GMutexLocker *control_locker_new(struct pinrbd_image *image)
{
    GMutexLocker *locker;

    g_mutex_lock(&image->lock);
    image->maintenance.waiting++;
    g_mutex_unlock(&image->lock);
    locker = g_mutex_locker_new(&image->control);
    g_mutex_lock(&image->lock);
    image->maintenance.waiting--;
    g_mutex_unlock(&image->lock);
    return locker;
}

void maintenance_stop(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->maintenance.interrupted = true;
    g_cond_broadcast(&image->changed);
    while (image->maintenance.tasks) {
        g_cond_wait(&image->changed, &image->lock);
    }
}

void maintenance_resume(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->maintenance.interrupted = false;
}
