/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the files of an object request share: object_request.c owns its states,
 * object_op.c builds its ops, object_stripe.c lets one request at a time change
 * an object alone, copyup.c brings data of the parent.
 */
#ifndef PINRBD_OBJECT_REQUEST_H
#define PINRBD_OBJECT_REQUEST_H

#include "image.h"

/* ---- what it is about --------------------------------------------------- */

static inline struct pinrbd_image *object_image(const struct object_request *o)
{
    return o->request->image;
}

static inline const struct image_meta *
object_meta(const struct object_request *o)
{
    return o->meta ?: o->request->meta;
}

static inline struct object_map *object_map_of(const struct object_request *o)
{
    return o->meta ? o->map : o->request->map;
}

static inline struct object_stripe *
object_stripe_of(const struct object_request *o)
{
    return &object_image(o)->stripes[o->object % STRIPES];
}

static inline uint64_t object_size(const struct object_request *o)
{
    return object_image(o)->layout.object_size;
}

static inline bool object_deallocates(const struct object_request *o)
{
    const struct request *r = o->request;

    return r->kind == REQUEST_DISCARD || r->kind == REQUEST_TRIM ||
           (r->kind == REQUEST_ZEROES && r->flags & PINRBD_ZERO_MAY_UNMAP);
}

static inline bool object_is_whole(const struct object_request *o)
{
    return o->len == object_size(o);
}

static inline bool object_has_snaps(const struct object_request *o)
{
    return object_meta(o)->snapc.n > 0;
}

/* Must the parent's data be in the object before this change? */
static inline bool object_needs_parent(const struct object_request *o)
{
    return o->parent_len && (o->request->kind == REQUEST_FLATTEN ||
                             !object_is_whole(o) || object_has_snaps(o));
}

/* ---- object_op.c -------------------------------------------------------- */

/* o->oid, the name of the object. */
void object_op_oid(struct object_request *o);
/* Begin o->op; the steps follow. */
void object_op_begin(struct object_request *o, unsigned flags);
struct rados_step *object_op_step(struct object_request *o,
                                  enum rados_step_kind kind);
void object_op_hint(struct object_request *o);
/* The steps that change the object; @hint: it may be new. */
void object_op_change(struct object_request *o, bool hint);
/* The whole plain op: the object may exist, or need not. */
void object_op_build(struct object_request *o, bool hint);

/* ---- object_stripe.c: under the stripe's lock ---------------------------- */

struct object_request *stripe_holder_locked(struct object_stripe *s,
                                            uint64_t object);
/* True: another request holds the object, and @o waits for it. */
bool stripe_wait_locked(struct object_stripe *s, struct object_request *o);
void stripe_hold_locked(struct object_stripe *s, struct object_request *o);
/* The requests that waited, for object_start_list() without the lock. */
struct object_request *stripe_let_go_locked(struct object_stripe *s,
                                            struct object_request *o);
/* An op of @o that may create the object is about to be sent. */
void stripe_count_locked(struct object_stripe *s, struct object_request *o);
/* Send the op that is built; a holder that has no more to do lets go. */
void stripe_send_locked(struct object_stripe *s, struct object_request *o,
                        struct object_request **ret_waiters);
/* ... without it. */
void object_start_list(struct object_request *o);
void object_let_go(struct object_request *o);
void object_uncount(struct object_request *o);

/* ---- object_request.c --------------------------------------------------- */

/* Where a change begins, and begins again. */
void object_write_start(struct object_request *o);
/* Have the map say what it must before the change, then send that. */
void object_map_before(struct object_request *o);
/*
 * Read bytes @off to @off + @len of the object, which all lie under the
 * overlap, from the parent; @tell_map what is coming meanwhile.
 */
void object_parent_read(struct object_request *o, uint64_t off, uint64_t len,
                        struct iov_cursor to, bool tell_map);
/* The object has been changed, or not. */
void object_change_done(struct object_request *o, int result);
/* The last act: @o may be gone afterwards. */
void object_finish(struct object_request *o, int result);
/* The answer to o->op. */
void object_op_done(struct rados_op *op);

/* ---- copyup.c ----------------------------------------------------------- */

/* The parent's data is to be brought into the object, which @o holds. */
void copyup_start(struct object_request *o);
/* It has been read into the copyup's buffer. */
void copyup_parent_done(struct object_request *o);
/* All maps are right: send the op, or the two. */
void copyup_send(struct object_request *o);
/* One of them is done. */
void copyup_part_done(struct object_request *o, int result, bool first);
/* Give o->copyup, if it has one, back or on to the next. */
void copyup_put(struct object_request *o);

#endif
