/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Copyup: a missing object gets the parent's data and the change in one op.
 * sparse_copyup does nothing where the object exists, so it may lose any race.
 *
 * Where the image has snapshots and the data is not all zero it takes two ops,
 * sent in this order to the same object: one without a snapshot context, which
 * puts the data under all snapshots, where a flatten will look for it, and then
 * the change.  The snapshots' object maps are told before, from the oldest on.
 *
 * The data is read into buffers of an object's size, of which an image has not
 * more than COPYUPS_BYTES: a request that finds none waits for one.  The head's
 * map is told while the parent is read.
 */
#include "object_request.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "codec.h"

/* Zeroes of this size are left out of the data. */
#define SPARSE_BLOCK 4096u

struct copyup {
    struct copyup *next;
    uint8_t *data;              /* of the parent; an object's size */
    bool zero;                  /* it is all zeroes */
    size_t next_snap;           /* snapshots' maps: the next one's place + 1 */
    unsigned pending;           /* atomic: ops not yet done */
    int result;                 /* atomic: the first error */
    /* input of sparse_copyup: extents and length, then pieces of data */
    uint8_t *extents;
    size_t extents_size;
    struct iovec *iov;
    int n_iov;
    /* a snapshot's map, then the op without a snapshot context */
    struct rados_op op;
    struct rados_step steps[2];
    char map_oid[OBJECT_MAP_OID_MAX];
    uint8_t in[24];
    struct iovec in_iov;
};

/* ---- buffers ------------------------------------------------------------ */

void copyups_init(struct copyups *c)
{
    g_mutex_init(&c->lock);
    c->waiting_end = &c->waiting;
}

static void copyup_free(struct copyup *c)
{
    if (c) {
        g_free(c->data);
        g_free(c->extents);
        g_free(c->iov);
        g_free(c);
    }
}

void copyups_clear(struct copyups *c)
{
    struct copyup *next;

    for (struct copyup *u = c->free; u; u = next) {
        next = u->next;
        copyup_free(u);
    }
    g_mutex_clear(&c->lock);
}

static struct copyup *copyup_new(uint64_t object_size)
{
    /* at worst every second block is zero, and one is cut short */
    size_t n = object_size / (2 * SPARSE_BLOCK) + 2;
    struct copyup *c = g_try_new0(struct copyup, 1);

    if (!c) {
        return NULL;
    }
    c->extents_size = 8 + 16 * n;
    c->data = g_try_malloc(object_size);
    c->extents = g_try_malloc(c->extents_size);
    c->iov = g_try_new(struct iovec, n + 1);
    if (!c->data || !c->extents || !c->iov) {
        copyup_free(c);
        return NULL;
    }
    return c;
}

/* 1: o->copyup is set; 0: @o waits for one; -ENOMEM. */
static int copyup_get(struct object_request *o)
{
    struct copyups *all = &object_image(o)->copyups;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&all->lock);
    unsigned max = MAX(COPYUPS_MIN, COPYUPS_BYTES / object_size(o));

    if (all->free) {
        o->copyup = all->free;
        all->free = o->copyup->next;
        return 1;
    }
    if (all->n < max) {
        o->copyup = copyup_new(object_size(o));
        all->n += o->copyup != NULL;
    }
    if (o->copyup) {
        return 1;
    }
    if (!all->n) {
        return -ENOMEM;         /* nobody will ever hand one on */
    }
    o->list_next = NULL;
    *all->waiting_end = o;
    all->waiting_end = &o->list_next;
    return 0;
}

static void copyup_begin(struct object_request *o);

/* Give o->copyup back, or on to the next. */
void copyup_put(struct object_request *o)
{
    struct copyups *all = &object_image(o)->copyups;
    struct copyup *c = o->copyup;
    struct object_request *next;

    if (!c) {
        return;
    }
    o->copyup = NULL;
    g_mutex_lock(&all->lock);
    next = all->waiting;
    if (next) {
        all->waiting = next->list_next;
        if (!all->waiting) {
            all->waiting_end = &all->waiting;
        }
        next->copyup = c;
    } else {
        c->next = all->free;
        all->free = c;
    }
    g_mutex_unlock(&all->lock);
    if (next) {
        copyup_begin(next);
    }
}

/* ---- from the parent to the object -------------------------------------- */

static void copyup_snap_maps(struct object_request *o);

/* The parent's data is to be brought into the object, which @o holds. */
void copyup_start(struct object_request *o)
{
    int r = copyup_get(o);

    o->phase = OBJECT_PARENT;
    if (r < 0) {
        object_finish(o, r);
    } else if (r) {
        copyup_begin(o);
    }
}

static void copyup_begin(struct object_request *o)
{
    struct copyup *c = o->copyup;
    /* of these, nothing may come in the end */
    bool sure = o->request->kind != REQUEST_FLATTEN &&
                o->request->kind != REQUEST_TRIM;

    c->in_iov = (struct iovec) { c->data, o->parent_len };
    object_parent_read(o, 0, o->parent_len,
                       (struct iov_cursor) { &c->in_iov, 1, 0 }, sure);
}

/* Encode sparse_copyup's input: a map of extents, and a blob made of them. */
static void copyup_encode(struct copyup *c, uint64_t len)
{
    struct penc e;
    uint32_t n = 0;
    uint32_t bytes = 0;
    uint64_t start = 0;
    bool inside = false;

    penc_init(&e, c->extents, c->extents_size);
    penc_u32(&e, 0);
    c->n_iov = 1;
    for (uint64_t off = 0; ; off += SPARSE_BLOCK) {
        bool end = off >= len;
        bool zero = end || bytes_are_zero(c->data + off,
                                          MIN(SPARSE_BLOCK, len - off));

        if (!zero && !inside) {
            start = off;
        } else if (zero && inside) {
            uint64_t size = MIN(off, len) - start;

            penc_u64(&e, start);
            penc_u64(&e, size);
            c->iov[c->n_iov++] = (struct iovec) { c->data + start, size };
            bytes += size;
            n++;
        }
        inside = !zero;
        if (end) {
            break;
        }
    }
    penc_u32(&e, bytes);
    c->iov[0] = (struct iovec) { c->extents, penc_len(&e) };
    penc_init(&e, c->extents, c->extents_size);
    penc_u32(&e, n);
    c->zero = !n;
}

void copyup_parent_done(struct object_request *o)
{
    const struct object_map *map = object_map_of(o);
    struct copyup *c = o->copyup;
    bool maps;

    copyup_encode(c, o->parent_len);
    if (c->zero && (o->request->kind == REQUEST_FLATTEN ||
                    o->request->kind == REQUEST_TRIM)) {
        /* what is missing reads the same; a map that was told stays so not */
        if (map && object_map_get(map, o->object) == OBJECT_PENDING) {
            object_change_done(o, 0);
        } else {
            object_finish(o, 0);
        }
        return;
    }
    maps = map && !object_map_is_memory(map) && !c->zero;
    c->next_snap = maps ? object_meta(o)->snapc.n : 0;
    copyup_snap_maps(o);
}

static void snap_map_flagged(struct rados_op *op)
{
    struct object_request *o = op->opaque;

    if (op->result < 0) {
        object_finish(o, op->result);
    } else {
        copyup_snap_maps(o);
    }
}

/* A snapshot's map that cannot be changed must not be believed any more. */
static void snap_map_flag(struct object_request *o, int error)
{
    const struct image_meta *meta = object_meta(o);
    struct copyup *c = o->copyup;
    uint64_t snap_id = meta->snap_ids[c->next_snap];

    plog(PINRBD_LOG_WARN, "image '%s': the object map of its snapshot %"
         PRIu64 " cannot be updated (%s) and is marked invalid",
         object_image(o)->spec, snap_id, g_strerror(-error));
    c->in_iov.iov_len = object_map_encode_flags(
        c->in, sizeof(c->in), meta->features & PINRBD_FEATURE_FAST_DIFF,
        snap_id);
    c->steps[0].method = "set_flags";
    c->op.oid = object_image(o)->header_oid;
    c->op.done = snap_map_flagged;
    rados_submit(object_image(o)->md_pool, &c->op);
}

static void snap_map_done(struct rados_op *op)
{
    struct object_request *o = op->opaque;

    if (op->result == -ESHUTDOWN) {
        object_finish(o, op->result);
    } else if (op->result < 0 && op->result != -ENOENT &&
               op->result != -ERANGE) {
        snap_map_flag(o, op->result);
    } else {
        copyup_snap_maps(o);    /* no map, or a shorter one, has no entry */
    }
}

/* The snapshots get the object, too: from the oldest to the newest. */
static void copyup_snap_maps(struct object_request *o)
{
    const struct image_meta *meta = object_meta(o);
    struct copyup *c = o->copyup;
    bool clean = meta->features & PINRBD_FEATURE_FAST_DIFF &&
                 c->next_snap < meta->snapc.n;
    struct penc e;

    if (!c->next_snap) {
        object_map_before(o);
        return;
    }
    o->phase = OBJECT_SNAP_MAPS;
    c->next_snap--;
    object_map_oid(c->map_oid, object_image(o)->id,
                   meta->snap_ids[c->next_snap]);
    penc_init(&e, c->in, sizeof(c->in));
    penc_u64(&e, o->object);
    penc_u64(&e, o->object + 1);
    penc_u8(&e, clean ? OBJECT_EXISTS_CLEAN : OBJECT_EXISTS);
    penc_u8(&e, 0);
    c->in_iov = (struct iovec) { c->in, penc_len(&e) };
    c->steps[0] = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "rbd", .method = "object_map_update",
        .iov = &c->in_iov, .n_iov = 1,
    };
    c->op = (struct rados_op) {
        .oid = c->map_oid, .steps = c->steps, .n_steps = 1,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
        .done = snap_map_done, .opaque = o,
    };
    rados_submit(object_image(o)->md_pool, &c->op);
}

/* Of two ops the first one's error counts: the second fails for it. */
void copyup_part_done(struct object_request *o, int result, bool first)
{
    struct copyup *c = o->copyup;
    int none = 0;

    if (result < 0 && first) {
        __atomic_store_n(&c->result, result, __ATOMIC_RELAXED);
    } else if (result < 0) {
        __atomic_compare_exchange_n(&c->result, &none, result, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    if (__atomic_sub_fetch(&c->pending, 1, __ATOMIC_ACQ_REL) == 0) {
        result = c->result;
        __atomic_add_fetch(&object_image(o)->copyups.done, 1, __ATOMIC_RELAXED);
        copyup_put(o);
        object_change_done(o, result);
    }
}

static void copyup_op_done(struct rados_op *op)
{
    copyup_part_done(op->opaque, op->result, true);
}

static void copyup_step(struct rados_step *s, struct copyup *c)
{
    *s = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "rbd", .method = "sparse_copyup",
        .iov = c->iov, .n_iov = c->n_iov,
    };
}

/* All maps are right: send the op, or the two. */
void copyup_send(struct object_request *o)
{
    struct object_stripe *s = object_stripe_of(o);
    struct pinrbd_image *image = object_image(o);
    struct copyup *c = o->copyup;
    bool deep = object_has_snaps(o) && !c->zero;
    bool change = o->request->kind != REQUEST_FLATTEN || !deep;
    struct object_request *waiters = NULL;

    o->guarded = false;
    if (change) {
        object_op_begin(o, RADOS_OP_WRITE | RADOS_OP_ORDERSNAP);
        if (deep) {
            object_op_step(o, RADOS_ASSERT_EXISTS);
        } else {
            copyup_step(object_op_step(o, RADOS_CALL), c);
            object_op_hint(o);
        }
        object_op_change(o, false);
    }
    if (deep) {
        copyup_step(&c->steps[0], c);
        c->steps[1] = (struct rados_step) {
            .kind = RADOS_ALLOC_HINT, .off = object_size(o),
            .len = object_size(o),
        };
        object_op_oid(o);
        c->op = (struct rados_op) {
            .oid = o->oid, .steps = c->steps, .n_steps = 2,
            .flags = RADOS_OP_WRITE, .done = copyup_op_done, .opaque = o,
        };
    }
    c->result = 0;
    c->pending = deep + change;
    g_mutex_lock(&s->lock);
    if (!(o->removes && object_map_of(o))) {
        waiters = stripe_let_go_locked(s, o);
    }
    stripe_count_locked(s, o);
    o->phase = OBJECT_COPYUP;
    /* The last one sent may end it all at once: @o is not touched after. */
    if (deep) {
        rados_submit(image->data_pool, &c->op);
    }
    if (change) {
        rados_submit(image->data_pool, &o->op);
    }
    g_mutex_unlock(&s->lock);
    object_start_list(waiters);
}
