/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Class lock.  An object has one lock, named rbd_lock; on a cluster it is an
 * xattr, so taking it makes a missing object.  Owners are told apart by client
 * and cookie.  A free lock remembers the type and tag of its last owner.
 *
 * One thing is stricter than on a cluster: the lock of a header may only be
 * taken away from a client that was blocklisted before, whose late writes
 * would otherwise land among those of the next owner.
 */
#include "fake_store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LOCK_NAME "rbd_lock"
#define ENTITY_CLIENT 8
#define EXCLUSIVE 1
#define SHARED 2

static GHashTable *fences;      /* blocklisted addresses */

void fenced_add(const char *address)
{
    if (!fences) {
        fences = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    }
    g_hash_table_add(fences, g_strdup(address));
}

bool fenced(const char *address)
{
    return fences && g_hash_table_contains(fences, address);
}

void fenced_clear(void)
{
    g_clear_pointer(&fences, g_hash_table_unref);
}

/* ---- the lock of one object ---------------------------------------------- */

static struct fake_lock *lock_new(void)
{
    struct fake_lock *l = g_new0(struct fake_lock, 1);

    l->lockers = g_array_new(FALSE, TRUE, sizeof(struct fake_locker));
    return l;
}

struct fake_lock *lock_copy(const struct fake_lock *l)
{
    struct fake_lock *copy;

    if (!l) {
        return NULL;
    }
    copy = g_memdup2(l, sizeof(*l));
    copy->lockers = g_array_copy(l->lockers);
    return copy;
}

void lock_free(struct fake_lock *l)
{
    if (l) {
        g_array_unref(l->lockers);
        g_free(l);
    }
}

static struct fake_locker *locker_at(const struct fake_lock *l, guint i)
{
    return &g_array_index(l->lockers, struct fake_locker, i);
}

static int find(const struct fake_lock *l, uint64_t gid, const char *cookie)
{
    for (guint i = 0; l && i < l->lockers->len; i++) {
        const struct fake_locker *k = locker_at(l, i);

        if (k->gid == gid && g_str_equal(k->cookie, cookie)) {
            return i;
        }
    }
    return -1;
}

static gint compare_lockers(gconstpointer a, gconstpointer b)
{
    const struct fake_locker *x = a;
    const struct fake_locker *y = b;

    return x->gid < y->gid ? -1 : x->gid > y->gid ? 1 :
           strcmp(x->cookie, y->cookie);
}

static void add(struct fake_lock *l, uint8_t type, const char *tag,
                const struct fake_locker *locker)
{
    l->type = type;
    g_strlcpy(l->tag, tag, sizeof(l->tag));
    g_array_append_val(l->lockers, *locker);
    g_array_sort(l->lockers, compare_lockers);
}

/* ---- methods ------------------------------------------------------------- */

struct request {
    uint8_t type;
    struct fake_locker id;      /* cookie and tag; gid of the caller */
};

static void get_name(struct fake_input *in)
{
    char name[32];

    get_string(in, name, sizeof(name));
    FAKE_CHECK(in->bad || g_str_equal(name, LOCK_NAME),
               "a lock that librbd does not know");
}

/* Name, type, cookie and tag, with which most inputs start. */
static struct fake_input get_request(struct fake_call *c, struct request *rq)
{
    struct fake_input body = get_block(&c->in);

    memset(rq, 0, sizeof(*rq));
    rq->id.gid = c->client->gid;
    get_name(&body);
    rq->type = get_le(&body, 1);
    get_string(&body, rq->id.cookie, sizeof(rq->id.cookie));
    get_string(&body, rq->id.tag, sizeof(rq->id.tag));
    return body;
}

static int lock(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    struct request rq;
    struct fake_input in = get_request(c, &rq);
    struct fake_lock *l;
    uint64_t duration;
    uint8_t flags;

    get_string(&in, rq.id.description, sizeof(rq.id.description));
    duration = get_le(&in, 8);
    flags = get_le(&in, 1);
    if (in.bad || (rq.type != EXCLUSIVE && rq.type != SHARED)) {
        return -EINVAL;
    }
    FAKE_CHECK(!duration && !flags, "a lock that expires or is renewed");
    if (!*c->lock) {
        *c->lock = lock_new();
    }
    l = *c->lock;
    if (l->lockers->len && !g_str_equal(l->tag, rq.id.tag)) {
        return -EBUSY;
    }
    if (find(l, rq.id.gid, rq.id.cookie) >= 0) {
        return -EEXIST;
    }
    if (l->lockers->len && (rq.type == EXCLUSIVE || l->type != rq.type)) {
        return -EBUSY;
    }
    g_strlcpy(rq.id.address, c->client->address, sizeof(rq.id.address));
    add(l, rq.type, rq.id.tag, &rq.id);
    if (!*c->data) {
        *c->data = g_byte_array_new();
    }
    return 0;
}

static int remove_locker(struct fake_call *c, uint64_t gid, const char *cookie)
{
    int i = find(*c->lock, gid, cookie);

    if (i < 0) {
        return -ENOENT;
    }
    g_array_remove_index((*c->lock)->lockers, i);
    return 0;
}

static int unlock(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    struct fake_input in = get_block(&c->in);
    char cookie[sizeof(((struct fake_locker *)0)->cookie)];

    get_name(&in);
    get_string(&in, cookie, sizeof(cookie));
    return in.bad ? -EINVAL : remove_locker(c, c->client->gid, cookie);
}

static int break_lock(struct fake_call *c,
                      G_GNUC_UNUSED struct fake_image *none)
{
    struct fake_input in = get_block(&c->in);
    char cookie[sizeof(((struct fake_locker *)0)->cookie)];
    uint64_t gid;
    uint8_t entity;
    int i;

    get_name(&in);
    entity = get_le(&in, 1);
    gid = get_le(&in, 8);
    get_string(&in, cookie, sizeof(cookie));
    if (in.bad) {
        return -EINVAL;
    }
    i = entity == ENTITY_CLIENT ? find(*c->lock, gid, cookie) : -1;
    FAKE_CHECK(i < 0 || !g_str_has_prefix(c->oid, "rbd_header.") ||
               gid == c->client->gid ||
               fenced(locker_at(*c->lock, i)->address),
               "the lock of a client that may still write is broken");
    return i < 0 ? -ENOENT : remove_locker(c, gid, cookie);
}

/* The owner as the input describes it; -1: it is not. */
static int find_exactly(const struct fake_lock *l, const struct request *rq)
{
    int i = find(l, rq->id.gid, rq->id.cookie);

    return i >= 0 && l->type == rq->type && g_str_equal(l->tag, rq->id.tag) ?
           i : -1;
}

static int set_cookie(struct fake_call *c,
                      G_GNUC_UNUSED struct fake_image *none)
{
    struct request rq;
    struct fake_input in = get_request(c, &rq);
    char cookie[sizeof(rq.id.cookie)];
    int i = find_exactly(*c->lock, &rq);

    get_string(&in, cookie, sizeof(cookie));
    if (in.bad) {
        return -EINVAL;
    }
    if (!*c->data) {
        return -ENOENT;
    }
    if (i < 0 || find(*c->lock, rq.id.gid, cookie) >= 0) {
        return -EBUSY;
    }
    g_strlcpy(locker_at(*c->lock, i)->cookie, cookie, sizeof(cookie));
    g_array_sort((*c->lock)->lockers, compare_lockers);
    return 0;
}

static int assert_locked(struct fake_call *c,
                         G_GNUC_UNUSED struct fake_image *none)
{
    struct request rq;
    struct fake_input in = get_request(c, &rq);

    if (in.bad) {
        return -EINVAL;
    }
    if (!*c->data) {
        return -ENOENT;
    }
    return find_exactly(*c->lock, &rq) < 0 ? -EBUSY : 0;
}

/* IPv4 only; the port is big-endian, as in a sockaddr. */
static GByteArray *address_block(const char *text)
{
    GByteArray *a = g_byte_array_new();
    unsigned ip[4] = { 0 };
    unsigned port = 0;
    unsigned nonce = 0;
    int n = sscanf(text, "%u.%u.%u.%u:%u/%u", &ip[0], &ip[1], &ip[2], &ip[3],
                   &port, &nonce);

    if (n != 6) {
        put_le(a, 0, 4);        /* blank */
        put_le(a, 0, 4);
        put_le(a, 0, 4);
        return a;
    }
    put_le(a, 1, 4);            /* of messenger 1 */
    put_le(a, nonce, 4);
    put_le(a, 16, 4);
    put_le(a, 2, 2);            /* AF_INET */
    put_le(a, port >> 8, 1);
    put_le(a, port, 1);
    for (int i = 0; i < 4; i++) {
        put_le(a, ip[i], 1);
    }
    put_le(a, 0, 8);
    return a;
}

static int get_info(struct fake_call *c, G_GNUC_UNUSED struct fake_image *none)
{
    struct fake_input in = get_block(&c->in);
    const struct fake_lock *l = *c->lock;
    GByteArray *body;

    get_name(&in);
    if (in.bad) {
        return -EINVAL;
    }
    if (!*c->data) {
        return -ENOENT;
    }
    body = g_byte_array_new();
    put_le(body, l ? l->lockers->len : 0, 4);
    for (guint i = 0; l && i < l->lockers->len; i++) {
        const struct fake_locker *k = locker_at(l, i);
        GByteArray *id = g_byte_array_new();
        GByteArray *info = g_byte_array_new();

        put_le(id, ENTITY_CLIENT, 1);
        put_le(id, k->gid, 8);
        put_string(id, k->cookie);
        put_block(body, id);
        put_le(info, 0, 8);     /* does not expire */
        put_le(info, 1, 1);
        put_block(info, address_block(k->address));
        put_string(info, k->description);
        put_block(body, info);
    }
    put_le(body, l ? l->type : 0, 1);
    put_string(body, l ? l->tag : "");
    put_block(c->out, body);
    return 0;
}

const struct fake_method cls_lock_methods[] = {
    { "lock", true, false, lock },
    { "unlock", true, false, unlock },
    { "break_lock", true, false, break_lock },
    { "set_cookie", true, false, set_cookie },
    { "assert_locked", false, false, assert_locked },
    { "get_info", false, false, get_info },
    { 0 },
};

/* ---- the test's hands ---------------------------------------------------- */

static char *map_key(const struct fake_image *img)
{
    g_autofree char *oid = g_strdup_printf("rbd_object_map.%s", img->id);

    return store_key(img->pool, img->ns, oid);
}

static char *header_key(const struct fake_image *img)
{
    return store_key(img->pool, img->ns, img->header);
}

static void hold_locked(const char *key, uint64_t gid, const char *cookie,
                        const char *tag)
{
    struct fake_object *o = store_get(key);
    struct fake_locker k = { .gid = gid };

    lock_free(o->lock);
    o->lock = lock_new();
    g_strlcpy(k.cookie, cookie, sizeof(k.cookie));
    g_snprintf(k.address, sizeof(k.address), FAKE_PEER_ADDRESS "%u",
               (unsigned)gid);
    add(o->lock, EXCLUSIVE, tag, &k);
    if (!o->data) {
        o->data = g_byte_array_new();
    }
    store_bump(o);
}

static bool drop_locked(const char *key)
{
    struct fake_object *o = store_find(key);
    bool held = o && o->lock && o->lock->lockers->len;

    if (held) {
        g_array_set_size(o->lock->lockers, 0);
        store_bump(o);
    }
    return held;
}

static bool owner_locked(const char *key, struct fake_locker *ret)
{
    const struct fake_object *o = store_find(key);

    if (!o || !o->lock || !o->lock->lockers->len) {
        return false;
    }
    if (ret) {
        *ret = *locker_at(o->lock, 0);
        g_strlcpy(ret->tag, o->lock->tag, sizeof(ret->tag));
    }
    return true;
}

bool lock_owned_by(const struct fake_image *img, uint64_t gid)
{
    g_autofree char *key = header_key(img);
    struct fake_locker owner;

    return owner_locked(key, &owner) && owner.gid == gid;
}

/* The map's lock goes first, as when librbd lets go. */
static bool drop_both_locked(const struct fake_image *img)
{
    g_autofree char *map = map_key(img);
    g_autofree char *header = header_key(img);

    (void)drop_locked(map);
    return drop_locked(header);
}

bool lock_yield(const struct fake_image *img, uint64_t gid)
{
    return lock_owned_by(img, gid) && drop_both_locked(img);
}

void fake_lock_hold(struct fake_image *img, uint64_t gid, const char *cookie,
                    const char *tag)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = header_key(img);

    hold_locked(key, gid, cookie, tag);
}

bool fake_lock_drop(struct fake_image *img)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return drop_both_locked(img);
}

bool fake_lock_owner(const struct fake_image *img, struct fake_locker *ret)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = header_key(img);

    return owner_locked(key, ret);
}

void fake_map_lock_hold(struct fake_image *img, uint64_t gid)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = map_key(img);

    hold_locked(key, gid, "", "");
}

bool fake_map_lock_owner(const struct fake_image *img,
                         struct fake_locker *ret)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = map_key(img);

    return owner_locked(key, ret);
}
