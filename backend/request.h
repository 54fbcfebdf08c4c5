/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One guest request, and its part on one object.
 */
#ifndef PINRBD_REQUEST_H
#define PINRBD_REQUEST_H

#include "iov.h"
#include "object_map.h"
#include "queue.h"
#include "rados_op.h"

struct pinrbd_image;

enum request_kind {
    REQUEST_READ,
    REQUEST_WRITE,
    REQUEST_DISCARD,
    REQUEST_ZEROES,
    REQUEST_FLUSH,
    /*
     * Our own, for maintenance; they pass gates and may go beyond the size.
     */
    REQUEST_TRIM,               /* remove what lies behind a smaller size */
    REQUEST_FLATTEN,            /* give objects their parent's data */
    REQUEST_ROLLBACK,           /* back to snapshot `snap_id' */
};

/* A flush waits in every lane that has writes older than itself. */
struct flush_wait {
    struct request *request;
    struct flush_wait *next;
    uint64_t seq;               /* the last write before the flush */
};

/* What an object is waiting for; see object_request.c. */
enum object_phase {
    OBJECT_SENT,                /* the op on the object */
    OBJECT_WAITING,             /* another request changes the object */
    OBJECT_MAP_BEFORE,          /* the object map, before the op */
    OBJECT_MAP_AFTER,           /* the object map, after a remove */
    OBJECT_PARENT,              /* data of the parent */
    OBJECT_SNAP_MAPS,           /* the object maps of snapshots */
    OBJECT_COPYUP,              /* the op or ops that take parent data along */
    OBJECT_PARKED,              /* a newer header, or the lock */
};

/*
 * Fields are written by the thread that submits, then belong to the object's
 * operation until it is done.
 */
struct object_request {
    struct request *request;
    struct object_request *next;    /* of the request; in the free list */
    struct object_request *list_next;   /* in the one list it waits in */
    /* The image's present ones after a resend; NULL: the request's. */
    struct image_meta *meta;
    struct object_map *map;
    enum object_phase phase;
    uint64_t object;
    uint64_t off, len;          /* bytes in the object */
    uint64_t parent_len;        /* bytes of the object that the parent has */
    unsigned resends;
    int n_iov;
    int iov_size;
    struct iovec *iov;          /* pieces of the guest's memory */
    struct iovec iov_inline[8];
    struct rados_step steps[6];
    char oid[128];
    struct rados_op op;
    /* changing an object alone: under the stripe's lock */
    bool holds;
    struct object_request *holders_next;
    struct object_request *waiters;
    struct object_request **waiters_end;
    /* the rest: this operation's */
    bool removes;
    bool guarded;               /* the op fails if the object is missing */
    bool in_flight;             /* counted by the stripe */
    bool skipped;               /* known to be absent, not asked for */
    uint64_t seen;              /* the stripe when a read was sent */
    unsigned parent_reads;
    unsigned parent_pending;    /* atomic */
    int parent_result;          /* atomic: the first error */
    int map_result;             /* of the map's update alongside */
    struct map_update update;
    struct copyup *copyup;
};

/*
 * Objects by number modulo STRIPES: who changes one alone, and whether one may
 * have been changed since a read was sent.
 */
#define STRIPES 16

struct object_stripe {
    GMutex lock;
    /* under lock */
    struct object_request *holders;
    uint64_t changes;           /* writes sent */
    unsigned in_flight;         /* ... and not answered; memory maps only */
} __attribute__((aligned(64)));

/* Buffers of copyups: as many as fit in this, at least COPYUPS_MIN. */
#define COPYUPS_BYTES (64u << 20)
#define COPYUPS_MIN 4u

struct copyups {
    GMutex lock;
    /* under lock */
    struct copyup *free;
    unsigned n;                 /* made so far */
    struct object_request *waiting;
    struct object_request **waiting_end;
    uint64_t done;
};

void copyups_init(struct copyups *c);
void copyups_clear(struct copyups *c);

struct request {
    struct pinrbd_image *image;     /* fixed for the slot */
    struct queue *queue;            /* fixed for the slot */
    struct request *next;       /* free list or waiting list */
    struct request *older, *newer;  /* unfinished writes of the lane */
    uint64_t seq;
    struct image_meta *meta;    /* references, from dispatch on */
    struct object_map *map;
    uint64_t snap_id;           /* rollback */
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
/* End with @error what a gate held back. */
void request_fail_list(struct request *r, int error);

/* Read into memory that begins at @to. */
int request_read_at(struct pinrbd_image *image, uint64_t off, uint64_t len,
                    struct iov_cursor to, pinrbd_done_fn *done, void *opaque,
                    int *ret_result);
/* One of our own kinds. */
int request_maintain(struct pinrbd_image *image, enum request_kind kind,
                     uint64_t snap_id, uint64_t off, uint64_t len,
                     pinrbd_done_fn *done, void *opaque, int *ret_result);

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
/* Again, with the image's present view of itself, or end with @error. */
void object_request_resend(struct object_request *o, int error);
/* What @o keeps beyond its slot. */
void object_request_clear(struct object_request *o);

#endif
