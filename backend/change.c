/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The tools of whatever changes an image as a whole: image_resize.c,
 * image_snapshot.c, and maintenance.c for other clients.  All of them block,
 * run with the image's `control' lock, and pin the exclusive lock where the
 * image has one; the sequences and the order of their steps are librbd's, so
 * that a crash between two of them leaves what librbd knows how to deal with.
 */
#include "change.h"

#include <errno.h>

#include "cls_lock.h"
#include "rados_sync.h"

#define WINDOW 16               /* requests of ours at a time */

gint64 change_deadline(struct pinrbd_image *image)
{
    return deadline_after(cluster_mount_timeout_ms(image->cluster));
}

int change_fail(struct pinrbd_image *image, int code,
                struct pinrbd_error *reterr, const char *doing)
{
    return perror_set(reterr, code, "image '%s': %s: %s", image->spec, doing,
                      g_strerror(-code));
}

bool change_interrupted(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    return image->maintenance.interrupted || image->dead ||
           (image->maintenance.yields && image->maintenance.waiting);
}

void change_map_home(struct pinrbd_image *image, const struct image_meta *meta,
                     struct object_map_home *home)
{
    *home = (struct object_map_home) {
        .pool = image->md_pool, .header_oid = image->header_oid,
        .image_id = image->id, .spec = image->spec, .flags = meta->flags,
        .fast_diff = meta->features & PINRBD_FEATURE_FAST_DIFF,
    };
}

bool change_has_map(const struct image_meta *meta)
{
    return meta->features & PINRBD_FEATURE_OBJECT_MAP;
}

/* New writes wait, and those on their way end.  -ETIMEDOUT undoes it. */
int change_stop_writes(struct pinrbd_image *image, gint64 deadline_us)
{
    bool idle = true;
    int r;

    image_gate(image, GATE_CONTROL, 0);
    g_mutex_lock(&image->lock);
    while (idle && !image->dead && image_active_writes(image)) {
        if (deadline_us) {
            idle = g_cond_wait_until(&image->changed, &image->lock,
                                     deadline_us);
        } else {
            g_cond_wait(&image->changed, &image->lock);
        }
    }
    r = image->dead ? image->dead : idle ? 0 : -ETIMEDOUT;
    g_mutex_unlock(&image->lock);
    if (r < 0) {
        image_gate(image, 0, GATE_CONTROL);
    }
    return r;
}

void change_let_writes_go(struct pinrbd_image *image)
{
    image_gate(image, 0, GATE_CONTROL);
}

/* A snapshot by others has to wait while we send requests on our own. */
static void change_running(struct pinrbd_image *image, int change)
{
    g_mutex_lock(&image->lock);
    image->maintenance.running += change;
    g_mutex_unlock(&image->lock);
    if (change < 0) {
        image_drained(image);
    }
}

struct range {
    struct pinrbd_image *image;
    GMutex lock;
    GCond changed;
    unsigned in_flight;         /* under lock */
    int result;                 /* under lock */
    uint64_t *progress;         /* atomic: bytes done */
    uint64_t step;
};

static void range_part_done(void *opaque, int result)
{
    struct range *range = opaque;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&range->lock);

    if (result < 0 && range->result == 0) {
        range->result = result;
    }
    __atomic_add_fetch(range->progress, range->step, __ATOMIC_RELAXED);
    range->in_flight--;
    g_cond_signal(&range->changed);
}

/*
 * Send requests of our own kind for bytes @from to @to, whole objects except
 * for the first ones, a few at a time.  -EINTR when told to end.
 */
int change_range(struct pinrbd_image *image, enum request_kind kind,
                 uint64_t snap_id, uint64_t from, uint64_t to,
                 uint64_t *progress)
{
    uint64_t step = image->layout.object_size * image->layout.count;
    struct range range = { .image = image, .step = step,
                           .progress = progress };
    int r = 0;

    g_mutex_init(&range.lock);
    g_cond_init(&range.changed);
    change_running(image, 1);
    while (from < to && r == 0) {
        uint64_t end = (from / step + 1) * step;
        int result;

        g_mutex_lock(&range.lock);
        while (range.in_flight >= WINDOW) {
            g_cond_wait(&range.changed, &range.lock);
        }
        range.in_flight++;
        r = range.result;
        g_mutex_unlock(&range.lock);
        if (r == 0 && change_interrupted(image)) {
            r = -EINTR;
        }
        if (r < 0) {
            range_part_done(&range, r);
        } else if (request_maintain(image, kind, snap_id, from, end - from,
                                    range_part_done, &range, &result)) {
            range_part_done(&range, result);
        }
        from = end;
    }
    g_mutex_lock(&range.lock);
    while (range.in_flight) {
        g_cond_wait(&range.changed, &range.lock);
    }
    r = range.result;
    g_mutex_unlock(&range.lock);
    change_running(image, -1);
    g_mutex_clear(&range.lock);
    g_cond_clear(&range.changed);
    return r;
}

/* Others shall read the header again. */
void change_tell_all(struct pinrbd_image *image)
{
    struct notify_msg m = { .op = NOTIFY_HEADER_UPDATE };
    int r = image_notify(image, &m, NULL);

    if (r < 0) {
        plog(PINRBD_LOG_WARN, "image '%s': not all clients were told of its "
             "new header: %s", image->spec, g_strerror(-r));
    }
}

/*
 * One call on the header while the lock on it, if there is one, is ours: -EBUSY
 * if it was lost.
 */
int change_header_call(struct pinrbd_image *image, const char *method,
                       const struct penc *in, gint64 deadline_us)
{
    uint8_t assertion[LOCK_ASSERT_MAX];
    struct iovec assertion_iov;
    struct iovec iov = { in->start, penc_len(in) };
    struct rados_step steps[2];
    struct rados_op op = {
        .oid = image->header_oid, .steps = steps,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
    };
    char cookie[sizeof(image->lk.cookie)];
    bool needed, owned;

    g_mutex_lock(&image->lock);
    needed = image_needs_lock_locked(image);
    owned = image->lk.owned;
    g_strlcpy(cookie, image->lk.cookie, sizeof(cookie));
    g_mutex_unlock(&image->lock);
    if (needed && !owned) {
        return -EBUSY;
    }
    if (needed) {
        lock_assert_step(&steps[op.n_steps++], &assertion_iov, assertion,
                         cookie, LOCK_TAG);
    }
    steps[op.n_steps++] = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "rbd", .method = method, .iov = &iov,
        .n_iov = 1,
    };
    return rados_op_sync(image->md_pool, &op, deadline_us);
}

/* One call on an object map; on the head's, its lock must be ours. */
int change_map_call(struct pinrbd_image *image, uint64_t snap_id,
                    const char *method, const void *in, size_t len,
                    gint64 deadline_us)
{
    uint8_t assertion[LOCK_ASSERT_MAX];
    struct iovec assertion_iov;
    struct iovec iov = { (void *)in, len };
    char oid[OBJECT_MAP_OID_MAX];
    struct rados_step steps[2];
    struct rados_op op = {
        .oid = oid, .steps = steps, .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
    };

    object_map_oid(oid, image->id, snap_id);
    if (snap_id == RADOS_NOSNAP) {
        lock_assert_step(&steps[op.n_steps++], &assertion_iov, assertion, "",
                         "");
    }
    steps[op.n_steps++] = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "rbd", .method = method, .iov = &iov,
        .n_iov = len ? 1 : 0,
    };
    return rados_op_sync(image->md_pool, &op, deadline_us);
}

/* A map could not be brought along: nobody may believe it any more. */
int change_map_failed(struct pinrbd_image *image,
                      const struct image_meta *meta, uint64_t snap_id,
                      int error, gint64 deadline_us)
{
    struct object_map_home home;

    if (snap_id == RADOS_NOSNAP && meta->flags & FLAG_OBJECT_MAP_INVALID) {
        return 0;               /* said before */
    }
    plog(PINRBD_LOG_WARN, "image '%s': an object map cannot follow (%s) and "
         "is marked invalid; `rbd object-map rebuild' makes a new one",
         image->spec, g_strerror(-error));
    change_map_home(image, meta, &home);
    return object_map_invalidate(&home, snap_id, deadline_us);
}

/*
 * What was changed on disk comes into use at once, with writes held: none may
 * be decided by the size of one time and the map of another.
 */
int change_use_header(struct pinrbd_image *image, gint64 deadline_us)
{
    bool owned;
    int r = image_refresh_sync(image, deadline_us);

    g_mutex_lock(&image->lock);
    owned = image->lk.owned;
    g_mutex_unlock(&image->lock);
    if (r == 0 && owned) {
        r = image_map_reload(image, deadline_us);
        if (r < 0) {
            /* the map in memory is that of before: none writes by it */
            image_gate(image, GATE_LOCK, 0);
            image_lock_lost(image);
        }
    }
    return r;
}

int change_begin(struct pinrbd_image *image, struct pinrbd_error *reterr)
{
    int r;

    if (!image->writable) {
        return perror_set(reterr, -EROFS, "image '%s' is open read-only and "
                          "cannot be changed", image->spec);
    }
    r = image_lock_pin(image, change_deadline(image));
    return r < 0 ? change_fail(image, r, reterr, "cannot get its lock") : 0;
}
