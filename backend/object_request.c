/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One object's part of a request: which RADOS ops it takes, and what the
 * answers mean.  The ops on the object are those librbd sends.  "Parent" below:
 * at least one byte of the object lies under the overlap with the parent.
 *
 *     read                      read
 *     write                     [hint,] write (write_full: whole object)
 *     discard, zeroes, trim     remove (whole object), truncate (up to the
 *                               object's end) or zero
 *     zeroes, stay allocated    [hint,] writesame, write of the rest
 *     with a parent             assert_exists before each of these; whole
 *                               objects are truncated, not removed: a missing
 *                               object would show the parent again
 *     ... whole, no snapshots   write_full, or create and truncate: nothing
 *                               of the parent is needed
 *
 * The object map (while we own the lock) is EXISTS before a write is sent, and
 * around a remove it is PENDING, then NONEXISTENT.
 *
 * A copyup gives a missing object the parent's data and the change in one op:
 * sparse_copyup does nothing where the object exists, so it may lose any race.
 * Where the image has snapshots and the data is not all zero it takes two ops,
 * sent in this order to the same object: one without a snapshot context,
 * which puts the data under all snapshots, and then the change.
 *
 *   write:  --+-- map is right, object may exist ------------> SENT --> done
 *             +-- map to be changed --> MAP_BEFORE ----------> SENT --> done
 *             |                             remove: SENT --> MAP_AFTER --> done
 *             +-- absent, or SENT answered -ENOENT
 *                   --> PARENT --> SNAP_MAPS --> MAP_BEFORE --> COPYUP --> done
 *             +-- somebody changes the object alone --> WAITING --> again
 *   read:   --+-- not known to be absent --> SENT --> done
 *             +-- absent, or SENT answered -ENOENT --> PARENT --> done
 *   both:   -ERESTART (newer snapshots), the map's lock lost, the parent gone
 *             --> PARKED --> again, with the image's present view
 *
 * Changing alone.  From MAP_BEFORE, PARENT or a remove on, a request holds its
 * object, and other writes of the object wait for it.  It lets go once its ops
 * are sent, since ops on one object are executed in the order they were sent
 * in, or, after a remove, once the map says so.  What is sent without holding
 * is sent under the stripe's lock: nothing comes between looking at the map
 * and sending.
 *
 * An object that does not exist reads as its parent or as zeroes, what lies
 * behind its end as zeroes; removing it again is fine.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "codec.h"
#include "exclusive_lock.h"
#include "image.h"
#include "iov.h"
#include "request.h"

#define MAX_RESENDS 100

/* Zeroes of this size are left out of the data a copyup brings along. */
#define SPARSE_BLOCK 4096u

/* What zeroes that must stay allocated are written from. */
static const uint8_t zeroes[512];
static const struct iovec zero_pattern = { (void *)zeroes, sizeof(zeroes) };

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

static void write_start(struct object_request *o);

/* ---- small things ------------------------------------------------------- */

static struct pinrbd_image *image_of(const struct object_request *o)
{
    return o->request->image;
}

static const struct image_meta *meta_of(const struct object_request *o)
{
    return o->meta ?: o->request->meta;
}

static struct object_map *map_of(const struct object_request *o)
{
    return o->meta ? o->map : o->request->map;
}

static struct object_stripe *stripe_of(const struct object_request *o)
{
    return &image_of(o)->stripes[o->object % STRIPES];
}

static uint64_t object_size_of(const struct object_request *o)
{
    return image_of(o)->layout.object_size;
}

static bool deallocates(const struct object_request *o)
{
    const struct request *r = o->request;

    return r->kind == REQUEST_DISCARD || r->kind == REQUEST_TRIM ||
           (r->kind == REQUEST_ZEROES && r->flags & PINRBD_ZERO_MAY_UNMAP);
}

static bool is_whole(const struct object_request *o)
{
    return o->len == object_size_of(o);
}

static bool has_snaps(const struct object_request *o)
{
    return meta_of(o)->snapc.n > 0;
}

/* Must the parent's data be in the object before this change? */
static bool needs_parent(const struct object_request *o)
{
    return o->parent_len && (o->request->kind == REQUEST_FLATTEN ||
                             !is_whole(o) || has_snaps(o));
}

static void oid_format(struct object_request *o)
{
    static const char digit[] = "0123456789abcdef";
    const struct pinrbd_image *image = image_of(o);
    char *p = o->oid + image->oid_prefix_len;
    uint64_t n = o->object;

    memcpy(o->oid, image->oid_prefix, image->oid_prefix_len);
    for (int i = 15; i >= 0; i--) {
        p[i] = digit[n & 15];
        n >>= 4;
    }
    p[16] = '\0';
}

/* ---- building the op ---------------------------------------------------- */

static void op_done(struct rados_op *op);

static struct rados_step *add_step(struct object_request *o,
                                   enum rados_step_kind kind)
{
    struct rados_step *s = &o->steps[o->op.n_steps++];

    *s = (struct rados_step) { .kind = kind };
    return s;
}

static void op_begin(struct object_request *o, unsigned flags)
{
    oid_format(o);
    o->op.oid = o->oid;
    o->op.steps = o->steps;
    o->op.n_steps = 0;
    o->op.flags = flags;
    o->op.snapc = NULL;
    o->op.done = op_done;
    o->op.opaque = o;
    o->op.pinned_bytes = 0;
    o->op.copied_bytes = 0;
    o->op.late = false;
    if (flags & RADOS_OP_WRITE && meta_of(o)->snapc.seq) {
        o->op.snapc = &meta_of(o)->snapc;
    }
}

static void add_hint(struct object_request *o)
{
    struct rados_step *s = add_step(o, RADOS_ALLOC_HINT);

    s->off = object_size_of(o);
    s->len = object_size_of(o);
}

static void add_write(struct object_request *o)
{
    const struct pinrbd_settings *set = image_of(o)->settings;
    struct rados_step *s = add_step(o, is_whole(o) ? RADOS_WRITE_FULL
                                                   : RADOS_WRITE);

    s->off = o->off;
    s->len = o->len;
    s->iov = o->iov;
    s->n_iov = o->n_iov;
    if (set->pin == PINRBD_PIN_NEVER ||
        (set->pin == PINRBD_PIN_AUTO && o->len < set->pin_threshold)) {
        o->op.flags |= RADOS_OP_COPY;
    }
}

static void add_deallocate(struct object_request *o)
{
    struct rados_step *s;

    if (o->removes) {
        add_step(o, RADOS_REMOVE);
    } else if (o->off + o->len == object_size_of(o)) {
        if (is_whole(o) && !needs_parent(o)) {
            add_step(o, RADOS_CREATE);
        }
        s = add_step(o, RADOS_TRUNCATE);
        s->off = o->off;
    } else {
        s = add_step(o, RADOS_ZERO);
        s->off = o->off;
        s->len = o->len;
    }
}

static void add_allocated_zeroes(struct object_request *o)
{
    uint64_t rest = o->len % sizeof(zeroes);
    struct rados_step *s;

    if (o->len > rest) {
        s = add_step(o, RADOS_WRITESAME);
        s->off = o->off;
        s->len = o->len - rest;
        s->iov = &zero_pattern;
        s->n_iov = 1;
    }
    if (rest) {
        s = add_step(o, RADOS_WRITE);
        s->off = o->off + o->len - rest;
        s->len = rest;
        o->iov_inline[0] = (struct iovec) { (void *)zeroes, rest };
        s->iov = o->iov_inline;
        s->n_iov = 1;
    }
}

/* The steps that change the object; @hint: it may be new. */
static void add_change(struct object_request *o, bool hint)
{
    struct rados_step *s;

    if (o->request->kind == REQUEST_ROLLBACK) {
        s = add_step(o, RADOS_ROLLBACK);
        s->off = o->request->snap_id;
    } else if (o->request->kind == REQUEST_FLATTEN) {
        return;
    } else if (deallocates(o)) {
        add_deallocate(o);
    } else {
        if (hint) {
            add_hint(o);
        }
        if (o->request->kind == REQUEST_WRITE) {
            add_write(o);
        } else {
            add_allocated_zeroes(o);
        }
    }
}

/* The plain op: the object may exist, or need not. */
static void build_change(struct object_request *o, bool hint)
{
    op_begin(o, RADOS_OP_WRITE | RADOS_OP_ORDERSNAP);
    o->guarded = needs_parent(o);
    if (o->guarded) {
        add_step(o, RADOS_ASSERT_EXISTS);
    }
    add_change(o, hint);
}

/* ---- holding an object -------------------------------------------------- */

static struct object_request *find_holder_locked(struct object_stripe *s,
                                                 uint64_t object)
{
    struct object_request *h = s->holders;

    while (h && h->object != object) {
        h = h->holders_next;
    }
    return h;
}

/* True: another request holds the object, and @o waits for it. */
static bool waits_locked(struct object_stripe *s, struct object_request *o)
{
    struct object_request *h = find_holder_locked(s, o->object);

    if (!h) {
        return false;
    }
    o->phase = OBJECT_WAITING;
    o->list_next = NULL;
    *h->waiters_end = o;
    h->waiters_end = &o->list_next;
    return true;
}

static void hold_locked(struct object_stripe *s, struct object_request *o)
{
    o->holds = true;
    o->waiters = NULL;
    o->waiters_end = &o->waiters;
    o->holders_next = s->holders;
    s->holders = o;
    s->changes++;
}

/* The requests that waited; to be started without the lock. */
static struct object_request *let_go_locked(struct object_stripe *s,
                                            struct object_request *o)
{
    struct object_request **p = &s->holders;

    while (*p != o) {
        p = &(*p)->holders_next;
    }
    *p = o->holders_next;
    o->holds = false;
    return o->waiters;
}

static void start_list(struct object_request *o)
{
    while (o) {
        struct object_request *next = o->list_next;

        write_start(o);
        o = next;
    }
}

static void let_go(struct object_request *o)
{
    struct object_stripe *s = stripe_of(o);
    struct object_request *waiters;

    if (!o->holds) {
        return;
    }
    g_mutex_lock(&s->lock);
    waiters = let_go_locked(s, o);
    g_mutex_unlock(&s->lock);
    start_list(waiters);
}

/* A memory map learns of absent objects only while none can be appearing. */
static void count_flight_locked(struct object_stripe *s,
                                struct object_request *o)
{
    struct object_map *map = map_of(o);

    o->in_flight = map && object_map_is_memory(map);
    s->in_flight += o->in_flight;
    s->changes++;
}

static void uncount_flight(struct object_request *o)
{
    struct object_stripe *s = stripe_of(o);

    if (o->in_flight) {
        g_mutex_lock(&s->lock);
        s->in_flight--;
        g_mutex_unlock(&s->lock);
        o->in_flight = false;
    }
}

/* The op is built: send it; a holder that has no more to do lets go. */
static void send_locked(struct object_stripe *s, struct object_request *o,
                        struct object_request **ret_waiters)
{
    if (o->holds && !(o->removes && map_of(o))) {
        *ret_waiters = let_go_locked(s, o);
    }
    count_flight_locked(s, o);
    o->phase = OBJECT_SENT;
    rados_submit(image_of(o)->data_pool, &o->op);
}

/* ---- copyup buffers ----------------------------------------------------- */

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
    struct copyups *all = &image_of(o)->copyups;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&all->lock);

    if (all->free) {
        o->copyup = all->free;
        all->free = o->copyup->next;
        return 1;
    }
    if (all->n < COPYUPS_MAX) {
        o->copyup = copyup_new(object_size_of(o));
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
static void copyup_put(struct object_request *o)
{
    struct copyups *all = &image_of(o)->copyups;
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

/* ---- ends --------------------------------------------------------------- */

/* The last act: @o may be gone afterwards. */
static void finish(struct object_request *o, int result)
{
    struct request *r = o->request;

    copyup_put(o);
    let_go(o);
    if (result == -ESHUTDOWN) {
        image_fenced(r->image);
    }
    request_object_done(r, result);
}

/* Again, after the header has been read. */
static void park(struct object_request *o)
{
    copyup_put(o);
    let_go(o);
    o->phase = OBJECT_PARKED;
    image_park(image_of(o), o);
}

static void map_after_done(struct map_update *u, int result)
{
    struct object_request *o = (void *)((char *)u -
                                        offsetof(struct object_request,
                                                 update));

    /* The object is gone whatever the map says: PENDING is still right. */
    if (result == -EBUSY) {
        image_lock_lost(image_of(o));
        result = 0;
    }
    finish(o, result == -ESHUTDOWN ? result : 0);
}

/* 1: it is done, and the callback does not come. */
static int map_update(struct object_request *o, enum object_state state,
                      int only_if,
                      void (*done)(struct map_update *u, int result))
{
    o->update.object = o->object;
    o->update.state = state;
    o->update.only_if = only_if;
    o->update.done = done;
    return object_map_update(map_of(o), &o->update);
}

/* The object has been changed, or not. */
static void change_done(struct object_request *o, int result)
{
    uncount_flight(o);
    if (result == -ERESTART && o->resends < MAX_RESENDS) {
        park(o);
        return;
    }
    if (result == -ENOENT && o->phase == OBJECT_SENT &&
        (deallocates(o) || o->request->kind == REQUEST_ROLLBACK)) {
        result = 0;
    }
    if (o->removes && map_of(o) && result == 0) {
        o->phase = OBJECT_MAP_AFTER;
        if (map_update(o, OBJECT_NONEXISTENT, OBJECT_PENDING,
                       map_after_done) == 0) {
            return;
        }
    }
    finish(o, result);
}

/* ---- reading the parent ------------------------------------------------- */

static void parent_done(struct object_request *o);

static void parent_part_done(void *opaque, int result)
{
    struct object_request *o = opaque;
    int none = 0;

    if (result < 0) {
        __atomic_compare_exchange_n(&o->parent_result, &none, result, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    if (__atomic_sub_fetch(&o->parent_pending, 1, __ATOMIC_ACQ_REL) == 0) {
        parent_done(o);
    }
}

/*
 * Bytes @off to @off + @len of the object, which all lie under the overlap;
 * parent_done() follows.
 */
static void parent_read(struct object_request *o, uint64_t off, uint64_t len,
                        struct iov_cursor to)
{
    const struct layout *l = &image_of(o)->layout;
    struct pinrbd_image *parent = meta_of(o)->parent_link->image;

    o->phase = OBJECT_PARENT;
    o->parent_result = 0;
    __atomic_store_n(&o->parent_pending, 1, __ATOMIC_RELAXED);
    while (len) {
        uint64_t run;
        uint64_t at = striper_unmap(l, o->object, off, &run);
        int result;

        run = MIN(run, len);
        o->parent_reads++;
        __atomic_add_fetch(&o->parent_pending, 1, __ATOMIC_RELAXED);
        if (request_read_at(parent, at, run, to, parent_part_done, o,
                            &result)) {
            parent_part_done(o, result);
        }
        iov_skip(&to, run);
        off += run;
        len -= run;
    }
    parent_part_done(o, 0);
}

/*
 * Did the parent go, or fail because it went?  Then what was read from it
 * means nothing: the object has to be looked at again.
 */
static bool parent_is_gone(struct object_request *o)
{
    struct pinrbd_image *image = image_of(o);

    if (o->resends >= MAX_RESENDS) {
        return false;
    }
    if (meta_of(o)->parent_epoch !=
        __atomic_load_n(&image->parent_epoch, __ATOMIC_ACQUIRE)) {
        return true;
    }
    /* Once more after a look at the header, in case we have not heard yet. */
    return o->parent_result == -ENOENT && !o->resends;
}

/* ---- read --------------------------------------------------------------- */

static void read_send(struct object_request *o)
{
    struct object_map *map = map_of(o);
    struct object_stripe *s = stripe_of(o);
    struct rados_step *step;

    o->seen = UINT64_MAX;
    if (map && object_map_is_memory(map)) {
        g_mutex_lock(&s->lock);
        if (!s->in_flight && !find_holder_locked(s, o->object)) {
            o->seen = s->changes;
        }
        g_mutex_unlock(&s->lock);
    }
    op_begin(o, 0);
    step = add_step(o, RADOS_READ);
    step->off = o->off;
    step->len = o->len;
    step->iov = o->iov;
    step->n_iov = o->n_iov;
    o->phase = OBJECT_SENT;
    rados_submit(image_of(o)->data_pool, &o->op);
}

/* The object does not exist. */
static void read_absent(struct object_request *o)
{
    uint64_t from_parent = 0;

    if (o->off < o->parent_len) {
        from_parent = MIN(o->len, o->parent_len - o->off);
    }
    iov_zero(o->iov, o->n_iov, from_parent, o->len - from_parent);
    if (from_parent) {
        parent_read(o, o->off, from_parent,
                    (struct iov_cursor) { o->iov, o->n_iov, 0 });
    } else {
        request_object_done(o->request, 0);
    }
}

static void remember_absent(struct object_request *o)
{
    struct object_stripe *s = stripe_of(o);

    if (o->seen == UINT64_MAX) {
        return;
    }
    g_mutex_lock(&s->lock);
    if (o->seen == s->changes && !s->in_flight &&
        !find_holder_locked(s, o->object)) {
        object_map_found_absent(map_of(o), o->object);
    }
    g_mutex_unlock(&s->lock);
}

static void read_start(struct object_request *o)
{
    struct object_map *map = map_of(o);

    /*
     * A snapshot of a clone can gain objects: a write to the head brings the
     * parent's data into them, and a flatten takes the parent away.
     */
    o->skipped = map && object_map_absent(map, o->object) &&
                 image_trusts_map(image_of(o), o->parent_len);
    if (o->skipped) {
        read_absent(o);
    } else {
        read_send(o);
    }
}

static void read_done(struct object_request *o, int result)
{
    if (result == -ENOENT) {
        remember_absent(o);
        read_absent(o);
        return;
    }
    if (result == 0 && o->steps[0].out_len < o->len) {
        iov_zero(o->iov, o->n_iov, o->steps[0].out_len,
                 o->len - o->steps[0].out_len);
    }
    finish(o, result);
}

/* ---- copyup ------------------------------------------------------------- */

static void copyup_snap_maps(struct object_request *o);
static void map_before(struct object_request *o);

/* The parent's data is to be brought into the object, which @o holds. */
static void copyup_start(struct object_request *o)
{
    int r = copyup_get(o);

    o->phase = OBJECT_PARENT;
    if (r < 0) {
        finish(o, r);
    } else if (r) {
        copyup_begin(o);
    }
}

static void copyup_begin(struct object_request *o)
{
    struct copyup *c = o->copyup;

    c->in_iov = (struct iovec) { c->data, o->parent_len };
    parent_read(o, 0, o->parent_len, (struct iov_cursor) { &c->in_iov, 1, 0 });
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

static void copyup_parent_done(struct object_request *o)
{
    struct copyup *c = o->copyup;

    copyup_encode(c, o->parent_len);
    if (c->zero && (o->request->kind == REQUEST_FLATTEN ||
                    o->request->kind == REQUEST_TRIM)) {
        finish(o, 0);           /* what is missing reads the same */
        return;
    }
    c->next_snap = c->zero || !map_of(o) || object_map_is_memory(map_of(o))
                   ? 0 : meta_of(o)->snapc.n;
    copyup_snap_maps(o);
}

static void snap_map_flagged(struct rados_op *op)
{
    struct object_request *o = op->opaque;

    if (op->result < 0) {
        finish(o, op->result);
    } else {
        copyup_snap_maps(o);
    }
}

/* A snapshot's map that cannot be changed must not be believed any more. */
static void snap_map_flag(struct object_request *o, int error)
{
    const struct image_meta *meta = meta_of(o);
    struct copyup *c = o->copyup;
    uint64_t snap_id = meta->snap_ids[c->next_snap];

    plog(PINRBD_LOG_WARN, "image '%s': the object map of its snapshot %"
         PRIu64 " cannot be updated (%s) and is marked invalid",
         image_of(o)->spec, snap_id, g_strerror(-error));
    c->in_iov.iov_len = object_map_encode_flags(
        c->in, sizeof(c->in), meta->features & PINRBD_FEATURE_FAST_DIFF,
        snap_id);
    c->steps[0].method = "set_flags";
    c->op.oid = image_of(o)->header_oid;
    c->op.done = snap_map_flagged;
    rados_submit(image_of(o)->md_pool, &c->op);
}

static void snap_map_done(struct rados_op *op)
{
    struct object_request *o = op->opaque;

    if (op->result == -ESHUTDOWN) {
        finish(o, op->result);
    } else if (op->result < 0 && op->result != -ENOENT &&
               op->result != -ERANGE) {
        snap_map_flag(o, op->result);
    } else {
        copyup_snap_maps(o);    /* no map, or a shorter one, has no entry */
    }
}

/* The snapshots get the object too: from the oldest to the newest, one by one. */
static void copyup_snap_maps(struct object_request *o)
{
    const struct image_meta *meta = meta_of(o);
    struct copyup *c = o->copyup;
    bool clean = meta->features & PINRBD_FEATURE_FAST_DIFF &&
                 c->next_snap < meta->snapc.n;
    struct penc e;

    if (!c->next_snap) {
        map_before(o);
        return;
    }
    o->phase = OBJECT_SNAP_MAPS;
    c->next_snap--;
    object_map_oid(c->map_oid, image_of(o)->id,
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
    rados_submit(image_of(o)->md_pool, &c->op);
}

/* Of two ops the first one's error counts: the second fails for it. */
static void copyup_part_done(struct object_request *o, int result, bool first)
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
        __atomic_add_fetch(&image_of(o)->copyups.done, 1, __ATOMIC_RELAXED);
        copyup_put(o);
        change_done(o, result);
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
static void copyup_ops(struct object_request *o)
{
    struct object_stripe *s = stripe_of(o);
    struct pinrbd_image *image = image_of(o);
    struct copyup *c = o->copyup;
    bool deep = has_snaps(o) && !c->zero;
    bool change = o->request->kind != REQUEST_FLATTEN || !deep;
    struct object_request *waiters = NULL;

    o->guarded = false;
    if (change) {
        op_begin(o, RADOS_OP_WRITE | RADOS_OP_ORDERSNAP);
        if (deep) {
            add_step(o, RADOS_ASSERT_EXISTS);
        } else {
            copyup_step(add_step(o, RADOS_CALL), c);
            add_hint(o);
        }
        add_change(o, false);
    }
    if (deep) {
        copyup_step(&c->steps[0], c);
        c->steps[1] = (struct rados_step) {
            .kind = RADOS_ALLOC_HINT, .off = object_size_of(o),
            .len = object_size_of(o),
        };
        oid_format(o);
        c->op = (struct rados_op) {
            .oid = o->oid, .steps = c->steps, .n_steps = 2,
            .flags = RADOS_OP_WRITE, .done = copyup_op_done, .opaque = o,
        };
    }
    c->result = 0;
    c->pending = deep + change;
    g_mutex_lock(&s->lock);
    if (!(o->removes && map_of(o))) {
        waiters = let_go_locked(s, o);
    }
    count_flight_locked(s, o);
    o->phase = OBJECT_COPYUP;
    /* The last one sent may end it all at once: @o is not touched after. */
    if (deep) {
        rados_submit(image->data_pool, &c->op);
    }
    if (change) {
        rados_submit(image->data_pool, &o->op);
    }
    g_mutex_unlock(&s->lock);
    start_list(waiters);
}

static void map_before_done(struct map_update *u, int result)
{
    struct object_request *o = (void *)((char *)u -
                                        offsetof(struct object_request,
                                                 update));
    struct object_stripe *s = stripe_of(o);
    struct object_request *waiters = NULL;

    if (result == -EBUSY) {
        copyup_put(o);
        let_go(o);
        o->phase = OBJECT_PARKED;
        image_lock_park(image_of(o), o);
        return;
    }
    if (result < 0) {
        finish(o, result);
        return;
    }
    if (o->copyup) {
        copyup_ops(o);
        return;
    }
    build_change(o, true);
    g_mutex_lock(&s->lock);
    send_locked(s, o, &waiters);
    g_mutex_unlock(&s->lock);
    start_list(waiters);
}

/* What the map must say before the change; true: it has to be told. */
static bool map_wants(const struct object_request *o,
                      enum object_state *ret_state)
{
    struct object_map *map = map_of(o);
    enum object_state now;

    if (!map) {
        return false;
    }
    now = object_map_get(map, o->object);
    if (o->removes) {
        *ret_state = OBJECT_PENDING;
        return now == OBJECT_EXISTS || now == OBJECT_EXISTS_CLEAN || o->copyup;
    }
    /* A flattened object is as the snapshots have it, as in librbd. */
    *ret_state = o->request->kind == REQUEST_FLATTEN && has_snaps(o) &&
                 meta_of(o)->features & PINRBD_FEATURE_FAST_DIFF ?
                 OBJECT_EXISTS_CLEAN : OBJECT_EXISTS;
    return now != *ret_state;
}

static void map_before(struct object_request *o)
{
    enum object_state state;

    o->phase = OBJECT_MAP_BEFORE;
    if (!map_wants(o, &state) ||
        map_update(o, state, -1, map_before_done)) {
        map_before_done(&o->update, 0);
    }
}

/* ---- write -------------------------------------------------------------- */

/* A flatten has nothing to write: does the object exist? */
static void build_flatten(struct object_request *o)
{
    op_begin(o, 0);
    o->guarded = true;
    add_step(o, RADOS_STAT);
}

/* Would the change do nothing to an object that does not exist? */
static bool nothing_if_absent(const struct object_request *o)
{
    return !needs_parent(o) && deallocates(o) &&
           (o->removes || !o->parent_len);
}

/* Nothing but the object is involved: no map, no parent, no lock of ours. */
static void send_plain(struct object_request *o)
{
    build_change(o, true);
    o->phase = OBJECT_SENT;
    rados_submit(image_of(o)->data_pool, &o->op);
}

/*
 * Where a change begins, and begins again: the map, who holds the object and
 * what is sent to it are seen together under the stripe's lock.
 */
static void write_start(struct object_request *o)
{
    enum { NOTHING, COPYUP, MAP, SEND } next = SEND;
    struct object_stripe *s = stripe_of(o);
    struct object_map *map = map_of(o);
    bool flatten = o->request->kind == REQUEST_FLATTEN;
    struct object_request *waiters = NULL;
    enum object_state state;

    o->removes = deallocates(o) && is_whole(o) &&
                 (!o->parent_len || o->request->kind == REQUEST_TRIM);
    if (o->request->kind == REQUEST_ROLLBACK ||
        (!map && !o->parent_len && !flatten)) {
        send_plain(o);
        return;
    }

    g_mutex_lock(&s->lock);
    if (waits_locked(s, o)) {
        g_mutex_unlock(&s->lock);
        return;
    }
    if (flatten && !o->parent_len) {
        next = NOTHING;
    } else if (map && object_map_absent(map, o->object)) {
        next = needs_parent(o) ? COPYUP :
               nothing_if_absent(o) ? NOTHING : MAP;
    } else if (!flatten && map_wants(o, &state)) {
        next = MAP;
    }
    if (next == COPYUP || next == MAP ||
        (next == SEND && o->removes && map)) {
        hold_locked(s, o);
    }
    if (next == SEND) {
        if (flatten) {
            build_flatten(o);
        } else {
            build_change(o, !map);
        }
        send_locked(s, o, &waiters);
    }
    g_mutex_unlock(&s->lock);

    switch (next) {
    case NOTHING:
        o->skipped = true;
        finish(o, 0);
        break;
    case COPYUP:
        copyup_start(o);
        break;
    case MAP:
        map_before(o);
        break;
    case SEND:
        start_list(waiters);
        break;
    }
}

/* The object is not there, though the change needs it: bring the parent's. */
static void write_missing(struct object_request *o)
{
    struct object_stripe *s = stripe_of(o);
    bool waits;

    uncount_flight(o);
    g_mutex_lock(&s->lock);
    waits = waits_locked(s, o);
    if (!waits) {
        hold_locked(s, o);
    }
    g_mutex_unlock(&s->lock);
    if (!waits) {
        copyup_start(o);
    }
}

/* ---- the answers -------------------------------------------------------- */

static void op_done(struct rados_op *op)
{
    struct object_request *o = op->opaque;

    if (o->request->kind == REQUEST_READ) {
        read_done(o, op->result);
    } else if (o->phase == OBJECT_COPYUP) {
        copyup_part_done(o, op->result, false);
    } else if (op->result == -ENOENT && o->guarded) {
        write_missing(o);
    } else {
        change_done(o, op->result);
    }
}

static void parent_done(struct object_request *o)
{
    int result = o->parent_result;

    if (parent_is_gone(o)) {
        park(o);
    } else if (o->request->kind == REQUEST_READ || result < 0) {
        finish(o, result);
    } else {
        copyup_parent_done(o);
    }
}

void object_request_send(struct object_request *o)
{
    const struct image_meta *meta = meta_of(o);

    o->holds = false;
    o->in_flight = false;
    o->copyup = NULL;
    o->parent_len = meta->parent_link ?
        parent_bytes(&image_of(o)->layout, meta->parent_overlap, o->object) :
        0;
    if (o->request->kind == REQUEST_READ) {
        read_start(o);
    } else {
        write_start(o);
    }
}

void object_request_resend(struct object_request *o, int error)
{
    if (error < 0) {
        finish(o, error);
        return;
    }
    object_request_clear(o);
    image_view(image_of(o), &o->meta, &o->map);
    o->resends++;
    object_request_send(o);
}

void object_request_clear(struct object_request *o)
{
    meta_unref(o->meta);
    object_map_unref(o->map);
    o->meta = NULL;
    o->map = NULL;
}
