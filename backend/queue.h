/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The lanes of an image.  A submitting thread always uses the same lane, so
 * iothreads do not meet; each lane has its lock, its pool of requests, its
 * list of unfinished writes and its counters.
 */
#ifndef PINRBD_QUEUE_H
#define PINRBD_QUEUE_H

#include <glib.h>

#include "image_header.h"
#include "include/pinrbd.h"

struct request;
struct object_request;

#define QUEUES 4

/* Why new writes are held back. */
#define GATE_REFRESH    1u      /* the header is being read again */
#define GATE_QUIESCE    2u      /* somebody creates a snapshot */
#define GATE_WATCH      4u      /* header updates could be missed */
#define GATE_LOCK       8u      /* the exclusive lock is not ours */
#define GATE_CONTROL    16u     /* we change the image ourselves */

struct queue_counters {
    uint64_t done[8];           /* by enum request_kind */
    uint64_t failed;
    uint64_t read_bytes, write_bytes;
    uint64_t object_ops;
    uint64_t pinned_bytes, copied_small_bytes, copied_never_bytes;
    uint64_t read_copied_bytes;
    uint64_t late_refs;
    uint64_t old_snapc;
    uint64_t parent_reads;
    uint64_t absent_reads;
};

struct request_chunk;

struct queue {
    GMutex lock;
    /* all under lock, except where marked */
    GCond idle;                 /* n_requests or the write list ran empty */
    unsigned gates;
    int error;                  /* the image is lost: everything fails */
    int write_error;            /* writes are refused */
    uint64_t size;              /* bytes, of the opened revision */
    struct image_meta *meta;    /* references */
    struct object_map *map;     /* NULL: none */
    struct request *free;
    struct object_request *free_objects;
    struct request_chunk *chunks;   /* atomic: grows at the head only */
    struct request *waiting;    /* held back by a gate, oldest first */
    struct request **waiting_end;
    struct request *writes;     /* submitted and unfinished, oldest first */
    struct request *writes_last;
    uint64_t next_seq;          /* of writes */
    struct flush_wait *flushes; /* by seq */
    struct flush_wait **flushes_end;
    unsigned n_requests;
    unsigned n_active_writes;   /* dispatched */
    struct queue_counters counters;
} __attribute__((aligned(64)));

void queue_init(struct queue *q);
void queue_clear(struct queue *q);      /* idle; frees the pools */

/* The lane of the calling thread among @queues. */
struct queue *queue_of_thread(struct queue queues[QUEUES]);

#endif
