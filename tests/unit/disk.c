/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * See disk.h.  A thread that submits remembers it, so that a completion from
 * inside the submit is caught.
 */
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "disk.h"
#include "fake_timer.h"

static __thread bool submitting;
static GMutex log_lock;
static GPtrArray *log_heard;    /* under log_lock */

static void resized(void *opaque)
{
    struct disk *d = opaque;

    __atomic_add_fetch(&d->n_resized, 1, __ATOMIC_RELAXED);
}

void disk_init(struct disk *d, uint64_t size, uint8_t order)
{
    static const struct pinrbd_cluster_options co = { .size = sizeof(co) };

    memset(d, 0, sizeof(*d));
    fake_start(0);
    assert_int_equal(cluster_open(&fake_rados, &co, &d->cluster, &d->err), 0);
    d->img = fake_image_add("rbd", "", "disk", size, order);
    d->o = (struct pinrbd_image_options) {
        .size = sizeof(d->o), .pool = "rbd", .image = "disk",
        .resized = resized, .opaque = d,
    };
    fake_log_clear();
}

int disk_call(struct disk *d, int (*fn)(struct disk *d))
{
    struct background b;

    background_start(&b, d, fn);
    return background_drive(&b);
}

int disk_open(struct disk *d)
{
    return disk_call(d, do_open);
}

void disk_close(struct disk *d)
{
    disk_call(d, do_close);
}

void disk_finish(struct disk *d)
{
    fake_faults_clear();
    disk_close(d);
    pinrbd_cluster_close(d->cluster);
    fake_stop();
    pinrbd_log_set(NULL, NULL, 0);
    g_clear_pointer(&log_heard, g_ptr_array_unref);
}

/* ---- control calls -------------------------------------------------------- */

int do_open(struct disk *d)
{
    memset(&d->err, 0x55, sizeof(d->err));
    return pinrbd_image_open(d->cluster, &d->o, &d->image, &d->err);
}

int do_close(struct disk *d)
{
    pinrbd_image_close(d->image);
    d->image = NULL;
    return 0;
}

int do_refresh(struct disk *d)
{
    return pinrbd_image_refresh(d->image, &d->err);
}

int do_activate(struct disk *d)
{
    return pinrbd_image_activate(d->image, &d->err);
}

int do_inactivate(struct disk *d)
{
    return pinrbd_image_inactivate(d->image, &d->err);
}

static gpointer background_main(gpointer arg)
{
    struct background *b = arg;

    b->result = b->fn(b->d);
    __atomic_store_n(&b->over, 1, __ATOMIC_RELEASE);
    return NULL;
}

void background_start(struct background *b, struct disk *d,
                      int (*fn)(struct disk *d))
{
    *b = (struct background) { .d = d, .fn = fn };
    b->thread = g_thread_new("control", background_main, b);
}

bool background_over(struct background *b)
{
    return __atomic_load_n(&b->over, __ATOMIC_ACQUIRE);
}

int background_join(struct background *b)
{
    g_thread_join(b->thread);
    return b->result;
}

int background_drive(struct background *b)
{
    while (!background_over(b)) {
        fake_run();
        fake_clock_advance(1000);
        g_thread_yield();
    }
    return background_join(b);
}

void disk_turn(void)
{
    fake_run();
    fake_clock_advance(50);
    g_usleep(20);
}

/* ---- requests ------------------------------------------------------------ */

static void io_over(void *opaque, int result)
{
    struct io *io = opaque;

    assert_false(submitting);
    io->result = result;
    __atomic_add_fetch(&io->n_done, 1, __ATOMIC_RELEASE);
}

static void settle(struct io *io, int submitted, const int *result)
{
    submitting = false;
    if (submitted) {
        assert_int_equal(submitted, 1);
        io->result = *result;
        io->at_once = true;
        __atomic_add_fetch(&io->n_done, 1, __ATOMIC_RELEASE);
    }
}

static void begin(struct io *io)
{
    io->n_done = 0;
    io->at_once = false;
    io->result = 12345;
    submitting = true;
}

void io_prepare(struct io *io, size_t len, uint8_t fill)
{
    size_t cut[3] = { len / 7, len / 3, len - len / 5 };
    size_t from = 0;

    memset(io, 0, sizeof(*io));
    io->len = len;
    io->buf = malloc(len ? len : 1);
    memset(io->buf, fill, len);
    for (unsigned i = 0; i < 3; i++) {
        io->iov[io->n_iov++] = (struct iovec) { io->buf + from,
                                                cut[i] - from };
        from = cut[i];
    }
    io->iov[io->n_iov++] = (struct iovec) { NULL, 0 };
    io->iov[io->n_iov++] = (struct iovec) { io->buf + from, len - from };
}

void io_free(struct io *io)
{
    assert_int_equal(io_done(io), 1);
    free(io->buf);
    io->buf = NULL;
}

/* The iovec array is read during the submit only: the copy proves it. */
static struct iovec *lend_iov(const struct iovec *iov, int n)
{
    return g_memdup2(iov, n * sizeof(*iov));
}

static void unlend_iov(struct iovec *iov, int n)
{
    memset(iov, 0x66, n * sizeof(*iov));
    g_free(iov);
}

void io_read_iov(struct disk *d, struct io *io, uint64_t off, uint64_t len,
                 const struct iovec *iov, int n_iov)
{
    struct iovec *lent = lend_iov(iov, n_iov);
    int result = 0;

    begin(io);
    settle(io, pinrbd_read(d->image, off, len, lent, n_iov, io_over, io,
                           &result), &result);
    unlend_iov(lent, n_iov);
}

void io_write_iov(struct disk *d, struct io *io, uint64_t off, uint64_t len,
                  const struct iovec *iov, int n_iov)
{
    struct iovec *lent = lend_iov(iov, n_iov);
    int result = 0;

    begin(io);
    settle(io, pinrbd_write(d->image, off, len, lent, n_iov, io_over, io,
                            &result), &result);
    unlend_iov(lent, n_iov);
}

void io_read(struct disk *d, struct io *io, uint64_t off)
{
    io_read_iov(d, io, off, io->len, io->iov, io->n_iov);
}

void io_write(struct disk *d, struct io *io, uint64_t off)
{
    io_write_iov(d, io, off, io->len, io->iov, io->n_iov);
}

void io_discard(struct disk *d, struct io *io, uint64_t off, uint64_t len)
{
    int result = 0;

    memset(io, 0, sizeof(*io));
    begin(io);
    settle(io, pinrbd_discard(d->image, off, len, io_over, io, &result), &result);
}

void io_zeroes(struct disk *d, struct io *io, uint64_t off, uint64_t len,
               unsigned flags)
{
    int result = 0;

    memset(io, 0, sizeof(*io));
    begin(io);
    settle(io, pinrbd_write_zeroes(d->image, off, len, flags, io_over, io,
                                   &result), &result);
}

void io_flush(struct disk *d, struct io *io)
{
    int result = 0;

    memset(io, 0, sizeof(*io));
    begin(io);
    settle(io, pinrbd_flush(d->image, io_over, io, &result), &result);
}

unsigned io_done(const struct io *io)
{
    return __atomic_load_n(&io->n_done, __ATOMIC_ACQUIRE);
}

void io_expect(const struct io *io, int result)
{
    assert_int_equal(io_done(io), 1);
    assert_int_equal(io->result, result);
}

int io_wait(struct io *io)
{
    int r;

    DRIVE_UNTIL(io_done(io));
    r = io->result;
    io_free(io);
    return r;
}

int write_result(struct disk *d, uint64_t off, size_t len)
{
    struct io io;
    int r;

    io_prepare(&io, len, 0xee);
    io_write(d, &io, off);
    fake_run();
    assert_int_equal(io_done(&io), 1);
    r = io.result;
    io_free(&io);
    return r;
}

void write_now(struct disk *d, uint64_t off, size_t len, uint8_t fill)
{
    struct io io;

    io_prepare(&io, len, fill);
    io_write(d, &io, off);
    fake_run();
    io_expect(&io, 0);
    io_free(&io);
}

void read_expect(struct disk *d, uint64_t off, size_t len, uint8_t fill)
{
    struct io io;

    io_prepare(&io, len, ~fill);
    io_read(d, &io, off);
    fake_run();
    io_expect(&io, 0);
    for (size_t i = 0; i < len; i++) {
        if (io.buf[i] != fill) {
            fail_msg("byte %zu is %02x, not %02x", (size_t)off + i, io.buf[i],
                     fill);
        }
    }
    io_free(&io);
}

/* ---- the log ------------------------------------------------------------- */

static void hear(void *opaque, enum pinrbd_log_level level, const char *line)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&log_lock);

    g_ptr_array_add(log_heard, g_strdup(line));
}

void hear_log(void)
{
    if (!log_heard) {
        log_heard = g_ptr_array_new_with_free_func(g_free);
        pinrbd_log_set(hear, NULL, PINRBD_LOG_INFO);
    }
}

unsigned heard(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&log_lock);
    unsigned n = 0;

    for (guint i = 0; i < log_heard->len; i++) {
        n += g_pattern_match_simple(match, g_ptr_array_index(log_heard, i));
    }
    return n;
}

void print_log(void)
{
    for (unsigned i = 0; i < fake_log_length(); i++) {
        print_message("%u: %s\n", i, fake_log_line(i));
    }
    for (guint i = 0; log_heard && i < log_heard->len; i++) {
        print_message("said: %s\n", (char *)g_ptr_array_index(log_heard, i));
    }
}

unsigned line_of(const char *match, unsigned from)
{
    for (unsigned i = from; i < fake_log_length(); i++) {
        if (g_pattern_match_simple(match, fake_log_line(i))) {
            return i;
        }
    }
    print_log();
    fail_msg("no line '%s' from line %u on", match, from);
    return 0;
}

void expect_line(const char *match)
{
    if (fake_log_count(match) != 1) {
        print_log();
        fail_msg("'%s' is there %u times", match, fake_log_count(match));
    }
}

/* ---- the lock ------------------------------------------------------------ */

bool we_hold(struct disk *d)
{
    struct fake_locker l;

    return fake_lock_owner(d->img, &l) &&
           l.gid == fake_rados.conn_instance(d->cluster->conn);
}

/* ---- other clients ------------------------------------------------------- */

void make_clone(struct disk *d, const struct fake_image *parent,
                uint64_t overlap)
{
    struct fake_image *img = d->img;

    img->parent_pool = parent->pool;
    g_strlcpy(img->parent_ns, parent->ns, sizeof(img->parent_ns));
    g_strlcpy(img->parent_id, parent->id, sizeof(img->parent_id));
    img->parent_snap = parent->snap_seq;
    img->has_overlap = true;
    img->overlap = overlap;
    fake_image_touch(img);
}

static const struct fake_snap *revision_of(const struct fake_image *img,
                                           uint64_t snap)
{
    for (guint i = 0; i < img->snaps->len; i++) {
        const struct fake_snap *s = &g_array_index(img->snaps,
                                                   struct fake_snap, i);

        if (s->id == snap) {
            return s;
        }
    }
    return NULL;
}

/* A part of one object. */
static void other_client_read_object(const struct fake_image *img,
                                     uint64_t snap, uint64_t off,
                                     uint8_t *buf, size_t len)
{
    const struct fake_snap *s = revision_of(img, snap);
    uint64_t overlap = s ? s->has_overlap ? s->overlap : 0
                         : img->has_overlap ? img->overlap : 0;
    uint64_t flags = s ? s->flags : img->flags;
    uint64_t n = off >> img->order;
    g_autofree char *oid = g_strdup_printf("%s.%016" G_GINT64_MODIFIER "x",
                                           img->prefix, (guint64)n);
    g_autofree char *header = g_strdup_printf("rbd_header.%s",
                                              img->parent_id);
    bool absent = img->features & PINRBD_FEATURE_OBJECT_MAP && !(flags & 1) &&
                  fake_map_state(img, snap, n) == 0;
    int64_t r = absent ? -ENOENT :
        fake_object_read(img->data_pool < 0 ? img->pool : img->data_pool,
                         img->ns, oid, snap, off - (n << img->order), buf,
                         len);

    memset(buf + MAX(r, 0), 0, len - MAX(r, 0));
    if (r == -ENOENT && off < overlap) {
        other_client_read(fake_image_find(header), img->parent_snap, off, buf,
                          MIN(len, overlap - off));
    }
}

void other_client_read(const struct fake_image *img, uint64_t snap,
                       uint64_t off, uint8_t *buf, size_t len)
{
    while (len) {
        uint64_t object = 1ULL << img->order;
        size_t n = MIN(len, object - off % object);

        other_client_read_object(img, snap, off, buf, n);
        off += n;
        buf += n;
        len -= n;
    }
}

static void other_done(struct rados_op *op)
{
    *(bool *)op->opaque = true;
}

void other_client_write(struct disk *d, const char *oid, uint64_t seq,
                        const uint64_t *ids, size_t n, uint8_t fill)
{
    const struct rados_snapc sc = { seq, n, ids };
    struct iovec iov = { &fill, 1 };
    struct rados_step step = { .kind = RADOS_WRITE, .iov = &iov, .n_iov = 1 };
    bool over = false;
    struct rados_op op = {
        .oid = oid, .steps = &step, .n_steps = 1, .flags = RADOS_OP_WRITE,
        .snapc = &sc, .done = other_done, .opaque = &over,
    };
    struct rados_pool *pool;

    assert_int_equal(fake_rados.pool_open(d->cluster->conn, "rbd", "", &pool),
                     0);
    rados_submit(pool, &op);
    while (!over) {
        assert_true(fake_run_match("write *"));
    }
    assert_int_equal(op.result, 0);
    fake_rados.pool_close(pool);
}
