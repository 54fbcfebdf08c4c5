/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The ops on an object, those librbd sends.  "Parent" below: at least one byte
 * of the object lies under the overlap with the parent.
 *
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
 * A trim removes whole objects also where there is a parent: what it removes
 * lies behind the end of the image from then on, and of the overlap.
 */
#include "object_request.h"

#include <string.h>

/* What zeroes that must stay allocated are written from. */
static const uint8_t zeroes[512];
static const struct iovec zero_pattern = { (void *)zeroes, sizeof(zeroes) };

void object_op_oid(struct object_request *o)
{
    static const char digit[] = "0123456789abcdef";
    const struct pinrbd_image *image = object_image(o);
    char *p = o->oid + image->oid_prefix_len;
    uint64_t n = o->object;

    memcpy(o->oid, image->oid_prefix, image->oid_prefix_len);
    for (int i = 15; i >= 0; i--) {
        p[i] = digit[n & 15];
        n >>= 4;
    }
    p[16] = '\0';
}

struct rados_step *object_op_step(struct object_request *o,
                                  enum rados_step_kind kind)
{
    struct rados_step *s = &o->steps[o->op.n_steps++];

    *s = (struct rados_step) { .kind = kind };
    return s;
}

void object_op_begin(struct object_request *o, unsigned flags)
{
    object_op_oid(o);
    o->op.oid = o->oid;
    o->op.steps = o->steps;
    o->op.n_steps = 0;
    o->op.flags = flags;
    o->op.snapc = NULL;
    o->op.done = object_op_done;
    o->op.opaque = o;
    if (flags & RADOS_OP_WRITE && object_meta(o)->snapc.seq) {
        o->op.snapc = &object_meta(o)->snapc;
    }
}

void object_op_hint(struct object_request *o)
{
    struct rados_step *s = object_op_step(o, RADOS_ALLOC_HINT);

    s->off = object_size(o);
    s->len = object_size(o);
}

static void add_write(struct object_request *o)
{
    const struct pinrbd_settings *set = object_image(o)->settings;
    struct rados_step *s = object_op_step(o, object_is_whole(o) ?
                                          RADOS_WRITE_FULL : RADOS_WRITE);

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
        object_op_step(o, RADOS_REMOVE);
    } else if (o->off + o->len == object_size(o)) {
        if (object_is_whole(o) && !object_needs_parent(o)) {
            object_op_step(o, RADOS_CREATE);
        }
        s = object_op_step(o, RADOS_TRUNCATE);
        s->off = o->off;
    } else {
        s = object_op_step(o, RADOS_ZERO);
        s->off = o->off;
        s->len = o->len;
    }
}

static void add_allocated_zeroes(struct object_request *o)
{
    uint64_t rest = o->len % sizeof(zeroes);
    struct rados_step *s;

    if (o->len > rest) {
        s = object_op_step(o, RADOS_WRITESAME);
        s->off = o->off;
        s->len = o->len - rest;
        s->iov = &zero_pattern;
        s->n_iov = 1;
    }
    if (rest) {
        s = object_op_step(o, RADOS_WRITE);
        s->off = o->off + o->len - rest;
        s->len = rest;
        o->iov_inline[0] = (struct iovec) { (void *)zeroes, rest };
        s->iov = o->iov_inline;
        s->n_iov = 1;
    }
}

/* The steps that change the object; @hint: it may be new. */
void object_op_change(struct object_request *o, bool hint)
{
    struct rados_step *s;

    if (o->request->kind == REQUEST_ROLLBACK) {
        s = object_op_step(o, RADOS_ROLLBACK);
        s->off = o->request->snap_id;
    } else if (o->request->kind == REQUEST_FLATTEN) {
        return;
    } else if (object_deallocates(o)) {
        add_deallocate(o);
    } else {
        if (hint) {
            object_op_hint(o);
        }
        if (o->request->kind == REQUEST_WRITE) {
            add_write(o);
        } else {
            add_allocated_zeroes(o);
        }
    }
}

/* The plain op: the object may exist, or need not. */
void object_op_build(struct object_request *o, bool hint)
{
    object_op_begin(o, RADOS_OP_WRITE | RADOS_OP_ORDERSNAP);
    /* a rollback takes away what the snapshot does not have */
    o->guarded = object_needs_parent(o) &&
                 o->request->kind != REQUEST_ROLLBACK;
    if (o->guarded) {
        object_op_step(o, RADOS_ASSERT_EXISTS);
    }
    object_op_change(o, hint);
}
