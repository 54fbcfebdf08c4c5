/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The watchdog's timers.  Real time passes here, but nothing depends on how
 * much: order and exactly-once are checked, and each wait ends by an event.
 */
#include "check.h"

#include <string.h>

#include <glib.h>

#include "timer.h"

static GMutex lock;
static GCond changed;
static char fired[64];          /* names, in order; under lock */
static bool entered;            /* a slow timer runs; under lock */
static bool leave;              /* it may end; under lock */

struct named {
    struct ptimer t;
    char name;
    int again;                  /* re-arm so often */
};

static void note(char name)
{
    size_t n = strlen(fired);

    assert_in_range(n, 0, sizeof(fired) - 2);
    fired[n] = name;
    g_cond_broadcast(&changed);
}

static void fire(struct ptimer *t)
{
    struct named *n = (struct named *)t;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    note(n->name);
    if (n->again) {
        n->again--;
        ptimer_arm(t, 0);
    }
}

static void fire_slow(struct ptimer *t)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    entered = true;
    g_cond_broadcast(&changed);
    while (!leave) {
        g_cond_wait(&changed, &lock);
    }
    note(((struct named *)t)->name);
}

static void fire_cancelling_itself(struct ptimer *t)
{
    ptimer_arm(t, 0);
    ptimer_cancel(t);
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);
    note(((struct named *)t)->name);
}

static void wait_fired(const char *want)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    while (strlen(fired) < strlen(want)) {
        g_cond_wait(&changed, &lock);
    }
    assert_string_equal(fired, want);
}

static int setup(void **state)
{
    memset(fired, 0, sizeof(fired));
    entered = leave = false;
    return 0;
}

static void test_order(void **state)
{
    struct named a = { { .fire = fire }, 'a', 0 };
    struct named b = { { .fire = fire }, 'b', 0 };
    struct named c = { { .fire = fire }, 'c', 0 };
    struct named gate = { { .fire = fire_slow }, 'g', 0 };

    /* The watchdog is kept busy until all are armed, and all are due. */
    ptimer_arm(&gate.t, 0);
    g_mutex_lock(&lock);
    while (!entered) {
        g_cond_wait(&changed, &lock);
    }
    ptimer_arm(&c.t, 3);
    ptimer_arm(&a.t, 1);
    ptimer_arm(&b.t, 2);
    leave = true;
    g_cond_broadcast(&changed);
    g_mutex_unlock(&lock);
    wait_fired("gabc");
}

static void test_move(void **state)
{
    struct named a = { { .fire = fire }, 'a', 0 };
    struct named b = { { .fire = fire }, 'b', 0 };

    ptimer_arm(&a.t, 3600 * 1000);
    ptimer_arm(&b.t, 3600 * 1000);
    ptimer_arm(&b.t, 0);
    wait_fired("b");
    ptimer_arm(&a.t, 0);
    wait_fired("ba");
    assert_int_equal(a.t.due_us, 0);
}

static void test_again(void **state)
{
    struct named a = { { .fire = fire }, 'a', 4 };

    ptimer_arm(&a.t, 0);
    wait_fired("aaaaa");
    ptimer_cancel(&a.t);
}

static void test_cancel_pending(void **state)
{
    struct named a = { { .fire = fire }, 'a', 0 };
    struct named b = { { .fire = fire }, 'b', 0 };
    struct named gate = { { .fire = fire_slow }, 'g', 0 };

    ptimer_arm(&gate.t, 0);
    g_mutex_lock(&lock);
    while (!entered) {
        g_cond_wait(&changed, &lock);
    }
    /* due at once, but it cannot run yet */
    ptimer_arm(&a.t, 0);
    ptimer_arm(&b.t, 0);
    ptimer_cancel(&a.t);
    ptimer_cancel(&a.t);
    leave = true;
    g_cond_broadcast(&changed);
    g_mutex_unlock(&lock);
    wait_fired("gb");
    ptimer_cancel(&gate.t);
}

static gpointer let_go(gpointer arg)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    leave = true;
    g_cond_broadcast(&changed);
    return NULL;
}

/* Cancelling a running timer waits for its end. */
static void test_cancel_running(void **state)
{
    struct named slow = { { .fire = fire_slow }, 's', 0 };
    GThread *thread;

    ptimer_arm(&slow.t, 0);
    g_mutex_lock(&lock);
    while (!entered) {
        g_cond_wait(&changed, &lock);
    }
    g_mutex_unlock(&lock);
    thread = g_thread_new("let-go", let_go, NULL);
    ptimer_cancel(&slow.t);
    g_mutex_lock(&lock);
    assert_string_equal(fired, "s");
    g_mutex_unlock(&lock);
    g_thread_join(thread);
}

static void test_cancel_itself(void **state)
{
    struct named a = { { .fire = fire_cancelling_itself }, 'a', 0 };
    struct named b = { { .fire = fire }, 'b', 0 };

    ptimer_arm(&a.t, 0);
    wait_fired("a");
    ptimer_cancel(&a.t);
    ptimer_arm(&b.t, 0);
    wait_fired("ab");
}

static void test_cancel_never_armed(void **state)
{
    struct named a = { { .fire = fire }, 'a', 0 };

    ptimer_cancel(&a.t);
    assert_string_equal(fired, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_order, setup),
        cmocka_unit_test_setup(test_move, setup),
        cmocka_unit_test_setup(test_again, setup),
        cmocka_unit_test_setup(test_cancel_pending, setup),
        cmocka_unit_test_setup(test_cancel_running, setup),
        cmocka_unit_test_setup(test_cancel_itself, setup),
        cmocka_unit_test_setup(test_cancel_never_armed, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
