/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A guest request from submit to completion.
 *
 *   submit:   pool slot, map to objects, cut the iovecs     (lane lock, once)
 *             write and a gate closed -> WAITING
 *   dispatch: check size and state, take the metadata in force, send the
 *             objects (object_request.c)
 *   done:     last object -> callback
 *             -> unlink, wake flushes, free                 (lane lock, once)
 *
 *      submit --+--> ACTIVE -- last object --> done
 *               |      ^
 *               +--> WAITING  (gate: request_dispatch_list() when it opens)
 *
 * Slots come from chunks that live as long as the image: after warm-up nothing
 * here allocates, and the watchdog may look at any slot at any time.
 *
 * Flush.  RADOS writes are stable when acknowledged, so a flush only waits for
 * the writes before it.  Each lane keeps its unfinished writes in order of
 * submission; a flush notes the youngest one of each lane and completes when
 * all older ones have left the lists.
 */
#include "request.h"

#include <errno.h>
#include <string.h>

#include "image.h"
#include "iov.h"

/* As librbd's rbd_discard_granularity_bytes. */
#define DISCARD_GRANULARITY 65536u

static bool kind_writes(unsigned kind)
{
    return kind != REQUEST_READ && kind != REQUEST_FLUSH;
}

static bool kind_is_ours(unsigned kind)
{
    return kind > REQUEST_FLUSH;
}

const char *request_kind_name(unsigned kind)
{
    static const char *const name[] = {
        "read", "write", "discard", "write-zeroes", "flush", "trim",
        "flatten", "rollback",
    };

    return kind < G_N_ELEMENTS(name) ? name[kind] : "request";
}

/* ---- pool -------------------------------------------------------------- */

static void object_slot_init(struct object_request *o)
{
    o->iov = o->iov_inline;
    o->iov_size = G_N_ELEMENTS(o->iov_inline);
}

static bool grow_locked(struct pinrbd_image *image, struct queue *q)
{
    struct request_chunk *chunk = g_try_new0(struct request_chunk, 1);

    if (!chunk) {
        return false;
    }
    for (unsigned i = 0; i < REQUESTS_PER_CHUNK; i++) {
        struct request *r = &chunk->requests[i];

        r->image = image;
        r->queue = q;
        object_slot_init(&r->first);
        r->next = q->free;
        q->free = r;
    }
    chunk->next = q->chunks;
    __atomic_store_n(&q->chunks, chunk, __ATOMIC_RELEASE);
    return true;
}

static struct request *request_new_locked(struct pinrbd_image *image,
                                          struct queue *q)
{
    struct request *r;

    if (!q->free && !grow_locked(image, q)) {
        return NULL;
    }
    r = q->free;
    q->free = r->next;
    r->next = NULL;
    r->older = r->newer = NULL;
    r->meta = NULL;
    r->map = NULL;
    r->objects = NULL;
    r->result = 0;
    r->active_write = false;
    q->n_requests++;
    return r;
}

static void request_free_locked(struct queue *q, struct request *r)
{
    struct object_request *o;
    struct object_request *next;

    for (o = r->objects; o; o = next) {
        next = o->next;
        object_request_clear(o);
        if (o != &r->first) {
            o->next = q->free_objects;
            q->free_objects = o;
        }
    }
    meta_unref(r->meta);
    object_map_unref(r->map);
    __atomic_store_n(&r->start_us, 0, __ATOMIC_RELAXED);
    r->next = q->free;
    q->free = r;
    if (!--q->n_requests) {
        g_cond_broadcast(&q->idle);
    }
}

/* ---- mapping to objects ------------------------------------------------ */

static struct object_request *object_new_locked(struct queue *q,
                                                struct request *r)
{
    struct object_request *o = &r->first;

    if (r->objects) {
        o = q->free_objects;
        if (o) {
            q->free_objects = o->next;
        } else {
            o = g_try_new0(struct object_request, 1);
            if (!o) {
                return NULL;
            }
            object_slot_init(o);
        }
    }
    o->request = r;
    o->next = NULL;
    o->n_iov = 0;
    o->resends = 0;
    o->skipped = false;
    o->parent_reads = 0;
    return o;
}

static int add_pieces(struct object_request *o, struct iov_cursor *c,
                      uint64_t len)
{
    while (len) {
        struct iovec piece = iov_take(c, len);

        if (!piece.iov_len) {
            return -EINVAL;
        }
        if (o->n_iov == o->iov_size) {
            int size = o->iov_size * 4;
            struct iovec *iov = g_try_new(struct iovec, size);

            if (!iov) {
                return -ENOMEM;
            }
            memcpy(iov, o->iov, o->n_iov * sizeof(*iov));
            if (o->iov != o->iov_inline) {
                g_free(o->iov);
            }
            o->iov = iov;
            o->iov_size = size;
        }
        o->iov[o->n_iov++] = piece;
        len -= piece.iov_len;
    }
    return 0;
}

/*
 * Consecutive stripes of an object touch each other inside it, so an object
 * has one extent a request, whatever the striping.
 */
static struct object_request *find_object(struct request *r,
                                          const struct object_extent *e)
{
    struct object_request *o;

    for (o = r->objects; o; o = o->next) {
        if (o->object == e->object && o->off + o->len == e->off) {
            return o;
        }
    }
    return NULL;
}

static int map_locked(struct queue *q, struct request *r,
                      const struct layout *l, struct iov_cursor cursor)
{
    struct object_request **end = &r->objects;
    uint64_t off = r->off;
    uint64_t left = r->len;

    while (left) {
        struct object_extent e = striper_map(l, off, left);
        struct object_request *o = NULL;
        int ret;

        if (l->count > 1) {
            o = find_object(r, &e);
        }
        if (!o) {
            o = object_new_locked(q, r);
            if (!o) {
                return -ENOMEM;
            }
            o->object = e.object;
            o->off = e.off;
            o->len = 0;
            *end = o;
            end = &o->next;
        }
        o->len += e.len;
        if (r->kind == REQUEST_READ || r->kind == REQUEST_WRITE) {
            ret = add_pieces(o, &cursor, e.len);
            if (ret < 0) {
                return ret;
            }
        }
        off += e.len;
        left -= e.len;
    }
    return 0;
}

/*
 * As librbd: a discard loses what is smaller than the granularity, but not at
 * the end of an object that is no larger than it.
 */
static void round_discard_locked(struct queue *q, struct request *r,
                                 const struct layout *l)
{
    uint64_t g = MIN(DISCARD_GRANULARITY, l->object_size);
    struct object_request **p = &r->objects;
    struct object_request *o;

    while ((o = *p)) {
        uint64_t start = (o->off + g - 1) / g * g;
        uint64_t end = (o->off + o->len) / g * g;

        if (g == l->object_size && end == l->object_size) {
            p = &o->next;
            continue;
        }
        if (start < end) {
            o->off = start;
            o->len = end - start;
            p = &o->next;
            continue;
        }
        *p = o->next;
        if (o != &r->first) {
            o->next = q->free_objects;
            q->free_objects = o;
        }
    }
}

/* ---- dispatch ---------------------------------------------------------- */

static bool beyond_locked(const struct queue *q, const struct request *r)
{
    return r->len > q->size || r->off > q->size - r->len;
}

/* May the request go to the OSDs now?  Then it takes the present metadata. */
static int admit_locked(struct queue *q, struct request *r)
{
    if (q->error) {
        return q->error;
    }
    if (kind_writes(r->kind) && q->write_error) {
        return q->write_error;
    }
    if (!kind_is_ours(r->kind) && beyond_locked(q, r)) {
        return -EINVAL;
    }
    r->meta = meta_ref(q->meta);
    r->map = object_map_ref(q->map);
    if (kind_writes(r->kind)) {
        r->active_write = true;
        q->n_active_writes++;
    }
    return 0;
}

static void wait_locked(struct queue *q, struct request *r)
{
    r->next = NULL;
    *q->waiting_end = r;
    q->waiting_end = &r->next;
}

static void finish(struct request *r, int *ret_result);

/* True: all are answered already, and finish() is up to the caller. */
static bool send_objects(struct request *r)
{
    struct object_request *o;
    struct object_request *next;
    unsigned n = 1;             /* ours, so that r outlives the loop */

    for (o = r->objects; o; o = o->next) {
        n++;
    }
    __atomic_store_n(&r->pending, n, __ATOMIC_RELAXED);
    for (o = r->objects; o; o = next) {
        next = o->next;
        object_request_send(o);
    }
    return __atomic_sub_fetch(&r->pending, 1, __ATOMIC_ACQ_REL) == 0;
}

void request_object_done(struct request *r, int result)
{
    int none = 0;

    if (result < 0) {
        __atomic_compare_exchange_n(&r->result, &none, result, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    if (__atomic_sub_fetch(&r->pending, 1, __ATOMIC_ACQ_REL) == 0) {
        finish(r, NULL);
    }
}

void request_dispatch_list(struct request *r)
{
    while (r) {
        struct request *next = r->next;
        struct pinrbd_image *image = r->image;
        struct queue *q = r->queue;
        int ret;

        g_mutex_lock(&q->lock);
        if (q->gates) {         /* closed again meanwhile */
            bool wait_for_lock = q->gates & GATE_LOCK;

            wait_locked(q, r);
            image_hold(image);  /* once unlocked, r may be gone */
            g_mutex_unlock(&q->lock);
            if (wait_for_lock) {
                image_lock_want(image);
            }
            image_release(image);
            r = next;
            continue;
        }
        ret = admit_locked(q, r);
        g_mutex_unlock(&q->lock);
        if (ret < 0) {
            r->result = ret;
        }
        if (ret < 0 || send_objects(r)) {
            finish(r, NULL);
        }
        r = next;
    }
}

void request_fail_list(struct request *r, int error)
{
    while (r) {
        struct request *next = r->next;

        r->result = error;
        finish(r, NULL);
        r = next;
    }
}

/* ---- completion -------------------------------------------------------- */

static void count_locked(struct queue *q, struct request *r)
{
    struct queue_counters *c = &q->counters;

    c->done[r->kind]++;
    if (r->result < 0) {
        c->failed++;
    } else if (r->kind == REQUEST_READ) {
        c->read_bytes += r->len;
    } else if (r->kind == REQUEST_WRITE) {
        c->write_bytes += r->len;
    }
    if (!r->meta) {
        return;                 /* nothing was sent */
    }
    for (struct object_request *o = r->objects; o; o = o->next) {
        c->object_ops += !o->skipped + o->resends;
        c->parent_reads += o->parent_reads;
        c->absent_reads += o->skipped && r->kind == REQUEST_READ;
        c->old_snapc += o->resends;
        c->late_refs += o->op.late;
        if (r->kind == REQUEST_READ) {
            c->read_copied_bytes += o->op.copied_bytes;
        } else if (r->kind == REQUEST_WRITE) {
            c->pinned_bytes += o->op.pinned_bytes;
            if (r->image->settings->pin == PINRBD_PIN_NEVER) {
                c->copied_never_bytes += o->op.copied_bytes;
            } else {
                c->copied_small_bytes += o->op.copied_bytes;
            }
        }
    }
}

static void unlink_write_locked(struct queue *q, struct request *r)
{
    if (r->older) {
        r->older->newer = r->newer;
    } else {
        q->writes = r->newer;
    }
    if (r->newer) {
        r->newer->older = r->older;
    } else {
        q->writes_last = r->older;
    }
}

/* The flushes of the lane whose last older write is gone, as a list. */
static struct flush_wait *flushes_ready_locked(struct queue *q)
{
    struct flush_wait *ready = q->flushes;
    struct flush_wait **end = &ready;

    while (*end && (!q->writes || (*end)->seq < q->writes->seq)) {
        end = &(*end)->next;
    }
    q->flushes = *end;
    if (!q->flushes) {
        q->flushes_end = &q->flushes;
    }
    *end = NULL;
    return ready;
}

static void flushes_step(struct flush_wait *f)
{
    while (f) {
        struct flush_wait *next = f->next;

        request_object_done(f->request, 0);
        f = next;
    }
}

/*
 * With @ret_result a submit tells its caller; there is no callback then.  The
 * caller hears first and the request leaves its lane after: so a flush that is
 * submitted meanwhile cannot overtake the callback of a write before it, and a
 * close that waits for the lane waits for callbacks as well.
 */
static void finish(struct request *r, int *ret_result)
{
    struct pinrbd_image *image = r->image;
    struct queue *q = r->queue;
    struct flush_wait *ready = NULL;
    bool drained = false;

    if (ret_result) {
        *ret_result = r->result;
    } else {
        r->done(r->opaque, r->result);
    }

    g_mutex_lock(&q->lock);
    count_locked(q, r);
    if (kind_writes(r->kind)) {
        unlink_write_locked(q, r);
        ready = flushes_ready_locked(q);
        if (r->active_write) {
            drained = !--q->n_active_writes && q->gates;
        }
        if (!q->writes) {
            g_cond_broadcast(&q->idle);
        }
    }
    /*
     * Once it is idle the image may be closed by another thread.  A flush that
     * waits keeps it busy; while a drain is watched we do.
     */
    if (drained) {
        image_hold(image);
    }
    request_free_locked(q, r);
    g_mutex_unlock(&q->lock);

    flushes_step(ready);
    if (drained) {
        image_drained(image);
        image_release(image);
    }
}

/* ---- submit ------------------------------------------------------------ */

static void start_locked(struct queue *q, struct request *r)
{
    if (kind_writes(r->kind)) {
        r->seq = q->next_seq++;
        r->older = q->writes_last;
        r->newer = NULL;
        if (q->writes_last) {
            q->writes_last->newer = r;
        } else {
            q->writes = r;
        }
        q->writes_last = r;
    }
    __atomic_store_n(&r->start_us, g_get_monotonic_time(), __ATOMIC_RELAXED);
}

static int submit(struct pinrbd_image *image, enum request_kind kind,
                  uint64_t arg, uint64_t off, uint64_t len,
                  struct iov_cursor cursor, pinrbd_done_fn *done,
                  void *opaque, int *ret_result)
{
    struct queue *q = queue_of_thread(image->queues);
    bool ours = kind_is_ours(kind);
    struct request *r;
    bool wait_for_lock;
    int ret;

    if (kind_writes(kind)) {
        image_check_stall(image);
    }
    g_mutex_lock(&q->lock);
    r = request_new_locked(image, q);
    if (!r) {
        g_mutex_unlock(&q->lock);
        *ret_result = -ENOMEM;
        return 1;
    }
    __atomic_store_n(&r->kind, kind, __ATOMIC_RELAXED);
    __atomic_store_n(&r->off, off, __ATOMIC_RELAXED);
    __atomic_store_n(&r->len, len, __ATOMIC_RELAXED);
    r->flags = ours ? 0 : arg;
    r->snap_id = ours ? arg : 0;
    r->done = done;
    r->opaque = opaque;

    /* Before it is mapped: a length out of bounds has too many objects. */
    ret = !ours && beyond_locked(q, r) ? -EINVAL
                              : map_locked(q, r, &image->layout, cursor);
    if (ret == 0 && kind == REQUEST_DISCARD) {
        round_discard_locked(q, r, &image->layout);
    }
    if (ret == 0 && q->gates && kind_writes(kind) && !ours && r->objects) {
        wait_for_lock = q->gates & GATE_LOCK;
        start_locked(q, r);
        wait_locked(q, r);
        /* Once unlocked, r may be gone, but not the image: it waits for r. */
        if (wait_for_lock) {
            image_hold(image);
        }
        g_mutex_unlock(&q->lock);
        if (wait_for_lock) {
            image_lock_want(image);
            image_release(image);
        }
        return 0;
    }
    if (ret == 0) {
        ret = admit_locked(q, r);
    }
    if (ret < 0 || !r->objects) {
        r->result = ret;
        if (r->active_write) {
            q->n_active_writes--;
        }
        count_locked(q, r);
        request_free_locked(q, r);
        g_mutex_unlock(&q->lock);
        *ret_result = ret;
        return 1;
    }
    start_locked(q, r);
    g_mutex_unlock(&q->lock);

    if (send_objects(r)) {
        finish(r, ret_result);
        return 1;
    }
    return 0;
}

int pinrbd_read(struct pinrbd_image *image, uint64_t off, uint64_t len,
                const struct iovec *iov, int n_iov, pinrbd_done_fn *done,
                void *opaque, int *ret_result)
{
    struct iov_cursor to = { iov, n_iov, 0 };

    return submit(image, REQUEST_READ, 0, off, len, to, done, opaque,
                  ret_result);
}

int request_read_at(struct pinrbd_image *image, uint64_t off, uint64_t len,
                    struct iov_cursor to, pinrbd_done_fn *done, void *opaque,
                    int *ret_result)
{
    return submit(image, REQUEST_READ, 0, off, len, to, done, opaque,
                  ret_result);
}

int pinrbd_write(struct pinrbd_image *image, uint64_t off, uint64_t len,
                 const struct iovec *iov, int n_iov, pinrbd_done_fn *done,
                 void *opaque, int *ret_result)
{
    struct iov_cursor from = { iov, n_iov, 0 };

    return submit(image, REQUEST_WRITE, 0, off, len, from, done, opaque,
                  ret_result);
}

static const struct iov_cursor no_bytes;

int pinrbd_discard(struct pinrbd_image *image, uint64_t off, uint64_t len,
                   pinrbd_done_fn *done, void *opaque, int *ret_result)
{
    return submit(image, REQUEST_DISCARD, 0, off, len, no_bytes, done, opaque,
                  ret_result);
}

int pinrbd_write_zeroes(struct pinrbd_image *image, uint64_t off,
                        uint64_t len, unsigned flags, pinrbd_done_fn *done,
                        void *opaque, int *ret_result)
{
    return submit(image, REQUEST_ZEROES, flags, off, len, no_bytes, done,
                  opaque, ret_result);
}

int request_maintain(struct pinrbd_image *image, enum request_kind kind,
                     uint64_t snap_id, uint64_t off, uint64_t len,
                     pinrbd_done_fn *done, void *opaque, int *ret_result)
{
    return submit(image, kind, snap_id, off, len, no_bytes, done, opaque,
                  ret_result);
}

int pinrbd_flush(struct pinrbd_image *image, pinrbd_done_fn *done,
                 void *opaque, int *ret_result)
{
    struct queue *home = queue_of_thread(image->queues);
    struct request *r;
    int ret = 0;

    g_mutex_lock(&home->lock);
    r = request_new_locked(image, home);
    if (r) {
        __atomic_store_n(&r->kind, REQUEST_FLUSH, __ATOMIC_RELAXED);
        __atomic_store_n(&r->off, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&r->len, 0, __ATOMIC_RELAXED);
        r->done = done;
        r->opaque = opaque;
        r->pending = 1;         /* ours, until all lanes were looked at */
        start_locked(home, r);
    }
    ret = r ? home->error : -ENOMEM;
    g_mutex_unlock(&home->lock);
    if (!r) {
        *ret_result = ret;
        return 1;
    }

    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *q = &image->queues[i];
        struct flush_wait *w = &r->waits[i];

        g_mutex_lock(&q->lock);
        if (q->writes) {
            *w = (struct flush_wait) { r, NULL, q->writes_last->seq };
            *q->flushes_end = w;
            q->flushes_end = &w->next;
            __atomic_add_fetch(&r->pending, 1, __ATOMIC_RELAXED);
        }
        g_mutex_unlock(&q->lock);
    }
    if (ret < 0) {
        __atomic_store_n(&r->result, ret, __ATOMIC_RELAXED);
    }
    if (__atomic_sub_fetch(&r->pending, 1, __ATOMIC_ACQ_REL)) {
        return 0;
    }
    g_mutex_lock(&home->lock);
    count_locked(home, r);
    request_free_locked(home, r);
    g_mutex_unlock(&home->lock);
    *ret_result = ret;
    return 1;
}

/* ---- watchdog ---------------------------------------------------------- */

gint64 request_oldest(struct queue queues[QUEUES], unsigned *ret_n,
                      unsigned *ret_kind, uint64_t *ret_off,
                      uint64_t *ret_len)
{
    gint64 now = g_get_monotonic_time();
    gint64 oldest = 0;

    *ret_n = 0;
    for (unsigned i = 0; i < QUEUES; i++) {
        struct request_chunk *chunk = __atomic_load_n(&queues[i].chunks,
                                                      __ATOMIC_ACQUIRE);

        for (; chunk; chunk = chunk->next) {
            for (unsigned j = 0; j < REQUESTS_PER_CHUNK; j++) {
                struct request *r = &chunk->requests[j];
                gint64 start = __atomic_load_n(&r->start_us,
                                               __ATOMIC_RELAXED);

                if (!start) {
                    continue;
                }
                ++*ret_n;
                if (now - start > oldest) {
                    oldest = now - start;
                    *ret_kind = __atomic_load_n(&r->kind, __ATOMIC_RELAXED);
                    *ret_off = __atomic_load_n(&r->off, __ATOMIC_RELAXED);
                    *ret_len = __atomic_load_n(&r->len, __ATOMIC_RELAXED);
                }
            }
        }
    }
    return oldest;
}
