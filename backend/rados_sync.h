/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Control calls that wait for one operation, with a deadline.
 */
#ifndef PINRBD_RADOS_SYNC_H
#define PINRBD_RADOS_SYNC_H

#include <glib.h>

#include "rados_op.h"

/* Something to wait for; initialise with waiter_init(). */
struct waiter {
    GMutex lock;
    GCond cond;
    bool done;          /* under lock */
    int result;         /* under lock */
};

void waiter_init(struct waiter *w);
void waiter_clear(struct waiter *w);
void waiter_wake(struct waiter *w, int result);
/* False when @deadline_us (monotonic; 0: none) passed first. */
bool waiter_wait(struct waiter *w, gint64 deadline_us, int *ret_result);

/* now + @timeout_ms, 0 for 0. */
gint64 deadline_after(unsigned timeout_ms);

/*
 * Submit and wait.  At the deadline the op is cancelled; its end is waited for
 * in any case, the result then being -ETIMEDOUT unless it made it.  Uses
 * op->done.  The caller releases class outputs with rados_op_done_with().
 */
int rados_op_sync(struct rados_pool *pool, struct rados_op *op,
                  gint64 deadline_us);

/* One class call that modifies @oid. */
int rados_call_sync(struct rados_pool *pool, const char *oid, const char *cls,
                    const char *method, const void *in, size_t in_len,
                    gint64 deadline_us);

/* One class call that only reads; its output is appended to @ret. */
int rados_query_sync(struct rados_pool *pool, const char *oid,
                     const char *cls, const char *method, const void *in,
                     size_t in_len, gint64 deadline_us, GByteArray *ret);

/*
 * Send @payload to the watchers of @oid.  Their answers are appended to @reply
 * (NULL: dropped), also when some are missing (-ETIMEDOUT).
 */
int rados_notify_sync(struct rados_pool *pool, const char *oid,
                      const void *payload, size_t len, unsigned timeout_ms,
                      GByteArray *reply);

#endif
