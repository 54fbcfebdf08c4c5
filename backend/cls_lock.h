/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The OSD's object class `lock', which keeps the locks of an object; one
 * blocking function a method.  All locks here are exclusive and named
 * rbd_lock, as librbd's.  @deadline_us as for waiter_wait().
 */
#ifndef PINRBD_CLS_LOCK_H
#define PINRBD_CLS_LOCK_H

#include <glib.h>

#include "rados_op.h"

/* The header's lock; the object map's has an empty tag and cookie. */
#define LOCK_TAG "internal"
#define LOCK_COOKIE_PREFIX "auto "

struct lock_owner {
    uint64_t gid;               /* client.GID */
    uint64_t handle;            /* of the watch its cookie names */
    bool internal;              /* a lock of librbd's kind, as ours is */
    char cookie[256];
    char tag[256];
    char address[80];           /* IP:PORT/NONCE; empty: unknown */
};

/* 1: @ret is the (first) owner; 0: not locked; -errno. */
int lock_get_owner(struct rados_pool *pool, const char *oid,
                   gint64 deadline_us, struct lock_owner *ret);
/* The same from the bytes of get_info; -EBADMSG. */
int lock_decode_owner(const void *data, size_t len, struct lock_owner *ret);

/* -EBUSY: somebody has it; -EEXIST: we do. */
int lock_take(struct rados_pool *pool, const char *oid, const char *cookie,
              const char *tag, gint64 deadline_us);
/* -ENOENT: we do not have it. */
int lock_drop(struct rados_pool *pool, const char *oid, const char *cookie,
              gint64 deadline_us);
/* -ENOENT: that owner does not have it. */
int lock_break(struct rados_pool *pool, const char *oid,
               const struct lock_owner *owner, gint64 deadline_us);
/* -EBUSY: we do not have it with that cookie. */
int lock_set_cookie(struct rados_pool *pool, const char *oid,
                    const char *cookie, const char *tag,
                    const char *new_cookie, gint64 deadline_us);
int lock_assert(struct rados_pool *pool, const char *oid, const char *cookie,
                const char *tag, gint64 deadline_us);

/*
 * A step that fails the whole op with -EBUSY unless we have the lock.  @buf
 * and @iov must live as long as the step.
 */
#define LOCK_ASSERT_MAX 192
void lock_assert_step(struct rados_step *step, struct iovec *iov,
                      uint8_t buf[LOCK_ASSERT_MAX], const char *cookie,
                      const char *tag);

#endif
