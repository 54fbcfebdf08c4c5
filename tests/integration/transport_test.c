/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The librados transport and the cluster registry against a real cluster.
 *
 *     CEPH_CONF=FILE transport_test POOL [OSD_PID [MON_PID [NAME...]]]
 *
 * POOL is one of replicated, self-managed snapshots; objects of it that start
 * with "transport_test." are overwritten and left behind, and so is a user of
 * that name.  Given the process id of the cluster's only OSD ("-": none), the
 * test also stops that process for a moment, to see a payload that librados
 * holds on to after the op was cancelled; likewise its only monitor, to see
 * what then ends by itself.  NAMEs restrict the run to these tests.
 *
 * Prints one line a test, and each failed check with its place; exits 0 when
 * all held, 1 when not.  Everything is waited for, nothing is timed.
 */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <inttypes.h>
#include <rados/librados.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster.h"
#include "codec.h"
#include "log.h"
#include "rados_op.h"

#define MIB             (1024u * 1024u)
#define PREFIX          "transport_test."

static const char *conf;
static const char *pool_name;
static pid_t osd_pid;
static pid_t mon_pid;

static struct pinrbd_cluster *cluster;
static struct rados_pool *pool;
static rados_t side;                /* a second client, plain librados */
static rados_ioctx_t side_io;
static gint failures;

#define CHECK(cond) do { \
        if (!(cond)) { \
            printf("  %s:%d: failed: %s\n", __func__, __LINE__, #cond); \
            g_atomic_int_inc(&failures); \
        } \
    } while (0)

#define CHECK_EQ(a, b) do { \
        int64_t a_ = (int64_t)(a); \
        int64_t b_ = (int64_t)(b); \
        if (a_ != b_) { \
            printf("  %s:%d: %s is %" PRId64 ", not %" PRId64 "\n", \
                   __func__, __LINE__, #a, a_, b_); \
            g_atomic_int_inc(&failures); \
        } \
    } while (0)

/* ---- waiting ----------------------------------------------------------- */

static GMutex lock;
static GCond changed;

static void wait_for(const unsigned *counter, unsigned n)
{
    g_mutex_lock(&lock);
    while (*counter < n) {
        g_cond_wait(&changed, &lock);
    }
    g_mutex_unlock(&lock);
}

static void count(unsigned *counter)
{
    g_mutex_lock(&lock);
    (*counter)++;
    g_cond_broadcast(&changed);
    g_mutex_unlock(&lock);
}

/* ---- ops --------------------------------------------------------------- */

struct test_op {
    struct rados_op op;
    unsigned done;
    bool inside_submit;         /* done came on the submitting thread */
    GThread *submitter;
};

static void op_done(struct rados_op *op)
{
    struct test_op *t = (struct test_op *)op;

    t->inside_submit = g_thread_self() == t->submitter;
    count(&t->done);
}

static void start_in(struct rados_pool *p, struct test_op *t, const char *oid,
                     unsigned flags, struct rados_step *steps, unsigned n)
{
    t->op.oid = oid;
    t->op.flags = flags;
    t->op.steps = steps;
    t->op.n_steps = n;
    t->op.done = op_done;
    t->done = 0;
    t->submitter = g_thread_self();
    memset(t->op.priv, 0xee, sizeof(t->op.priv));
    rados_submit(p, &t->op);
}

static int finish(struct test_op *t)
{
    wait_for(&t->done, 1);
    CHECK(!t->inside_submit);
    CHECK_EQ(t->done, 1);
    return t->op.result;
}

static int run(struct test_op *t, const char *oid, unsigned flags,
               struct rados_step *steps, unsigned n)
{
    start_in(pool, t, oid, flags, steps, n);
    return finish(t);
}

#define RUN(t, oid, flags, steps) \
    run(t, oid, flags, steps, G_N_ELEMENTS(steps))

static void fill(uint8_t *buf, size_t len, uint32_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * 1664525 + 1013904223;
        buf[i] = seed >> 24;
    }
}

static int remove_object(const char *oid)
{
    struct test_op t = { 0 };
    struct rados_step steps[] = { { .kind = RADOS_REMOVE } };

    return RUN(&t, oid, RADOS_OP_WRITE, steps);
}

static int write_object(const char *oid, const void *data, size_t len)
{
    struct test_op t = { 0 };
    struct iovec iov = { (void *)data, len };
    struct rados_step steps[] = {
        { .kind = RADOS_WRITE_FULL, .iov = &iov, .n_iov = 1 },
    };

    return RUN(&t, oid, RADOS_OP_WRITE, steps);
}

/* Reads up to @size bytes: the number read, or -errno. */
static int64_t read_object(struct rados_pool *p, const char *oid, void *buf,
                           size_t size)
{
    struct test_op t = { 0 };
    struct iovec iov = { buf, size };
    struct rados_step steps[] = {
        { .kind = RADOS_READ, .len = size, .iov = &iov, .n_iov = 1 },
    };
    int r;

    start_in(p, &t, oid, 0, steps, 1);
    r = finish(&t);
    return r < 0 ? r : (int64_t)steps[0].out_len;
}

static void test_scatter(void)
{
    const char *oid = PREFIX "scatter";
    const size_t len = 4 * MIB;
    g_autofree uint8_t *out = g_malloc(len);
    g_autofree uint8_t *in = g_malloc(len);
    struct iovec wiov[1025], riov[300];
    struct test_op t = { 0 };
    struct rados_step w[] = {
        { .kind = RADOS_ALLOC_HINT, .off = len, .len = len },
        { .kind = RADOS_WRITE, .iov = wiov, .n_iov = G_N_ELEMENTS(wiov) },
    };
    struct rados_step r[] = {
        { .kind = RADOS_READ, .len = len, .iov = riov,
          .n_iov = G_N_ELEMENTS(riov) },
        { .kind = RADOS_STAT },
    };
    size_t off = 0;

    remove_object(oid);
    /* uneven pieces, one of them empty, last one takes the rest */
    for (size_t i = 0; i < G_N_ELEMENTS(wiov); i++) {
        size_t n = i == 7 ? 0 : 4095 + i % 3;

        wiov[i].iov_base = out + off;
        wiov[i].iov_len = MIN(n, len - off);
        off += wiov[i].iov_len;
    }
    wiov[1024].iov_len += len - off;
    off = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(riov); i++) {
        size_t n = i == 3 ? 0 : i == 299 ? len : 13981 + i % 5;

        riov[i].iov_base = in + off;
        riov[i].iov_len = MIN(n, len - off);
        off += riov[i].iov_len;
    }
    CHECK_EQ(off, len);

    for (unsigned copy = 0; copy < 2; copy++) {
        fill(out, len, 17 + copy);
        CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE | (copy ? RADOS_OP_COPY : 0), w),
                 0);
        CHECK_EQ(t.op.pinned_bytes, copy ? 0 : len);
        CHECK_EQ(t.op.copied_bytes, copy ? len : 0);
        CHECK(!t.op.late);
        CHECK(t.op.version > 0);
        memset(in, 0, len);
        CHECK_EQ(RUN(&t, oid, 0, r), 0);
        CHECK_EQ(r[0].out_len, len);
        CHECK_EQ(r[1].out_len, len);
        CHECK_EQ(t.op.copied_bytes, len);
        CHECK_EQ(t.op.pinned_bytes, 0);
        CHECK(memcmp(in, out, len) == 0);
    }
}

static void test_copy_is_private(void)
{
    const char *oid = PREFIX "private";
    uint8_t buf[5000], in[5000];
    struct iovec iov = { buf, sizeof(buf) };
    struct test_op t = { 0 };
    struct rados_step w[] = {
        { .kind = RADOS_WRITE_FULL, .iov = &iov, .n_iov = 1 },
    };

    fill(buf, sizeof(buf), 1);
    start_in(pool, &t, oid, RADOS_OP_WRITE | RADOS_OP_COPY, w, 1);
    memset(buf, 0x55, sizeof(buf));
    CHECK_EQ(finish(&t), 0);
    fill(buf, sizeof(buf), 1);
    CHECK_EQ(read_object(pool, oid, in, sizeof(in)), sizeof(in));
    CHECK(memcmp(in, buf, sizeof(in)) == 0);
}

static void test_short_read(void)
{
    const char *oid = PREFIX "short";
    uint8_t in[4096];
    struct iovec iov[] = { { in, 4 }, { in + 4, 4092 } };
    struct test_op t = { 0 };
    struct rados_step r[] = {
        { .kind = RADOS_READ, .len = sizeof(in), .iov = iov, .n_iov = 2 },
        { .kind = RADOS_READ, .off = 100, .len = 10, .iov = iov, .n_iov = 2 },
    };

    write_object(oid, "0123456789", 10);
    memset(in, 0xaa, sizeof(in));
    CHECK_EQ(RUN(&t, oid, 0, r), 0);
    CHECK_EQ(r[0].out_len, 10);
    CHECK_EQ(r[1].out_len, 0);
    CHECK_EQ(t.op.copied_bytes, 10);
    CHECK(memcmp(in, "0123456789\xaa\xaa", 12) == 0);

    remove_object(oid);
    memset(in, 0xaa, sizeof(in));
    CHECK_EQ(RUN(&t, oid, 0, r), -ENOENT);
    CHECK_EQ(r[0].out_len, 0);
    CHECK_EQ(t.op.copied_bytes, 0);
    CHECK_EQ(in[0], 0xaa);
}

static void test_shapes(void)
{
    const char *oid = PREFIX "shapes";
    uint8_t buf[8192], want[8192];
    struct iovec iov = { want, 4096 };
    struct iovec pattern = { (char[]){ "abcd" }, 4 };
    struct test_op t = { 0 };
    struct rados_step full[] = {
        { .kind = RADOS_WRITE_FULL, .iov = &iov, .n_iov = 1 },
    };
    struct rados_step zero[] = {
        { .kind = RADOS_ASSERT_EXISTS },
        { .kind = RADOS_ZERO, .off = 100, .len = 50 },
    };
    struct rados_step truncate[] = { { .kind = RADOS_TRUNCATE, .off = 1000 } };
    struct rados_step same[] = {
        { .kind = RADOS_WRITESAME, .off = 1000, .len = 4000, .iov = &pattern,
          .n_iov = 1 },
    };
    struct rados_step empty[] = { { .kind = RADOS_WRITE } };

    remove_object(oid);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, zero), -ENOENT);
    CHECK_EQ(remove_object(oid), -ENOENT);

    fill(want, sizeof(want), 2);
    CHECK_EQ(write_object(oid, want, sizeof(want)), 0);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, full), 0);
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 4096);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, zero), 0);
    memset(want + 100, 0, 50);
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 4096);
    CHECK(memcmp(buf, want, 4096) == 0);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, truncate), 0);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, same), 0);
    CHECK_EQ(t.op.pinned_bytes, 4);
    for (unsigned i = 1000; i < 5000; i++) {
        want[i] = "abcd"[i % 4];
    }
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, empty), 0);
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 5000);
    CHECK(memcmp(buf, want, 5000) == 0);
    CHECK_EQ(remove_object(oid), 0);
}

static void test_create(void)
{
    const char *oid = PREFIX "create";
    char buf[8];
    struct test_op t = { 0 };
    struct rados_step excl[] = {
        { .kind = RADOS_CREATE, .exclusive = true },
    };
    struct rados_step any[] = { { .kind = RADOS_CREATE } };

    remove_object(oid);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, excl), 0);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, excl), -EEXIST);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, any), 0);

    /* what is there stays, what is not there appears */
    CHECK_EQ(write_object(oid, "text", 4), 0);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, any), 0);
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 4);
    CHECK_EQ(remove_object(oid), 0);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, any), 0);
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 0);
    CHECK_EQ(remove_object(oid), 0);
}

static void test_assert(void)
{
    const char *oid = PREFIX "assert";
    uint8_t buf[16] = { 0 };
    struct iovec iov = { buf, sizeof(buf) };
    struct test_op t = { 0 };
    struct rados_step r[] = {
        { .kind = RADOS_ASSERT_EXISTS },
        { .kind = RADOS_ASSERT_VERSION },
        { .kind = RADOS_READ, .len = 16, .iov = &iov, .n_iov = 1 },
    };
    struct rados_step w[] = {
        { .kind = RADOS_ASSERT_VERSION },
        { .kind = RADOS_WRITE_FULL, .iov = &iov, .n_iov = 1 },
    };
    struct rados_step stat[] = { { .kind = RADOS_STAT } };
    uint64_t version;
    int result;

    write_object(oid, "x", 1);
    CHECK_EQ(RUN(&t, oid, 0, stat), 0);
    version = t.op.version;
    CHECK(version > 0);
    CHECK_EQ(stat[0].out_len, 1);
    r[1].off = version;
    CHECK_EQ(RUN(&t, oid, 0, r), 0);
    CHECK_EQ(r[2].out_len, 1);

    write_object(oid, "yy", 2);
    result = RUN(&t, oid, 0, r);
    CHECK(result == -ERANGE || result == -EOVERFLOW);
    w[0].off = version;
    result = RUN(&t, oid, RADOS_OP_WRITE, w);
    CHECK(result == -ERANGE || result == -EOVERFLOW);
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 2);
    r[1].off = version + 1000;
    result = RUN(&t, oid, 0, r);
    CHECK(result == -ERANGE || result == -EOVERFLOW);

    remove_object(oid);
    CHECK_EQ(RUN(&t, oid, 0, r), -ENOENT);
}

static uint32_t crc32c(const uint8_t *p, size_t len)
{
    uint32_t crc = ~0u;

    while (len--) {
        crc ^= *p++;
        for (int k = 0; k < 8; k++) {
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        }
    }
    return crc;
}

static void test_checksum(void)
{
    const char *oid = PREFIX "checksum";
    uint8_t buf[10000];
    struct test_op t = { 0 };
    struct rados_step sum[] = {
        { .kind = RADOS_CHECKSUM, .off = 1000, .len = 8000 },
    };
    struct pdec d;

    fill(buf, sizeof(buf), 3);
    write_object(oid, buf, sizeof(buf));
    CHECK_EQ(RUN(&t, oid, 0, sum), 0);
    pdec_init(&d, sum[0].out.data, sum[0].out.len);
    CHECK_EQ(pdec_u32(&d), 1);
    CHECK_EQ(pdec_u32(&d), crc32c(buf + 1000, 8000));
    CHECK(pdec_ok(&d) && pdec_left(&d) == 0);
    rados_op_done_with(pool, &t.op);
}

static void test_class_call(void)
{
    const char *oid = PREFIX "header";
    uint8_t create_in[64], head_in[8], gone_in[8];
    struct penc e;
    struct iovec create_iov[2] = { { create_in, 9 }, { create_in + 9, 0 } };
    struct iovec head = { head_in, 8 };
    struct iovec gone = { gone_in, 8 };
    struct test_op t = { 0 };
    struct rados_step create[] = {
        { .kind = RADOS_CREATE, .exclusive = true },
        { .kind = RADOS_CALL, .cls = "rbd", .method = "create",
          .iov = create_iov, .n_iov = 2 },
    };
    struct rados_step get[] = {
        { .kind = RADOS_CALL, .cls = "rbd", .method = "get_size",
          .iov = &head, .n_iov = 1 },
        { .kind = RADOS_CALL, .cls = "rbd", .method = "get_object_prefix" },
        { .kind = RADOS_STAT },
    };
    struct rados_step bad[] = {
        { .kind = RADOS_CALL, .cls = "rbd", .method = "get_size",
          .iov = &head, .n_iov = 1 },
        { .kind = RADOS_CALL, .cls = "rbd", .method = "get_size",
          .iov = &gone, .n_iov = 1 },
        { .kind = RADOS_CALL, .cls = "rbd", .method = "get_object_prefix" },
    };
    struct rados_step unknown[] = {
        { .kind = RADOS_CALL, .cls = "rbd", .method = "no_such_method" },
    };
    char prefix[64];
    struct pdec d;

    penc_init(&e, create_in, sizeof(create_in));
    penc_u64(&e, 12345678);
    penc_u8(&e, 22);
    penc_u64(&e, 1);
    penc_string(&e, "rbd_data.transport_test");
    penc_u64(&e, (uint64_t)-1);
    create_iov[1].iov_len = penc_len(&e) - 9;
    penc_init(&e, head_in, 8);
    penc_u64(&e, RADOS_NOSNAP);
    penc_init(&e, gone_in, 8);
    penc_u64(&e, 99999);

    remove_object(oid);
    CHECK_EQ(RUN(&t, oid, 0, get), -ENOENT);
    rados_op_done_with(pool, &t.op);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, create), 0);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, create), -EEXIST);

    CHECK_EQ(RUN(&t, oid, 0, get), 0);
    pdec_init(&d, get[0].out.data, get[0].out.len);
    CHECK_EQ(pdec_u8(&d), 22);
    CHECK_EQ(pdec_u64(&d), 12345678);
    CHECK(pdec_ok(&d) && pdec_left(&d) == 0);
    pdec_init(&d, get[1].out.data, get[1].out.len);
    pdec_text(&d, prefix, sizeof(prefix));
    CHECK(pdec_ok(&d) && strcmp(prefix, "rbd_data.transport_test") == 0);
    CHECK_EQ(get[2].rval, 0);
    rados_op_done_with(pool, &t.op);
    rados_op_done_with(pool, &t.op);    /* twice does no harm */

    CHECK_EQ(RUN(&t, oid, 0, bad), -ENOENT);
    CHECK_EQ(bad[0].rval, 0);
    CHECK_EQ(bad[1].rval, -ENOENT);
    CHECK_EQ(bad[1].out.len, 0);
    rados_op_done_with(pool, &t.op);
    CHECK_EQ(RUN(&t, oid, 0, unknown), -EOPNOTSUPP);
    rados_op_done_with(pool, &t.op);
}

static void put_meta(struct penc *e, uint8_t *buf, size_t size, const char *key,
                     const char *value)
{
    penc_init(e, buf, size);
    penc_u32(e, 1);
    penc_string(e, key);
    penc_string(e, value);
    CHECK(penc_len(e) <= size);
}

/* Several calls in one op that writes: all of them or none. */
static void test_many_calls(void)
{
    const char *oid = PREFIX "calls";
    uint8_t in[4][64];
    struct penc e[4];
    struct iovec iov[4];
    struct test_op t = { 0 };
    struct rados_step set[] = {
        { .kind = RADOS_CREATE },
        { .kind = RADOS_CALL, .cls = "rbd", .method = "metadata_set",
          .iov = &iov[0], .n_iov = 1 },
        { .kind = RADOS_CALL, .cls = "rbd", .method = "metadata_set",
          .iov = &iov[1], .n_iov = 1 },
    };
    struct rados_step fails[] = {
        { .kind = RADOS_CALL, .cls = "rbd", .method = "metadata_set",
          .iov = &iov[2], .n_iov = 1 },
        { .kind = RADOS_CALL, .cls = "lock", .method = "assert_locked",
          .iov = &iov[3], .n_iov = 1 },
    };
    struct rados_step get[3];
    uint8_t key[3][16];
    struct iovec key_iov[3];

    put_meta(&e[0], in[0], sizeof(in[0]), "a", "first");
    put_meta(&e[1], in[1], sizeof(in[1]), "b", "second");
    put_meta(&e[2], in[2], sizeof(in[2]), "c", "third");
    /* a lock that nobody has */
    penc_init(&e[3], in[3], sizeof(in[3]));
    penc_u8(&e[3], 1);
    penc_u8(&e[3], 1);
    penc_u32(&e[3], 4 + 8 + 1 + 4 + 4);
    penc_string(&e[3], "rbd_lock");
    penc_u8(&e[3], 1);
    penc_string(&e[3], "");
    penc_string(&e[3], "");
    for (unsigned i = 0; i < 4; i++) {
        iov[i] = (struct iovec){ in[i], penc_len(&e[i]) };
    }
    for (unsigned i = 0; i < 3; i++) {
        struct penc k;

        penc_init(&k, key[i], sizeof(key[i]));
        penc_string(&k, (char[]){ 'a' + i, 0 });
        key_iov[i] = (struct iovec){ key[i], penc_len(&k) };
        get[i] = (struct rados_step){
            .kind = RADOS_CALL, .cls = "rbd", .method = "metadata_get",
            .iov = &key_iov[i], .n_iov = 1,
        };
    }

    remove_object(oid);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, set), 0);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, fails), -EBUSY);
    CHECK_EQ(run(&t, oid, 0, get, 2), 0);
    for (unsigned i = 0; i < 2; i++) {
        const char *want = i ? "second" : "first";
        struct pdec d;
        const char *value;
        size_t len;

        CHECK_EQ(get[i].rval, 0);
        pdec_init(&d, get[i].out.data, get[i].out.len);
        value = pdec_blob(&d, &len);
        CHECK(pdec_ok(&d) && len == strlen(want) &&
              memcmp(value, want, len) == 0);
    }
    rados_op_done_with(pool, &t.op);
    CHECK_EQ(run(&t, oid, 0, &get[2], 1), -ENOENT);
    rados_op_done_with(pool, &t.op);
}

/* Two extents around a hole, and the length of their data together. */
enum {
    COPYUP_LEN = 4 * MIB,
    COPYUP_HOLE = MIB,
    COPYUP_HEAD = 4 + 4 * 8 + 4,
};

static void copyup_head(uint8_t *head)
{
    struct penc e;

    penc_init(&e, head, COPYUP_HEAD);
    penc_u32(&e, 2);
    penc_u64(&e, 0);
    penc_u64(&e, MIB);
    penc_u64(&e, MIB + COPYUP_HOLE);
    penc_u64(&e, COPYUP_LEN - MIB - COPYUP_HOLE);
    penc_u32(&e, COPYUP_LEN - COPYUP_HOLE);
    CHECK_EQ(penc_len(&e), COPYUP_HEAD);
}

/*
 * A copyup as a clone sends it: megabytes of input in pieces, and the guest's
 * write behind it.  Input is copied when the op is submitted, so it is neither
 * held nor counted; the write's payload is.
 */
static void test_copyup(void)
{
    const char *oid = PREFIX "copyup";
    enum { LEN = COPYUP_LEN, HOLE = COPYUP_HOLE, AT = 4096 * 5, N = 4096 };
    g_autofree uint8_t *data = g_malloc(LEN);
    g_autofree uint8_t *want = g_malloc0(LEN);
    g_autofree uint8_t *got = g_malloc(LEN);
    uint8_t head[COPYUP_HEAD];
    uint8_t guest[N];
    struct iovec in[7];
    struct iovec out = { guest, N };
    struct test_op t = { 0 };
    struct rados_step steps[] = {
        { .kind = RADOS_CALL, .cls = "rbd", .method = "sparse_copyup",
          .iov = in, .n_iov = G_N_ELEMENTS(in) },
        { .kind = RADOS_ALLOC_HINT, .off = LEN, .len = LEN },
        { .kind = RADOS_WRITE, .off = AT, .iov = &out, .n_iov = 1 },
    };
    size_t blob = LEN - HOLE;

    fill(data, blob, 5);    /* as in the loop */
    fill(guest, N, 6);
    in[0] = (struct iovec){ head, 7 };
    in[1] = (struct iovec){ NULL, 0 };
    in[2] = (struct iovec){ head + 7, sizeof(head) - 7 };
    in[3] = (struct iovec){ data, 1 };
    in[4] = (struct iovec){ data + 1, MIB + 12345 };
    in[5] = (struct iovec){ NULL, 0 };
    in[6] = (struct iovec){ data + MIB + 12346, blob - MIB - 12346 };
    memcpy(want, data, MIB);
    memcpy(want + MIB + HOLE, data + MIB, blob - MIB);
    memcpy(want + AT, guest, N);

    for (unsigned copy = 0; copy < 2; copy++) {
        fill(data, blob, 5);
        copyup_head(head);
        remove_object(oid);
        start_in(pool, &t, oid, RADOS_OP_WRITE | (copy ? RADOS_OP_COPY : 0),
                 steps, G_N_ELEMENTS(steps));
        memset(data, 0xcc, blob);
        memset(head, 0xcc, sizeof(head));
        CHECK_EQ(finish(&t), 0);
        CHECK_EQ(t.op.pinned_bytes, copy ? 0 : N);
        CHECK_EQ(t.op.copied_bytes, copy ? N : 0);
        CHECK(!t.op.late);
        CHECK_EQ(read_object(pool, oid, got, LEN), LEN);
        CHECK(memcmp(got, want, LEN) == 0);
    }

    /* the object exists: the copyup does nothing, the write does */
    fill(guest, N, 7);
    fill(data, blob, 8);
    copyup_head(head);
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, steps), 0);
    memcpy(want + AT, guest, N);
    CHECK_EQ(read_object(pool, oid, got, LEN), LEN);
    CHECK(memcmp(got, want, LEN) == 0);
}

static void test_many_steps(void)
{
    const char *oid = PREFIX "steps";
    enum { N = 40 };
    uint8_t buf[N * 512], in[N * 512];
    struct iovec wiov[N], riov[N];
    struct rados_step w[N], r[N];
    struct test_op t = { 0 };

    fill(buf, sizeof(buf), 4);
    memset(in, 0, sizeof(in));
    for (unsigned i = 0; i < N; i++) {
        wiov[i] = (struct iovec){ buf + i * 512, 512 };
        riov[i] = (struct iovec){ in + i * 512, 512 };
        w[i] = (struct rados_step){ .kind = RADOS_WRITE, .off = i * 512,
                                    .iov = &wiov[i], .n_iov = 1 };
        r[i] = (struct rados_step){ .kind = RADOS_READ, .off = i * 512,
                                    .len = 512, .iov = &riov[i], .n_iov = 1 };
    }
    CHECK_EQ(run(&t, oid, RADOS_OP_WRITE, w, N), 0);
    CHECK_EQ(t.op.pinned_bytes, sizeof(buf));
    CHECK_EQ(run(&t, oid, 0, r, N), 0);
    CHECK_EQ(t.op.copied_bytes, sizeof(buf));
    CHECK(memcmp(buf, in, sizeof(in)) == 0);
}

static void test_refused(void)
{
    struct rados_step read[] = { { .kind = RADOS_READ, .len = 1 } };
    struct rados_step write[] = { { .kind = RADOS_REMOVE } };
    struct iovec huge[2] = { { NULL, 1u << 31 }, { NULL, 1u << 31 } };
    struct rados_step big[] = {
        { .kind = RADOS_WRITE, .iov = huge, .n_iov = 2 },
    };
    struct rados_snapc rising = { 5, 2, (uint64_t[]){ 3, 4 } };
    struct test_op t = { 0 };

    CHECK_EQ(RUN(&t, PREFIX "refused", RADOS_OP_WRITE, read), -EINVAL);
    CHECK_EQ(RUN(&t, PREFIX "refused", 0, write), -EINVAL);
    CHECK_EQ(RUN(&t, PREFIX "refused", RADOS_OP_WRITE, big), -EMSGSIZE);
    CHECK_EQ(t.op.pinned_bytes, 0);
    rados_cancel(pool, &t.op);
    t.op.snapc = &rising;
    CHECK_EQ(RUN(&t, PREFIX "refused", RADOS_OP_WRITE, write), -EINVAL);
}

static void test_snapshots(void)
{
    /* fresh: an object remembers the newest context it has seen */
    g_autofree char *oid = g_strdup_printf(PREFIX "snap.%" PRIu64,
        rados_librados.conn_instance(cluster->conn));
    g_autofree char *young = g_strdup_printf("%s.young", oid);
    char buf[16];
    struct iovec old = { (char[]){ "old" }, 3 };
    struct iovec new = { (char[]){ "newer" }, 5 };
    struct test_op t = { 0 };
    struct rados_step write[] = {
        { .kind = RADOS_WRITE_FULL, .iov = &old, .n_iov = 1 },
    };
    struct rados_step rollback[] = { { .kind = RADOS_ROLLBACK } };
    struct rados_snapc before = { 0 };
    struct rados_snapc after = { 0 };
    struct rados_pool *at_snap;
    uint64_t id;

    t.op.snapc = &before;
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE | RADOS_OP_ORDERSNAP, write), 0);
    CHECK_EQ(rados_ioctx_selfmanaged_snap_create(side_io, &id), 0);
    after = (struct rados_snapc){ id, 1, &id };
    write[0].iov = &new;
    t.op.snapc = &after;
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE | RADOS_OP_ORDERSNAP, write), 0);
    t.op.snapc = &before;
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE | RADOS_OP_ORDERSNAP, write),
             -ERESTART);
    CHECK(!t.op.late);

    CHECK_EQ(rados_librados.pool_open_id(cluster->conn, pool->id, "", id,
                                         &at_snap), 0);
    CHECK_EQ(at_snap->snap, id);
    CHECK(strcmp(at_snap->name, pool_name) == 0);
    CHECK_EQ(read_object(at_snap, oid, buf, sizeof(buf)), 3);
    CHECK(memcmp(buf, "old", 3) == 0);
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 5);
    start_in(at_snap, &t, oid, RADOS_OP_WRITE, write, 1);
    CHECK_EQ(finish(&t), -EROFS);
    rados_librados.pool_close(at_snap);

    rollback[0].off = id;
    t.op.snapc = &after;
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, rollback), 0);
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 3);
    CHECK_EQ(remove_object(oid), 0);

    /* an object that the snapshot does not have goes */
    CHECK_EQ(remove_object(young), -ENOENT);
    t.op.snapc = &after;
    CHECK_EQ(RUN(&t, young, RADOS_OP_WRITE, write), 0);
    CHECK_EQ(RUN(&t, young, RADOS_OP_WRITE, rollback), 0);
    CHECK_EQ(read_object(pool, young, buf, sizeof(buf)), -ENOENT);
    CHECK_EQ(rados_ioctx_selfmanaged_snap_remove(side_io, id), 0);
}

static void test_order(void)
{
    g_autofree char *oid = g_strdup_printf(PREFIX "order.%" PRIu64,
        rados_librados.conn_instance(cluster->conn));
    enum { PAIRS = 300 };
    g_autofree struct test_op *ops = g_new0(struct test_op, 2 * PAIRS);
    g_autofree struct rados_step *steps = g_new0(struct rados_step, 2 * PAIRS);
    g_autofree struct iovec *iov = g_new0(struct iovec, 2 * PAIRS);
    g_autofree uint64_t *values = g_new0(uint64_t, 2 * PAIRS);
    struct rados_pool *other;
    struct rados_snapc empty = { 0 };
    struct rados_snapc snapc = { 0 };
    uint64_t id, value;

    CHECK_EQ(rados_librados.pool_open_id(cluster->conn, pool->id, NULL,
                                         RADOS_NOSNAP, &other), 0);
    CHECK_EQ(rados_ioctx_selfmanaged_snap_create(side_io, &id), 0);
    snapc = (struct rados_snapc){ id, 1, &id };
    for (unsigned i = 0; i < 2 * PAIRS; i++) {
        values[i] = i;
        iov[i] = (struct iovec){ &values[i], sizeof(values[i]) };
        steps[i] = (struct rados_step){ .kind = RADOS_WRITE, .iov = &iov[i],
                                        .n_iov = 1 };
        ops[i].op.snapc = i % 2 ? &snapc : &empty;
        start_in(i % 2 ? pool : other, &ops[i], oid,
                 RADOS_OP_WRITE | (i % 3 ? 0 : RADOS_OP_COPY), &steps[i], 1);
    }
    for (unsigned i = 0; i < 2 * PAIRS; i++) {
        CHECK_EQ(finish(&ops[i]), 0);
        if (i) {
            CHECK(ops[i].op.version > ops[i - 1].op.version);
        }
    }
    CHECK_EQ(read_object(pool, oid, &value, sizeof(value)), sizeof(value));
    CHECK_EQ(value, 2 * PAIRS - 1);
    rados_librados.pool_close(other);
    CHECK_EQ(rados_ioctx_selfmanaged_snap_remove(side_io, id), 0);
}

static void test_pools(void)
{
    struct rados_pool *p, *q;
    char buf[8];

    CHECK_EQ(rados_librados.pool_open(cluster->conn, "no such pool", NULL, &p),
             -ENOENT);
    CHECK_EQ(rados_librados.pool_open_id(cluster->conn, 999999, NULL,
                                         RADOS_NOSNAP, &p), -ENOENT);
    CHECK_EQ(rados_librados.pool_open(cluster->conn, pool_name, "space", &p),
             0);
    CHECK(strcmp(p->ns, "space") == 0 && strcmp(p->name, pool_name) == 0);
    CHECK_EQ(p->id, pool->id);
    CHECK_EQ(rados_librados.pool_open_id(cluster->conn, p->id, "space",
                                         RADOS_NOSNAP, &q), 0);
    write_object(PREFIX "ns", "outer", 5);
    CHECK_EQ(read_object(p, PREFIX "ns", buf, sizeof(buf)), -ENOENT);
    CHECK_EQ(read_object(q, PREFIX "ns", buf, sizeof(buf)), -ENOENT);
    CHECK_EQ(read_object(pool, PREFIX "ns", buf, sizeof(buf)), 5);
    rados_librados.pool_close(p);
    rados_librados.pool_close(q);
    rados_librados.pool_close(NULL);
}

/* ---- watches ----------------------------------------------------------- */

struct test_watch {
    struct rados_watch w;
    bool mute;                  /* does not ack */
    unsigned started, notified, failed, stopped;
    unsigned after_stop;        /* callbacks that must not come */
    int start_result, fail_result;
    uint64_t notifier;
    char payload[16];
};

static void watch_event(struct test_watch *t, unsigned *counter)
{
    if (t->stopped) {
        count(&t->after_stop);
    }
    count(counter);
}

static void started(struct rados_watch *w, int result)
{
    struct test_watch *t = (struct test_watch *)w;

    t->start_result = result;
    watch_event(t, &t->started);
}

static void notified(struct rados_watch *w, uint64_t id, uint64_t notifier,
                     const void *payload, size_t len)
{
    struct test_watch *t = (struct test_watch *)w;

    t->notifier = notifier;
    memcpy(t->payload, payload, MIN(len, sizeof(t->payload) - 1));
    if (!t->mute) {
        rados_librados.notify_ack(pool, w->oid, id, w->cookie, "pong", 4);
    }
    watch_event(t, &t->notified);
}

static void failed(struct rados_watch *w, int err)
{
    struct test_watch *t = (struct test_watch *)w;

    t->fail_result = err;
    watch_event(t, &t->failed);
}

static void stopped(struct rados_watch *w, G_GNUC_UNUSED int result)
{
    struct test_watch *t = (struct test_watch *)w;

    watch_event(t, &t->stopped);
}

static int watch_begin(struct test_watch *t, const char *oid)
{
    *t = (struct test_watch){
        .w = { .oid = oid, .started = started, .notified = notified,
               .failed = failed, .stopped = stopped },
    };
    rados_librados.watch_start(pool, &t->w);
    wait_for(&t->started, 1);
    return t->start_result;
}

static void watch_end(struct test_watch *t)
{
    rados_librados.watch_stop(pool, &t->w);
    wait_for(&t->stopped, 1);
    CHECK_EQ(t->started, 1);
    CHECK_EQ(t->stopped, 1);
    CHECK_EQ(t->after_stop, 0);
}

struct test_notify {
    struct rados_notify n;
    unsigned done;
};

static void notify_done(struct rados_notify *n)
{
    count(&((struct test_notify *)n)->done);
}

/* Acks and timeouts of one notify; each ack must say "pong". */
static int notify_run(const char *oid, uint64_t timeout_ms, unsigned *ret_acks,
                      unsigned *ret_missed)
{
    struct test_notify t = {
        .n = { .oid = oid, .payload = "ping", .payload_len = 5,
               .timeout_ms = timeout_ms, .done = notify_done },
    };
    struct pdec d;

    rados_librados.notify(pool, &t.n);
    wait_for(&t.done, 1);
    pdec_init(&d, t.n.reply.data, t.n.reply.len);
    *ret_acks = pdec_count(&d, 20);
    for (unsigned i = 0; i < *ret_acks; i++) {
        size_t len;
        const char *ack;

        CHECK_EQ(pdec_u64(&d), rados_librados.conn_instance(cluster->conn));
        pdec_u64(&d);
        ack = pdec_blob(&d, &len);
        CHECK(len == 4 && memcmp(ack, "pong", 4) == 0);
    }
    *ret_missed = pdec_count(&d, 16);
    rados_librados.notify_release(&t.n);
    CHECK(t.n.reply.data == NULL);
    return t.n.result;
}

static void test_watch(void)
{
    const char *oid = PREFIX "watch";
    struct test_watch a, b;
    unsigned acks, missed;

    remove_object(oid);
    CHECK_EQ(watch_begin(&a, oid), -ENOENT);

    write_object(oid, "", 0);
    CHECK_EQ(watch_begin(&a, oid), 0);
    CHECK_EQ(watch_begin(&b, oid), 0);
    CHECK(a.w.cookie != b.w.cookie);
    CHECK(rados_librados.watch_check(pool, &a.w) >= 0);
    CHECK_EQ(notify_run(oid, 30000, &acks, &missed), 0);
    CHECK_EQ(acks, 2);
    CHECK_EQ(missed, 0);
    CHECK_EQ(a.notified, 1);
    CHECK_EQ(a.notifier, rados_librados.conn_instance(cluster->conn));
    CHECK(strcmp(a.payload, "ping") == 0);

    b.mute = true;
    CHECK_EQ(notify_run(oid, 1000, &acks, &missed), -ETIMEDOUT);
    CHECK_EQ(acks, 1);
    CHECK_EQ(missed, 1);
    watch_end(&b);
    CHECK_EQ(notify_run(oid, 30000, &acks, &missed), 0);
    CHECK_EQ(acks, 1);
    CHECK_EQ(b.notified, 2);

    /* a watch dies with its object */
    CHECK_EQ(remove_object(oid), 0);
    wait_for(&a.failed, 1);
    CHECK_EQ(a.fail_result, -ENOTCONN);
    CHECK_EQ(rados_librados.watch_check(pool, &a.w), -ENOTCONN);
    watch_end(&a);
    CHECK_EQ(notify_run(oid, 1000, &acks, &missed), -ENOENT);
}

/* The timeout that the OSD keeps for the watch on @oid, or -1. */
static int watch_timeout_of(const char *oid)
{
    const char *cmd = "{\"prefix\": \"dump_watchers\", \"format\": \"json\"}";
    g_autofree char *text = NULL;
    char *out = NULL;
    size_t len = 0;
    const char *at;

    CHECK_EQ(rados_osd_command(side, 0, &cmd, 1, NULL, 0, &out, &len, NULL,
                               NULL), 0);
    text = g_strndup(out, len);
    rados_buffer_free(out);
    at = strstr(text, oid);
    at = at ? strstr(at, "\"timeout\":") : NULL;
    return at ? atoi(at + strlen("\"timeout\":")) : -1;
}

static void test_watch_timeout(void)
{
    const char *oid[] = { PREFIX "watch-standard", PREFIX "watch-seconds" };
    struct test_watch t[2];

    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(write_object(oid[i], "", 0), 0);
        t[i] = (struct test_watch){
            .w = { .oid = oid[i], .timeout_s = i ? 77 : 0, .started = started,
                   .notified = notified, .failed = failed, .stopped = stopped },
        };
        rados_librados.watch_start(pool, &t[i].w);
        wait_for(&t[i].started, 1);
        CHECK_EQ(t[i].start_result, 0);
    }
    CHECK_EQ(watch_timeout_of(oid[1]), 77);
    CHECK(watch_timeout_of(oid[0]) > 0);
    CHECK(watch_timeout_of(oid[0]) != 77);
    watch_end(&t[0]);
    watch_end(&t[1]);
}

/* ---- cancel and late references ---------------------------------------- */

static void set_pause(bool on)
{
    g_autofree char *cmd = g_strdup_printf(
        "{\"prefix\": \"osd %s\", \"key\": \"pause\"}", on ? "set" : "unset");
    const char *cmds[] = { cmd };

    CHECK_EQ(rados_mon_command(side, cmds, 1, NULL, 0, NULL, NULL, NULL, NULL),
             0);
}

static bool paused(void)
{
    const char *cmds[] = {
        "{\"prefix\": \"osd dump\", \"format\": \"json\"}",
    };
    char *out = NULL;
    size_t len = 0;
    bool yes;

    CHECK_EQ(rados_mon_command(side, cmds, 1, NULL, 0, &out, &len, NULL, NULL),
             0);
    yes = out && g_strstr_len(out, len, "pauserd");
    rados_buffer_free(out);
    return yes;
}

static void test_cancel(void)
{
    enum { N = 64 };
    g_autofree uint8_t *buf = g_malloc0(65536);
    struct iovec iov = { buf, 65536 };
    g_autofree struct test_op *ops = g_new0(struct test_op, N);
    g_autofree struct rados_step *steps = g_new0(struct rados_step, N);
    struct rados_pool *p;
    unsigned cancelled = 0;

    set_pause(true);
    CHECK(paused());
    /* makes our client fetch the map that says so */
    CHECK_EQ(rados_librados.pool_open(cluster->conn, "no such pool", NULL, &p),
             -ENOENT);
    for (unsigned i = 0; i < N; i++) {
        steps[i] = (struct rados_step){
            .kind = i % 4 ? RADOS_WRITE : RADOS_READ, .len = 65536,
            .iov = &iov, .n_iov = 1,
        };
        start_in(pool, &ops[i], PREFIX "cancel", i % 4 ? RADOS_OP_WRITE : 0,
                 &steps[i], 1);
    }
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(ops[i].done, 0);
        rados_cancel(pool, &ops[i].op);
        rados_cancel(pool, &ops[i].op);
    }
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(finish(&ops[i]), -ECANCELED);
        rados_cancel(pool, &ops[i].op);
    }
    set_pause(false);

    /* cancels that meet completions: each op ends exactly once */
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < N; i++) {
            start_in(pool, &ops[i], PREFIX "cancel",
                     i % 4 ? RADOS_OP_WRITE : 0, &steps[i], 1);
        }
        for (unsigned i = N; i-- > 0; ) {
            rados_cancel(pool, &ops[i].op);
        }
        for (unsigned i = 0; i < N; i++) {
            int r = finish(&ops[i]);

            cancelled += r == -ECANCELED;
            CHECK(r == 0 || r == -ECANCELED || r == -ENOENT);
        }
    }
    CHECK(cancelled > 0);
    CHECK_EQ(write_object(PREFIX "cancel", "end", 3), 0);
}

static void test_late(void)
{
    enum { N = 48 };
    const size_t len = 4 * MIB;
    g_autofree uint8_t *buf = g_malloc0(len);
    struct iovec iov = { buf, len };
    g_autofree struct test_op *ops = g_new0(struct test_op, N);
    g_autofree struct rados_step *steps = g_new0(struct rados_step, N);
    unsigned late = 0;

    if (!osd_pid) {
        printf("  skipped: no OSD process given\n");
        return;
    }
    CHECK_EQ(write_object(PREFIX "late", "x", 1), 0);
    CHECK_EQ(kill(osd_pid, SIGSTOP), 0);
    for (unsigned i = 0; i < N; i++) {
        steps[i] = (struct rados_step){
            .kind = RADOS_WRITE_FULL, .iov = &iov, .n_iov = 1,
        };
        start_in(pool, &ops[i], PREFIX "late", RADOS_OP_WRITE, &steps[i], 1);
    }
    for (unsigned i = 0; i < N; i++) {
        rados_cancel(pool, &ops[i].op);
    }
    /* what a socket buffer cannot hold stays referenced */
    g_mutex_lock(&lock);
    while (late < N / 2) {
        late = 0;
        for (unsigned i = 0; i < N; i++) {
            late += !ops[i].done &&
                    __atomic_load_n(&ops[i].op.late, __ATOMIC_ACQUIRE);
        }
        g_cond_wait_until(&changed, &lock, g_get_monotonic_time() + 1000);
    }
    g_mutex_unlock(&lock);
    CHECK_EQ(kill(osd_pid, SIGCONT), 0);
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(finish(&ops[i]), -ECANCELED);
    }
}

/*
 * A guest changes pages that are being written.  The OSD refuses such a message
 * and the connection starts again; the next attempt must have a chance.
 */
static gint scribbling;

static gpointer scribble(gpointer word)
{
    uint64_t n = 0;

    while (g_atomic_int_get(&scribbling)) {
        __atomic_store_n((uint64_t *)word, n++, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void write_unstable(const struct iovec *iov, int n_iov,
                           uint64_t *changing)
{
    struct test_op t = { 0 };
    struct rados_step write[] = {
        { .kind = RADOS_WRITE_FULL, .iov = iov, .n_iov = n_iov },
    };
    GThread *thread;

    g_atomic_int_set(&scribbling, 1);
    thread = g_thread_new("scribble", scribble, changing);
    for (unsigned i = 0; i < 200; i++) {
        CHECK_EQ(RUN(&t, PREFIX "unstable", RADOS_OP_WRITE, write), 0);
        CHECK_EQ(t.op.copied_bytes, 0);
    }
    g_atomic_int_set(&scribbling, 0);
    g_thread_join(thread);
}

/* In one piece, in pieces in any order, and one page over and over. */
static void test_unstable_payload(void)
{
    enum { PAGE = 4096, N = 16 };
    g_autofree uint8_t *buf = g_malloc0(N * PAGE);
    struct iovec one = { buf, N * PAGE };
    struct iovec pieces[N];
    struct iovec same[N];

    for (unsigned i = 0; i < N; i++) {
        pieces[i] = (struct iovec) { buf + (N - 1 - i) * PAGE, PAGE };
        same[i] = (struct iovec) { buf, PAGE };
    }
    write_unstable(&one, 1, (uint64_t *)(buf + N * PAGE / 2 - 64));
    write_unstable(pieces, N, (uint64_t *)(buf + 3 * PAGE + 64));
    write_unstable(same, N, (uint64_t *)(buf + 64));
}

/* ---- clusters ---------------------------------------------------------- */

static char *write_conf(const char *dir, const char *name, const char *before,
                        const char *after)
{
    char *path = g_build_filename(dir, name, NULL);
    g_autofree char *text = NULL;
    g_autofree char *all = NULL;

    if (!g_file_get_contents(conf, &text, NULL, NULL)) {
        CHECK(!"reads CEPH_CONF");
    }
    all = g_strconcat(before, text ? text : "", after, NULL);
    CHECK(g_file_set_contents(path, all, -1, NULL));
    return path;
}

static char *identity(const char *path, const char *user,
                      const char *key, const char *value)
{
    struct pinrbd_kv kv = { key, value };
    struct pinrbd_cluster_options o = {
        .size = sizeof(o), .conf = path, .user = user, .options = &kv,
        .n_options = key ? 1 : 0,
    };
    struct rados_conn *c;
    struct pinrbd_error err;
    char *text;

    if (rados_librados.conn_new(&o, &c, &err) < 0) {
        printf("  %s\n", err.text);
        CHECK(!"conn_new");
        return g_strdup("");
    }
    text = g_strdup(rados_librados.conn_identity(c));
    rados_librados.conn_free(c);
    return text;
}

static void test_identity(void)
{
    static const char *const key1 = "AQDhoKVnAAAAABAAnB8YzV4ZQ5vYbnmQfH5Zqg==";
    static const char *const key2 = "AQDhoKVnAAAAABAAnB8YzV4ZQ5vYbnmQfH5ZqA==";
    g_autofree char *dir = g_dir_make_tmp("transport_test.XXXXXX", NULL);
    g_autofree char *noise = write_conf(dir, "noise",
        "; a comment\n", "\n[pinrbd]\npin = never\n"
        "[mon.z]\ndebug mon = 3\n[osd]\nosd data = /x\n# end\n"
        "[client.other]\nrados osd op timeout = 9\n");
    g_autofree char *plain = write_conf(dir, "plain", "", "");
    g_autofree char *timeout = write_conf(dir, "timeout", "",
        "\n[client]\nrados osd op timeout = 1000\n");
    g_autofree char *mine = write_conf(dir, "mine", "",
        "\n[client.admin]\nrados_osd op_timeout = 1000\n");
    g_autofree char *cctid = write_conf(dir, "cctid", "",
        "\n[client]\nadmin socket = /tmp/transport_test.$pid.$cctid.asok\n");
    struct { const char *path, *user, *key, *value; char *text; } t[] = {
        { plain, NULL, NULL, NULL, NULL },
        { noise, "admin", NULL, NULL, NULL },
        { timeout, NULL, NULL, NULL, NULL },
        { mine, NULL, NULL, NULL, NULL },
        { plain, NULL, "rados_osd_op_timeout", "1000", NULL },
        { plain, "other", NULL, NULL, NULL },
        { plain, NULL, "key", key1, NULL },
        { plain, NULL, "key", key2, NULL },
        { cctid, NULL, NULL, NULL, NULL },
        { cctid, NULL, NULL, NULL, NULL },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(t); i++) {
        t[i].text = identity(t[i].path, t[i].user, t[i].key, t[i].value);
        CHECK(!strstr(t[i].text, "AQDhoKVn"));
        CHECK(!strstr(t[i].text, dir));
    }
#define SAME(i, j) (strcmp(t[i].text, t[j].text) == 0)
    CHECK(SAME(0, 1));
    CHECK(!SAME(0, 2));
    CHECK(SAME(2, 3));
    CHECK(SAME(2, 4));
    CHECK(!SAME(0, 5));
    CHECK(!SAME(0, 6));
    CHECK(!SAME(6, 7));
    CHECK(SAME(8, 9));
    CHECK(!SAME(0, 8));
#undef SAME
    for (size_t i = 0; i < G_N_ELEMENTS(t); i++) {
        g_free(t[i].text);
    }
    g_unlink(noise);
    g_unlink(plain);
    g_unlink(timeout);
    g_unlink(mine);
    g_unlink(cctid);
    g_rmdir(dir);
}

static int open_cluster(const char *path, bool own, const struct pinrbd_kv *kv,
                        size_t n, struct pinrbd_cluster **ret,
                        struct pinrbd_error *reterr)
{
    struct pinrbd_cluster_options o = {
        .size = sizeof(o), .conf = path, .own_handle = own, .options = kv,
        .n_options = n,
    };

    return pinrbd_cluster_open(&o, ret, reterr);
}

/* A connection of its own as client.@user, with @key if not NULL. */
static struct pinrbd_cluster *open_as(const char *user, const char *key,
                                      const char *timeout,
                                      struct rados_pool **ret_pool)
{
    struct pinrbd_kv kv[2];
    struct pinrbd_cluster_options o = {
        .size = sizeof(o), .conf = conf, .user = user, .own_handle = true,
        .options = kv,
    };
    struct pinrbd_cluster *c;
    struct pinrbd_error err;

    if (key) {
        kv[o.n_options++] = (struct pinrbd_kv){ "key", key };
    }
    if (timeout) {
        kv[o.n_options++] =
            (struct pinrbd_kv){ "rados_mon_op_timeout", timeout };
    }
    if (pinrbd_cluster_open(&o, &c, &err) < 0) {
        g_error("%s", err.text);
    }
    if (rados_librados.pool_open(c->conn, pool_name, "", ret_pool) < 0) {
        g_error("pool_open");
    }
    return c;
}

static void close_as(struct pinrbd_cluster *c, struct rados_pool *p)
{
    rados_librados.pool_close(p);
    pinrbd_cluster_close(c);
}

/*
 * client.transport_test, who may look and no more.  Who may write to the pool
 * may have snapshot ids of it, whatever the monitors' capability says.
 */
static char *limited_key(void)
{
    const char *cmd =
        "{\"prefix\": \"auth get-or-create-key\", "
        "\"entity\": \"client.transport_test\", "
        "\"caps\": [\"mon\", \"allow r\", \"osd\", \"allow r\"]}";
    char *out = NULL;
    size_t len = 0;
    char *key;

    CHECK_EQ(rados_mon_command(side, &cmd, 1, NULL, 0, &out, &len, NULL, NULL),
             0);
    key = g_strstrip(g_strndup(out, len));
    rados_buffer_free(out);
    return key;
}

static int write_in(struct rados_pool *p, const char *oid)
{
    struct test_op t = { 0 };
    struct iovec iov = { (char[]){ "x" }, 1 };
    struct rados_step steps[] = {
        { .kind = RADOS_WRITE_FULL, .iov = &iov, .n_iov = 1 },
    };

    start_in(p, &t, oid, RADOS_OP_WRITE, steps, 1);
    return finish(&t);
}

static bool is_denied(int r)
{
    return r == -EPERM || r == -EACCES;
}

static void test_snap_ids(void)
{
    g_autofree char *oid = g_strdup_printf(PREFIX "id.%" PRIu64,
        rados_librados.conn_instance(cluster->conn));
    g_autofree char *key = limited_key();
    struct rados_step write[] = {
        { .kind = RADOS_WRITE_FULL, .n_iov = 1,
          .iov = &(struct iovec){ (char[]){ "22" }, 2 } },
    };
    struct rados_snapc snapc = { 0 };
    struct test_op t = { 0 };
    struct pinrbd_cluster *c;
    struct rados_pool *p;
    struct rados_pool *at_snap;
    uint64_t id = 0;
    uint64_t next = 0;
    uint64_t none = 12345;
    char buf[8];

    CHECK_EQ(rados_librados.snap_alloc(pool, &id), 0);
    CHECK_EQ(rados_librados.snap_alloc(pool, &next), 0);
    CHECK(id > 0 && next > id);

    CHECK_EQ(write_object(oid, "1", 1), 0);
    snapc = (struct rados_snapc){ id, 1, &id };
    t.op.snapc = &snapc;
    CHECK_EQ(RUN(&t, oid, RADOS_OP_WRITE, write), 0);
    CHECK_EQ(rados_librados.pool_open_id(cluster->conn, pool->id, "", id,
                                         &at_snap), 0);
    CHECK_EQ(read_object(at_snap, oid, buf, sizeof(buf)), 1);

    /* given back, its data goes, in the OSD's own time */
    CHECK_EQ(rados_librados.snap_release(pool, id), 0);
    while (read_object(at_snap, oid, buf, sizeof(buf)) != -ENOENT) {
        g_usleep(10000);
    }
    CHECK_EQ(read_object(pool, oid, buf, sizeof(buf)), 2);
    CHECK_EQ(rados_librados.snap_release(pool, id), 0);     /* no harm */
    rados_librados.pool_close(at_snap);

    c = open_as("transport_test", key, NULL, &p);
    CHECK_EQ(read_object(p, oid, buf, sizeof(buf)), 2);
    CHECK(is_denied(rados_librados.snap_alloc(p, &none)));
    CHECK_EQ(none, 12345);
    CHECK(is_denied(rados_librados.snap_release(p, next)));
    close_as(c, p);
    CHECK_EQ(rados_librados.snap_release(pool, next), 0);
}

/* In each form in which an address is met, and in none else. */
static void test_blocklist(void)
{
    static const char *const prefixes[] = { "", "v1:", "v2:" };
    const char *oid = PREFIX "blocklist";
    g_autofree char *key = limited_key();
    struct pinrbd_cluster *c;
    struct pinrbd_cluster *other;
    struct rados_pool *p;
    struct rados_pool *q;
    struct rados_conn *conn = cluster->conn;
    char buf[8];

    CHECK_EQ(write_object(oid, "", 0), 0);
    CHECK_EQ(rados_librados.blocklist(conn, ""), -EINVAL);
    CHECK_EQ(rados_librados.blocklist(conn, "nobody"), -EINVAL);
    other = open_as("admin", NULL, NULL, &q);
    for (size_t i = 0; i < G_N_ELEMENTS(prefixes); i++) {
        struct test_watch w = {
            .w = { .oid = oid, .started = started, .notified = notified,
                   .failed = failed, .stopped = stopped },
        };
        g_autofree char *address = NULL;

        c = open_as("admin", NULL, NULL, &p);
        address = g_strconcat(prefixes[i],
                              rados_librados.conn_address(c->conn), NULL);
        CHECK_EQ(write_in(p, oid), 0);
        rados_librados.watch_start(p, &w.w);
        wait_for(&w.started, 1);
        CHECK_EQ(w.start_result, 0);

        CHECK_EQ(rados_librados.blocklist(conn, address), 0);
        CHECK_EQ(write_in(p, oid), -ESHUTDOWN);
        CHECK_EQ(read_object(p, oid, buf, sizeof(buf)), -ESHUTDOWN);
        wait_for(&w.failed, 1);
        CHECK_EQ(w.fail_result, -ENOTCONN);
        rados_librados.watch_stop(p, &w.w);
        wait_for(&w.stopped, 1);
        CHECK_EQ(w.after_stop, 0);
        close_as(c, p);
    }
    /* nobody else is hit */
    CHECK_EQ(write_in(q, oid), 0);
    CHECK_EQ(write_in(pool, oid), 0);

    c = open_as("transport_test", key, NULL, &p);
    CHECK(is_denied(rados_librados.blocklist(
        c->conn, rados_librados.conn_address(other->conn))));
    CHECK_EQ(write_in(q, oid), 0);
    close_as(c, p);
    close_as(other, q);
}

/* What asks a monitor ends also when none answers. */
static void test_no_monitor(void)
{
    struct pinrbd_cluster *c;
    struct rados_pool *p;
    uint64_t id;

    if (!mon_pid) {
        printf("  skipped: no monitor process given\n");
        return;
    }
    c = open_as("admin", NULL, "2", &p);
    CHECK_EQ(kill(mon_pid, SIGSTOP), 0);
    CHECK_EQ(rados_librados.snap_alloc(p, &id), -ETIMEDOUT);
    CHECK_EQ(rados_librados.snap_release(p, 1), -ETIMEDOUT);
    CHECK_EQ(rados_librados.blocklist(c->conn, "127.0.0.1:0/1"), -ETIMEDOUT);
    CHECK_EQ(kill(mon_pid, SIGCONT), 0);
    close_as(c, p);
}

struct opener {
    const struct pinrbd_kv *kv;
    size_t n;
    struct pinrbd_cluster *cluster;
    struct pinrbd_error err;
    int result;
};

static gpointer open_thread(gpointer opaque)
{
    struct opener *o = opaque;

    o->result = open_cluster(conf, false, o->kv, o->n, &o->cluster, &o->err);
    return NULL;
}

static void open_together(struct opener *o, unsigned n)
{
    GThread *threads[8];

    for (unsigned i = 0; i < n; i++) {
        threads[i] = g_thread_new("open", open_thread, &o[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        g_thread_join(threads[i]);
    }
}

static void test_sharing(void)
{
    /* an option of its own keeps it apart from the test's own cluster */
    struct pinrbd_kv kv = { "rados_osd_op_timeout", "12345" };
    struct pinrbd_kv wrong[] = {
        { "keyring", "/dev/null" },
        { "key", "AQDhoKVnAAAAABAAnB8YzV4ZQ5vYbnmQfH5Zqg==" },
    };
    struct pinrbd_cluster *a, *b;
    struct opener o[8] = { 0 };
    struct opener w[3] = { 0 };
    uint64_t instance;

    CHECK_EQ(open_cluster(conf, false, NULL, 0, &a, NULL), 0);
    CHECK(a == cluster);
    pinrbd_cluster_close(a);
    CHECK_EQ(open_cluster(conf, true, NULL, 0, &b, NULL), 0);
    CHECK(b != cluster);
    CHECK(rados_librados.conn_instance(b->conn) !=
          rados_librados.conn_instance(cluster->conn));
    pinrbd_cluster_close(b);

    for (unsigned i = 0; i < 8; i++) {
        o[i].kv = &kv;
        o[i].n = 1;
    }
    open_together(o, 8);
    for (unsigned i = 0; i < 8; i++) {
        CHECK_EQ(o[i].result, 0);
        CHECK(o[i].cluster == o[0].cluster);
        CHECK(o[i].cluster != cluster);
    }
    CHECK(cluster_ref(o[0].cluster) == o[0].cluster);
    instance = rados_librados.conn_instance(o[0].cluster->conn);
    for (unsigned i = 0; i < 8; i++) {
        pinrbd_cluster_close(o[i].cluster);
    }
    CHECK_EQ(open_cluster(conf, false, &kv, 1, &a, NULL), 0);
    CHECK_EQ(rados_librados.conn_instance(a->conn), instance);
    pinrbd_cluster_close(a);
    pinrbd_cluster_close(a);        /* the one of cluster_ref() */
    CHECK_EQ(open_cluster(conf, false, &kv, 1, &a, NULL), 0);
    CHECK(rados_librados.conn_instance(a->conn) != instance);
    pinrbd_cluster_close(a);

    for (unsigned i = 0; i < 3; i++) {
        w[i].kv = wrong;
        w[i].n = 2;
    }
    open_together(w, 3);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_EQ(w[i].result, -EACCES);
        CHECK_EQ(w[i].err.code, -EACCES);
        CHECK(strcmp(w[i].err.text, "cannot connect to the Ceph cluster as "
                     "client.admin: Permission denied") == 0);
    }
}

static void test_open_errors(void)
{
    struct pinrbd_kv unknown = { "no_such_option", "1" };
    struct pinrbd_kv bad = { "rados_osd_op_timeout", "soon" };
    struct pinrbd_kv down[] = {
        { "mon_host", "127.0.0.1:1" }, { "client_mount_timeout", "3" },
    };
    struct pinrbd_cluster *c;
    struct pinrbd_error err;

    CHECK_EQ(open_cluster("/no/such/file", false, NULL, 0, &c, &err), -ENOENT);
    CHECK(strcmp(err.text, "error reading conf file /no/such/file: "
                 "No such file or directory") == 0);
    CHECK_EQ(open_cluster("/", false, NULL, 0, &c, &err), -EISDIR);
    CHECK(strstr(err.text, "file /: "));
    CHECK_EQ(open_cluster(conf, false, &unknown, 1, &c, &err), -ENOENT);
    CHECK(strcmp(err.text, "invalid conf option no_such_option: "
                 "No such file or directory") == 0);
    CHECK_EQ(open_cluster(conf, false, &bad, 1, &c, &err), -EINVAL);
    CHECK(strcmp(err.text, "invalid conf option rados_osd_op_timeout: value "
                 "'soon': Invalid argument") == 0);
    CHECK_EQ(open_cluster(conf, false, down, 2, &c, &err), -ETIMEDOUT);
    CHECK(strcmp(err.text, "cannot connect to the Ceph cluster as "
                 "client.admin: Connection timed out") == 0);
    CHECK_EQ(open_cluster(conf, false, &unknown, 1, &c, NULL), -ENOENT);
    pinrbd_cluster_close(NULL);
}

static void test_conn_facts(void)
{
    char text[64], fsid[40];

    CHECK(rados_cluster_fsid(side, fsid, sizeof(fsid)) > 0);
    CHECK(strcmp(rados_librados.conn_fsid(cluster->conn), fsid) == 0);
    CHECK(strstr(rados_librados.conn_address(cluster->conn), ":0/"));
    CHECK_EQ(rados_librados.conn_option(cluster->conn, "no_such_option", text,
                                        sizeof(text)), -ENOENT);
    CHECK_EQ(rados_librados.conn_option(cluster->conn, "objecter_inflight_ops",
                                        text, sizeof(text)), 0);
    CHECK(strcmp(text, "0") == 0);
    CHECK_EQ(cluster_mount_timeout_ms(cluster), 300000);
}

/* ---- main -------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*fn)(void);
} tests[] = {
    { "conn-facts", test_conn_facts },
    { "pools", test_pools },
    { "scatter", test_scatter },
    { "copy-is-private", test_copy_is_private },
    { "short-read", test_short_read },
    { "shapes", test_shapes },
    { "create", test_create },
    { "assert", test_assert },
    { "checksum", test_checksum },
    { "class-call", test_class_call },
    { "many-calls", test_many_calls },
    { "copyup", test_copyup },
    { "many-steps", test_many_steps },
    { "refused", test_refused },
    { "snapshots", test_snapshots },
    { "snap-ids", test_snap_ids },
    { "order", test_order },
    { "watch", test_watch },
    { "watch-timeout", test_watch_timeout },
    { "cancel", test_cancel },
    { "late", test_late },
    { "unstable-payload", test_unstable_payload },
    { "blocklist", test_blocklist },
    { "no-monitor", test_no_monitor },
    { "identity", test_identity },
    { "sharing", test_sharing },
    { "open-errors", test_open_errors },
};

static bool wanted(const char *name, char **names)
{
    if (!*names) {
        return true;
    }
    return g_strv_contains((const char *const *)names, name);
}

static void print_log(G_GNUC_UNUSED void *opaque,
                      G_GNUC_UNUSED enum pinrbd_log_level level,
                      const char *line)
{
    printf("  log: %s\n", line);
}

int main(int argc, char **argv)
{
    struct pinrbd_error err;

    setvbuf(stdout, NULL, _IOLBF, 0);
    conf = getenv("CEPH_CONF");
    if (!conf || argc < 2) {
        fprintf(stderr, "usage: CEPH_CONF=FILE transport_test POOL "
                "[OSD_PID [MON_PID [NAME...]]]\n");
        return 1;
    }
    pool_name = argv[1];
    osd_pid = argc > 2 ? atoi(argv[2]) : 0;
    mon_pid = argc > 3 ? atoi(argv[3]) : 0;
    pinrbd_log_set(print_log, NULL, PINRBD_LOG_INFO);

    if (rados_create(&side, NULL) < 0 ||
        rados_conf_read_file(side, conf) < 0 || rados_connect(side) < 0 ||
        rados_ioctx_create(side, pool_name, &side_io) < 0) {
        printf("cannot reach pool '%s' of the cluster\n", pool_name);
        return 1;
    }
    if (open_cluster(conf, false, NULL, 0, &cluster, &err) < 0) {
        printf("%s\n", err.text);
        return 1;
    }
    if (rados_librados.pool_open(cluster->conn, pool_name, "", &pool) < 0) {
        printf("pool_open failed\n");
        return 1;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(tests); i++) {
        int before = failures;

        if (wanted(tests[i].name, argv + MIN(argc, 4))) {
            tests[i].fn();
            printf("%s %s\n", failures == before ? "ok  " : "FAIL",
                   tests[i].name);
        }
    }
    rados_librados.pool_close(pool);
    pinrbd_cluster_close(cluster);
    rados_ioctx_destroy(side_io);
    rados_shutdown(side);
    return failures ? 1 : 0;
}
