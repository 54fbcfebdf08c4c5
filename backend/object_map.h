/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which objects of an image exist: the object map of the head, kept in memory
 * and on disk while we own the exclusive lock, or that of a snapshot, read.
 */
#ifndef PINRBD_OBJECT_MAP_H
#define PINRBD_OBJECT_MAP_H

#include <glib.h>

#include "rados_op.h"

enum object_state {
    OBJECT_NONEXISTENT,
    OBJECT_EXISTS,              /* may exist */
    OBJECT_PENDING,             /* about to be removed */
    OBJECT_EXISTS_CLEAN,        /* ... and as the newest snapshot has it */
};

#define OBJECT_MAP_MAX 256000000u   /* entries; as librbd */

/* Flags of the header. */
#define FLAG_OBJECT_MAP_INVALID 1u
#define FLAG_FAST_DIFF_INVALID  2u

struct object_map;

/* One entry to change; the caller's until done. */
struct map_update {
    struct map_update *next;
    uint64_t object;
    enum object_state state;
    int only_if;                /* present state (EXISTS: clean too); -1: any */
    /* -EBUSY: the map is locked by another client now. */
    void (*done)(struct map_update *u, int result);
    struct object_map *map;     /* the rest belongs to object_map.c */
    struct rados_op op;
    struct rados_step steps[2];
    uint8_t in[24];
    struct iovec iov;
};

/* What a head's map needs to know of its image. */
struct object_map_home {
    struct rados_pool *pool;    /* of the header */
    const char *header_oid;
    const char *image_id;
    const char *spec;           /* for messages */
    bool fast_diff;
    uint64_t flags;             /* of the header */
};

/*
 * The head's map, @n entries needed: lock it, load it, mend it as librbd does.
 * Blocks.  A map that cannot be used gets the invalid flags in the header and
 * is returned all the same, as one that trusts nothing; only that failing, or
 * being blocklisted, is an error.
 */
int object_map_open(const struct object_map_home *home, uint64_t n,
                    gint64 deadline_us, struct object_map **ret);
/*
 * A map of @n entries that lives only in memory, for images without the
 * feature: all may exist until somebody finds out.
 */
struct object_map *object_map_new_memory(uint64_t n);
/* The map of a snapshot, NULL when there is none to trust.  Blocks. */
struct object_map *object_map_open_snap(const struct object_map_home *home,
                                        uint64_t snap_id, uint64_t n,
                                        gint64 deadline_us);

struct object_map *object_map_ref(struct object_map *m);    /* takes NULL */
void object_map_unref(struct object_map *m);                /* takes NULL */

/* The lock is gone or will be: what the map says is of no use any more. */
void object_map_end(struct object_map *m);
/* Unlock it on disk.  Blocks. */
int object_map_unlock(const struct object_map_home *home, gint64 deadline_us);

/* An object behind the map's end has no entry to rely on: NONEXISTENT. */
enum object_state object_map_get(const struct object_map *m, uint64_t object);
/* True only if the object is known not to exist. */
bool object_map_absent(const struct object_map *m, uint64_t object);
bool object_map_is_memory(const struct object_map *m);
/* It was found that @object does not exist (memory maps only). */
void object_map_found_absent(struct object_map *m, uint64_t object);
uint64_t object_map_size(const struct object_map *m);
/* Operations sent so far, of all maps there were. */
uint64_t object_map_ops(const struct object_map *m);

/*
 * Change an entry on disk and then in memory.  1: it is done, no callback.  No
 * two updates of one object at a time.
 */
int object_map_update(struct object_map *m, struct map_update *u);

/* ---- whole maps, as bytes ------------------------------------------------ */

#define OBJECT_MAP_OID_MAX 96
void object_map_oid(char buf[OBJECT_MAP_OID_MAX], const char *image_id,
                    uint64_t snap_id);
/* 0 or -EBADMSG; @ret_bits are bytes of @data, (*@ret_n + 3) / 4 of them. */
int object_map_decode(const void *data, size_t len, uint64_t *ret_n,
                      const uint8_t **ret_bits);
/* As object_map_save takes it, without checksums. */
GByteArray *object_map_encode(uint64_t n, const uint8_t *bits);
enum object_state object_bits_get(const uint8_t *bits, uint64_t object);
void object_bits_set(uint8_t *bits, uint64_t object, enum object_state state);

/* Input of set_flags: the invalid flags of the head or a snapshot. */
size_t object_map_encode_flags(uint8_t *buf, size_t size, bool fast_diff,
                               uint64_t snap_id);
/* Set the invalid flags of the head or a snapshot.  Blocks. */
int object_map_invalidate(const struct object_map_home *home, uint64_t snap_id,
                          gint64 deadline_us);

#endif
