/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The seam: what this project needs from RADOS, and nothing else.  Above this
 * header nobody knows which client library (or wire protocol) does the work.
 * A transport fills in a struct rados_transport; a fake one with a fault
 * schedule serves the unit tests.
 *
 *   rados_conn    one client instance: monitors, maps, sessions, one identity
 *   rados_pool    a pool + namespace + revision to read (head or a snapshot)
 *   rados_op      a list of steps on one object, atomic, one result
 *   rados_watch   a watch on one object
 *   rados_notify  one notify sent to the watchers of an object
 *
 * Ownership.  The caller owns every structure and keeps it, and all memory it
 * points to, until the done callback has been entered.  From then on the
 * transport touches neither; `acked' is not enough, the callback is withheld
 * until nothing below refers to payload memory.
 *
 * Threads.  submit, cancel, notify and ack never block and may be called from
 * any thread, callbacks included.  Callbacks run on a thread of the transport,
 * never from inside a submit (a transport that can fail early still completes
 * from elsewhere), and must not block.
 *
 * Order.  Write ops on one object are executed in submit order, also with
 * different snapshot contexts and through different pools of one conn.
 */
#ifndef PINRBD_RADOS_OP_H
#define PINRBD_RADOS_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "include/pinrbd.h"

#define RADOS_NOSNAP 0xfffffffffffffffeULL

enum rados_step_kind {
    /* reading */
    RADOS_READ,             /* off, len, iov: destination; out_len */
    RADOS_STAT,             /* out_len: object size */
    RADOS_CHECKSUM,         /* crc32c of off, len; out: u32 count, u32 value */
    RADOS_ASSERT_EXISTS,    /* also in write ops: -ENOENT if missing */
    RADOS_ASSERT_VERSION,   /* off: version; -ERANGE or -EOVERFLOW if not */
    RADOS_CALL,             /* cls, method, iov: input; out (read ops) */
    /* writing */
    RADOS_CREATE,           /* exclusive */
    RADOS_WRITE,            /* off, iov */
    RADOS_WRITE_FULL,       /* iov */
    RADOS_WRITESAME,        /* off, len, iov: the pattern; len % pattern = 0 */
    RADOS_ZERO,             /* off, len */
    RADOS_TRUNCATE,         /* off: new size */
    RADOS_REMOVE,
    RADOS_ALLOC_HINT,       /* off: object size, len: write size expected */
    RADOS_ROLLBACK,         /* off: snapshot id */
};

/* Owned by the op, valid from done until rados_op_done_with(). */
struct rados_blob {
    const uint8_t *data;
    size_t len;
};

struct rados_step {
    enum rados_step_kind kind;
    bool exclusive;             /* RADOS_CREATE: -EEXIST if it exists */
    int n_iov;
    const struct iovec *iov;    /* by reference, see the kinds */
    uint64_t off;
    uint64_t len;
    const char *cls;            /* constants */
    const char *method;
    /* results */
    int rval;                   /* of this step, when it was reached (reads) */
    uint64_t out_len;
    struct rados_blob out;
};

#define RADOS_OP_WRITE      1u  /* the op modifies */
#define RADOS_OP_COPY       2u  /* private copy of write payloads */
#define RADOS_OP_ORDERSNAP  4u  /* -ERESTART if the object saw a newer seq */
#define RADOS_OP_FULL_TRY   8u  /* full pool: an error instead of waiting */

/* A snapshot context; ids descending.  Immutable. */
struct rados_snapc {
    uint64_t seq;
    size_t n;
    const uint64_t *ids;
};

#define RADOS_OP_PRIV 256

struct rados_op {
    /* request */
    const char *oid;
    struct rados_step *steps;
    unsigned n_steps;
    unsigned flags;
    const struct rados_snapc *snapc;    /* write ops; NULL: none */
    void (*done)(struct rados_op *op);
    void *opaque;               /* the caller's */
    /* reply */
    int result;                 /* 0 or -errno; a failed step's for the whole */
    uint64_t version;           /* of the object, after the op */
    uint64_t pinned_bytes;      /* payload sent by reference */
    uint64_t copied_bytes;      /* payload copied, either direction */
    bool late;                  /* the ack had to wait for a reference */
    /* transport */
    unsigned char priv[RADOS_OP_PRIV] __attribute__((aligned(16)));
};

struct rados_watch {
    const char *oid;
    uint32_t timeout_s;         /* 0: the cluster's */
    void (*started)(struct rados_watch *w, int result);
    void (*notified)(struct rados_watch *w, uint64_t notify_id,
                     uint64_t notifier, const void *payload, size_t len);
    /* The watch is dead (-ENOTCONN: expired or fenced); stop it. */
    void (*failed)(struct rados_watch *w, int err);
    /* After this, no callback comes any more. */
    void (*stopped)(struct rados_watch *w, int result);
    void *opaque;               /* the caller's */
    uint64_t cookie;            /* set before started(0) */
    void *priv[4];
};

struct rados_notify {
    const char *oid;
    const void *payload;        /* copied at submit */
    size_t payload_len;
    uint64_t timeout_ms;
    void (*done)(struct rados_notify *n);
    void *opaque;               /* the caller's */
    int result;                 /* -ETIMEDOUT: reply is still filled in */
    struct rados_blob reply;    /* until rados_notify_release() */
    void *priv[4];
};

struct rados_conn {
    const struct rados_transport *t;
};

struct rados_pool {
    const struct rados_transport *t;
    int64_t id;
    uint64_t snap;              /* read revision */
    const char *name;
    const char *ns;
};

struct rados_transport {
    const char *name;

    /*
     * conn_new reads the settings and touches no network; conn_identity is
     * the text of all effective settings, equal for connections that may be
     * shared.  conn_connect blocks, bounded.  conn_free takes NULL and any
     * state; no op, watch or pool may be left.
     */
    int (*conn_new)(const struct pinrbd_cluster_options *o,
                    struct rados_conn **ret, struct pinrbd_error *reterr);
    const char *(*conn_identity)(struct rados_conn *c);
    int (*conn_connect)(struct rados_conn *c, struct pinrbd_error *reterr);
    void (*conn_free)(struct rados_conn *c);
    uint64_t (*conn_instance)(struct rados_conn *c);
    const char *(*conn_user)(struct rados_conn *c);     /* client.NAME */
    const char *(*conn_fsid)(struct rados_conn *c);
    const char *(*conn_address)(struct rados_conn *c);
    /* Effective value of a Ceph option as text; -ENOENT. */
    int (*conn_option)(struct rados_conn *c, const char *key, char *buf,
                       size_t len);

    /*
     * Blocking, control path.  -ENOENT: no such pool, -ETIMEDOUT: no monitor
     * says whether there is one.
     */
    int (*pool_open)(struct rados_conn *c, const char *name, const char *ns,
                     struct rados_pool **ret);
    int (*pool_open_id)(struct rados_conn *c, int64_t id, const char *ns,
                        uint64_t snap, struct rados_pool **ret);
    void (*pool_close)(struct rados_pool *p);

    void (*submit)(struct rados_pool *p, struct rados_op *op);
    /*
     * Best effort: the op still completes, perhaps with -ECANCELED.  The op
     * may be completing, or have completed, at the same time; its memory is
     * valid throughout.
     */
    void (*cancel)(struct rados_pool *p, struct rados_op *op);
    void (*op_release)(struct rados_op *op);

    void (*watch_start)(struct rados_pool *p, struct rados_watch *w);
    void (*watch_stop)(struct rados_pool *p, struct rados_watch *w);
    /* Milliseconds since the watch was confirmed, or -errno. */
    int (*watch_check)(struct rados_pool *p, struct rados_watch *w);
    void (*notify)(struct rados_pool *p, struct rados_notify *n);
    void (*notify_release)(struct rados_notify *n);
    void (*notify_ack)(struct rados_pool *p, const char *oid,
                       uint64_t notify_id, uint64_t cookie,
                       const void *payload, size_t len);

    /*
     * Blocking, control path: a new snapshot id in pool @p, and giving one
     * back, after which its data goes away.
     */
    int (*snap_alloc)(struct rados_pool *p, uint64_t *ret_id);
    int (*snap_release)(struct rados_pool *p, uint64_t id);
    /*
     * Blocking: shut the client at @address ("IP:PORT/NONCE") out for the
     * cluster's default time, and wait until this client's map says so.
     */
    int (*blocklist)(struct rados_conn *c, const char *address);
};

/* The librados transport (rados_librados.c). */
extern const struct rados_transport rados_librados;

static inline void rados_submit(struct rados_pool *p, struct rados_op *op)
{
    p->t->submit(p, op);
}

static inline void rados_cancel(struct rados_pool *p, struct rados_op *op)
{
    p->t->cancel(p, op);
}

/* Frees what steps' out point to; needed after ops with RADOS_CALL. */
static inline void rados_op_done_with(struct rados_pool *p,
                                      struct rados_op *op)
{
    p->t->op_release(op);
}

#endif
