/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Reading an image's header.  All values that must agree with each other come
 * in one read op, which the OSD executes atomically (librbd splits it); the
 * snapshots' records follow in ops of up to 32 snapshots.  A snapshot that is
 * removed in between answers -ENOENT, and the reading starts again.
 *
 *     BATCH --> STRIPING --> SNAPS --+--> END
 *       |  \__ no striping __^  ^____|
 *       |                       more than 32
 *       ^__ a snapshot vanished (10 times at most)
 *
 * STRIPING is an op of its own because get_stripe_unit_count fails, and with
 * it a whole batch, where the feature is off.
 *
 * Decoders take the methods' outputs as they came and trust nothing: the
 * values are checked against each other before anything uses them.
 */
#include "image_header.h"

#include <errno.h>
#include <string.h>

#include "codec.h"
#include "parent.h"
#include "striper.h"

#define SNAPS_PER_OP 32
#define CALLS_PER_SNAP 3
#define MAX_RESTARTS 10

static const char *const batch_method[HEADER_CALLS] = {
    [HEADER_SIZE] = "get_size",
    [HEADER_PREFIX] = "get_object_prefix",
    [HEADER_FEATURES] = "get_features",
    [HEADER_FLAGS] = "get_flags",
    [HEADER_SNAPCONTEXT] = "get_snapcontext",
    [HEADER_DATA_POOL] = "get_data_pool",
    [HEADER_PARENT] = "parent_get",
    [HEADER_OVERLAP] = "parent_overlap_get",
    [HEADER_OP_FEATURES] = "op_features_get",
};

struct image_meta *meta_new(void)
{
    struct image_meta *m = g_new0(struct image_meta, 1);

    g_atomic_ref_count_init(&m->refs);
    m->data_pool_id = -1;
    m->parent.pool_id = -1;
    return m;
}

struct image_meta *meta_ref(struct image_meta *m)
{
    g_atomic_ref_count_inc(&m->refs);
    return m;
}

void meta_unref(struct image_meta *m)
{
    if (m && g_atomic_ref_count_dec(&m->refs)) {
        parent_unref(m->parent_link);
        g_free(m->snap_ids);
        g_free(m->snaps);
        g_free(m);
    }
}

/* ---- decoding ---------------------------------------------------------- */

static struct pdec dec_of(const struct rados_blob *b)
{
    struct pdec d;

    pdec_init(&d, b->data, b->len);
    return d;
}

static int bad(const char **ret_what, const char *what)
{
    *ret_what = what;
    return -EBADMSG;
}

static int decode_snapcontext(const struct rados_blob *b,
                              struct image_meta *m, const char **ret_what)
{
    struct pdec d = dec_of(b);
    uint64_t seq = pdec_u64(&d);
    uint32_t n = pdec_count(&d, sizeof(uint64_t));

    if (!pdec_ok(&d)) {
        return bad(ret_what, "get_snapcontext: truncated");
    }
    g_free(m->snap_ids);
    g_free(m->snaps);
    m->snap_ids = g_try_new(uint64_t, n ?: 1);
    m->snaps = g_try_new0(struct header_snap, n ?: 1);
    if (!m->snap_ids || !m->snaps) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        m->snap_ids[i] = pdec_u64(&d);
        if (i && m->snap_ids[i] >= m->snap_ids[i - 1]) {
            return bad(ret_what, "get_snapcontext: ids not descending");
        }
    }
    if (n && m->snap_ids[0] > seq) {
        return bad(ret_what, "get_snapcontext: id above the sequence number");
    }
    /*
     * librbd sends an empty context without snapshots.  The sequence number
     * makes no difference to the data, but objects remember the highest one,
     * and ORDERSNAP refuses a lower: also after the last snapshot was removed.
     */
    m->snapc = (struct rados_snapc) {
        .seq = seq, .n = n, .ids = m->snap_ids,
    };
    return 0;
}

static bool decode_opt_u64(const struct rados_blob *b, uint64_t *ret)
{
    struct pdec d = dec_of(b);
    bool present = pdec_u8(&d);

    *ret = present ? pdec_u64(&d) : 0;
    return pdec_ok(&d);
}

static bool decode_parent(const struct rados_blob *b, struct header_parent *p)
{
    struct pdec d = dec_of(b);
    struct pdec body;

    pdec_block(&d, 1, &body);
    p->pool_id = pdec_i64(&body);
    pdec_text(&body, p->ns, sizeof(p->ns));
    pdec_text(&body, p->image_id, sizeof(p->image_id));
    p->snap_id = pdec_u64(&body);
    return pdec_ok(&body) && pdec_ok(&d);
}

int header_decode_batch(const struct rados_blob out[HEADER_CALLS],
                        struct image_meta *m, const char **ret_what)
{
    struct pdec d = dec_of(&out[HEADER_SIZE]);
    int r;

    m->order = pdec_u8(&d);
    m->size = pdec_u64(&d);
    if (!pdec_ok(&d)) {
        return bad(ret_what, "get_size: truncated");
    }
    if (!layout_valid(m->order, 0, 0)) {
        return bad(ret_what, "get_size: object size out of range");
    }
    if (m->size > INT64_MAX) {
        return bad(ret_what, "get_size: image size out of range");
    }

    d = dec_of(&out[HEADER_PREFIX]);
    pdec_text(&d, m->object_prefix, sizeof(m->object_prefix));
    if (!pdec_ok(&d) || !m->object_prefix[0]) {
        return bad(ret_what, "get_object_prefix: truncated or too long");
    }

    d = dec_of(&out[HEADER_FEATURES]);
    m->features = pdec_u64(&d);
    m->incompatible = pdec_u64(&d);
    if (!pdec_ok(&d)) {
        return bad(ret_what, "get_features: truncated");
    }

    d = dec_of(&out[HEADER_FLAGS]);
    m->flags = pdec_u64(&d);
    if (!pdec_ok(&d)) {
        return bad(ret_what, "get_flags: truncated");
    }

    r = decode_snapcontext(&out[HEADER_SNAPCONTEXT], m, ret_what);
    if (r < 0) {
        return r;
    }

    d = dec_of(&out[HEADER_DATA_POOL]);
    m->data_pool_id = pdec_i64(&d);
    if (!pdec_ok(&d) || m->data_pool_id < -1) {
        return bad(ret_what, "get_data_pool: truncated or negative");
    }

    if (!decode_parent(&out[HEADER_PARENT], &m->parent)) {
        return bad(ret_what, "parent_get: truncated or too long");
    }
    if (!decode_opt_u64(&out[HEADER_OVERLAP], &m->overlap)) {
        return bad(ret_what, "parent_overlap_get: truncated");
    }
    if (m->parent.pool_id < 0) {
        m->overlap = 0;
    }
    m->overlap = MIN(m->overlap, m->size);

    d = dec_of(&out[HEADER_OP_FEATURES]);
    m->op_features = pdec_u64(&d);
    if (!pdec_ok(&d)) {
        return bad(ret_what, "op_features_get: truncated");
    }
    return 0;
}

int header_decode_striping(const struct rados_blob *out, struct image_meta *m,
                           const char **ret_what)
{
    struct pdec d = dec_of(out);

    m->stripe_unit = pdec_u64(&d);
    m->stripe_count = pdec_u64(&d);
    if (!pdec_ok(&d)) {
        return bad(ret_what, "get_stripe_unit_count: truncated");
    }
    if (!layout_valid(m->order, m->stripe_unit, m->stripe_count)) {
        return bad(ret_what, "get_stripe_unit_count: values do not fit "
                             "the object size");
    }
    return 0;
}

int header_decode_snap(const struct rados_blob *info,
                       const struct rados_blob *overlap,
                       const struct rados_blob *protection, uint64_t id,
                       struct header_snap *s, const char **ret_what)
{
    struct pdec d = dec_of(info);
    struct pdec body;
    struct pdec ns;
    struct pdec prot = dec_of(protection);

    pdec_block(&d, 1, &body);
    s->id = pdec_u64(&body);
    pdec_block(&body, 1, &ns);
    s->type = pdec_u32(&ns);
    pdec_text(&body, s->name, sizeof(s->name));
    s->size = pdec_u64(&body);
    s->time_s = pdec_u32(&body);
    s->time_ns = pdec_u32(&body);
    s->n_children = pdec_u32(&body);
    if (!pdec_ok(&d) || !pdec_ok(&body) || !pdec_ok(&ns)) {
        return bad(ret_what, "snapshot_get: truncated or too long");
    }
    if (s->id != id) {
        return bad(ret_what, "snapshot_get: record of another snapshot");
    }
    if (s->size > INT64_MAX) {
        return bad(ret_what, "snapshot_get: size out of range");
    }
    if (!decode_opt_u64(overlap, &s->overlap)) {
        return bad(ret_what, "parent_overlap_get: truncated");
    }
    s->overlap = MIN(s->overlap, s->size);
    s->is_protected = pdec_u8(&prot) == 2;
    if (!pdec_ok(&prot)) {
        return bad(ret_what, "get_protection_status: truncated");
    }
    return 0;
}

/* ---- fetching ---------------------------------------------------------- */

static void advance(struct header_fetch *f);

static void fetch_op_done(struct rados_op *op)
{
    advance(op->opaque);
}

/* Input of step @i: the snapshot id, then @flag as a byte unless negative. */
static void put_input(struct header_fetch *f, size_t i, uint64_t snap,
                      int flag)
{
    struct penc e;

    penc_init(&e, f->input_bytes[i], sizeof(f->input_bytes[i]));
    penc_u64(&e, snap);
    if (flag >= 0) {
        penc_u8(&e, flag);
    }
    f->inputs[i] = (struct iovec) { f->input_bytes[i], penc_len(&e) };
    f->steps[i].iov = &f->inputs[i];
    f->steps[i].n_iov = 1;
}

static void put_call(struct header_fetch *f, size_t i, const char *method)
{
    f->steps[i] = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "rbd", .method = method,
    };
}

static void send(struct header_fetch *f, unsigned n_steps)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&f->lock);

    f->op = (struct rados_op) {
        .oid = f->oid, .steps = f->steps, .n_steps = n_steps,
        .done = fetch_op_done, .opaque = f,
    };
    rados_submit(f->pool, &f->op);
    if (f->cancelled) {
        rados_cancel(f->pool, &f->op);
    }
}

static void send_batch(struct header_fetch *f)
{
    meta_unref(f->meta);
    f->meta = meta_new();
    f->next_snap = 0;
    f->state = HEADER_FETCH_BATCH;
    for (unsigned i = 0; i < HEADER_CALLS; i++) {
        put_call(f, i, batch_method[i]);
    }
    put_input(f, HEADER_SIZE, RADOS_NOSNAP, -1);
    put_input(f, HEADER_FEATURES, RADOS_NOSNAP, f->read_only);
    put_input(f, HEADER_FLAGS, RADOS_NOSNAP, -1);
    put_input(f, HEADER_OVERLAP, RADOS_NOSNAP, -1);
    send(f, HEADER_CALLS);
}

static void send_striping(struct header_fetch *f)
{
    f->state = HEADER_FETCH_STRIPING;
    put_call(f, 0, "get_stripe_unit_count");
    send(f, 1);
}

static void send_snaps(struct header_fetch *f)
{
    f->state = HEADER_FETCH_SNAPS;
    f->n_batch = MIN(f->meta->snapc.n - f->next_snap, SNAPS_PER_OP);
    for (size_t i = 0; i < f->n_batch; i++) {
        uint64_t id = f->meta->snap_ids[f->next_snap + i];
        size_t step = i * CALLS_PER_SNAP;

        put_call(f, step, "snapshot_get");
        put_input(f, step, id, -1);
        put_call(f, step + 1, "parent_overlap_get");
        put_input(f, step + 1, id, -1);
        put_call(f, step + 2, "get_protection_status");
        put_input(f, step + 2, id, -1);
    }
    send(f, f->n_batch * CALLS_PER_SNAP);
}

static void finish(struct header_fetch *f, int result)
{
    f->state = HEADER_FETCH_END;
    if (result < 0) {
        meta_unref(f->meta);
        f->meta = NULL;
    }
    f->done(f, result);
}

static int take_batch(struct header_fetch *f)
{
    struct rados_blob out[HEADER_CALLS];

    for (unsigned i = 0; i < HEADER_CALLS; i++) {
        out[i] = f->steps[i].out;
    }
    f->meta->version = f->op.version;
    return header_decode_batch(out, f->meta, &f->what);
}

static int take_snaps(struct header_fetch *f)
{
    for (size_t i = 0; i < f->n_batch; i++) {
        const struct rados_step *s = &f->steps[i * CALLS_PER_SNAP];
        size_t n = f->next_snap + i;
        int r = header_decode_snap(&s[0].out, &s[1].out, &s[2].out,
                                   f->meta->snap_ids[n], &f->meta->snaps[n],
                                   &f->what);

        if (r < 0) {
            return r;
        }
    }
    f->next_snap += f->n_batch;
    return 0;
}

/* The method that failed the op, NULL if none of them did. */
static const char *failed_method(const struct header_fetch *f)
{
    for (unsigned i = 0; i < f->op.n_steps; i++) {
        if (f->steps[i].rval < 0) {
            return f->steps[i].method;
        }
    }
    return NULL;
}

static void advance(struct header_fetch *f)
{
    enum header_fetch_state state = f->state;
    int r = f->op.result;

    if (r == 0) {
        switch (state) {
        case HEADER_FETCH_BATCH:
            r = take_batch(f);
            break;
        case HEADER_FETCH_STRIPING:
            r = header_decode_striping(&f->steps[0].out, f->meta, &f->what);
            break;
        case HEADER_FETCH_SNAPS:
            r = take_snaps(f);
            break;
        case HEADER_FETCH_END:
            g_assert_not_reached();
        }
    } else {
        f->method = failed_method(f);
    }
    rados_op_done_with(f->pool, &f->op);

    g_mutex_lock(&f->lock);
    if (f->cancelled) {
        r = -ECANCELED;
    }
    g_mutex_unlock(&f->lock);

    if (r == -ENOENT && state == HEADER_FETCH_SNAPS &&
        f->restarts++ < MAX_RESTARTS) {
        send_batch(f);
    } else if (r < 0) {
        finish(f, r);
    } else if (state == HEADER_FETCH_BATCH &&
               f->meta->features & PINRBD_FEATURE_STRIPINGV2) {
        send_striping(f);
    } else if (f->next_snap < f->meta->snapc.n) {
        send_snaps(f);
    } else {
        finish(f, 0);
    }
}

void header_fetch_start(struct header_fetch *f)
{
    size_t n = SNAPS_PER_OP * CALLS_PER_SNAP;

    G_STATIC_ASSERT(SNAPS_PER_OP * CALLS_PER_SNAP >= HEADER_CALLS);
    f->meta = NULL;
    f->what = NULL;
    f->method = NULL;
    f->restarts = 0;
    f->cancelled = false;
    g_mutex_init(&f->lock);
    f->steps = g_new(struct rados_step, n);
    f->inputs = g_new(struct iovec, n);
    f->input_bytes = g_malloc_n(n, sizeof(*f->input_bytes));
    send_batch(f);
}

void header_fetch_cancel(struct header_fetch *f)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&f->lock);

    f->cancelled = true;
    rados_cancel(f->pool, &f->op);
}

void header_fetch_clear(struct header_fetch *f)
{
    g_free(f->steps);
    g_free(f->inputs);
    g_free(f->input_bytes);
    f->steps = NULL;
    f->inputs = NULL;
    f->input_bytes = NULL;
    meta_unref(f->meta);
    f->meta = NULL;
    g_mutex_clear(&f->lock);
}
