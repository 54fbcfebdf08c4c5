/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A transport without a cluster: objects live in memory, one store a process,
 * and the test decides what completes, when, and with which result.
 *
 *     fake_start(0);                          manual mode
 *     struct fake_image *img = fake_image_add("rbd", "", "disk", 1 << 20, 12);
 *     fake_fault_add(&(struct fake_fault) { .match = "write *",
 *                                           .err = -EIO });
 *     pinrbd_write(...);                      queued, nothing has happened
 *     fake_run();                             now it has, done was called
 *     fake_stop();                            checks that nothing is left
 *
 * Manual mode (no workers): items wait in a queue until fake_run*() executes
 * and completes them on the calling thread.  With one worker they complete in
 * submit order on its thread, which is what blocking calls need.  With more
 * they complete in a random order after a few yields.  Whatever the order,
 * the promises of rados_op.h are kept: writes of one object take effect in
 * submit order, callbacks of one watch do not overlap.
 *
 * Payload written by reference is read when the op takes effect and once more
 * just before its done callback: memory freed or changed too early shows up
 * under ASan, TSan and in the data.
 *
 * Every request has a line of text, by which faults and waits find it:
 *
 *     write OID 4096~512 snapc 5=[5,4] ordersnap
 *     alloc_hint OID 4096 4096 + write_full 4096
 *     call OID rbd.get_size(feffffffffffffff) + rbd.get_flags()
 *     call OID rbd.sparse_copyup(0100...) + alloc_hint 4096 4096
 *     read OID 0~512 @4
 *     watch OID | unwatch OID | notify OID LEN op N | ack OID LEN
 *     connect | pool_open NAME/NS
 *     snap_alloc POOL | snap_release POOL ID | blocklist ADDRESS
 *
 * Requests in another pool than the first, or in a namespace, end with
 * " in POOL/NS".  Patterns are shell-like, with * and ?.
 *
 * Other clients have no code here; the test says what they do: they hold locks
 * (fake_lock_hold), watch headers and answer notifies (fake_peer_add), change
 * images with their object maps (fake_image_snap_add and the like), and
 * blocklist us.
 */
#ifndef FAKE_RADOS_H
#define FAKE_RADOS_H

#include <glib.h>

#include "rados_op.h"

extern const struct rados_transport fake_rados;

/* Pools "rbd" (1) and "data" (2) exist. */
#define FAKE_POOL_RBD 1
#define FAKE_POOL_DATA 2

/* ---- life of the store -------------------------------------------------- */

void fake_start(unsigned workers);
/* Nothing may be pending or open; then everything is freed. */
void fake_stop(void);
/* 0: manual mode.  Stopping workers leaves the queue as it is. */
void fake_workers(unsigned n);

/* ---- running ------------------------------------------------------------ */

size_t fake_pending(void);
/* How many pending lines match. */
size_t fake_pending_match(const char *match);
/* Complete the item at place @i of the queue, also a held one. */
void fake_run_one(size_t i);
/* Complete the first item that matches; false: there is none. */
bool fake_run_match(const char *match);
/* In order until nothing is left that is not held; returns how many. */
unsigned fake_run(void);
/* Let held items, and held calls that block, go. */
void fake_release(const char *match);
/* Block until a pending line matches (another thread submits it). */
void fake_wait_pending(const char *match);
/* Block until workers have nothing to do. */
void fake_wait_idle(void);

/* ---- faults ------------------------------------------------------------- */

enum fake_fault_kind {
    FAKE_FAIL,          /* err, without effect */
    FAKE_FAIL_AFTER,    /* err, but it took effect */
    FAKE_SHORT,         /* read at most arg bytes */
    FAKE_HOLD,          /* wait for fake_release() or cancel */
    FAKE_LATE,          /* op->late is set */
};

struct fake_fault {
    const char *match;
    unsigned skip;      /* let so many matching requests pass */
    unsigned times;     /* 0: once */
    enum fake_fault_kind kind;
    int err;
    uint64_t arg;
};

void fake_fault_add(const struct fake_fault *f);
void fake_faults_clear(void);
/* Requests that met a fault since fake_start(). */
unsigned fake_fault_hits(void);

/* ---- the log ------------------------------------------------------------ */

unsigned fake_log_count(const char *match);
/* The line of the request @i, NULL past the end. */
const char *fake_log_line(unsigned i);
unsigned fake_log_length(void);
void fake_log_clear(void);
/* Block until the log has a line that matches. */
void fake_wait_log(const char *match);

/*
 * From now on a write of a data object of @img ends the process if its client
 * does not own the lock, or if the object map does not say EXISTS (PENDING for
 * a remove), as far as the image has such features.
 */
struct fake_image;
void fake_require_owner(struct fake_image *img);

/*
 * From now on a write of a data object with an older snapshot context than
 * @seq ends the process: it would damage a snapshot.
 */
void fake_require_snapc(uint64_t seq);

/* ---- objects ------------------------------------------------------------ */

/* Bytes, or -ENOENT; @snap RADOS_NOSNAP: the head. */
int64_t fake_object_size(int64_t pool, const char *ns, const char *oid,
                         uint64_t snap);
/* Like a read: bytes placed, or -ENOENT. */
int64_t fake_object_read(int64_t pool, const char *ns, const char *oid,
                         uint64_t snap, uint64_t off, void *buf, size_t len);
void fake_object_put(int64_t pool, const char *ns, const char *oid,
                     const void *data, size_t len);
void fake_object_remove(int64_t pool, const char *ns, const char *oid);
/* Heads whose names match. */
unsigned fake_object_count(int64_t pool, const char *match);

/* ---- images ------------------------------------------------------------- */

struct fake_snap {
    uint64_t id;
    uint64_t size;
    uint64_t flags;
    bool has_overlap;
    uint64_t overlap;
    uint8_t protection;
    uint32_t type;
    uint32_t time_s;
    char name[64];
};

/* Change fields at will while nothing runs; fake_image_touch() afterwards. */
struct fake_image {
    int64_t pool;
    char ns[64];
    char name[64];
    char id[32];
    char header[64];            /* object name */
    char prefix[96];
    uint64_t size;
    uint8_t order;
    uint64_t features;
    uint64_t incompatible;      /* given out as it is when not 0 */
    uint64_t flags;
    uint64_t op_features;
    uint64_t stripe_unit;
    uint64_t stripe_count;
    int64_t data_pool;
    int64_t parent_pool;
    char parent_ns[64];
    char parent_id[32];
    uint64_t parent_snap;
    bool has_overlap;
    uint64_t overlap;
    uint64_t snap_seq;
    GArray *snaps;              /* struct fake_snap, oldest first */
    GHashTable *metadata;       /* text -> text */
    bool require_owner;
};

/* Features: layering; id "img<n>". */
struct fake_image *fake_image_add(const char *pool, const char *ns,
                                  const char *name, uint64_t size,
                                  uint8_t order);
struct fake_image *fake_image_find(const char *header);
void fake_image_touch(struct fake_image *img);
void fake_image_set_size(struct fake_image *img, uint64_t size);
uint64_t fake_image_snap_add(struct fake_image *img, const char *name);
void fake_image_snap_remove(struct fake_image *img, uint64_t id);
/* Header, id object, directory entry and object maps go. */
void fake_image_remove(struct fake_image *img);
void fake_image_metadata(struct fake_image *img, const char *key,
                         const char *value);

/* Of `rbd create', where nobody says otherwise. */
#define FAKE_DEFAULT_FEATURES 0x3d
/* Add features; with object-map, maps of all revisions as they should be. */
void fake_image_enable(struct fake_image *img, uint64_t features);

/*
 * Class method @method on @oid gives these bytes, whatever it would do
 * (NULL: no longer).
 */
void fake_override(const char *oid, const char *method, const void *data,
                   size_t len);

/* ---- locks -------------------------------------------------------------- */

struct fake_locker {
    uint64_t gid;
    char address[64];
    char cookie[128];
    char tag[64];
    char description[64];
};

/* The address of a client that holds a lock here: this and its gid. */
#define FAKE_PEER_ADDRESS "10.0.0.1:0/"

/* Client @gid has the lock of the header, whoever had it. */
void fake_lock_hold(struct fake_image *img, uint64_t gid, const char *cookie,
                    const char *tag);
/* Nobody has it, nor that of the map; false: nobody had it. */
bool fake_lock_drop(struct fake_image *img);
/* False: nobody has it.  @ret may be NULL. */
bool fake_lock_owner(const struct fake_image *img, struct fake_locker *ret);
/* The same of the object map's lock. */
void fake_map_lock_hold(struct fake_image *img, uint64_t gid);
bool fake_map_lock_owner(const struct fake_image *img,
                         struct fake_locker *ret);

/* All connections there are now: ops, watches, notifies fail, -ESHUTDOWN. */
void fake_blocklist_self(void);
bool fake_blocklisted(const char *address);

/* ---- object maps -------------------------------------------------------- */

/* @snap RADOS_NOSNAP: the head's. */
bool fake_map_exists(const struct fake_image *img, uint64_t snap);
/* 0 ... 3; -ENOENT: no (good) map, or none that is so long. */
int fake_map_state(const struct fake_image *img, uint64_t snap,
                   uint64_t object);
/* -ENOENT: no (good) map. */
int64_t fake_map_entries(const struct fake_image *img, uint64_t snap);
void fake_map_set(struct fake_image *img, uint64_t snap, uint64_t object,
                  int state);
void fake_map_resize(struct fake_image *img, uint64_t snap, uint64_t entries);
void fake_map_remove(struct fake_image *img, uint64_t snap);

enum fake_map_damage {
    FAKE_MAP_DATA,              /* the first entries flip; crc is wrong */
    FAKE_MAP_HEADER,            /* the header's crc is wrong */
    FAKE_MAP_CUT,               /* it ends within the entries */
    FAKE_MAP_EMPTY,             /* no bytes are left */
};

void fake_map_corrupt(struct fake_image *img, uint64_t snap,
                      enum fake_map_damage damage);

/*
 * Are the maps of head and snapshots exact?  NULL, or what is wrong, until the
 * next check.  The safe check only wants that nothing trusts them wrongly: it
 * lets EXISTS and PENDING stand where there is no object, more entries than
 * needed, and maps that are flagged invalid.
 */
const char *fake_map_check(const struct fake_image *img);
const char *fake_map_check_safe(const struct fake_image *img);

/* ---- watches ------------------------------------------------------------ */

/* Ours. */
unsigned fake_watchers(const char *oid);
/* The watches of @oid are gone; each gets failed(@err). */
void fake_lose_watch(const char *oid, int err);
/* The watches of @oid are gone, and nobody says so. */
void fake_forget_watch(const char *oid);
/* The next watch gets the handle of the last one, as may happen. */
void fake_reuse_handle(void);

/* ---- notifies ----------------------------------------------------------- */

#define FAKE_OP_RELEASED_LOCK 1

/* What a watcher answers: a result, 0 or -errno, or one of these. */
#define FAKE_EMPTY   1          /* acks without a payload */
#define FAKE_TIMEOUT 2          /* does not ack */
/* Acks with 0, unlocks header and map if it owns them, sends ReleasedLock. */
#define FAKE_YIELD   3

/*
 * Another client watches a header.  It acks at once: until told otherwise
 * HeaderUpdate and Quiesce with 0, all else with FAKE_EMPTY.
 */
void fake_peer_add(const char *oid, uint64_t gid, uint64_t handle);
void fake_peer_answer(const char *oid, uint64_t gid, int op, int answer);
void fake_peer_remove(const char *oid, uint64_t gid);

/* Another client notifies the watchers of a header; returns an id. */
uint64_t fake_notify_send(const char *oid, const void *payload, size_t len);
uint64_t fake_notify_send_from(const char *oid, uint64_t gid,
                               const void *payload, size_t len);
/* The sender, where none is named. */
#define FAKE_STRANGER 1
/* The id of the newest notify that we sent with this operation, or of an
 * older one; 0: there is none. */
uint64_t fake_notify_sent(int op, unsigned skip);
const uint8_t *fake_notify_payload(uint64_t id, size_t *ret_len);
/* What our watches answered; FAKE_TIMEOUT: none has yet. */
int fake_notify_answer(uint64_t id);
/* Watchers that have not acked it. */
unsigned fake_notify_unacked(uint64_t id);
/* Block until everybody acked it, or missed it. */
void fake_wait_acked(uint64_t id);
/* Its time is up: whoever did not ack missed it. */
void fake_notify_expire(uint64_t id);

#endif
