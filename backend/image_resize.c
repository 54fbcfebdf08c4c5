/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The size of an image.
 *
 *   grow      writes wait and end; map on disk; size; both come into use
 *   shrink    the new size comes into use, so that requests beyond it fail;
 *             data behind it removed; writes wait and end; size; map on disk
 *
 * The size is set only while the header object still has the version that was
 * read, so it cannot undo what another client did meanwhile.
 */
#include "change.h"

#include <errno.h>
#include <inttypes.h>

#include "rados_sync.h"

static int map_resize(struct pinrbd_image *image,
                      const struct image_meta *meta, uint64_t size,
                      gint64 deadline_us)
{
    uint8_t in[9];
    struct penc e;
    int r;

    if (!change_has_map(meta)) {
        return 0;
    }
    penc_init(&e, in, sizeof(in));
    penc_u64(&e, striper_objects(&image->layout, size));
    penc_u8(&e, OBJECT_NONEXISTENT);
    r = change_map_call(image, RADOS_NOSNAP, "object_map_resize", in,
                        sizeof(in), deadline_us);
    if (r < 0 && r != -ESHUTDOWN && r != -EBUSY) {
        r = change_map_failed(image, meta, RADOS_NOSNAP, r, deadline_us);
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

/* Requests go up to there at most, whatever size the header has. */
static void limit_size(struct pinrbd_image *image, uint64_t limit)
{
    g_mutex_lock(&image->lock);
    image->size_limit = limit;
    for (unsigned i = 0; i < QUEUES; i++) {
        g_mutex_lock(&image->queues[i].lock);
        image->queues[i].size = MIN(image->meta->size, limit);
        g_mutex_unlock(&image->queues[i].lock);
    }
    g_mutex_unlock(&image->lock);
}

/* No request may use what is behind the new end; then it is removed. */
static int trim(struct pinrbd_image *image, const struct image_meta *meta,
                uint64_t size, gint64 deadline_us, uint64_t *progress)
{
    int r = change_stop_writes(image, deadline_us);

    if (r < 0) {
        return r;
    }
    limit_size(image, size);
    change_let_writes_go(image);
    return change_range(image, REQUEST_TRIM, 0, size, meta->size, progress);
}

/* 1: nothing to do; -EAGAIN: another client was faster. */
static int resize_try(struct pinrbd_image *image, uint64_t size,
                      unsigned flags, uint64_t *progress)
{
    gint64 deadline_us = change_deadline(image);
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
        deadline_us = change_deadline(image);
    }
    if (r == 0) {
        r = change_stop_writes(image, deadline_us);
    }
    if (r == 0) {
        r = smaller ? shrink(image, meta, size, deadline_us)
                    : grow(image, meta, size, deadline_us);
        used = change_use_header(image, deadline_us);
        limit_size(image, UINT64_MAX);
        change_let_writes_go(image);
        r = r < 0 ? r : used;
    } else if (smaller) {
        limit_size(image, UINT64_MAX);
    }
    meta_unref(meta);
    return r;
}

/* The lock is pinned. */
int resize_image(struct pinrbd_image *image, uint64_t size, unsigned flags,
                 uint64_t *progress)
{
    int r = -EAGAIN;

    for (unsigned i = 0; r == -EAGAIN && i < CHANGE_MAX_TRIES; i++) {
        r = resize_try(image, size, flags, progress);
    }
    if (r == 0) {
        change_tell_all(image);
    }
    return MIN(r, 0);
}

int pinrbd_image_resize(struct pinrbd_image *image, uint64_t size,
                        unsigned flags, struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = control_locker_new(image);
    uint64_t progress = 0;
    int r;

    if (size > INT64_MAX) {
        return perror_set(reterr, -EINVAL, "image '%s': size %" PRIu64
                          " is too large", image->spec, size);
    }
    r = change_begin(image, reterr);
    if (r < 0) {
        return r;
    }
    r = resize_image(image, size, flags, &progress);
    image_lock_unpin(image);
    return r < 0 ? change_fail(image, r, reterr, "cannot set its size") : 0;
}
