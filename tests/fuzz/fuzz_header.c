/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Header values of an image, as an OSD might hand them out.  The input is a
 * byte that chooses the decoder, then the methods' outputs, each behind a byte
 * with its length.  What is accepted must make sense.
 */
#include <errno.h>
#include <glib.h>
#include <stdint.h>
#include <string.h>

#include "image_header.h"
#include "striper.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond) \
    do { \
        if (!(cond)) { \
            g_error("accepted although not: %s", #cond); \
        } \
    } while (0)

/* The next value, in memory of exactly its size. */
static struct rados_blob next(const uint8_t **data, size_t *size)
{
    struct rados_blob b = { NULL, 0 };

    if (*size) {
        b.len = MIN(**data, *size - 1);
        b.data = g_memdup2(*data + 1, b.len);
        *data += 1 + b.len;
        *size -= 1 + b.len;
    }
    return b;
}

static void check_batch(const struct image_meta *m)
{
    REQUIRE(layout_valid(m->order, 0, 0));
    REQUIRE(m->size <= INT64_MAX);
    REQUIRE(m->overlap <= m->size);
    REQUIRE(memchr(m->object_prefix, 0, sizeof(m->object_prefix)));
    REQUIRE(m->object_prefix[0]);
    REQUIRE(memchr(m->parent.ns, 0, sizeof(m->parent.ns)));
    REQUIRE(memchr(m->parent.image_id, 0, sizeof(m->parent.image_id)));
    REQUIRE(m->parent.pool_id >= 0 || !m->overlap);
    REQUIRE(m->data_pool_id >= -1);
    for (size_t i = 0; i < m->snapc.n; i++) {
        REQUIRE(m->snapc.ids[i] <= m->snapc.seq);
        REQUIRE(!i || m->snapc.ids[i] < m->snapc.ids[i - 1]);
    }
}

static void decode_batch(const uint8_t *data, size_t size)
{
    struct rados_blob out[HEADER_CALLS];
    struct image_meta *m = meta_new();
    const char *what = NULL;
    int r;

    for (unsigned i = 0; i < HEADER_CALLS; i++) {
        out[i] = next(&data, &size);
    }
    r = header_decode_batch(out, m, &what);
    if (r == 0) {
        check_batch(m);
    } else {
        REQUIRE(r == -EBADMSG && what);
    }
    for (unsigned i = 0; i < HEADER_CALLS; i++) {
        g_free((void *)out[i].data);
    }
    meta_unref(m);
}

static void decode_striping(const uint8_t *data, size_t size)
{
    struct rados_blob out = next(&data, &size);
    struct image_meta *m = meta_new();
    const char *what = NULL;
    int r;

    m->order = size ? *data : 22;
    r = header_decode_striping(&out, m, &what);
    if (r == 0) {
        REQUIRE(layout_valid(m->order, m->stripe_unit, m->stripe_count));
    } else {
        REQUIRE(r == -EBADMSG && what);
    }
    g_free((void *)out.data);
    meta_unref(m);
}

static void decode_snap(const uint8_t *data, size_t size)
{
    struct rados_blob out[3];
    struct header_snap s;
    const char *what = NULL;
    int r;

    for (unsigned i = 0; i < G_N_ELEMENTS(out); i++) {
        out[i] = next(&data, &size);
    }
    r = header_decode_snap(&out[0], &out[1], &out[2], 4, &s, &what);
    if (r == 0) {
        REQUIRE(s.id == 4);
        REQUIRE(s.size <= INT64_MAX);
        REQUIRE(s.overlap <= s.size);
        REQUIRE(memchr(s.name, 0, sizeof(s.name)));
    } else {
        REQUIRE(r == -EBADMSG && what);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(out); i++) {
        g_free((void *)out[i].data);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) {
        return 0;
    }
    switch (data[0] % 3) {
    case 0:
        decode_batch(data + 1, size - 1);
        break;
    case 1:
        decode_striping(data + 1, size - 1);
        break;
    case 2:
        decode_snap(data + 1, size - 1);
        break;
    }
    return 0;
}
