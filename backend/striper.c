/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Striping, as librbd lays images out.  The image is a row of blocks of `unit'
 * bytes, dealt to `count' objects in turn until these are full; then the next
 * `count' objects follow.  With unit 2, count 3 and four units an object:
 *
 *     object   0            1            2         |  3 ...
 *     blocks   0 3 6 9      1 4 7 10     2 5 8 11  |  12 ...
 *
 * Without striping the unit is the object and count is 1.
 */
#include "striper.h"

#define MIN_ORDER 12
#define MAX_ORDER 25

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

bool layout_valid(uint8_t order, uint64_t unit, uint64_t count)
{
    uint64_t size;

    if (order < MIN_ORDER || order > MAX_ORDER) {
        return false;
    }
    if (!unit && !count) {
        return true;
    }
    size = UINT64_C(1) << order;
    return unit && count && unit <= size && size % unit == 0 &&
           count <= UINT32_MAX;
}

void layout_init(struct layout *l, uint8_t order, uint64_t unit,
                 uint64_t count)
{
    l->object_size = UINT64_C(1) << order;
    if (count > 1) {
        l->unit = unit;
        l->count = count;
    } else {
        l->unit = l->object_size;
        l->count = 1;
    }
}

struct object_extent striper_map(const struct layout *l, uint64_t off,
                                 uint64_t len)
{
    uint64_t per_object = l->object_size / l->unit;
    uint64_t block = off / l->unit;
    uint64_t stripe = block / l->count;
    uint64_t set = stripe / per_object;

    return (struct object_extent) {
        .object = set * l->count + block % l->count,
        .off = stripe % per_object * l->unit + off % l->unit,
        .len = min_u64(len, l->unit - off % l->unit),
    };
}

uint64_t striper_unmap(const struct layout *l, uint64_t object, uint64_t off,
                       uint64_t *ret_run)
{
    uint64_t per_object = l->object_size / l->unit;
    uint64_t stripe = off / l->unit + object / l->count * per_object;

    *ret_run = l->unit - off % l->unit;
    return (stripe * l->count + object % l->count) * l->unit + off % l->unit;
}

uint64_t striper_objects(const struct layout *l, uint64_t size)
{
    uint64_t period = l->object_size * l->count;
    uint64_t full = size / period + (size % period != 0);
    uint64_t rest = size % period;
    uint64_t missing = 0;

    if (rest && rest < l->count * l->unit) {
        missing = l->count - (rest + l->unit - 1) / l->unit;
    }
    return full * l->count - missing;
}
