/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Following what others do to an open image.
 *
 * Metadata.  `meta' is immutable; a refresh builds a new one and swaps it in
 * the image and in every queue.  A request keeps the one it was sent with.
 *
 * Refresh.  A header update, a re-registered watch, a write refused for its
 * old snapshot context or a caller asks for it.  Writes that come meanwhile
 * wait at the gate, since they would carry a snapshot context that is known to
 * be old, which an OSD accepts in silence and which damages snapshots; reads
 * go on.  One reading runs at a time; another follows while somebody asked
 * after it began.  The update is acknowledged when new writes use what was
 * read.  A failed reading is repeated every second with the gate closed; a
 * header that is gone, or being blocklisted, ends the image instead: all I/O
 * fails from then on.
 *
 * Snapshots by others.  Without the exclusive lock, whoever creates one sends
 * Quiesce first: new writes wait, those on their way finish, then we agree.
 * Unquiesce (or ten seconds without it) leads to a refresh and opens the gate.
 *
 * Lock order: control, lock, a fetch's or a queue's lock.  No other lock than
 * `control' is held while we wait or call the caller; submits never block.
 */
#include "image.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "jobs.h"
#include "rados_sync.h"
#include "request.h"

#define RETRY_MS 1000
#define TICK_MS 5000
#define SLOW_MS 15000           /* a request this old is worth a line */
#define SLOW_EVERY_MS 30000
#define UNQUIESCE_MS 10000
#define NOTIFY_TIMEOUT_MS 5000  /* as librbd */
#define STALLED_MS 10000        /* of silence of the watchdog */

#define FEATURES_READ (PINRBD_FEATURE_LAYERING | PINRBD_FEATURE_STRIPINGV2 | \
                       PINRBD_FEATURE_DATA_POOL)
#define FEATURES_WRITE (FEATURES_READ | PINRBD_FEATURE_DEEP_FLATTEN | \
                        PINRBD_FEATURE_OPERATIONS | \
                        PINRBD_FEATURE_EXCLUSIVE_LOCK | \
                        PINRBD_FEATURE_OBJECT_MAP | PINRBD_FEATURE_FAST_DIFF)

static void refresh_kick(struct pinrbd_image *image);

/* ---- features ----------------------------------------------------------- */

static const char *const feature_name[] = {
    "layering", "striping", "exclusive-lock", "object-map", "fast-diff",
    "deep-flatten", "journaling", "data-pool", "operations", "migrating",
    "non-primary", "dirty-cache",
};

const char *pinrbd_feature_name(unsigned bit)
{
    return bit < G_N_ELEMENTS(feature_name) ? feature_name[bit] : NULL;
}

void image_list_features(uint64_t bits, char *buf, size_t size)
{
    size_t n = 0;

    buf[0] = '\0';
    for (unsigned bit = 0; bit < 64 && n < size; bit++) {
        const char *name = pinrbd_feature_name(bit);

        if (!(bits >> bit & 1)) {
            continue;
        }
        n += name ? snprintf(buf + n, size - n, "%s%s", n ? ", " : "", name)
                  : snprintf(buf + n, size - n, "%sunknown bit %u",
                             n ? ", " : "", bit);
    }
}

int image_check_features(const struct image_meta *meta, bool writable,
                         char *buf, size_t size)
{
    uint64_t known = FEATURES_WRITE | PINRBD_FEATURE_JOURNALING |
                     PINRBD_FEATURE_NON_PRIMARY;
    uint64_t named = known | PINRBD_FEATURE_MIGRATING |
                     PINRBD_FEATURE_DIRTY_CACHE;
    /*
     * A migration's target may have its data in the source still.  A bit
     * without a name is incompatible even if the OSD does not say so: it lists
     * only the bits that it has heard of.
     */
    uint64_t no_read = (meta->incompatible & ~FEATURES_READ &
                        ~(writable ? FEATURES_WRITE : 0)) |
                       (meta->features & PINRBD_FEATURE_MIGRATING) |
                       (meta->features & ~named);
    char names[256];

    if (!no_read) {
        return 0;
    }
    image_list_features(no_read, names, sizeof(names));
    if (writable && !(no_read & ~known)) {
        snprintf(buf, size, "cannot keep its features valid when writing "
                 "(%s); it can be opened read-only", names);
        return -EROFS;
    }
    snprintf(buf, size, "has features that are not supported (%s)", names);
    return -ENOSYS;
}

/* ---- metadata ----------------------------------------------------------- */

struct image_meta *image_meta(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    return meta_ref(image->meta);
}

int image_view(struct pinrbd_image *image, struct image_meta **ret_meta,
               struct object_map **ret_map)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    *ret_meta = meta_ref(image->meta);
    *ret_map = object_map_ref(image->map);
    return image->dead;
}

void image_set_map(struct pinrbd_image *image, struct object_map *map)
{
    struct object_map *old[1 + QUEUES];

    g_mutex_lock(&image->lock);
    old[0] = image->map;
    image->map = map;
    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *q = &image->queues[i];

        g_mutex_lock(&q->lock);
        old[1 + i] = q->map;
        q->map = object_map_ref(map);
        g_mutex_unlock(&q->lock);
    }
    g_mutex_unlock(&image->lock);

    if (old[0]) {
        object_map_end(old[0]);
        __atomic_add_fetch(&image->map_ops, object_map_ops(old[0]),
                           __ATOMIC_RELAXED);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(old); i++) {
        object_map_unref(old[i]);
    }
}

uint64_t image_gid(const struct pinrbd_image *image)
{
    struct rados_conn *conn = image->cluster->conn;

    return conn->t->conn_instance(conn);
}

const char *image_user(const struct pinrbd_image *image)
{
    struct rados_conn *conn = image->cluster->conn;

    return conn->t->conn_user(conn);
}

int image_notify(struct pinrbd_image *image, const struct notify_msg *m,
                 GByteArray *reply)
{
    uint8_t payload[NOTIFY_MAX];
    size_t len = notify_encode(m, payload);

    return rados_notify_sync(image->md_pool, image->header_oid, payload, len,
                             NOTIFY_TIMEOUT_MS, reply);
}

static const struct header_snap *find_snap(const struct image_meta *meta,
                                           uint64_t id)
{
    for (size_t i = 0; i < meta->snapc.n; i++) {
        if (meta->snaps[i].id == id) {
            return &meta->snaps[i];
        }
    }
    return NULL;
}

/* Size and parent overlap of the opened revision; -ENOENT: snapshot gone. */
static int revision(const struct image_meta *meta, uint64_t snap_id,
                    uint64_t *ret_size, uint64_t *ret_overlap)
{
    const struct header_snap *s;

    if (snap_id == RADOS_NOSNAP) {
        *ret_size = meta->size;
        *ret_overlap = meta->overlap;
        return 0;
    }
    s = find_snap(meta, snap_id);
    if (!s) {
        return -ENOENT;
    }
    *ret_size = s->size;
    *ret_overlap = s->overlap;
    return 0;
}

/* What @meta means for this image: 0, or why it cannot be used. */
int image_judge(struct pinrbd_image *image, const struct image_meta *meta,
                 bool writable, uint64_t *ret_size, char *buf, size_t size)
{
    uint64_t overlap;
    int r = revision(meta, image->snap_id, ret_size, &overlap);

    if (r < 0) {
        snprintf(buf, size, "has lost the snapshot that was opened");
        return r;
    }
    return image_check_features(meta, writable, buf, size);
}

int image_link_parent(struct pinrbd_image *image, struct image_meta *meta,
                      const gint64 *deadline_us, struct pinrbd_error *reterr)
{
    struct parent *link = NULL;
    uint64_t size, overlap;
    int r = revision(meta, image->snap_id, &size, &overlap);

    if (r < 0 || !overlap) {
        return r;
    }
    g_mutex_lock(&image->lock);
    if (image->meta && parent_is(image->meta->parent_link, &meta->parent)) {
        link = parent_ref(image->meta->parent_link);
    }
    g_mutex_unlock(&image->lock);
    if (!link && !deadline_us) {
        return -EAGAIN;
    }
    if (!link) {
        r = parent_open(image, &meta->parent, *deadline_us, &link, reterr);
    }
    if (r == 0) {
        meta->parent_link = link;
        meta->parent_overlap = MIN(overlap, pinrbd_image_size(link->image));
    }
    return r;
}

/* ---- gates -------------------------------------------------------------- */

/* The writes that may go now are added to @waiting, for dispatch(). */
static void gate_locked(struct pinrbd_image *image, unsigned set,
                        unsigned clear, struct request *waiting[QUEUES])
{
    if (image->dead) {
        set = 0;                /* nothing waits any more, all fails */
        clear = ~0u;
    } else if (image->watch_lost) {
        clear &= ~GATE_WATCH;
    }
    image->gates = (image->gates | set) & ~clear;
    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *q = &image->queues[i];

        g_mutex_lock(&q->lock);
        q->gates = image->gates;
        if (!q->gates) {
            waiting[i] = q->waiting;
            q->waiting = NULL;
            q->waiting_end = &q->waiting;
        }
        g_mutex_unlock(&q->lock);
    }
}

static void dispatch(struct request *waiting[QUEUES])
{
    for (unsigned i = 0; i < QUEUES; i++) {
        request_dispatch_list(waiting[i]);
    }
}

void image_gate(struct pinrbd_image *image, unsigned set, unsigned clear)
{
    struct request *waiting[QUEUES] = { NULL };

    g_mutex_lock(&image->lock);
    gate_locked(image, set, clear, waiting);
    g_mutex_unlock(&image->lock);
    dispatch(waiting);
}

bool image_has_waiting(struct pinrbd_image *image)
{
    bool waiting = false;

    for (unsigned i = 0; i < QUEUES; i++) {
        g_mutex_lock(&image->queues[i].lock);
        waiting |= image->queues[i].waiting != NULL;
        g_mutex_unlock(&image->queues[i].lock);
    }
    return waiting;
}

void image_fail_waiting(struct pinrbd_image *image, int error)
{
    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *q = &image->queues[i];
        struct request *list;

        g_mutex_lock(&q->lock);
        list = q->waiting;
        q->waiting = NULL;
        q->waiting_end = &q->waiting;
        g_mutex_unlock(&q->lock);
        request_fail_list(list, error);
    }
}

/* Without the lock that a write needs, it waits.  Under the image's lock. */
static void lock_gate_locked(struct pinrbd_image *image,
                             struct request *waiting[QUEUES])
{
    if (!image_needs_lock_locked(image)) {
        gate_locked(image, 0, GATE_LOCK, waiting);
    } else if (image->lk.state != LOCK_HELD || image->lk.check) {
        gate_locked(image, GATE_LOCK, 0, waiting);
        image_lock_needed_locked(image);
    }
}

void image_gate_for_lock(struct pinrbd_image *image)
{
    struct request *waiting[QUEUES] = { NULL };

    g_mutex_lock(&image->lock);
    lock_gate_locked(image, waiting);
    g_mutex_unlock(&image->lock);
    dispatch(waiting);
}

void image_hold(struct pinrbd_image *image)
{
    __atomic_add_fetch(&image->holds, 1, __ATOMIC_RELAXED);
}

void image_release(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    __atomic_sub_fetch(&image->holds, 1, __ATOMIC_RELEASE);
    g_cond_broadcast(&image->changed);
}

unsigned image_active_writes(struct pinrbd_image *image)
{
    unsigned n = 0;

    for (unsigned i = 0; i < QUEUES; i++) {
        g_mutex_lock(&image->queues[i].lock);
        n += image->queues[i].n_active_writes;
        g_mutex_unlock(&image->queues[i].lock);
    }
    return n;
}

void image_drained(struct pinrbd_image *image)
{
    uint64_t notify_id = 0;
    bool ack = false;

    g_mutex_lock(&image->lock);
    g_cond_broadcast(&image->changed);
    if (image->quiescing && !image->maintenance.running &&
        !image_active_writes(image)) {
        image->quiescing = false;
        notify_id = image->quiesce_notify;
        ack = true;
    }
    g_mutex_unlock(&image->lock);
    if (ack) {
        watch_ack_result(&image->watch, notify_id, 0);
    }
}

/* ---- publishing --------------------------------------------------------- */

/* Swap @meta (its reference is taken) into the image and all queues. */
void image_publish(struct pinrbd_image *image, struct image_meta *meta,
                   uint64_t size, int write_error)
{
    struct request *waiting[QUEUES] = { NULL };
    struct image_meta *old;
    bool forget, resized;

    g_mutex_lock(&image->lock);
    old = image->meta;
    resized = old && size != image->told_size;
    image->told_size = size;
    meta->parent_epoch = image->parent_epoch;
    if (old && (old->parent_link != meta->parent_link ||
                old->parent_overlap != meta->parent_overlap)) {
        meta->parent_epoch++;
        __atomic_store_n(&image->parent_epoch, meta->parent_epoch,
                         __ATOMIC_RELEASE);
    }
    image->meta = meta;
    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *q = &image->queues[i];
        struct image_meta *q_old;

        g_mutex_lock(&q->lock);
        q_old = q->meta;
        q->meta = meta_ref(meta);
        q->size = MIN(size, image->size_limit);
        q->write_error = image->writable ? write_error : -EROFS;
        g_mutex_unlock(&q->lock);
        meta_unref(q_old);
    }
    forget = !image_needs_lock_locked(image) && image->map &&
             image->snap_id == RADOS_NOSNAP;
    lock_gate_locked(image, waiting);
    g_mutex_unlock(&image->lock);
    dispatch(waiting);
    if (forget) {
        image_lock_forget(image, 0);
    }

    if (resized) {
        plog(PINRBD_LOG_INFO, "image '%s': size is %" PRIu64 " bytes now",
             image->spec, size);
        if (image->resized) {
            image->resized(image->opaque);
        }
    }
    meta_unref(old);
}

/* ---- the end of an image ------------------------------------------------ */

static bool may_write(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    return image_may_write_locked(image);
}

static void resend_parked(struct pinrbd_image *image, int error)
{
    struct object_request *o;
    struct object_request *next;

    g_mutex_lock(&image->lock);
    o = image->parked;
    image->parked = NULL;
    g_mutex_unlock(&image->lock);
    for (; o; o = next) {
        next = o->list_next;
        if (error == 0 && o->request->kind != REQUEST_READ &&
            !may_write(image)) {
            image_lock_park(image, o);
        } else {
            object_request_resend(o, error);
        }
    }
}

/* All I/O fails with @err from now on; said once. */
static void kill_image(struct pinrbd_image *image, int err, const char *why)
{
    bool first;

    g_mutex_lock(&image->lock);
    first = !image->dead;
    if (first) {
        image->dead = err;
        for (unsigned i = 0; i < QUEUES; i++) {
            g_mutex_lock(&image->queues[i].lock);
            image->queues[i].error = err;
            g_mutex_unlock(&image->queues[i].lock);
        }
    }
    g_cond_broadcast(&image->changed);
    g_mutex_unlock(&image->lock);

    if (first) {
        plog(PINRBD_LOG_ERROR, "image '%s': %s; all I/O fails from now on",
             image->spec, why);
    }
    image_gate(image, 0, ~0u);
    resend_parked(image, err);
    image_lock_forget(image, err);
}

void image_fenced(struct pinrbd_image *image)
{
    cluster_retire(image->cluster);
    kill_image(image, -ESHUTDOWN, "this client is blocklisted by the cluster");
}

/* ---- refresh ------------------------------------------------------------ */

static void fetch_done(struct header_fetch *f, int result);

static void fetch_start(struct pinrbd_image *image)
{
    g_mutex_lock(&image->lock);
    image->fetch = (struct header_fetch) {
        .pool = image->md_pool, .oid = image->header_oid,
        .read_only = !image->writable, .done = fetch_done, .opaque = image,
    };
    image->fetching = true;
    header_fetch_start(&image->fetch);
    g_mutex_unlock(&image->lock);
}

/* Begin a reading unless one that began after the call will be enough. */
static void refresh_kick(struct pinrbd_image *image)
{
    g_mutex_lock(&image->lock);
    image->refresh_wanted = image->refresh_started + 1;
    if (image->loading || image->refreshing || image->closing ||
        image->dead) {
        g_mutex_unlock(&image->lock);
        return;
    }
    image->refreshing = true;
    image->refresh_started++;
    g_mutex_unlock(&image->lock);

    image_gate(image, GATE_REFRESH, 0);
    fetch_start(image);
}

void image_loaded(struct pinrbd_image *image)
{
    bool missed;

    g_mutex_lock(&image->lock);
    image->loading = false;
    missed = image->refresh_wanted > image->refresh_started;
    g_mutex_unlock(&image->lock);
    if (missed) {
        refresh_kick(image);
    }
}

static void retry_fired(struct ptimer *t)
{
    struct pinrbd_image *image =
        (void *)((char *)t - offsetof(struct pinrbd_image, retry));
    bool go;

    g_mutex_lock(&image->lock);
    go = !image->closing && !image->dead;
    if (!go) {
        image->refreshing = false;
        g_cond_broadcast(&image->changed);
    }
    g_mutex_unlock(&image->lock);
    if (go) {
        fetch_start(image);
    }
}

/* The reading is over, for better or worse; start the next one if wanted. */
static void refresh_end(struct pinrbd_image *image, int result)
{
    struct request *waiting[QUEUES] = { NULL };
    g_autoptr(GArray) acks = NULL;
    bool again;

    g_mutex_lock(&image->lock);
    image->refresh_done = image->refresh_started;
    image->refresh_result = result;
    image->n_refreshes++;
    again = image->refresh_wanted > image->refresh_started &&
            !image->closing && !image->dead;
    if (again) {
        image->refresh_started++;
    } else {
        /*
         * In one go: who wants another reading either is seen above, or
         * finds the gate open and closes it.
         */
        image->refreshing = false;
        gate_locked(image, 0, GATE_REFRESH | GATE_WATCH, waiting);
        acks = image->acks;
        image->acks = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    }
    image_hold(image);
    g_cond_broadcast(&image->changed);
    g_mutex_unlock(&image->lock);

    if (again) {
        fetch_start(image);
    } else {
        dispatch(waiting);
        for (guint i = 0; i < acks->len; i++) {
            watch_ack_result(&image->watch,
                             g_array_index(acks, uint64_t, i), 0);
        }
        resend_parked(image, result);
    }
    image_release(image);
}

/* A header that was read and judged, on its way to be used. */
struct news {
    struct pinrbd_image *image;
    struct image_meta *meta;
    uint64_t size;
    int write_error;
};

static void take_news(struct news *n)
{
    struct pinrbd_image *image = n->image;

    image_publish(image, n->meta, n->size, n->write_error);
    g_free(n);
    refresh_end(image, 0);
}

/* The image has another parent than before: this takes a while. */
static void link_job(void *opaque)
{
    struct news *n = opaque;
    struct pinrbd_image *image = n->image;
    gint64 deadline_us = deadline_after(NOTIFY_TIMEOUT_MS);
    struct pinrbd_error err;

    if (image_link_parent(image, n->meta, &deadline_us, &err) < 0) {
        plog(PINRBD_LOG_WARN, "image '%s': %s; writes are held and it is "
             "tried every second", image->spec, err.text);
        meta_unref(n->meta);
        g_free(n);
        ptimer_arm(&image->retry, RETRY_MS);
        return;
    }
    take_news(n);
}

static void fetch_done(struct header_fetch *f, int result)
{
    struct pinrbd_image *image = f->opaque;
    struct news *n;
    struct image_meta *meta = g_steal_pointer(&f->meta);
    const char *what = f->what;
    char why[400];
    uint64_t size = 0;
    bool writable;
    int judged;

    g_mutex_lock(&image->lock);
    image->fetching = false;
    writable = image->writable;
    g_mutex_unlock(&image->lock);
    header_fetch_clear(f);
    if (result == -ECANCELED) {
        refresh_end(image, result);
        return;
    }
    if (result == -ENOENT) {
        kill_image(image, result, "its header is gone, the image was removed");
        refresh_end(image, result);
        return;
    }
    if (result == -ESHUTDOWN) {
        image_fenced(image);
        refresh_end(image, result);
        return;
    }
    if (result < 0) {
        plog(PINRBD_LOG_WARN, "image '%s': cannot read its header again "
             "(%s); writes are held and it is tried every second",
             image->spec, what ?: g_strerror(-result));
        ptimer_arm(&image->retry, RETRY_MS);
        return;
    }

    judged = image_judge(image, meta, writable, &size, why, sizeof(why));
    if (judged == -ENOENT) {
        meta_unref(meta);
        kill_image(image, judged, why);
        refresh_end(image, judged);
        return;
    }
    if (judged < 0) {
        plog(PINRBD_LOG_ERROR, "image '%s' %s; writes fail from now on",
             image->spec, why);
    }
    n = g_new(struct news, 1);
    *n = (struct news) { image, meta, size, judged == -ENOSYS ? -EROFS
                                                              : judged };
    if (image_link_parent(image, meta, NULL, NULL) == -EAGAIN) {
        job_start("pinrbd-parent", link_job, n);
    } else {
        take_news(n);
    }
}

/* Read the header in a reading that begins from now on; wait for it. */
int image_refresh_sync(struct pinrbd_image *image, gint64 deadline_us)
{
    uint64_t target;
    int r;

    g_mutex_lock(&image->lock);
    target = image->refresh_started + 1;
    g_mutex_unlock(&image->lock);
    refresh_kick(image);

    g_mutex_lock(&image->lock);
    while (image->refresh_done < target && !image->dead) {
        if (!deadline_us) {
            g_cond_wait(&image->changed, &image->lock);
        } else if (!g_cond_wait_until(&image->changed, &image->lock,
                                      deadline_us)) {
            break;
        }
    }
    r = image->dead ? image->dead :
        image->refresh_done < target ? -ETIMEDOUT : image->refresh_result;
    g_mutex_unlock(&image->lock);
    return r;
}

void image_park(struct pinrbd_image *image, struct object_request *o)
{
    int dead;

    g_mutex_lock(&image->lock);
    dead = image->dead;
    if (!dead) {
        o->list_next = image->parked;
        image->parked = o;
        image_hold(image);      /* its request may be over at once */
    }
    g_mutex_unlock(&image->lock);
    if (dead) {
        object_request_resend(o, dead);
    } else {
        refresh_kick(image);
        image_release(image);
    }
}

/* ---- messages of other clients ------------------------------------------ */

static void unquiesce(struct pinrbd_image *image)
{
    bool was;

    g_mutex_lock(&image->lock);
    was = image->gates & GATE_QUIESCE;
    image->quiescing = false;
    g_mutex_unlock(&image->lock);
    if (was) {
        /* The refresh closes its own gate before this one opens. */
        refresh_kick(image);
        image_gate(image, 0, GATE_QUIESCE);
    }
}

static void unquiesce_fired(struct ptimer *t)
{
    struct pinrbd_image *image =
        (void *)((char *)t - offsetof(struct pinrbd_image, unquiesce));

    plog(PINRBD_LOG_WARN, "image '%s': writes were held for a snapshot for "
         "%u s and nobody said that it is done; going on", image->spec,
         UNQUIESCE_MS / 1000);
    unquiesce(image);
}

/* From the lock's owner, or asking for it; from us too. */
static void lock_message(struct pinrbd_image *image,
                         const struct notify_msg *m, uint64_t notify_id)
{
    int answer;

    if (m->client.gid == image_gid(image)) {
        watch_ack(&image->watch, notify_id);
    } else if (m->op != NOTIFY_REQUEST_LOCK) {
        watch_ack(&image->watch, notify_id);
        image_lock_heard(image, m);
    } else if (image_lock_requested(image, &m->client, &answer)) {
        watch_ack_result(&image->watch, notify_id, answer);
    } else {
        watch_ack(&image->watch, notify_id);
    }
}

static void quiesce_message(struct pinrbd_image *image,
                            const struct notify_msg *m, uint64_t notify_id)
{
    if (m->async.client.gid == image_gid(image)) {
        watch_ack(&image->watch, notify_id);    /* ours: maintenance.c */
    } else if (m->op == NOTIFY_QUIESCE) {
        g_mutex_lock(&image->lock);
        image->quiescing = true;
        image->quiesce_notify = notify_id;
        g_mutex_unlock(&image->lock);
        ptimer_arm(&image->unquiesce, UNQUIESCE_MS);
        image_gate(image, GATE_QUIESCE, 0);
        image_drained(image);
    } else {
        watch_ack(&image->watch, notify_id);
        ptimer_cancel(&image->unquiesce);
        unquiesce(image);
    }
}

static void watch_message(void *opaque, const struct notify_msg *m,
                          uint64_t notify_id)
{
    struct pinrbd_image *image = opaque;
    bool closing;
    int answer;

    g_mutex_lock(&image->lock);
    closing = image->closing || image->dead;
    if (!closing && m->op == NOTIFY_HEADER_UPDATE) {
        g_array_append_val(image->acks, notify_id);
        image->refresh_wanted = image->refresh_started + 1;
    }
    g_mutex_unlock(&image->lock);

    if (closing) {
        watch_ack(&image->watch, notify_id);
        return;
    }
    switch (m->op) {
    case NOTIFY_ACQUIRED_LOCK:
    case NOTIFY_RELEASED_LOCK:
    case NOTIFY_REQUEST_LOCK:
        lock_message(image, m, notify_id);
        break;
    case NOTIFY_HEADER_UPDATE:
        image_lock_heard(image, m);
        refresh_kick(image);
        break;
    case NOTIFY_QUIESCE:
    case NOTIFY_UNQUIESCE:
        quiesce_message(image, m, notify_id);
        break;
    case NOTIFY_ASYNC_PROGRESS:
    case NOTIFY_ASYNC_COMPLETE:
        watch_ack(&image->watch, notify_id);
        break;
    default:
        if (maintenance_requested(image, m, &answer)) {
            watch_ack_result(&image->watch, notify_id, answer);
        } else {
            watch_ack(&image->watch, notify_id);
        }
        break;
    }
}

static void watch_lost(void *opaque, int err)
{
    struct pinrbd_image *image = opaque;

    g_mutex_lock(&image->lock);
    image->watch_lost = true;
    g_mutex_unlock(&image->lock);
    plog(PINRBD_LOG_WARN, "image '%s': the watch on its header is lost (%s); "
         "writes are held until it is registered again", image->spec,
         g_strerror(-err));
    image_gate(image, GATE_WATCH, 0);
}

static void watch_regained(void *opaque)
{
    struct pinrbd_image *image = opaque;

    g_mutex_lock(&image->lock);
    image->watch_lost = false;
    image->refresh_wanted = image->refresh_started + 1;
    g_mutex_unlock(&image->lock);
    plog(PINRBD_LOG_WARN, "image '%s': the watch on its header is registered "
         "again", image->spec);
    image_lock_check(image);
    refresh_kick(image);        /* opens the gate when it is done */
}

static void watch_gone(void *opaque, int err)
{
    struct pinrbd_image *image = opaque;

    if (err == -ESHUTDOWN) {
        image_fenced(image);
    } else {
        kill_image(image, err, "its header is gone, the image was removed");
    }
}

/* ---- watchdog ----------------------------------------------------------- */

/* Goes on while the host is suspended, as the cluster's clocks do. */
static gint64 boot_time_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * G_GINT64_CONSTANT(1000000) + t.tv_nsec / 1000;
}

/*
 * Others break our lock when our watch has not been confirmed for its timeout.
 * Two thirds of that time after a confirmation we may still believe that it is
 * ours without asking; an OSD would be asked by any write, and by a read.
 */
void image_renew_lease(struct pinrbd_image *image)
{
    gint64 now_us = boot_time_us();
    int age_ms = watch_age_ms(&image->watch);
    gint64 lease_us = image->watch.timeout_s * G_GINT64_CONSTANT(2000000) / 3;

    if (age_ms >= 0) {
        __atomic_store_n(&image->lease_us, now_us + lease_us -
                         age_ms * G_GINT64_CONSTANT(1000), __ATOMIC_RELEASE);
    }
}

bool image_trusts_map(struct pinrbd_image *image, uint64_t parent_len)
{
    if (image->snap_id != RADOS_NOSNAP) {
        /*
         * A snapshot of a clone gains objects: by a write to the head, which
         * brings the parent's data, and by a flatten.
         */
        return !parent_len;
    }
    return boot_time_us() < __atomic_load_n(&image->lease_us,
                                            __ATOMIC_ACQUIRE);
}

void image_check_stall(struct pinrbd_image *image)
{
    gint64 alive_us = __atomic_load_n(&image->alive_us, __ATOMIC_ACQUIRE);
    gint64 now_us = boot_time_us();
    bool writable;

    if (G_LIKELY(now_us - alive_us < STALLED_MS * G_GINT64_CONSTANT(1000))) {
        return;
    }
    g_mutex_lock(&image->lock);
    writable = image->writable;
    g_mutex_unlock(&image->lock);
    if (writable) {
        image_lock_check(image);
        refresh_kick(image);
    }
    /* Not before the gate is closed: who sees this does not look further. */
    if (__atomic_compare_exchange_n(&image->alive_us, &alive_us, now_us, false,
                                    __ATOMIC_RELEASE, __ATOMIC_RELAXED) &&
        writable) {
        plog(PINRBD_LOG_WARN, "image '%s': this process stood still for %"
             PRIu64 " s; writes are held until the header has been read",
             image->spec, (uint64_t)(now_us - alive_us) / 1000000);
    }
}

static void tick_fired(struct ptimer *t)
{
    struct pinrbd_image *image =
        (void *)((char *)t - offsetof(struct pinrbd_image, tick));
    unsigned n, kind = 0, held_back;
    char lock_owner[sizeof(image->lk.waits_for)];
    uint64_t off = 0, len = 0;
    unsigned gates;
    bool look;
    gint64 age_us = request_oldest(image->queues, &n, &kind, &off, &len);

    if (age_us / 1000 >= SLOW_MS &&
        plog_limit_pass(&image->slow_limit, SLOW_EVERY_MS, &held_back)) {
        g_mutex_lock(&image->lock);
        gates = image->gates;
        g_strlcpy(lock_owner, image->lk.waits_for, sizeof(lock_owner));
        g_mutex_unlock(&image->lock);
        plog(PINRBD_LOG_WARN, "image '%s': %u requests wait, the oldest (%s "
             "of %" PRIu64 " bytes at %" PRIu64 ") for %" PRIu64 " s; %s%s",
             image->spec, n, request_kind_name(kind), len, off,
             (uint64_t)age_us / 1000000,
             gates & GATE_LOCK && lock_owner[0] ? "writes wait for " :
             gates & GATE_WATCH ? "writes are held without a watch" :
             gates & GATE_REFRESH ? "writes are held while the header is read"
             : gates & GATE_QUIESCE ? "writes are held for a snapshot" :
             gates & GATE_CONTROL ? "writes are held while the image is changed"
             : gates & GATE_LOCK ? "writes wait for the exclusive lock" :
             "the OSDs have not answered",
             gates & GATE_LOCK ? lock_owner : "");
    }
    watch_poll(&image->watch);
    image_check_stall(image);
    image_renew_lease(image);
    __atomic_store_n(&image->alive_us, boot_time_us(), __ATOMIC_RELEASE);
    /* Nobody tells us when the parent goes: look. */
    g_mutex_lock(&image->lock);
    look = !image->writable && image->meta->parent_link;
    g_mutex_unlock(&image->lock);
    if (look) {
        refresh_kick(image);
    }
    ptimer_arm(&image->tick, TICK_MS);
}

/* ---- set-up ------------------------------------------------------------ */

void image_follow_init(struct pinrbd_image *image)
{
    image->retry.fire = retry_fired;
    image->tick.fire = tick_fired;
    image->unquiesce.fire = unquiesce_fired;
    image_lock_init(image);
    image->watch.message = watch_message;
    image->watch.lost = watch_lost;
    image->watch.regained = watch_regained;
    image->watch.gone = watch_gone;
    image->watch.oid = image->header_oid;
    image->watch.opaque = image;
    image->alive_us = boot_time_us();
    watch_init(&image->watch);
}

void image_watch_anew(struct pinrbd_image *image)
{
    g_mutex_lock(&image->lock);
    image->watch_lost = false;
    g_mutex_unlock(&image->lock);
    image_gate(image, 0, GATE_WATCH);
}

void image_follow_start(struct pinrbd_image *image)
{
    image->alive_us = boot_time_us();
    ptimer_arm(&image->tick, TICK_MS);
}
