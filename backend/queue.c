/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Lanes: set-up, and the choice of one.  Threads are dealt to the lanes in the
 * order in which they first submit, so one iothread per disk never shares.
 */
#include "queue.h"

#include "request.h"

void queue_init(struct queue *q)
{
    g_mutex_init(&q->lock);
    g_cond_init(&q->idle);
    q->waiting_end = &q->waiting;
    q->flushes_end = &q->flushes;
    q->next_seq = 1;
}

void queue_clear(struct queue *q)
{
    struct object_request *o;
    struct request_chunk *chunk;

    g_assert(!q->n_requests);
    while ((o = q->free_objects)) {
        q->free_objects = o->next;
        if (o->iov != o->iov_inline) {
            g_free(o->iov);
        }
        g_free(o);
    }
    while ((chunk = q->chunks)) {
        q->chunks = chunk->next;
        for (unsigned i = 0; i < REQUESTS_PER_CHUNK; i++) {
            o = &chunk->requests[i].first;
            if (o->iov != o->iov_inline) {
                g_free(o->iov);
            }
        }
        g_free(chunk);
    }
    meta_unref(q->meta);
    object_map_unref(q->map);
    g_mutex_clear(&q->lock);
    g_cond_clear(&q->idle);
}

struct queue *queue_of_thread(struct queue queues[QUEUES])
{
    static unsigned next_thread;    /* atomic */
    static __thread unsigned mine;

    if (!mine) {
        mine = 1 + __atomic_fetch_add(&next_thread, 1, __ATOMIC_RELAXED);
    }
    return &queues[(mine - 1) % QUEUES];
}
