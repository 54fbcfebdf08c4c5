/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Blocking calls: their results, and what happens at the deadline.
 */
#include "check.h"

#include <errno.h>
#include <string.h>

#include "fake_rados.h"
#include "rados_sync.h"

static struct rados_conn *conn;
static struct rados_pool *pool;

static int setup(void **state)
{
    static const struct pinrbd_cluster_options o = { .size = sizeof(o) };

    fake_start(1);
    assert_int_equal(fake_rados.conn_new(&o, &conn, NULL), 0);
    assert_int_equal(fake_rados.conn_connect(conn, NULL), 0);
    assert_int_equal(fake_rados.pool_open(conn, "rbd", "", &pool), 0);
    fake_object_put(FAKE_POOL_RBD, "", "obj", "hello", 5);
    return 0;
}

static int teardown(void **state)
{
    fake_rados.pool_close(pool);
    fake_rados.conn_free(conn);
    fake_stop();
    return 0;
}

static int do_write(const char *text, gint64 deadline_us, bool copy)
{
    struct iovec iov = { (void *)text, strlen(text) };
    struct rados_step step = { .kind = RADOS_WRITE, .iov = &iov, .n_iov = 1 };
    struct rados_op op = {
        .oid = "obj", .steps = &step, .n_steps = 1,
        .flags = RADOS_OP_WRITE | (copy ? RADOS_OP_COPY : 0),
    };

    return rados_op_sync(pool, &op, deadline_us);
}

static void assert_object(const char *text)
{
    char buf[32] = "";

    assert_int_equal(fake_object_read(FAKE_POOL_RBD, "", "obj", RADOS_NOSNAP,
                                      0, buf, sizeof(buf)), strlen(text));
    assert_string_equal(buf, text);
}

static void test_result(void **state)
{
    assert_int_equal(do_write("HE", 0, false), 0);
    assert_object("HEllo");
    assert_int_equal(do_write("he", deadline_after(3600 * 1000), true), 0);
    assert_object("hello");
    fake_fault_add(&(struct fake_fault) { .match = "write *", .err = -EPERM });
    assert_int_equal(do_write("xx", 0, false), -EPERM);
    assert_object("hello");
}

/* At the deadline: cancelled, and over when the call returns. */
static void test_deadline(void **state)
{
    fake_fault_add(&(struct fake_fault) {
        .match = "write *", .kind = FAKE_HOLD,
    });
    assert_int_equal(do_write("xx", deadline_after(20), false), -ETIMEDOUT);
    assert_int_equal(fake_pending(), 0);
    assert_object("hello");
}

/* It went through in spite of the cancel: then it is a success. */
static void test_deadline_passed_already(void **state)
{
    assert_in_set(do_write("HE", 1, false),
                  ((const uintmax_t[]) { 0, (uintmax_t)-ETIMEDOUT }), 2);
    assert_int_equal(fake_pending(), 0);
}

static gpointer release_soon(gpointer arg)
{
    fake_wait_pending("write *");
    fake_release("write *");
    return NULL;
}

static void test_no_deadline(void **state)
{
    GThread *thread = g_thread_new("release", release_soon, NULL);

    fake_fault_add(&(struct fake_fault) {
        .match = "write *", .kind = FAKE_HOLD,
    });
    assert_int_equal(do_write("HE", 0, false), 0);
    assert_object("HEllo");
    g_thread_join(thread);
}

static void test_deadline_after(void **state)
{
    gint64 now = g_get_monotonic_time();

    assert_int_equal(deadline_after(0), 0);
    assert_true(deadline_after(5000) >= now + 5000 * 1000);
    assert_true(deadline_after(G_MAXUINT) > now);
}

static void test_call(void **state)
{
    static const uint8_t name_and_id[] = "\1\0\0\0n\2\0\0\0id";

    assert_int_equal(rados_call_sync(pool, "rbd_directory", "rbd",
                                     "dir_add_image", name_and_id, 11, 0), 0);
    assert_int_equal(fake_log_count("call rbd_directory rbd.dir_add_image("
                                    "010000006e020000006964) copy"), 1);
    assert_int_equal(rados_call_sync(pool, "rbd_directory", "rbd",
                                     "dir_add_image", name_and_id, 11, 0),
                     -EEXIST);
    assert_int_equal(rados_call_sync(pool, "obj", "rbd", "no_such", NULL, 0,
                                     0), -EOPNOTSUPP);
}

static void test_notify(void **state)
{
    assert_int_equal(rados_notify_sync(pool, "obj", "abc", 3, 5000, NULL), 0);
    assert_int_equal(fake_log_count("notify obj 3"), 1);
    assert_int_equal(rados_notify_sync(pool, "none", NULL, 0, 5000,
                                       NULL),
                     -ENOENT);
}

static void test_waiter(void **state)
{
    struct waiter w;
    int r = 7;

    waiter_init(&w);
    assert_false(waiter_wait(&w, g_get_monotonic_time() - 1, &r));
    assert_int_equal(r, 7);
    waiter_wake(&w, -EIO);
    assert_true(waiter_wait(&w, 0, &r));
    assert_int_equal(r, -EIO);
    assert_true(waiter_wait(&w, 1, &r));
    waiter_clear(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_result, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deadline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deadline_passed_already, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_no_deadline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_notify, setup, teardown),
        cmocka_unit_test(test_deadline_after),
        cmocka_unit_test(test_waiter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
