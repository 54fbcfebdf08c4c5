/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The object map, as librbd's version 1: two bits an object, four objects a
 * byte, the first in the highest bits.
 *
 * The one dangerous error is NONEXISTENT for an object that exists: reads
 * would give zeroes and `rbd rm' would leave it behind.  So the map on disk is
 * changed before the object (EXISTS before a write, PENDING before a remove)
 * and after it (NONEXISTENT once it is removed), and memory follows the disk.
 * A crash in between leaves entries that claim too much, never too little.
 *
 * Every change of the head's map asserts our lock on the map object in the
 * same op.  An update is an op of its own, and they are sent side by side: two
 * calls in one op would not see each other's changes, and a call rewrites a
 * whole block of the map.
 *
 *     an update's op --ok--> memory changed, callback
 *              |  \--EBUSY, ESHUTDOWN--> callback with the error
 *              | other, WORKING
 *              v
 *     FLAGGING (updates that fail or come now wait)
 *              |  \--ok--> GIVEN_UP: the header says that the map is invalid;
 *              |           updates succeed at once
 *              \--error--> WORKING, callbacks with the error
 *
 * Reading an entry takes no lock: bytes are loaded and stored atomically.  A
 * map that was ended (lock released or lost) is absent of nothing; who reads
 * an entry before it looks whether the map is still live knows that the entry
 * was right when it was read.
 *
 * The flag that invalidates a map is only ever set here; clearing it is the
 * privilege of `rbd object-map rebuild'.
 */
#include "object_map.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cls_lock.h"
#include "codec.h"
#include "log.h"
#include "rados_sync.h"

#define HEADER_LEN 14           /* of the encoded header block */

enum map_phase {
    MAP_WORKING,
    MAP_FLAGGING,
    MAP_GIVEN_UP,
};

struct object_map {
    gatomicrefcount refs;
    /* fixed */
    uint64_t n;
    bool memory;                /* nothing on disk */
    struct rados_pool *pool;
    char oid[OBJECT_MAP_OID_MAX];
    char *header_oid;
    char *spec;
    bool fast_diff;

    int live;                   /* atomic */
    int trusted;                /* atomic: NONEXISTENT means absent */
    uint64_t ops;               /* atomic */
    uint8_t *bits;              /* atomic bytes; written under lock */

    uint8_t assertion[LOCK_ASSERT_MAX];
    struct iovec assertion_iov;
    struct rados_step assertion_step;   /* to be copied */

    GMutex lock;
    /* under lock */
    enum map_phase phase;
    struct map_update *waiting;     /* FLAGGING */
    int error;                      /* why the flags are being set */
    struct rados_op op;
    struct rados_step step;
    struct iovec iov;
    uint8_t in[24];
};

/* ---- bytes -------------------------------------------------------------- */

void object_map_oid(char buf[OBJECT_MAP_OID_MAX], const char *image_id,
                    uint64_t snap_id)
{
    if (snap_id == RADOS_NOSNAP) {
        snprintf(buf, OBJECT_MAP_OID_MAX, "rbd_object_map.%s", image_id);
    } else {
        snprintf(buf, OBJECT_MAP_OID_MAX, "rbd_object_map.%s.%016" PRIx64,
                 image_id, snap_id);
    }
}

static unsigned shift_of(uint64_t object)
{
    return 6 - 2 * (object % 4);
}

enum object_state object_bits_get(const uint8_t *bits, uint64_t object)
{
    uint8_t byte = __atomic_load_n(&bits[object / 4], __ATOMIC_ACQUIRE);

    return byte >> shift_of(object) & 3;
}

void object_bits_set(uint8_t *bits, uint64_t object, enum object_state state)
{
    uint8_t byte = bits[object / 4];

    byte &= ~(3u << shift_of(object));
    byte |= state << shift_of(object);
    __atomic_store_n(&bits[object / 4], byte, __ATOMIC_RELEASE);
}

int object_map_decode(const void *data, size_t len, uint64_t *ret_n,
                      const uint8_t **ret_bits)
{
    struct pdec d, header, body;
    const void *head;
    uint64_t n;

    pdec_init(&d, data, len);
    len = pdec_u32(&d);
    head = pdec_bytes(&d, len);
    pdec_init(&header, head, head ? len : 0);
    pdec_block(&header, 1, &body);
    n = pdec_u64(&body);
    if (!pdec_ok(&d) || !pdec_ok(&header) || !pdec_ok(&body) ||
        n > OBJECT_MAP_MAX) {
        return -EBADMSG;
    }
    *ret_bits = pdec_bytes(&d, (n + 3) / 4);
    *ret_n = n;
    return pdec_ok(&d) ? 0 : -EBADMSG;
}

GByteArray *object_map_encode(uint64_t n, const uint8_t *bits)
{
    size_t len = (n + 3) / 4;
    GByteArray *a = g_byte_array_sized_new(4 + HEADER_LEN + len + 4);
    struct penc e;
    size_t block;

    g_byte_array_set_size(a, 4 + HEADER_LEN + len + 4);
    penc_init(&e, a->data, a->len);
    penc_u32(&e, HEADER_LEN);
    block = penc_block(&e, 1, 1);
    penc_u64(&e, n);
    penc_block_end(&e, block);
    penc_bytes(&e, bits, len);
    penc_u32(&e, 0);            /* no checksums: the OSD computes them */
    return a;
}

/* u64 flags, u64 mask, u64 snapshot */
size_t object_map_encode_flags(uint8_t *buf, size_t size, bool fast_diff,
                               uint64_t snap_id)
{
    uint64_t flags = FLAG_OBJECT_MAP_INVALID |
                     (fast_diff ? FLAG_FAST_DIFF_INVALID : 0);
    struct penc e;

    penc_init(&e, buf, size);
    penc_u64(&e, flags);
    penc_u64(&e, flags);
    penc_u64(&e, snap_id);
    return penc_len(&e);
}

int object_map_invalidate(const struct object_map_home *home, uint64_t snap_id,
                          gint64 deadline_us)
{
    uint8_t in[24];
    size_t len = object_map_encode_flags(in, sizeof(in), home->fast_diff,
                                         snap_id);

    return rados_call_sync(home->pool, home->header_oid, "rbd", "set_flags",
                           in, len, deadline_us);
}

/* ---- life --------------------------------------------------------------- */

static struct object_map *map_new(uint64_t n, enum object_state all)
{
    struct object_map *m = g_new0(struct object_map, 1);

    g_atomic_ref_count_init(&m->refs);
    g_mutex_init(&m->lock);
    m->n = n;
    m->live = 1;
    m->bits = g_try_malloc((n + 3) / 4 ?: 1);
    if (!m->bits) {
        object_map_unref(m);
        return NULL;
    }
    memset(m->bits, all * 0x55, (n + 3) / 4);
    return m;
}

static struct object_map *map_new_on_disk(const struct object_map_home *home,
                                          uint64_t n, uint64_t snap_id)
{
    struct object_map *m = map_new(n, OBJECT_EXISTS);

    if (m) {
        m->pool = home->pool;
        m->header_oid = g_strdup(home->header_oid);
        m->spec = g_strdup(home->spec);
        m->fast_diff = home->fast_diff;
        object_map_oid(m->oid, home->image_id, snap_id);
        lock_assert_step(&m->assertion_step, &m->assertion_iov, m->assertion,
                         "", "");
    }
    return m;
}

struct object_map *object_map_new_memory(uint64_t n)
{
    struct object_map *m = map_new(n, OBJECT_EXISTS);

    if (m) {
        m->memory = true;
        m->trusted = 1;
    }
    return m;
}

struct object_map *object_map_ref(struct object_map *m)
{
    if (m) {
        g_atomic_ref_count_inc(&m->refs);
    }
    return m;
}

void object_map_unref(struct object_map *m)
{
    if (m && g_atomic_ref_count_dec(&m->refs)) {
        g_assert(!m->waiting);
        g_mutex_clear(&m->lock);
        g_free(m->header_oid);
        g_free(m->spec);
        g_free(m->bits);
        g_free(m);
    }
}

void object_map_end(struct object_map *m)
{
    __atomic_store_n(&m->live, 0, __ATOMIC_RELEASE);
}

/* ---- opening ------------------------------------------------------------ */

static int lock_on_disk(const struct object_map_home *home, const char *oid,
                        gint64 deadline_us)
{
    struct lock_owner owner;
    int r = lock_take(home->pool, oid, "", "", deadline_us);

    /* Whoever has it is not the owner of the header: left from a crash. */
    for (unsigned i = 0; r == -EBUSY && i < 10; i++) {
        r = lock_get_owner(home->pool, oid, deadline_us, &owner);
        if (r > 0) {
            r = lock_break(home->pool, oid, &owner, deadline_us);
        }
        if (r == 0 || r == -ENOENT) {
            r = lock_take(home->pool, oid, "", "", deadline_us);
        }
    }
    return r == -EEXIST ? 0 : r;
}

int object_map_unlock(const struct object_map_home *home, gint64 deadline_us)
{
    char oid[OBJECT_MAP_OID_MAX];

    object_map_oid(oid, home->image_id, RADOS_NOSNAP);
    return lock_drop(home->pool, oid, "", deadline_us);
}

/* Make the map on disk hold @n entries, from nothing if @truncate. */
static int remake(struct object_map *m, bool truncate, gint64 deadline_us)
{
    uint8_t in[9];
    struct penc e;
    struct iovec iov = { in, sizeof(in) };
    struct rados_step steps[3];
    struct rados_op op = {
        .oid = m->oid, .steps = steps, .n_steps = 1,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY,
    };

    penc_init(&e, in, sizeof(in));
    penc_u64(&e, m->n);
    penc_u8(&e, OBJECT_NONEXISTENT);
    steps[0] = m->assertion_step;
    if (truncate) {
        steps[op.n_steps++] = (struct rados_step) { .kind = RADOS_TRUNCATE };
    }
    steps[op.n_steps++] = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "rbd", .method = "object_map_resize",
        .iov = &iov, .n_iov = 1,
    };
    return rados_op_sync(m->pool, &op, deadline_us);
}

/* The entries from disk: 0, -ERANGE when there are too few, -errno. */
static int load(struct object_map *m, gint64 deadline_us)
{
    g_autoptr(GByteArray) out = g_byte_array_new();
    const uint8_t *bits;
    uint64_t n;
    int r = rados_query_sync(m->pool, m->oid, "rbd", "object_map_load", NULL,
                             0, deadline_us, out);

    if (r == 0) {
        r = object_map_decode(out->data, out->len, &n, &bits);
    }
    if (r == 0 && n < m->n) {
        r = -ERANGE;
    }
    if (r == 0) {
        memcpy(m->bits, bits, (m->n + 3) / 4);
    }
    return r;
}

int object_map_open(const struct object_map_home *home, uint64_t n,
                    gint64 deadline_us, struct object_map **ret)
{
    struct object_map *m;
    const char *why = "cannot be locked";
    int r;

    *ret = NULL;
    if (n > OBJECT_MAP_MAX) {
        return object_map_invalidate(home, RADOS_NOSNAP, deadline_us);
    }
    m = map_new_on_disk(home, n, RADOS_NOSNAP);
    if (!m) {
        return -ENOMEM;
    }
    r = lock_on_disk(home, m->oid, deadline_us);
    if (r == 0) {
        r = load(m, deadline_us);
        why = r == -EINVAL || r == -EBADMSG ? "is corrupt" :
              r == -ERANGE ? "is too short" :
              r == -ENOENT ? "does not exist" : "cannot be read";
    }
    if (r < 0 && r != -ESHUTDOWN) {
        int flagged = object_map_invalidate(home, RADOS_NOSNAP, deadline_us);

        plog(PINRBD_LOG_WARN, "image '%s': its object map %s (%s) and is "
             "marked invalid; `rbd object-map rebuild' makes a new one",
             home->spec, why, g_strerror(-r));
        /* What we can mend goes on being updated, the rest is left alone. */
        if ((r != -ERANGE && r != -EINVAL) ||
            remake(m, r == -EINVAL, deadline_us) < 0) {
            m->phase = MAP_GIVEN_UP;
        }
        r = flagged;
    } else if (r == 0) {
        m->trusted = !(home->flags & FLAG_OBJECT_MAP_INVALID);
    }
    if (r < 0) {
        object_map_unref(m);
        return r;
    }
    *ret = m;
    return 0;
}

struct object_map *object_map_open_snap(const struct object_map_home *home,
                                        uint64_t snap_id, uint64_t n,
                                        gint64 deadline_us)
{
    g_autoptr(GByteArray) out = g_byte_array_new();
    struct object_map *m;
    struct pdec d;
    struct penc e;
    uint8_t in[8];
    int r;

    if (n > OBJECT_MAP_MAX) {
        return NULL;
    }
    m = map_new_on_disk(home, n, snap_id);
    if (!m) {
        return NULL;
    }
    penc_init(&e, in, sizeof(in));
    penc_u64(&e, snap_id);
    r = rados_query_sync(home->pool, home->header_oid, "rbd", "get_flags", in,
                         sizeof(in), deadline_us, out);
    pdec_init(&d, out->data, out->len);
    if (r < 0 || pdec_u64(&d) & FLAG_OBJECT_MAP_INVALID || !pdec_ok(&d) ||
        load(m, deadline_us) < 0) {
        object_map_unref(m);
        return NULL;
    }
    m->trusted = 1;
    return m;
}

/* ---- reading ------------------------------------------------------------ */

enum object_state object_map_get(const struct object_map *m, uint64_t object)
{
    return object < m->n ? object_bits_get(m->bits, object)
                         : OBJECT_NONEXISTENT;
}

bool object_map_absent(const struct object_map *m, uint64_t object)
{
    return object < m->n &&
           object_map_get(m, object) == OBJECT_NONEXISTENT &&
           __atomic_load_n(&m->trusted, __ATOMIC_ACQUIRE) &&
           __atomic_load_n(&m->live, __ATOMIC_ACQUIRE);
}

bool object_map_is_memory(const struct object_map *m)
{
    return m->memory;
}

uint64_t object_map_size(const struct object_map *m)
{
    return m->n;
}

uint64_t object_map_ops(const struct object_map *m)
{
    return __atomic_load_n(&m->ops, __ATOMIC_RELAXED);
}

/* ---- updating ----------------------------------------------------------- */

static bool matches(enum object_state state, int only_if)
{
    return only_if < 0 || state == (unsigned)only_if ||
           (only_if == OBJECT_EXISTS && state == OBJECT_EXISTS_CLEAN);
}

static void change_locked(struct object_map *m, const struct map_update *u)
{
    if (u->object < m->n && matches(object_bits_get(m->bits, u->object),
                                    u->only_if)) {
        object_bits_set(m->bits, u->object, u->state);
    }
}

void object_map_found_absent(struct object_map *m, uint64_t object)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&m->lock);

    if (object < m->n) {
        object_bits_set(m->bits, object, OBJECT_NONEXISTENT);
    }
}

/* The updates that waited for the flags: they end with @result. */
static void end_list(struct object_map *m, struct map_update *u, int result)
{
    struct map_update *next;

    for (; u; u = next) {
        next = u->next;
        u->done(u, result);
    }
    object_map_unref(m);
}

static void flags_done(struct rados_op *op)
{
    struct object_map *m = op->opaque;
    int result = op->result;
    struct map_update *list;

    plog(PINRBD_LOG_WARN, "image '%s': its object map cannot be updated (%s) "
         "and %s", m->spec, g_strerror(-m->error), result == 0 ?
         "is marked invalid; `rbd object-map rebuild' makes a new one" :
         "cannot be marked invalid either: the write fails");
    g_mutex_lock(&m->lock);
    if (result == 0) {
        __atomic_store_n(&m->trusted, 0, __ATOMIC_RELEASE);
    }
    m->phase = result == 0 ? MAP_GIVEN_UP : MAP_WORKING;
    list = m->waiting;
    m->waiting = NULL;
    for (struct map_update *u = list; u && result == 0; u = u->next) {
        change_locked(m, u);
    }
    g_mutex_unlock(&m->lock);
    end_list(m, list, result);
}

/* The map on disk will be wrong: say so there, before any object changes. */
static void flag_locked(struct object_map *m, int error)
{
    m->phase = MAP_FLAGGING;
    m->error = error;
    m->iov = (struct iovec) {
        m->in, object_map_encode_flags(m->in, sizeof(m->in), m->fast_diff,
                                       RADOS_NOSNAP),
    };
    m->step = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "rbd", .method = "set_flags",
        .iov = &m->iov, .n_iov = 1,
    };
    m->op = (struct rados_op) {
        .oid = m->header_oid, .steps = &m->step, .n_steps = 1,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY, .done = flags_done,
        .opaque = object_map_ref(m),
    };
    rados_submit(m->pool, &m->op);
}

static void update_done(struct rados_op *op)
{
    struct map_update *u = op->opaque;
    struct object_map *m = u->map;
    int result = op->result;
    bool lost = result == -EBUSY || result == -ESHUTDOWN ||
                result == -ECANCELED;

    g_mutex_lock(&m->lock);
    if (result < 0 && !lost && m->phase != MAP_GIVEN_UP) {
        u->next = m->waiting;
        m->waiting = u;
        if (m->phase == MAP_WORKING) {
            flag_locked(m, result);
        }
        g_mutex_unlock(&m->lock);
        return;
    }
    if (!lost) {
        change_locked(m, u);
        result = 0;
    }
    g_mutex_unlock(&m->lock);
    u->done(u, result);
}

static void encode_update(struct map_update *u)
{
    struct penc e;

    penc_init(&e, u->in, sizeof(u->in));
    penc_u64(&e, u->object);
    penc_u64(&e, u->object + 1);
    penc_u8(&e, u->state);
    penc_u8(&e, u->only_if >= 0);
    if (u->only_if >= 0) {
        penc_u8(&e, u->only_if);
    }
    u->iov = (struct iovec) { u->in, penc_len(&e) };
}

int object_map_update(struct object_map *m, struct map_update *u)
{
    g_mutex_lock(&m->lock);
    if (m->memory || m->phase == MAP_GIVEN_UP) {
        change_locked(m, u);
        g_mutex_unlock(&m->lock);
        return 1;
    }
    u->map = m;
    if (m->phase == MAP_FLAGGING) {
        u->next = m->waiting;
        m->waiting = u;
        g_mutex_unlock(&m->lock);
        return 0;
    }
    g_mutex_unlock(&m->lock);

    encode_update(u);
    u->steps[0] = m->assertion_step;
    u->steps[1] = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "rbd", .method = "object_map_update",
        .iov = &u->iov, .n_iov = 1,
    };
    u->op = (struct rados_op) {
        .oid = m->oid, .steps = u->steps, .n_steps = 2,
        .flags = RADOS_OP_WRITE | RADOS_OP_COPY, .done = update_done,
        .opaque = u,
    };
    __atomic_add_fetch(&m->ops, 1, __ATOMIC_RELAXED);
    rados_submit(m->pool, &u->op);
    return 0;
}
