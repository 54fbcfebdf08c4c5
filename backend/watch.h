/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The watch on an image's header: kept registered, and its messages decoded.
 */
#ifndef PINRBD_WATCH_H
#define PINRBD_WATCH_H

#include <glib.h>

#include "rados_op.h"
#include "timer.h"

/* Operations of notify payloads that somebody here acts upon (librbd's). */
enum notify_op {
    NOTIFY_HEADER_UPDATE = 3,
    NOTIFY_QUIESCE = 18,
    NOTIFY_UNQUIESCE = 19,
};

/*
 * The operation of a payload; an empty one is a header update.  -EBADMSG for
 * bytes that are no notify message.
 */
int notify_decode(const void *payload, size_t len, unsigned *ret_op);

/* The message without fields, into @buf; returns its length. */
#define NOTIFY_MAX 64
size_t notify_encode(enum notify_op op, uint8_t buf[NOTIFY_MAX]);

enum watch_state {
    WATCH_OFF,
    WATCH_STARTING,
    WATCH_ON,
    WATCH_BROKEN,       /* died; the timer will clear it away */
    WATCH_CLEARING,     /* unwatching the dead one */
    WATCH_WAITING,      /* the timer will start it again */
    WATCH_ENDING,       /* the timer will unwatch */
    WATCH_STOPPING,
};

struct header_watch {
    /* fixed after watch_init() */
    struct rados_pool *pool;
    const char *oid;
    void *opaque;
    /* A message came: acknowledge it with watch_ack(). */
    void (*message)(void *opaque, unsigned op, uint64_t notify_id);
    /* Updates may be missed from now on; being registered again. */
    void (*lost)(void *opaque, int err);
    /* Registered again. */
    void (*regained)(void *opaque);
    /* -ESHUTDOWN: fenced; -ENOENT: no header any more.  Not tried again. */
    void (*gone)(void *opaque, int err);

    GMutex lock;
    GCond changed;
    /* under lock */
    enum watch_state state;
    bool stop_wanted;
    bool was_on;
    int result;         /* of the last start */
    unsigned backoff_ms;
    struct rados_watch w;
    struct ptimer timer;
};

/* The fixed fields are set by the caller. */
void watch_init(struct header_watch *hw);
/* Only when stopped. */
void watch_clear(struct header_watch *hw);

/*
 * Register and wait; after -ETIMEDOUT a registration that succeeds late is
 * undone by itself, see watch_stop().  @deadline_us as for waiter_wait().
 */
int watch_start(struct header_watch *hw, gint64 deadline_us);
/*
 * Unregister; after 0 no callback comes any more.  -ETIMEDOUT: the structure
 * is still in use and must be kept for ever.
 */
int watch_stop(struct header_watch *hw, gint64 deadline_us);

/* Look whether a watch that seems on still is; from the watchdog thread. */
void watch_poll(struct header_watch *hw);

/* An empty acknowledgement, or (@with_result) one that says success. */
void watch_ack(struct header_watch *hw, uint64_t notify_id, bool with_result);

#endif
