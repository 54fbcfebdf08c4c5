/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the header object of an image says, as one consistent view.
 */
#ifndef PINRBD_IMAGE_HEADER_H
#define PINRBD_IMAGE_HEADER_H

#include <glib.h>

#include "rados_op.h"

struct header_parent {
    int64_t pool_id;            /* -1: none */
    uint64_t snap_id;
    char ns[128];
    char image_id[32];
};

struct header_snap {
    uint64_t id;
    uint64_t size;              /* bytes */
    uint64_t overlap;           /* bytes, 0 without a parent */
    uint32_t time_s;
    uint32_t time_ns;
    uint32_t type;              /* 0: user */
    uint32_t n_children;        /* clones of version 2 */
    bool is_protected;
    char name[256];
};

struct parent;

/* Immutable once published; counted. */
struct image_meta {
    gatomicrefcount refs;
    uint64_t version;           /* of the header object when it was read */
    uint64_t size;              /* bytes, of the head */
    uint64_t overlap;           /* bytes, of the head; 0 without a parent */
    uint64_t features;
    uint64_t incompatible;      /* features the reader must understand */
    uint64_t flags;
    uint64_t op_features;
    uint64_t stripe_unit;       /* 0: no striping */
    uint64_t stripe_count;
    int64_t data_pool_id;       /* -1: the image's pool */
    uint8_t order;
    char object_prefix[96];
    struct header_parent parent;
    struct rados_snapc snapc;   /* ids in `snap_ids' */
    uint64_t *snap_ids;         /* descending */
    struct header_snap *snaps;  /* in the order of snap_ids */
    /* for the revision that is open; set before it is published */
    struct parent *parent_link; /* a reference; NULL: none is needed */
    uint64_t parent_overlap;    /* bytes */
    uint64_t parent_epoch;      /* the image's, of that parent and overlap */
};

struct image_meta *meta_new(void);
struct image_meta *meta_ref(struct image_meta *m);
void meta_unref(struct image_meta *m);      /* takes NULL */

/* ---- decoding; pure ---------------------------------------------------- */

enum header_call {              /* one read op, in this order */
    HEADER_SIZE,
    HEADER_PREFIX,
    HEADER_FEATURES,
    HEADER_FLAGS,
    HEADER_SNAPCONTEXT,
    HEADER_DATA_POOL,
    HEADER_PARENT,
    HEADER_OVERLAP,
    HEADER_OP_FEATURES,
    HEADER_CALLS,
};

/*
 * 0 or -EBADMSG; @ret_what then names the method and what is wrong.
 */
int header_decode_batch(const struct rados_blob out[HEADER_CALLS],
                        struct image_meta *m, const char **ret_what);
int header_decode_striping(const struct rados_blob *out, struct image_meta *m,
                           const char **ret_what);
int header_decode_snap(const struct rados_blob *info,
                       const struct rados_blob *overlap,
                       const struct rados_blob *protection, uint64_t id,
                       struct header_snap *s, const char **ret_what);

/* ---- fetching ---------------------------------------------------------- */

enum header_fetch_state {
    HEADER_FETCH_BATCH,
    HEADER_FETCH_STRIPING,
    HEADER_FETCH_SNAPS,
    HEADER_FETCH_END,
};

/*
 * One reading of a header.  The caller fills in the first group, keeps the
 * structure until `done', takes `meta' (when the result is 0) and calls
 * header_fetch_clear().
 */
struct header_fetch {
    struct rados_pool *pool;
    const char *oid;
    bool read_only;             /* asks for the features a reader needs */
    void (*done)(struct header_fetch *f, int result);
    void *opaque;

    struct image_meta *meta;
    const char *what;           /* -EBADMSG: which value is wrong */
    const char *method;         /* another error: whose it was, or NULL */

    GMutex lock;                /* sending against cancelling */
    bool cancelled;             /* under lock */
    enum header_fetch_state state;
    unsigned restarts;
    size_t next_snap;           /* first one not read */
    size_t n_batch;             /* snapshots in the op on its way */
    struct rados_op op;
    struct rados_step *steps;
    struct iovec *inputs;
    uint8_t (*input_bytes)[16];
};

void header_fetch_start(struct header_fetch *f);
/* Ends with -ECANCELED soon, unless it just ended otherwise. */
void header_fetch_cancel(struct header_fetch *f);
void header_fetch_clear(struct header_fetch *f);

#endif
