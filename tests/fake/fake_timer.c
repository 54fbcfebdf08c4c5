/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Same contract as timer.c, without a thread.  Time starts at one second, so
 * that a due time is never 0, and moves only when the test says so.
 */
#include "fake_timer.h"

static GMutex lock;
static GCond changed;
static struct ptimer *head;     /* under lock, by due_us */
static struct ptimer *firing;   /* under lock */
static GThread *firing_thread;  /* under lock */
static gint64 now_us = G_USEC_PER_SEC;

static void unlink_locked(struct ptimer *t)
{
    struct ptimer **p = &head;

    while (*p != t) {
        p = &(*p)->next;
    }
    *p = t->next;
    t->due_us = 0;
}

void ptimer_arm(struct ptimer *t, unsigned delay_ms)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);
    struct ptimer **p = &head;

    if (t->due_us) {
        unlink_locked(t);
    }
    t->due_us = now_us + delay_ms * G_GINT64_CONSTANT(1000);
    while (*p && (*p)->due_us <= t->due_us) {
        p = &(*p)->next;
    }
    t->next = *p;
    *p = t;
    g_cond_broadcast(&changed);
}

void ptimer_cancel(struct ptimer *t)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    for (;;) {
        if (t->due_us) {
            unlink_locked(t);
        }
        if (firing != t || firing_thread == g_thread_self()) {
            return;
        }
        g_cond_wait(&changed, &lock);
    }
}

void fake_clock_advance(unsigned ms)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);
    gint64 until = now_us + ms * G_GINT64_CONSTANT(1000);

    while (head && head->due_us <= until) {
        struct ptimer *t = head;

        now_us = MAX(now_us, t->due_us);
        unlink_locked(t);
        firing = t;
        firing_thread = g_thread_self();
        g_mutex_unlock(&lock);
        t->fire(t);
        g_mutex_lock(&lock);
        firing = NULL;
        g_cond_broadcast(&changed);
    }
    now_us = until;
}

int fake_clock_next(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    return head ? (head->due_us - now_us) / 1000 : -1;
}

unsigned fake_timers(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);
    unsigned n = 0;

    for (struct ptimer *t = head; t; t = t->next) {
        n++;
    }
    return n;
}

void fake_wait_timer(unsigned ms)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    while (!head || head->due_us > now_us + ms * G_GINT64_CONSTANT(1000)) {
        g_cond_wait(&changed, &lock);
    }
}
