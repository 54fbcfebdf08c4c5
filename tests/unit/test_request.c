/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest requests, on the fake in manual mode: what is sent, in which order it
 * may be answered, and what the guest is told.
 */
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "disk.h"
#include "fake_timer.h"

#define OBJ(n) "rbd_data.img1.000000000000000" #n

static struct disk d;

/* 16 objects of 4 KiB. */
static int setup(void **state)
{
    disk_init(&d, 64 << 10, 12);
    assert_int_equal(disk_open(&d), 0);
    fake_log_clear();
    return 0;
}

static int setup_big_objects(void **state)
{
    disk_init(&d, 8 << 20, 20);
    assert_int_equal(disk_open(&d), 0);
    fake_log_clear();
    return 0;
}

static int teardown(void **state)
{
    disk_finish(&d);
    return 0;
}

static void reopen_with(enum pinrbd_pin pin, uint64_t threshold)
{
    struct pinrbd_settings s = {
        .size = sizeof(s), .pin = pin, .pin_threshold = threshold,
    };

    disk_close(&d);
    d.o.settings = &s;
    assert_int_equal(disk_open(&d), 0);
    d.o.settings = NULL;
    fake_log_clear();
}

static struct pinrbd_stats stats(void)
{
    struct pinrbd_stats s = { .size = sizeof(s) };

    pinrbd_image_stats(d.image, &s);
    return s;
}

/* ---- the ops -------------------------------------------------------------- */

static void test_ops_sent(void **state)
{
    struct io io;

    write_now(&d, 4096 + 100, 200, 1);
    expect_line("alloc_hint " OBJ(1) " 4096 4096 + write 100~200 ordersnap "
                "copy");
    write_now(&d, 8192, 4096, 2);
    expect_line("alloc_hint " OBJ(2) " 4096 4096 + write_full 4096 "
                "ordersnap copy");
    read_expect(&d, 8192 + 10, 20, 2);
    expect_line("read " OBJ(2) " 10~20");

    io_zeroes(&d, &io, 4096, 4096, PINRBD_ZERO_MAY_UNMAP);
    fake_run();
    io_expect(&io, 0);
    expect_line("remove " OBJ(1) " ordersnap");
    io_zeroes(&d, &io, 8192 + 512, 4096 - 512, PINRBD_ZERO_MAY_UNMAP);
    fake_run();
    io_expect(&io, 0);
    expect_line("truncate " OBJ(2) " 512 ordersnap");
    io_zeroes(&d, &io, 8192 + 512, 100, PINRBD_ZERO_MAY_UNMAP);
    fake_run();
    io_expect(&io, 0);
    expect_line("zero " OBJ(2) " 512~100 ordersnap");
    io_zeroes(&d, &io, 3 * 4096 + 1, 1100, 0);
    fake_run();
    io_expect(&io, 0);
    expect_line("alloc_hint " OBJ(3) " 4096 4096 + writesame 1~1024 + write "
                "1025~76 ordersnap");
    /* it stays allocated */
    assert_int_equal(fake_object_size(FAKE_POOL_RBD, "", OBJ(3),
                                      RADOS_NOSNAP), 1101);
    io_discard(&d, &io, 8192, 4096);
    fake_run();
    io_expect(&io, 0);
    expect_line("remove " OBJ(2) " ordersnap");
}

/* Nothing there to remove: as good as removed. */
static void test_remove_of_nothing(void **state)
{
    struct io io;

    io_discard(&d, &io, 0, 16384);
    fake_run();
    io_expect(&io, 0);
    io_zeroes(&d, &io, 0, 16384, PINRBD_ZERO_MAY_UNMAP);
    fake_run();
    io_expect(&io, 0);
    assert_int_equal(fake_log_count("remove *"), 8);
    assert_int_equal(fake_object_count(FAKE_POOL_RBD, "rbd_data.*"), 0);
}

/* A write of something missing is not a missing object. */
static void test_write_enoent_is_an_error(void **state)
{
    fake_fault_add(&(struct fake_fault) { .match = "*write*",
                                          .err = -ENOENT });
    assert_int_equal(write_result(&d, 0, 512), -ENOENT);
}

static void test_discard_granularity(void **state)
{
    struct io io;

    /* objects of 1 MiB: whole 64 KiB only */
    write_now(&d, 0, 2 << 20, 7);
    fake_log_clear();
    io_discard(&d, &io, 1, (128 << 10) - 2);
    io_expect(&io, 0);
    assert_true(io.at_once);            /* nothing to do */
    io_discard(&d, &io, 1, (128 << 10) - 1);
    fake_run();
    io_expect(&io, 0);
    expect_line("zero rbd_data.img1.0000000000000000 65536~65536 ordersnap");
    io_discard(&d, &io, (1 << 20) - 65536 - 7, 2 * 65536 + 100);
    fake_run();
    io_expect(&io, 0);
    expect_line("truncate rbd_data.img1.0000000000000000 983040 ordersnap");
    expect_line("zero rbd_data.img1.0000000000000001 0~65536 ordersnap");
    assert_int_equal(fake_log_length(), 3);
    read_expect(&d, 0, 65536, 7);
    read_expect(&d, 65536, 65536, 0);
    read_expect(&d, (1 << 20) - 65536, 65536, 0);
    read_expect(&d, (1 << 20) + 65536, 65536, 7);
}

static void test_holes(void **state)
{
    read_expect(&d, 0, 64 << 10, 0);            /* no object at all */
    write_now(&d, 4096 + 10, 20, 5);            /* short object */
    read_expect(&d, 4096, 10, 0);
    read_expect(&d, 4096 + 10, 20, 5);
    read_expect(&d, 4096 + 30, 8192, 0);
    fake_object_put(FAKE_POOL_RBD, "", OBJ(4), "", 0);
    read_expect(&d, 4 * 4096, 4096, 0);
    read_expect(&d, 0, 4096 + 10, 0);
}

/* ---- bounds --------------------------------------------------------------- */

static void test_bounds(void **state)
{
    static const struct {
        uint64_t off;
        uint64_t len;
        int result;
    } cases[] = {
        { 0, 0, 0 }, { 65536, 0, 0 }, { 65537, 0, -EINVAL },
        { 65535, 2, -EINVAL }, { 65536, 1, -EINVAL },
        { UINT64_MAX, 1, -EINVAL }, { UINT64_MAX, 2, -EINVAL },
        { UINT64_MAX - 4096, 8192, -EINVAL },
        { INT64_MAX, 1, -EINVAL }, { 0, 65537, -EINVAL },
        { 0, UINT64_MAX, -EINVAL }, { 4096, UINT64_MAX - 4096, -EINVAL },
        { 1, UINT64_MAX, -EINVAL }, { 0, INT64_MAX, -EINVAL },
    };
    struct iovec iov = { NULL, 0 };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct io io;
        int r = 77;

        io_discard(&d, &io, cases[i].off, cases[i].len);
        io_expect(&io, cases[i].result);
        assert_true(io.at_once);
        io_zeroes(&d, &io, cases[i].off, cases[i].len, 0);
        io_expect(&io, cases[i].result);
        assert_true(io.at_once);
        if (cases[i].len > 65537) {
            continue;
        }
        io_prepare(&io, cases[i].len, 1);
        io_write(&d, &io, cases[i].off);
        io_expect(&io, cases[i].result);
        io_read(&d, &io, cases[i].off);
        io_expect(&io, cases[i].result);
        io_free(&io);
        if (!cases[i].len) {
            assert_int_equal(pinrbd_read(d.image, cases[i].off, 0, &iov, 0,
                                         NULL, NULL, &r), 1);
            assert_int_equal(r, cases[i].result);
        }
    }
    assert_int_equal(fake_log_length(), 0);
    write_now(&d, 65535, 1, 9);                 /* the last byte */
    read_expect(&d, 65535, 1, 9);
}

/* An iovec that holds less than it should is refused, not overrun. */
static void test_short_iovec(void **state)
{
    char byte = 1;
    struct iovec iov = { &byte, 1 };
    int r = 0;

    assert_int_equal(pinrbd_write(d.image, 0, 2, &iov, 1, NULL, NULL, &r), 1);
    assert_int_equal(r, -EINVAL);
    assert_int_equal(fake_log_length(), 0);
    assert_int_equal(stats().in_flight, 0);
}

static void test_empty_image(void **state)
{
    struct io io;

    disk_close(&d);
    fake_image_set_size(d.img, 0);
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(pinrbd_image_size(d.image), 0);
    assert_int_equal(write_result(&d, 0, 1), -EINVAL);
    io_prepare(&io, 1, 0);
    io_read(&d, &io, 0);
    io_expect(&io, -EINVAL);
    io_free(&io);
    io_flush(&d, &io);
    io_expect(&io, 0);
}

/* ---- memory --------------------------------------------------------------- */

/* Which bytes reach the object: those at submit, or those at completion? */
static uint8_t bytes_written(size_t len)
{
    struct io io;
    uint8_t got = 0;

    io_prepare(&io, len, 'A');
    io_write(&d, &io, 0);
    memset(io.buf, 'B', len);
    fake_run();
    io_expect(&io, 0);
    io_free(&io);
    assert_int_equal(fake_object_read(FAKE_POOL_RBD, "", OBJ(0),
                                      RADOS_NOSNAP, 0, &got, 1), 1);
    return got;
}

static void test_pin(void **state)
{
    static const struct {
        enum pinrbd_pin pin;
        uint64_t threshold;
        size_t len;
        bool pinned;
    } cases[] = {
        { PINRBD_PIN_AUTO, 1024, 1023, false },
        { PINRBD_PIN_AUTO, 1024, 1024, true },
        { PINRBD_PIN_AUTO, 0, 1, true },
        { PINRBD_PIN_ALWAYS, 4096, 1, true },
        { PINRBD_PIN_NEVER, 0, 4096, false },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct pinrbd_stats s;

        reopen_with(cases[i].pin, cases[i].threshold);
        assert_int_equal(bytes_written(cases[i].len),
                         cases[i].pinned ? 'B' : 'A');
        assert_int_equal(fake_log_count("*write* copy"), !cases[i].pinned);
        s = stats();
        assert_int_equal(s.pinned_bytes, cases[i].pinned ? cases[i].len : 0);
        assert_int_equal(s.copied_small_bytes,
                         !cases[i].pinned && cases[i].pin == PINRBD_PIN_AUTO ?
                         cases[i].len : 0);
        assert_int_equal(s.copied_never_bytes,
                         cases[i].pin == PINRBD_PIN_NEVER ?
                         cases[i].len : 0);
    }
}

/* The default is what the option table says. */
static void test_default_threshold(void **state)
{
    struct pinrbd_option_info info = { 0 };
    size_t threshold;
    unsigned i = 0;

    do {
        assert_true(pinrbd_settings_describe(i++, &info));
    } while (!g_str_equal(info.key, "pin-threshold"));
    threshold = atoi(info.standard) * 1024;     /* "32K" */
    assert_int_equal(info.standard[strlen(info.standard) - 1], 'K');
    assert_int_equal(bytes_written(threshold - 1), 'A');
    assert_int_equal(bytes_written(threshold), 'B');
    assert_int_equal(stats().pinned_bytes, threshold);
    assert_int_equal(stats().copied_small_bytes, threshold - 1);
}

static void test_late(void **state)
{
    fake_fault_add(&(struct fake_fault) { .match = "*write*",
                                          .kind = FAKE_LATE });
    write_now(&d, 0, 4096, 1);
    write_now(&d, 0, 4096, 1);
    assert_int_equal(stats().late_refs, 1);
}

/* ---- errors --------------------------------------------------------------- */

/* One object of many fails: one completion, at the end, with its error. */
static void test_one_of_many_fails(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        struct io io;

        for (unsigned after = 0; after < 2; after++) {
            fake_fault_add(&(struct fake_fault) {
                .match = "*write*", .skip = i, .err = -EIO,
                .kind = after ? FAKE_FAIL_AFTER : FAKE_FAIL,
            });
            io_prepare(&io, 16384, 3);
            io_write(&d, &io, 0);
            assert_int_equal(fake_pending(), 4);
            for (unsigned k = 0; k < 4; k++) {
                assert_int_equal(io_done(&io), 0);
                fake_run_one((i + k) % (4 - k));
            }
            io_expect(&io, -EIO);
            io_free(&io);
        }
        fake_fault_add(&(struct fake_fault) {
            .match = "read *", .skip = i, .err = -EPERM,
        });
        io_prepare(&io, 16384, 3);
        io_read(&d, &io, 0);
        fake_run();
        io_expect(&io, -EPERM);
        io_free(&io);
        fake_fault_add(&(struct fake_fault) {
            .match = "remove *", .skip = i, .err = -ENOSPC,
        });
        io_discard(&d, &io, 0, 16384);
        fake_run();
        io_expect(&io, -ENOSPC);
    }
    assert_int_equal(stats().failed, 16);
    assert_int_equal(stats().in_flight, 0);
}

static void test_short_read(void **state)
{
    struct io io;

    write_now(&d, 0, 4096, 6);
    fake_fault_add(&(struct fake_fault) {
        .match = "read *", .kind = FAKE_SHORT, .arg = 100,
    });
    io_prepare(&io, 4096, 9);
    io_read(&d, &io, 0);
    fake_run();
    io_expect(&io, 0);
    for (unsigned i = 0; i < 4096; i++) {
        assert_int_equal(io.buf[i], i < 100 ? 6 : 0);
    }
    io_free(&io);
}

/* Blocklisted: whatever is under way or comes later fails, nothing hangs. */
static void test_fenced(void **state)
{
    struct io w[3];
    struct io io;

    for (unsigned i = 0; i < 3; i++) {
        io_prepare(&w[i], 512, i);
        io_write(&d, &w[i], i * 4096);
    }
    fake_fault_add(&(struct fake_fault) {
        .match = "*", .times = UINT_MAX, .err = -ESHUTDOWN,
    });
    io_prepare(&io, 512, 0);
    io_write(&d, &io, 8192);
    fake_run_match("*write 0~512*");
    fake_run();
    io_expect(&io, -ESHUTDOWN);
    io_free(&io);
    for (unsigned i = 0; i < 3; i++) {
        io_expect(&w[i], 0);            /* acknowledged before */
        io_free(&w[i]);
    }
    fake_log_clear();
    assert_int_equal(write_result(&d, 0, 512), -ESHUTDOWN);
    io_prepare(&io, 512, 0);
    io_read(&d, &io, 0);
    io_expect(&io, -ESHUTDOWN);
    io_free(&io);
    io_discard(&d, &io, 0, 8192);
    io_expect(&io, -ESHUTDOWN);
    io_flush(&d, &io);
    io_expect(&io, -ESHUTDOWN);
    assert_int_equal(fake_log_length(), 0);     /* not even asked */

    /* then the watch dies too; writes must not wait for it */
    fake_lose_watch(d.img->header, -ENOTCONN);
    fake_run();
    assert_int_equal(write_result(&d, 0, 512), -ESHUTDOWN);
    fake_clock_advance(100);
    fake_run();
    fake_clock_advance(60 * 1000);
    fake_run();
    assert_int_equal(write_result(&d, 0, 512), -ESHUTDOWN);
    fake_faults_clear();
}

/* ---- flush ---------------------------------------------------------------- */

static void test_flush_of_nothing(void **state)
{
    struct io io;

    io_flush(&d, &io);
    io_expect(&io, 0);
    assert_true(io.at_once);
    /* a read is nothing to wait for */
    io_prepare(&io, 512, 0);
    io_read(&d, &io, 0);
    {
        struct io flush;

        io_flush(&d, &flush);
        io_expect(&flush, 0);
    }
    fake_run();
    io_free(&io);
}

/* It completes when the last write before it has, in whatever order. */
static void test_flush_order(void **state)
{
    for (unsigned perm = 0; perm < 6; perm++) {
        static const uint8_t order[6][3] = {
            { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 },
            { 2, 1, 0 },
        };
        struct io before[3];
        struct io flush;
        struct io later;
        struct io flush2;

        io_prepare(&before[0], 512, 1);
        io_write(&d, &before[0], 0);
        io_zeroes(&d, &before[1], 4096, 512, 0);
        io_discard(&d, &before[2], 8192, 4096);
        io_flush(&d, &flush);
        io_prepare(&later, 512, 1);
        io_write(&d, &later, 3 * 4096);
        io_flush(&d, &flush2);
        for (unsigned k = 0; k < 3; k++) {
            static const char *const match[] = {
                "*write 0~512*", "*writesame*", "remove*",
            };

            assert_int_equal(io_done(&flush), 0);
            assert_true(fake_run_match(match[order[perm][k]]));
            io_expect(&before[order[perm][k]], 0);
        }
        io_expect(&flush, 0);
        assert_int_equal(io_done(&later), 0);
        assert_int_equal(io_done(&flush2), 0);
        fake_run();
        io_expect(&later, 0);
        io_expect(&flush2, 0);
        io_free(&before[0]);
        io_free(&later);
    }
}

/* A failed write does not fail the flush: the guest was told already. */
static void test_flush_after_failure(void **state)
{
    struct io w;
    struct io flush;

    fake_fault_add(&(struct fake_fault) { .match = "*write*", .err = -EIO });
    io_prepare(&w, 512, 1);
    io_write(&d, &w, 0);
    io_flush(&d, &flush);
    fake_run();
    io_expect(&w, -EIO);
    io_expect(&flush, 0);
    io_free(&w);
}

struct lane_job {
    struct io *io;
    uint64_t off;
};

static gpointer write_in_thread(gpointer arg)
{
    struct lane_job *job = arg;

    io_write(&d, job->io, job->off);
    return NULL;
}

/* Writes that other threads submitted are waited for too. */
static void test_flush_other_threads(void **state)
{
    struct io w[6];
    struct io flush;

    for (unsigned i = 0; i < 6; i++) {
        struct lane_job job = { &w[i], i * 4096 };

        io_prepare(&w[i], 512, i);
        g_thread_join(g_thread_new("lane", write_in_thread, &job));
    }
    io_flush(&d, &flush);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(io_done(&flush), 0);
        fake_run_one(fake_pending() - 1);
    }
    io_expect(&flush, 0);
    for (unsigned i = 0; i < 6; i++) {
        io_expect(&w[i], 0);
        io_free(&w[i]);
    }
}

/* ---- snapshot contexts ---------------------------------------------------- */

static const uint8_t header_update[] = {
    7, 1, 4, 0, 0, 0, 3, 0, 0, 0,
};

/* Writes wait while the header is read, and go out with what it says. */
static void test_writes_held_during_refresh(void **state)
{
    struct io before;
    struct io held;
    struct io zeroes;
    struct io flush;
    uint64_t notify;
    uint64_t snap;
    g_autofree char *line = NULL;

    write_now(&d, 0, 512, 1);
    io_prepare(&before, 512, 1);
    io_write(&d, &before, 4096);        /* under way */
    snap = fake_image_snap_add(d.img, "one");
    notify = fake_notify_send(d.img->header, header_update,
                              sizeof(header_update));
    assert_true(fake_run_match("notified *"));
    assert_int_equal(fake_notify_unacked(notify), 1);
    assert_int_equal(fake_pending_match("call *get_size*"), 1);

    fake_log_clear();
    io_prepare(&held, 512, 2);
    io_write(&d, &held, 0);
    io_zeroes(&d, &zeroes, 8192, 512, 0);
    io_flush(&d, &flush);
    read_expect(&d, 512, 512, 0);       /* also runs what is pending */
    assert_int_equal(io_done(&before), 1);

    /* the read was sent before the header was read; the writes after */
    io_expect(&held, 0);
    io_expect(&zeroes, 0);
    io_expect(&flush, 0);
    assert_string_equal(fake_log_line(0), "read " OBJ(0) " 512~512");
    line = g_strdup_printf("*write 0~512 snapc %u=[%u] ordersnap copy",
                           (unsigned)snap, (unsigned)snap);
    expect_line(line);
    assert_int_equal(fake_notify_unacked(notify), 0);
    io_free(&before);
    io_free(&held);

    /* the snapshot kept the old byte */
    {
        uint8_t b = 0;

        assert_int_equal(fake_object_read(FAKE_POOL_RBD, "", OBJ(0), snap, 0,
                                          &b, 1), 1);
        assert_int_equal(b, 1);
    }
    read_expect(&d, 0, 512, 2);
}

/* While held: nothing is sent, and the acknowledgement is not either. */
static void test_nothing_sent_while_held(void **state)
{
    struct io w;
    struct io flush;
    uint64_t notify = fake_notify_send(d.img->header, NULL, 0);

    assert_true(fake_run_match("notified *"));
    io_prepare(&w, 512, 2);
    io_write(&d, &w, 0);
    io_flush(&d, &flush);
    assert_int_equal(io_done(&flush), 0);
    assert_int_equal(fake_pending_match("*write*"), 0);
    assert_int_equal(fake_notify_unacked(notify), 1);
    assert_int_equal(stats().in_flight, 2);

    assert_true(fake_run_match("call *get_size*"));
    assert_int_equal(fake_notify_unacked(notify), 0);
    assert_int_equal(fake_pending_match("*write*"), 1);
    assert_int_equal(io_done(&w), 0);
    assert_int_equal(io_done(&flush), 0);
    fake_run();
    io_expect(&w, 0);
    io_expect(&flush, 0);
    io_free(&w);
}

/* The OSD knows a newer context than we do: read the header, send again. */
static void test_old_context_is_resent(void **state)
{
    uint64_t snap = fake_image_snap_add(d.img, "theirs");
    uint8_t bytes[2];
    struct io io;
    struct io flush;

    write_now(&d, 0, 8192, 1);
    other_client_write(&d, OBJ(0), snap, &snap, 1, 5);
    fake_log_clear();

    io_prepare(&io, 8192, 2);           /* one object of two is refused */
    io_write(&d, &io, 0);
    io_flush(&d, &flush);
    assert_true(fake_run_match("*" OBJ(0) "*"));
    assert_true(fake_run_match("*" OBJ(1) "*"));
    assert_int_equal(io_done(&io), 0);
    assert_int_equal(io_done(&flush), 0);
    assert_true(fake_run_match("call *get_size*"));
    fake_run();
    io_expect(&io, 0);
    io_expect(&flush, 0);
    io_free(&io);
    assert_int_equal(fake_log_count("*" OBJ(0) "*write*"), 2);
    assert_int_equal(fake_log_count("*" OBJ(1) "*write*"), 1);
    assert_int_equal(stats().old_snapc, 1);
    read_expect(&d, 0, 8192, 2);
    assert_int_equal(fake_object_read(FAKE_POOL_RBD, "", OBJ(0), snap, 0,
                                      bytes, 2), 2);
    assert_int_equal(bytes[0], 1);      /* as it was at the snapshot */
}

/* A header that never explains the refusal: an error in the end. */
static void test_old_context_for_ever(void **state)
{
    struct io io;

    fake_fault_add(&(struct fake_fault) {
        .match = "*write*", .times = UINT_MAX, .err = -ERESTART,
    });
    io_prepare(&io, 512, 2);
    io_write(&d, &io, 0);
    fake_run();
    io_expect(&io, -ERESTART);
    assert_in_range(fake_log_count("*write*"), 2, 1000);
    fake_faults_clear();
    io_free(&io);
    write_now(&d, 0, 512, 1);
}

/* The image dies while a refused write waits for the header. */
static void test_parked_when_header_goes(void **state)
{
    struct io io;

    fake_fault_add(&(struct fake_fault) { .match = "*write*",
                                          .err = -ERESTART });
    io_prepare(&io, 512, 2);
    io_write(&d, &io, 0);
    assert_true(fake_run_match("*write*"));
    fake_object_remove(FAKE_POOL_RBD, "", d.img->header);
    fake_run();
    io_expect(&io, -ENOENT);
    io_free(&io);
    assert_int_equal(write_result(&d, 0, 512), -ENOENT);
}

/* The image shrinks: what waited is judged by the new size. */
static void test_shrink_while_writing(void **state)
{
    struct io under_way;
    struct io beyond;
    struct io inside;
    struct io across;
    struct io read;

    io_prepare(&under_way, 512, 1);
    io_write(&d, &under_way, 60 << 10);
    fake_image_set_size(d.img, 32 << 10);
    fake_notify_send(d.img->header, header_update, sizeof(header_update));
    assert_true(fake_run_match("notified *"));
    io_prepare(&beyond, 512, 1);
    io_write(&d, &beyond, 60 << 10);
    io_prepare(&inside, 512, 1);
    io_write(&d, &inside, 0);
    io_prepare(&across, 1024, 1);
    io_write(&d, &across, (32 << 10) - 512);
    fake_run();
    io_expect(&under_way, 0);
    io_expect(&beyond, -EINVAL);
    io_expect(&across, -EINVAL);
    io_expect(&inside, 0);
    assert_int_equal(d.n_resized, 1);
    assert_int_equal(pinrbd_image_size(d.image), 32 << 10);
    io_prepare(&read, 512, 0);
    io_read(&d, &read, 32 << 10);
    io_expect(&read, -EINVAL);
    io_free(&read);
    io_free(&under_way);
    io_free(&beyond);
    io_free(&inside);
    io_free(&across);
    fake_image_set_size(d.img, 128 << 10);
    fake_notify_send(d.img->header, NULL, 0);
    fake_run();
    assert_int_equal(d.n_resized, 2);
    write_now(&d, 127 << 10, 1024, 1);
}

/* ---- against a model ------------------------------------------------------ */

struct random_io {
    struct io io;
    unsigned kind;
    uint64_t off;
    size_t len;
    uint8_t fill;
};

enum { KIND_READ, KIND_WRITE, KIND_ZERO, KIND_ZERO_UNMAP, KIND_DISCARD,
       KINDS };

/* Ranges of one round do not overlap: a slot each of the image. */
static void one_round(GRand *rand, uint8_t *model, size_t size, unsigned n)
{
    g_autofree struct random_io *ops = g_new0(struct random_io, n);
    size_t slot = size / n;

    for (unsigned i = 0; i < n; i++) {
        struct random_io *o = &ops[i];

        o->kind = g_rand_int_range(rand, 0, KINDS);
        o->off = i * slot + g_rand_int_range(rand, 0, slot);
        o->len = g_rand_int_range(rand, 1, slot - (o->off - i * slot) + 1);
        if (g_rand_boolean(rand)) {         /* the whole slot */
            o->off = i * slot;
            o->len = slot;
        }
        o->fill = g_rand_int_range(rand, 1, 256);
        switch (o->kind) {
        case KIND_READ:
            io_prepare(&o->io, o->len, 0xaa);
            io_read(&d, &o->io, o->off);
            break;
        case KIND_WRITE:
            io_prepare(&o->io, o->len, o->fill);
            io_write(&d, &o->io, o->off);
            break;
        case KIND_ZERO:
        case KIND_ZERO_UNMAP:
            io_zeroes(&d, &o->io, o->off, o->len,
                      o->kind == KIND_ZERO ? 0 : PINRBD_ZERO_MAY_UNMAP);
            break;
        case KIND_DISCARD:
            io_discard(&d, &o->io, o->off, o->len);
            break;
        }
    }
    while (fake_pending()) {
        fake_run_one(g_rand_int_range(rand, 0, fake_pending()));
    }
    for (unsigned i = 0; i < n; i++) {
        struct random_io *o = &ops[i];
        struct io check;

        io_expect(&o->io, 0);
        switch (o->kind) {
        case KIND_READ:
            assert_memory_equal(o->io.buf, model + o->off, o->len);
            break;
        case KIND_WRITE:
            memset(model + o->off, o->fill, o->len);
            break;
        case KIND_ZERO:
        case KIND_ZERO_UNMAP:
            memset(model + o->off, 0, o->len);
            break;
        case KIND_DISCARD:              /* may do nothing, or a part */
            io_prepare(&check, o->len, 0xaa);
            io_read(&d, &check, o->off);
            fake_run();
            io_expect(&check, 0);
            for (size_t k = 0; k < o->len; k++) {
                if (check.buf[k]) {
                    assert_int_equal(check.buf[k], model[o->off + k]);
                }
                model[o->off + k] = check.buf[k];
            }
            io_free(&check);
            break;
        }
        if (o->io.buf) {
            io_free(&o->io);
        }
    }
}

static void test_random(void **state)
{
    static const struct {
        uint8_t order;
        uint64_t unit;
        uint64_t count;
        size_t size;
        bool data_pool;
    } layouts[] = {
        { 12, 0, 0, 65536, false }, { 12, 0, 0, 65536 - 77, true },
        { 12, 1024, 3, 98304, false }, { 12, 4096, 5, 102400, false },
        { 13, 512, 4, 65536 + 5000, true }, { 16, 65536, 1, 200000, false },
        { 17, 4096, 2, 700000, false },
    };
    g_autoptr(GRand) rand = g_rand_new_with_seed(7);

    for (size_t k = 0; k < G_N_ELEMENTS(layouts); k++) {
        size_t size = layouts[k].size;
        g_autofree uint8_t *model = g_malloc0(size);
        struct io all;

        disk_init(&d, size, layouts[k].order);
        if (layouts[k].count) {
            d.img->features |= PINRBD_FEATURE_STRIPINGV2;
            d.img->stripe_unit = layouts[k].unit;
            d.img->stripe_count = layouts[k].count;
        }
        if (layouts[k].data_pool) {
            d.img->features |= PINRBD_FEATURE_DATA_POOL;
            d.img->data_pool = FAKE_POOL_DATA;
        }
        assert_int_equal(disk_open(&d), 0);
        for (unsigned round = 0; round < 60; round++) {
            one_round(rand, model, size, 1 + round % 9);
        }
        io_prepare(&all, size, 0x55);
        io_read(&d, &all, 0);
        fake_run();
        io_expect(&all, 0);
        assert_memory_equal(all.buf, model, size);
        io_free(&all);
        assert_int_equal(stats().in_flight, 0);
        assert_int_equal(stats().failed, 0);
        if (layouts[k].data_pool) {
            assert_int_equal(fake_object_count(FAKE_POOL_RBD, "rbd_data.*"),
                             0);
        }
        disk_finish(&d);
    }
}

/* More requests than one chunk of slots, more pieces than an inline array. */
static void test_many_and_fragmented(void **state)
{
    struct io io[100];
    uint8_t mem[300];
    struct iovec iov[300];
    struct io many;

    for (unsigned i = 0; i < 100; i++) {
        io_prepare(&io[i], 16384, i);
        io_write(&d, &io[i], i % 4 * 16384);
    }
    assert_int_equal(fake_pending(), 400);
    assert_int_equal(stats().in_flight, 100);
    fake_run();
    for (unsigned i = 0; i < 100; i++) {
        io_expect(&io[i], 0);
        io_free(&io[i]);
    }
    for (unsigned i = 0; i < 4; i++) {
        read_expect(&d, i * 16384, 16384, 96 + i);
    }
    assert_int_equal(stats().in_flight, 0);
    assert_int_equal(stats().writes, 100);
    assert_int_equal(stats().write_bytes, 1638400);

    /* 300 pieces of a byte, across an object's end */
    io_prepare(&many, 1, 0);
    for (unsigned i = 0; i < 300; i++) {
        mem[i] = i;
        iov[i] = (struct iovec) { &mem[i], 1 };
    }
    for (unsigned round = 0; round < 3; round++) {
        io_write_iov(&d, &many, 4000, 300, iov, 300);
        fake_run();
        io_expect(&many, 0);
    }
    memset(mem, 0, sizeof(mem));
    io_read_iov(&d, &many, 4000, 300, iov, 300);
    fake_run();
    io_expect(&many, 0);
    for (unsigned i = 0; i < 300; i++) {
        assert_int_equal(mem[i], (uint8_t)i);
    }
    io_free(&many);
}

/* ---- read-only and snapshots ---------------------------------------------- */

static void test_read_only(void **state)
{
    struct io io;

    write_now(&d, 0, 4096, 4);
    disk_close(&d);
    d.o.read_only = true;
    assert_int_equal(disk_open(&d), 0);
    fake_log_clear();
    assert_int_equal(write_result(&d, 0, 512), -EROFS);
    io_discard(&d, &io, 0, 4096);
    io_expect(&io, -EROFS);
    io_zeroes(&d, &io, 0, 4096, 0);
    io_expect(&io, -EROFS);
    io_flush(&d, &io);
    io_expect(&io, 0);
    assert_int_equal(fake_log_length(), 0);
    read_expect(&d, 0, 4096, 4);
}

static void test_snapshot(void **state)
{
    uint64_t snap;
    g_autofree char *line = NULL;

    write_now(&d, 0, 4096, 4);
    snap = fake_image_snap_add(d.img, "then");
    fake_image_set_size(d.img, 32 << 10);
    fake_notify_send(d.img->header, NULL, 0);
    fake_run();
    write_now(&d, 0, 4096, 5);
    disk_close(&d);
    d.o.snapshot = "then";
    assert_int_equal(disk_open(&d), 0);
    fake_log_clear();
    assert_int_equal(pinrbd_image_size(d.image), 64 << 10);
    read_expect(&d, 0, 4096, 4);
    line = g_strdup_printf("read " OBJ(0) " 0~4096 @%u", (unsigned)snap);
    expect_line(line);
    read_expect(&d, 4096, 60 << 10, 0);
    assert_int_equal(write_result(&d, 0, 512), -EROFS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ops_sent),
        TEST(test_remove_of_nothing),
        TEST(test_write_enoent_is_an_error),
        cmocka_unit_test_setup_teardown(test_discard_granularity,
                                        setup_big_objects, teardown),
        TEST(test_holes),
        TEST(test_bounds),
        TEST(test_short_iovec),
        TEST(test_empty_image),
        TEST(test_pin),
        cmocka_unit_test_setup_teardown(test_default_threshold,
                                        setup_big_objects, teardown),
        TEST(test_late),
        TEST(test_one_of_many_fails),
        TEST(test_short_read),
        TEST(test_fenced),
        TEST(test_flush_of_nothing),
        TEST(test_flush_order),
        TEST(test_flush_after_failure),
        TEST(test_flush_other_threads),
        TEST(test_writes_held_during_refresh),
        TEST(test_nothing_sent_while_held),
        TEST(test_old_context_is_resent),
        TEST(test_old_context_for_ever),
        TEST(test_parked_when_header_goes),
        TEST(test_shrink_while_writing),
        cmocka_unit_test(test_random),
        TEST(test_many_and_fragmented),
        TEST(test_read_only),
        TEST(test_snapshot),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
