/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One object's part of a request: what it waits for, and what the answers mean.
 * The object map (while we own the lock) is EXISTS before a write is sent, and
 * around a remove it is PENDING, then NONEXISTENT.
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
 * An object that does not exist reads as its parent or as zeroes, what lies
 * behind its end as zeroes; removing it again is fine.
 */
#include "object_request.h"

#include <errno.h>

#define MAX_RESENDS 100

/* ---- ends --------------------------------------------------------------- */

/* The last act: @o may be gone afterwards. */
void object_finish(struct object_request *o, int result)
{
    struct request *r = o->request;

    copyup_put(o);
    object_let_go(o);
    if (result == -ESHUTDOWN) {
        image_fenced(r->image);
    }
    request_object_done(r, result);
}

/* Again, after the header has been read. */
static void park(struct object_request *o)
{
    copyup_put(o);
    object_let_go(o);
    o->phase = OBJECT_PARKED;
    image_park(object_image(o), o);
}

static void map_after_done(struct map_update *u, int result)
{
    struct object_request *o = (void *)((char *)u -
                                        offsetof(struct object_request,
                                                 update));

    /* The object is gone whatever the map says: PENDING is still right. */
    if (result == -EBUSY) {
        image_lock_lost(object_image(o));
        result = 0;
    }
    object_finish(o, result == -ESHUTDOWN ? result : 0);
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
    return object_map_update(object_map_of(o), &o->update);
}

/* What the map must say before the change; true: it has to be told. */
static bool map_wants(const struct object_request *o,
                      enum object_state *ret_state)
{
    struct object_map *map = object_map_of(o);
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
    *ret_state = o->request->kind == REQUEST_FLATTEN && object_has_snaps(o) &&
                 object_meta(o)->features & PINRBD_FEATURE_FAST_DIFF ?
                 OBJECT_EXISTS_CLEAN : OBJECT_EXISTS;
    /* EXISTS is never taken back: a write may be on its way. */
    return now != *ret_state && !(o->request->kind == REQUEST_FLATTEN &&
                                  now == OBJECT_EXISTS);
}

/* The map is not ours any more: again, when it is. */
static void park_for_lock(struct object_request *o)
{
    struct pinrbd_image *image = object_image(o);

    copyup_put(o);
    object_let_go(o);
    o->phase = OBJECT_PARKED;
    image_hold(image);          /* the request may be over at once */
    image_lock_park(image, o);
    image_lock_lost(image);
    image_release(image);
}

/* The object has been changed, or not. */
void object_change_done(struct object_request *o, int result)
{
    object_uncount(o);
    if (result == -ERESTART && o->resends < MAX_RESENDS) {
        park(o);
        return;
    }
    if (result == -ENOENT && o->phase == OBJECT_SENT &&
        (object_deallocates(o) || o->request->kind == REQUEST_ROLLBACK)) {
        result = 0;
    }
    if (o->removes && object_map_of(o) && result == 0) {
        o->phase = OBJECT_MAP_AFTER;
        if (map_update(o, OBJECT_NONEXISTENT, OBJECT_PENDING,
                       map_after_done) == 0) {
            return;
        }
    }
    object_finish(o, result);
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

static void map_alongside_done(struct map_update *u, int result)
{
    struct object_request *o = (void *)((char *)u -
                                        offsetof(struct object_request,
                                                 update));

    o->map_result = result;
    parent_part_done(o, 0);
}

/* The map can be told while the parent is read: it is needed after both. */
static void map_alongside(struct object_request *o)
{
    enum object_state state;

    if (map_wants(o, &state)) {
        __atomic_add_fetch(&o->parent_pending, 1, __ATOMIC_RELAXED);
        if (map_update(o, state, -1, map_alongside_done)) {
            parent_part_done(o, 0);
        }
    }
}

/* parent_done() follows. */
void object_parent_read(struct object_request *o, uint64_t off, uint64_t len,
                        struct iov_cursor to, bool tell_map)
{
    const struct layout *l = &object_image(o)->layout;
    struct pinrbd_image *parent = object_meta(o)->parent_link->image;

    o->phase = OBJECT_PARENT;
    o->parent_result = 0;
    o->map_result = 0;
    __atomic_store_n(&o->parent_pending, 1, __ATOMIC_RELAXED);
    if (tell_map) {
        map_alongside(o);
    }
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
    struct pinrbd_image *image = object_image(o);

    if (o->resends >= MAX_RESENDS) {
        return false;
    }
    if (object_meta(o)->parent_epoch !=
        __atomic_load_n(&image->parent_epoch, __ATOMIC_ACQUIRE)) {
        return true;
    }
    /* Once more after a look at the header, in case we have not heard yet. */
    return o->parent_result == -ENOENT && !o->resends;
}

/* ---- read --------------------------------------------------------------- */

static void read_send(struct object_request *o)
{
    struct object_map *map = object_map_of(o);
    struct object_stripe *s = object_stripe_of(o);
    struct rados_step *step;

    o->seen = UINT64_MAX;
    if (map && object_map_is_memory(map)) {
        g_mutex_lock(&s->lock);
        if (!s->in_flight && !stripe_holder_locked(s, o->object)) {
            o->seen = s->changes;
        }
        g_mutex_unlock(&s->lock);
    }
    object_op_begin(o, 0);
    step = object_op_step(o, RADOS_READ);
    step->off = o->off;
    step->len = o->len;
    step->iov = o->iov;
    step->n_iov = o->n_iov;
    o->phase = OBJECT_SENT;
    rados_submit(object_image(o)->data_pool, &o->op);
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
        object_parent_read(o, o->off, from_parent,
                           (struct iov_cursor) { o->iov, o->n_iov, 0 }, false);
    } else {
        request_object_done(o->request, 0);
    }
}

static void remember_absent(struct object_request *o)
{
    struct object_stripe *s = object_stripe_of(o);

    if (o->seen == UINT64_MAX) {
        return;
    }
    g_mutex_lock(&s->lock);
    if (o->seen == s->changes && !s->in_flight &&
        !stripe_holder_locked(s, o->object)) {
        object_map_found_absent(object_map_of(o), o->object);
    }
    g_mutex_unlock(&s->lock);
}

static void read_start(struct object_request *o)
{
    struct object_map *map = object_map_of(o);

    /*
     * A snapshot of a clone can gain objects: a write to the head brings the
     * parent's data into them, and a flatten takes the parent away.
     */
    o->skipped = map && object_map_absent(map, o->object) &&
                 image_trusts_map(object_image(o), o->parent_len);
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
    object_finish(o, result);
}

/* ---- the map, before ---------------------------------------------------- */

static void map_before_done(struct map_update *u, int result)
{
    struct object_request *o = (void *)((char *)u -
                                        offsetof(struct object_request,
                                                 update));
    struct object_stripe *s = object_stripe_of(o);
    struct object_request *waiters = NULL;

    if (result == -EBUSY) {
        park_for_lock(o);
        return;
    }
    if (result < 0) {
        object_finish(o, result);
        return;
    }
    if (o->copyup) {
        copyup_send(o);
        return;
    }
    object_op_build(o, true);
    g_mutex_lock(&s->lock);
    stripe_send_locked(s, o, &waiters);
    g_mutex_unlock(&s->lock);
    object_start_list(waiters);
}

void object_map_before(struct object_request *o)
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
    object_op_begin(o, 0);
    o->guarded = true;
    object_op_step(o, RADOS_STAT);
}

/* Would the change do nothing to an object that does not exist? */
static bool nothing_if_absent(const struct object_request *o)
{
    return !object_needs_parent(o) && object_deallocates(o) &&
           (o->removes || !o->parent_len);
}

/* Nothing but the object is involved: no map, no parent, no lock of ours. */
static void send_plain(struct object_request *o)
{
    object_op_build(o, true);
    o->phase = OBJECT_SENT;
    rados_submit(object_image(o)->data_pool, &o->op);
}

/*
 * Where a change begins, and begins again: the map, who holds the object and
 * what is sent to it are seen together under the stripe's lock.
 */
void object_write_start(struct object_request *o)
{
    enum { NOTHING, COPYUP, MAP, SEND } next = SEND;
    struct object_stripe *s = object_stripe_of(o);
    struct object_map *map = object_map_of(o);
    bool flatten = o->request->kind == REQUEST_FLATTEN;
    struct object_request *waiters = NULL;
    enum object_state state;
    uint64_t run;

    o->removes = object_deallocates(o) && object_is_whole(o) &&
                 (!o->parent_len || o->request->kind == REQUEST_TRIM);
    if (o->request->kind == REQUEST_ROLLBACK ||
        (!map && !o->parent_len && !flatten)) {
        send_plain(o);
        return;
    }

    g_mutex_lock(&s->lock);
    if (stripe_wait_locked(s, o)) {
        g_mutex_unlock(&s->lock);
        return;
    }
    if ((flatten && !o->parent_len) ||
        (o->request->kind == REQUEST_TRIM &&
         striper_unmap(&object_image(o)->layout, o->object, o->off, &run) >=
         object_meta(o)->size)) {
        next = NOTHING;         /* with striping: behind the old end */
    } else if (map && object_map_absent(map, o->object)) {
        next = object_needs_parent(o) ? COPYUP :
               nothing_if_absent(o) ? NOTHING : MAP;
    } else if (!flatten && map_wants(o, &state)) {
        next = MAP;
    }
    if (next == COPYUP || next == MAP ||
        (next == SEND && o->removes && map)) {
        stripe_hold_locked(s, o);
    }
    if (next == SEND) {
        if (flatten) {
            build_flatten(o);
        } else {
            object_op_build(o, !map);
        }
        stripe_send_locked(s, o, &waiters);
    }
    g_mutex_unlock(&s->lock);

    switch (next) {
    case NOTHING:
        o->skipped = true;
        object_finish(o, 0);
        break;
    case COPYUP:
        copyup_start(o);
        break;
    case MAP:
        object_map_before(o);
        break;
    case SEND:
        object_start_list(waiters);
        break;
    }
}

/* The object is not there, though the change needs it: bring the parent's. */
static void write_missing(struct object_request *o)
{
    struct object_stripe *s = object_stripe_of(o);
    bool waits;

    object_uncount(o);
    g_mutex_lock(&s->lock);
    /* a removal holds it already */
    waits = !o->holds && stripe_wait_locked(s, o);
    if (!waits && !o->holds) {
        stripe_hold_locked(s, o);
    }
    g_mutex_unlock(&s->lock);
    if (!waits) {
        copyup_start(o);
    }
}

/* ---- the answers -------------------------------------------------------- */

void object_op_done(struct rados_op *op)
{
    struct object_request *o = op->opaque;

    if (o->request->kind == REQUEST_READ) {
        read_done(o, op->result);
    } else if (o->phase == OBJECT_COPYUP) {
        copyup_part_done(o, op->result, false);
    } else if (op->result == -ENOENT && o->guarded) {
        write_missing(o);
    } else {
        object_change_done(o, op->result);
    }
}

static void parent_done(struct object_request *o)
{
    int result = o->parent_result ?: o->map_result;

    if (parent_is_gone(o)) {
        park(o);
    } else if (o->map_result == -EBUSY) {
        park_for_lock(o);
    } else if (o->request->kind == REQUEST_READ || result < 0) {
        object_finish(o, result);
    } else {
        copyup_parent_done(o);
    }
}

void object_request_send(struct object_request *o)
{
    const struct image_meta *meta = object_meta(o);

    o->holds = false;
    o->in_flight = false;
    o->copyup = NULL;
    /* counted at the end, also where nothing is sent */
    o->op.pinned_bytes = 0;
    o->op.copied_bytes = 0;
    o->op.late = false;
    o->parent_len = !meta->parent_link ? 0 :
        parent_bytes(&object_image(o)->layout, meta->parent_overlap,
                     o->object);
    if (o->request->kind == REQUEST_READ) {
        read_start(o);
    } else {
        object_write_start(o);
    }
}

void object_request_resend(struct object_request *o, int error)
{
    int dead;

    if (error < 0) {
        object_finish(o, error);
        return;
    }
    object_request_clear(o);
    /* the view of a dead image has no map, which here means: none is needed */
    dead = image_view(object_image(o), &o->meta, &o->map);
    if (dead) {
        object_finish(o, dead);
        return;
    }
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
