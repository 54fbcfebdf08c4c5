/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The methods of class rbd on headers, id objects, directories and data
 * objects, and which class has which method.  An id object holds its id as
 * data, as on a real cluster; headers and directories are small models in
 * tables of their own.
 */
#include "fake_store.h"

#include <errno.h>
#include <string.h>

#define ENTRY_TEXT 64

static GHashTable *images;      /* key of the header -> struct fake_image */
static GHashTable *dirs;        /* key of the directory -> (name -> id) */
static GHashTable *overrides;   /* "OID method" -> GByteArray */
static uint64_t next_snap;
static unsigned next_id;

static void image_free(gpointer p)
{
    struct fake_image *img = p;

    g_array_unref(img->snaps);
    g_hash_table_unref(img->metadata);
    g_free(img);
}

void cls_init(void)
{
    images = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                   image_free);
    dirs = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                 (GDestroyNotify)g_hash_table_unref);
    overrides = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                      (GDestroyNotify)g_byte_array_unref);
    next_snap = 3;
    next_id = 0;
}

void cls_clear(void)
{
    g_clear_pointer(&images, g_hash_table_unref);
    g_clear_pointer(&dirs, g_hash_table_unref);
    g_clear_pointer(&overrides, g_hash_table_unref);
}

/* ---- header -------------------------------------------------------------- */

static struct fake_image *image_of(struct fake_call *c)
{
    return *c->data ? g_hash_table_lookup(images, c->key) : NULL;
}

static struct fake_snap *snap_of(struct fake_image *img, uint64_t id)
{
    for (guint i = 0; i < img->snaps->len; i++) {
        struct fake_snap *s = &g_array_index(img->snaps, struct fake_snap, i);

        if (s->id == id) {
            return s;
        }
    }
    return NULL;
}

/* The snapshot an input names; *@ret NULL for the head. */
static int input_snap(struct fake_call *c, struct fake_image *img,
                      struct fake_snap **ret)
{
    uint64_t id = get_le(&c->in, 8);

    *ret = NULL;
    if (c->in.bad) {
        return -EINVAL;
    }
    if (id != RADOS_NOSNAP) {
        *ret = snap_of(img, id);
        if (!*ret) {
            return -ENOENT;
        }
    }
    return 0;
}

static int get_size(struct fake_call *c, struct fake_image *img)
{
    struct fake_snap *s;
    int r = input_snap(c, img, &s);

    put_le(c->out, img->order, 1);
    put_le(c->out, s ? s->size : img->size, 8);
    return r;
}

static int get_object_prefix(struct fake_call *c, struct fake_image *img)
{
    put_string(c->out, img->prefix);
    return 0;
}

static int get_features(struct fake_call *c, struct fake_image *img)
{
    uint64_t read_mask = PINRBD_FEATURE_LAYERING | PINRBD_FEATURE_STRIPINGV2 |
                         PINRBD_FEATURE_DATA_POOL |
                         PINRBD_FEATURE_DIRTY_CACHE;
    bool read_only;

    get_le(&c->in, 8);
    read_only = get_le(&c->in, 1);
    put_le(c->out, img->features, 8);
    put_le(c->out, img->incompatible ? img->incompatible :
                   img->features & (read_only ? read_mask : 0xfff), 8);
    return 0;
}

static int get_flags(struct fake_call *c, struct fake_image *img)
{
    struct fake_snap *s;
    int r = input_snap(c, img, &s);

    put_le(c->out, s ? s->flags : img->flags, 8);
    return r;
}

static int get_snapcontext(struct fake_call *c, struct fake_image *img)
{
    put_le(c->out, img->snap_seq, 8);
    put_le(c->out, img->snaps->len, 4);
    for (guint i = img->snaps->len; i; i--) {
        put_le(c->out,
               g_array_index(img->snaps, struct fake_snap, i - 1).id, 8);
    }
    return 0;
}

static int get_data_pool(struct fake_call *c, struct fake_image *img)
{
    put_le(c->out, img->data_pool, 8);
    return 0;
}

static int get_stripe_unit_count(struct fake_call *c, struct fake_image *img)
{
    if (!(img->features & PINRBD_FEATURE_STRIPINGV2)) {
        return -ENOEXEC;
    }
    put_le(c->out, img->stripe_unit, 8);
    put_le(c->out, img->stripe_count, 8);
    return 0;
}

static int op_features_get(struct fake_call *c, struct fake_image *img)
{
    put_le(c->out, img->op_features, 8);
    return 0;
}

static int parent_get(struct fake_call *c, struct fake_image *img)
{
    GByteArray *body = g_byte_array_new();

    put_le(body, img->parent_pool, 8);
    put_string(body, img->parent_ns);
    put_string(body, img->parent_id);
    put_le(body, img->parent_snap, 8);
    put_block(c->out, body);
    return 0;
}

static int parent_overlap_get(struct fake_call *c, struct fake_image *img)
{
    struct fake_snap *s;
    int r = input_snap(c, img, &s);
    bool has = s ? s->has_overlap : img->has_overlap;

    put_le(c->out, has, 1);
    if (has) {
        put_le(c->out, s ? s->overlap : img->overlap, 8);
    }
    return r;
}

static int snapshot_get(struct fake_call *c, struct fake_image *img)
{
    GByteArray *body;
    GByteArray *ns;
    struct fake_snap *s;
    int r = input_snap(c, img, &s);

    if (r < 0 || !s) {
        return r ? r : -EINVAL;
    }
    ns = g_byte_array_new();
    put_le(ns, s->type, 4);
    body = g_byte_array_new();
    put_le(body, s->id, 8);
    put_block(body, ns);
    put_string(body, s->name);
    put_le(body, s->size, 8);
    put_le(body, s->time_s, 4);
    put_le(body, 0, 4);
    put_le(body, 0, 4);
    put_block(c->out, body);
    return 0;
}

static int get_protection_status(struct fake_call *c, struct fake_image *img)
{
    struct fake_snap *s;
    int r = input_snap(c, img, &s);

    if (r == 0 && !s) {
        return -EINVAL;
    }
    put_le(c->out, s ? s->protection : 0, 1);
    return r;
}

static int set_protection_status(struct fake_call *c, struct fake_image *img)
{
    struct fake_snap *s;
    int r = input_snap(c, img, &s);
    uint8_t status = get_le(&c->in, 1);

    if (c->in.bad || status > 2 || (r == 0 && !s)) {
        return -EINVAL;
    }
    if (!(img->features & PINRBD_FEATURE_LAYERING)) {
        return -ENOEXEC;
    }
    if (r == 0) {
        s->protection = status;
    }
    return r;
}

static int set_flags(struct fake_call *c, struct fake_image *img)
{
    uint64_t flags = get_le(&c->in, 8);
    uint64_t mask = get_le(&c->in, 8);
    struct fake_snap *s = NULL;
    int r = c->in.pos == c->in.len ? 0 : input_snap(c, img, &s);
    uint64_t *have = s ? &s->flags : &img->flags;

    if (c->in.bad) {
        return -EINVAL;
    }
    if (r == 0) {
        *have = (*have & ~mask) | (flags & mask);
    }
    return r;
}

/* Type and all; only what users make is understood. */
static uint32_t get_snap_namespace(struct fake_input *in)
{
    struct fake_input body = get_block(in);
    uint32_t type = get_le(&body, 4);

    in->bad = in->bad || body.bad;
    return type;
}

static void snap_append(struct fake_image *img, uint64_t id, const char *name)
{
    struct fake_snap s = {
        .id = id, .size = img->size, .flags = img->flags,
        .has_overlap = img->has_overlap, .overlap = img->overlap,
        .time_s = 1700000000,
    };

    g_strlcpy(s.name, name, sizeof(s.name));
    g_array_append_val(img->snaps, s);
    img->snap_seq = id;
}

static int snapshot_add(struct fake_call *c, struct fake_image *img)
{
    char name[sizeof(((struct fake_snap *)0)->name)];
    uint64_t id;
    uint32_t type = 0;

    get_string(&c->in, name, sizeof(name));
    id = get_le(&c->in, 8);
    if (c->in.pos < c->in.len) {
        type = get_snap_namespace(&c->in);
    }
    if (c->in.bad || type) {
        return -EINVAL;
    }
    if (id < img->snap_seq) {
        return -ESTALE;
    }
    for (guint i = 0; i < img->snaps->len; i++) {
        struct fake_snap *s = &g_array_index(img->snaps, struct fake_snap, i);

        if (s->id == id || (!s->type && g_str_equal(s->name, name))) {
            return -EEXIST;
        }
    }
    snap_append(img, id, name);
    return 0;
}

static int snapshot_remove(struct fake_call *c, struct fake_image *img)
{
    struct fake_snap *s;
    int r = input_snap(c, img, &s);

    if (r < 0 || !s) {
        return r ? r : -ENOENT;
    }
    if (s->protection) {
        return -EBUSY;
    }
    g_array_remove_index(img->snaps, s - (struct fake_snap *)
                                         (void *)img->snaps->data);
    return 0;
}

static int metadata_get(struct fake_call *c, struct fake_image *img)
{
    char key[ENTRY_TEXT];
    const char *value;

    get_string(&c->in, key, sizeof(key));
    if (c->in.bad) {
        return -EINVAL;
    }
    value = g_hash_table_lookup(img->metadata, key);
    if (!value) {
        return -ENOENT;
    }
    put_string(c->out, value);
    return 0;
}

static int set_size(struct fake_call *c, struct fake_image *img)
{
    uint64_t size = get_le(&c->in, 8);

    if (c->in.bad) {
        return -EINVAL;
    }
    img->size = size;
    img->overlap = MIN(img->overlap, size);
    return 0;
}

static int set_stripe_unit_count(struct fake_call *c, struct fake_image *img)
{
    uint64_t unit = get_le(&c->in, 8);
    uint64_t count = get_le(&c->in, 8);

    if (c->in.bad || !unit || (1ULL << img->order) % unit) {
        return -EINVAL;
    }
    if (!(img->features & PINRBD_FEATURE_STRIPINGV2)) {
        return -ENOEXEC;
    }
    img->stripe_unit = unit;
    img->stripe_count = count;
    return 0;
}

static struct fake_image *image_new(void)
{
    struct fake_image *img = g_new0(struct fake_image, 1);

    img->data_pool = -1;
    img->parent_pool = -1;
    img->parent_snap = RADOS_NOSNAP;
    img->snaps = g_array_new(FALSE, TRUE, sizeof(struct fake_snap));
    img->metadata = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                          g_free);
    return img;
}

static void metadata_copy(gpointer key, gpointer value, gpointer to)
{
    g_hash_table_insert(to, g_strdup(key), g_strdup(value));
}

static void image_copy(struct fake_image *to, const struct fake_image *from)
{
    *to = *from;
    to->snaps = g_array_copy(from->snaps);
    to->metadata = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                         g_free);
    g_hash_table_foreach(from->metadata, metadata_copy, to->metadata);
}

struct fake_image *cls_save(const char *key)
{
    const struct fake_image *img = g_hash_table_lookup(images, key);
    struct fake_image *saved = NULL;

    if (img) {
        saved = g_new(struct fake_image, 1);
        image_copy(saved, img);
    }
    return saved;
}

/* The test holds a pointer to the image: it is put back in place. */
void cls_saved(const char *key, struct fake_image *saved, bool restore)
{
    struct fake_image *img = g_hash_table_lookup(images, key);

    if (restore && !saved) {
        g_hash_table_remove(images, key);
    } else if (restore) {
        g_array_unref(img->snaps);
        g_hash_table_unref(img->metadata);
        image_copy(img, saved);
    }
    if (saved) {
        image_free(saved);
    }
}

static int create(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    struct fake_image *img;

    if (g_hash_table_contains(images, c->key)) {
        return -EEXIST;
    }
    img = image_new();
    img->size = get_le(&c->in, 8);
    img->order = get_le(&c->in, 1);
    img->features = get_le(&c->in, 8);
    get_string(&c->in, img->prefix, sizeof(img->prefix));
    img->data_pool = get_le(&c->in, 8);
    if (img->features & ~0xfffULL) {
        image_free(img);
        return -ENOSYS;
    }
    if (c->in.bad || img->features & 0x300 || !*c->data ||
        !(img->features & PINRBD_FEATURE_DATA_POOL) !=
        (img->data_pool == -1)) {
        image_free(img);
        return -EINVAL;
    }
    img->pool = c->pool;
    g_strlcpy(img->ns, c->ns, sizeof(img->ns));
    g_strlcpy(img->header, c->oid, sizeof(img->header));
    g_strlcpy(img->id, c->oid + strlen("rbd_header."), sizeof(img->id));
    g_hash_table_insert(images, g_strdup(c->key), img);
    return 0;
}

/* ---- data objects -------------------------------------------------------- */

/* Both do nothing when there is an object, and are glad. */
static int copyup(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    if (*c->data) {
        c->modified = false;
        return 0;
    }
    *c->data = g_byte_array_new();
    g_byte_array_append(*c->data, c->in.p, c->in.len);
    return 0;
}

static int sparse_copyup(struct fake_call *c,
                         G_GNUC_UNUSED struct fake_image *none)
{
    struct fake_input extents = { c->in.p, c->in.len, 0, false };
    uint32_t n = get_le(&extents, 4);
    struct fake_input in = extents;
    const uint8_t *bytes;
    GByteArray *data;
    size_t left;

    (void)get_bytes(&in, 16 * (size_t)n);
    left = get_le(&in, 4);
    bytes = get_bytes(&in, left);
    if (!bytes) {
        return -EINVAL;
    }
    if (*c->data) {
        c->modified = false;
        return 0;
    }
    data = g_byte_array_new();
    while (n--) {
        uint64_t off = get_le(&extents, 8);
        uint64_t len = get_le(&extents, 8);
        guint old = data->len;

        if (len > left) {
            g_byte_array_unref(data);
            return -EINVAL;
        }
        if (off + len > old) {
            g_byte_array_set_size(data, off + len);
            memset(data->data + old, 0, data->len - old);
        }
        memcpy(data->data + off, bytes, len);
        bytes += len;
        left -= len;
    }
    *c->data = data;
    return 0;
}

/* ---- id object and directory --------------------------------------------- */

static int get_id(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    if (!*c->data) {
        return -ENOENT;
    }
    put_le(c->out, (*c->data)->len, 4);
    g_byte_array_append(c->out, (*c->data)->data, (*c->data)->len);
    return 0;
}

static int set_id(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    char id[ENTRY_TEXT];

    get_string(&c->in, id, sizeof(id));
    if (c->in.bad || !id[0]) {
        return -EINVAL;
    }
    if (!*c->data) {
        return -ENOENT;
    }
    if ((*c->data)->len) {
        return -EEXIST;
    }
    g_byte_array_append(*c->data, (const uint8_t *)id, strlen(id));
    return 0;
}

static GHashTable *dir_of(const char *key)
{
    GHashTable *dir = g_hash_table_lookup(dirs, key);

    if (!dir) {
        dir = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
        g_hash_table_insert(dirs, g_strdup(key), dir);
    }
    return dir;
}

static const char *dir_name_of(GHashTable *dir, const char *id)
{
    GHashTableIter it;
    gpointer name;
    gpointer value;

    g_hash_table_iter_init(&it, dir);
    while (g_hash_table_iter_next(&it, &name, &value)) {
        if (g_str_equal(value, id)) {
            return name;
        }
    }
    return NULL;
}

static int dir_add_image(struct fake_call *c,
                         G_GNUC_UNUSED struct fake_image *none)
{
    GHashTable *dir = dir_of(c->key);
    char name[ENTRY_TEXT];
    char id[ENTRY_TEXT];

    get_string(&c->in, name, sizeof(name));
    get_string(&c->in, id, sizeof(id));
    if (c->in.bad) {
        return -EINVAL;
    }
    if (g_hash_table_contains(dir, name)) {
        return -EEXIST;
    }
    if (dir_name_of(dir, id)) {
        return -EBADF;
    }
    g_hash_table_insert(dir, g_strdup(name), g_strdup(id));
    if (!*c->data) {
        *c->data = g_byte_array_new();
    }
    return 0;
}

static int dir_remove_image(struct fake_call *c,
                            G_GNUC_UNUSED struct fake_image *none)
{
    GHashTable *dir = dir_of(c->key);
    char name[ENTRY_TEXT];
    char id[ENTRY_TEXT];
    const char *have;

    get_string(&c->in, name, sizeof(name));
    get_string(&c->in, id, sizeof(id));
    have = g_hash_table_lookup(dir, name);
    if (c->in.bad) {
        return -EINVAL;
    }
    if (!have) {
        return -ENOENT;
    }
    if (!g_str_equal(have, id)) {
        return -ESTALE;
    }
    g_hash_table_remove(dir, name);
    return 0;
}

static int dir_get_id(struct fake_call *c,
                      G_GNUC_UNUSED struct fake_image *none)
{
    char name[ENTRY_TEXT];
    const char *id;

    get_string(&c->in, name, sizeof(name));
    id = g_hash_table_lookup(dir_of(c->key), name);
    if (!id) {
        return -ENOENT;
    }
    put_string(c->out, id);
    return 0;
}

static int dir_get_name(struct fake_call *c,
                        G_GNUC_UNUSED struct fake_image *none)
{
    char id[ENTRY_TEXT];
    const char *name;

    get_string(&c->in, id, sizeof(id));
    name = dir_name_of(dir_of(c->key), id);
    if (!name) {
        return -ENOENT;
    }
    put_string(c->out, name);
    return 0;
}

static int dir_state_assert(struct fake_call *c,
                            G_GNUC_UNUSED struct fake_image *none)
{
    return *c->data ? 0 : -ENOENT;
}

/* ---- dispatch ------------------------------------------------------------ */

static const struct fake_method rbd_methods[] = {
    { "get_size", false, true, get_size },
    { "get_object_prefix", false, true, get_object_prefix },
    { "get_features", false, true, get_features },
    { "get_flags", false, true, get_flags },
    { "get_snapcontext", false, true, get_snapcontext },
    { "get_data_pool", false, true, get_data_pool },
    { "get_stripe_unit_count", false, true, get_stripe_unit_count },
    { "op_features_get", false, true, op_features_get },
    { "parent_get", false, true, parent_get },
    { "parent_overlap_get", false, true, parent_overlap_get },
    { "snapshot_get", false, true, snapshot_get },
    { "get_protection_status", false, true, get_protection_status },
    { "metadata_get", false, true, metadata_get },
    { "set_flags", true, true, set_flags },
    { "set_protection_status", true, true, set_protection_status },
    { "set_size", true, true, set_size },
    { "set_stripe_unit_count", true, true, set_stripe_unit_count },
    { "snapshot_add", true, true, snapshot_add },
    { "snapshot_remove", true, true, snapshot_remove },
    { "create", true, false, create },
    { "copyup", true, false, copyup },
    { "sparse_copyup", true, false, sparse_copyup },
    { "get_id", false, false, get_id },
    { "set_id", true, false, set_id },
    { "dir_add_image", true, false, dir_add_image },
    { "dir_remove_image", true, false, dir_remove_image },
    { "dir_get_id", false, false, dir_get_id },
    { "dir_get_name", false, false, dir_get_name },
    { "dir_state_assert", false, false, dir_state_assert },
    { 0 },
};

static const struct fake_method *find_method(const struct fake_method *table,
                                             const char *name)
{
    while (table->name && !g_str_equal(table->name, name)) {
        table++;
    }
    return table->name ? table : NULL;
}

int cls_call(const char *cls, struct fake_call *c)
{
    g_autofree char *what = g_strdup_printf("%s %s", c->oid, c->method);
    const GByteArray *bytes = g_hash_table_lookup(overrides, what);
    const struct fake_method *m;
    struct fake_image *img;
    bool modified = c->modified;
    int r;

    if (bytes) {
        put_bytes(c->out, bytes);
        return 0;
    }
    if (g_str_equal(cls, "lock")) {
        m = find_method(cls_lock_methods, c->method);
    } else if (g_str_equal(cls, "rbd")) {
        m = find_method(rbd_methods, c->method);
        m = m ? m : find_method(cls_map_methods, c->method);
    } else {
        return -EPERM;
    }
    if (!m) {
        return -EOPNOTSUPP;
    }
    if (m->write && !c->write) {
        return -EIO;
    }
    img = image_of(c);
    if (m->on_image && !img) {
        return -ENOENT;
    }
    c->modified = m->write;
    r = m->fn(c, img);
    c->modified |= modified;
    return r;
}

void fake_override(const char *oid, const char *method, const void *data,
                   size_t len)
{
    char *what = g_strdup_printf("%s %s", oid, method);

    if (data) {
        g_hash_table_insert(overrides, what,
                            g_byte_array_append(g_byte_array_new(), data,
                                                len));
    } else {
        g_hash_table_remove(overrides, what);
        g_free(what);
    }
}

/* ---- the test's hands ---------------------------------------------------- */

struct fake_image *fake_image_add(const char *pool, const char *ns,
                                  const char *name, uint64_t size,
                                  uint8_t order)
{
    struct fake_image *img = image_new();
    g_autofree char *id_oid = g_strdup_printf("rbd_id.%s", name);
    g_autofree char *dir_key = NULL;

    img->pool = g_str_equal(pool, "data") ? FAKE_POOL_DATA : FAKE_POOL_RBD;
    g_strlcpy(img->ns, ns, sizeof(img->ns));
    g_strlcpy(img->name, name, sizeof(img->name));
    g_snprintf(img->id, sizeof(img->id), "img%u", ++next_id);
    g_snprintf(img->header, sizeof(img->header), "rbd_header.%s", img->id);
    g_snprintf(img->prefix, sizeof(img->prefix), "rbd_data.%s", img->id);
    img->size = size;
    img->order = order;
    img->features = PINRBD_FEATURE_LAYERING;

    fake_object_put(img->pool, ns, id_oid, img->id, strlen(img->id));
    fake_object_put(img->pool, ns, img->header, "", 0);
    fake_object_put(img->pool, ns, "rbd_directory", "", 0);
    dir_key = store_key(img->pool, ns, "rbd_directory");
    g_hash_table_insert(dir_of(dir_key), g_strdup(name), g_strdup(img->id));
    g_hash_table_insert(images, store_key(img->pool, ns, img->header), img);
    return img;
}

struct fake_image *fake_image_find(const char *header)
{
    GHashTableIter it;
    gpointer img;

    g_hash_table_iter_init(&it, images);
    while (g_hash_table_iter_next(&it, NULL, &img)) {
        if (g_str_equal(((struct fake_image *)img)->header, header)) {
            return img;
        }
    }
    return NULL;
}

void fake_image_remove(struct fake_image *img)
{
    g_autofree char *key = store_key(img->pool, img->ns, img->header);
    g_autofree char *dir_key = store_key(img->pool, img->ns, "rbd_directory");
    g_autofree char *id_oid = g_strdup_printf("rbd_id.%s", img->name);

    g_mutex_lock(&fake_mutex);
    map_image_removed(img);
    g_mutex_unlock(&fake_mutex);
    fake_object_remove(img->pool, img->ns, img->header);
    fake_object_remove(img->pool, img->ns, id_oid);
    g_hash_table_remove(dir_of(dir_key), img->name);
    g_hash_table_remove(images, key);
}

uint64_t cls_next_snap(void)
{
    return ++next_snap;
}

uint64_t cls_snap_add(struct fake_image *img, const char *name)
{
    uint64_t id = cls_next_snap();

    snap_append(img, id, name);
    map_snap_added(img, id);
    return id;
}

struct fake_image *cls_image_of_data(int64_t pool, const char *ns,
                                     const char *oid, uint64_t *ret_object)
{
    const char *dot = strrchr(oid, '.');
    GHashTableIter it;
    gpointer value;

    g_hash_table_iter_init(&it, images);
    while (dot && g_hash_table_iter_next(&it, NULL, &value)) {
        struct fake_image *img = value;

        if (pool == (img->data_pool < 0 ? img->pool : img->data_pool) &&
            g_str_equal(ns, img->ns) &&
            strlen(img->prefix) == (size_t)(dot - oid) &&
            g_str_has_prefix(oid, img->prefix)) {
            *ret_object = g_ascii_strtoull(dot + 1, NULL, 16);
            return img;
        }
    }
    return NULL;
}

void cls_snap_remove(struct fake_image *img, uint64_t id)
{
    for (guint i = 0; i < img->snaps->len; i++) {
        if (g_array_index(img->snaps, struct fake_snap, i).id == id) {
            map_snap_removed(img, id);
            g_array_remove_index(img->snaps, i);
            return;
        }
    }
    g_error("fake: no snapshot %" G_GUINT64_FORMAT, (guint64)id);
}

void fake_image_metadata(struct fake_image *img, const char *key,
                         const char *value)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    g_hash_table_insert(img->metadata, g_strdup(key), g_strdup(value));
}

static void touch_locked(struct fake_image *img)
{
    g_autofree char *key = store_key(img->pool, img->ns, img->header);

    store_bump(store_get(key));
}

void fake_image_touch(struct fake_image *img)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    touch_locked(img);
}

void fake_image_set_size(struct fake_image *img, uint64_t size)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    img->size = size;
    img->overlap = MIN(img->overlap, size);
    map_resized(img);
    touch_locked(img);
}

uint64_t fake_image_snap_add(struct fake_image *img, const char *name)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    touch_locked(img);
    return cls_snap_add(img, name);
}

void fake_image_snap_remove(struct fake_image *img, uint64_t id)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    touch_locked(img);
    cls_snap_remove(img, id);
}
