/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Many threads on one image whose cluster answers from several threads in any
 * order, while others take snapshots, change the size, break the watch and
 * look at the statistics.  Each submitter owns a part of the image and knows
 * what it must read; the fake ends the process for a write that would damage
 * a snapshot.  Built with ThreadSanitizer it also looks for data races.
 */
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "fake_rados.h"
#include "include/pinrbd.h"

#define SUBMITTERS 4
#define DEPTH 4
#define ROUNDS 250
#define PART (64u << 10)
#define SLOT (PART / DEPTH)
#define WORKERS 4

static struct pinrbd_cluster *cluster;
static struct pinrbd_image *image;
static struct fake_image *img;
static gint running;            /* submitters */

struct op {
    struct submitter *owner;
    bool busy;                  /* under the owner's lock */
    int result;                 /* under the owner's lock */
    unsigned n_done;            /* under the owner's lock */
    unsigned kind;
    uint64_t off;
    size_t len;
    uint8_t fill;
    uint8_t buf[SLOT];
};

struct submitter {
    unsigned number;
    GThread *thread;
    GMutex lock;
    GCond changed;
    GRand *rand;
    uint8_t model[PART];
    struct op ops[DEPTH];
    struct op flush;
};

enum { READ, WRITE, ZEROES, KINDS };

static void op_over(void *opaque, int result)
{
    struct op *op = opaque;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&op->owner->lock);

    op->result = result;
    op->busy = false;
    op->n_done++;
    g_cond_broadcast(&op->owner->changed);
}

static void submit(struct submitter *s, struct op *op, unsigned slot)
{
    struct iovec iov[2];
    size_t half;
    int result = 0;
    int r = 0;

    op->owner = s;
    op->kind = g_rand_int_range(s->rand, 0, KINDS);
    op->off = slot * SLOT + g_rand_int_range(s->rand, 0, SLOT);
    op->len = g_rand_int_range(s->rand, 1,
                               (slot + 1) * SLOT - op->off + 1);
    op->fill = g_rand_int_range(s->rand, 1, 256);
    op->busy = true;
    op->n_done = 0;
    memset(op->buf, op->kind == WRITE ? op->fill : 0xaa, op->len);
    half = op->len / 2;
    iov[0] = (struct iovec) { op->buf, half };
    iov[1] = (struct iovec) { op->buf + half, op->len - half };
    switch (op->kind) {
    case READ:
        r = pinrbd_read(image, s->number * PART + op->off, op->len, iov, 2,
                        op_over, op, &result);
        break;
    case WRITE:
        r = pinrbd_write(image, s->number * PART + op->off, op->len, iov, 2,
                         op_over, op, &result);
        break;
    case ZEROES:
        r = pinrbd_write_zeroes(image, s->number * PART + op->off, op->len,
                                op->fill & 1 ? PINRBD_ZERO_MAY_UNMAP : 0,
                                op_over, op, &result);
        break;
    }
    if (r) {
        op_over(op, result);
    }
}

static void wait_op(struct op *op)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&op->owner->lock);

    while (op->busy) {
        g_cond_wait(&op->owner->changed, &op->owner->lock);
    }
    g_assert_cmpint(op->n_done, ==, 1);
    g_assert_cmpint(op->result, ==, 0);
}

static void check_op(struct submitter *s, struct op *op)
{
    wait_op(op);
    switch (op->kind) {
    case READ:
        g_assert_cmpmem(op->buf, op->len, s->model + op->off, op->len);
        break;
    case WRITE:
        memset(s->model + op->off, op->fill, op->len);
        break;
    case ZEROES:
        memset(s->model + op->off, 0, op->len);
        break;
    }
}

/* When a flush is done, all writes this thread submitted before are. */
static void flush(struct submitter *s)
{
    struct op *f = &s->flush;
    int result = 0;

    f->owner = s;
    f->busy = true;
    f->n_done = 0;
    if (pinrbd_flush(image, op_over, f, &result)) {
        op_over(f, result);
    }
    wait_op(f);
    g_mutex_lock(&s->lock);
    for (unsigned i = 0; i < DEPTH; i++) {
        g_assert(!s->ops[i].busy || s->ops[i].kind == READ);
    }
    g_mutex_unlock(&s->lock);
}

static gpointer submitter_main(gpointer arg)
{
    struct submitter *s = arg;

    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < DEPTH; i++) {
            submit(s, &s->ops[i], i);
        }
        if (round % 3 == 0) {
            flush(s);
        }
        for (unsigned i = 0; i < DEPTH; i++) {
            check_op(s, &s->ops[i]);
        }
    }
    g_atomic_int_dec_and_test(&running);
    return NULL;
}

static void notify(unsigned op)
{
    uint8_t payload[10] = { 7, 1, 4, 0, 0, 0, op };
    uint64_t id = fake_notify_send(img->header, payload, sizeof(payload));

    fake_wait_acked(id);
}

/* As rbd does it without the exclusive lock. */
static void take_snapshot(void)
{
    uint64_t id;

    notify(18);
    id = fake_image_snap_add(img, "snap");
    fake_require_snapc(id);
    notify(19);
    notify(3);
}

static gpointer snapshots_main(gpointer arg)
{
    while (g_atomic_int_get(&running)) {
        take_snapshot();
        if (img->snaps->len > 5) {
            fake_image_snap_remove(img, g_array_index(img->snaps,
                                                      struct fake_snap,
                                                      0).id);
            notify(3);
        }
    }
    return NULL;
}

static gpointer watcher_main(gpointer arg)
{
    struct pinrbd_stats stats = { .size = sizeof(stats) };
    struct pinrbd_image_info info = { .size = sizeof(info) };
    struct pinrbd_snapshot *list;
    size_t n;

    while (g_atomic_int_get(&running)) {
        pinrbd_image_stats(image, &stats);
        pinrbd_image_info(image, &info);
        g_assert(info.image_size >= SUBMITTERS * PART);
        if (pinrbd_image_snapshots(image, &list, &n) == 0) {
            free(list);
        }
        g_assert_cmpint(pinrbd_image_refresh(image, NULL), ==, 0);
    }
    return NULL;
}

static gpointer breaker_main(gpointer arg)
{
    while (g_atomic_int_get(&running)) {
        struct pinrbd_error err;

        fake_lose_watch(img->header, -ENOTCONN);
        while (g_atomic_int_get(&running) && !fake_watchers(img->header)) {
            g_thread_yield();
        }
        g_assert_cmpint(pinrbd_image_resize(image, pinrbd_image_size(image) +
                                            4096, PINRBD_RESIZE_GROW_ONLY,
                                            &err), ==, 0);
    }
    return NULL;
}

static void resized(void *opaque)
{
    g_assert(!image ||
             pinrbd_image_size(image) >= SUBMITTERS * PART);
}

static void open_image(unsigned workers, uint8_t order, bool striped)
{
    struct pinrbd_cluster_options co = { .size = sizeof(co) };
    struct pinrbd_image_options o = {
        .size = sizeof(o), .pool = "rbd", .image = "disk",
        .resized = resized,
    };
    struct pinrbd_error err;

    fake_start(workers);
    image = NULL;
    img = fake_image_add("rbd", "", "disk", SUBMITTERS * PART, order);
    if (striped) {
        img->features |= PINRBD_FEATURE_STRIPINGV2;
        img->stripe_unit = 2048;
        img->stripe_count = 3;
    }
    assert_int_equal(cluster_open(&fake_rados, &co, &cluster, &err), 0);
    assert_int_equal(pinrbd_image_open(cluster, &o, &image, &err), 0);
}

static void close_image(void)
{
    pinrbd_image_close(image);
    pinrbd_cluster_close(cluster);
    fake_stop();
}

/* All submitters, and one thread that disturbs them. */
static void run_all(GThreadFunc disturb)
{
    struct submitter *s = g_new0(struct submitter, SUBMITTERS);
    struct pinrbd_stats stats = { .size = sizeof(stats) };
    GThread *other;

    g_atomic_int_set(&running, SUBMITTERS);
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        s[i].number = i;
        s[i].rand = g_rand_new_with_seed(i);
        g_mutex_init(&s[i].lock);
        g_cond_init(&s[i].changed);
        s[i].thread = g_thread_new("submit", submitter_main, &s[i]);
    }
    other = g_thread_new("disturb", disturb, NULL);
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        g_thread_join(s[i].thread);
    }
    g_thread_join(other);

    for (unsigned i = 0; i < SUBMITTERS; i++) {
        struct op *op = &s[i].ops[0];

        /* a whole part, as it is in the end */
        for (unsigned k = 0; k < DEPTH; k++) {
            struct iovec iov = { op->buf, SLOT };
            int result = 0;

            op->busy = true;
            op->n_done = 0;
            if (pinrbd_read(image, i * PART + k * SLOT, SLOT, &iov, 1,
                            op_over, op, &result)) {
                op_over(op, result);
            }
            wait_op(op);
            g_assert_cmpmem(op->buf, SLOT, s[i].model + k * SLOT, SLOT);
        }
        g_rand_free(s[i].rand);
        g_mutex_clear(&s[i].lock);
        g_cond_clear(&s[i].changed);
    }
    do {                        /* a request leaves after its callback */
        g_thread_yield();
        pinrbd_image_stats(image, &stats);
    } while (stats.in_flight);
    assert_int_equal(stats.failed, 0);
    g_free(s);
}

static void test_snapshots(void **state)
{
    open_image(WORKERS, 12, false);
    run_all(snapshots_main);
    close_image();
}

static void test_queries_and_refresh(void **state)
{
    open_image(WORKERS, 13, true);
    run_all(watcher_main);
    close_image();
}

static void test_lost_watches_and_resize(void **state)
{
    open_image(WORKERS, 12, false);
    run_all(breaker_main);
    close_image();
}

static gint reads_over;

static void read_over(void *opaque, int result)
{
    g_assert_cmpint(result, ==, 0);
    g_atomic_int_inc(&reads_over);
}

static gpointer reader_main(gpointer arg)
{
    static uint8_t buf[SUBMITTERS][4096];
    struct iovec iov = { buf[GPOINTER_TO_UINT(arg)], 4096 };

    for (unsigned i = 0; i < ROUNDS; i++) {
        gint before = g_atomic_int_get(&reads_over);
        int result;

        if (pinrbd_read(image, i % 64 * 1024, 4096, &iov, 1, read_over, NULL,
                        &result)) {
            read_over(NULL, result);
        }
        while (g_atomic_int_get(&reads_over) == before) {
            g_thread_yield();
        }
    }
    g_atomic_int_dec_and_test(&running);
    return NULL;
}

/* Reads go on while the image changes hands. */
static void test_activation(void **state)
{
    GThread *thread;
    struct pinrbd_error err;

    open_image(WORKERS, 12, false);
    g_atomic_int_set(&running, 1);
    thread = g_thread_new("read", reader_main, GUINT_TO_POINTER(0));
    while (g_atomic_int_get(&running)) {
        struct pinrbd_image_info info = { .size = sizeof(info) };

        assert_int_equal(pinrbd_image_inactivate(image, &err), 0);
        pinrbd_image_info(image, &info);
        assert_true(info.read_only);
        assert_int_equal(pinrbd_image_activate(image, &err), 0);
    }
    g_thread_join(thread);
    close_image();
}

static gpointer open_close_main(gpointer arg)
{
    struct pinrbd_image_options o = {
        .size = sizeof(o), .pool = "rbd", .image = "disk",
    };
    struct pinrbd_cluster_options co = { .size = sizeof(co) };
    static uint8_t page[4096];
    struct iovec iov = { page, sizeof(page) };

    for (unsigned i = 0; i < 20; i++) {
        struct pinrbd_cluster *c;
        struct pinrbd_image *mine;
        struct pinrbd_error err;
        gint over = 0;
        int result;

        g_assert_cmpint(cluster_open(&fake_rados, &co, &c, &err), ==, 0);
        g_assert_cmpint(pinrbd_image_open(c, &o, &mine, &err), ==, 0);
        pinrbd_cluster_close(c);
        for (unsigned k = 0; k < 8; k++) {
            if (!pinrbd_write(mine, GPOINTER_TO_UINT(arg) * PART + k * 4096,
                              4096, &iov, 1, read_over, NULL, &result)) {
                over++;
            } else {
                g_assert_cmpint(result, ==, 0);
            }
        }
        pinrbd_image_close(mine);       /* waits for them */
    }
    g_atomic_int_dec_and_test(&running);
    return NULL;
}

/* Closing with requests under way, connections shared and dropped. */
static void test_open_and_close(void **state)
{
    GThread *threads[SUBMITTERS];

    open_image(WORKERS, 12, false);
    g_atomic_int_set(&running, SUBMITTERS);
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        threads[i] = g_thread_new("open-close", open_close_main,
                                  GUINT_TO_POINTER(i));
    }
    while (g_atomic_int_get(&running)) {
        notify(3);
        fake_lose_watch(img->header, -ENOTCONN);
        while (!fake_watchers(img->header) && g_atomic_int_get(&running)) {
            g_thread_yield();
        }
    }
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        g_thread_join(threads[i]);
    }
    close_image();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_queries_and_refresh),
        cmocka_unit_test(test_lost_watches_and_resize),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_open_and_close),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
