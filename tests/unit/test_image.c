/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An image's life on the fake: every control call with a failure at every
 * request it makes, what opens and what is refused and with which words, and
 * following what other clients do, on a clock that the test moves.
 */
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "codec.h"
#include "disk.h"
#include "fake_timer.h"

static struct disk d;

static int setup(void **state)
{
    disk_init(&d, 64 << 10, 12);
    return 0;
}

static int setup_open(void **state)
{
    disk_init(&d, 64 << 10, 12);
    assert_int_equal(disk_open(&d), 0);
    fake_log_clear();
    return 0;
}

static int teardown(void **state)
{
    disk_finish(&d);
    return 0;
}

/* One sentence that says something. */
static void expect_error(int code)
{
    assert_int_equal(d.err.code, code);
    assert_non_null(memchr(d.err.text, 0, sizeof(d.err.text)));
    assert_in_range(strlen(d.err.text), 10, sizeof(d.err.text) - 1);
    assert_null(strchr(d.err.text, '\n'));
}

static void expect_words(const char *words)
{
    if (!strstr(d.err.text, words)) {
        fail_msg("'%s' is not in '%s'", words, d.err.text);
    }
}

static void expect_no_open(int code, const char *words)
{
    assert_int_equal(disk_open(&d), code);
    expect_error(code);
    expect_words(words);
    assert_null(d.image);
    assert_int_equal(fake_watchers(d.img->header), 0);
    assert_int_equal(fake_pending(), 0);
}

static const uint8_t header_update[] = { 7, 1, 4, 0, 0, 0, 3, 0, 0, 0 };
static const uint8_t quiesce[] = {
    7, 1, 28, 0, 0, 0, 18, 0, 0, 0, 0xc3, 0x10, 0, 0, 0, 0, 0, 0,
    0xf0, 0x47, 1, 0x60, 0x14, 0x7f, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
};
static const uint8_t unquiesce[] = {
    7, 1, 28, 0, 0, 0, 19, 0, 0, 0, 0xc3, 0x10, 0, 0, 0, 0, 0, 0,
    0xf0, 0x47, 1, 0x60, 0x14, 0x7f, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
};
static const uint8_t released_lock[] = {
    7, 1, 20, 0, 0, 0, 1, 0, 0, 0, 0xc3, 0x10, 0, 0, 0, 0, 0, 0,
    0xf0, 0x47, 1, 0x60, 0x14, 0x7f, 0, 0,
};

/* ---- open ----------------------------------------------------------------- */

static void test_open(void **state)
{
    struct pinrbd_image_info info = { .size = sizeof(info) };

    assert_int_equal(disk_open(&d), 0);
    /* the watch comes before the reading: nothing is missed between them */
    assert_string_equal(fake_log_line(0), "pool_open rbd/");
    assert_string_equal(fake_log_line(1), "call rbd_id.disk rbd.get_id()");
    assert_string_equal(fake_log_line(2), "watch rbd_header.img1");
    assert_int_equal(fake_log_count("call rbd_header.img1 *get_size*"), 1);
    assert_int_equal(fake_watchers("rbd_header.img1"), 1);
    pinrbd_image_info(d.image, &info);
    assert_int_equal(info.image_size, 64 << 10);
    assert_int_equal(info.object_size, 4096);
    assert_int_equal(info.stripe_unit, 4096);
    assert_int_equal(info.stripe_count, 1);
    assert_int_equal(info.features, PINRBD_FEATURE_LAYERING);
    assert_int_equal(info.pool_id, FAKE_POOL_RBD);
    assert_int_equal(info.data_pool_id, FAKE_POOL_RBD);
    assert_true(info.parent_pool_id == -1);
    assert_false(info.read_only);
    assert_string_equal(info.id, "img1");
    assert_string_equal(info.object_prefix, "rbd_data.img1");
    assert_string_equal(info.address, "127.0.0.1:0/1");
    disk_close(&d);
    assert_int_equal(fake_watchers("rbd_header.img1"), 0);
}

/* An older program knows fewer fields: the rest of its memory is its own. */
static void test_info_of_older_caller(void **state)
{
    struct pinrbd_image_info info;
    size_t known = offsetof(struct pinrbd_image_info, object_size);

    assert_int_equal(disk_open(&d), 0);
    memset(&info, 0x77, sizeof(info));
    info.size = known;
    pinrbd_image_info(d.image, &info);
    assert_int_equal(info.image_size, 64 << 10);
    for (size_t i = known; i < sizeof(info); i++) {
        assert_int_equal(((uint8_t *)&info)[i], 0x77);
    }
}

static void test_open_read_only_needs_no_watch(void **state)
{
    d.o.read_only = true;
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(fake_log_count("watch *"), 0);
}

static void test_open_by_id(void **state)
{
    d.o.image = NULL;
    d.o.image_id = "img1";
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(fake_log_count("*get_id*"), 0);
    write_now(&d, 0, 512, 1);
    disk_close(&d);
    d.o.image_id = "no-such-id";
    assert_int_equal(disk_open(&d), -ENOENT);
    expect_words("rbd_header.no-such-id");
    d.o.image_id = "an-id-of-more-than-thirty-one-characters";
    assert_int_equal(disk_open(&d), -EINVAL);
    expect_words("too long");
}

static void test_open_in_namespace(void **state)
{
    fake_image_add("rbd", "ns1", "inner", 8192, 12);
    d.o.ns = "ns1";
    d.o.image = "inner";
    assert_int_equal(disk_open(&d), 0);
    write_now(&d, 0, 512, 1);
    assert_int_equal(fake_log_count("*write*rbd_data.img2*"), 0);
    assert_int_equal(fake_log_count("*rbd_data.img2.* in rbd/ns1"), 1);
}

static void test_open_with_data_pool(void **state)
{
    d.img->features |= PINRBD_FEATURE_DATA_POOL;
    d.img->data_pool = FAKE_POOL_DATA;
    assert_int_equal(disk_open(&d), 0);
    write_now(&d, 0, 512, 1);
    assert_int_equal(fake_object_count(FAKE_POOL_DATA, "rbd_data.img1.*"), 1);
    disk_close(&d);
    d.img->data_pool = 99;
    expect_no_open(-ENOENT, "data pool");
    expect_words("99");
}

static void test_not_found(void **state)
{
    d.o.image = "other";
    expect_no_open(-ENOENT, "'rbd/other' does not exist");
    fake_object_put(FAKE_POOL_RBD, "", "other.rbd", "x", 1);
    expect_no_open(-ENOTSUP, "format 1");
    d.o.image = "disk";
    d.o.pool = "nopool";
    expect_no_open(-ENOENT, "pool 'nopool' does not exist");
    d.o.pool = "rbd";
    d.o.ns = "nons";
    expect_no_open(-ENOENT, "nons");
    d.o.ns = NULL;
    d.o.snapshot = "nosnap";
    expect_no_open(-ENOENT, "snapshot 'nosnap' does not exist");
    d.o.snapshot = NULL;
    fake_object_remove(FAKE_POOL_RBD, "", d.img->header);
    expect_no_open(-ENOENT, "rbd_header.img1");
    d.o.read_only = true;
    expect_no_open(-ENOENT, "rbd_header.img1");
}

static void test_bad_arguments(void **state)
{
    d.o.image = "";
    assert_true(disk_open(&d) < 0);
    expect_error(-EINVAL);
    d.o.image = NULL;
    assert_true(disk_open(&d) < 0);
    expect_error(-EINVAL);
    d.o.image = "disk";
    d.o.pool = NULL;
    assert_true(disk_open(&d) < 0);
    expect_error(-EINVAL);
    pinrbd_image_close(NULL);
}

/* Every feature that forbids something, by its name. */
static void test_features(void **state)
{
    static const struct {
        uint64_t features;
        int write;              /* results of the two ways to open */
        int read;
        const char *name;
    } cases[] = {
        { 1, 0, 0, NULL },
        { 1 | PINRBD_FEATURE_DEEP_FLATTEN, 0, 0, NULL },
        { 1 | PINRBD_FEATURE_OPERATIONS, 0, 0, NULL },
        { FAKE_DEFAULT_FEATURES, 0, 0, NULL },
        { PINRBD_FEATURE_JOURNALING, -EROFS, 0, "journaling" },
        { PINRBD_FEATURE_NON_PRIMARY, -EROFS, 0, "non-primary" },
        { PINRBD_FEATURE_MIGRATING, -ENOSYS, -ENOSYS, "migrating" },
        { PINRBD_FEATURE_DIRTY_CACHE, -ENOSYS, -ENOSYS, "dirty-cache" },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        d.img->features = cases[i].features;
        d.o.read_only = false;
        if (cases[i].write) {
            expect_no_open(cases[i].write, cases[i].name);
        } else {
            assert_int_equal(disk_open(&d), 0);
            disk_close(&d);
        }
        d.o.read_only = true;
        if (cases[i].read) {
            expect_no_open(cases[i].read, cases[i].name);
        } else {
            assert_int_equal(disk_open(&d), 0);
            disk_close(&d);
        }
    }
    /* one nobody has heard of yet */
    d.img->features = d.img->incompatible = 1ULL << 40 | 1;
    expect_no_open(-ENOSYS, "40");
    /* more than one: each is named */
    d.o.read_only = false;
    d.img->incompatible = 0;
    d.img->features = FAKE_DEFAULT_FEATURES | PINRBD_FEATURE_JOURNALING |
                      PINRBD_FEATURE_NON_PRIMARY;
    expect_no_open(-EROFS, "(journaling, non-primary)");
}

/* The parent must be there, where and while it is needed. */
static void test_parent_is_missing(void **state)
{
    d.img->parent_pool = FAKE_POOL_RBD;
    g_strlcpy(d.img->parent_id, "parent1", sizeof(d.img->parent_id));
    d.img->parent_snap = 3;
    d.img->has_overlap = true;
    d.img->overlap = 8192;
    expect_no_open(-ENOENT, "'rbd/parent1@3, parent of rbd/disk'");
    d.o.read_only = true;
    expect_no_open(-ENOENT, "parent1");
    fake_image_snap_add(d.img, "full");

    /* flattened: the head needs no parent, the snapshot still does */
    d.img->has_overlap = false;
    d.img->overlap = 0;
    assert_int_equal(disk_open(&d), 0);
    disk_close(&d);
    d.o.snapshot = "full";
    expect_no_open(-ENOENT, "parent1");
}

static void test_corrupt_header(void **state)
{
    static const char *const methods[] = {
        "get_size", "get_object_prefix", "get_features", "get_flags",
        "get_snapcontext", "get_data_pool", "parent_get",
        "parent_overlap_get", "op_features_get",
    };

    for (size_t i = 0; i < G_N_ELEMENTS(methods); i++) {
        fake_override(d.img->header, methods[i], "", 0);
        expect_no_open(-EBADMSG, methods[i]);
        expect_words("corrupt");
        fake_override(d.img->header, methods[i], NULL, 0);
    }
    fake_override("rbd_id.disk", "get_id", "\3\0\0\0im", 6);
    expect_no_open(-EBADMSG, "rbd_id.disk");
    fake_override("rbd_id.disk", "get_id", "\0\0\0\0", 4);
    expect_no_open(-EBADMSG, "rbd_id.disk");
    fake_override("rbd_id.disk", "get_id",
                  "\50\0\0\0aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd", 44);
    expect_no_open(-EBADMSG, "rbd_id.disk");
    fake_override("rbd_id.disk", "get_id", NULL, 0);
    assert_int_equal(disk_open(&d), 0);
}

/* No permission to watch is what a wrong capability looks like. */
static void test_watch_not_permitted(void **state)
{
    fake_fault_add(&(struct fake_fault) { .match = "watch *",
                                          .err = -EPERM });
    expect_no_open(-EPERM, "profile rbd");
}

/*
 * @fn with a failure of its first request, then of its second ..., until it
 * meets none.  Returns how many it made.
 */
static unsigned fail_each(int (*fn)(void), void (*check)(int r))
{
    unsigned i;

    for (i = 0;; i++) {
        unsigned hits = fake_fault_hits();
        int r;

        fake_fault_add(&(struct fake_fault) {
            .match = "*", .skip = i, .err = -ENOSPC,
        });
        memset(&d.err, 0x55, sizeof(d.err));
        r = fn();
        fake_faults_clear();
        if (fake_fault_hits() == hits) {
            assert_int_equal(r, 0);
            return i;
        }
        check(r);
    }
}

static int try_open(void)
{
    return disk_open(&d);
}

static void check_open(int r)
{
    if (r == 0) {
        disk_close(&d);         /* the failure was one that does not matter */
        return;
    }
    assert_int_equal(r, -ENOSPC);
    expect_error(r);
    expect_words(g_strerror(ENOSPC));
    assert_null(d.image);
    assert_int_equal(fake_watchers(d.img->header), 0);
    assert_int_equal(fake_pending(), 0);
}

static void test_open_fails_anywhere(void **state)
{
    /* pool, id, watch, header, data pool */
    assert_int_equal(fail_each(try_open, check_open), 5);
    disk_close(&d);
    d.o.read_only = true;
    assert_int_equal(fail_each(try_open, check_open), 4);
    disk_close(&d);
    d.o.read_only = false;
    d.img->features |= PINRBD_FEATURE_STRIPINGV2 | PINRBD_FEATURE_DATA_POOL;
    d.img->stripe_unit = 1024;
    d.img->stripe_count = 2;
    d.img->data_pool = FAKE_POOL_DATA;
    for (unsigned i = 0; i < 40; i++) {
        fake_image_snap_add(d.img, "snap");
    }
    assert_int_equal(fail_each(try_open, check_open), 8);
    disk_close(&d);
    d.o.snapshot = "snap";
    assert_int_equal(fail_each(try_open, check_open), 7);
}

/*
 * An update between the opener's two reads of the header: it is read again
 * after the open, and what that finds must win.
 */
static void test_update_while_opening(void **state)
{
    struct background b;
    uint64_t first = fake_image_snap_add(d.img, "first");
    uint64_t second;
    uint64_t notify;
    g_autofree char *line = NULL;

    background_start(&b, &d, do_open);
    fake_wait_pending("call rbd_id.disk *");
    fake_run_one(0);
    fake_wait_pending("watch *");
    fake_run_one(0);
    fake_wait_pending("*get_size*");
    fake_run_one(0);
    fake_wait_pending("*snapshot_get*");

    second = fake_image_snap_add(d.img, "second");
    notify = fake_notify_send(d.img->header, header_update,
                              sizeof(header_update));
    assert_true(fake_run_match("notified *"));
    /* it waits until the opener has published what it read */
    assert_int_equal(fake_pending(), 1);
    assert_int_equal(fake_notify_unacked(notify), 1);
    assert_int_equal(background_drive(&b), 0);
    fake_run();
    assert_int_equal(fake_notify_unacked(notify), 0);

    write_now(&d, 0, 512, 1);
    line = g_strdup_printf("*write * snapc %u=[%u,%u] *", (unsigned)second,
                           (unsigned)second, (unsigned)first);
    assert_int_equal(fake_log_count(line), 1);
}

/* ---- the connection ------------------------------------------------------- */

static void test_sharing(void **state)
{
    static const struct pinrbd_kv kv[] = { { "key", "value" } };
    struct pinrbd_cluster_options o = { .size = sizeof(o) };
    struct pinrbd_cluster *same;
    struct pinrbd_cluster *other;
    struct pinrbd_cluster *own;
    struct pinrbd_error err;

    assert_int_equal(cluster_open(&fake_rados, &o, &same, &err), 0);
    assert_ptr_equal(same, d.cluster);
    assert_int_equal(fake_log_count("connect"), 0);
    o.options = kv;
    o.n_options = 1;
    assert_int_equal(cluster_open(&fake_rados, &o, &other, &err), 0);
    assert_ptr_not_equal(other, d.cluster);
    o.own_handle = true;
    assert_int_equal(cluster_open(&fake_rados, &o, &own, &err), 0);
    assert_ptr_not_equal(own, other);
    assert_int_equal(fake_log_count("connect"), 2);

    /* an image keeps its connection */
    assert_int_equal(disk_open(&d), 0);
    pinrbd_cluster_close(same);
    pinrbd_cluster_close(d.cluster);
    write_now(&d, 0, 512, 1);
    disk_close(&d);
    pinrbd_cluster_close(own);
    d.cluster = other;
    pinrbd_cluster_close(NULL);
}

static void test_no_connection(void **state)
{
    static const struct pinrbd_kv kv[] = { { "a", "b" } };
    struct pinrbd_cluster_options o = {
        .size = sizeof(o), .options = kv, .n_options = 1,
    };
    struct pinrbd_cluster *c = NULL;

    fake_fault_add(&(struct fake_fault) { .match = "connect",
                                          .err = -ETIMEDOUT });
    assert_int_equal(cluster_open(&fake_rados, &o, &c, &d.err), -ETIMEDOUT);
    expect_error(-ETIMEDOUT);
    fake_fault_add(&(struct fake_fault) { .match = "conn_new",
                                          .err = -EINVAL });
    assert_int_equal(cluster_open(&fake_rados, &o, &c, &d.err), -EINVAL);
    assert_int_equal(cluster_open(&fake_rados, &o, &c, &d.err), 0);
    pinrbd_cluster_close(c);
}

/* ---- activate, inactivate, refresh, resize, create ------------------------ */

static int try_activate(void)
{
    return disk_call(&d, do_activate);
}

static void check_activate(int r)
{
    assert_int_equal(r, -ENOSPC);
    expect_error(r);
    assert_int_equal(fake_watchers(d.img->header), 0);
    assert_int_equal(write_result(&d, 0, 512), -EROFS);
}

static void test_activate(void **state)
{
    d.o.inactive = true;
    fake_image_snap_add(d.img, "one");
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(fake_watchers(d.img->header), 0);
    assert_int_equal(write_result(&d, 0, 512), -EROFS);
    read_expect(&d, 0, 512, 0);
    fake_image_set_size(d.img, 128 << 10);

    /* watch, header, its snapshot */
    assert_int_equal(fail_each(try_activate, check_activate), 3);
    assert_int_equal(fake_watchers(d.img->header), 1);
    assert_int_equal(pinrbd_image_size(d.image), 128 << 10);
    write_now(&d, 127 << 10, 512, 3);
    assert_int_equal(disk_call(&d, do_activate), 0);    /* again: fine */

    assert_int_equal(disk_call(&d, do_inactivate), 0);
    assert_int_equal(fake_watchers(d.img->header), 0);
    assert_int_equal(write_result(&d, 0, 512), -EROFS);
    read_expect(&d, 127 << 10, 512, 3);
    assert_int_equal(disk_call(&d, do_inactivate), 0);
    assert_int_equal(disk_call(&d, do_activate), 0);
    write_now(&d, 0, 512, 3);
}

static void test_activate_refused(void **state)
{
    d.o.inactive = true;
    d.img->features |= PINRBD_FEATURE_JOURNALING;
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(disk_call(&d, do_activate), -EROFS);
    expect_error(-EROFS);
    expect_words("journaling");
    assert_int_equal(fake_watchers(d.img->header), 0);
    read_expect(&d, 0, 512, 0);
    disk_close(&d);

    d.img->features = PINRBD_FEATURE_LAYERING;
    fake_image_snap_add(d.img, "one");
    d.o.snapshot = "one";
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(disk_call(&d, do_activate), -EROFS);
    expect_words("snapshot");
}

/* Writes under way end before the image stops being watched. */
static void test_inactivate_waits_for_writes(void **state)
{
    struct background b;
    struct io io;

    io_prepare(&io, 512, 1);
    io_write(&d, &io, 0);
    background_start(&b, &d, do_inactivate);
    while (write_result(&d, 4096, 1) != -EROFS) {
        g_thread_yield();               /* it has begun when this fails */
    }
    assert_int_equal(background_drive(&b), 0);
    io_expect(&io, 0);
    io_free(&io);
}

/* A watch that was lost before must not hold writes after. */
static void test_activate_after_lost_watch(void **state)
{
    fake_lose_watch(d.img->header, -ENOTCONN);
    fake_fault_add(&(struct fake_fault) {
        .match = "watch *", .times = UINT_MAX, .err = -EIO,
    });
    fake_run();
    assert_int_equal(disk_call(&d, do_inactivate), 0);
    fake_faults_clear();
    assert_int_equal(disk_call(&d, do_activate), 0);
    write_now(&d, 0, 512, 1);
}

static void test_refresh(void **state)
{
    fake_image_set_size(d.img, 96 << 10);
    assert_int_equal(disk_call(&d, do_refresh), 0);
    assert_int_equal(pinrbd_image_size(d.image), 96 << 10);
    assert_int_equal(d.n_resized, 1);
    assert_int_equal(disk_call(&d, do_refresh), 0);
    assert_int_equal(d.n_resized, 1);
}

/* A reading that fails is repeated; until then writes wait. */
static void test_refresh_is_repeated(void **state)
{
    struct io io;
    uint64_t notify;

    fake_fault_add(&(struct fake_fault) {
        .match = "call rbd_header*", .times = 3, .err = -EIO,
    });
    fake_image_set_size(d.img, 96 << 10);
    notify = fake_notify_send(d.img->header, NULL, 0);
    fake_run();
    io_prepare(&io, 512, 1);
    io_write(&d, &io, 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(fake_pending(), 0);
        assert_int_equal(io_done(&io), 0);
        assert_int_equal(fake_notify_unacked(notify), 1);
        assert_int_equal(pinrbd_image_size(d.image), 64 << 10);
        read_expect(&d, 0, 512, 0);     /* reads do not wait */
        fake_clock_advance(999);
        assert_int_equal(fake_pending(), 0);
        fake_clock_advance(1);
        assert_int_equal(fake_pending(), 1);
        fake_run();
    }
    io_expect(&io, 0);
    io_free(&io);
    assert_int_equal(fake_notify_unacked(notify), 0);
    assert_int_equal(pinrbd_image_size(d.image), 96 << 10);
}

/* A header that became corrupt is no header: as above, for ever if need be. */
static void test_close_while_refresh_fails(void **state)
{
    fake_override(d.img->header, "get_size", "", 0);
    fake_notify_send(d.img->header, NULL, 0);
    fake_run();
    fake_clock_advance(1000);
    fake_run();
    disk_close(&d);
    assert_int_equal(fake_watchers(d.img->header), 0);
}

/* Closing while the header is being read. */
static void test_close_while_reading(void **state)
{
    struct background b;

    fake_fault_add(&(struct fake_fault) {
        .match = "call rbd_header*", .kind = FAKE_HOLD,
    });
    fake_notify_send(d.img->header, NULL, 0);
    fake_run();
    assert_int_equal(fake_pending(), 1);
    background_start(&b, &d, do_close);
    assert_int_equal(background_drive(&b), 0);
}

static uint64_t new_size;
static unsigned resize_flags;

static int do_resize(struct disk *disk)
{
    return pinrbd_image_resize(disk->image, new_size, resize_flags,
                               &disk->err);
}

static int try_resize(void)
{
    new_size += 4096;
    return disk_call(&d, do_resize);
}

static void check_resize(int r)
{
    /* telling the others may fail, the size is set all the same */
    if (r < 0) {
        assert_int_equal(r, -ENOSPC);
        expect_error(r);
    } else {
        assert_int_equal(pinrbd_image_size(d.image), d.img->size);
    }
}

static void test_resize(void **state)
{
    new_size = 64 << 10;
    fail_each(try_resize, check_resize);
    assert_int_equal(d.img->size, new_size);
    assert_int_equal(pinrbd_image_size(d.image), new_size);
    write_now(&d, new_size - 512, 512, 7);

    resize_flags = PINRBD_RESIZE_GROW_ONLY;
    new_size = 4096;
    assert_int_equal(disk_call(&d, do_resize), 0);
    assert_int_not_equal(d.img->size, 4096);
    resize_flags = 0;
    assert_int_equal(disk_call(&d, do_resize), 0);
    assert_int_equal(d.img->size, 4096);
    assert_int_equal(pinrbd_image_size(d.image), 4096);
    assert_int_equal(fake_object_count(FAKE_POOL_RBD, "rbd_data.*"), 0);
    new_size = (uint64_t)INT64_MAX + 1;
    assert_int_equal(disk_call(&d, do_resize), -EINVAL);
    expect_error(-EINVAL);
}

/* Somebody else was faster: their size is not undone. */
static void test_resize_against_another(void **state)
{
    struct background b;

    resize_flags = PINRBD_RESIZE_GROW_ONLY;
    new_size = 96 << 10;
    background_start(&b, &d, do_resize);
    fake_wait_pending("*get_size*");
    fake_run_one(0);
    fake_wait_pending("assert_version *");
    fake_image_set_size(d.img, 128 << 10);
    assert_int_equal(background_drive(&b), 0);
    assert_int_equal(d.img->size, 128 << 10);
    assert_int_equal(pinrbd_image_size(d.image), 128 << 10);
    assert_int_equal(fake_log_count("assert_version *"), 1);
}

static void test_resize_read_only(void **state)
{
    disk_close(&d);
    d.o.read_only = true;
    assert_int_equal(disk_open(&d), 0);
    new_size = 128 << 10;
    resize_flags = 0;
    assert_int_equal(disk_call(&d, do_resize), -EROFS);
    expect_error(-EROFS);
    assert_int_equal(d.img->size, 64 << 10);
}

static struct pinrbd_create_options create_options;
static struct pinrbd_cluster *create_on;    /* NULL: the disk's */

static int do_create(struct disk *disk)
{
    return pinrbd_image_create(create_on ? create_on : disk->cluster,
                               &create_options, &disk->err);
}

static int try_create(void)
{
    return disk_call(&d, do_create);
}

/* Nothing is left of an image that could not be made. */
static void expect_nothing_made(void)
{
    assert_int_equal(fake_object_count(FAKE_POOL_RBD, "rbd_id.*"), 1);
    assert_int_equal(fake_object_count(FAKE_POOL_RBD, "rbd_header.*"), 1);
}

static void check_create(int r)
{
    assert_int_equal(r, -ENOSPC);
    expect_error(r);
    expect_nothing_made();
}

/* What the pool says: names and values, NULL ends them. */
static void set_pool_conf(const char *const *pairs)
{
    uint8_t bytes[2048];
    uint32_t n = 0;
    struct penc e;

    while (pairs && pairs[2 * n]) {
        n++;
    }
    penc_init(&e, bytes, sizeof(bytes));
    penc_u32(&e, n + 1);
    for (uint32_t i = 0; i < n; i++) {
        g_autofree char *name = g_strconcat("conf_", pairs[2 * i], NULL);

        penc_string(&e, name);
        penc_string(&e, pairs[2 * i + 1]);
    }
    penc_string(&e, "conf_rbd_default_snapshot_quiesce_mode");
    penc_string(&e, "required");
    fake_object_put(FAKE_POOL_RBD, "", "rbd_info", "", 0);
    fake_override("rbd_info", "metadata_list", bytes, penc_len(&e));
}

static void test_create(void **state)
{
    struct pinrbd_image_info info = { .size = sizeof(info) };

    create_on = NULL;
    create_options = (struct pinrbd_create_options) {
        .size = sizeof(create_options), .pool = "rbd", .image = "fresh",
        .data_pool = "data", .image_size = 5 << 20, .order = 20,
        .stripe_unit = 65536, .stripe_count = 4,
        .features = PINRBD_FEATURE_LAYERING,
    };
    set_pool_conf(NULL);
    /* pool, its configuration, data pool, directory, id, header, striping */
    assert_int_equal(fail_each(try_create, check_create), 8);
    d.o.image = "fresh";
    assert_int_equal(disk_open(&d), 0);
    pinrbd_image_info(d.image, &info);
    assert_int_equal(info.image_size, 5 << 20);
    assert_int_equal(info.object_size, 1 << 20);
    assert_int_equal(info.stripe_unit, 65536);
    assert_int_equal(info.stripe_count, 4);
    assert_int_equal(info.data_pool_id, FAKE_POOL_DATA);
    assert_int_equal(info.features, PINRBD_FEATURE_LAYERING |
                     PINRBD_FEATURE_STRIPINGV2 | PINRBD_FEATURE_DATA_POOL);
    assert_true(g_str_has_prefix(info.object_prefix, "rbd_data.1."));
    write_now(&d, 12345, 678, 9);
    read_expect(&d, 12345, 678, 9);

    /* the name is taken now */
    assert_int_equal(try_create(), -EEXIST);
    expect_words("fresh");
}

/* With an object map: one more step, and it says that there is nothing. */
static void test_create_with_map(void **state)
{
    struct pinrbd_image_info info = { .size = sizeof(info) };
    g_autofree char *header = NULL;
    struct fake_image *made;

    set_pool_conf(NULL);
    create_options = (struct pinrbd_create_options) {
        .size = sizeof(create_options), .pool = "rbd", .image = "fresh",
        .image_size = (5 << 20) + 1, .order = 20,
        .features = FAKE_DEFAULT_FEATURES,
    };
    /* pool twice, its configuration, directory, id, header, map */
    assert_int_equal(fail_each(try_create, check_create), 7);
    d.o.image = "fresh";
    assert_int_equal(disk_open(&d), 0);
    pinrbd_image_info(d.image, &info);
    header = g_strdup_printf("rbd_header.%s", info.id);
    made = fake_image_find(header);
    assert_non_null(made);
    assert_int_equal(made->features, FAKE_DEFAULT_FEATURES);
    assert_int_equal(fake_map_entries(made, RADOS_NOSNAP), 6);
    assert_null(fake_map_check(made));
}

/* What is not said comes from the pool, then from the client, then librbd. */
static void test_create_defaults(void **state)
{
    static const struct {
        const char *pool[9];
        struct pinrbd_kv client[4];
        struct pinrbd_create_options said;
        uint64_t features, object_size, unit, count;
        int data_pool;
    } cases[] = {
        { .features = 0x3d },
        { .client = { { "rbd_default_features", "layering,exclusive-lock" } },
          .features = 5 },
        { .client = { { "rbd_default_features", "13" } }, .features = 13 },
        { .client = { { "rbd_default_features", "0" } }, .features = 0 },
        { .client = { { "rbd_default_features", "layering, striping" } },
          .features = 1 },
        { .pool = { "rbd_default_features", "1" },
          .client = { { "rbd_default_features", "13" } }, .features = 1 },
        { .pool = { "rbd_default_features", "1" }, .said.features = 5,
          .features = 5 },
        { .pool = { "rbd_default_order", "14" }, .features = 0x3d,
          .object_size = 16384 },
        { .pool = { "rbd_default_order", "14" }, .said.order = 13,
          .features = 0x3d, .object_size = 8192 },
        { .client = { { "rbd_default_order", "15" } }, .features = 0x3d,
          .object_size = 32768 },
        { .pool = { "rbd_default_stripe_unit", "64K",
                    "rbd_default_stripe_count", "4" },
          .features = 0x3f, .unit = 65536, .count = 4 },
        { .pool = { "rbd_default_stripe_unit", "8192" },
          .client = { { "rbd_default_stripe_count", "2" },
                      { "rbd_default_order", "16" } },
          .features = 0x3f, .object_size = 65536, .unit = 8192, .count = 2 },
        { .pool = { "rbd_default_stripe_unit", "1Mi" }, .features = 0x3d },
        { .pool = { "rbd_default_stripe_unit", "64K",
                    "rbd_default_stripe_count", "4" },
          .said = { .stripe_unit = 1 << 20, .stripe_count = 2 },
          .features = 0x3f, .unit = 1 << 20, .count = 2 },
        { .pool = { "rbd_default_data_pool", "data" }, .features = 0xbd,
          .data_pool = FAKE_POOL_DATA },
        { .client = { { "rbd_default_data_pool", "data" } },
          .features = 0xbd, .data_pool = FAKE_POOL_DATA },
        { .pool = { "rbd_default_data_pool", "" },
          .client = { { "rbd_default_data_pool", "data" } },
          .features = 0x3d },
        { .pool = { "rbd_default_data_pool", "rbd" }, .features = 0x3d },
        { .pool = { "rbd_default_data_pool", "data" },
          .said.data_pool = "rbd", .features = 0x3d },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct pinrbd_image_info info = { .size = sizeof(info) };
        struct pinrbd_cluster_options co = {
            .size = sizeof(co), .options = cases[i].client,
        };
        g_autofree char *name = g_strdup_printf("fresh%zu", i);
        uint64_t object_size = cases[i].object_size ?: 4 << 20;

        while (cases[i].client[co.n_options].key) {
            co.n_options++;
        }
        assert_int_equal(cluster_open(&fake_rados, &co, &create_on, &d.err),
                         0);
        set_pool_conf(cases[i].pool);
        create_options = cases[i].said;
        create_options.size = sizeof(create_options);
        create_options.pool = "rbd";
        create_options.image = name;
        create_options.image_size = 5 << 20;
        assert_int_equal(try_create(), 0);
        pinrbd_cluster_close(create_on);
        d.o.image = name;
        assert_int_equal(disk_open(&d), 0);
        pinrbd_image_info(d.image, &info);
        assert_int_equal(info.features, cases[i].features);
        assert_int_equal(info.object_size, object_size);
        assert_int_equal(info.stripe_unit, cases[i].unit ?: object_size);
        assert_int_equal(info.stripe_count, cases[i].count ?: 1);
        assert_int_equal(info.data_pool_id,
                         cases[i].data_pool ?: FAKE_POOL_RBD);
        disk_close(&d);
    }
    create_on = NULL;
}

static void test_create_bad_defaults(void **state)
{
    static const struct {
        const char *pool[5];
        int error;
        const char *words;
    } cases[] = {
        { { "rbd_default_features", "layering,frob" }, -EINVAL,
          "rbd_default_features cannot be 'layering,frob'" },
        { { "rbd_default_features", "125" }, -ENOTSUP, "(journaling)" },
        { { "rbd_default_features", "9" }, -EINVAL,
          "object-map needs exclusive-lock" },
        { { "rbd_default_features", "21" }, -EINVAL,
          "fast-diff needs object-map" },
        { { "rbd_default_order", "x" }, -EINVAL,
          "rbd_default_order cannot be 'x'" },
        { { "rbd_default_order", "300" }, -EINVAL, "do not go together" },
        { { "rbd_default_stripe_unit", "-1" }, -EINVAL,
          "rbd_default_stripe_unit cannot be '-1'" },
        { { "rbd_default_stripe_unit", "99999999999999999999E",
            "rbd_default_stripe_count", "2" }, -EINVAL,
          "do not go together" },
        { { "rbd_default_stripe_unit", "4Kx" }, -EINVAL,
          "rbd_default_stripe_unit cannot be '4Kx'" },
        { { "rbd_default_data_pool", "none" }, -ENOENT,
          "data pool 'none'" },
    };
    static const uint8_t cut[] = { 1, 0, 0, 0, 4, 0, 0, 0, 'c', 'o' };
    char longer[300];

    create_options = (struct pinrbd_create_options) {
        .size = sizeof(create_options), .pool = "rbd", .image = "fresh",
        .image_size = 5 << 20,
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        set_pool_conf(cases[i].pool);
        assert_int_equal(try_create(), cases[i].error);
        expect_error(cases[i].error);
        expect_words(cases[i].words);
        expect_nothing_made();
    }
    memset(longer, '1', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    set_pool_conf((const char *[]) { "rbd_default_features", longer, NULL });
    assert_int_equal(try_create(), -EINVAL);
    expect_words("rbd_default_features");
    fake_override("rbd_info", "metadata_list", cut, sizeof(cut));
    assert_int_equal(try_create(), -EBADMSG);
    expect_error(-EBADMSG);
    expect_nothing_made();

    /* a client that may not ask, or a pool that was never asked to be one */
    for (unsigned i = 0; i < 2; i++) {
        create_options.image = i ? "fresh1" : "fresh0";
        fake_fault_add(&(struct fake_fault) {
            .match = "call rbd_info *", .err = i ? -EPERM : -ENOENT,
        });
        assert_int_equal(try_create(), 0);
    }
}

static void test_create_refused(void **state)
{
    static const struct pinrbd_create_options cases[] = {
        { .image = "", .image_size = 1 },
        { .image = "a/b", .image_size = 1 },
        { .image = "a@b", .image_size = 1 },
        { .image = "x", .order = 11 },
        { .image = "x", .order = 26 },
        { .image = "x", .stripe_unit = 4096 },
        { .image = "x", .stripe_count = 4 },
        { .image = "x", .stripe_unit = 5000, .stripe_count = 4 },
        { .image = "x", .image_size = UINT64_MAX },
        { .image = "x", .features = 1 | PINRBD_FEATURE_JOURNALING },
        { .image = "x", .features = 1 | PINRBD_FEATURE_OBJECT_MAP },
        { .image = "x", .features = 1 | PINRBD_FEATURE_EXCLUSIVE_LOCK |
                                    PINRBD_FEATURE_FAST_DIFF },
        { .image = "x", .data_pool = "nopool" },
        { .image = "x", .ns = "nons" },
    };

    set_pool_conf(NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        int r;

        create_options = cases[i];
        create_options.size = sizeof(create_options);
        create_options.pool = "rbd";
        r = try_create();
        assert_true(r < 0);
        expect_error(r);
        expect_nothing_made();
    }
}

/* ---- messages of other clients -------------------------------------------- */

static void test_update(void **state)
{
    uint64_t n1;
    uint64_t n2;

    fake_image_set_size(d.img, 96 << 10);
    n1 = fake_notify_send(d.img->header, header_update,
                          sizeof(header_update));
    fake_run();
    assert_int_equal(fake_notify_unacked(n1), 0);
    assert_int_equal(pinrbd_image_size(d.image), 96 << 10);
    assert_int_equal(d.n_resized, 1);
    assert_int_equal(fake_log_count("ack * 10"), 1);

    /* a second one while the first is being read: read once more */
    fake_log_clear();
    n1 = fake_notify_send(d.img->header, NULL, 0);
    fake_run_match("notified *");
    assert_int_equal(fake_pending(), 1);
    fake_image_set_size(d.img, 128 << 10);
    n2 = fake_notify_send(d.img->header, NULL, 0);
    fake_run_match("notified *");
    fake_run();
    assert_int_equal(fake_notify_unacked(n1), 0);
    assert_int_equal(fake_notify_unacked(n2), 0);
    assert_int_equal(fake_log_count("*get_size*"), 2);
    assert_int_equal(pinrbd_image_size(d.image), 128 << 10);
}

/* What nobody here acts upon is acknowledged without a word. */
static void test_other_messages(void **state)
{
    static const uint8_t unknown[] = { 7, 1, 4, 0, 0, 0, 200, 0, 0, 0 };
    static const uint8_t newer[] = { 9, 8, 4, 0, 0, 0, 3, 0, 0, 0 };
    static const struct {
        const void *bytes;
        size_t len;
    } cases[] = {
        { released_lock, sizeof(released_lock) }, { unknown, 10 },
        { newer, 10 }, { header_update, 9 }, { "x", 1 },
        { "\377\377\377\377\377\377\377\377", 8 },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        uint64_t n = fake_notify_send(d.img->header, cases[i].bytes,
                                      cases[i].len);

        fake_run();
        assert_int_equal(fake_notify_unacked(n), 0);
        assert_int_equal(fake_log_count("ack * 0"), i + 1);
    }
    assert_int_equal(fake_log_count("*get_size*"), 0);
    write_now(&d, 0, 512, 1);
}

/* Somebody makes a snapshot: nothing is under way when we agree. */
static void test_quiesce(void **state)
{
    struct io before;
    struct io held;
    uint64_t n;
    uint64_t snap;
    g_autofree char *line = NULL;

    io_prepare(&before, 512, 1);
    io_write(&d, &before, 0);
    n = fake_notify_send(d.img->header, quiesce, sizeof(quiesce));
    fake_run_match("notified *");
    assert_int_equal(fake_notify_unacked(n), 1);
    io_prepare(&held, 512, 2);
    io_write(&d, &held, 0);
    assert_int_equal(fake_pending(), 1);
    fake_run();
    io_expect(&before, 0);
    assert_int_equal(io_done(&held), 0);
    assert_int_equal(fake_notify_unacked(n), 0);
    assert_int_equal(fake_log_count("ack * 10"), 1);

    snap = fake_image_snap_add(d.img, "one");
    n = fake_notify_send(d.img->header, unquiesce, sizeof(unquiesce));
    fake_run();
    assert_int_equal(fake_notify_unacked(n), 0);
    io_expect(&held, 0);
    line = g_strdup_printf("*write * snapc %u=[%u] *", (unsigned)snap,
                           (unsigned)snap);
    assert_int_equal(fake_log_count(line), 1);
    io_free(&before);
    io_free(&held);
    /* only the regular look is left, not the limit of ten seconds */
    assert_int_equal(fake_timers(), 1);
}

static void test_quiesce_idle(void **state)
{
    uint64_t n = fake_notify_send(d.img->header, quiesce, sizeof(quiesce));

    fake_run();
    assert_int_equal(fake_notify_unacked(n), 0);
}

/* Whoever asked for quiet is never heard of again. */
static void test_quiesce_times_out(void **state)
{
    struct io held;

    fake_notify_send(d.img->header, quiesce, sizeof(quiesce));
    fake_run();
    io_prepare(&held, 512, 2);
    io_write(&d, &held, 0);
    fake_clock_advance(9999);
    fake_run();
    assert_int_equal(io_done(&held), 0);
    fake_clock_advance(1);
    fake_run();
    io_expect(&held, 0);
    assert_int_equal(fake_log_count("*get_size*"), 1);
    io_free(&held);
}

/* Two images of one process on one header: both follow. */
static void test_two_opens(void **state)
{
    struct disk other = d;
    uint64_t n;

    other.image = NULL;
    other.o.opaque = &other;
    other.n_resized = 0;
    assert_int_equal(disk_open(&other), 0);
    assert_int_equal(fake_watchers(d.img->header), 2);
    fake_image_set_size(d.img, 96 << 10);
    n = fake_notify_send(d.img->header, NULL, 0);
    assert_int_equal(fake_notify_unacked(n), 2);
    fake_run();
    assert_int_equal(fake_notify_unacked(n), 0);
    assert_int_equal(pinrbd_image_size(d.image), 96 << 10);
    assert_int_equal(pinrbd_image_size(other.image), 96 << 10);
    assert_int_equal(other.n_resized, 1);
    disk_close(&other);
    assert_int_equal(fake_watchers(d.img->header), 1);
}

/* A feature that must be maintained is switched on under us. */
static void test_feature_appears(void **state)
{
    struct io held;

    fake_notify_send(d.img->header, NULL, 0);
    fake_run_match("notified *");
    io_prepare(&held, 512, 2);
    io_write(&d, &held, 0);
    d.img->features |= PINRBD_FEATURE_JOURNALING;
    fake_image_touch(d.img);
    fake_run();
    io_expect(&held, -EROFS);
    io_free(&held);
    assert_int_equal(write_result(&d, 0, 512), -EROFS);
    read_expect(&d, 0, 512, 0);
    /* and off again */
    d.img->features = PINRBD_FEATURE_LAYERING;
    fake_image_touch(d.img);
    fake_notify_send(d.img->header, NULL, 0);
    fake_run();
    write_now(&d, 0, 512, 1);
}

static void test_opened_snapshot_goes(void **state)
{
    uint64_t snap = fake_image_snap_add(d.img, "one");
    struct io io;

    disk_close(&d);
    d.o.snapshot = "one";
    assert_int_equal(disk_open(&d), 0);
    read_expect(&d, 0, 512, 0);
    fake_image_snap_remove(d.img, snap);
    assert_int_equal(disk_call(&d, do_refresh), -ENOENT);
    io_prepare(&io, 512, 0);
    io_read(&d, &io, 0);
    fake_run();
    io_expect(&io, -ENOENT);
    io_free(&io);
}

static void test_snapshots(void **state)
{
    struct pinrbd_snapshot *list = NULL;
    size_t n = 99;

    assert_int_equal(pinrbd_image_snapshots(d.image, &list, &n), 0);
    assert_int_equal(n, 0);
    free(list);
    fake_image_snap_add(d.img, "older");
    g_array_index(d.img->snaps, struct fake_snap, 0).protection = 2;
    fake_image_set_size(d.img, 32 << 10);
    fake_image_snap_add(d.img, "newer");
    g_array_index(d.img->snaps, struct fake_snap, 1).type = 1;
    assert_int_equal(disk_call(&d, do_refresh), 0);
    assert_int_equal(pinrbd_image_snapshots(d.image, &list, &n), 0);
    assert_int_equal(n, 2);
    assert_string_equal(list[0].name, "older");
    assert_int_equal(list[0].size, 64 << 10);
    assert_true(list[0].is_protected);
    assert_true(list[0].is_user);
    assert_int_equal(list[0].time_s, 1700000000);
    assert_string_equal(list[1].name, "newer");
    assert_int_equal(list[1].size, 32 << 10);
    assert_false(list[1].is_protected);
    assert_false(list[1].is_user);
    assert_true(list[0].id < list[1].id);
    free(list);
}

/* ---- the watch ------------------------------------------------------------ */

/* Lost: writes wait, the watch comes back, the header is read, they go. */
static void test_watch_lost(void **state)
{
    struct io held;

    fake_image_set_size(d.img, 96 << 10);       /* missed */
    fake_lose_watch(d.img->header, -ENOTCONN);
    assert_true(fake_run_match("failed *"));
    io_prepare(&held, 512, 2);
    io_write(&d, &held, 0);
    assert_int_equal(fake_pending(), 0);
    read_expect(&d, 0, 512, 0);
    fake_clock_advance(0);
    assert_int_equal(fake_pending_match("unwatch *"), 1);
    fake_run();
    fake_clock_advance(20);
    assert_int_equal(fake_pending_match("watch *"), 1);
    assert_int_equal(io_done(&held), 0);
    fake_run_match("watch *");
    assert_int_equal(io_done(&held), 0);
    assert_int_equal(fake_pending_match("*write*"), 0);
    fake_run();
    io_expect(&held, 0);
    assert_int_equal(fake_watchers(d.img->header), 1);
    assert_int_equal(pinrbd_image_size(d.image), 96 << 10);
    io_free(&held);
}

/* Tried again and again, with growing pauses. */
static void test_watch_back_off(void **state)
{
    unsigned waited = 0;
    unsigned pause;

    fake_lose_watch(d.img->header, -ENOTCONN);
    fake_fault_add(&(struct fake_fault) {
        .match = "watch *", .times = 12, .err = -EIO,
    });
    fake_run();
    fake_clock_advance(0);
    fake_run();
    pause = 20;
    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(fake_log_count("watch *"), i);
        fake_clock_advance(pause - 1);
        fake_run();
        assert_int_equal(fake_log_count("watch *"), i);
        fake_clock_advance(1);
        fake_run();
        assert_int_equal(fake_log_count("watch *"), i + 1);
        waited += pause;
        pause = MIN(pause * 2, 10000);
    }
    assert_int_equal(pause, 10000);
    assert_in_range(waited, 10000, 60000);
    fake_clock_advance(pause);
    fake_run();
    assert_int_equal(fake_watchers(d.img->header), 1);
    write_now(&d, 0, 512, 1);
    /* the next loss starts with a short pause again */
    fake_lose_watch(d.img->header, -ENOTCONN);
    fake_run();
    fake_clock_advance(0);
    fake_run();
    fake_clock_advance(20);
    fake_run();
    assert_int_equal(fake_watchers(d.img->header), 1);
}

/* The watch cannot come back: what waited is told, nothing waits any more. */
static void test_watch_never_again(void **state)
{
    static const int codes[] = { -ESHUTDOWN, -ENOENT };

    for (size_t i = 0; i < G_N_ELEMENTS(codes); i++) {
        struct io held;
        struct io flush;

        fake_lose_watch(d.img->header, -ENOTCONN);
        fake_fault_add(&(struct fake_fault) { .match = "watch *",
                                              .err = codes[i] });
        fake_run();
        io_prepare(&held, 512, 2);
        io_write(&d, &held, 0);
        io_flush(&d, &flush);
        fake_clock_advance(0);
        fake_run();
        fake_clock_advance(20);
        fake_run();
        io_expect(&held, codes[i]);
        assert_int_equal(io_done(&flush), 1);
        io_free(&held);
        assert_int_equal(write_result(&d, 0, 512), codes[i]);
        fake_log_clear();
        fake_clock_advance(100000);
        fake_run();
        assert_int_equal(fake_log_count("watch *"), 0);
        disk_close(&d);
        assert_int_equal(disk_open(&d), 0);
        fake_log_clear();
    }
}

/* Nobody told us, but the look from time to time finds it. */
static void test_watch_found_dead(void **state)
{
    fake_fault_add(&(struct fake_fault) {
        .match = "unwatch *", .err = -ENOTCONN,
    });
    fake_forget_watch(d.img->header);
    fake_clock_advance(5000);
    fake_run();
    fake_clock_advance(5000);
    fake_run();
    assert_int_equal(fake_watchers(d.img->header), 1);
    write_now(&d, 0, 512, 1);
}

/* Closing in each state of losing and regaining the watch. */
static void test_close_while_watch_is_lost(void **state)
{
    for (unsigned steps = 0; steps < 7; steps++) {
        struct background b;

        fake_lose_watch(d.img->header, -ENOTCONN);
        for (unsigned i = 0; i < steps; i++) {
            if (i % 2 == 0) {
                (void)(fake_pending() && (fake_run_one(0), true));
            } else {
                fake_clock_advance(20);
            }
        }
        background_start(&b, &d, do_close);
        assert_int_equal(background_drive(&b), 0);
        assert_int_equal(fake_watchers(d.img->header), 0);
        assert_int_equal(disk_open(&d), 0);
    }
}

/* A failing unwatch is no reason to stay. */
static void test_close_with_failing_unwatch(void **state)
{
    fake_fault_add(&(struct fake_fault) { .match = "unwatch *",
                                          .err = -ESHUTDOWN });
    disk_close(&d);
    assert_int_equal(fake_log_count("unwatch *"), 1);
}

static void test_close_waits_for_requests(void **state)
{
    struct background b;
    struct io io;

    fake_fault_add(&(struct fake_fault) { .match = "*write*",
                                          .kind = FAKE_HOLD });
    io_prepare(&io, 512, 1);
    io_write(&d, &io, 0);
    background_start(&b, &d, do_close);
    for (unsigned i = 0; i < 100; i++) {
        fake_run();
        fake_clock_advance(1000);
        g_thread_yield();
        assert_false(background_over(&b));
        assert_int_equal(fake_log_count("unwatch *"), 0);
    }
    fake_release("*write*");
    assert_int_equal(background_drive(&b), 0);
    io_expect(&io, 0);
    io_free(&io);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define OPEN_TEST(name) \
    cmocka_unit_test_setup_teardown(name, setup_open, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_open),
        TEST(test_info_of_older_caller),
        TEST(test_open_read_only_needs_no_watch),
        TEST(test_open_by_id),
        TEST(test_open_in_namespace),
        TEST(test_open_with_data_pool),
        TEST(test_not_found),
        TEST(test_bad_arguments),
        TEST(test_features),
        TEST(test_parent_is_missing),
        TEST(test_corrupt_header),
        TEST(test_watch_not_permitted),
        TEST(test_open_fails_anywhere),
        TEST(test_update_while_opening),
        TEST(test_sharing),
        TEST(test_no_connection),
        TEST(test_activate),
        TEST(test_activate_refused),
        OPEN_TEST(test_inactivate_waits_for_writes),
        OPEN_TEST(test_activate_after_lost_watch),
        OPEN_TEST(test_refresh),
        OPEN_TEST(test_refresh_is_repeated),
        OPEN_TEST(test_close_while_refresh_fails),
        OPEN_TEST(test_close_while_reading),
        OPEN_TEST(test_resize),
        OPEN_TEST(test_resize_against_another),
        OPEN_TEST(test_resize_read_only),
        TEST(test_create),
        TEST(test_create_with_map),
        TEST(test_create_defaults),
        TEST(test_create_bad_defaults),
        TEST(test_create_refused),
        OPEN_TEST(test_update),
        OPEN_TEST(test_other_messages),
        OPEN_TEST(test_quiesce),
        OPEN_TEST(test_quiesce_idle),
        OPEN_TEST(test_quiesce_times_out),
        OPEN_TEST(test_two_opens),
        OPEN_TEST(test_feature_appears),
        OPEN_TEST(test_opened_snapshot_goes),
        OPEN_TEST(test_snapshots),
        OPEN_TEST(test_watch_lost),
        OPEN_TEST(test_watch_back_off),
        OPEN_TEST(test_watch_never_again),
        OPEN_TEST(test_watch_found_dead),
        OPEN_TEST(test_close_while_watch_is_lost),
        OPEN_TEST(test_close_with_failing_unwatch),
        OPEN_TEST(test_close_waits_for_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
