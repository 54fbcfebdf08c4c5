/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * GLib's locks and counts, visible to ThreadSanitizer
 *
 * GMutex, GCond and GRecMutex are futexes inside libglib, which is not built
 * with TSan: it does not see that one thread's unlock comes before another's
 * lock, and takes everything under such a lock for a race.  This file, linked
 * into test programs of a TSan build, defines the same functions on pthread
 * locks, which TSan knows.  A GMutex or GCond is one pointer, so the pthread
 * object is allocated at first use, as GLib itself does on other systems, and
 * freed by the clear function.
 *
 * libglib's own calls do not come here, and need not: it is consistent in
 * itself.  So a GMutex must not be locked by one side and unlocked by the
 * other; only our own code's locks are.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <glib.h>

/* The object behind *slot, made once by whoever comes first. */
static void *object_of(gpointer *slot, size_t size, void (*init)(void *),
                       void (*destroy)(void *))
{
    void *obj = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    void *other = NULL;

    if (obj) {
        return obj;
    }
    obj = calloc(1, size);
    if (!obj) {
        abort();
    }
    init(obj);
    if (!__atomic_compare_exchange_n(slot, &other, obj, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
        destroy(obj);
        free(obj);
        return other;
    }
    return obj;
}

static void clear_object(gpointer *slot, void (*destroy)(void *))
{
    void *obj = __atomic_exchange_n(slot, NULL, __ATOMIC_ACQ_REL);

    if (obj) {
        destroy(obj);
        free(obj);
    }
}

static void must(int err)
{
    if (err) {
        abort();
    }
}

static void mutex_init(void *obj)
{
    must(pthread_mutex_init(obj, NULL));
}

static void rec_mutex_init(void *obj)
{
    pthread_mutexattr_t attr;

    must(pthread_mutexattr_init(&attr));
    must(pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE));
    must(pthread_mutex_init(obj, &attr));
    must(pthread_mutexattr_destroy(&attr));
}

static void mutex_destroy(void *obj)
{
    must(pthread_mutex_destroy(obj));
}

static void cond_init(void *obj)
{
    pthread_condattr_t attr;

    must(pthread_condattr_init(&attr));
    must(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
    must(pthread_cond_init(obj, &attr));
    must(pthread_condattr_destroy(&attr));
}

static void cond_destroy(void *obj)
{
    must(pthread_cond_destroy(obj));
}

static pthread_mutex_t *mutex_of(GMutex *mutex)
{
    return object_of(&mutex->p, sizeof(pthread_mutex_t), mutex_init,
                     mutex_destroy);
}

static pthread_mutex_t *rec_mutex_of(GRecMutex *mutex)
{
    return object_of(&mutex->p, sizeof(pthread_mutex_t), rec_mutex_init,
                     mutex_destroy);
}

static pthread_cond_t *cond_of(GCond *cond)
{
    return object_of(&cond->p, sizeof(pthread_cond_t), cond_init,
                     cond_destroy);
}

void g_mutex_init(GMutex *mutex)
{
    mutex->p = NULL;
}

void g_mutex_clear(GMutex *mutex)
{
    clear_object(&mutex->p, mutex_destroy);
}

void g_mutex_lock(GMutex *mutex)
{
    must(pthread_mutex_lock(mutex_of(mutex)));
}

gboolean g_mutex_trylock(GMutex *mutex)
{
    return pthread_mutex_trylock(mutex_of(mutex)) == 0;
}

void g_mutex_unlock(GMutex *mutex)
{
    must(pthread_mutex_unlock(mutex_of(mutex)));
}

void g_rec_mutex_init(GRecMutex *mutex)
{
    mutex->p = NULL;
}

void g_rec_mutex_clear(GRecMutex *mutex)
{
    clear_object(&mutex->p, mutex_destroy);
}

void g_rec_mutex_lock(GRecMutex *mutex)
{
    must(pthread_mutex_lock(rec_mutex_of(mutex)));
}

void g_rec_mutex_unlock(GRecMutex *mutex)
{
    must(pthread_mutex_unlock(rec_mutex_of(mutex)));
}

void g_cond_init(GCond *cond)
{
    cond->p = NULL;
}

void g_cond_clear(GCond *cond)
{
    clear_object(&cond->p, cond_destroy);
}

void g_cond_signal(GCond *cond)
{
    must(pthread_cond_signal(cond_of(cond)));
}

void g_cond_broadcast(GCond *cond)
{
    must(pthread_cond_broadcast(cond_of(cond)));
}

void g_cond_wait(GCond *cond, GMutex *mutex)
{
    must(pthread_cond_wait(cond_of(cond), mutex_of(mutex)));
}

gboolean g_cond_wait_until(GCond *cond, GMutex *mutex, gint64 end_time)
{
    struct timespec ts = {
        .tv_sec = end_time / G_USEC_PER_SEC,
        .tv_nsec = (end_time % G_USEC_PER_SEC) * 1000,
    };
    int err = pthread_cond_timedwait(cond_of(cond), mutex_of(mutex), &ts);

    if (err != ETIMEDOUT) {
        must(err);
    }
    return err == 0;
}

/*
 * Counted references: a count that falls to nothing must be seen to come after
 * every use by the others.
 */
void (g_atomic_ref_count_init)(gatomicrefcount *arc)
{
    __atomic_store_n(arc, 1, __ATOMIC_RELAXED);
}

void (g_atomic_ref_count_inc)(gatomicrefcount *arc)
{
    __atomic_add_fetch(arc, 1, __ATOMIC_RELAXED);
}

gboolean (g_atomic_ref_count_dec)(gatomicrefcount *arc)
{
    return __atomic_sub_fetch(arc, 1, __ATOMIC_ACQ_REL) == 0;
}
