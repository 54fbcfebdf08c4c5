/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One object's part of a guest request: which RADOS op it takes, and what the
 * answer means.  The ops are those librbd sends for an image without a parent:
 *
 *     read                      read
 *     write                     alloc hint, write (write_full: whole object)
 *     discard, zeroes           remove (whole object), truncate (up to the
 *                               object's end) or zero
 *     zeroes, stay allocated    alloc hint, writesame, write of the rest
 *
 *     SENT --+-- ok, error --------------------------> done
 *            +-- -ERESTART: snapshots newer than ours
 *                 -> PARKED -- header read again --> SENT, new context
 *
 * An object that does not exist reads as zeroes, and so does what lies behind
 * its end; removing it again is fine.
 */
#include <errno.h>
#include <string.h>

#include "image.h"
#include "iov.h"
#include "request.h"

#define MAX_RESENDS 100

/* What zeroes that must stay allocated are written from. */
static const uint8_t zeroes[512];
static const struct iovec zero_pattern = { (void *)zeroes, sizeof(zeroes) };

static void oid_format(struct object_request *o,
                       const struct pinrbd_image *image)
{
    static const char digit[] = "0123456789abcdef";
    char *p = o->oid + image->oid_prefix_len;
    uint64_t n = o->object;

    memcpy(o->oid, image->oid_prefix, image->oid_prefix_len);
    for (int i = 15; i >= 0; i--) {
        p[i] = digit[n & 15];
        n >>= 4;
    }
    p[16] = '\0';
}

static struct rados_step *add_step(struct object_request *o,
                                   enum rados_step_kind kind)
{
    struct rados_step *s = &o->steps[o->op.n_steps++];

    *s = (struct rados_step) { .kind = kind };
    return s;
}

static void add_hint(struct object_request *o, uint64_t object_size)
{
    struct rados_step *s = add_step(o, RADOS_ALLOC_HINT);

    s->off = object_size;
    s->len = object_size;
}

static void build_read(struct object_request *o)
{
    struct rados_step *s = add_step(o, RADOS_READ);

    s->off = o->off;
    s->len = o->len;
    s->iov = o->iov;
    s->n_iov = o->n_iov;
}

static void build_write(struct object_request *o,
                        const struct pinrbd_image *image)
{
    const struct pinrbd_settings *set = image->settings;
    bool whole = o->len == image->layout.object_size;
    struct rados_step *s;

    add_hint(o, image->layout.object_size);
    s = add_step(o, whole ? RADOS_WRITE_FULL : RADOS_WRITE);
    s->off = o->off;
    s->len = o->len;
    s->iov = o->iov;
    s->n_iov = o->n_iov;
    if (set->pin == PINRBD_PIN_NEVER ||
        (set->pin == PINRBD_PIN_AUTO && o->len < set->pin_threshold)) {
        o->op.flags |= RADOS_OP_COPY;
    }
}

static void build_deallocate(struct object_request *o, uint64_t object_size)
{
    struct rados_step *s;

    if (o->len == object_size) {
        add_step(o, RADOS_REMOVE);
    } else if (o->off + o->len == object_size) {
        s = add_step(o, RADOS_TRUNCATE);
        s->off = o->off;
    } else {
        s = add_step(o, RADOS_ZERO);
        s->off = o->off;
        s->len = o->len;
    }
}

static void build_allocated_zeroes(struct object_request *o,
                                   uint64_t object_size)
{
    uint64_t rest = o->len % sizeof(zeroes);
    struct rados_step *s;

    add_hint(o, object_size);
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

static int take_read(struct object_request *o, int result)
{
    uint64_t got = 0;

    if (result == 0) {
        got = o->steps[0].out_len;
    } else if (result != -ENOENT) {
        return result;
    }
    if (got < o->len) {
        iov_zero(o->iov, o->n_iov, got, o->len - got);
    }
    return 0;
}

static void op_done(struct rados_op *op)
{
    struct object_request *o = op->opaque;
    struct request *r = o->request;
    int result = op->result;

    switch ((enum request_kind)r->kind) {
    case REQUEST_READ:
        result = take_read(o, result);
        break;
    case REQUEST_WRITE:
    case REQUEST_DISCARD:
    case REQUEST_ZEROES:
        if (result == -ERESTART && o->resends < MAX_RESENDS) {
            image_park(r->image, o);
            return;
        }
        if (result == -ENOENT && r->kind != REQUEST_WRITE) {
            result = 0;
        }
        break;
    case REQUEST_FLUSH:
        g_assert_not_reached();
    }
    if (result == -ESHUTDOWN) {
        image_fenced(r->image);
    }
    request_object_done(r, result);
}

void object_request_send(struct object_request *o)
{
    struct request *r = o->request;
    struct pinrbd_image *image = r->image;
    const struct image_meta *meta = o->meta ?: r->meta;

    oid_format(o, image);
    o->op.oid = o->oid;
    o->op.steps = o->steps;
    o->op.n_steps = 0;
    o->op.flags = 0;
    o->op.snapc = NULL;
    o->op.done = op_done;
    o->op.opaque = o;
    o->op.pinned_bytes = 0;
    o->op.copied_bytes = 0;
    o->op.late = false;
    if (r->kind == REQUEST_READ) {
        build_read(o);
    } else {
        o->op.flags = RADOS_OP_WRITE | RADOS_OP_ORDERSNAP;
        o->op.snapc = meta->snapc.n ? &meta->snapc : NULL;
        if (r->kind == REQUEST_WRITE) {
            build_write(o, image);
        } else if (r->kind == REQUEST_ZEROES &&
                   !(r->flags & PINRBD_ZERO_MAY_UNMAP)) {
            build_allocated_zeroes(o, image->layout.object_size);
        } else {
            build_deallocate(o, image->layout.object_size);
        }
    }
    rados_submit(image->data_pool, &o->op);
}

void object_request_resend(struct object_request *o, int error)
{
    if (error < 0) {
        request_object_done(o->request, error);
        return;
    }
    meta_unref(o->meta);
    o->meta = image_meta(o->request->image);
    o->resends++;
    object_request_send(o);
}
