/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The exclusive lock, against other clients that are alive, dead, unwilling or
 * of another kind.  Its jobs have threads of their own, so a test drives the
 * stand-in until what it waits for is there.
 */
#include "check.h"

#include <errno.h>
#include <string.h>

#include "cluster.h"
#include "disk.h"
#include "fake_timer.h"
#include "mishap.h"

static struct disk d;

static void open_default(void)
{
    disk_init(&d, 64 << 10, 12);
    fake_image_enable(d.img, FAKE_DEFAULT_FEATURES);
    assert_int_equal(disk_open(&d), 0);
    fake_require_owner(d.img);
    fake_log_clear();
}

static int setup(void **state)
{
    open_default();
    return 0;
}

static int teardown(void **state)
{
    disk_finish(&d);
    return 0;
}

static bool is_owner(void)
{
    struct pinrbd_image_info info = { .size = sizeof(info) };

    pinrbd_image_info(d.image, &info);
    return info.lock_owner;
}

static void write_start(struct io *io, uint64_t off, uint8_t fill)
{
    io_prepare(io, 4096, fill);
    io_write(&d, io, off);
}

static int write_at(uint64_t off, uint8_t fill)
{
    struct io io;

    write_start(&io, off, fill);
    return io_wait(&io);
}

/* ---- having it ------------------------------------------------------------ */

static void test_first_write(void **state)
{
    struct fake_locker l;
    g_autofree char *cookie = NULL;
    unsigned i;

    assert_false(fake_lock_owner(d.img, NULL));
    read_expect(&d, 0, 512, 0);
    assert_false(fake_lock_owner(d.img, NULL));

    assert_int_equal(write_at(0, 1), 0);
    assert_true(fake_lock_owner(d.img, &l));
    assert_true(we_hold(&d));
    assert_string_equal(l.tag, "internal");
    assert_true(g_str_has_prefix(l.cookie, "auto "));
    assert_true(fake_map_lock_owner(d.img, NULL));
    /* lock, then what others did, then the map, and only then the write */
    i = line_of("call rbd_header.img1 lock.lock(*", 0);
    i = line_of("call rbd_header.img1 *get_snapcontext*", i);
    i = line_of("call rbd_object_map.img1 lock.lock(*", i);
    i = line_of("call rbd_object_map.img1 rbd.object_map_load()", i);
    i = line_of("*assert_locked* + *object_map_update*", i);
    line_of("*write_full *", i);
    assert_null(fake_map_check(d.img));
    DRIVE_UNTIL(fake_log_count("ack *"));       /* of our AcquiredLock */
    DRIVE_UNTIL(!fake_pending());

    /* once: the next write goes straight, and only to the object */
    fake_log_clear();
    write_now(&d, 512, 512, 2);
    assert_int_equal(fake_log_length(), 1);

    fake_log_clear();
    disk_close(&d);
    i = line_of("call rbd_object_map.img1 lock.unlock(*", 0);
    i = line_of("call rbd_header.img1 lock.unlock(*", i);
    i = line_of("notify rbd_header.img1 * op 1", i);
    line_of("unwatch rbd_header.img1", i);
    assert_false(fake_lock_owner(d.img, NULL));
    assert_false(fake_map_lock_owner(d.img, NULL));
}

/* ---- living owners -------------------------------------------------------- */

static void test_owner_yields(void **state)
{
    peer_holds(&d);
    fake_map_lock_hold(d.img, PEER);
    fake_peer_answer(d.img->header, PEER, 2, FAKE_YIELD);
    assert_int_equal(write_at(0, 1), 0);
    assert_true(we_hold(&d));
    assert_int_equal(fake_log_count("notify * op 2"), 1);
    assert_int_equal(fake_log_count("blocklist *"), 0);
    assert_null(fake_map_check(d.img));
}

/* It agrees, works for a while, and then lets go. */
static void test_owner_takes_its_time(void **state)
{
    struct io io;

    peer_holds(&d);
    fake_peer_answer(d.img->header, PEER, 2, 0);
    write_start(&io, 0, 1);
    DRIVE_UNTIL(fake_log_count("notify * op 2") == 2);  /* asked again */
    assert_int_equal(io_done(&io), 0);
    fake_lock_drop(d.img);
    peer_releases(&d, PEER);
    assert_int_equal(io_wait(&io), 0);
    assert_true(we_hold(&d));
}

static void test_owner_refuses(void **state)
{
    peer_holds(&d);
    fake_peer_answer(d.img->header, PEER, 2, -EROFS);
    assert_int_equal(write_at(0, 1), -EROFS);
    assert_false(we_hold(&d));
    read_expect(&d, 0, 512, 0);
    /* the next write asks anew */
    fake_lock_drop(d.img);
    assert_int_equal(write_at(0, 1), 0);
}

/* It is there and says nothing: it may be about to; it is not broken. */
static void test_owner_is_silent(void **state)
{
    struct io io;

    peer_holds(&d);
    write_start(&io, 0, 1);
    DRIVE_UNTIL(fake_log_count("notify * op 2") > 3);
    assert_int_equal(fake_log_count("*break_lock*"), 0);
    fake_peer_answer(d.img->header, PEER, 2, FAKE_YIELD);
    assert_int_equal(io_wait(&io), 0);
}

static void test_another_mechanism(void **state)
{
    struct io io;

    fake_lock_hold(d.img, PEER, "mine", "");
    write_start(&io, 0, 1);
    DRIVE_UNTIL(fake_log_count("*lock.get_info*") > 2);
    assert_int_equal(io_done(&io), 0);
    assert_int_equal(fake_log_count("notify *"), 0);
    assert_int_equal(fake_log_count("*break_lock*"), 0);
    fake_lock_drop(d.img);
    assert_int_equal(io_wait(&io), 0);
}

/* ---- dead owners ---------------------------------------------------------- */

static void test_owner_is_dead(void **state)
{
    unsigned i;

    fake_lock_hold(d.img, PEER, PEER_COOKIE, "internal");
    fake_map_lock_hold(d.img, PEER);
    assert_int_equal(write_at(0, 1), 0);
    i = line_of("blocklist " FAKE_PEER_ADDRESS "4711", 0);
    i = line_of("*lock.break_lock*", i);
    line_of("call rbd_header.img1 lock.lock(*", i);
    assert_true(we_hold(&d));
}

static void test_blocklisting_fails(void **state)
{
    struct io io;

    fake_lock_hold(d.img, PEER, PEER_COOKIE, "internal");
    fake_fault_add(&(struct fake_fault) {
        .match = "blocklist *", .err = -EPERM, .times = 3,
    });
    write_start(&io, 0, 1);
    DRIVE_UNTIL(fake_log_count("blocklist *") == 3);
    assert_int_equal(fake_log_count("*break_lock*"), 0);
    assert_int_equal(io_done(&io), 0);
    assert_int_equal(io_wait(&io), 0);
}

/* ---- giving it up --------------------------------------------------------- */

static void test_given_up(void **state)
{
    struct io flying, later;
    uint64_t n;
    unsigned i;

    assert_int_equal(write_at(0, 1), 0);
    fake_peer_add(d.img->header, PEER, PEER_HANDLE);
    fake_log_clear();
    fake_fault_add(&(struct fake_fault) {
        .match = "*write_full *", .kind = FAKE_HOLD,
    });
    write_start(&flying, 0, 2);
    n = peer_asks(&d, PEER);
    DRIVE_UNTIL(!fake_notify_unacked(n));
    assert_int_equal(fake_notify_answer(n), 0);
    for (unsigned k = 0; k < 50; k++) {
        disk_turn();
    }
    assert_true(we_hold(&d));             /* not before the write has ended */
    write_start(&later, 8192, 3);
    fake_release("*write_full *");
    DRIVE_UNTIL(!we_hold(&d) && fake_log_count("notify * op 1"));
    io_expect(&flying, 0);
    io_free(&flying);
    i = line_of("call rbd_object_map.img1 lock.unlock(*", 0);
    i = line_of("call rbd_header.img1 lock.unlock(*", i);
    line_of("notify rbd_header.img1 * op 1", i);

    /* the other one has it now, and gives it back when asked */
    if (!fake_lock_owner(d.img, NULL)) {
        fake_lock_hold(d.img, PEER, PEER_COOKIE, "internal");
    }
    fake_peer_answer(d.img->header, PEER, 2, FAKE_YIELD);
    assert_int_equal(io_wait(&later), 0);
    assert_null(fake_map_check(d.img));
}

static void test_not_the_owner(void **state)
{
    uint64_t n = peer_asks(&d, PEER);

    DRIVE_UNTIL(!fake_notify_unacked(n));
    assert_int_equal(fake_notify_answer(n), FAKE_EMPTY);
}

static int exclusive_setup(void **state)
{
    static const struct pinrbd_kv policy = { "lock-policy", "exclusive" };
    struct pinrbd_settings *settings;

    disk_init(&d, 64 << 10, 12);
    fake_image_enable(d.img, FAKE_DEFAULT_FEATURES);
    assert_int_equal(pinrbd_settings_load("rbd", "", "disk", NULL, &policy, 1,
                                          &settings, &d.err), 0);
    d.o.settings = settings;
    return 0;
}

static int exclusive_teardown(void **state)
{
    disk_finish(&d);
    pinrbd_settings_free((struct pinrbd_settings *)d.o.settings);
    return 0;
}

static void test_exclusive(void **state)
{
    /* Rename of "a" to "b", as rbd asks for it */
    uint8_t rename[] = {
        7, 1, 33, 0, 0, 0, 14, 0, 0, 0, 1, 0, 0, 0, 'b',
        PEER & 255, PEER >> 8, 0, 0, 0, 0, 0, 0,
        PEER_HANDLE, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
    };
    uint64_t n;

    /* opening is enough to have it */
    assert_int_equal(disk_open(&d), 0);
    assert_true(we_hold(&d));
    n = peer_asks(&d, PEER);
    DRIVE_UNTIL(!fake_notify_unacked(n));
    assert_int_equal(fake_notify_answer(n), -EROFS);
    assert_true(we_hold(&d));
    /* one that wants to do maintenance gets it */
    rename[2] = sizeof(rename) - 6;
    n = fake_notify_send_from(d.img->header, PEER, rename, sizeof(rename));
    DRIVE_UNTIL(!fake_notify_unacked(n));
    assert_int_equal(fake_notify_answer(n), -EOPNOTSUPP);
    n = peer_asks(&d, PEER + 1);
    DRIVE_UNTIL(!fake_notify_unacked(n));
    assert_int_equal(fake_notify_answer(n), -EROFS);
    n = peer_asks(&d, PEER);
    DRIVE_UNTIL(!fake_notify_unacked(n));
    assert_int_equal(fake_notify_answer(n), 0);
    DRIVE_UNTIL(!we_hold(&d));
}

static void test_exclusive_against_another(void **state)
{
    peer_holds(&d);
    fake_peer_answer(d.img->header, PEER, 2, -EROFS);
    assert_int_equal(disk_open(&d), -EBUSY);
    assert_non_null(strstr(d.err.text, "client.4711"));
    assert_null(d.image);
    assert_int_equal(fake_watchers(d.img->header), 0);
}

/* ---- losing it ------------------------------------------------------------ */

static void test_watch_anew(void **state)
{
    struct fake_locker before, after;

    assert_int_equal(write_at(0, 1), 0);
    assert_true(fake_lock_owner(d.img, &before));
    fake_lose_watch(d.img->header, -ENOTCONN);
    DRIVE_UNTIL(fake_lock_owner(d.img, &after) &&
                strcmp(before.cookie, after.cookie));
    assert_int_equal(fake_log_count("*set_cookie*"), 1);
    assert_int_equal(write_at(4096, 2), 0);
    assert_true(we_hold(&d));

    /* the same number again: there is nothing to set, but to look */
    fake_log_clear();
    fake_reuse_handle();
    fake_lose_watch(d.img->header, -ENOTCONN);
    DRIVE_UNTIL(fake_log_count("call rbd_header.img1 lock.assert*"));
    assert_int_equal(write_at(8192, 3), 0);
    assert_int_equal(fake_log_count("*set_cookie*"), 0);
    assert_null(fake_map_check(d.img));
}

/* Somebody took it while nobody watched. */
static void test_taken_away(void **state)
{
    assert_int_equal(write_at(0, 1), 0);
    fake_log_clear();
    fake_lose_watch(d.img->header, -ENOTCONN);
    peer_holds(&d);
    fake_map_lock_hold(d.img, PEER);
    fake_peer_answer(d.img->header, PEER, 2, FAKE_YIELD);
    assert_int_equal(write_at(4096, 2), 0);
    assert_int_equal(fake_log_count("call rbd_object_map.img1 *map_load*"), 1);
    assert_true(we_hold(&d));
    assert_null(fake_map_check(d.img));
}

/* The map's lock alone: it is taken back, for the header's is ours. */
static void test_map_taken_away(void **state)
{
    assert_int_equal(write_at(0, 1), 0);
    fake_map_lock_hold(d.img, PEER);
    assert_int_equal(write_at(4096, 2), 0);
    assert_true(we_hold(&d));
    assert_null(fake_map_check(d.img));
    read_expect(&d, 4096, 4096, 2);
}

static void test_fenced(void **state)
{
    struct io io;

    assert_int_equal(write_at(0, 1), 0);
    fake_blocklist_self();
    assert_int_equal(write_at(0, 2), -ESHUTDOWN);
    assert_int_equal(write_at(4096, 2), -ESHUTDOWN);
    io_prepare(&io, 512, 0);
    io_read(&d, &io, 0);
    DRIVE_UNTIL(io_done(&io));
    io_expect(&io, -ESHUTDOWN);
    io_free(&io);
}

/* ---- the rest ------------------------------------------------------------- */

static struct pinrbd_image *second;

static int open_second(struct disk *disk)
{
    return pinrbd_image_open(disk->cluster, &disk->o, &second, &disk->err);
}

static int close_second(struct disk *disk)
{
    pinrbd_image_close(second);
    return 0;
}

static void test_once_a_connection(void **state)
{
    assert_int_equal(disk_call(&d, open_second), -EBUSY);
    assert_non_null(strstr(d.err.text, "cluster-handle=own"));
    assert_int_equal(write_at(0, 1), 0);
    disk_close(&d);
    assert_int_equal(disk_call(&d, open_second), 0);
    assert_int_equal(disk_call(&d, close_second), 0);
}

static void test_feature_off_and_on(void **state)
{
    assert_int_equal(write_at(0, 1), 0);
    fake_peer_add(d.img->header, PEER, PEER_HANDLE);
    peer_asks(&d, PEER);
    DRIVE_UNTIL(!we_hold(&d));
    d.img->features = PINRBD_FEATURE_LAYERING;
    fake_map_remove(d.img, RADOS_NOSNAP);
    fake_image_touch(d.img);
    fake_notify_send(d.img->header, NULL, 0);
    DRIVE_UNTIL(!fake_pending());
    assert_int_equal(write_at(4096, 2), 0);
    assert_false(is_owner());

    fake_image_enable(d.img, FAKE_DEFAULT_FEATURES);
    fake_image_touch(d.img);
    fake_notify_send(d.img->header, NULL, 0);
    DRIVE_UNTIL(!fake_pending());
    assert_int_equal(write_at(8192, 3), 0);
    assert_true(is_owner());
    assert_null(fake_map_check(d.img));
}

static void test_inactivate(void **state)
{
    assert_int_equal(write_at(0, 1), 0);
    assert_int_equal(disk_call(&d, do_inactivate), 0);
    assert_false(fake_lock_owner(d.img, NULL));
    assert_int_equal(write_at(0, 2), -EROFS);
    assert_int_equal(disk_call(&d, do_activate), 0);
    assert_false(fake_lock_owner(d.img, NULL));
    assert_int_equal(write_at(0, 2), 0);
    assert_true(we_hold(&d));
}

/* A write that waits for the map's lock does not hold up an inactivation. */
static void test_inactivate_refuses(void **state)
{
    struct io io;

    assert_int_equal(write_at(0, 1), 0);
    fake_map_lock_hold(d.img, PEER);
    fake_fault_add(&(struct fake_fault) {
        .match = "call rbd_header.img1 lock.assert_locked*",
        .times = UINT_MAX, .err = -EIO,
    });
    write_start(&io, 4096, 2);
    DRIVE_UNTIL(fake_log_count("call rbd_header.img1 lock.assert_locked*"));
    assert_int_equal(disk_call(&d, do_inactivate), 0);
    assert_int_equal(io_wait(&io), -EROFS);
}

/* A second client asks while the first one is given the lock. */
static void test_asked_twice(void **state)
{
    uint64_t n;

    assert_int_equal(write_at(0, 1), 0);
    fake_peer_add(d.img->header, PEER, PEER_HANDLE);
    fake_fault_add(&(struct fake_fault) {
        .match = "call rbd_header.img1 lock.unlock*", .kind = FAKE_HOLD,
    });
    peer_asks(&d, PEER);
    DRIVE_UNTIL(fake_pending_match("call rbd_header.img1 lock.unlock*"));
    n = peer_asks(&d, PEER);
    DRIVE_UNTIL(!fake_notify_unacked(n));
    fake_release("*lock.unlock*");
    DRIVE_UNTIL(!we_hold(&d) && fake_log_count("notify * op 1"));
    peer_releases(&d, PEER);
    fake_peer_remove(d.img->header, PEER);
    fake_log_clear();
    assert_int_equal(write_at(0, 2), 0);
    for (unsigned i = 0; i < 200; i++) {
        disk_turn();
    }
    /* nobody has asked since: it is kept */
    assert_int_equal(fake_log_count("call rbd_header.img1 lock.unlock*"), 0);
    assert_true(we_hold(&d));
}

/* ---- whatever goes wrong ------------------------------------------------- */

/*
 * Whatever it is and whenever it comes: each write has one result, what was
 * acknowledged is there, the map claims no less than there is, and the lock is
 * ours no longer when the image is closed.
 */
#define WRITES 3

static struct io writes[WRITES];
static struct background closing;

/* Object 2 * @i; a whole one, then two parts. */
static void begin_writes(struct disk *disk)
{
    for (unsigned i = 0; i < WRITES; i++) {
        io_prepare(&writes[i], i ? 512 : 4096, i + 1);
        io_write(disk, &writes[i], i * 8192);
    }
}

static bool writes_over(struct disk *disk)
{
    for (unsigned i = 0; i < WRITES; i++) {
        if (!io_done(&writes[i])) {
            return false;
        }
    }
    return true;
}

static void check_writes(struct disk *disk, const struct mishap *m)
{
    for (unsigned i = 0; i < WRITES; i++) {
        assert_int_equal(io_done(&writes[i]), 1);
        if (!result_fits(m, writes[i].result)) {
            fail_msg("write %u ends with %d", i, writes[i].result);
        }
    }
}

static void check_lock_gone(struct disk *disk, const struct mishap *m)
{
    const char *wrong = fake_map_check_safe(disk->img);

    if (wrong) {
        print_log();
        fail_msg("%s", wrong);
    }
    /* told that it has no lock, it believes that */
    if (we_hold(disk) && !was_fenced(m) && !(m && m->err == -ENOENT) &&
        !heard("*its lock could not be given back*")) {
        print_log();
        fail_msg("the lock is left behind and nobody says so");
    }
}

/* Nothing of a write or all of it, and all if that was said. */
static void check_written(struct disk *disk, const struct mishap *m)
{
    uint8_t buf[4096];

    for (unsigned i = 0; i < WRITES; i++) {
        size_t len = writes[i].len;

        other_client_read(disk->img, RADOS_NOSNAP, i * 8192, buf,
                          sizeof(buf));
        assert_true(writes[i].result || buf[0] == i + 1);
        assert_true(buf[0] == 0 || buf[0] == i + 1);
        for (size_t k = 0; k < sizeof(buf); k++) {
            assert_int_equal(buf[k], k < len ? buf[0] : 0);
        }
        io_free(&writes[i]);
    }
    check_lock_gone(disk, m);
}

static void prepare(struct disk *disk)
{
    open_default();
}

static const struct trial acquiring = {
    prepare, begin_writes, writes_over, check_writes, check_written,
};

static void prepare_yielding(struct disk *disk)
{
    open_default();
    peer_holds(disk);
    fake_map_lock_hold(disk->img, PEER);
    fake_peer_answer(disk->img->header, PEER, 2, FAKE_YIELD);
}

static const struct trial from_a_peer = {
    prepare_yielding, begin_writes, writes_over, check_writes, check_written,
};

static void prepare_dead(struct disk *disk)
{
    open_default();
    fake_lock_hold(disk->img, PEER, PEER_COOKIE, "internal");
    fake_map_lock_hold(disk->img, PEER);
}

static const struct trial from_the_dead = {
    prepare_dead, begin_writes, writes_over, check_writes, check_written,
};

static void prepare_held(struct disk *disk)
{
    open_default();
    assert_int_equal(write_at(60 << 10, 0xcc), 0);
    DRIVE_UNTIL(!fake_pending());
    fake_peer_add(disk->img->header, PEER + 1, PEER_HANDLE);
    fake_peer_answer(disk->img->header, PEER + 1, 2, FAKE_YIELD);
    fake_log_clear();
}

/* It is wanted by another while we write; then by us again. */
static void begin_release(struct disk *disk)
{
    begin_writes(disk);
    peer_asks(disk, PEER + 1);
}

static const struct trial releasing = {
    prepare_held, begin_release, writes_over, check_writes, check_written,
};

static void begin_watch_lost(struct disk *disk)
{
    fake_lose_watch(disk->img->header, -ENOTCONN);
    begin_writes(disk);
}

static const struct trial watching_anew = {
    prepare_held, begin_watch_lost, writes_over, check_writes, check_written,
};

/*
 * It was broken while nobody watched, though we live and were not blocklisted:
 * the next write must find that out first.
 */
static void begin_stolen(struct disk *disk)
{
    fake_lose_watch(disk->img->header, -ENOTCONN);
    assert_true(fake_run_match("failed *"));
    fake_lock_hold(disk->img, PEER + 1, PEER_COOKIE, "internal");
    fake_map_lock_hold(disk->img, PEER + 1);
    begin_writes(disk);
}

static const struct trial stolen = {
    prepare_held, begin_stolen, writes_over, check_writes, check_written,
};

static void begin_map_stolen(struct disk *disk)
{
    fake_map_lock_hold(disk->img, PEER + 1);
    begin_writes(disk);
}

static const struct trial map_stolen = {
    prepare_held, begin_map_stolen, writes_over, check_writes, check_written,
};

static void begin_close(struct disk *disk)
{
    background_start(&closing, disk, do_close);
}

static bool close_over(struct disk *disk)
{
    return background_over(&closing);
}

static void check_close(struct disk *disk, const struct mishap *m)
{
    assert_int_equal(background_join(&closing), 0);
    assert_null(disk->image);
}

static const struct trial closing_it = {
    prepare_held, begin_close, close_over, check_close, check_lock_gone,
};

static void test_acquiring(void **state)
{
    assert_in_range(try_with(&d, &acquiring, &mishaps[0]), 12, 40);
    try_all(&d, &acquiring);
}

static void test_from_a_peer(void **state)
{
    try_all(&d, &from_a_peer);
}

static void test_from_the_dead(void **state)
{
    try_all(&d, &from_the_dead);
}

static void test_releasing(void **state)
{
    try_all(&d, &releasing);
}

static void test_watching_anew(void **state)
{
    try_all(&d, &watching_anew);
}

static void test_stolen(void **state)
{
    try_all(&d, &stolen);
}

static void test_map_stolen(void **state)
{
    try_all(&d, &map_stolen);
}

static void test_closing(void **state)
{
    try_all(&d, &closing_it);
}

#define TRIAL(name) cmocka_unit_test_teardown(name, try_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_first_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_owner_yields, setup, teardown),
        cmocka_unit_test_setup_teardown(test_owner_takes_its_time, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_owner_refuses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_owner_is_silent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_mechanism, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_owner_is_dead, setup, teardown),
        cmocka_unit_test_setup_teardown(test_blocklisting_fails, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_the_owner, setup, teardown),
        cmocka_unit_test_setup_teardown(test_exclusive, exclusive_setup,
                                        exclusive_teardown),
        cmocka_unit_test_setup_teardown(test_exclusive_against_another,
                                        exclusive_setup, exclusive_teardown),
        cmocka_unit_test_setup_teardown(test_watch_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(test_taken_away, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map_taken_away, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fenced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_once_a_connection, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_feature_off_and_on, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_inactivate, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inactivate_refuses, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_asked_twice, setup, teardown),
        TRIAL(test_acquiring),
        TRIAL(test_from_a_peer),
        TRIAL(test_from_the_dead),
        TRIAL(test_releasing),
        TRIAL(test_watching_anew),
        TRIAL(test_stolen),
        TRIAL(test_map_stolen),
        TRIAL(test_closing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
