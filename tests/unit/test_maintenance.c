/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Changes to a whole image, and what goes wrong in their middle: a snapshot
 * whose fate is not known, one that cannot be removed after all, half a
 * rollback, a header that others change while we shrink, a flatten in whose
 * way somebody stands.
 */
#include "check.h"

#include <errno.h>
#include <string.h>

#include "disk.h"
#include "object_map.h"

#define PEER 4711
#define PEER_HANDLE 99

static struct disk d;

static void begin(uint64_t size)
{
    disk_init(&d, size, 12);
    fake_image_enable(d.img, FAKE_DEFAULT_FEATURES);
}

static int setup(void **state)
{
    begin(64 << 10);
    assert_int_equal(disk_open(&d), 0);
    fake_log_clear();
    return 0;
}

static int setup_closed(void **state)
{
    begin(64 << 10);
    return 0;
}

static int teardown(void **state)
{
    disk_finish(&d);
    return 0;
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

static uint8_t first_byte_at(uint64_t off)
{
    uint8_t byte;
    struct io io;

    io_prepare(&io, 4096, 0xee);
    io_read(&d, &io, off);
    DRIVE_UNTIL(io_done(&io));
    io_expect(&io, 0);
    byte = io.buf[0];
    io_free(&io);
    return byte;
}

static int do_snap(struct disk *disk)
{
    return pinrbd_image_snap_create(disk->image, "s", &disk->err);
}

static int do_unsnap(struct disk *disk)
{
    return pinrbd_image_snap_remove(disk->image, "s", &disk->err);
}

static int do_rollback(struct disk *disk)
{
    return pinrbd_image_snap_rollback(disk->image, "s", &disk->err);
}

static int do_shrink(struct disk *disk)
{
    return pinrbd_image_resize(disk->image, 32 << 10, 0, &disk->err);
}

/* ---- snapshots ------------------------------------------------------------ */

static void test_snapshot(void **state)
{
    unsigned i;

    assert_int_equal(write_at(0, 1), 0);
    DRIVE_UNTIL(!fake_pending());
    fake_log_clear();
    assert_int_equal(disk_call(&d, do_snap), 0);
    i = line_of("snap_alloc *", 0);
    i = line_of("notify * op 18", i);
    i = line_of("*assert_locked* + *rbd.snapshot_add*", i);
    i = line_of("read rbd_object_map.img1 *", i);
    i = line_of("write_full rbd_object_map.img1.0*", i);
    i = line_of("*rbd.object_map_snap_add*", i);
    i = line_of("notify * op 19", i);
    line_of("notify * op 3", i);
    assert_null(fake_map_check(d.img));
    assert_int_equal(disk_call(&d, do_snap), -EEXIST);
    assert_int_equal(disk_call(&d, do_unsnap), 0);
    assert_int_equal(disk_call(&d, do_unsnap), -ENOENT);
    assert_int_equal(d.img->snaps->len, 0);
    assert_null(fake_map_check(d.img));
}

/* While the header may have the snapshot its id must not be given back. */
static void snapshot_in_doubt(const char *match, enum fake_fault_kind kind,
                              int err)
{
    assert_int_equal(write_at(0, 1), 0);
    DRIVE_UNTIL(!fake_pending());
    fake_log_clear();
    fake_fault_add(&(struct fake_fault) {
        .match = match, .kind = kind, .err = err,
    });
    assert_int_equal(disk_call(&d, do_snap), err);
    assert_int_equal(d.img->snaps->len, 1);
    assert_int_equal(fake_log_count("snap_release *"), 0);
}

static void test_snapshot_answer_lost(void **state)
{
    snapshot_in_doubt("*rbd.snapshot_add*", FAKE_FAIL_AFTER, -ETIMEDOUT);
    /* and if it is there, writes know of it */
    fake_require_snapc(d.img->snap_seq);
    assert_int_equal(write_at(0, 2), 0);
}

static void test_snapshot_fenced(void **state)
{
    snapshot_in_doubt("call rbd_header.img1 *get_snapcontext*", FAKE_FAIL,
                      -ESHUTDOWN);
}

/* A clone has come since we looked: nothing of the snapshot is lost. */
static void test_removal_refused(void **state)
{
    assert_int_equal(write_at(0, 1), 0);
    assert_int_equal(disk_call(&d, do_snap), 0);
    assert_int_equal(write_at(4096, 1), 0);
    fake_fault_add(&(struct fake_fault) {
        .match = "*rbd.snapshot_remove*", .err = -EBUSY,
    });
    assert_int_equal(disk_call(&d, do_unsnap), -EBUSY);
    assert_int_equal(fake_log_count("snap_release *"), 0);
    assert_null(fake_map_check(d.img));
    assert_int_equal(disk_call(&d, do_unsnap), 0);
    assert_int_equal(fake_log_count("snap_release *"), 1);
    assert_null(fake_map_check(d.img));
}

static void test_rollback(void **state)
{
    assert_int_equal(write_at(0, 7), 0);
    assert_int_equal(disk_call(&d, do_snap), 0);
    assert_int_equal(write_at(0, 8), 0);
    assert_int_equal(write_at(8192, 8), 0);
    assert_int_equal(disk_call(&d, do_rollback), 0);
    assert_int_equal(first_byte_at(0), 7);
    assert_int_equal(first_byte_at(8192), 0);
    assert_null(fake_map_check_safe(d.img));
    assert_int_equal(fake_map_state(d.img, RADOS_NOSNAP, 2),
                     OBJECT_NONEXISTENT);
}

/* Objects that are back are seen, also when others are not. */
static void test_half_a_rollback(void **state)
{
    struct io io;

    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(write_at(i * 4096, 7), 0);
    }
    assert_int_equal(disk_call(&d, do_snap), 0);
    io_discard(&d, &io, 0, 4096);
    DRIVE_UNTIL(io_done(&io));
    io_expect(&io, 0);
    fake_fault_add(&(struct fake_fault) {
        .match = "rollback rbd_data.img1.0000000000000002*", .err = -EIO,
    });
    assert_int_equal(disk_call(&d, do_rollback), -EIO);
    assert_int_equal(first_byte_at(0), 7);
    assert_null(fake_map_check_safe(d.img));
}

/* ---- size ----------------------------------------------------------------- */

/* Somebody changes the header while we shrink: the new end stays the end. */
static void test_update_while_shrinking(void **state)
{
    struct background b;
    struct io io;

    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(write_at(i * 4096, 7), 0);
    }
    fake_fault_add(&(struct fake_fault) {
        .match = "remove rbd_data.img1.000000000000000f*", .kind = FAKE_HOLD,
    });
    background_start(&b, &d, do_shrink);
    DRIVE_UNTIL(fake_pending_match("remove rbd_data.img1.*f*"));
    fake_log_clear();
    fake_notify_send(d.img->header, NULL, 0);
    DRIVE_UNTIL(fake_log_count("ack *"));
    write_start(&io, 12 * 4096, 9);
    assert_int_equal(io_wait(&io), -EINVAL);
    fake_release("remove *");
    assert_int_equal(background_drive(&b), 0);
    assert_int_equal(d.img->size, 32 << 10);
    assert_int_equal(d.img->flags, 0);
    assert_int_equal(fake_object_count(FAKE_POOL_RBD, "rbd_data.img1.*"), 8);
    assert_null(fake_map_check(d.img));
}

static void become_clone(const char *data)
{
    struct fake_image *p = fake_image_add("rbd", "", "parent", d.img->size, 12);

    for (uint64_t i = 0; data && i < d.img->size >> 12; i++) {
        g_autofree char *oid = g_strdup_printf("%s.%016x", p->prefix,
                                               (unsigned)i);

        fake_object_put(FAKE_POOL_RBD, "", oid, data, strlen(data));
    }
    fake_image_snap_add(p, "base");
    make_clone(&d, p, d.img->size);
}

/* The map claims an object that is not there, in a clone with a snapshot. */
static void test_shrink_of_what_is_not_there(void **state)
{
    become_clone(NULL);
    fake_image_snap_add(d.img, "t");
    fake_map_set(d.img, RADOS_NOSNAP, 15, OBJECT_EXISTS);
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(write_at(0, 1), 0);
    assert_int_equal(disk_call(&d, do_shrink), 0);
    assert_int_equal(d.img->flags, 0);
    assert_int_equal(fake_map_entries(d.img, RADOS_NOSNAP), 8);
}

/* ---- for others ----------------------------------------------------------- */

static uint64_t ask_flatten(void)
{
    const uint8_t m[] = {
        7, 1, 28, 0, 0, 0, 6, 0, 0, 0,
        PEER & 255, PEER >> 8, 0, 0, 0, 0, 0, 0,
        PEER_HANDLE, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
    };

    return fake_notify_send_from(d.img->header, PEER, m, sizeof(m));
}

static void test_flatten_for_others(void **state)
{
    uint64_t n;

    become_clone("abc");
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(write_at(0, 1), 0);
    fake_peer_add(d.img->header, PEER, PEER_HANDLE);
    n = ask_flatten();
    DRIVE_UNTIL(!fake_notify_unacked(n));
    assert_int_equal(fake_notify_answer(n), 0);
    DRIVE_UNTIL(fake_log_count("notify * op 5"));
    /* the copying is done; the rest is the asking client's */
    assert_int_equal(fake_object_count(FAKE_POOL_RBD, "rbd_data.img1.*"), 16);
    assert_null(fake_map_check(d.img));
    /* asked once more, it says what became of it */
    n = ask_flatten();
    DRIVE_UNTIL(!fake_notify_unacked(n));
    assert_int_equal(fake_notify_answer(n), -EOPNOTSUPP);
    assert_int_equal(fake_log_count("notify * op 5"), 1);
}

/* Who wants to change the image does not wait for the end of a flatten. */
static void test_flatten_makes_way(void **state)
{
    struct background b;
    uint64_t n;

    disk_finish(&d);
    begin(1 << 20);
    become_clone("abc");
    assert_int_equal(disk_open(&d), 0);
    assert_int_equal(write_at(0, 1), 0);
    fake_peer_add(d.img->header, PEER, PEER_HANDLE);
    fake_fault_add(&(struct fake_fault) {
        .match = "*rbd.sparse_copyup*", .kind = FAKE_HOLD, .times = UINT_MAX,
    });
    ask_flatten();
    DRIVE_UNTIL(fake_pending_match("*rbd.sparse_copyup*") >= 14);
    background_start(&b, &d, do_snap);
    g_usleep(100000);           /* it may also come too late: no harm */
    fake_faults_clear();
    fake_release("*");
    assert_int_equal(background_drive(&b), 0);
    DRIVE_UNTIL(fake_log_count("notify * op 5"));
    /* told to try again, the client does, and that is a new flatten */
    n = ask_flatten();
    DRIVE_UNTIL(!fake_notify_unacked(n));
    DRIVE_UNTIL(fake_object_count(FAKE_POOL_RBD, "rbd_data.img1.*") == 256);
    DRIVE_UNTIL(!fake_pending());
    assert_null(fake_map_check_safe(d.img));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_snapshot, setup, teardown),
        cmocka_unit_test_setup_teardown(test_snapshot_answer_lost, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_snapshot_fenced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_removal_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rollback, setup, teardown),
        cmocka_unit_test_setup_teardown(test_half_a_rollback, setup, teardown),
        cmocka_unit_test_setup_teardown(test_update_while_shrinking, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_shrink_of_what_is_not_there,
                                        setup_closed, teardown),
        cmocka_unit_test_setup_teardown(test_flatten_for_others, setup_closed,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_flatten_makes_way, setup_closed,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
