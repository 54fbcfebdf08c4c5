/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Tools for changing an image as a whole.
 */
#ifndef PINRBD_CHANGE_H
#define PINRBD_CHANGE_H

#include "codec.h"
#include "image.h"

#define CHANGE_MAX_TRIES 10

/* For one call of an operation: client_mount_timeout from now. */
gint64 change_deadline(struct pinrbd_image *image);
/* `image X: doing: error'; returns @code. */
int change_fail(struct pinrbd_image *image, int code,
                struct pinrbd_error *reterr, const char *doing);
/* Somebody waits to close the image, or for a flatten to end: end soon. */
bool change_interrupted(struct pinrbd_image *image);

/* Writable, and the lock pinned; image_lock_unpin() ends it. */
int change_begin(struct pinrbd_image *image, struct pinrbd_error *reterr);

/* New writes wait, and those on their way end.  -ETIMEDOUT undoes it. */
int change_stop_writes(struct pinrbd_image *image, gint64 deadline_us);
void change_let_writes_go(struct pinrbd_image *image);

/*
 * Send requests of our own @kind for bytes @from to @to, whole objects except
 * for the first ones, a few at a time.  *@progress counts bytes.  -EINTR when
 * told to end.
 */
int change_range(struct pinrbd_image *image, enum request_kind kind,
                 uint64_t snap_id, uint64_t from, uint64_t to,
                 uint64_t *progress);

/*
 * One call on the header while the lock on it, if there is one, is ours: -EBUSY
 * if it was lost.
 */
int change_header_call(struct pinrbd_image *image, const char *method,
                       const struct penc *in, gint64 deadline_us);
/* Others shall read the header again. */
void change_tell_all(struct pinrbd_image *image);
/*
 * What was changed on disk comes into use at once, with writes held: none may
 * be decided by the size of one time and the map of another.
 */
int change_use_header(struct pinrbd_image *image, gint64 deadline_us);

/* ---- object maps --------------------------------------------------------- */

bool change_has_map(const struct image_meta *meta);
/* What an object map needs to know of @image. */
void change_map_home(struct pinrbd_image *image, const struct image_meta *meta,
                     struct object_map_home *home);
/* One call on an object map; on the head's, its lock must be ours. */
int change_map_call(struct pinrbd_image *image, uint64_t snap_id,
                    const char *method, const void *in, size_t len,
                    gint64 deadline_us);
/* A map could not be brought along: nobody may believe it any more. */
int change_map_failed(struct pinrbd_image *image,
                      const struct image_meta *meta, uint64_t snap_id,
                      int error, gint64 deadline_us);

/* ---- what there is ------------------------------------------------------- */

/* The lock is pinned; *@progress counts bytes. */
int resize_image(struct pinrbd_image *image, uint64_t size, unsigned flags,
                 uint64_t *progress);
int snapshot_create(struct pinrbd_image *image, const char *name,
                    uint64_t flags);
int snapshot_remove(struct pinrbd_image *image, const char *name);

#endif
