/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An open image: opening, closing and changing it.
 *
 * An open watches the header before it reads it, so that no update falls in
 * between, and either succeeds whole or leaves nothing behind.  Control calls
 * block their caller, one at a time, each with the deadline that
 * client_mount_timeout sets; they are never made from QEMU's loop.
 *
 * How an open image follows changes made by others is image_refresh.c, who may
 * write exclusive_lock.c, and what changes it as a whole maintenance.c.
 */
#include "image.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "change.h"
#include "codec.h"
#include "options.h"
#include "rados_sync.h"
#include "request.h"

#define CLOSE_TIMEOUT_MS 10000

static gint64 control_deadline(struct pinrbd_image *image)
{
    return deadline_after(cluster_mount_timeout_ms(image->cluster));
}

/* ---- open --------------------------------------------------------------- */

static int fail_open(struct pinrbd_image *image, int code,
                     struct pinrbd_error *reterr, const char *why)
{
    return perror_set(reterr, code, "image '%s' %s", image->spec, why);
}

static int fail_errno(struct pinrbd_image *image, int code,
                      struct pinrbd_error *reterr, const char *doing)
{
    return perror_set(reterr, code, "image '%s': %s: %s", image->spec, doing,
                      g_strerror(-code));
}

static bool object_missing(struct pinrbd_image *image, const char *oid,
                           gint64 deadline_us)
{
    struct rados_step stat = { .kind = RADOS_STAT };
    struct rados_op op = { .oid = oid, .steps = &stat, .n_steps = 1 };

    return rados_op_sync(image->md_pool, &op, deadline_us) == -ENOENT;
}

/*
 * The id behind @name.  The error tells a format 1 image from none, and an
 * image from a namespace: those have a directory from the start.
 */
static int find_id(struct pinrbd_image *image, const char *name,
                   gint64 deadline_us, struct pinrbd_error *reterr)
{
    g_autofree char *oid = g_strdup_printf("rbd_id.%s", name);
    g_autofree char *v1_oid = g_strdup_printf("%s.rbd", name);
    struct rados_step step = {
        .kind = RADOS_CALL, .cls = "rbd", .method = "get_id",
    };
    struct rados_step stat = { .kind = RADOS_STAT };
    struct rados_op op = { .oid = oid, .steps = &step, .n_steps = 1 };
    struct rados_op v1 = { .oid = v1_oid, .steps = &stat, .n_steps = 1 };
    struct pdec d;
    int r = rados_op_sync(image->md_pool, &op, deadline_us);

    if (r == 0) {
        pdec_init(&d, step.out.data, step.out.len);
        pdec_text(&d, image->id, sizeof(image->id));
        if (!pdec_ok(&d) || !image->id[0]) {
            r = perror_set(reterr, -EBADMSG, "image '%s': the value of "
                           "object %s is not an image id", image->spec, oid);
        }
    } else if (r == -ENOENT &&
               rados_op_sync(image->md_pool, &v1, deadline_us) == 0) {
        r = fail_open(image, -ENOTSUP, reterr, "has format 1, which is not "
                      "supported; `rbd migration' makes it format 2");
    } else if (r == -ENOENT && image->md_pool->ns[0] &&
               object_missing(image, "rbd_directory", deadline_us)) {
        perror_set(reterr, r, "image '%s': namespace '%s' does not exist",
                   image->spec, image->md_pool->ns);
    } else if (r == -ENOENT) {
        fail_open(image, r, reterr, "does not exist");
    } else if (r == -EPERM || r == -EACCES) {
        perror_set(reterr, r, "image '%s': not allowed to read its id from "
                   "object %s; %s needs the OSD capability `profile rbd' (or "
                   "`profile rbd-read-only') on the pool", image->spec, oid,
                   image_user(image));
    } else {
        perror_set(reterr, r, "image '%s': cannot read its id from object "
                   "%s: %s", image->spec, oid, g_strerror(-r));
    }
    rados_op_done_with(image->md_pool, &op);
    return r;
}

/* A reading that the opener waits for. */
static void open_fetch_done(struct header_fetch *f, int result)
{
    waiter_wake(f->opaque, result);
}

static int read_header(struct pinrbd_image *image, bool read_only,
                       gint64 deadline_us, struct image_meta **ret,
                       struct pinrbd_error *reterr)
{
    struct waiter w;
    struct header_fetch f = {
        .pool = image->md_pool, .oid = image->header_oid,
        .read_only = read_only, .done = open_fetch_done, .opaque = &w,
    };
    int r;

    waiter_init(&w);
    header_fetch_start(&f);
    if (!waiter_wait(&w, deadline_us, &r)) {
        header_fetch_cancel(&f);
        waiter_wait(&w, 0, &r);
        r = r == -ECANCELED ? -ETIMEDOUT : r;
    }
    if (r == -ENOENT &&
        object_missing(image, image->header_oid, deadline_us)) {
        perror_set(reterr, r, "image '%s': object %s does not exist",
                   image->spec, image->header_oid);
    } else if (f.what) {
        perror_set(reterr, r, "image '%s': corrupt header: %s", image->spec,
                   f.what);
    } else if (r == -ENOENT || (r < 0 && f.method)) {
        perror_set(reterr, r, "image '%s': cannot read its header: %s: %s",
                   image->spec, f.method ?: "value", r == -ENOENT ?
                   "missing" : g_strerror(-r));
    } else if (r < 0) {
        fail_errno(image, r, reterr, "cannot read its header");
    }
    *ret = g_steal_pointer(&f.meta);
    header_fetch_clear(&f);
    waiter_clear(&w);
    return r;
}

static int find_snap_id(struct pinrbd_image *image,
                        const struct image_meta *meta, const char *name,
                        struct pinrbd_error *reterr)
{
    if (!name) {
        return 0;
    }
    for (size_t i = 0; i < meta->snapc.n; i++) {
        if (!meta->snaps[i].type && !strcmp(meta->snaps[i].name, name)) {
            image->snap_id = meta->snaps[i].id;
            return 0;
        }
    }
    return perror_set(reterr, -ENOENT, "image '%s': snapshot '%s' does not "
                      "exist", image->spec, name);
}

static int open_data_pool(struct pinrbd_image *image,
                          const struct image_meta *meta,
                          struct pinrbd_error *reterr)
{
    const struct rados_transport *t = image->md_pool->t;
    int r;

    image->data_pool_id = meta->data_pool_id >= 0 ? meta->data_pool_id
                                                  : image->md_pool->id;
    r = t->pool_open_id(image->cluster->conn, image->data_pool_id,
                        image->md_pool->ns, image->snap_id,
                        &image->data_pool);
    if (r < 0) {
        perror_set(reterr, r, "image '%s': cannot open its data pool (id %"
                   PRId64 "): %s", image->spec, image->data_pool_id,
                   g_strerror(-r));
    }
    return r;
}

static int start_watch(struct pinrbd_image *image, gint64 deadline_us,
                       struct pinrbd_error *reterr)
{
    int r = watch_start(&image->watch, deadline_us);

    if (r == -EPERM || r == -EACCES) {
        perror_set(reterr, r, "image '%s': not allowed to watch its header; "
                   "for writing, %s needs the OSD capability `profile rbd' on "
                   "the pool", image->spec, image_user(image));
    } else if (r == -ENOENT) {
        perror_set(reterr, r, "image '%s': object %s does not exist",
                   image->spec, image->header_oid);
    } else if (r < 0) {
        fail_errno(image, r, reterr, "cannot watch its header");
    }
    return r;
}

/* What is known before the lock is wanted is better said now. */
static int check_claim(struct pinrbd_image *image,
                       const struct image_meta *meta,
                       struct pinrbd_error *reterr)
{
    int r = 0;

    if (meta->features & PINRBD_FEATURE_EXCLUSIVE_LOCK) {
        r = image_lock_claim(image);
    }
    if (r < 0) {
        fail_open(image, r, reterr, "is open for writing through the same "
                  "connection, and its exclusive lock cannot tell the two "
                  "apart; use cluster-handle=own");
    }
    return r;
}

/* Frees what exists of an image that nobody else knows or uses any more. */
static void image_free(struct pinrbd_image *image)
{
    const struct rados_transport *t = image->cluster->conn->t;

    ptimer_cancel(&image->tick);
    ptimer_cancel(&image->retry);
    ptimer_cancel(&image->unquiesce);
    ptimer_cancel(&image->lk.alarm);
    watch_clear(&image->watch);
    for (unsigned i = 0; i < QUEUES; i++) {
        queue_clear(&image->queues[i]);
    }
    copyups_clear(&image->copyups);
    for (unsigned i = 0; i < STRIPES; i++) {
        g_mutex_clear(&image->stripes[i].lock);
    }
    if (image->data_pool) {
        t->pool_close(image->data_pool);
    }
    if (image->md_pool) {
        t->pool_close(image->md_pool);
    }
    pinrbd_cluster_close(image->cluster);
    g_array_unref(image->acks);
    g_mutex_clear(&image->control);
    g_mutex_clear(&image->lock);
    g_cond_clear(&image->changed);
    pinrbd_settings_free(image->settings);
    g_free(image->spec);
    free(image);
}

/*
 * The transport still refers to the watch and the cluster does not answer:
 * keep the memory for ever rather than wait for ever.
 */
static void image_abandon(struct pinrbd_image *image)
{
    ptimer_cancel(&image->tick);
    ptimer_cancel(&image->retry);
    ptimer_cancel(&image->unquiesce);
    plog(PINRBD_LOG_WARN, "image '%s': the cluster does not answer; its "
         "watch is left to expire and its connection stays open",
         image->spec);
}

/* No request needs the parent any more, nor the maps. */
static void drop_view(struct pinrbd_image *image)
{
    struct image_meta *meta[1 + QUEUES];

    image_set_map(image, NULL);
    g_mutex_lock(&image->lock);
    meta[0] = g_steal_pointer(&image->meta);
    for (unsigned i = 0; i < QUEUES; i++) {
        meta[1 + i] = g_steal_pointer(&image->queues[i].meta);
    }
    g_mutex_unlock(&image->lock);
    for (unsigned i = 0; i < G_N_ELEMENTS(meta); i++) {
        meta_unref(meta[i]);
    }
}

/*
 * Stop what follows the image, in the order in which one thing needs another:
 * maintenance, the lock, the watch, a refresh (a retry that is armed sees
 * `closing' and ends it), the parent, the last thread that is still leaving.
 */
static void image_end(struct pinrbd_image *image)
{
    ptimer_cancel(&image->tick);
    maintenance_stop(image);
    g_mutex_lock(&image->lock);
    image->closing = true;
    g_mutex_unlock(&image->lock);
    if (image->md_pool) {
        image_lock_close(image, deadline_after(CLOSE_TIMEOUT_MS));
    }
    if (watch_stop(&image->watch, deadline_after(CLOSE_TIMEOUT_MS)) < 0) {
        image_abandon(image);
        return;
    }

    g_mutex_lock(&image->lock);
    while (image->refreshing) {
        gint64 poll_us = g_get_monotonic_time() + 100 * 1000;

        if (!g_cond_wait_until(&image->changed, &image->lock, poll_us) &&
            image->fetching) {
            header_fetch_cancel(&image->fetch);
        }
    }
    g_mutex_unlock(&image->lock);
    drop_view(image);
    g_mutex_lock(&image->lock);
    while (__atomic_load_n(&image->holds, __ATOMIC_ACQUIRE)) {
        g_cond_wait(&image->changed, &image->lock);
    }
    g_mutex_unlock(&image->lock);
    image_free(image);
}

/* Where an image is: by names or, for a parent, by ids. */
struct location {
    const struct pinrbd_image_options *o;
    const struct header_parent *parent;     /* NULL: use `o' */
    struct pinrbd_image *child;
};

/* The image that was asked for, of whose chain @image is a part. */
static const struct pinrbd_image *first_of_chain(
    const struct pinrbd_image *image)
{
    while (image->child) {
        image = image->child;
    }
    return image;
}

/* @pool: the name of a parent's pool, NULL if it is not known yet. */
static char *describe(const struct location *at, const char *pool)
{
    const struct pinrbd_image_options *o = at->o;
    const struct header_parent *p = at->parent;
    const char *ns = o->ns && o->ns[0] ? o->ns : NULL;

    if (p) {
        g_autofree char *id = g_strdup_printf("%" PRId64, p->pool_id);

        return g_strdup_printf("%s/%s%s%s@%" PRIu64 ", parent of %s",
                               pool ?: id, p->ns, p->ns[0] ? "/" : "",
                               p->image_id, p->snap_id,
                               first_of_chain(at->child)->spec);
    }
    return g_strconcat(o->pool, "/", ns ?: "", ns ? "/" : "",
                       o->image ?: o->image_id, o->snapshot ? "@" : "",
                       o->snapshot ?: "", NULL);
}

static struct pinrbd_image *image_new(struct pinrbd_cluster *cluster,
                                      const struct location *at)
{
    const struct pinrbd_image_options *o = at->o;
    struct pinrbd_image *image;

    if (posix_memalign((void **)&image, 64, sizeof(*image))) {
        return NULL;
    }
    memset(image, 0, sizeof(*image));
    image->cluster = cluster_ref(cluster);
    image->settings = settings_dup(o->settings);
    image->child = at->child;
    image->spec = describe(at, NULL);
    image->snap_id = at->parent ? at->parent->snap_id : RADOS_NOSNAP;
    image->depth = at->child ? at->child->depth + 1 : 0;
    image->loading = true;
    image->size_limit = UINT64_MAX;
    image->resized = o->resized;
    image->opaque = o->opaque;
    g_mutex_init(&image->control);
    g_mutex_init(&image->lock);
    g_cond_init(&image->changed);
    image->acks = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    for (unsigned i = 0; i < QUEUES; i++) {
        queue_init(&image->queues[i]);
    }
    for (unsigned i = 0; i < STRIPES; i++) {
        g_mutex_init(&image->stripes[i].lock);
    }
    copyups_init(&image->copyups);
    image->watch.timeout_s = cluster_watch_timeout_s(cluster);
    image_follow_init(image);
    return image;
}

/* The pool and the id of the image. */
static int image_find(struct pinrbd_image *image, const struct location *at,
                      gint64 deadline_us, struct pinrbd_error *reterr)
{
    struct rados_conn *conn = image->cluster->conn;
    const struct pinrbd_image_options *o = at->o;
    const char *id = at->parent ? at->parent->image_id : o->image_id;
    int r;

    if (at->parent) {
        r = conn->t->pool_open_id(conn, at->parent->pool_id, at->parent->ns,
                                  RADOS_NOSNAP, &image->md_pool);
        if (r < 0) {
            return fail_errno(image, r, reterr, "cannot open its pool");
        }
        g_free(image->spec);
        image->spec = describe(at, image->md_pool->name);
    } else {
        r = conn->t->pool_open(conn, o->pool, o->ns ?: "", &image->md_pool);
    }
    if (r == -ENOENT) {
        return perror_set(reterr, r, "pool '%s' does not exist", o->pool);
    }
    if (r < 0) {
        return perror_set(reterr, r, "cannot open pool '%s': %s", o->pool,
                          g_strerror(-r));
    }
    image->watch.pool = image->md_pool;

    if (!at->parent && o->image) {
        r = find_id(image, o->image, deadline_us, reterr);
        if (r < 0) {
            return r;
        }
    } else if (g_strlcpy(image->id, id, sizeof(image->id)) >=
               sizeof(image->id)) {
        return perror_set(reterr, -EINVAL, "image id '%s' is too long", id);
    }
    snprintf(image->header_oid, sizeof(image->header_oid), "rbd_header.%s",
             image->id);
    return 0;
}

/* The map of a snapshot does not change in what matters: load it once. */
static void load_snap_map(struct pinrbd_image *image,
                          const struct image_meta *meta, uint64_t size,
                          gint64 deadline_us)
{
    struct object_map_home home;

    if (image->snap_id != RADOS_NOSNAP &&
        meta->features & PINRBD_FEATURE_OBJECT_MAP) {
        change_map_home(image, meta, &home);
        image_set_map(image, object_map_open_snap(
            &home, image->snap_id, striper_objects(&image->layout, size),
            deadline_us));
    }
}

/* Everything of an open that can fail; the caller cleans up. */
static int image_load(struct pinrbd_image *image, const struct location *at,
                      gint64 deadline_us, struct pinrbd_error *reterr)
{
    const struct pinrbd_image_options *o = at->o;
    struct image_meta *meta = NULL;
    char why[400];
    uint64_t size;
    int r = image_find(image, at, deadline_us, reterr);

    if (r < 0) {
        return r;
    }
    /* Watch first: an update between the two must not be missed. */
    if (image->writable) {
        r = start_watch(image, deadline_us, reterr);
        if (r < 0) {
            return r;
        }
    }
    r = read_header(image, !image->writable, deadline_us, &meta, reterr);
    if (r < 0) {
        return r;
    }
    r = find_snap_id(image, meta, at->parent ? NULL : o->snapshot, reterr);
    if (r == 0) {
        r = image_judge(image, meta, image->writable, &size, why, sizeof(why));
        if (r < 0) {
            fail_open(image, r, reterr, why);
        }
    }
    if (r == 0 && image->writable) {
        r = check_claim(image, meta, reterr);
    }
    if (r == 0) {
        r = open_data_pool(image, meta, reterr);
    }
    if (r == 0) {
        r = image_link_parent(image, meta, &deadline_us, reterr);
    }
    if (r < 0) {
        meta_unref(meta);
        return r;
    }
    layout_init(&image->layout, meta->order, meta->stripe_unit,
                meta->stripe_count);
    image->oid_prefix_len = snprintf(image->oid_prefix,
                                     sizeof(image->oid_prefix), "%s.",
                                     meta->object_prefix);
    load_snap_map(image, meta, size, deadline_us);
    image_publish(image, meta, size, 0);
    return 0;
}

/* lock-policy=exclusive: no VM starts on a disk that another one has. */
static int lock_at_open(struct pinrbd_image *image, gint64 deadline_us,
                        struct pinrbd_error *reterr)
{
    int r;

    if (!image->writable ||
        image->settings->lock_policy != PINRBD_LOCK_EXCLUSIVE) {
        return 0;
    }
    r = image_lock_pin(image, deadline_us);
    if (r == 0) {
        image_lock_unpin(image);
        return 0;
    }
    /* not -EROFS: nobody meant to open it read-only then */
    return perror_set(reterr, r == -EROFS ? -EBUSY : r, "image '%s': cannot "
                      "get its exclusive lock: %s", image->spec,
                      image->lk.refused_by[0] ? image->lk.refused_by
                                              : g_strerror(-r));
}

static int image_open(struct pinrbd_cluster *cluster,
                      const struct location *at, gint64 deadline_us,
                      struct pinrbd_image **ret, struct pinrbd_error *reterr)
{
    const struct pinrbd_image_options *o = at->o;
    struct pinrbd_image *image = image_new(cluster, at);
    int r;

    if (!image) {
        return perror_set(reterr, -ENOMEM, "no memory for an image");
    }
    image->writable = !o->read_only && !o->snapshot && !o->inactive;
    r = image_load(image, at, deadline_us, reterr);
    if (r < 0) {
        image_end(image);
        return r;
    }
    image_loaded(image);
    image_follow_start(image);
    r = lock_at_open(image, deadline_us, reterr);
    if (r < 0) {
        image_end(image);
        return r;
    }
    *ret = image;
    return 0;
}

int image_open_parent(struct pinrbd_image *child,
                      const struct header_parent *spec, gint64 deadline_us,
                      struct pinrbd_image **ret, struct pinrbd_error *reterr)
{
    const struct pinrbd_image_options o = {
        .read_only = true, .settings = child->settings,
    };
    const struct location at = { &o, spec, child };

    if (child->depth >= PARENT_DEPTH_MAX) {
        return perror_set(reterr, -ELOOP, "image '%s': its chain of parents "
                          "has more than %u images",
                          first_of_chain(child)->spec, PARENT_DEPTH_MAX);
    }
    return image_open(child->cluster, &at, deadline_us, ret, reterr);
}

int pinrbd_image_open(struct pinrbd_cluster *cluster,
                      const struct pinrbd_image_options *o,
                      struct pinrbd_image **ret, struct pinrbd_error *reterr)
{
    struct pinrbd_image_options all;
    int r = args_take("pinrbd_image_options", o, &all, sizeof(all), reterr);

    if (r < 0) {
        return r;
    }
    if (!all.pool || !all.pool[0] || (!all.image && !all.image_id) ||
        (all.image && !all.image[0])) {
        return perror_set(reterr, -EINVAL, "a pool and an image are needed");
    }
    return image_open(cluster, &(struct location) { .o = &all },
                      deadline_after(cluster_mount_timeout_ms(cluster)), ret,
                      reterr);
}

/* ---- close -------------------------------------------------------------- */

/* Wait until no write (@writes) or no request at all is left. */
static void wait_idle(struct pinrbd_image *image, bool writes)
{
    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *q = &image->queues[i];

        g_mutex_lock(&q->lock);
        while (writes ? q->writes != NULL : q->n_requests != 0) {
            g_cond_wait(&q->idle, &q->lock);
        }
        g_mutex_unlock(&q->lock);
    }
}

void pinrbd_image_close(struct pinrbd_image *image)
{
    if (!image) {
        return;
    }
    wait_idle(image, false);
    image_end(image);
}

/* ---- control ------------------------------------------------------------ */

int pinrbd_image_refresh(struct pinrbd_image *image,
                         struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = control_locker_new(image);
    int r = image_refresh_sync(image, control_deadline(image));

    return r < 0 ? fail_errno(image, r, reterr, "cannot read its header again")
                 : 0;
}

static void set_writable(struct pinrbd_image *image, bool writable,
                         int write_error)
{
    g_mutex_lock(&image->lock);
    image->writable = writable;
    for (unsigned i = 0; i < QUEUES; i++) {
        g_mutex_lock(&image->queues[i].lock);
        image->queues[i].write_error = writable ? write_error : -EROFS;
        g_mutex_unlock(&image->queues[i].lock);
    }
    g_cond_broadcast(&image->changed);
    g_mutex_unlock(&image->lock);
    if (!writable) {
        image_gate(image, 0, GATE_LOCK);    /* what waits is refused */
        image_lock_refuse(image, -EROFS);
    }
}

static int activate(struct pinrbd_image *image, gint64 deadline_us,
                    struct pinrbd_error *reterr)
{
    struct image_meta *meta = NULL;
    char why[400];
    uint64_t size;
    int r = start_watch(image, deadline_us, reterr);

    if (r < 0) {
        return r;
    }
    r = read_header(image, false, deadline_us, &meta, reterr);
    if (r == 0) {
        r = image_judge(image, meta, true, &size, why, sizeof(why));
        if (r < 0) {
            fail_open(image, r, reterr, why);
        }
    }
    if (r == 0) {
        r = check_claim(image, meta, reterr);
    }
    if (r == 0) {
        r = image_link_parent(image, meta, &deadline_us, reterr);
    }
    if (r < 0) {
        meta_unref(meta);
        image_lock_unclaim(image);
        (void)watch_stop(&image->watch, deadline_after(CLOSE_TIMEOUT_MS));
        return r;
    }
    set_writable(image, true, -EROFS);
    image_publish(image, meta, size, 0);
    return 0;
}

/* Writes on their way end, the lock goes, then the watch. */
static int inactivate(struct pinrbd_image *image)
{
    set_writable(image, false, 0);
    wait_idle(image, true);
    image_lock_close(image, deadline_after(CLOSE_TIMEOUT_MS));
    return watch_stop(&image->watch, deadline_after(CLOSE_TIMEOUT_MS));
}

int pinrbd_image_activate(struct pinrbd_image *image,
                          struct pinrbd_error *reterr)
{
    g_autoptr(GMutexLocker) locker = control_locker_new(image);
    gint64 deadline_us = control_deadline(image);
    int r;

    if (image->writable) {
        r = image_refresh_sync(image, deadline_us);
        return r < 0 ? fail_errno(image, r, reterr,
                                  "cannot read its header again") : 0;
    }
    if (image->snap_id != RADOS_NOSNAP) {
        return fail_open(image, -EROFS, reterr, "is a snapshot and cannot be "
                         "written");
    }
    g_mutex_lock(&image->lock);
    image->loading = true;
    g_mutex_unlock(&image->lock);
    image_watch_anew(image);
    r = activate(image, deadline_us, reterr);
    image_loaded(image);
    if (r == 0) {
        maintenance_resume(image);
        r = lock_at_open(image, deadline_us, reterr);
        if (r < 0) {
            (void)inactivate(image);
        }
    }
    return r;
}

int pinrbd_image_inactivate(struct pinrbd_image *image,
                            struct pinrbd_error *reterr)
{
    GMutexLocker *locker;
    int r;

    maintenance_stop(image);
    locker = control_locker_new(image);
    r = image->writable ? inactivate(image) : 0;
    g_mutex_locker_free(locker);
    return r < 0 ? fail_errno(image, r, reterr, "cannot stop watching it")
                 : 0;
}

/* ---- queries, from memory ----------------------------------------------- */

uint64_t pinrbd_image_size(struct pinrbd_image *image)
{
    struct queue *q = &image->queues[0];
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&q->lock);

    return q->size;
}

void pinrbd_image_info(struct pinrbd_image *image,
                       struct pinrbd_image_info *ret)
{
    struct image_meta *meta = image_meta(image);
    struct rados_conn *conn = image->cluster->conn;
    struct pinrbd_image_info info = {
        .size = ret->size,
        .image_size = pinrbd_image_size(image),
        .features = meta->features,
        .object_size = image->layout.object_size,
        .stripe_unit = image->layout.unit,
        .stripe_count = image->layout.count,
        .snap_count = meta->snapc.n,
        .pool_id = image->md_pool->id,
        .data_pool_id = image->data_pool_id,
        .parent_pool_id = meta->parent.pool_id,
        .parent_snap_id = meta->parent.snap_id,
        .parent_overlap = meta->overlap,
        .read_only = !image->writable,
        .flags = meta->flags,
    };

    g_mutex_lock(&image->lock);
    info.lock_owner = image->lk.owned;
    g_mutex_unlock(&image->lock);

    g_strlcpy(info.id, image->id, sizeof(info.id));
    g_strlcpy(info.object_prefix, meta->object_prefix,
              sizeof(info.object_prefix));
    g_strlcpy(info.parent_ns, meta->parent.ns, sizeof(info.parent_ns));
    g_strlcpy(info.parent_image_id, meta->parent.image_id,
              sizeof(info.parent_image_id));
    g_strlcpy(info.fsid, conn->t->conn_fsid(conn), sizeof(info.fsid));
    g_strlcpy(info.address, conn->t->conn_address(conn),
              sizeof(info.address));
    memcpy(ret, &info, MIN(ret->size, sizeof(info)));
    meta_unref(meta);
}

int pinrbd_image_snapshots(struct pinrbd_image *image,
                           struct pinrbd_snapshot **ret, size_t *ret_n)
{
    struct image_meta *meta = image_meta(image);
    size_t n = meta->snapc.n;
    struct pinrbd_snapshot *list = calloc(n ?: 1, sizeof(*list));

    for (size_t i = 0; list && i < n; i++) {
        const struct header_snap *s = &meta->snaps[n - 1 - i];

        list[i].id = s->id;
        list[i].size = s->size;
        list[i].time_s = s->time_s;
        list[i].time_ns = s->time_ns;
        list[i].is_user = s->type == 0;
        list[i].is_protected = s->is_protected;
        g_strlcpy(list[i].name, s->name, sizeof(list[i].name));
    }
    meta_unref(meta);
    if (!list) {
        return -ENOMEM;
    }
    *ret = list;
    *ret_n = n;
    return 0;
}

void pinrbd_image_stats(struct pinrbd_image *image, struct pinrbd_stats *ret)
{
    struct pinrbd_stats sum = { .size = ret->size };
    uint64_t off, len;
    unsigned n, kind;

    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *q = &image->queues[i];
        struct queue_counters c;

        g_mutex_lock(&q->lock);
        c = q->counters;
        sum.in_flight += q->n_requests;
        g_mutex_unlock(&q->lock);
        sum.reads += c.done[REQUEST_READ];
        sum.writes += c.done[REQUEST_WRITE];
        sum.discards += c.done[REQUEST_DISCARD];
        sum.zeroes += c.done[REQUEST_ZEROES];
        sum.flushes += c.done[REQUEST_FLUSH];
        sum.failed += c.failed;
        sum.read_bytes += c.read_bytes;
        sum.write_bytes += c.write_bytes;
        sum.object_ops += c.object_ops;
        sum.pinned_bytes += c.pinned_bytes;
        sum.copied_small_bytes += c.copied_small_bytes;
        sum.copied_never_bytes += c.copied_never_bytes;
        sum.read_copied_bytes += c.read_copied_bytes;
        sum.late_refs += c.late_refs;
        sum.old_snapc += c.old_snapc;
        sum.parent_reads += c.parent_reads;
        sum.absent_reads += c.absent_reads;
    }
    sum.oldest_ms = request_oldest(image->queues, &n, &kind, &off, &len) /
                    1000;
    g_mutex_lock(&image->lock);
    sum.refreshes = image->n_refreshes;
    sum.lock_acquired = image->lk.acquired;
    sum.lock_released = image->lk.released;
    sum.map_updates = image->map_ops + (image->map ?
                                        object_map_ops(image->map) : 0);
    g_mutex_unlock(&image->lock);
    sum.copyups = __atomic_load_n(&image->copyups.done, __ATOMIC_RELAXED);
    memcpy(ret, &sum, MIN(ret->size, sizeof(sum)));
}

/* ---- extents ------------------------------------------------------------ */

/*
 * In the end all that lies in objects nobody has reads as zeroes.  What a
 * parent would give is asked of the parent; the chain is short and bounded.
 */
static bool piece_is_zero(struct pinrbd_image *image,
                          const struct image_meta *meta,
                          const struct object_map *map, uint64_t off,
                          uint64_t len, uint64_t *ret_len)
{
    struct object_extent e = striper_map(&image->layout, off, len);
    uint64_t from_parent = meta->parent_link && off < meta->parent_overlap ?
                           MIN(e.len, meta->parent_overlap - off) : 0;

    *ret_len = e.len;
    if (!object_map_absent(map, e.object) ||
        !image_trusts_map(image, from_parent)) {
        return false;
    }
    return !from_parent ||
           pinrbd_image_extent_is_zero(meta->parent_link->image, off,
                                       from_parent, ret_len);
}

bool pinrbd_image_extent_is_zero(struct pinrbd_image *image, uint64_t off,
                                 uint64_t len, uint64_t *ret_len)
{
    struct image_meta *meta;
    struct object_map *map;
    bool zero = false;
    uint64_t n;

    (void)image_view(image, &meta, &map);
    *ret_len = len;
    if (map) {
        zero = piece_is_zero(image, meta, map, off, len, ret_len);
        while (*ret_len < len &&
               piece_is_zero(image, meta, map, off + *ret_len,
                             len - *ret_len, &n) == zero) {
            *ret_len += n;
        }
    }
    object_map_unref(map);
    meta_unref(meta);
    return zero;
}
