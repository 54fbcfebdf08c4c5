/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Inside the fake: the objects, the class methods on them, and the clients
 * that are not ours.  All of it is called under the fake's one lock.
 *
 *   fake_store.c     objects and their snapshots
 *   fake_cls.c       class rbd on headers, directories and data objects
 *   fake_cls_map.c   ... on object maps; the check of the maps
 *   fake_cls_lock.c  class lock
 *   fake_peer.c      what the other watchers of a header answer
 */
#ifndef FAKE_STORE_H
#define FAKE_STORE_H

#include "fake_bytes.h"
#include "fake_rados.h"

#define FAKE_CHECK(cond, what) \
    do { \
        if (!(cond)) { \
            g_error("fake: %s", what); \
        } \
    } while (0)

extern GMutex fake_mutex;

/* The client an op comes from. */
struct fake_client {
    uint64_t gid;
    char address[64];           /* IP:PORT/NONCE */
};

/* ---- objects ------------------------------------------------------------- */

/* What an object was between two snapshots. */
struct fake_clone {
    uint64_t *ids;              /* the snapshots that see it */
    size_t n;
    GByteArray *data;
};

struct fake_lock {
    uint8_t type;               /* these two stay when the last owner goes */
    char tag[64];
    GArray *lockers;            /* struct fake_locker, sorted */
};

struct fake_object {
    GByteArray *data;           /* NULL: the head does not exist */
    uint64_t version;
    uint64_t snap_seq;          /* newest the object saw */
    GPtrArray *clones;          /* struct fake_clone, oldest first */
    struct fake_lock *lock;     /* NULL: never locked */
};

void store_init(void);
void store_clear(void);
/* "POOL/NS/OID" */
char *store_key(int64_t pool, const char *ns, const char *oid);
/* NULL: it was never there. */
struct fake_object *store_find(const char *key);
struct fake_object *store_get(const char *key);
void store_bump(struct fake_object *o);
/* Replace what @data points to by a copy. */
void store_replace(GByteArray **data, const GByteArray *with);
/* The head becomes @data, which is taken; NULL: it goes. */
void store_put(const char *key, GByteArray *data);
/* Bytes at a revision, NULL if it did not exist there. */
const GByteArray *store_data(const struct fake_object *o, uint64_t snap);
/* Snapshot @id of a pool is gone. */
void store_trim(int64_t pool, uint64_t id);
/* Call @fn for each object of a namespace whose name starts with @prefix. */
void store_each(int64_t pool, const char *ns, const char *prefix,
                void (*fn)(const char *oid, const struct fake_object *o,
                           void *opaque),
                void *opaque);

/*
 * Execute @op on @key.  @payload[i], where not NULL, stands for the bytes of
 * step i.  At most @max_read bytes a read step.  Outputs of calls are added
 * to @outputs.
 */
int store_execute(const char *key, const struct fake_client *client,
                  int64_t pool, const char *ns, uint64_t snap,
                  struct rados_op *op, GByteArray *const *payload,
                  uint64_t max_read, GPtrArray *outputs);

/* ---- class methods ------------------------------------------------------- */

/* One class call.  What it changes takes effect if the whole op succeeds. */
struct fake_call {
    const char *key;
    const struct fake_client *client;
    int64_t pool;
    const char *ns;
    const char *oid;
    const char *method;
    GByteArray **data;          /* the object's head, may be changed */
    struct fake_lock **lock;    /* of the object, may be changed */
    struct fake_input in;
    GByteArray *out;
    bool write;                 /* it is in a write op */
    bool modified;
};

struct fake_method {
    const char *name;           /* NULL: the end of a table */
    bool write;
    bool on_image;              /* -ENOENT unless there is an image */
    int (*fn)(struct fake_call *c, struct fake_image *img);
};

extern const struct fake_method cls_lock_methods[];
extern const struct fake_method cls_map_methods[];

void cls_init(void);
void cls_clear(void);
int cls_call(const char *cls, struct fake_call *c);
uint64_t cls_next_snap(void);
uint64_t cls_snap_add(struct fake_image *img, const char *name);
void cls_snap_remove(struct fake_image *img, uint64_t id);
/* The image that @oid is a data object of, and which one it is. */
struct fake_image *cls_image_of_data(int64_t pool, const char *ns,
                                     const char *oid, uint64_t *ret_object);
/*
 * The model of an image is outside of its header object: a copy to go back to
 * when a later step fails.  cls_saved() ends it.
 */
struct fake_image *cls_save(const char *key);
void cls_saved(const char *key, struct fake_image *saved, bool restore);

/* Another client does to the maps of @img what it does to @img. */
void map_snap_added(struct fake_image *img, uint64_t id);
void map_snap_removed(struct fake_image *img, uint64_t id);
void map_resized(struct fake_image *img);
void map_image_removed(struct fake_image *img);
/* 0 ... 3, -ENOENT: no map, or none that is so long. */
int map_state(const struct fake_image *img, uint64_t snap, uint64_t object);

struct fake_lock *lock_copy(const struct fake_lock *l);
void lock_free(struct fake_lock *l);
/* Does @gid own the lock of the header? */
bool lock_owned_by(const struct fake_image *img, uint64_t gid);
/* If it does, no longer. */
bool lock_yield(const struct fake_image *img, uint64_t gid);
void fenced_add(const char *address);
bool fenced(const char *address);
void fenced_clear(void);

/* ---- other watchers ------------------------------------------------------ */

/* What one of them did with a notify. */
struct peer_ack {
    uint64_t gid;
    uint64_t handle;
    bool missed;
    bool yields;                /* it gave the lock up */
    GByteArray *payload;        /* NULL: missed */
};

void peer_init(void);
void peer_clear(void);
/* The operation in a notify's payload; -1: unreadable. */
int notify_op(const void *payload, size_t len);
/* The answers of all peers on @key to operation @op; struct peer_ack. */
GArray *peer_answers(const char *key, int op);

#endif
