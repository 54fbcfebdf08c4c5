/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Snapshots of an image's head.
 *
 *   create     id (takes long: before anything waits); other clients quiesce;
 *              our writes wait and end; header; map copied
 *   remove     map merged into the next newer one; header; id given back
 *   rollback   size; writes wait and end; map claims all; objects; map
 */
#include "change.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "rados_sync.h"

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
        r = change_map_call(image, RADOS_NOSNAP, "object_map_snap_add", NULL, 0,
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

    for (unsigned i = 0; i < CHANGE_MAX_TRIES; i++) {
        penc_init(&e, in, sizeof(in));
        penc_string(&e, name);
        penc_u64(&e, *id);
        block = penc_block(&e, 1, 1);
        penc_u32(&e, 0);        /* a user's snapshot */
        penc_block_end(&e, block);
        r = change_header_call(image, "snapshot_add", &e, deadline_us);
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
        if (r != -ETIMEDOUT || i == CHANGE_MAX_TRIES ||
            change_interrupted(image)) {
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
                     uint64_t *id, uint64_t flags, gint64 deadline_us,
                     bool *ret_sent)
{
    struct image_meta *meta = image_meta(image);
    int r = snap_add(image, name, id, deadline_us);
    int mapped, used;

    /* Given back while the header has it, the snapshot's data would go. */
    *ret_sent = r == 0 || r == -ETIMEDOUT || r == -ECANCELED ||
                r == -ESHUTDOWN;

    if (r == 0 && change_has_map(meta) && !(flags & SNAP_SKIP_OBJECT_MAP)) {
        mapped = map_copy(image, meta, *id, deadline_us);
        if (mapped < 0) {
            (void)change_map_failed(image, meta, *id, mapped, deadline_us);
            (void)change_map_failed(image, meta, RADOS_NOSNAP, mapped,
                                    deadline_us);
        }
    }
    if (*ret_sent) {
        /* before writes go on with a snapshot context that is old, perhaps */
        used = change_use_header(image, change_deadline(image));
        r = r < 0 ? r : used;
    }
    meta_unref(meta);
    return r;
}

int snapshot_create(struct pinrbd_image *image, const char *name,
                    uint64_t flags)
{
    const struct rados_transport *t = image->md_pool->t;
    gint64 deadline_us = change_deadline(image);
    struct image_meta *meta = image_meta(image);
    bool taken = find_snap(meta, name) != NULL;
    bool sent = false;
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
        r = change_stop_writes(image, deadline_us);
    }
    if (r == 0) {
        r = snap_take(image, name, &id, flags, deadline_us, &sent);
        change_let_writes_go(image);
    }
    unquiesce(image, async_id, flags);
    if (r < 0 && id && !sent) {
        (void)t->snap_release(image->data_pool, id);
    }
    if (sent) {
        change_tell_all(image);     /* also where it is only perhaps there */
    }
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
    int r;

    if (!(meta->features & PINRBD_FEATURE_FAST_DIFF)) {
        return 0;
    }
    object_map_oid(oid, image->id, meta->snap_ids[place]);
    r = rados_query_sync(image->md_pool, oid, "rbd", "object_map_load", NULL,
                         0, deadline_us, bits);
    if (r == 0) {
        r = change_map_call(image, newer, "object_map_snap_remove",
                            bits->data, bits->len, deadline_us);
    }
    if (r < 0 && r != -ESHUTDOWN) {
        r = change_map_failed(image, meta, newer, r, deadline_us);
    }
    return r == -ENOENT ? 0 : r;
}

/* What is left of a snapshot that the header does not have any more. */
static void snap_clear(struct pinrbd_image *image,
                       const struct image_meta *meta, uint64_t id,
                       gint64 deadline_us)
{
    char oid[OBJECT_MAP_OID_MAX];
    struct rados_step step = { .kind = RADOS_REMOVE };
    struct rados_op op = {
        .oid = oid, .steps = &step, .n_steps = 1, .flags = RADOS_OP_WRITE,
    };
    int r;

    object_map_oid(oid, image->id, id);
    if (change_has_map(meta)) {
        (void)rados_op_sync(image->md_pool, &op, deadline_us);
    }
    r = image->md_pool->t->snap_release(image->data_pool, id);
    if (r < 0) {
        plog(PINRBD_LOG_WARN, "image '%s': the space of a removed snapshot "
             "(id %" PRIu64 ") cannot be given back: %s", image->spec, id,
             g_strerror(-r));
    }
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

int snapshot_remove(struct pinrbd_image *image, const char *name)
{
    gint64 deadline_us = change_deadline(image);
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
    if (r == 0 && change_has_map(meta)) {
        r = change_stop_writes(image, deadline_us);
        if (r == 0) {
            r = map_merge(image, meta, s - meta->snaps, deadline_us);
            if (r == 0) {
                r = image_map_reload(image, deadline_us);
            }
            change_let_writes_go(image);
        }
    }
    /*
     * The header refuses it for a clone or a protection that has come since we
     * looked; the data goes only when nobody can find the snapshot any more.
     */
    if (r == 0) {
        penc_init(&e, in, sizeof(in));
        penc_u64(&e, s->id);
        r = change_header_call(image, "snapshot_remove", &e, deadline_us);
    }
    if (r == 0) {
        snap_clear(image, meta, s->id, deadline_us);
    }
    meta_unref(meta);
    if (r == 0) {
        r = image_refresh_sync(image, deadline_us);
        change_tell_all(image);
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
    return change_map_call(image, RADOS_NOSNAP, "object_map_save", in->data,
                           in->len, deadline_us);
}

/* The head has the snapshot's size; writes are held. */
static int objects_roll_back(struct pinrbd_image *image, uint64_t snap_id,
                             uint64_t *progress)
{
    gint64 deadline_us = change_deadline(image);
    struct object_map_home home;
    struct object_map *head, *snap = NULL;
    struct image_meta *meta;
    int r = 0;

    (void)image_view(image, &meta, &head);
    if (change_has_map(meta) && head) {
        change_map_home(image, meta, &home);
        snap = object_map_open_snap(&home, snap_id,
                                    striper_objects(&image->layout,
                                                    meta->size), deadline_us);
        r = snap ? map_roll_back(image, meta, head, snap, deadline_us) :
            change_map_failed(image, meta, RADOS_NOSNAP, -ENOENT, deadline_us);
    }
    if (r == 0) {
        r = change_range(image, REQUEST_ROLLBACK, snap_id, 0, meta->size,
                         progress);
    }
    if (r == 0 && snap) {
        r = map_roll_back(image, meta, NULL, snap, change_deadline(image));
    }
    object_map_unref(snap);
    object_map_unref(head);
    meta_unref(meta);
    return r;
}

static int snapshot_rollback(struct pinrbd_image *image, const char *name,
                             uint64_t *progress)
{
    gint64 deadline_us = change_deadline(image);
    struct image_meta *meta;
    const struct header_snap *s;
    uint64_t id = 0, size = 0;
    int used;
    int r = image_refresh_sync(image, deadline_us);

    if (r < 0) {
        return r;
    }
    meta = image_meta(image);
    s = find_snap(meta, name);
    r = s ? 0 : -ENOENT;
    if (s) {
        id = s->id;
        size = s->size;
    }
    meta_unref(meta);
    if (r == 0) {
        r = resize_image(image, size, 0, progress);
    }
    if (r == 0) {
        r = change_stop_writes(image, deadline_us);
    }
    if (r < 0) {
        return r;
    }
    r = objects_roll_back(image, id, progress);
    /* half a rollback, too, has brought objects back */
    used = change_use_header(image, change_deadline(image));
    r = r < 0 ? r : used;
    change_let_writes_go(image);
    change_tell_all(image);
    return r;
}

static int bad_name(struct pinrbd_image *image, const char *name,
                    struct pinrbd_error *reterr)
{
    if (!name[0] || strlen(name) >= sizeof(((struct header_snap *)0)->name)) {
        return perror_set(reterr, -EINVAL, "image '%s': '%s' cannot be the "
                          "name of a snapshot", image->spec, name);
    }
    return 0;
}

int pinrbd_image_snap_create(struct pinrbd_image *image, const char *name,
                             struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = control_locker_new(image);
    int r = bad_name(image, name, reterr);

    if (r == 0) {
        r = change_begin(image, reterr);
    }
    if (r < 0) {
        return r;
    }
    r = snapshot_create(image, name, 0);
    image_lock_unpin(image);
    return r == 0 ? 0 : perror_set(reterr, r, "image '%s': cannot create "
                                   "snapshot '%s': %s", image->spec, name,
                                   g_strerror(-r));
}

int pinrbd_image_snap_remove(struct pinrbd_image *image, const char *name,
                             struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = control_locker_new(image);
    int r = change_begin(image, reterr);

    if (r < 0) {
        return r;
    }
    r = snapshot_remove(image, name);
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
    g_autoptr(GMutexLocker) locker = control_locker_new(image);
    uint64_t progress = 0;
    int r = change_begin(image, reterr);

    if (r < 0) {
        return r;
    }
    r = snapshot_rollback(image, name, &progress);
    image_lock_unpin(image);
    return r == 0 ? 0 : perror_set(reterr, r, "image '%s': cannot roll back "
                                   "to snapshot '%s': %s", image->spec, name,
                                   r == -ENOENT ? "it does not exist" :
                                   g_strerror(-r));
}
