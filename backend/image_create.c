/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Creating an image, object by object in librbd's order, so that a crash
 * leaves at most an image whose name is taken and which `rbd rm' removes:
 *
 *     rbd_directory     name and id, both directions
 *     rbd_id.NAME       the id
 *     rbd_header.ID     size, order, features, prefix, data pool, striping
 *     rbd_object_map.ID with object-map: nothing exists
 *
 * On failure what was made is removed in the reverse order.
 *
 * What the caller does not say comes from where librbd looks: the pool's
 * configuration (`rbd config pool set'), then the client's.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "cluster.h"
#include "codec.h"
#include "image.h"
#include "log.h"
#include "object_map.h"
#include "rados_sync.h"
#include "striper.h"

#define DEFAULT_ORDER 22
#define FEATURES_DEFAULT 0x3d   /* librbd's: all but striping up to bit 5 */
#define FEATURES_CREATE (FEATURES_DEFAULT | PINRBD_FEATURE_STRIPINGV2 | \
                         PINRBD_FEATURE_DATA_POOL)
#define MAX_NAME 512
#define MAX_VALUE 256           /* of a configuration option */
#define MAX_DEFAULTS 64         /* options rbd_default_*; there are about ten */
#define CONF_PREFIX "conf_"     /* of an option among a pool's metadata */

struct creation {
    const struct pinrbd_create_options *o;
    struct pinrbd_cluster *cluster;
    struct rados_pool *pool;
    GByteArray *pool_conf;      /* a map of the pool's options, or empty */
    int64_t data_pool_id;       /* -1: the same */
    char data_pool[MAX_VALUE];  /* empty: the same */
    uint64_t features;
    uint64_t stripe_unit, stripe_count;
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
    penc_u64(&c->e, c->stripe_unit);
    penc_u64(&c->e, c->stripe_count);
    return call(c, c->header_oid, "set_stripe_unit_count");
}

static int map_add(struct creation *c)
{
    char oid[OBJECT_MAP_OID_MAX];
    struct layout l;
    int r;

    if (!(c->features & PINRBD_FEATURE_OBJECT_MAP)) {
        return 0;
    }
    layout_init(&l, c->order, c->stripe_unit, c->stripe_count);
    object_map_oid(oid, c->id, RADOS_NOSNAP);
    begin(c);
    penc_u64(&c->e, striper_objects(&l, c->o->image_size));
    penc_u8(&c->e, OBJECT_NONEXISTENT);
    r = call(c, oid, "object_map_resize");
    if (r < 0) {
        remove_object(c, oid);
    }
    return r;
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
            if (r == 0) {
                r = map_add(c);
            }
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

/* ---- defaults ----------------------------------------------------------- */

/*
 * What `rbd config pool set' has put into the pool, in its default namespace.
 * Listed, as librbd does it: a client that may only use another namespace is
 * allowed to list these, and not to ask for one.
 */
static int load_pool_conf(struct creation *c)
{
    const struct rados_transport *t = c->cluster->conn->t;
    struct rados_pool *pool;
    int r = t->pool_open(c->cluster->conn, c->o->pool, "", &pool);

    if (r < 0) {
        return r;
    }
    begin(c);
    penc_string(&c->e, CONF_PREFIX "rbd_default_");
    penc_u64(&c->e, MAX_DEFAULTS);
    r = rados_query_sync(pool, "rbd_info", "rbd", "metadata_list", c->buf,
                         penc_len(&c->e), c->deadline_us, c->pool_conf);
    t->pool_close(pool);
    return r == -ENOENT || r == -EPERM || r == -EACCES ? 0 : r;
}

/* 1: *@buf has it; 0: the pool does not say; -EINVAL: not a value. */
static int pool_option(const struct creation *c, const char *key, char *buf,
                       size_t size)
{
    g_autofree char *wanted = g_strconcat(CONF_PREFIX, key, NULL);
    struct pdec d;

    pdec_init(&d, c->pool_conf->data, c->pool_conf->len);
    if (!pdec_left(&d)) {
        return 0;
    }
    for (uint32_t n = pdec_count(&d, 8); n; n--) {
        size_t key_len, len;
        const char *name = pdec_blob(&d, &key_len);
        const char *value = pdec_blob(&d, &len);

        if (pdec_ok(&d) && key_len == strlen(wanted) &&
            !memcmp(name, wanted, key_len)) {
            g_strlcpy(buf, value, MIN(len + 1, size));
            return len < size && !memchr(value, 0, len) ? 1 : -EINVAL;
        }
    }
    return pdec_ok(&d) ? 0 : -EBADMSG;
}

/* The value of a Ceph option for images of this pool, empty: there is none. */
static int option(struct creation *c, const char *key, char buf[MAX_VALUE],
                  struct pinrbd_error *reterr)
{
    struct rados_conn *conn = c->cluster->conn;
    int r = pool_option(c, key, buf, MAX_VALUE);

    if (r < 0) {
        return perror_set(reterr, r, "image '%s': bad configuration of pool "
                          "'%s', %s", c->o->image, c->o->pool, key);
    }
    if (r == 0 && conn->t->conn_option(conn, key, buf, MAX_VALUE) < 0) {
        buf[0] = '\0';
    }
    return 0;
}

static int bad_value(struct creation *c, const char *key, const char *value,
                     struct pinrbd_error *reterr)
{
    return perror_set(reterr, -EINVAL, "image '%s': %s cannot be '%s'",
                      c->o->image, key, value);
}

/* A number, or names with commas; false: neither. */
static bool parse_features(const char *text, uint64_t *ret)
{
    g_auto(GStrv) names = NULL;
    uint64_t features = 0;

    if (g_ascii_string_to_unsigned(text, 10, 0, UINT64_MAX, ret, NULL)) {
        return true;
    }
    names = g_strsplit_set(text, ", ", -1);
    for (char **name = names; *name; name++) {
        unsigned bit = 0;

        while (pinrbd_feature_name(bit) &&
               strcmp(pinrbd_feature_name(bit), *name)) {
            bit++;
        }
        if (**name && !strcmp(*name, "striping")) {
            bit = 1;
        }
        if (**name && !pinrbd_feature_name(bit)) {
            return false;
        }
        features |= **name ? UINT64_C(1) << bit : 0;
    }
    *ret = features;
    return true;
}

static int default_features(struct creation *c, struct pinrbd_error *reterr)
{
    const char *key = "rbd_default_features";
    char text[MAX_VALUE] = "";
    int r = option(c, key, text, reterr);

    if (r < 0) {
        return r;
    }
    c->features = FEATURES_DEFAULT;
    if (text[0] && !parse_features(text, &c->features)) {
        return bad_value(c, key, text, reterr);
    }
    /* these follow from the layout; the default may name them */
    c->features &= ~(PINRBD_FEATURE_STRIPINGV2 | PINRBD_FEATURE_DATA_POOL |
                     PINRBD_FEATURE_OPERATIONS);
    return 0;
}

/* A number, perhaps with a letter that multiplies it; 0: there is none. */
static int default_number(struct creation *c, const char *key, uint64_t *ret,
                          struct pinrbd_error *reterr)
{
    static const char units[] = "KMGTPE";
    char text[MAX_VALUE];
    char *end;
    const char *unit;
    int r = option(c, key, text, reterr);

    *ret = 0;
    if (r < 0 || !text[0]) {
        return r;
    }
    if (g_ascii_isdigit(text[0])) {
        *ret = g_ascii_strtoull(text, &end, 10);
        unit = *end ? strchr(units, *end) : NULL;
        if (unit) {
            unsigned shift = 10 * (unit - units + 1);

            *ret = *ret > UINT64_MAX >> shift ? UINT64_MAX : *ret << shift;
            end += end[1] == 'i' ? 2 : 1;
        }
        if (!*end) {
            return 0;
        }
    }
    return bad_value(c, key, text, reterr);
}

static int default_layout(struct creation *c, struct pinrbd_error *reterr)
{
    const struct pinrbd_create_options *o = c->o;
    uint64_t order = o->order;
    int r = 0;

    if (!order) {
        r = default_number(c, "rbd_default_order", &order, reterr);
    }
    c->order = order ? MIN(order, UINT8_MAX) : DEFAULT_ORDER;
    c->stripe_unit = o->stripe_unit;
    c->stripe_count = o->stripe_count;
    if (r == 0 && !c->stripe_unit && !c->stripe_count) {
        r = default_number(c, "rbd_default_stripe_unit", &c->stripe_unit,
                           reterr);
        if (r == 0) {
            r = default_number(c, "rbd_default_stripe_count",
                               &c->stripe_count, reterr);
        }
        if (!c->stripe_unit || !c->stripe_count) {
            c->stripe_unit = c->stripe_count = 0;
        }
    }
    return r;
}

static int complete_options(struct creation *c, struct pinrbd_error *reterr)
{
    const struct pinrbd_create_options *o = c->o;
    int r = load_pool_conf(c);

    if (r < 0) {
        return perror_set(reterr, r, "cannot read the configuration of pool "
                          "'%s': %s", o->pool, g_strerror(-r));
    }
    c->features = o->features;
    if (!c->features) {
        r = default_features(c, reterr);
    }
    if (r == 0) {
        r = default_layout(c, reterr);
    }
    if (r == 0 && o->data_pool) {
        g_strlcpy(c->data_pool, o->data_pool, sizeof(c->data_pool));
    } else if (r == 0) {
        r = option(c, "rbd_default_data_pool", c->data_pool, reterr);
    }
    if (!strcmp(c->data_pool, o->pool)) {
        c->data_pool[0] = '\0';
    }
    return r;
}

static int check_options(struct creation *c, struct pinrbd_error *reterr)
{
    const struct pinrbd_create_options *o = c->o;
    uint64_t no;

    if (!layout_valid(c->order, c->stripe_unit, c->stripe_count)) {
        return perror_set(reterr, -EINVAL, "image '%s': object size 2^%u, "
                          "stripe unit %" PRIu64 " and stripe count %" PRIu64
                          " do not go together", o->image, c->order,
                          c->stripe_unit, c->stripe_count);
    }
    if (c->stripe_count > 1) {
        c->features |= PINRBD_FEATURE_STRIPINGV2;
    }
    if (c->data_pool[0]) {
        c->features |= PINRBD_FEATURE_DATA_POOL;
    }
    no = c->features & ~(uint64_t)FEATURES_CREATE;
    if (no) {
        char names[128];

        image_list_features(no, names, sizeof(names));
        return perror_set(reterr, -ENOTSUP, "image '%s': cannot be created "
                          "with features that are not supported (%s)",
                          o->image, names);
    }
    if ((c->features & PINRBD_FEATURE_OBJECT_MAP &&
         !(c->features & PINRBD_FEATURE_EXCLUSIVE_LOCK)) ||
        (c->features & PINRBD_FEATURE_FAST_DIFF &&
         !(c->features & PINRBD_FEATURE_OBJECT_MAP))) {
        return perror_set(reterr, -EINVAL, "image '%s': object-map needs "
                          "exclusive-lock, and fast-diff needs object-map",
                          o->image);
    }
    return 0;
}

static int check_names(const struct pinrbd_create_options *o,
                       struct pinrbd_error *reterr)
{
    if (!o->image[0] || strlen(o->image) >= MAX_NAME ||
        strpbrk(o->image, "/@")) {
        return perror_set(reterr, -EINVAL, "'%s' cannot be the name of an "
                          "image", o->image);
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
    g_autoptr(GByteArray) pool_conf = g_byte_array_new();
    struct pinrbd_create_options all;
    struct rados_pool *data_pool;
    int r = args_take("pinrbd_create_options", o, &all, sizeof(all), reterr);

    if (r < 0) {
        return r;
    }
    o = c->o = &all;
    c->cluster = cluster;
    c->pool_conf = pool_conf;
    c->data_pool_id = -1;
    c->deadline_us = deadline_after(cluster_mount_timeout_ms(cluster));
    r = check_names(o, reterr);
    if (r < 0) {
        return r;
    }
    r = t->pool_open(cluster->conn, o->pool, o->ns ?: "", &c->pool);
    if (r < 0) {
        return perror_set(reterr, r, "cannot open pool '%s': %s", o->pool,
                          g_strerror(-r));
    }
    r = complete_options(c, reterr);
    if (r == 0) {
        r = check_options(c, reterr);
    }
    if (r == 0 && c->data_pool[0]) {
        r = t->pool_open(cluster->conn, c->data_pool, "", &data_pool);
        if (r < 0) {
            perror_set(reterr, r, "cannot open data pool '%s': %s",
                       c->data_pool, g_strerror(-r));
        } else {
            c->data_pool_id = data_pool->id;
            t->pool_close(data_pool);
        }
    }
    if (r < 0) {
        t->pool_close(c->pool);
        return r;
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
