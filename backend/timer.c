/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One thread for everything in the process that must happen later: header
 * refresh and re-watch with back-off, the scan for requests that take long,
 * acknowledged writes that wait for a last reference.  It starts with the
 * first armed timer and lives until the process ends; it sleeps while the list
 * is empty.
 *
 * The list is sorted by due time and short (a few timers a disk), so insertion
 * walks it.  `firing' is the timer whose function runs, outside the lock:
 * ptimer_cancel() waits for it to change.
 */
#include "timer.h"

static GMutex lock;
static GCond changed;           /* list head, or `firing' */
static struct ptimer *head;     /* under lock, by due_us */
static struct ptimer *firing;   /* under lock */
static GThread *thread;         /* under lock */

static void unlink_locked(struct ptimer *t)
{
    struct ptimer **p = &head;

    while (*p != t) {
        p = &(*p)->next;
    }
    *p = t->next;
    t->due_us = 0;
}

static gpointer timer_thread(G_GNUC_UNUSED gpointer arg)
{
    g_mutex_lock(&lock);
    for (;;) {
        struct ptimer *t = head;

        if (!t) {
            g_cond_wait(&changed, &lock);
            continue;
        }
        if (t->due_us > g_get_monotonic_time()) {
            g_cond_wait_until(&changed, &lock, t->due_us);
            continue;
        }
        unlink_locked(t);
        firing = t;
        g_mutex_unlock(&lock);
        t->fire(t);
        g_mutex_lock(&lock);
        firing = NULL;
        g_cond_broadcast(&changed);
    }
    return NULL;
}

void ptimer_arm(struct ptimer *t, unsigned delay_ms)
{
    struct ptimer **p = &head;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    if (t->due_us) {
        unlink_locked(t);
    }
    t->due_us = g_get_monotonic_time() + delay_ms * G_GINT64_CONSTANT(1000);
    while (*p && (*p)->due_us <= t->due_us) {
        p = &(*p)->next;
    }
    t->next = *p;
    *p = t;
    if (!thread) {
        thread = g_thread_new("pinrbd-watchdog", timer_thread, NULL);
    }
    g_cond_broadcast(&changed);
}

void ptimer_cancel(struct ptimer *t)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    for (;;) {
        if (t->due_us) {
            unlink_locked(t);
        }
        if (firing != t || g_thread_self() == thread) {
            return;
        }
        g_cond_wait(&changed, &lock);
    }
}
