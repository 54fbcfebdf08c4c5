/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What changes an image as a whole.  All of it blocks, runs with the image's
 * `control' lock, and pins the exclusive lock where the image has one; the
 * sequences and the order of their steps are librbd's, so that a crash between
 * two of them leaves what librbd knows how to deal with.
 *
 *   grow        map on disk; size
 *   shrink      new size in memory, so that requests beyond it fail; writes on
 *               their way end; data behind it removed; size; map on disk
 *   snapshot    id (takes a second: before anything waits); other clients
 *               quiesce; our writes wait and end; header; map copied
 *   remove      map merged into the next newer one; id given back; header
 *   rollback    writes wait; size; map claims all; objects; map
 *   flatten     each object gets its parent's data; the caller does the rest
 *
 * Other clients.  While we own the lock `rbd' asks us for maintenance.  What
 * would make the guest wait for long if `rbd' did it (for that it needs the
 * lock) we do ourselves: snapshots, resizing, and the long part of a flatten.
 * Everything else is answered with -EOPNOTSUPP, upon which `rbd' asks for the
 * lock and does it.  So it ends a flatten, too: detaching a child from its
 * parent touches both images, and with nothing left to copy it is quick.
 *
 *      request -> answer 0 -> progress every few seconds -> AsyncComplete
 *
 * A request that is repeated, since an answer got lost, is told what became of
 * the first.
 */
#include "maintenance.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "cls_lock.h"
#include "codec.h"
#include "image.h"
#include "jobs.h"
#include "rados_sync.h"

#define TASK_RUNNING 1          /* in struct task_result */
#define MAX_TRIES 10
#define WINDOW 16               /* requests of ours at a time */
#define PROGRESS_MS 5000
#define COMPLETE_TRIES 5
#define HOLD_OFF_MS 5000        /* time for `rbd' to do what we do not */
#define HOLD_OFF_LONG_MS 30000

static gint64 control_deadline(struct pinrbd_image *image)
{
    return deadline_after(cluster_mount_timeout_ms(image->cluster));
}

static int fail(struct pinrbd_image *image, int code,
                struct pinrbd_error *reterr, const char *doing)
{
    return perror_set(reterr, code, "image '%s': %s: %s", image->spec, doing,
                      g_strerror(-code));
}

static bool interrupted(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    return image->maintenance.interrupted || image->dead;
}

static void home_of(struct pinrbd_image *image, const struct image_meta *meta,
                    struct object_map_home *home)
{
    *home = (struct object_map_home) {
        .pool = image->md_pool, .header_oid = image->header_oid,
        .image_id = image->id, .spec = image->spec, .flags = meta->flags,
        .fast_diff = meta->features & PINRBD_FEATURE_FAST_DIFF,
    };
}

static bool has_map(const struct image_meta *meta)
{
    return meta->features & PINRBD_FEATURE_OBJECT_MAP;
}

/* ---- tools --------------------------------------------------------------- */

/* New writes wait, and those on their way end.  -ETIMEDOUT undoes it. */
static int writes_stop(struct pinrbd_image *image, gint64 deadline_us)
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

static void writes_go(struct pinrbd_image *image)
{
    image_gate(image, 0, GATE_CONTROL);
}

/* A snapshot by others has to wait while we send requests on our own. */
static void running(struct pinrbd_image *image, int change)
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
static int for_range(struct pinrbd_image *image, enum request_kind kind,
                     uint64_t snap_id, uint64_t from, uint64_t to,
                     uint64_t *progress)
{
    uint64_t step = image->layout.object_size * image->layout.count;
    struct range range = { .image = image, .step = step,
                           .progress = progress };
    int r = 0;

    g_mutex_init(&range.lock);
    g_cond_init(&range.changed);
    running(image, 1);
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
        if (r == 0 && interrupted(image)) {
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
    running(image, -1);
    g_mutex_clear(&range.lock);
    g_cond_clear(&range.changed);
    return r;
}

/* Others shall read the header again. */
static void tell_all(struct pinrbd_image *image)
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
static int header_call(struct pinrbd_image *image, const char *method,
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
static int map_call(struct pinrbd_image *image, uint64_t snap_id,
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
static int map_failed(struct pinrbd_image *image,
                      const struct image_meta *meta, uint64_t snap_id,
                      int error, gint64 deadline_us)
{
    struct object_map_home home;

    plog(PINRBD_LOG_WARN, "image '%s': an object map cannot follow (%s) and "
         "is marked invalid; `rbd object-map rebuild' makes a new one",
         image->spec, g_strerror(-error));
    home_of(image, meta, &home);
    return object_map_invalidate(&home, snap_id, deadline_us);
}

/* ---- size ---------------------------------------------------------------- */

static int map_resize(struct pinrbd_image *image,
                      const struct image_meta *meta, uint64_t size,
                      gint64 deadline_us)
{
    uint8_t in[9];
    struct penc e;
    int r;

    if (!has_map(meta)) {
        return 0;
    }
    penc_init(&e, in, sizeof(in));
    penc_u64(&e, striper_objects(&image->layout, size));
    penc_u8(&e, OBJECT_NONEXISTENT);
    r = map_call(image, RADOS_NOSNAP, "object_map_resize", in, sizeof(in),
                 deadline_us);
    if (r < 0 && r != -ESHUTDOWN && r != -EBUSY) {
        r = map_failed(image, meta, RADOS_NOSNAP, r, deadline_us);
    }
    return r;
}

/* -EAGAIN: the header is another than the one that was read. */
static int set_size(struct pinrbd_image *image, const struct image_meta *meta,
                    uint64_t size, gint64 deadline_us)
{
    uint8_t in[8];
    struct penc e;
    struct iovec iov = { in, sizeof(in) };
    struct rados_step steps[] = {
        { .kind = RADOS_ASSERT_VERSION, .off = meta->version },
        { .kind = RADOS_CALL, .cls = "rbd", .method = "set_size",
          .iov = &iov, .n_iov = 1 },
    };
    struct rados_op op = {
        .oid = image->header_oid, .steps = steps, .n_steps = 2,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
    };
    int r;

    penc_init(&e, in, sizeof(in));
    penc_u64(&e, size);
    r = rados_op_sync(image->md_pool, &op, deadline_us);
    return r == -ERANGE || r == -EOVERFLOW ? -EAGAIN : r;
}

/*
 * What was changed on disk comes into use at once, with writes held: none may
 * be decided by the size of one time and the map of another.
 */
static int use_header(struct pinrbd_image *image, gint64 deadline_us)
{
    bool owned;
    int r = image_refresh_sync(image, deadline_us);

    g_mutex_lock(&image->lock);
    owned = image->lk.owned;
    g_mutex_unlock(&image->lock);
    return r == 0 && owned ? image_map_reload(image, deadline_us) : r;
}

/* The map grows before the size: it must have an entry for every object. */
static int grow(struct pinrbd_image *image, const struct image_meta *meta,
                uint64_t size, gint64 deadline_us)
{
    int r = map_resize(image, meta, size, deadline_us);

    return r < 0 ? r : set_size(image, meta, size, deadline_us);
}

/* ... and shrinks after it. */
static int shrink(struct pinrbd_image *image, const struct image_meta *meta,
                  uint64_t size, gint64 deadline_us)
{
    int r = set_size(image, meta, size, deadline_us);

    return r < 0 ? r : map_resize(image, meta, size, deadline_us);
}

static void show_size(struct pinrbd_image *image, uint64_t size)
{
    g_mutex_lock(&image->lock);
    for (unsigned i = 0; i < QUEUES; i++) {
        g_mutex_lock(&image->queues[i].lock);
        image->queues[i].size = size;
        g_mutex_unlock(&image->queues[i].lock);
    }
    g_mutex_unlock(&image->lock);
}

/* No request may use what is behind the new end; then it is removed. */
static int trim(struct pinrbd_image *image, const struct image_meta *meta,
                uint64_t size, gint64 deadline_us, uint64_t *progress)
{
    int r = writes_stop(image, deadline_us);

    if (r < 0) {
        return r;
    }
    show_size(image, size);
    writes_go(image);
    return for_range(image, REQUEST_TRIM, 0, size, meta->size, progress);
}

/* 1: nothing to do; -EAGAIN: another client was faster. */
static int resize_try(struct pinrbd_image *image, uint64_t size,
                      unsigned flags, uint64_t *progress)
{
    gint64 deadline_us = control_deadline(image);
    struct image_meta *meta;
    bool smaller;
    int used;
    int r = image_refresh_sync(image, deadline_us);

    if (r < 0) {
        return r;
    }
    meta = image_meta(image);
    smaller = size < meta->size;
    if (size == meta->size || (smaller && flags & PINRBD_RESIZE_GROW_ONLY)) {
        meta_unref(meta);
        return 1;
    }
    if (smaller) {
        r = trim(image, meta, size, deadline_us, progress);
        deadline_us = control_deadline(image);
        if (r < 0) {
            show_size(image, meta->size);
        }
    }
    if (r == 0) {
        r = writes_stop(image, deadline_us);
    }
    if (r == 0) {
        r = smaller ? shrink(image, meta, size, deadline_us)
                    : grow(image, meta, size, deadline_us);
        used = use_header(image, deadline_us);
        writes_go(image);
        r = r < 0 ? r : used;
    }
    meta_unref(meta);
    return r;
}

/* The lock is pinned. */
static int resize(struct pinrbd_image *image, uint64_t size, unsigned flags,
                  uint64_t *progress)
{
    int r = -EAGAIN;

    for (unsigned i = 0; r == -EAGAIN && i < MAX_TRIES; i++) {
        r = resize_try(image, size, flags, progress);
    }
    if (r == 0) {
        tell_all(image);
    }
    return MIN(r, 0);
}

/* ---- snapshots ----------------------------------------------------------- */

static const struct header_snap *find_snap(const struct image_meta *meta,
                                           const char *name)
{
    for (size_t i = 0; i < meta->snapc.n; i++) {
        if (!meta->snaps[i].type && !strcmp(meta->snaps[i].name, name)) {
            return &meta->snaps[i];
        }
    }
    return NULL;
}

/* As librbd: the bytes are copied, then the head begins a new age. */
static int map_copy(struct pinrbd_image *image, const struct image_meta *meta,
                    uint64_t snap_id, gint64 deadline_us)
{
    size_t size = (striper_objects(&image->layout, meta->size) / 4 + 4096) *
                  2 + 4096;     /* with all checksums */
    g_autofree uint8_t *data = g_try_malloc(size);
    char from[OBJECT_MAP_OID_MAX], to[OBJECT_MAP_OID_MAX];
    struct iovec iov = { data, size };
    struct rados_step step = {
        .kind = RADOS_READ, .len = size, .iov = &iov, .n_iov = 1,
    };
    struct rados_op op = { .oid = from, .steps = &step, .n_steps = 1 };
    int r;

    if (!data) {
        return -ENOMEM;
    }
    object_map_oid(from, image->id, RADOS_NOSNAP);
    object_map_oid(to, image->id, snap_id);
    r = rados_op_sync(image->md_pool, &op, deadline_us);
    if (r < 0) {
        return r;
    }
    iov.iov_len = step.out_len;
    step = (struct rados_step) {
        .kind = RADOS_WRITE_FULL, .len = iov.iov_len, .iov = &iov, .n_iov = 1,
    };
    op = (struct rados_op) {
        .oid = to, .steps = &step, .n_steps = 1,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
    };
    r = rados_op_sync(image->md_pool, &op, deadline_us);
    if (r == 0 && meta->features & PINRBD_FEATURE_FAST_DIFF) {
        r = map_call(image, RADOS_NOSNAP, "object_map_snap_add", NULL, 0,
                     deadline_us);
    }
    return r;
}

/* An id that the header takes: one that lost a race is given back. */
static int snap_add(struct pinrbd_image *image, const char *name,
                    uint64_t *id, gint64 deadline_us)
{
    const struct rados_transport *t = image->md_pool->t;
    uint8_t in[512];
    struct penc e;
    size_t block;
    int r;

    for (unsigned i = 0; i < MAX_TRIES; i++) {
        penc_init(&e, in, sizeof(in));
        penc_string(&e, name);
        penc_u64(&e, *id);
        block = penc_block(&e, 1, 1);
        penc_u32(&e, 0);        /* a user's snapshot */
        penc_block_end(&e, block);
        r = header_call(image, "snapshot_add", &e, deadline_us);
        if (r != -ESTALE) {
            break;
        }
        (void)t->snap_release(image->data_pool, *id);
        r = t->snap_alloc(image->data_pool, id);
        if (r < 0) {
            *id = 0;
            return r;
        }
    }
    return r;
}

/* Everybody else holds his writes, or says why not. */
static int quiesce(struct pinrbd_image *image, uint64_t async_id,
                   uint64_t flags)
{
    struct notify_msg m = {
        .op = NOTIFY_QUIESCE, .has_async = true,
        .async = { { image_gid(image), 0 }, async_id },
    };
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    struct notify_reply reply;
    int r;

    if (flags & SNAP_SKIP_QUIESCE) {
        return 0;
    }
    (void)watch_cookie(&image->watch, &m.async.client.handle);
    for (unsigned i = 0; ; i++) {
        g_byte_array_set_size(bytes, 0);
        r = image_notify(image, &m, bytes);
        if (r != -ETIMEDOUT || i == MAX_TRIES || interrupted(image)) {
            break;
        }
    }
    if (r == 0 && notify_reply_decode(bytes->data, bytes->len,
                                      &m.async.client, &reply) == 0 &&
        reply.answered && reply.result < 0 && reply.result != -EOPNOTSUPP) {
        r = reply.result;
    }
    return flags & SNAP_IGNORE_QUIESCE ? 0 : r;
}

static void unquiesce(struct pinrbd_image *image, uint64_t async_id,
                      uint64_t flags)
{
    struct notify_msg m = {
        .op = NOTIFY_UNQUIESCE, .has_async = true,
        .async = { { image_gid(image), 0 }, async_id },
    };

    if (!(flags & SNAP_SKIP_QUIESCE)) {
        (void)watch_cookie(&image->watch, &m.async.client.handle);
        (void)image_notify(image, &m, NULL);
    }
}

/* Writes are held, and the head stands still. */
static int snap_take(struct pinrbd_image *image, const char *name,
                     uint64_t *id, uint64_t flags, gint64 deadline_us)
{
    struct image_meta *meta = image_meta(image);
    int r = snap_add(image, name, id, deadline_us);
    int mapped;

    if (r == 0 && has_map(meta) && !(flags & SNAP_SKIP_OBJECT_MAP)) {
        mapped = map_copy(image, meta, *id, deadline_us);
        if (mapped < 0) {
            (void)map_failed(image, meta, *id, mapped, deadline_us);
            (void)map_failed(image, meta, RADOS_NOSNAP, mapped, deadline_us);
        }
    }
    if (r == 0) {
        r = use_header(image, deadline_us);
    }
    meta_unref(meta);
    return r;
}

static int snap_create(struct pinrbd_image *image, const char *name,
                       uint64_t flags)
{
    const struct rados_transport *t = image->md_pool->t;
    gint64 deadline_us = control_deadline(image);
    struct image_meta *meta = image_meta(image);
    bool taken = find_snap(meta, name) != NULL;
    uint64_t async_id;
    uint64_t id = 0;
    int r;

    meta_unref(meta);
    if (taken) {
        return -EEXIST;
    }
    g_mutex_lock(&image->lock);
    async_id = ++image->maintenance.next_async;
    g_mutex_unlock(&image->lock);

    r = t->snap_alloc(image->data_pool, &id);
    if (r < 0) {
        return r;
    }
    r = quiesce(image, async_id, flags);
    if (r == 0) {
        r = writes_stop(image, deadline_us);
    }
    if (r == 0) {
        r = snap_take(image, name, &id, flags, deadline_us);
        writes_go(image);
    }
    unquiesce(image, async_id, flags);
    if (r < 0 && id) {
        /* unless it came that far that the header has it */
        meta = image_meta(image);
        if (!find_snap(meta, name)) {
            (void)t->snap_release(image->data_pool, id);
        }
        meta_unref(meta);
        return r;
    }
    tell_all(image);
    return r;
}

/* The next newer map learns what changed since the snapshot before. */
static int map_merge(struct pinrbd_image *image,
                     const struct image_meta *meta, size_t place,
                     gint64 deadline_us)
{
    g_autoptr(GByteArray) bits = g_byte_array_new();
    uint64_t newer = place ? meta->snap_ids[place - 1] : RADOS_NOSNAP;
    char oid[OBJECT_MAP_OID_MAX];
    struct rados_step step = { .kind = RADOS_REMOVE };
    struct rados_op op = {
        .oid = oid, .steps = &step, .n_steps = 1, .flags = RADOS_OP_WRITE,
    };
    int r = 0;

    object_map_oid(oid, image->id, meta->snap_ids[place]);
    if (meta->features & PINRBD_FEATURE_FAST_DIFF) {
        r = rados_query_sync(image->md_pool, oid, "rbd", "object_map_load",
                             NULL, 0, deadline_us, bits);
        if (r == 0) {
            r = map_call(image, newer, "object_map_snap_remove", bits->data,
                         bits->len, deadline_us);
        }
        if (r < 0 && r != -ESHUTDOWN) {
            r = map_failed(image, meta, newer, r, deadline_us);
        }
    }
    if (r == 0) {
        r = rados_op_sync(image->md_pool, &op, deadline_us);
    }
    return r == -ENOENT ? 0 : r;
}

/* May we remove it?  What concerns other images too is left to `rbd'. */
static int snap_may_go(const struct image_meta *meta,
                       const struct header_snap *s)
{
    if (s->is_protected) {
        return -EBUSY;
    }
    if (s->n_children) {
        return -EOPNOTSUPP;     /* it goes to the trash, for its clones */
    }
    /* the last one that needs the parent: the parent has to be told */
    if (s->overlap && !meta->overlap) {
        return -EOPNOTSUPP;
    }
    return 0;
}

static int snap_remove(struct pinrbd_image *image, const char *name)
{
    const struct rados_transport *t = image->md_pool->t;
    gint64 deadline_us = control_deadline(image);
    struct image_meta *meta;
    const struct header_snap *s;
    uint8_t in[8];
    struct penc e;
    int r = image_refresh_sync(image, deadline_us);

    if (r < 0) {
        return r;
    }
    meta = image_meta(image);
    s = find_snap(meta, name);
    r = s ? snap_may_go(meta, s) : -ENOENT;
    if (r == 0 && has_map(meta)) {
        r = writes_stop(image, deadline_us);
        if (r == 0) {
            r = map_merge(image, meta, s - meta->snaps, deadline_us);
            if (r == 0) {
                r = image_map_reload(image, deadline_us);
            }
            writes_go(image);
        }
    }
    if (r == 0) {
        r = t->snap_release(image->data_pool, s->id);
    }
    if (r == 0) {
        penc_init(&e, in, sizeof(in));
        penc_u64(&e, s->id);
        r = header_call(image, "snapshot_remove", &e, deadline_us);
    }
    meta_unref(meta);
    if (r == 0) {
        r = image_refresh_sync(image, deadline_us);
        tell_all(image);
    }
    return r;
}

/* The map after a rollback, or, with what the @head has, during it. */
static int map_roll_back(struct pinrbd_image *image,
                         const struct image_meta *meta,
                         const struct object_map *head,
                         const struct object_map *snap, gint64 deadline_us)
{
    uint64_t n = striper_objects(&image->layout, meta->size);
    g_autofree uint8_t *bits = g_try_malloc0((n + 3) / 4 ?: 1);
    g_autoptr(GByteArray) in = NULL;

    if (!bits) {
        return -ENOMEM;
    }
    for (uint64_t i = 0; i < n; i++) {
        bool exists = object_map_get(snap, i) != OBJECT_NONEXISTENT ||
                      (head && object_map_get(head, i) != OBJECT_NONEXISTENT);

        /* changed, as far as the newest snapshot is concerned */
        object_bits_set(bits, i, exists ? OBJECT_EXISTS : OBJECT_NONEXISTENT);
    }
    in = object_map_encode(n, bits);
    return map_call(image, RADOS_NOSNAP, "object_map_save", in->data, in->len,
                    deadline_us);
}

/* The head has the snapshot's size; writes are held. */
static int objects_roll_back(struct pinrbd_image *image, uint64_t snap_id,
                             uint64_t *progress)
{
    gint64 deadline_us = control_deadline(image);
    struct object_map_home home;
    struct object_map *head, *snap = NULL;
    struct image_meta *meta;
    int r = 0;

    image_view(image, &meta, &head);
    if (has_map(meta) && head) {
        home_of(image, meta, &home);
        snap = object_map_open_snap(&home, snap_id,
                                    striper_objects(&image->layout,
                                                    meta->size), deadline_us);
        r = snap ? map_roll_back(image, meta, head, snap, deadline_us) :
            map_failed(image, meta, RADOS_NOSNAP, -ENOENT, deadline_us);
    }
    if (r == 0) {
        r = for_range(image, REQUEST_ROLLBACK, snap_id, 0, meta->size,
                      progress);
    }
    if (r == 0 && snap) {
        r = map_roll_back(image, meta, NULL, snap, control_deadline(image));
    }
    object_map_unref(snap);
    object_map_unref(head);
    meta_unref(meta);
    return r;
}

static int snap_rollback(struct pinrbd_image *image, const char *name,
                         uint64_t *progress)
{
    gint64 deadline_us = control_deadline(image);
    struct image_meta *meta;
    const struct header_snap *s;
    uint64_t id = 0, size = 0;
    int r = image_refresh_sync(image, deadline_us);

    if (r < 0) {
        return r;
    }
    meta = image_meta(image);
    s = find_snap(meta, name);
    r = !s ? -ENOENT : MIN(s->overlap, s->size) != MIN(meta->overlap, s->size)
        ? -EOPNOTSUPP : 0;
    if (s) {
        id = s->id;
        size = s->size;
    }
    meta_unref(meta);
    if (r == 0) {
        r = resize(image, size, 0, progress);
    }
    if (r == 0) {
        r = writes_stop(image, deadline_us);
    }
    if (r < 0) {
        return r;
    }
    r = objects_roll_back(image, id, progress);
    if (r == 0) {
        r = use_header(image, control_deadline(image));
    }
    writes_go(image);
    tell_all(image);
    return r;
}

/* ---- for our caller ------------------------------------------------------ */

static int begin(struct pinrbd_image *image, struct pinrbd_error *reterr)
{
    int r;

    if (!image->writable) {
        return perror_set(reterr, -EROFS, "image '%s' is open read-only and "
                          "cannot be changed", image->spec);
    }
    r = image_lock_pin(image, control_deadline(image));
    return r < 0 ? fail(image, r, reterr, "cannot get its lock") : 0;
}

int pinrbd_image_resize(struct pinrbd_image *image, uint64_t size,
                        unsigned flags, struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->control);
    uint64_t progress = 0;
    int r;

    if (size > INT64_MAX) {
        return perror_set(reterr, -EINVAL, "image '%s': size %" PRIu64
                          " is too large", image->spec, size);
    }
    r = begin(image, reterr);
    if (r < 0) {
        return r;
    }
    r = resize(image, size, flags, &progress);
    image_lock_unpin(image);
    return r < 0 ? fail(image, r, reterr, "cannot set its size") : 0;
}

static int bad_name(struct pinrbd_image *image, const char *name,
                    struct pinrbd_error *reterr)
{
    if (!name[0] || strlen(name) >= sizeof(((struct header_snap *)0)->name) ||
        strpbrk(name, "/@")) {
        return perror_set(reterr, -EINVAL, "image '%s': '%s' cannot be the "
                          "name of a snapshot", image->spec, name);
    }
    return 0;
}

int pinrbd_image_snap_create(struct pinrbd_image *image, const char *name,
                             struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->control);
    int r = bad_name(image, name, reterr);

    if (r == 0) {
        r = begin(image, reterr);
    }
    if (r < 0) {
        return r;
    }
    r = snap_create(image, name, 0);
    image_lock_unpin(image);
    return r == 0 ? 0 : perror_set(reterr, r, "image '%s': cannot create "
                                   "snapshot '%s': %s", image->spec, name,
                                   g_strerror(-r));
}

int pinrbd_image_snap_remove(struct pinrbd_image *image, const char *name,
                             struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->control);
    int r = begin(image, reterr);

    if (r < 0) {
        return r;
    }
    r = snap_remove(image, name);
    image_lock_unpin(image);
    return r == 0 ? 0 : perror_set(reterr, r, "image '%s': cannot remove "
                                   "snapshot '%s': %s", image->spec, name,
                                   r == -ENOENT ? "it does not exist" :
                                   r == -EBUSY ? "it is protected" :
                                   r == -EOPNOTSUPP ? "a clone or the parent "
                                   "is concerned; use `rbd snap rm'" :
                                   g_strerror(-r));
}

int pinrbd_image_snap_rollback(struct pinrbd_image *image, const char *name,
                               struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->control);
    uint64_t progress = 0;
    int r = begin(image, reterr);

    if (r < 0) {
        return r;
    }
    r = snap_rollback(image, name, &progress);
    image_lock_unpin(image);
    return r == 0 ? 0 : perror_set(reterr, r, "image '%s': cannot roll back "
                                   "to snapshot '%s': %s", image->spec, name,
                                   r == -ENOENT ? "it does not exist" :
                                   r == -EOPNOTSUPP ? "it needs more of the "
                                   "parent than the image has now" :
                                   g_strerror(-r));
}

/* ---- for other clients --------------------------------------------------- */

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

static int flatten(struct task *t)
{
    struct pinrbd_image *image = t->image;
    struct image_meta *meta = image_meta(image);
    uint64_t overlap = meta->parent_overlap;
    int r = 0;

    meta_unref(meta);
    __atomic_store_n(&t->total, overlap, __ATOMIC_RELAXED);
    if (overlap) {
        r = for_range(image, REQUEST_FLATTEN, 0, 0, overlap, &t->progress);
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
        return resize(image, m->size, 0, &t->progress);
    case NOTIFY_SNAP_CREATE:
        return snap_create(image, m->name, m->snap_flags);
    case NOTIFY_SNAP_REMOVE:
        return snap_remove(image, m->name);
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
    int r;

    ptimer_arm(&t->timer, PROGRESS_MS);
    g_mutex_lock(&image->control);
    r = interrupted(image) ? -EINTR :
        image_lock_pin(image, control_deadline(image));
    if (r == 0) {
        r = task_do(t);
        image_lock_unpin(image);
    }
    g_mutex_unlock(&image->control);
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
    if (known) {
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

void maintenance_stop(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->maintenance.interrupted = true;
    while (image->maintenance.tasks) {
        g_cond_wait(&image->changed, &image->lock);
    }
}

void maintenance_resume(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->maintenance.interrupted = false;
}
