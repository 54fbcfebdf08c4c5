/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The watch on an image's header: kept registered, and its messages decoded.
 */
#ifndef PINRBD_WATCH_H
#define PINRBD_WATCH_H

#include <glib.h>

#include "rados_op.h"
#include "timer.h"

/* Operations of notify payloads, numbered as librbd does. */
enum notify_op {
    NOTIFY_ACQUIRED_LOCK = 0,
    NOTIFY_RELEASED_LOCK = 1,
    NOTIFY_REQUEST_LOCK = 2,
    NOTIFY_HEADER_UPDATE = 3,
    NOTIFY_ASYNC_PROGRESS = 4,
    NOTIFY_ASYNC_COMPLETE = 5,
    /* Requests for maintenance, for the owner of the lock. */
    NOTIFY_FLATTEN = 6,
    NOTIFY_RESIZE = 7,
    NOTIFY_SNAP_CREATE = 8,
    NOTIFY_SNAP_REMOVE = 9,
    NOTIFY_REBUILD_OBJECT_MAP = 10,
    NOTIFY_SNAP_RENAME = 11,
    NOTIFY_SNAP_PROTECT = 12,
    NOTIFY_SNAP_UNPROTECT = 13,
    NOTIFY_RENAME = 14,
    NOTIFY_UPDATE_FEATURES = 15,
    NOTIFY_MIGRATE = 16,
    NOTIFY_SPARSIFY = 17,
    NOTIFY_QUIESCE = 18,
    NOTIFY_UNQUIESCE = 19,
    NOTIFY_METADATA_UPDATE = 20,
};

/* A watcher: the client instance and the cookie of its watch. */
struct notify_client {
    uint64_t gid;
    uint64_t handle;
};

/* Names one request for maintenance, for its progress and its end. */
struct notify_async {
    struct notify_client client;
    uint64_t id;
};

#define SNAP_SKIP_OBJECT_MAP    1u
#define SNAP_SKIP_QUIESCE       2u
#define SNAP_IGNORE_QUIESCE     4u

struct notify_msg {
    unsigned op;
    struct notify_client client;    /* lock messages */
    bool has_async;
    struct notify_async async;      /* progress, maintenance, quiesce */
    uint64_t off, total;            /* AsyncProgress */
    int32_t result;                 /* AsyncComplete */
    uint64_t size;                  /* Resize: bytes */
    bool allow_shrink;
    uint32_t snap_type;             /* SnapCreate, SnapRemove; 0: user */
    uint64_t snap_flags;
    char name[256];
};

/*
 * An empty payload is a header update.  -EBADMSG for bytes that are no notify
 * message.  A request for maintenance of which we cannot read all keeps its op
 * and has no async id: it can be refused but not carried out.
 */
int notify_decode(const void *payload, size_t len, struct notify_msg *ret);

/* The message into @buf; returns its length. */
#define NOTIFY_MAX 128
size_t notify_encode(const struct notify_msg *m, uint8_t buf[NOTIFY_MAX]);

/*
 * What the watchers said to a notify: is @who among them (also one that did
 * not answer in time), and the result of the one that gave one, if any did.
 */
struct notify_reply {
    bool listed;
    bool answered;
    int result;
};
int notify_reply_decode(const void *reply, size_t len,
                        const struct notify_client *who,
                        struct notify_reply *ret);

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
    uint32_t timeout_s;         /* 0: the cluster's */
    /* A message came: acknowledge it with watch_ack(). */
    void (*message)(void *opaque, const struct notify_msg *m,
                    uint64_t notify_id);
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

/* Milliseconds since the watch was last confirmed; -ENOTCONN without one. */
int watch_age_ms(struct header_watch *hw);
/* The cookie of the watch; false while there is none. */
bool watch_cookie(struct header_watch *hw, uint64_t *ret);

/* An empty acknowledgement, and one that says @result. */
void watch_ack(struct header_watch *hw, uint64_t notify_id);
void watch_ack_result(struct header_watch *hw, uint64_t notify_id,
                      int result);

#endif
