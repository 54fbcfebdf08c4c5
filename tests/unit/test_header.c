/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Header values: the bytes real OSDs (16.2) gave for a few images, every
 * truncation of them, values that make no sense; then the reading of a header
 * against the fake: failures at every op, vanishing snapshots, many
 * snapshots, cancel.
 */
#include "check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_rados.h"
#include "image_header.h"

/* ---- bytes of real images ------------------------------------------------ */

/* 20 MiB, order 22, default features, snapshots 4 (protected) and 5. */
static const char *const plain[HEADER_CALLS] = {
    [HEADER_SIZE] = "160000400100000000",
    [HEADER_PREFIX] = "150000007262645f646174612e313031353263356562353234",
    [HEADER_FEATURES] = "3d010000000000003d01000000000000",
    [HEADER_FLAGS] = "0000000000000000",
    [HEADER_SNAPCONTEXT] = "050000000000000002000000"
                           "05000000000000000400000000000000",
    [HEADER_DATA_POOL] = "ffffffffffffffff",
    [HEADER_PARENT] = "010118000000ffffffffffffffff0000000000000000"
                      "feffffffffffffff",
    [HEADER_OVERLAP] = "00",
    [HEADER_OP_FEATURES] = "0100000000000000",
};

/* A clone with a data pool of an image in another pool's namespace. */
static const char *const cloned[HEADER_CALLS] = {
    [HEADER_SIZE] = "160000400100000000",
    [HEADER_PREFIX] = "170000007262645f646174612e312e313034646163636539613965",
    [HEADER_FEATURES] = "bd010000000000008100000000000000",
    [HEADER_FLAGS] = "0000000000000000",
    [HEADER_SNAPCONTEXT] = "000000000000000000000000",
    [HEADER_DATA_POOL] = "0400000000000000",
    [HEADER_PARENT] = "0101270000000300000000000000030000006e73310c000000"
                      "3130353166393065326436650400000000000000",
    [HEADER_OVERLAP] = "010000800000000000",
    [HEADER_OP_FEATURES] = "0200000000000000",
};

static const char snap4[] =
    "01012c000000040000000000000001010400000000000000020000007331"
    "0000400100000000eff30d6b07bb6f0c00000000";
static const char overlap_some[] = "010000400100000000";
static const char overlap_none[] = "00";
static const char protected_[] = "02";
static const char striping[] = "00000100000000000400000000000000";

/* An allocation of exactly the size, so that ASan guards its end. */
static struct rados_blob hex(const char *text)
{
    size_t len = strlen(text) / 2;
    uint8_t *p = malloc(len ? len : 1);

    for (size_t i = 0; i < len; i++) {
        unsigned v;

        assert_int_equal(sscanf(text + 2 * i, "%2x", &v), 1);
        p[i] = v;
    }
    return (struct rados_blob) { p, len };
}

static void blob_free(struct rados_blob *b)
{
    free((void *)b->data);
}

static void cut(struct rados_blob *b, size_t len)
{
    uint8_t *p = malloc(len ? len : 1);

    memcpy(p, b->data, len);
    blob_free(b);
    *b = (struct rados_blob) { p, len };
}

static void load(const char *const from[HEADER_CALLS],
                 struct rados_blob to[HEADER_CALLS])
{
    for (unsigned i = 0; i < HEADER_CALLS; i++) {
        to[i] = hex(from[i]);
    }
}

static void unload(struct rados_blob b[HEADER_CALLS])
{
    for (unsigned i = 0; i < HEADER_CALLS; i++) {
        blob_free(&b[i]);
    }
}

static void test_plain(void **state)
{
    struct rados_blob out[HEADER_CALLS];
    struct image_meta *m = meta_new();
    const char *what = NULL;

    load(plain, out);
    assert_int_equal(header_decode_batch(out, m, &what), 0);
    assert_int_equal(m->order, 22);
    assert_int_equal(m->size, 20 << 20);
    assert_string_equal(m->object_prefix, "rbd_data.10152c5eb524");
    assert_int_equal(m->features, 0x13d);
    assert_int_equal(m->incompatible, 0x13d);
    assert_int_equal(m->flags, 0);
    assert_int_equal(m->snapc.seq, 5);
    assert_int_equal(m->snapc.n, 2);
    assert_int_equal(m->snapc.ids[0], 5);
    assert_int_equal(m->snapc.ids[1], 4);
    assert_true(m->data_pool_id == -1);
    assert_true(m->parent.pool_id == -1);
    assert_int_equal(m->overlap, 0);
    assert_int_equal(m->op_features, 1);
    unload(out);
    meta_unref(m);
}

static void test_clone(void **state)
{
    struct rados_blob out[HEADER_CALLS];
    struct image_meta *m = meta_new();
    const char *what = NULL;

    load(cloned, out);
    assert_int_equal(header_decode_batch(out, m, &what), 0);
    assert_string_equal(m->object_prefix, "rbd_data.1.104dacce9a9e");
    assert_int_equal(m->data_pool_id, 4);
    assert_int_equal(m->incompatible, 0x81);
    assert_int_equal(m->snapc.n, 0);
    assert_int_equal(m->snapc.seq, 0);
    assert_int_equal(m->parent.pool_id, 3);
    assert_string_equal(m->parent.ns, "ns1");
    assert_string_equal(m->parent.image_id, "1051f90e2d6e");
    assert_int_equal(m->parent.snap_id, 4);
    assert_int_equal(m->overlap, 8 << 20);
    unload(out);
    meta_unref(m);
}

static void test_snap(void **state)
{
    struct rados_blob info = hex(snap4);
    struct rados_blob over = hex(overlap_some);
    struct rados_blob prot = hex(protected_);
    struct header_snap s = { 0 };
    const char *what = NULL;

    assert_int_equal(header_decode_snap(&info, &over, &prot, 4, &s, &what),
                     0);
    assert_int_equal(s.id, 4);
    assert_string_equal(s.name, "s1");
    assert_int_equal(s.size, 20 << 20);
    assert_int_equal(s.overlap, 20 << 20);
    assert_int_equal(s.type, 0);
    assert_true(s.is_protected);
    assert_int_equal(s.time_s, 0x6b0df3ef);
    assert_int_equal(s.time_ns, 0x0c6fbb07);

    /* somebody else's record */
    assert_int_equal(header_decode_snap(&info, &over, &prot, 5, &s, &what),
                     -EBADMSG);
    assert_non_null(strstr(what, "snapshot_get"));
    blob_free(&info);
    blob_free(&over);
    blob_free(&prot);
}

/* A trash snapshot: a namespace with fields that nobody here reads. */
static void test_snap_of_other_type(void **state)
{
    struct rados_blob info = hex(
        "01013a000000" "0900000000000000"
        "010112000000" "02000000" "0600000066696e652d31" "00000000"
        "020000007a7a" "0000100000000000" "0000000000000000" "00000000");
    struct rados_blob over = hex(overlap_none);
    struct rados_blob prot = hex("00");
    struct header_snap s = { 0 };
    const char *what = NULL;

    assert_int_equal(header_decode_snap(&info, &over, &prot, 9, &s, &what),
                     0);
    assert_int_equal(s.type, 2);
    assert_string_equal(s.name, "zz");
    assert_int_equal(s.size, 1 << 20);
    assert_int_equal(s.overlap, 0);
    assert_false(s.is_protected);
    blob_free(&info);
    blob_free(&over);
    blob_free(&prot);
}

static void test_striping(void **state)
{
    struct rados_blob out = hex(striping);
    struct image_meta *m = meta_new();
    const char *what = NULL;

    m->order = 20;
    assert_int_equal(header_decode_striping(&out, m, &what), 0);
    assert_int_equal(m->stripe_unit, 65536);
    assert_int_equal(m->stripe_count, 4);
    m->order = 15;              /* objects smaller than the unit */
    assert_int_equal(header_decode_striping(&out, m, &what), -EBADMSG);
    assert_non_null(strstr(what, "get_stripe_unit_count"));
    m->order = 20;
    for (size_t len = 15; len != SIZE_MAX; len--) {
        cut(&out, len);
        what = NULL;
        assert_int_equal(header_decode_striping(&out, m, &what), -EBADMSG);
        assert_non_null(what);
    }
    blob_free(&out);
    meta_unref(m);
}

static void truncate_each(const char *const from[HEADER_CALLS])
{
    for (unsigned i = 0; i < HEADER_CALLS; i++) {
        for (size_t len = 0; len < strlen(from[i]) / 2; len++) {
            struct rados_blob out[HEADER_CALLS];
            struct image_meta *m = meta_new();
            const char *what = NULL;

            load(from, out);
            cut(&out[i], len);
            assert_int_equal(header_decode_batch(out, m, &what), -EBADMSG);
            assert_non_null(what);
            unload(out);
            meta_unref(m);
        }
    }
}

static void test_truncated(void **state)
{
    static const char *const snap[3] = { snap4, overlap_some, protected_ };

    truncate_each(plain);
    truncate_each(cloned);
    for (unsigned i = 0; i < 3; i++) {
        for (size_t len = 0; len < strlen(snap[i]) / 2; len++) {
            struct rados_blob b[3] = {
                hex(snap[0]), hex(snap[1]), hex(snap[2]),
            };
            struct header_snap s;
            const char *what = NULL;

            cut(&b[i], len);
            assert_int_equal(header_decode_snap(&b[0], &b[1], &b[2], 4, &s,
                                                &what), -EBADMSG);
            assert_non_null(what);
            blob_free(&b[0]);
            blob_free(&b[1]);
            blob_free(&b[2]);
        }
    }
}

static void test_nonsense(void **state)
{
    static const struct {
        enum header_call call;
        const char *bytes;
        const char *what;       /* in the text */
    } cases[] = {
        { HEADER_SIZE, "0b0000400100000000", "object size" },
        { HEADER_SIZE, "1a0000400100000000", "object size" },
        { HEADER_SIZE, "ff0000400100000000", "object size" },
        { HEADER_SIZE, "160000000000000080", "image size" },
        { HEADER_PREFIX, "00000000", "get_object_prefix" },
        { HEADER_PREFIX, "ffffffff72", "get_object_prefix" },
        { HEADER_PREFIX, "02000000" "7200", "get_object_prefix" },
        { HEADER_SNAPCONTEXT, "0500000000000000ffffffff0500000000000000",
          "get_snapcontext" },
        { HEADER_SNAPCONTEXT, "050000000000000002000000"
          "04000000000000000500000000000000", "descending" },
        { HEADER_SNAPCONTEXT, "050000000000000002000000"
          "04000000000000000400000000000000", "descending" },
        { HEADER_SNAPCONTEXT, "0400000000000000010000000500000000000000",
          "sequence" },
        { HEADER_DATA_POOL, "feffffffffffffff", "get_data_pool" },
        { HEADER_PARENT, "010218000000ffffffffffffffff0000000000000000"
          "feffffffffffffff", "parent_get" },
        { HEADER_PARENT, "010117000000ffffffffffffffff0000000000000000"
          "feffffffffffffff", "parent_get" },
        { HEADER_PARENT, "010118000000ffffffffffffffffffffffff00000000"
          "feffffffffffffff", "parent_get" },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct rados_blob out[HEADER_CALLS];
        struct image_meta *m = meta_new();
        const char *what = NULL;

        load(plain, out);
        blob_free(&out[cases[i].call]);
        out[cases[i].call] = hex(cases[i].bytes);
        assert_int_equal(header_decode_batch(out, m, &what), -EBADMSG);
        assert_non_null(what);
        if (!strstr(what, cases[i].what)) {
            fail_msg("'%s' is not in '%s'", cases[i].what, what);
        }
        unload(out);
        meta_unref(m);
    }
}

/* Newer servers may add to the end of a block. */
static void test_longer_block(void **state)
{
    struct rados_blob out[HEADER_CALLS];
    struct image_meta *m = meta_new();
    const char *what = NULL;

    load(plain, out);
    blob_free(&out[HEADER_PARENT]);
    out[HEADER_PARENT] = hex("02011a000000ffffffffffffffff00000000"
                             "00000000feffffffffffffff" "abcd");
    assert_int_equal(header_decode_batch(out, m, &what), 0);
    assert_true(m->parent.pool_id == -1);
    unload(out);
    meta_unref(m);
}

static void test_overlap_is_clipped(void **state)
{
    struct rados_blob out[HEADER_CALLS];
    struct image_meta *m = meta_new();
    const char *what = NULL;

    load(cloned, out);
    blob_free(&out[HEADER_OVERLAP]);
    out[HEADER_OVERLAP] = hex("01ffffffffffffffff");
    assert_int_equal(header_decode_batch(out, m, &what), 0);
    assert_int_equal(m->overlap, 20 << 20);
    /* without a parent there is none */
    blob_free(&out[HEADER_PARENT]);
    out[HEADER_PARENT] = hex(plain[HEADER_PARENT]);
    assert_int_equal(header_decode_batch(out, m, &what), 0);
    assert_int_equal(m->overlap, 0);
    unload(out);
    meta_unref(m);
}

/* ---- reading ------------------------------------------------------------- */

struct reading {
    struct rados_conn *conn;
    struct rados_pool *pool;
    struct fake_image *img;
    struct header_fetch f;
    unsigned n_done;
    int result;
};

static void fetch_done(struct header_fetch *f, int result)
{
    struct reading *r = f->opaque;

    r->n_done++;
    r->result = result;
}

static int setup(void **state)
{
    static const struct pinrbd_cluster_options o = { .size = sizeof(o) };
    struct reading *r = g_new0(struct reading, 1);

    fake_start(0);
    r->img = fake_image_add("rbd", "", "disk", 20 << 20, 22);
    assert_int_equal(fake_rados.conn_new(&o, &r->conn, NULL), 0);
    assert_int_equal(fake_rados.conn_connect(r->conn, NULL), 0);
    assert_int_equal(fake_rados.pool_open(r->conn, "rbd", "", &r->pool), 0);
    fake_log_clear();
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct reading *r = *state;

    fake_rados.pool_close(r->pool);
    fake_rados.conn_free(r->conn);
    fake_stop();
    g_free(r);
    return 0;
}

static void start(struct reading *r)
{
    r->n_done = 0;
    r->result = 1;
    r->f = (struct header_fetch) {
        .pool = r->pool, .oid = r->img->header, .done = fetch_done,
        .opaque = r,
    };
    header_fetch_start(&r->f);
}

static void fetch(struct reading *r, int result)
{
    start(r);
    assert_int_equal(r->n_done, 0);
    fake_run();
    assert_int_equal(r->n_done, 1);
    assert_int_equal(r->result, result);
}

static void add_snaps(struct reading *r, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        g_autofree char *name = g_strdup_printf("s%u", i);

        fake_image_snap_add(r->img, name);
    }
}

static void make_striped(struct reading *r)
{
    r->img->features |= PINRBD_FEATURE_STRIPINGV2;
    r->img->stripe_unit = 65536;
    r->img->stripe_count = 4;
}

static void test_fetch(void **state)
{
    struct reading *r = *state;
    uint64_t first;

    fetch(r, 0);
    assert_int_equal(fake_log_length(), 1);     /* one op for all of it */
    assert_int_equal(r->f.meta->size, 20 << 20);
    assert_int_equal(r->f.meta->snapc.n, 0);
    assert_int_not_equal(r->f.meta->version, 0);
    first = r->f.meta->version;
    header_fetch_clear(&r->f);

    fake_image_set_size(r->img, 24 << 20);
    fetch(r, 0);
    assert_int_equal(r->f.meta->size, 24 << 20);
    assert_true(r->f.meta->version > first);
    header_fetch_clear(&r->f);
}

static void test_fetch_asks_for_readers(void **state)
{
    struct reading *r = *state;

    r->img->features |= PINRBD_FEATURE_OBJECT_MAP;
    fetch(r, 0);
    assert_true(r->f.meta->incompatible & PINRBD_FEATURE_OBJECT_MAP);
    header_fetch_clear(&r->f);
    r->n_done = 0;
    r->f = (struct header_fetch) {
        .pool = r->pool, .oid = r->img->header, .done = fetch_done,
        .opaque = r, .read_only = true,
    };
    header_fetch_start(&r->f);
    fake_run();
    assert_int_equal(r->result, 0);
    assert_false(r->f.meta->incompatible & PINRBD_FEATURE_OBJECT_MAP);
    assert_true(r->f.meta->features & PINRBD_FEATURE_OBJECT_MAP);
    header_fetch_clear(&r->f);
}

static void test_fetch_striping(void **state)
{
    struct reading *r = *state;

    make_striped(r);
    fetch(r, 0);
    assert_int_equal(fake_log_length(), 2);
    assert_int_equal(r->f.meta->stripe_unit, 65536);
    assert_int_equal(r->f.meta->stripe_count, 4);
    header_fetch_clear(&r->f);
}

static void test_fetch_many_snaps(void **state)
{
    static const unsigned counts[] = { 1, 31, 32, 33, 64, 65, 100 };

    for (size_t i = 0; i < G_N_ELEMENTS(counts); i++) {
        struct reading *r;
        unsigned n = counts[i];

        setup(state);
        r = *state;
        add_snaps(r, n);
        fetch(r, 0);
        assert_int_equal(r->f.meta->snapc.n, n);
        assert_int_equal(fake_log_length(), 1 + (n + 31) / 32);
        for (unsigned k = 0; k < n; k++) {
            const struct header_snap *s = &r->f.meta->snaps[k];
            g_autofree char *name = g_strdup_printf("s%u", n - 1 - k);

            assert_int_equal(s->id, r->f.meta->snap_ids[k]);
            assert_string_equal(s->name, name);
        }
        header_fetch_clear(&r->f);
        teardown(state);
    }
}

/* A failure of each op in turn ends the reading with that failure. */
static void test_fetch_fails_anywhere(void **state)
{
    struct reading *r = *state;
    unsigned n_ops;

    make_striped(r);
    add_snaps(r, 70);
    fetch(r, 0);
    n_ops = fake_log_length();
    assert_int_equal(n_ops, 5);
    header_fetch_clear(&r->f);
    for (unsigned i = 0; i < n_ops; i++) {
        fake_log_clear();
        fake_fault_add(&(struct fake_fault) {
            .match = "call *", .skip = i, .err = -EIO,
        });
        fetch(r, -EIO);
        assert_null(r->f.meta);
        assert_null(r->f.what);
        assert_int_equal(fake_log_length(), i + 1);
        header_fetch_clear(&r->f);
    }
    assert_int_equal(fake_fault_hits(), n_ops);
}

static void test_fetch_no_header(void **state)
{
    struct reading *r = *state;

    fake_object_remove(FAKE_POOL_RBD, "", r->img->header);
    fetch(r, -ENOENT);
    assert_int_equal(fake_log_length(), 1);     /* not tried again */
    header_fetch_clear(&r->f);
}

/* A snapshot removed between the ops: from the start, with what is true. */
static void test_fetch_vanishing_snap(void **state)
{
    struct reading *r = *state;
    uint64_t gone;
    uint64_t stays;

    gone = fake_image_snap_add(r->img, "gone");
    stays = fake_image_snap_add(r->img, "stays");
    start(r);
    fake_run_one(0);
    fake_image_snap_remove(r->img, gone);
    fake_run();
    assert_int_equal(r->n_done, 1);
    assert_int_equal(r->result, 0);
    assert_int_equal(fake_log_length(), 4);
    assert_int_equal(r->f.meta->snapc.n, 1);
    assert_int_equal(r->f.meta->snapc.ids[0], stays);
    assert_int_equal(r->f.meta->snapc.seq, stays);
    assert_string_equal(r->f.meta->snaps[0].name, "stays");
    header_fetch_clear(&r->f);
}

/* It does not go on for ever. */
static void test_fetch_vanishing_always(void **state)
{
    struct reading *r = *state;

    add_snaps(r, 1);
    fake_fault_add(&(struct fake_fault) {
        .match = "*snapshot_get*", .times = UINT_MAX, .err = -ENOENT,
    });
    fetch(r, -ENOENT);
    assert_int_equal(fake_log_count("*get_size*"), 11);
    assert_null(r->f.meta);
    header_fetch_clear(&r->f);
}

static void test_fetch_corrupt(void **state)
{
    static const struct {
        const char *method;
        const char *bytes;
    } cases[] = {
        { "get_size", "16000040" },
        { "get_object_prefix", "" },
        { "get_features", "3d01000000000000" },
        { "get_snapcontext", "0500000000000000ffffffff" },
        { "get_data_pool", "" },
        { "parent_get", "0101" },
        { "parent_overlap_get", "01" },
        { "op_features_get", "" },
        { "get_flags", "" },
        { "get_stripe_unit_count", "01000000000000000400000000" },
        { "get_stripe_unit_count", "0300000000000000" "0400000000000000" },
        { "snapshot_get", "01012c0000" },
        { "get_protection_status", "" },
    };
    struct reading *r = *state;

    make_striped(r);
    add_snaps(r, 2);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct rados_blob b = hex(cases[i].bytes);

        fake_override(r->img->header, cases[i].method, b.data, b.len);
        fetch(r, -EBADMSG);
        assert_non_null(r->f.what);
        if (!strstr(r->f.what, cases[i].method)) {
            fail_msg("'%s' does not name %s", r->f.what, cases[i].method);
        }
        header_fetch_clear(&r->f);
        fake_override(r->img->header, cases[i].method, NULL, 0);
        blob_free(&b);
    }
    fetch(r, 0);
    header_fetch_clear(&r->f);
}

static void test_fetch_cancel(void **state)
{
    struct reading *r = *state;

    make_striped(r);
    add_snaps(r, 70);
    for (unsigned after = 0; after < 5; after++) {
        start(r);
        for (unsigned i = 0; i < after; i++) {
            fake_run_one(0);
        }
        header_fetch_cancel(&r->f);
        fake_run();
        assert_int_equal(r->n_done, 1);
        assert_int_equal(r->result, -ECANCELED);
        assert_null(r->f.meta);
        header_fetch_clear(&r->f);
    }
}

/* A cancelled reading sends nothing more, also when a snapshot vanished. */
static void test_fetch_cancel_and_vanish(void **state)
{
    struct reading *r = *state;

    add_snaps(r, 1);
    fake_fault_add(&(struct fake_fault) {
        .match = "*snapshot_get*", .times = UINT_MAX, .err = -ENOENT,
    });
    start(r);
    fake_run_one(0);
    header_fetch_cancel(&r->f);
    fake_run_one(0);
    assert_int_equal(r->n_done, 1);
    assert_true(r->result < 0);
    assert_int_equal(fake_pending(), 0);
    header_fetch_clear(&r->f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_clone),
        cmocka_unit_test(test_snap),
        cmocka_unit_test(test_snap_of_other_type),
        cmocka_unit_test(test_striping),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_longer_block),
        cmocka_unit_test(test_overlap_is_clipped),
        cmocka_unit_test_setup_teardown(test_fetch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fetch_asks_for_readers, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fetch_striping, setup, teardown),
        cmocka_unit_test(test_fetch_many_snaps),
        cmocka_unit_test_setup_teardown(test_fetch_fails_anywhere, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fetch_no_header, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fetch_vanishing_snap, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fetch_vanishing_always, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fetch_corrupt, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fetch_cancel, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fetch_cancel_and_vanish, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
