/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Image offsets to object offsets and back; pure arithmetic.
 */
#ifndef PINRBD_STRIPER_H
#define PINRBD_STRIPER_H

#include <stdbool.h>
#include <stdint.h>

struct layout {
    uint64_t object_size;   /* bytes, a power of two */
    uint64_t unit;          /* bytes, divides object_size */
    uint64_t count;         /* objects an object set has; 1: no striping */
};

/* One run of bytes inside one object, contiguous in the image as well. */
struct object_extent {
    uint64_t object;
    uint64_t off;           /* in the object */
    uint64_t len;
};

/* Are these the values of a possible image? (unit 0, count 0: none) */
bool layout_valid(uint8_t order, uint64_t unit, uint64_t count);
void layout_init(struct layout *l, uint8_t order, uint64_t unit,
                 uint64_t count);

/* Where image offset @off lives, and how far (at most @len) the run goes. */
struct object_extent striper_map(const struct layout *l, uint64_t off,
                                 uint64_t len);

/*
 * The image offset of @off in @object; *@ret_run is how many bytes follow it
 * without a jump in the image.
 */
uint64_t striper_unmap(const struct layout *l, uint64_t object, uint64_t off,
                       uint64_t *ret_run);

/* Number of objects an image of @size bytes can have. */
uint64_t striper_objects(const struct layout *l, uint64_t size);

#endif
