/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Inside the fake: the objects, and the class methods on them.  All of it is
 * called under the fake's one lock.
 */
#ifndef FAKE_STORE_H
#define FAKE_STORE_H

#include "fake_rados.h"

/* What an object was between two snapshots. */
struct fake_clone {
    uint64_t *ids;              /* the snapshots that see it */
    size_t n;
    GByteArray *data;
};

struct fake_object {
    GByteArray *data;           /* NULL: the head does not exist */
    uint64_t version;
    uint64_t snap_seq;          /* newest the object saw */
    GPtrArray *clones;          /* struct fake_clone, oldest first */
};

void store_init(void);
void store_clear(void);
/* "POOL/NS/OID" */
char *store_key(int64_t pool, const char *ns, const char *oid);
/* NULL: it was never there. */
struct fake_object *store_find(const char *key);
struct fake_object *store_get(const char *key);
void store_bump(struct fake_object *o);
/* Bytes at a revision, NULL if it did not exist there. */
const GByteArray *store_data(const struct fake_object *o, uint64_t snap);

/*
 * Execute @op on @key.  @payload[i], where not NULL, stands for the bytes of
 * step i.  At most @max_read bytes a read step.  Outputs of calls are added
 * to @outputs.
 */
int store_execute(const char *key, int64_t pool, const char *ns,
                  uint64_t snap, struct rados_op *op,
                  GByteArray *const *payload, uint64_t max_read,
                  GPtrArray *outputs);

/* One class call. */
struct fake_call {
    const char *key;
    int64_t pool;
    const char *ns;
    const char *oid;
    const char *method;
    GByteArray **data;          /* the object's head, may be changed */
    const uint8_t *in;
    size_t in_len;
    size_t in_pos;
    bool in_bad;                /* a read went past the end */
    GByteArray *out;
    bool write;
};

void cls_init(void);
void cls_clear(void);
int cls_call(const char *cls, struct fake_call *c);
uint64_t cls_snap_add(struct fake_image *img, const char *name);
void cls_snap_remove(struct fake_image *img, uint64_t id);

#endif
