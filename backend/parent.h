/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The parent of a clone: another image, open at one of its snapshots.
 */
#ifndef PINRBD_PARENT_H
#define PINRBD_PARENT_H

#include <glib.h>

#include "image_header.h"
#include "striper.h"

struct pinrbd_image;

/* A chain of this many images is refused: no sane one is. */
#define PARENT_DEPTH_MAX 64

struct parent {
    gatomicrefcount refs;
    struct header_parent spec;
    struct pinrbd_image *image;
    struct pinrbd_image *child;     /* held until the parent is closed */
};

/* Open what @spec names, and its parents.  Blocks. */
int parent_open(struct pinrbd_image *child, const struct header_parent *spec,
                gint64 deadline_us, struct parent **ret,
                struct pinrbd_error *reterr);
struct parent *parent_ref(struct parent *p);    /* takes NULL */
/* The last reference closes the image, on a thread of its own. */
void parent_unref(struct parent *p);            /* takes NULL */

bool parent_is(const struct parent *p, const struct header_parent *spec);

/* How many bytes of @object, from its start, lie below the overlap. */
uint64_t parent_bytes(const struct layout *l, uint64_t overlap,
                      uint64_t object);

#endif
