/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Objects with snapshots, as an OSD keeps them.
 *
 * A write whose context is newer than what the object saw first puts the head
 * away as a clone for the snapshots in between.  A write with an older context
 * is executed and makes no clone, unless it asks for ORDERSNAP: that is how a
 * stale context spoils snapshots, and tests can see it happen here.
 *
 * A write op works on copies of the head, of its lock and of the image that a
 * header stands for; they count only when all steps succeeded.  One that in
 * the end changes nothing, as zeroing what is not there, makes no clone.
 */
#include "fake_store.h"

#include <errno.h>
#include <string.h>

static GHashTable *objects;     /* key -> struct fake_object */
static uint64_t version;

static void clone_free(gpointer p)
{
    struct fake_clone *c = p;

    g_free(c->ids);
    g_byte_array_unref(c->data);
    g_free(c);
}

static void object_free(gpointer p)
{
    struct fake_object *o = p;

    if (o->data) {
        g_byte_array_unref(o->data);
    }
    g_ptr_array_unref(o->clones);
    lock_free(o->lock);
    g_free(o);
}

void store_init(void)
{
    objects = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                    object_free);
    version = 0;
    cls_init();
    peer_init();
}

void store_clear(void)
{
    cls_clear();
    peer_clear();
    fenced_clear();
    g_clear_pointer(&objects, g_hash_table_unref);
}

char *store_key(int64_t pool, const char *ns, const char *oid)
{
    return g_strdup_printf("%" G_GINT64_FORMAT "/%s/%s", (gint64)pool,
                           ns ? ns : "", oid);
}

struct fake_object *store_find(const char *key)
{
    return g_hash_table_lookup(objects, key);
}

struct fake_object *store_get(const char *key)
{
    struct fake_object *o = store_find(key);

    if (!o) {
        o = g_new0(struct fake_object, 1);
        o->clones = g_ptr_array_new_with_free_func(clone_free);
        g_hash_table_insert(objects, g_strdup(key), o);
    }
    return o;
}

void store_bump(struct fake_object *o)
{
    o->version = ++version;
}

const GByteArray *store_data(const struct fake_object *o, uint64_t snap)
{
    if (!o) {
        return NULL;
    }
    if (snap > o->snap_seq) {
        return o->data;
    }
    for (guint i = 0; i < o->clones->len; i++) {
        const struct fake_clone *c = g_ptr_array_index(o->clones, i);

        for (size_t k = 0; k < c->n; k++) {
            if (c->ids[k] == snap) {
                return c->data;
            }
        }
    }
    return NULL;
}

void store_trim(int64_t pool, uint64_t id)
{
    g_autofree char *start = g_strdup_printf("%" G_GINT64_FORMAT "/",
                                             (gint64)pool);
    GHashTableIter it;
    gpointer key;
    gpointer value;

    g_hash_table_iter_init(&it, objects);
    while (g_hash_table_iter_next(&it, &key, &value)) {
        struct fake_object *o = value;

        for (guint i = g_str_has_prefix(key, start) ? o->clones->len : 0; i;
             i--) {
            struct fake_clone *c = g_ptr_array_index(o->clones, i - 1);
            size_t n = 0;

            for (size_t k = 0; k < c->n; k++) {
                if (c->ids[k] != id) {
                    c->ids[n++] = c->ids[k];
                }
            }
            c->n = n;
            if (!n) {
                g_ptr_array_remove_index(o->clones, i - 1);
            }
        }
    }
}

void store_each(int64_t pool, const char *ns, const char *prefix,
                void (*fn)(const char *oid, const struct fake_object *o,
                           void *opaque),
                void *opaque)
{
    g_autofree char *start = store_key(pool, ns, prefix);
    GHashTableIter it;
    gpointer key;
    gpointer value;

    g_hash_table_iter_init(&it, objects);
    while (g_hash_table_iter_next(&it, &key, &value)) {
        if (g_str_has_prefix(key, start)) {
            fn(strrchr(key, '/') + 1, value, opaque);
        }
    }
}

static void make_clone(struct fake_object *o, const struct rados_snapc *sc)
{
    struct fake_clone *c;
    size_t n = 0;

    if (!sc || sc->seq <= o->snap_seq) {
        return;
    }
    while (n < sc->n && sc->ids[n] > o->snap_seq) {
        n++;
    }
    if (n && o->data) {
        c = g_new(struct fake_clone, 1);
        c->n = n;
        c->ids = g_memdup2(sc->ids, n * sizeof(*sc->ids));
        c->data = g_byte_array_sized_new(o->data->len);
        g_byte_array_append(c->data, o->data->data, o->data->len);
        g_ptr_array_add(o->clones, c);
    }
    o->snap_seq = sc->seq;
}

static void grow(GByteArray **data, uint64_t size)
{
    guint old;

    if (!*data) {
        *data = g_byte_array_new();
    }
    old = (*data)->len;
    if (size > old) {
        g_byte_array_set_size(*data, size);
        memset((*data)->data + old, 0, size - old);
    }
}

void store_replace(GByteArray **data, const GByteArray *with)
{
    if (*data) {
        g_byte_array_unref(*data);
        *data = NULL;
    }
    if (with) {
        *data = g_byte_array_sized_new(with->len);
        g_byte_array_append(*data, with->data, with->len);
    }
}

void store_put(const char *key, GByteArray *data)
{
    struct fake_object *o = store_get(key);

    if (o->data) {
        g_byte_array_unref(o->data);
    }
    o->data = data;
    store_bump(o);
}

static GByteArray *gather(const struct rados_step *s)
{
    GByteArray *a = g_byte_array_new();

    for (int i = 0; i < s->n_iov; i++) {
        g_byte_array_append(a, s->iov[i].iov_base, s->iov[i].iov_len);
    }
    return a;
}

static void scatter(struct rados_step *s, const uint8_t *p, size_t len)
{
    for (int i = 0; i < s->n_iov && len; i++) {
        size_t n = MIN(len, s->iov[i].iov_len);

        memcpy(s->iov[i].iov_base, p, n);
        p += n;
        len -= n;
    }
}

static int do_call(struct rados_step *s, struct fake_call *c,
                   const GByteArray *in, GPtrArray *outputs)
{
    GByteArray *out = g_byte_array_new();
    int r;

    c->method = s->method;
    c->in = (struct fake_input) { in->data, in->len, 0, false };
    c->out = out;
    r = cls_call(s->cls, c);
    if (r < 0 || c->write) {
        g_byte_array_unref(out);
        return r;
    }
    /* An exact allocation, so that ASan sees a read past its end. */
    s->out.len = out->len;
    s->out.data = g_memdup2(out->data, out->len);
    g_ptr_array_add(outputs, (gpointer)s->out.data);
    g_byte_array_unref(out);
    return 0;
}

static int read_step(struct rados_step *s, const struct fake_object *o,
                     const GByteArray *data, uint64_t max_read,
                     GPtrArray *outputs)
{
    uint64_t end;
    uint8_t *sum;
    uint32_t v;

    switch (s->kind) {
    case RADOS_ASSERT_VERSION:
        if (!o || s->off > o->version) {
            return -EOVERFLOW;
        }
        return s->off < o->version ? -ERANGE : 0;
    case RADOS_ASSERT_EXISTS:
        return data ? 0 : -ENOENT;
    case RADOS_STAT:
        if (!data) {
            return -ENOENT;
        }
        s->out_len = data->len;
        return 0;
    case RADOS_READ:
        if (!data) {
            return -ENOENT;
        }
        end = MIN(s->off + MIN(s->len, max_read), data->len);
        s->out_len = end > s->off ? end - s->off : 0;
        if (s->out_len) {
            scatter(s, data->data + s->off, s->out_len);
        }
        return 0;
    case RADOS_CHECKSUM:
        if (!data) {
            return -ENOENT;
        }
        if (s->off + s->len > data->len) {
            return -EOVERFLOW;
        }
        v = fake_crc32c(UINT32_MAX, data->data + s->off, s->len);
        sum = g_malloc0(8);
        sum[0] = 1;
        for (int i = 0; i < 4; i++) {
            sum[4 + i] = v >> (8 * i);
        }
        s->out = (struct rados_blob) { sum, 8 };
        g_ptr_array_add(outputs, sum);
        return 0;
    default:
        g_error("fake: step %d in a read op", s->kind);
    }
}

/* Does the step leave the object alone, because there is nothing to do? */
static bool step_is_idle(const struct rados_step *s,
                         const struct fake_object *o, const GByteArray *data)
{
    switch (s->kind) {
    case RADOS_ZERO:
        return !data || s->off >= data->len;
    case RADOS_TRUNCATE:
        return !data;
    case RADOS_ROLLBACK:
        return !data && !store_data(o, s->off);
    case RADOS_ASSERT_EXISTS:
    case RADOS_ASSERT_VERSION:
    case RADOS_STAT:
    case RADOS_CALL:            /* the method says so */
        return true;
    default:
        return false;
    }
}

static int write_step(struct rados_step *s, const struct fake_object *o,
                      GByteArray **data, const GByteArray *payload)
{
    switch (s->kind) {
    case RADOS_CREATE:
        if (s->exclusive && *data) {
            return -EEXIST;
        }
        grow(data, 0);
        return 0;
    case RADOS_ALLOC_HINT:
        grow(data, 0);
        return 0;
    case RADOS_WRITE:
        grow(data, s->off + payload->len);
        if (payload->len) {
            memcpy((*data)->data + s->off, payload->data, payload->len);
        }
        return 0;
    case RADOS_WRITE_FULL:
        store_replace(data, payload);
        return 0;
    case RADOS_WRITESAME:
        if (!payload->len || s->len % payload->len) {
            return -EINVAL;
        }
        grow(data, s->off + s->len);
        for (uint64_t done = 0; done < s->len; done += payload->len) {
            memcpy((*data)->data + s->off + done, payload->data,
                   payload->len);
        }
        return 0;
    case RADOS_ZERO:
        if (*data && s->off + s->len < (*data)->len) {
            memset((*data)->data + s->off, 0, s->len);
        } else if (*data && s->off < (*data)->len) {
            g_byte_array_set_size(*data, s->off);
        }
        return 0;
    case RADOS_TRUNCATE:
        if (*data) {
            grow(data, s->off);
            g_byte_array_set_size(*data, s->off);
        }
        return 0;
    case RADOS_REMOVE:
        if (!*data) {
            return -ENOENT;
        }
        store_replace(data, NULL);
        return 0;
    case RADOS_ROLLBACK:
        /* To the head itself: what earlier steps did stays. */
        if (s->off <= o->snap_seq || !o->data) {
            store_replace(data, store_data(o, s->off));
        }
        return 0;
    case RADOS_ASSERT_EXISTS:
    case RADOS_ASSERT_VERSION:
    case RADOS_STAT:
        return read_step(s, o, *data, 0, NULL);
    default:
        g_error("fake: step %d in a write op", s->kind);
    }
}

/* All steps have succeeded. */
static void commit(struct fake_object *o, struct rados_op *op,
                   struct fake_call *call)
{
    if (call->modified) {
        make_clone(o, op->snapc);
    }
    store_replace(&o->data, NULL);
    o->data = g_steal_pointer(call->data);
    lock_free(o->lock);
    o->lock = g_steal_pointer(call->lock);
    if (!o->data) {
        lock_free(o->lock);
        o->lock = NULL;
        if (!o->clones->len) {
            o->snap_seq = 0;    /* nothing is left that could remember it */
        }
    }
    store_bump(o);
}

int store_execute(const char *key, const struct fake_client *client,
                  int64_t pool, const char *ns, uint64_t snap,
                  struct rados_op *op, GByteArray *const *payload,
                  uint64_t max_read, GPtrArray *outputs)
{
    bool write = op->flags & RADOS_OP_WRITE;
    struct fake_object *o = write ? store_get(key) : store_find(key);
    uint64_t seq = op->snapc ? op->snapc->seq : 0;
    GByteArray *work = NULL;
    struct fake_lock *lock = NULL;
    struct fake_image *saved;
    struct fake_call call = {
        .key = key, .client = client, .pool = pool, .ns = ns, .oid = op->oid,
        .data = &work, .lock = &lock, .write = write,
    };
    int r = 0;

    if (write && op->flags & RADOS_OP_ORDERSNAP && seq < o->snap_seq) {
        return -ERESTART;
    }
    store_replace(&work, store_data(o, write ? RADOS_NOSNAP : snap));
    lock = lock_copy(o ? o->lock : NULL);
    saved = write ? cls_save(key) : NULL;
    for (unsigned i = 0; i < op->n_steps && r == 0; i++) {
        struct rados_step *s = &op->steps[i];
        GByteArray *bytes = payload && payload[i] ?
                            g_byte_array_ref(payload[i]) :
                            s->kind == RADOS_READ ? g_byte_array_new() :
                            gather(s);

        if (s->kind == RADOS_CALL) {
            r = do_call(s, &call, bytes, outputs);
        } else if (write) {
            call.modified |= !step_is_idle(s, o, work);
            r = write_step(s, o, &work, bytes);
        } else {
            r = read_step(s, o, work, max_read, outputs);
        }
        s->rval = r;
        g_byte_array_unref(bytes);
    }
    if (write && r == 0) {
        commit(o, op, &call);
    }
    if (write) {
        cls_saved(key, saved, r < 0);
    }
    op->version = o ? o->version : 0;
    store_replace(&work, NULL);
    lock_free(lock);
    return r;
}

/* ---- the test's hands ---------------------------------------------------- */

int64_t fake_object_size(int64_t pool, const char *ns, const char *oid,
                         uint64_t snap)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(pool, ns, oid);
    const GByteArray *data = store_data(store_find(key), snap);

    return data ? (int64_t)data->len : -ENOENT;
}

int64_t fake_object_read(int64_t pool, const char *ns, const char *oid,
                         uint64_t snap, uint64_t off, void *buf, size_t len)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(pool, ns, oid);
    const GByteArray *data = store_data(store_find(key), snap);

    if (!data) {
        return -ENOENT;
    }
    if (off >= data->len) {
        return 0;
    }
    len = MIN(len, data->len - off);
    memcpy(buf, data->data + off, len);
    return len;
}

void fake_object_put(int64_t pool, const char *ns, const char *oid,
                     const void *data, size_t len)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(pool, ns, oid);
    GByteArray *bytes = g_byte_array_new();

    if (len) {
        g_byte_array_append(bytes, data, len);
    }
    store_put(key, bytes);
}

void fake_object_remove(int64_t pool, const char *ns, const char *oid)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(pool, ns, oid);

    store_put(key, NULL);
}

unsigned fake_object_count(int64_t pool, const char *match)
{
    g_autofree char *start = g_strdup_printf("%" G_GINT64_FORMAT "/",
                                             (gint64)pool);
    GHashTableIter it;
    gpointer key;
    gpointer value;
    unsigned n = 0;

    g_hash_table_iter_init(&it, objects);
    while (g_hash_table_iter_next(&it, &key, &value)) {
        const struct fake_object *o = value;

        if (o->data && g_str_has_prefix(key, start) &&
            g_pattern_match_simple(match, strrchr(key, '/') + 1)) {
            n++;
        }
    }
    return n;
}
