/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Object maps: the methods of class rbd on them, and the check that they tell
 * the truth.
 *
 * A map is kept as the bytes of its object, checksums included, so that
 * raw reads and writes see what a cluster would show; each method takes them
 * apart and writes them anew:
 *
 *     0    u32 14, u8 1, u8 1, u32 8, u64 entries
 *     18   two bits an entry, the first in the highest bits of a byte
 *     ...  u32 length of the rest, 0: no checksums
 *          u32 crc of the 14 bytes, u32 blocks, u32 crc of each 4096 bytes
 *
 * The check wants, of the head and of each snapshot: an entry that says
 * NONEXISTENT exactly where there is no object, and EXISTS_CLEAN only where
 * nothing was written since the next older snapshot, even if it were the same
 * bytes.  That is what `rbd object-map check' looks for as well.
 */
#include "fake_store.h"

#include <errno.h>
#include <string.h>

#define MAX_ENTRIES 256000000u
#define HEAD_LEN 14u
#define DATA_AT 18u
#define BLOCK 4096u

enum { NONEXISTENT, EXISTS, PENDING, EXISTS_CLEAN };

/* ---- bytes --------------------------------------------------------------- */

/* Where the parts of a map are. */
struct view {
    uint64_t count;
    size_t data_len;
    size_t footer_at;
    bool crcs;
};

static size_t data_len_of(uint64_t count)
{
    return (count + 3) / 4;
}

static int head_of(struct fake_input *in, uint64_t *ret_count)
{
    struct fake_input head;

    if (get_le(in, 4) != HEAD_LEN) {
        return -EINVAL;
    }
    head = get_block(in);
    *ret_count = get_le(&head, 8);
    return head.bad || head.len != 8 || *ret_count > MAX_ENTRIES ? -EINVAL : 0;
}

static int view_of(const uint8_t *p, size_t len, struct view *v)
{
    struct fake_input in = { p, len, 0, false };
    uint32_t footer;
    uint32_t blocks;

    if (head_of(&in, &v->count) < 0) {
        return -EINVAL;
    }
    v->data_len = data_len_of(v->count);
    v->footer_at = DATA_AT + v->data_len;
    (void)get_bytes(&in, v->data_len);
    footer = get_le(&in, 4);
    v->crcs = footer;
    if (footer) {
        (void)get_le(&in, 4);
        blocks = get_le(&in, 4);
        (void)get_bytes(&in, 4 * (size_t)blocks);
        in.bad = in.bad || blocks != (v->data_len + BLOCK - 1) / BLOCK ||
                 footer != 8 + 4 * blocks;
    }
    return in.bad ? -EINVAL : 0;
}

static uint32_t crc_at(const uint8_t *p, size_t at)
{
    struct fake_input in = { p + at, 4, 0, false };

    return get_le(&in, 4);
}

static uint32_t block_crc(const uint8_t *p, const struct view *v, size_t block)
{
    size_t at = block * BLOCK;

    return fake_crc32c(0, p + DATA_AT + at, MIN(BLOCK, v->data_len - at));
}

static bool head_ok(const uint8_t *p, const struct view *v)
{
    return !v->crcs ||
           crc_at(p, v->footer_at + 4) == fake_crc32c(0, p + 4, HEAD_LEN);
}

static size_t block_crc_at(const struct view *v, size_t block)
{
    return v->footer_at + 12 + 4 * block;
}

static bool block_ok(const uint8_t *p, const struct view *v, size_t block)
{
    return !v->crcs || crc_at(p, block_crc_at(v, block)) ==
                       block_crc(p, v, block);
}

static int get_state(const uint8_t *p, uint64_t n)
{
    return p[DATA_AT + n / 4] >> (6 - 2 * (n % 4)) & 3;
}

static void set_state(uint8_t *p, uint64_t n, int state)
{
    unsigned shift = 6 - 2 * (n % 4);
    uint8_t *b = &p[DATA_AT + n / 4];

    *b = (*b & ~(3u << shift)) | (unsigned)state << shift;
}

/* A map of @count entries without its footer, all 0. */
static GByteArray *map_new(uint64_t count)
{
    GByteArray *a = g_byte_array_new();
    GByteArray *body = g_byte_array_new();
    guint at;

    put_le(body, count, 8);
    put_le(a, HEAD_LEN, 4);
    put_block(a, body);
    at = a->len;
    g_byte_array_set_size(a, at + data_len_of(count));
    memset(a->data + at, 0, a->len - at);
    return a;
}

/* Add the footer to a map without one, empty unless there are to be @crcs. */
static void map_seal(GByteArray *a, bool crcs)
{
    struct view v = { .data_len = a->len - DATA_AT };
    size_t blocks = (v.data_len + BLOCK - 1) / BLOCK;

    if (!crcs) {
        put_le(a, 0, 4);
        return;
    }
    put_le(a, 8 + 4 * blocks, 4);
    put_le(a, fake_crc32c(0, a->data + 4, HEAD_LEN), 4);
    put_le(a, blocks, 4);
    for (size_t i = 0; i < blocks; i++) {
        put_le(a, block_crc(a->data, &v, i), 4);
    }
}

/* The same map without its footer, checked; NULL: corrupt. */
static GByteArray *map_unsealed(const uint8_t *p, size_t len)
{
    GByteArray *a;
    struct view v;

    if (view_of(p, len, &v) < 0 || !head_ok(p, &v)) {
        return NULL;
    }
    for (size_t i = 0; i * BLOCK < v.data_len; i++) {
        if (!block_ok(p, &v, i)) {
            return NULL;
        }
    }
    a = g_byte_array_sized_new(v.footer_at);
    return g_byte_array_append(a, p, v.footer_at);
}

static uint64_t count_of(const GByteArray *map)
{
    struct fake_input in = { map->data + 10, 8, 0, false };

    return get_le(&in, 8);
}

/* ---- methods ------------------------------------------------------------- */

static int read_map(struct fake_call *c, GByteArray **ret)
{
    if (!*c->data || !(*c->data)->len) {
        return -ENOENT;
    }
    *ret = map_unsealed((*c->data)->data, (*c->data)->len);
    return *ret ? 0 : -EINVAL;
}

/* Takes @map.  One that has no checksums does not get any. */
static void rewrite_map(struct fake_call *c, GByteArray *map)
{
    struct view v;

    map_seal(map, !*c->data ||
                  view_of((*c->data)->data, (*c->data)->len, &v) || v.crcs);
    if (*c->data) {
        g_byte_array_unref(*c->data);
    }
    *c->data = map;
}

static int load(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    GByteArray *map;
    int r = read_map(c, &map);

    if (r == 0) {
        put_bytes(c->out, map);
        put_le(c->out, 0, 4);
        g_byte_array_unref(map);
    }
    return r;
}

/* Touches only the blocks it must, and believes a wrong header checksum. */
static int update(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    struct fake_input head;
    uint64_t start = get_le(&c->in, 8);
    uint64_t end = get_le(&c->in, 8);
    uint8_t state = get_le(&c->in, 1);
    bool conditional = get_le(&c->in, 1);
    uint8_t current = conditional ? get_le(&c->in, 1) : 0;
    struct view v;
    uint8_t *p;

    if (c->in.bad) {
        return -EINVAL;
    }
    if (!*c->data) {
        return -ENOENT;
    }
    p = (*c->data)->data;
    head = (struct fake_input) { p, (*c->data)->len, 0, false };
    if (head_of(&head, &v.count) < 0) {
        return -EINVAL;
    }
    if (start >= end || end > v.count) {
        return -ERANGE;
    }
    if (view_of(p, (*c->data)->len, &v) < 0 || !v.crcs) {
        return -EINVAL;
    }
    for (size_t b = start / 4 / BLOCK; b <= (end - 1) / 4 / BLOCK; b++) {
        if (!block_ok(p, &v, b)) {
            return -EINVAL;
        }
    }
    for (uint64_t n = start; n < end; n++) {
        int have = get_state(p, n);

        if (!conditional || have == current ||
            (have == EXISTS_CLEAN && current == EXISTS)) {
            set_state(p, n, state);
        }
    }
    for (size_t b = start / 4 / BLOCK; b <= (end - 1) / 4 / BLOCK; b++) {
        uint32_t crc = block_crc(p, &v, b);

        for (unsigned i = 0; i < 4; i++) {
            p[block_crc_at(&v, b) + i] = crc >> (8 * i);
        }
    }
    return 0;
}

/* @map with @count entries; the new ones are @state. */
static GByteArray *resized(const GByteArray *map, uint64_t count, int state)
{
    GByteArray *a = map_new(count);
    uint64_t old = map ? count_of(map) : 0;

    for (uint64_t n = 0; n < count; n++) {
        set_state(a->data, n, n < old ? get_state(map->data, n) : state);
    }
    return a;
}

static int resize(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    uint64_t count = get_le(&c->in, 8);
    uint8_t state = get_le(&c->in, 1);
    GByteArray *map = NULL;
    int r;

    if (c->in.bad || count > MAX_ENTRIES) {
        return -EINVAL;
    }
    r = read_map(c, &map);
    if (r < 0 && r != -ENOENT) {
        return r;
    }
    for (uint64_t n = count; map && n < count_of(map); n++) {
        if (get_state(map->data, n) != state) {
            g_byte_array_unref(map);
            return -ESTALE;
        }
    }
    rewrite_map(c, resized(map, count, state));
    if (map) {
        g_byte_array_unref(map);
    }
    return 0;
}

static int save(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    GByteArray *map = map_unsealed(c->in.p, c->in.len);

    if (!map) {
        return -EINVAL;
    }
    map_seal(map, true);
    store_replace(c->data, map);
    g_byte_array_unref(map);
    return 0;
}

static void clean(GByteArray *map)
{
    for (uint64_t n = 0; n < count_of(map); n++) {
        if (get_state(map->data, n) == EXISTS) {
            set_state(map->data, n, EXISTS_CLEAN);
        }
    }
}

/* What changed before the removed snapshot has changed since the older one. */
static void merge(GByteArray *map, const GByteArray *removed)
{
    for (uint64_t n = 0; n < count_of(map); n++) {
        if (get_state(map->data, n) == EXISTS_CLEAN &&
            (n >= count_of(removed) ||
             get_state(removed->data, n) == EXISTS)) {
            set_state(map->data, n, EXISTS);
        }
    }
}

static int snap_add(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    GByteArray *map;
    int r = read_map(c, &map);

    if (r == 0) {
        clean(map);
        rewrite_map(c, map);
    }
    return r;
}

static int snap_remove(struct fake_call *c,
                       G_GNUC_UNUSED struct fake_image *none)
{
    GByteArray *removed = map_unsealed(c->in.p, c->in.len);
    GByteArray *map;
    int r;

    if (!removed) {
        return -EINVAL;
    }
    r = read_map(c, &map);
    if (r == 0) {
        merge(map, removed);
        rewrite_map(c, map);
    }
    g_byte_array_unref(removed);
    return r;
}

const struct fake_method cls_map_methods[] = {
    { "object_map_load", false, false, load },
    { "object_map_update", true, false, update },
    { "object_map_resize", true, false, resize },
    { "object_map_save", true, false, save },
    { "object_map_snap_add", true, false, snap_add },
    { "object_map_snap_remove", true, false, snap_remove },
    { 0 },
};

/* ---- maps of an image ---------------------------------------------------- */

static char *key_of(const struct fake_image *img, uint64_t snap)
{
    g_autofree char *oid = snap == RADOS_NOSNAP ?
        g_strdup_printf("rbd_object_map.%s", img->id) :
        g_strdup_printf("rbd_object_map.%s.%016" G_GINT64_MODIFIER "x",
                        img->id, (guint64)snap);

    return store_key(img->pool, img->ns, oid);
}

static const GByteArray *bytes_of(const struct fake_image *img, uint64_t snap)
{
    g_autofree char *key = key_of(img, snap);

    return store_data(store_find(key), RADOS_NOSNAP);
}

/* NULL: missing or corrupt. */
static GByteArray *map_of(const struct fake_image *img, uint64_t snap)
{
    const GByteArray *bytes = bytes_of(img, snap);

    return bytes ? map_unsealed(bytes->data, bytes->len) : NULL;
}

/* Takes @map, without a footer; NULL: the map goes. */
static void put_map(const struct fake_image *img, uint64_t snap,
                    GByteArray *map)
{
    g_autofree char *key = key_of(img, snap);

    if (map) {
        map_seal(map, true);
    }
    store_put(key, map);
}

static uint64_t objects_of(const struct fake_image *img, uint64_t size)
{
    uint64_t object = 1ULL << img->order;
    uint64_t unit = img->stripe_count > 1 ? img->stripe_unit : object;
    uint64_t count = MAX(img->stripe_count, 1);
    uint64_t period = object * count;
    uint64_t rest = size % period;
    uint64_t n = (size + period - 1) / period * count;

    if (rest && rest < count * unit) {
        n -= count - (rest + unit - 1) / unit;
    }
    return n;
}

/* The place of a revision among them, oldest first, the head last. */
static guint place_of(const struct fake_image *img, uint64_t snap)
{
    guint i = 0;

    while (i < img->snaps->len &&
           g_array_index(img->snaps, struct fake_snap, i).id != snap) {
        i++;
    }
    FAKE_CHECK(i < img->snaps->len || snap == RADOS_NOSNAP,
               "no such snapshot");
    return i;
}

static uint64_t snap_at(const struct fake_image *img, guint place)
{
    return place < img->snaps->len ?
           g_array_index(img->snaps, struct fake_snap, place).id :
           RADOS_NOSNAP;
}

static uint64_t entries_at(const struct fake_image *img, guint place)
{
    return objects_of(img, place < img->snaps->len ?
        g_array_index(img->snaps, struct fake_snap, place).size : img->size);
}

static const struct fake_object *data_object(const struct fake_image *img,
                                             uint64_t n)
{
    g_autofree char *oid = g_strdup_printf("%s.%016" G_GINT64_MODIFIER "x",
                                           img->prefix, (guint64)n);
    g_autofree char *key = store_key(img->data_pool < 0 ? img->pool :
                                     img->data_pool, img->ns, oid);

    return store_find(key);
}

/* What a perfect map has for object @n at that place. */
static int true_state(const struct fake_image *img, guint place, uint64_t n)
{
    const struct fake_object *o = data_object(img, n);
    const GByteArray *now = store_data(o, snap_at(img, place));

    if (!now) {
        return NONEXISTENT;
    }
    return img->features & PINRBD_FEATURE_FAST_DIFF && place &&
           n < entries_at(img, place - 1) &&
           store_data(o, snap_at(img, place - 1)) == now ?
           EXISTS_CLEAN : EXISTS;
}

static bool has_maps(const struct fake_image *img)
{
    return img->features & PINRBD_FEATURE_OBJECT_MAP;
}

void map_snap_added(struct fake_image *img, uint64_t id)
{
    GByteArray *map = has_maps(img) ? map_of(img, RADOS_NOSNAP) : NULL;
    GByteArray *copy = NULL;

    if (!map) {
        return;
    }
    store_replace(&copy, map);
    put_map(img, id, copy);
    if (img->features & PINRBD_FEATURE_FAST_DIFF) {
        clean(map);
    }
    put_map(img, RADOS_NOSNAP, map);
}

void map_snap_removed(struct fake_image *img, uint64_t id)
{
    uint64_t newer = snap_at(img, place_of(img, id) + 1);
    GByteArray *removed = has_maps(img) ? map_of(img, id) : NULL;
    GByteArray *map = removed ? map_of(img, newer) : NULL;

    if (map) {
        merge(map, removed);
        put_map(img, newer, map);
    }
    if (removed) {
        g_byte_array_unref(removed);
        put_map(img, id, NULL);
    }
}

void map_resized(struct fake_image *img)
{
    GByteArray *map = has_maps(img) ? map_of(img, RADOS_NOSNAP) : NULL;

    if (map) {
        put_map(img, RADOS_NOSNAP, resized(map, objects_of(img, img->size),
                                           NONEXISTENT));
        g_byte_array_unref(map);
    }
}

void map_image_removed(struct fake_image *img)
{
    for (guint i = 0; has_maps(img) && i <= img->snaps->len; i++) {
        put_map(img, snap_at(img, i), NULL);
    }
}

int map_state(const struct fake_image *img, uint64_t snap, uint64_t object)
{
    GByteArray *map = map_of(img, snap);
    int state = -ENOENT;

    if (map) {
        state = object < count_of(map) ? get_state(map->data, object) :
                -ENOENT;
        g_byte_array_unref(map);
    }
    return state;
}

/* ---- the test's hands ---------------------------------------------------- */

void fake_image_enable(struct fake_image *img, uint64_t features)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(img->pool, img->ns, img->header);

    img->features |= features;
    for (guint i = 0; has_maps(img) && i <= img->snaps->len; i++) {
        GByteArray *map = map_new(entries_at(img, i));

        for (uint64_t n = 0; n < entries_at(img, i); n++) {
            set_state(map->data, n, true_state(img, i, n));
        }
        put_map(img, snap_at(img, i), map);
    }
    store_bump(store_get(key));
}

bool fake_map_exists(const struct fake_image *img, uint64_t snap)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return bytes_of(img, snap);
}

int fake_map_state(const struct fake_image *img, uint64_t snap,
                   uint64_t object)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return map_state(img, snap, object);
}

int64_t fake_map_entries(const struct fake_image *img, uint64_t snap)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    GByteArray *map = map_of(img, snap);
    int64_t n = map ? (int64_t)count_of(map) : -ENOENT;

    if (map) {
        g_byte_array_unref(map);
    }
    return n;
}

void fake_map_set(struct fake_image *img, uint64_t snap, uint64_t object,
                  int state)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    GByteArray *map = map_of(img, snap);

    FAKE_CHECK(map && object < count_of(map), "no such entry");
    set_state(map->data, object, state);
    put_map(img, snap, map);
}

void fake_map_resize(struct fake_image *img, uint64_t snap, uint64_t entries)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    GByteArray *map = map_of(img, snap);

    FAKE_CHECK(map, "no such map");
    put_map(img, snap, resized(map, entries, NONEXISTENT));
    g_byte_array_unref(map);
}

void fake_map_remove(struct fake_image *img, uint64_t snap)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    put_map(img, snap, NULL);
}

void fake_map_corrupt(struct fake_image *img, uint64_t snap,
                      enum fake_map_damage damage)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = key_of(img, snap);
    struct fake_object *o = store_find(key);
    struct view v;

    FAKE_CHECK(o && o->data && !view_of(o->data->data, o->data->len, &v),
               "no such map");
    switch (damage) {
    case FAKE_MAP_DATA:
        o->data->data[DATA_AT] ^= 0xff;
        break;
    case FAKE_MAP_HEADER:
        o->data->data[v.footer_at + 4] ^= 0xff;
        break;
    case FAKE_MAP_CUT:
        g_byte_array_set_size(o->data, v.footer_at - 1);
        break;
    case FAKE_MAP_EMPTY:
        g_byte_array_set_size(o->data, 0);
        break;
    }
    store_bump(o);
}

/* ---- the check ----------------------------------------------------------- */

static const char *const state_name[] = {
    "NONEXISTENT", "EXISTS", "PENDING", "EXISTS_CLEAN",
};

struct beyond {
    const char *prefix;
    uint64_t entries;
    uint64_t found;
    bool any;
};

static void look_beyond(const char *oid, const struct fake_object *o,
                        void *opaque)
{
    struct beyond *b = opaque;
    uint64_t n = g_ascii_strtoull(oid + strlen(b->prefix) + 1, NULL, 16);

    if (o->data && n >= b->entries) {
        b->found = n;
        b->any = true;
    }
}

static bool complain(GString *s, const struct fake_image *img, guint place,
                     const char *format, ...) G_GNUC_PRINTF(4, 5);

static bool complain(GString *s, const struct fake_image *img, guint place,
                     const char *format, ...)
{
    va_list ap;

    if (place < img->snaps->len) {
        g_string_printf(s, "map of snapshot %" G_GUINT64_FORMAT ": ",
                        (guint64)snap_at(img, place));
    } else {
        g_string_assign(s, "map of the head: ");
    }
    va_start(ap, format);
    g_string_append_vprintf(s, format, ap);
    va_end(ap);
    return false;
}

static bool entry_ok(int have, int want, bool exact)
{
    switch (have) {
    case NONEXISTENT:
        return want == NONEXISTENT;
    case EXISTS_CLEAN:
        return want == EXISTS_CLEAN || (want == NONEXISTENT && !exact);
    case EXISTS:
        return want != NONEXISTENT || !exact;
    default:
        return !exact;
    }
}

static bool check_one(const struct fake_image *img, guint place, bool exact,
                      GString *s)
{
    uint64_t flags = place < img->snaps->len ?
        g_array_index(img->snaps, struct fake_snap, place).flags : img->flags;
    uint64_t entries = entries_at(img, place);
    g_autoptr(GByteArray) map = NULL;

    if (flags & 1) {
        return !exact || complain(s, img, place, "flagged invalid");
    }
    map = map_of(img, snap_at(img, place));
    if (!map) {
        return complain(s, img, place, "missing or corrupt");
    }
    if (count_of(map) < entries || (exact && count_of(map) > entries)) {
        return complain(s, img, place, "%" G_GUINT64_FORMAT " entries for %"
                        G_GUINT64_FORMAT " objects", (guint64)count_of(map),
                        (guint64)entries);
    }
    for (uint64_t n = 0; n < entries; n++) {
        int have = get_state(map->data, n);
        int want = true_state(img, place, n);

        if (flags & 2 && have == EXISTS_CLEAN) {
            have = EXISTS;
        }
        if (!entry_ok(have, want, exact)) {
            return complain(s, img, place,
                            "object %" G_GUINT64_FORMAT " is %s and not %s",
                            (guint64)n, state_name[have], state_name[want]);
        }
    }
    return true;
}

static const char *check(const struct fake_image *img, bool exact)
{
    static GString *s;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    guint head = img->snaps->len;
    struct beyond b = { .prefix = img->prefix,
                        .entries = entries_at(img, head) };

    if (!s) {
        s = g_string_new(NULL);
    }
    for (guint i = 0; i <= head; i++) {
        if (!check_one(img, i, exact, s)) {
            return s->str;
        }
    }
    store_each(img->data_pool < 0 ? img->pool : img->data_pool, img->ns,
               img->prefix, look_beyond, &b);
    if (b.any) {
        complain(s, img, head, "object %" G_GUINT64_FORMAT
                 " is left beyond the end", (guint64)b.found);
        return s->str;
    }
    return NULL;
}

const char *fake_map_check(const struct fake_image *img)
{
    return check(img, true);
}

const char *fake_map_check_safe(const struct fake_image *img)
{
    return check(img, false);
}
