/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Creating an image, object by object in librbd's order, so that a crash
 * leaves at most an image whose name is taken and which `rbd rm' removes:
 *
 *     rbd_directory     name and id, both directions
 *     rbd_id.NAME       the id
 *     rbd_header.ID     size, order, features, prefix, data pool, striping
 *
 * On failure what was made is removed in the reverse order.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "cluster.h"
#include "codec.h"
#include "log.h"
#include "rados_sync.h"
#include "striper.h"

#define DEFAULT_ORDER 22
#define FEATURES_CREATE (PINRBD_FEATURE_LAYERING | \
                         PINRBD_FEATURE_STRIPINGV2 | PINRBD_FEATURE_DATA_POOL)
#define MAX_NAME 512

struct creation {
    const struct pinrbd_create_options *o;
    struct rados_pool *pool;
    int64_t data_pool_id;       /* -1: the same */
    uint64_t features;
    uint8_t order;
    gint64 deadline_us;
    char id[32];
    char header_oid[64];
    char id_oid[MAX_NAME + 16];
    uint8_t buf[MAX_NAME + 256];
    struct penc e;
};

/* As librbd: the client's number and 32 random bits, at most 14 digits. */
static void make_id(struct creation *c, struct pinrbd_cluster *cluster)
{
    char text[48];
    size_t len;

    snprintf(text, sizeof(text), "%" PRIx64 "%" PRIx32,
             cluster->conn->t->conn_instance(cluster->conn),
             g_random_int());
    len = strlen(text);
    g_strlcpy(c->id, text + (len > 14 ? len - 14 : 0), sizeof(c->id));
    snprintf(c->header_oid, sizeof(c->header_oid), "rbd_header.%s", c->id);
    snprintf(c->id_oid, sizeof(c->id_oid), "rbd_id.%s", c->o->image);
}

static void begin(struct creation *c)
{
    penc_init(&c->e, c->buf, sizeof(c->buf));
}

/* Create @oid, which must not exist, and call @method with what is encoded. */
static int create_with(struct creation *c, const char *oid,
                       const char *method)
{
    struct iovec iov = { c->buf, penc_len(&c->e) };
    struct rados_step steps[] = {
        { .kind = RADOS_CREATE, .exclusive = true },
        { .kind = RADOS_CALL, .cls = "rbd", .method = method, .iov = &iov,
          .n_iov = 1 },
    };
    struct rados_op op = {
        .oid = oid, .steps = steps, .n_steps = 2,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
    };

    return rados_op_sync(c->pool, &op, c->deadline_us);
}

static int call(struct creation *c, const char *oid, const char *method)
{
    return rados_call_sync(c->pool, oid, "rbd", method, c->buf,
                           penc_len(&c->e), c->deadline_us);
}

static void remove_object(struct creation *c, const char *oid)
{
    struct rados_step step = { .kind = RADOS_REMOVE };
    struct rados_op op = {
        .oid = oid, .steps = &step, .n_steps = 1, .flags = RADOS_OP_WRITE,
    };

    (void)rados_op_sync(c->pool, &op, c->deadline_us);
}

static int directory_add(struct creation *c)
{
    static const uint8_t ready;
    uint8_t entry[MAX_NAME + 64];
    struct penc e;
    struct iovec state = { (void *)&ready, sizeof(ready) };
    struct iovec iov;
    struct rados_step steps[2] = {
        { .kind = RADOS_CALL, .cls = "rbd", .method = "dir_state_assert",
          .iov = &state, .n_iov = 1 },
        { .kind = RADOS_CALL, .cls = "rbd", .method = "dir_add_image",
          .iov = &iov, .n_iov = 1 },
    };
    bool in_ns = c->o->ns && c->o->ns[0];
    struct rados_op op = {
        .oid = "rbd_directory", .steps = in_ns ? steps : steps + 1,
        .n_steps = in_ns ? 2 : 1, .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
    };

    penc_init(&e, entry, sizeof(entry));
    penc_string(&e, c->o->image);
    penc_string(&e, c->id);
    iov = (struct iovec) { entry, penc_len(&e) };
    return rados_op_sync(c->pool, &op, c->deadline_us);
}

static void directory_remove(struct creation *c)
{
    begin(c);
    penc_string(&c->e, c->o->image);
    penc_string(&c->e, c->id);
    (void)call(c, "rbd_directory", "dir_remove_image");
}

static int header_add(struct creation *c)
{
    char prefix[96];

    if (c->data_pool_id >= 0) {
        snprintf(prefix, sizeof(prefix), "rbd_data.%" PRId64 ".%s",
                 c->pool->id, c->id);
    } else {
        snprintf(prefix, sizeof(prefix), "rbd_data.%s", c->id);
    }
    begin(c);
    penc_u64(&c->e, c->o->image_size);
    penc_u8(&c->e, c->order);
    penc_u64(&c->e, c->features);
    penc_string(&c->e, prefix);
    penc_u64(&c->e, c->data_pool_id);
    return create_with(c, c->header_oid, "create");
}

static int striping_add(struct creation *c)
{
    if (!(c->features & PINRBD_FEATURE_STRIPINGV2)) {
        return 0;
    }
    begin(c);
    penc_u64(&c->e, c->o->stripe_unit);
    penc_u64(&c->e, c->o->stripe_count);
    return call(c, c->header_oid, "set_stripe_unit_count");
}

static int create_objects(struct creation *c)
{
    int r = directory_add(c);

    if (r < 0) {
        return r;
    }
    begin(c);
    penc_string(&c->e, c->id);
    r = create_with(c, c->id_oid, "set_id");
    if (r == 0) {
        r = header_add(c);
        if (r == 0) {
            r = striping_add(c);
            if (r < 0) {
                remove_object(c, c->header_oid);
            }
        }
        if (r < 0) {
            remove_object(c, c->id_oid);
        }
    }
    if (r < 0) {
        directory_remove(c);
    }
    return r;
}

static int check_options(struct creation *c, struct pinrbd_error *reterr)
{
    const struct pinrbd_create_options *o = c->o;

    if (!o->image[0] || strlen(o->image) >= MAX_NAME ||
        strpbrk(o->image, "/@")) {
        return perror_set(reterr, -EINVAL, "'%s' cannot be the name of an "
                          "image", o->image);
    }
    c->order = o->order ?: DEFAULT_ORDER;
    if (!layout_valid(c->order, o->stripe_unit, o->stripe_count)) {
        return perror_set(reterr, -EINVAL, "image '%s': object size 2^%u, "
                          "stripe unit %" PRIu64 " and stripe count %" PRIu64
                          " do not go together", o->image, c->order,
                          o->stripe_unit, o->stripe_count);
    }
    c->features = o->features ?: PINRBD_FEATURE_LAYERING;
    if (o->stripe_count > 1) {
        c->features |= PINRBD_FEATURE_STRIPINGV2;
    }
    if (o->data_pool) {
        c->features |= PINRBD_FEATURE_DATA_POOL;
    }
    if (c->features & ~FEATURES_CREATE) {
        return perror_set(reterr, -ENOTSUP, "image '%s': only features "
                          "layering, striping and data-pool can be created, "
                          "not 0x%" PRIx64, o->image,
                          (uint64_t)(c->features & ~FEATURES_CREATE));
    }
    if (o->image_size > INT64_MAX) {
        return perror_set(reterr, -EINVAL, "image '%s': size %" PRIu64
                          " is too large", o->image, o->image_size);
    }
    return 0;
}

int pinrbd_image_create(struct pinrbd_cluster *cluster,
                        const struct pinrbd_create_options *o,
                        struct pinrbd_error *reterr)
{
    const struct rados_transport *t = cluster->conn->t;
    g_autofree struct creation *c = g_new0(struct creation, 1);
    struct pinrbd_create_options all;
    struct rados_pool *data_pool;
    int r = args_take("pinrbd_create_options", o, &all, sizeof(all), reterr);

    if (r < 0) {
        return r;
    }
    o = c->o = &all;
    c->data_pool_id = -1;
    c->deadline_us = deadline_after(cluster_mount_timeout_ms(cluster));
    r = check_options(c, reterr);
    if (r < 0) {
        return r;
    }
    if (o->data_pool) {
        r = t->pool_open(cluster->conn, o->data_pool, "", &data_pool);
        if (r < 0) {
            return perror_set(reterr, r, "cannot open data pool '%s': %s",
                              o->data_pool, g_strerror(-r));
        }
        c->data_pool_id = data_pool->id;
        t->pool_close(data_pool);
    }
    r = t->pool_open(cluster->conn, o->pool, o->ns ?: "", &c->pool);
    if (r < 0) {
        return perror_set(reterr, r, "cannot open pool '%s': %s", o->pool,
                          g_strerror(-r));
    }
    make_id(c, cluster);
    r = create_objects(c);
    t->pool_close(c->pool);
    if (r == -ENOENT && o->ns && o->ns[0]) {
        return perror_set(reterr, r, "namespace '%s/%s' does not exist",
                          o->pool, o->ns);
    }
    if (r < 0) {
        return perror_set(reterr, r, "cannot create image '%s/%s': %s",
                          o->pool, o->image, g_strerror(-r));
    }
    return 0;
}
