/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One guest request, and its part on one object.
 */
#ifndef PINRBD_REQUEST_H
#define PINRBD_REQUEST_H

#include "queue.h"
#include "rados_op.h"

struct pinrbd_image;

enum request_kind {
    REQUEST_READ,
    REQUEST_WRITE,
    REQUEST_DISCARD,
    REQUEST_ZEROES,
    REQUEST_FLUSH,
};

/* A flush waits in every lane that has writes older than itself. */
struct flush_wait {
    struct request *request;
    struct flush_wait *next;
    uint64_t seq;               /* the last write before the flush */
};

/*
 * Fields are written by the thread that submits, then belong to the object's
 * operation until it is done.
 */
struct object_request {
    struct request *request;
    struct object_request *next;    /* of the request; in the free list */
    struct object_request *parked_next;
    struct image_meta *meta;    /* a newer one after a resend, or NULL */
    uint64_t object;
    uint64_t off, len;          /* bytes in the object */
    unsigned resends;
    int n_iov;
    int iov_size;
    struct iovec *iov;          /* pieces of the guest's memory */
    struct iovec iov_inline[8];
    struct rados_step steps[3];
    char oid[128];
    struct rados_op op;
};

struct request {
    struct pinrbd_image *image;     /* fixed for the slot */
    struct queue *queue;            /* fixed for the slot */
    struct request *next;       /* free list or waiting list */
    struct request *older, *newer;  /* unfinished writes of the lane */
    uint64_t seq;
    struct image_meta *meta;    /* a reference, from dispatch on */
    pinrbd_done_fn *done;
    void *opaque;
    struct object_request *objects;
    unsigned pending;           /* atomic: objects or lanes not yet done */
    int result;                 /* atomic: the first error */
    unsigned flags;
    bool active_write;
    /* Read by the watchdog without a lock: atomic, start_us 0 = free slot. */
    gint64 start_us;
    unsigned kind;
    uint64_t off, len;
    struct flush_wait waits[QUEUES];
    struct object_request first;
};

#define REQUESTS_PER_CHUNK 16

struct request_chunk {
    struct request_chunk *next;
    struct request requests[REQUESTS_PER_CHUNK];
};

/* ---- request.c --------------------------------------------------------- */

/* Send what a gate held back; @r is a list by `next'. */
void request_dispatch_list(struct request *r);

/* One object is done; called by object_request.c as its last act. */
void request_object_done(struct request *r, int result);

/*
 * The oldest request of the lanes, for the log: its age in microseconds (0:
 * none), and what it is.  Takes no lock.
 */
gint64 request_oldest(struct queue queues[QUEUES], unsigned *ret_n,
                      unsigned *ret_kind, uint64_t *ret_off,
                      uint64_t *ret_len);

const char *request_kind_name(unsigned kind);

/* ---- object_request.c -------------------------------------------------- */

void object_request_send(struct object_request *o);
/* Again, with the image's present snapshot context, or end with @error. */
void object_request_resend(struct object_request *o, int error);

#endif
