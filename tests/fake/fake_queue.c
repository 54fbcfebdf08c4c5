/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The queue between the library under test and the store.
 *
 * Every asynchronous call becomes an item; an item is executed (takes effect,
 * gets its result) and later completed (its callback runs).  These are usually
 * one step, but when an item is picked out of turn, older writes of the same
 * object are executed first, and stay in the queue as executed.
 *
 * One lock guards everything; it is never held while a callback runs.  A watch
 * has a record of its own, which knows whether one of its callbacks runs now:
 * its next item waits for that, also with many workers.
 */
#include "fake_queue.h"

#include <errno.h>
#include <sched.h>

GMutex fake_mutex;
GCond fake_changed;
GPtrArray *fake_items;
static unsigned running;        /* callbacks of workers */
static GThread *worker[16];
static unsigned n_workers;
static bool workers_stop;
static GRand *rng;

/* ---- items --------------------------------------------------------------- */

static void item_free(struct item *it)
{
    if (it->payload) {
        for (unsigned i = 0; it->payload[i]; i++) {
            g_byte_array_unref(it->payload[i]);
        }
        g_free(it->payload);
    }
    g_free(it->line);
    g_free(it->key);
    g_free(it);
}

void push_locked(struct item *it)
{
    it->faulty = note_locked(it->line, &it->fault);
    it->held = it->faulty && it->fault.kind == FAKE_HOLD;
    g_ptr_array_add(fake_items, it);
    g_cond_broadcast(&fake_changed);
}

struct item *queue_add_locked(enum item_kind kind, const char *key, char *line)
{
    struct item *it = g_new0(struct item, 1);

    it->kind = kind;
    it->key = g_strdup(key);
    it->line = line;
    g_ptr_array_add(fake_items, it);
    g_cond_broadcast(&fake_changed);
    return it;
}

void queue_drop_locked(const struct watch *wt)
{
    for (guint i = fake_items->len; i; i--) {
        struct item *it = g_ptr_array_index(fake_items, i - 1);

        if ((it->kind == ITEM_NOTIFIED || it->kind == ITEM_FAILED) &&
            it->watch == wt) {
            g_ptr_array_remove_index(fake_items, i - 1);
            item_free(it);
        }
    }
}

static bool item_has_watch(const struct item *it)
{
    return it->watch && it->kind != ITEM_NOTIFY;
}

/* Must it wait for something the transport promises to come first? */
static bool blocked_locked(guint i)
{
    const struct item *it = g_ptr_array_index(fake_items, i);

    if (!item_has_watch(it)) {
        return false;
    }
    if (it->watch->busy) {
        return true;
    }
    for (guint k = 0; k < i; k++) {
        const struct item *other = g_ptr_array_index(fake_items, k);

        if (item_has_watch(other) && other->watch == it->watch) {
            return true;
        }
    }
    return false;
}

static bool runnable_locked(guint i)
{
    const struct item *it = g_ptr_array_index(fake_items, i);

    return (!it->held || it->cancelled) && !blocked_locked(i);
}

static bool idle_locked(void)
{
    if (running) {
        return false;
    }
    for (guint i = 0; i < fake_items->len; i++) {
        if (runnable_locked(i)) {
            return false;
        }
    }
    return true;
}

/* ---- executing ----------------------------------------------------------- */

static void count_bytes(const struct item *it)
{
    struct rados_op *op = it->op;

    for (unsigned i = 0; i < op->n_steps; i++) {
        const struct rados_step *s = &op->steps[i];

        if (s->kind == RADOS_WRITE || s->kind == RADOS_WRITE_FULL ||
            s->kind == RADOS_WRITESAME) {
            *(it->payload ? &op->copied_bytes : &op->pinned_bytes) +=
                iov_total(s);
        } else if (s->kind == RADOS_READ) {
            op->copied_bytes += s->out_len;
        }
    }
}

static void execute_op_locked(struct item *it)
{
    struct rados_op *op = it->op;
    bool fail = it->faulty && it->fault.kind == FAKE_FAIL;
    uint64_t max = it->faulty && it->fault.kind == FAKE_SHORT ?
                   it->fault.arg : UINT64_MAX;
    GPtrArray *outputs = g_ptr_array_new_with_free_func(g_free);

    it->executed = true;
    if (it->cancelled || fail) {
        op->result = fail ? it->fault.err : -ECANCELED;
    } else if (conn_fenced(it->pool->conn)) {
        op->result = -ESHUTDOWN;
    } else {
        check_execute_locked(it);
        op->result = store_execute(it->key, &it->pool->conn->client,
                                   it->pool->base.id, it->pool->base.ns,
                                   it->pool->base.snap, op, it->payload, max,
                                   outputs);
        count_bytes(it);
    }
    if (it->faulty && it->fault.kind == FAKE_FAIL_AFTER) {
        op->result = it->fault.err;
    }
    if (it->faulty && it->fault.kind == FAKE_LATE) {
        op->late = true;
    }
    if (!outputs->len) {
        g_clear_pointer(&outputs, g_ptr_array_unref);
    }
    *(GPtrArray **)op->priv = outputs;
}

/* Writes of one object take effect in the order they were submitted in. */
static void execute_older_locked(guint i)
{
    const struct item *it = g_ptr_array_index(fake_items, i);

    if (it->kind != ITEM_OP || !it->write) {
        return;
    }
    for (guint k = 0; k < i; k++) {
        struct item *other = g_ptr_array_index(fake_items, k);

        if (other->kind == ITEM_OP && other->write && !other->executed &&
            g_str_equal(other->key, it->key)) {
            execute_op_locked(other);
        }
    }
}

/*
 * What @it does to the store.  False: there is no callback to run (the item
 * turned into others).
 */
static bool execute_locked(struct item *it)
{
    int err = it->faulty && (it->fault.kind == FAKE_FAIL ||
                             it->fault.kind == FAKE_FAIL_AFTER) ?
              it->fault.err :
              it->pool && conn_fenced(it->pool->conn) ? -ESHUTDOWN : 0;
    const struct fake_object *o = store_find(it->key);

    switch (it->kind) {
    case ITEM_OP:
        if (!it->executed) {
            execute_op_locked(it);
        }
        return true;
    case ITEM_WATCH:
        it->result = err ? err : o && o->data ? 0 : -ENOENT;
        if (it->result == 0) {
            watch_on_locked(it->watch);
        }
        return true;
    case ITEM_UNWATCH:
        it->result = err;
        watch_off_locked(it->watch);
        return true;
    case ITEM_NOTIFY:
        if (err || !o || !o->data) {
            it->notify->n->result = err ? err : -ENOENT;
            it->notify->over = true;
            it->kind = ITEM_NOTIFY_DONE;
            return true;
        }
        notify_spread_locked(it->notify);
        return false;
    case ITEM_NOTIFY_DONE:
        notify_reply_locked(it->notify);
        return true;
    case ITEM_FAILED:
    case ITEM_NOTIFIED:
        return true;
    }
    return true;
}

/* Read borrowed payload a last time: it must still be there. */
static void touch_payload(const struct item *it)
{
    volatile uint8_t sink = 0;

    if (!it->write || it->payload) {
        return;
    }
    for (unsigned i = 0; i < it->op->n_steps; i++) {
        const struct rados_step *s = &it->op->steps[i];

        for (int k = 0; k < s->n_iov; k++) {
            const uint8_t *p = s->iov[k].iov_base;

            for (size_t b = 0; b < s->iov[k].iov_len; b++) {
                sink ^= p[b];
            }
        }
    }
    (void)sink;
}

static void call_back(struct item *it)
{
    struct notify *nt = it->notify;

    switch (it->kind) {
    case ITEM_OP:
        touch_payload(it);
        it->op->done(it->op);
        break;
    case ITEM_WATCH:
        it->w->started(it->w, it->result);
        break;
    case ITEM_UNWATCH:
        it->w->stopped(it->w, it->result);
        break;
    case ITEM_FAILED:
        it->w->failed(it->w, it->result);
        break;
    case ITEM_NOTIFIED:
        it->watch->w->notified(it->watch->w, nt->id, nt->sender,
                               nt->payload->data, nt->payload->len);
        break;
    case ITEM_NOTIFY_DONE:
        nt->n->done(nt->n);
        break;
    case ITEM_NOTIFY:
        break;
    }
}

/* Take item @i out of the queue and finish it.  The lock is dropped for it. */
static void complete_locked(guint i, unsigned yields)
{
    struct item *it = g_ptr_array_index(fake_items, i);
    struct watch *wt = item_has_watch(it) ? it->watch : NULL;
    bool forget = it->kind == ITEM_UNWATCH;

    execute_older_locked(i);
    g_ptr_array_remove_index(fake_items, i);
    if (execute_locked(it)) {
        if (it->kind == ITEM_WATCH && it->result < 0) {
            /* The caller may start or free it from inside started(). */
            it->w->priv[0] = NULL;
            watch_forget_locked(wt);
            wt = NULL;
        }
        if (wt) {
            wt->busy = true;
            if (forget) {
                it->w->priv[0] = NULL;
            }
        }
        running++;
        g_mutex_unlock(&fake_mutex);
        while (yields--) {
            sched_yield();
        }
        call_back(it);
        g_mutex_lock(&fake_mutex);
        running--;
        if (wt) {
            wt->busy = false;
            if (forget) {
                watch_forget_locked(wt);
            }
        }
    }
    item_free(it);
    g_cond_broadcast(&fake_changed);
}

/* ---- running ------------------------------------------------------------- */

size_t fake_pending(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return fake_items->len;
}

static size_t pending_match_locked(const char *match)
{
    size_t n = 0;

    for (guint i = 0; i < fake_items->len; i++) {
        n += matches(match, ((struct item *)fake_items->pdata[i])->line);
    }
    return n;
}

size_t fake_pending_match(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return pending_match_locked(match);
}

void fake_run_one(size_t i)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    FAKE_CHECK(i < fake_items->len, "no such item");
    FAKE_CHECK(!blocked_locked(i),
               "that item must wait for another of its watch");
    complete_locked(i, 0);
}

bool fake_run_match(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = 0; i < fake_items->len; i++) {
        const struct item *it = g_ptr_array_index(fake_items, i);

        if (matches(match, it->line)) {
            FAKE_CHECK(!blocked_locked(i), "the item must wait for another");
            complete_locked(i, 0);
            return true;
        }
    }
    return false;
}

unsigned fake_run(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    unsigned n = 0;
    guint i = 0;

    while (i < fake_items->len) {
        if (runnable_locked(i)) {
            complete_locked(i, 0);
            n++;
            i = 0;
        } else {
            i++;
        }
    }
    return n;
}

void fake_release(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = 0; i < fake_items->len; i++) {
        struct item *it = g_ptr_array_index(fake_items, i);

        if (matches(match, it->line)) {
            it->held = false;
        }
    }
    release_calls_locked(match);
    g_cond_broadcast(&fake_changed);
}

void fake_wait_pending(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    while (!pending_match_locked(match)) {
        g_cond_wait(&fake_changed, &fake_mutex);
    }
}

void fake_wait_idle(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    while (!idle_locked()) {
        g_cond_wait(&fake_changed, &fake_mutex);
    }
}

/* A runnable item: the first for one worker, any for more; -1: none. */
static int choose_locked(void)
{
    int found = -1;
    unsigned n = 0;

    for (guint i = 0; i < fake_items->len; i++) {
        if (!runnable_locked(i)) {
            continue;
        }
        if (n_workers == 1) {
            return i;
        }
        n++;
        if (g_rand_int_range(rng, 0, n) == 0) {
            found = i;
        }
    }
    return found;
}

static gpointer worker_main(G_GNUC_UNUSED gpointer arg)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    int i;

    while (!workers_stop) {
        i = choose_locked();
        if (i < 0) {
            g_cond_wait(&fake_changed, &fake_mutex);
        } else {
            complete_locked(i, n_workers > 1 ? g_rand_int_range(rng, 0, 4) :
                               0);
        }
    }
    return NULL;
}

void fake_workers(unsigned n)
{
    FAKE_CHECK(n <= G_N_ELEMENTS(worker), "too many workers");
    g_mutex_lock(&fake_mutex);
    workers_stop = true;
    g_cond_broadcast(&fake_changed);
    g_mutex_unlock(&fake_mutex);
    for (unsigned i = 0; i < n_workers; i++) {
        g_thread_join(worker[i]);
    }
    g_mutex_lock(&fake_mutex);
    workers_stop = false;
    n_workers = n;
    for (unsigned i = 0; i < n; i++) {
        worker[i] = g_thread_new("fake-osd", worker_main, NULL);
    }
    g_mutex_unlock(&fake_mutex);
}

/* ---- life ---------------------------------------------------------------- */

void fake_start(unsigned workers)
{
    store_init();
    log_start();
    conns_start();
    notify_start();
    check_start();
    fake_items = g_ptr_array_new();
    rng = g_rand_new_with_seed(1);
    fake_workers(workers);
}

void fake_stop(void)
{
    fake_workers(0);
    FAKE_CHECK(!fake_items->len, "items are left in the queue");
    notify_stop();
    conns_stop();
    log_stop();
    g_ptr_array_unref(fake_items);
    g_rand_free(rng);
    store_clear();
}
