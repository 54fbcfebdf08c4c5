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
 *
 * What a caller may not do (see rados_op.h) ends the process with a message
 * that starts with "fake:".
 */
#include "fake_rados.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "fake_store.h"

struct conn {
    struct rados_conn base;
    char *identity;
    GHashTable *options;
    struct fake_client client;
    bool connected;
    unsigned pools;
};

struct pool {
    struct rados_pool base;
    struct conn *conn;
};

struct watch {
    struct rados_watch *w;
    struct conn *conn;
    char *key;
    uint64_t cookie;
    bool registered;
    bool busy;              /* one of its callbacks runs */
};

enum ack_state { ACK_NONE, ACK_DONE, ACK_MISSED };

struct ack {
    uint64_t gid;
    uint64_t cookie;
    enum ack_state state;
    GByteArray *payload;
    bool ours;
};

struct notify {
    uint64_t id;
    uint64_t sender;
    char *key;
    GByteArray *payload;
    GArray *acks;           /* struct ack */
    struct rados_notify *n; /* NULL: the test sent it */
    bool over;
};

enum item_kind {
    ITEM_OP,
    ITEM_WATCH,
    ITEM_UNWATCH,
    ITEM_FAILED,            /* the watch is lost */
    ITEM_NOTIFY,            /* on its way to the object */
    ITEM_NOTIFIED,          /* to one watcher */
    ITEM_NOTIFY_DONE,
};

struct item {
    enum item_kind kind;
    char *line;
    char *key;
    struct pool *pool;
    struct rados_op *op;
    bool write;
    GByteArray **payload;   /* per step: private copies */
    struct watch *watch;
    struct rados_watch *w;
    struct notify *notify;
    struct fake_fault fault;
    bool faulty;
    bool held;
    bool cancelled;
    bool executed;
    int result;
};

GMutex fake_mutex;
static GCond changed;
static GPtrArray *queue;        /* struct item, in submit order */
static GPtrArray *log_lines;
static GArray *faults;          /* struct fake_fault, match owned */
static GPtrArray *watches;      /* struct watch */
static GPtrArray *notifies;     /* struct notify */
static unsigned fault_hits;
static unsigned running;        /* callbacks of workers */
static GPtrArray *conns;        /* struct conn */
static uint64_t next_instance;
static uint64_t next_cookie;
static bool reuse_cookie;
static uint64_t next_notify;
static GThread *worker[16];
static unsigned n_workers;
static bool workers_stop;
static uint64_t required_seq;
static GRand *rng;

#define FIRST_INSTANCE 4100

/* ---- text ---------------------------------------------------------------- */

static const char *oid_of_key(const char *key)
{
    return strchr(strchr(key, '/') + 1, '/') + 1;
}

static void add_place(GString *s, const struct rados_pool *p)
{
    if (p->id != FAKE_POOL_RBD || p->ns[0]) {
        g_string_append_printf(s, " in %s/%s", p->name, p->ns);
    }
}

static size_t iov_total(const struct rados_step *s)
{
    size_t n = 0;

    for (int i = 0; i < s->n_iov; i++) {
        n += s->iov[i].iov_len;
    }
    return n;
}

static void add_call(GString *s, const struct rados_step *step)
{
    g_string_append_printf(s, "%s.%s(", step->cls, step->method);
    for (int i = 0; i < step->n_iov; i++) {
        const uint8_t *p = step->iov[i].iov_base;

        for (size_t k = 0; k < step->iov[i].iov_len; k++) {
            g_string_append_printf(s, "%02x", p[k]);
        }
    }
    g_string_append_c(s, ')');
}

static const char *const step_name[] = {
    [RADOS_READ] = "read",
    [RADOS_STAT] = "stat",
    [RADOS_CHECKSUM] = "checksum",
    [RADOS_ASSERT_EXISTS] = "assert_exists",
    [RADOS_ASSERT_VERSION] = "assert_version",
    [RADOS_CALL] = "call",
    [RADOS_CREATE] = "create",
    [RADOS_WRITE] = "write",
    [RADOS_WRITE_FULL] = "write_full",
    [RADOS_WRITESAME] = "writesame",
    [RADOS_ZERO] = "zero",
    [RADOS_TRUNCATE] = "truncate",
    [RADOS_REMOVE] = "remove",
    [RADOS_ALLOC_HINT] = "alloc_hint",
    [RADOS_ROLLBACK] = "rollback",
};

static void add_step(GString *s, const struct rados_step *step,
                     const char *oid)
{
    if (!oid && step->kind == RADOS_CALL) {
        add_call(s, step);
        return;
    }
    g_string_append(s, step_name[step->kind]);
    if (oid) {
        g_string_append_printf(s, " %s", oid);
    }
    switch (step->kind) {
    case RADOS_CALL:
        g_string_append_c(s, ' ');
        add_call(s, step);
        break;
    case RADOS_READ:
    case RADOS_CHECKSUM:
    case RADOS_ZERO:
    case RADOS_WRITESAME:
        g_string_append_printf(s, " %" G_GUINT64_FORMAT "~%" G_GUINT64_FORMAT,
                               (guint64)step->off, (guint64)step->len);
        break;
    case RADOS_WRITE:
        g_string_append_printf(s, " %" G_GUINT64_FORMAT "~%zu",
                               (guint64)step->off, iov_total(step));
        break;
    case RADOS_WRITE_FULL:
        g_string_append_printf(s, " %zu", iov_total(step));
        break;
    case RADOS_ALLOC_HINT:
        g_string_append_printf(s, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT,
                               (guint64)step->off, (guint64)step->len);
        break;
    case RADOS_TRUNCATE:
    case RADOS_ROLLBACK:
    case RADOS_ASSERT_VERSION:
        g_string_append_printf(s, " %" G_GUINT64_FORMAT, (guint64)step->off);
        break;
    case RADOS_CREATE:
        g_string_append(s, step->exclusive ? " exclusive" : "");
        break;
    case RADOS_STAT:
    case RADOS_ASSERT_EXISTS:
    case RADOS_REMOVE:
        break;
    }
}

static char *op_line(const struct rados_pool *p, const struct rados_op *op)
{
    GString *s = g_string_new(NULL);
    const struct rados_snapc *sc = op->snapc;

    for (unsigned i = 0; i < op->n_steps; i++) {
        if (i) {
            g_string_append(s, " + ");
        }
        add_step(s, &op->steps[i], i ? NULL : op->oid);
    }
    if (sc) {
        g_string_append_printf(s, " snapc %" G_GUINT64_FORMAT "=[",
                               (guint64)sc->seq);
        for (size_t i = 0; i < sc->n; i++) {
            g_string_append_printf(s, "%s%" G_GUINT64_FORMAT, i ? "," : "",
                                   (guint64)sc->ids[i]);
        }
        g_string_append_c(s, ']');
    }
    if (!(op->flags & RADOS_OP_WRITE) && p->snap != RADOS_NOSNAP) {
        g_string_append_printf(s, " @%" G_GUINT64_FORMAT, (guint64)p->snap);
    }
    if (op->flags & RADOS_OP_ORDERSNAP) {
        g_string_append(s, " ordersnap");
    }
    if (op->flags & RADOS_OP_COPY) {
        g_string_append(s, " copy");
    }
    if (op->flags & RADOS_OP_FULL_TRY) {
        g_string_append(s, " full_try");
    }
    add_place(s, p);
    return g_string_free(s, FALSE);
}

static char *oid_line(const struct rados_pool *p, const char *verb,
                      const char *oid, const size_t *len)
{
    GString *s = g_string_new(verb);

    g_string_append_printf(s, " %s", oid);
    if (len) {
        g_string_append_printf(s, " %zu", *len);
    }
    add_place(s, p);
    return g_string_free(s, FALSE);
}

static char *notify_line(const struct rados_pool *p,
                         const struct rados_notify *n)
{
    GString *s = g_string_new("notify");
    int op = notify_op(n->payload, n->payload_len);

    g_string_append_printf(s, " %s %zu", n->oid, n->payload_len);
    if (op >= 0) {
        g_string_append_printf(s, " op %d", op);
    }
    add_place(s, p);
    return g_string_free(s, FALSE);
}

static bool matches(const char *match, const char *line)
{
    return g_pattern_match_simple(match, line);
}

/* ---- log and faults ------------------------------------------------------ */

/* Log the request; the fault it meets, if any, goes to @ret. */
static bool note_locked(const char *line, struct fake_fault *ret)
{
    bool hit = false;

    g_ptr_array_add(log_lines, g_strdup(line));
    g_cond_broadcast(&changed);
    for (guint i = 0; i < faults->len; i++) {
        struct fake_fault *f = &g_array_index(faults, struct fake_fault, i);

        if (!f->times || !matches(f->match, line)) {
            continue;
        }
        if (f->skip) {
            f->skip--;
        } else if (!hit) {
            f->times -= f->times != UINT_MAX;
            *ret = *f;
            hit = true;
        }
    }
    fault_hits += hit;
    return hit;
}

/* For calls that block: 0 or the fault's number. */
static int note_call_locked(const char *line, struct fake_fault *f)
{
    memset(f, 0, sizeof(*f));
    return note_locked(line, f) ? f->err : 0;
}

static int note_call(const char *line)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct fake_fault f;

    return note_call_locked(line, &f);
}

void fake_fault_add(const struct fake_fault *f)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct fake_fault copy = *f;

    copy.match = g_strdup(f->match);
    copy.times = MAX(f->times, 1);
    g_array_append_val(faults, copy);
}

void fake_faults_clear(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = 0; i < faults->len; i++) {
        g_free((char *)g_array_index(faults, struct fake_fault, i).match);
    }
    g_array_set_size(faults, 0);
}

unsigned fake_fault_hits(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return fault_hits;
}

static unsigned log_count_locked(const char *match)
{
    unsigned n = 0;

    for (guint i = 0; i < log_lines->len; i++) {
        n += matches(match, g_ptr_array_index(log_lines, i));
    }
    return n;
}

unsigned fake_log_count(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return log_count_locked(match);
}

const char *fake_log_line(unsigned i)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return i < log_lines->len ? g_ptr_array_index(log_lines, i) : NULL;
}

unsigned fake_log_length(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return log_lines->len;
}

void fake_log_clear(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    g_ptr_array_set_size(log_lines, 0);
}

void fake_wait_log(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    while (!log_count_locked(match)) {
        g_cond_wait(&changed, &fake_mutex);
    }
}

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

static void push_locked(struct item *it)
{
    it->faulty = note_locked(it->line, &it->fault);
    it->held = it->faulty && it->fault.kind == FAKE_HOLD;
    g_ptr_array_add(queue, it);
    g_cond_broadcast(&changed);
}

static bool item_has_watch(const struct item *it)
{
    return it->watch && it->kind != ITEM_NOTIFY;
}

/* Must it wait for something the transport promises to come first? */
static bool blocked_locked(guint i)
{
    const struct item *it = g_ptr_array_index(queue, i);

    if (!item_has_watch(it)) {
        return false;
    }
    if (it->watch->busy) {
        return true;
    }
    for (guint k = 0; k < i; k++) {
        const struct item *other = g_ptr_array_index(queue, k);

        if (item_has_watch(other) && other->watch == it->watch) {
            return true;
        }
    }
    return false;
}

static bool runnable_locked(guint i)
{
    const struct item *it = g_ptr_array_index(queue, i);

    return (!it->held || it->cancelled) && !blocked_locked(i);
}

static bool idle_locked(void)
{
    if (running) {
        return false;
    }
    for (guint i = 0; i < queue->len; i++) {
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

static bool conn_fenced(const struct conn *c)
{
    return fenced(c->client.address);
}

/* Only copies data up from a parent: makes what was missing, nothing else. */
static bool only_copies_up(const struct rados_op *op)
{
    for (unsigned i = 0; i < op->n_steps; i++) {
        const struct rados_step *s = &op->steps[i];

        if (s->kind != RADOS_ALLOC_HINT &&
            !(s->kind == RADOS_CALL && g_str_has_suffix(s->method,
                                                        "copyup"))) {
            return false;
        }
    }
    return true;
}

static bool has_step(const struct rados_op *op, enum rados_step_kind kind)
{
    for (unsigned i = 0; i < op->n_steps; i++) {
        if (op->steps[i].kind == kind) {
            return true;
        }
    }
    return false;
}

/* What fake_require_owner() asked for. */
static void check_owner_locked(const struct item *it)
{
    const struct rados_pool *p = &it->pool->base;
    uint64_t n;
    const struct fake_image *img = it->write ?
        cls_image_of_data(p->id, p->ns, it->op->oid, &n) : NULL;
    int state;

    if (!img || !img->require_owner) {
        return;
    }
    FAKE_CHECK(!(img->features & PINRBD_FEATURE_EXCLUSIVE_LOCK) ||
               lock_owned_by(img, it->pool->conn->client.gid),
               "a write without the lock");
    state = map_state(img, RADOS_NOSNAP, n);
    if (!(img->features & PINRBD_FEATURE_OBJECT_MAP) || state < 0 ||
        img->flags & 1) {
        return;
    }
    FAKE_CHECK(state == 1 || (state == 2 && has_step(it->op, RADOS_REMOVE)),
               "a write that the object map does not know of");
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
        check_owner_locked(it);
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
    const struct item *it = g_ptr_array_index(queue, i);

    if (it->kind != ITEM_OP || !it->write) {
        return;
    }
    for (guint k = 0; k < i; k++) {
        struct item *other = g_ptr_array_index(queue, k);

        if (other->kind == ITEM_OP && other->write && !other->executed &&
            g_str_equal(other->key, it->key)) {
            execute_op_locked(other);
        }
    }
}

static void notify_over_locked(struct notify *nt)
{
    struct item *it;

    if (nt->over) {
        return;
    }
    for (guint i = 0; i < nt->acks->len; i++) {
        if (g_array_index(nt->acks, struct ack, i).state == ACK_NONE) {
            return;
        }
    }
    nt->over = true;
    if (nt->n) {
        it = g_new0(struct item, 1);
        it->kind = ITEM_NOTIFY_DONE;
        it->key = g_strdup(nt->key);
        it->notify = nt;
        it->line = g_strdup_printf("notify_done %s", oid_of_key(nt->key));
        g_ptr_array_add(queue, it);
    }
    g_cond_broadcast(&changed);
}

static struct notify *notify_new_locked(const char *key, uint64_t sender,
                                        const void *payload, size_t len)
{
    struct notify *nt = g_new0(struct notify, 1);

    nt->id = ++next_notify;
    nt->sender = sender;
    nt->key = g_strdup(key);
    nt->payload = g_byte_array_new();
    if (len) {
        g_byte_array_append(nt->payload, payload, len);
    }
    nt->acks = g_array_new(FALSE, TRUE, sizeof(struct ack));
    g_ptr_array_add(notifies, nt);
    return nt;
}

static void notify_spread_locked(struct notify *nt);

/* A peer has given the lock up, and says so. */
static void released_locked(const char *key, uint64_t gid, uint64_t handle)
{
    g_autoptr(GByteArray) payload = g_byte_array_new();
    GByteArray *body = g_byte_array_new();

    put_le(body, FAKE_OP_RELEASED_LOCK, 4);
    put_le(body, gid, 8);
    put_le(body, handle, 8);
    put_block_v(payload, 7, body);
    notify_spread_locked(notify_new_locked(key, gid, payload->data,
                                           payload->len));
}

/* The peers have acked it when it gets there. */
static void notify_peers_locked(struct notify *nt)
{
    GArray *answers = peer_answers(nt->key, notify_op(nt->payload->data,
                                                      nt->payload->len));

    for (guint i = 0; i < answers->len; i++) {
        const struct peer_ack *p = &g_array_index(answers, struct peer_ack, i);
        struct ack a = { p->gid, p->handle, p->missed ? ACK_MISSED : ACK_DONE,
                         p->payload, false };

        g_array_append_val(nt->acks, a);
    }
    for (guint i = 0; i < answers->len; i++) {
        const struct peer_ack *p = &g_array_index(answers, struct peer_ack, i);
        struct fake_image *img = fake_image_find(oid_of_key(nt->key));

        if (p->yields && img && lock_yield(img, p->gid)) {
            released_locked(nt->key, p->gid, p->handle);
        }
    }
    g_array_unref(answers);
}

static void notify_spread_locked(struct notify *nt)
{
    for (guint i = 0; i < watches->len; i++) {
        struct watch *wt = g_ptr_array_index(watches, i);
        struct ack a = { .cookie = wt->cookie, .ours = true };
        struct item *it;

        if (!wt->registered || !g_str_equal(wt->key, nt->key)) {
            continue;
        }
        a.gid = wt->conn->client.gid;
        g_array_append_val(nt->acks, a);
        it = g_new0(struct item, 1);
        it->kind = ITEM_NOTIFIED;
        it->key = g_strdup(nt->key);
        it->watch = wt;
        it->notify = nt;
        it->line = g_strdup_printf("notified %s", oid_of_key(nt->key));
        g_ptr_array_add(queue, it);
    }
    notify_peers_locked(nt);
    notify_over_locked(nt);
    g_cond_broadcast(&changed);
}

/* No callback and no ack is expected of a watch that is gone. */
static void watch_off_locked(struct watch *wt)
{
    wt->registered = false;
    for (guint i = queue->len; i; i--) {
        struct item *it = g_ptr_array_index(queue, i - 1);

        if ((it->kind == ITEM_NOTIFIED || it->kind == ITEM_FAILED) &&
            it->watch == wt) {
            g_ptr_array_remove_index(queue, i - 1);
            item_free(it);
        }
    }
    for (guint i = 0; i < notifies->len; i++) {
        struct notify *nt = g_ptr_array_index(notifies, i);

        for (guint k = 0; k < nt->acks->len; k++) {
            struct ack *a = &g_array_index(nt->acks, struct ack, k);

            if (a->ours && a->cookie == wt->cookie && a->state == ACK_NONE) {
                a->state = ACK_MISSED;
            }
        }
        notify_over_locked(nt);
    }
}

static void watch_forget_locked(struct watch *wt)
{
    g_ptr_array_remove(watches, wt);
    g_free(wt->key);
    g_free(wt);
}

static void reply_locked(struct notify *nt)
{
    GByteArray *a = g_byte_array_new();

    for (enum ack_state st = ACK_DONE; st <= ACK_MISSED; st++) {
        guint start = a->len;
        unsigned n = 0;

        put_le(a, 0, 4);        /* how many: below */
        for (guint i = 0; i < nt->acks->len; i++) {
            struct ack *ack = &g_array_index(nt->acks, struct ack, i);

            if (ack->state != st) {
                continue;
            }
            n++;
            put_le(a, ack->gid, 8);
            put_le(a, ack->cookie, 8);
            if (st == ACK_DONE) {
                put_le(a, ack->payload->len, 4);
                put_bytes(a, ack->payload);
            } else {
                nt->n->result = -ETIMEDOUT;
            }
        }
        a->data[start] = n;
    }
    nt->n->reply.len = a->len;
    nt->n->reply.data = g_byte_array_free(a, FALSE);
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
            it->watch->registered = true;
            next_cookie += !reuse_cookie;
            reuse_cookie = false;
            it->watch->cookie = next_cookie;
            it->w->cookie = next_cookie;
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
        reply_locked(it->notify);
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
    struct item *it = g_ptr_array_index(queue, i);
    struct watch *wt = item_has_watch(it) ? it->watch : NULL;
    bool forget = it->kind == ITEM_UNWATCH;

    execute_older_locked(i);
    g_ptr_array_remove_index(queue, i);
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
    g_cond_broadcast(&changed);
}

/* ---- running ------------------------------------------------------------- */

size_t fake_pending(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return queue->len;
}

static size_t pending_match_locked(const char *match)
{
    size_t n = 0;

    for (guint i = 0; i < queue->len; i++) {
        n += matches(match, ((struct item *)queue->pdata[i])->line);
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

    FAKE_CHECK(i < queue->len, "no such item");
    FAKE_CHECK(!blocked_locked(i), "that item must wait for another of its watch");
    complete_locked(i, 0);
}

bool fake_run_match(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = 0; i < queue->len; i++) {
        const struct item *it = g_ptr_array_index(queue, i);

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

    while (i < queue->len) {
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

    for (guint i = 0; i < queue->len; i++) {
        struct item *it = g_ptr_array_index(queue, i);

        if (matches(match, it->line)) {
            it->held = false;
        }
    }
    g_cond_broadcast(&changed);
}

void fake_wait_pending(const char *match)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    while (!pending_match_locked(match)) {
        g_cond_wait(&changed, &fake_mutex);
    }
}

void fake_wait_idle(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    while (!idle_locked()) {
        g_cond_wait(&changed, &fake_mutex);
    }
}

/* A runnable item: the first for one worker, any for more; -1: none. */
static int choose_locked(void)
{
    int found = -1;
    unsigned n = 0;

    for (guint i = 0; i < queue->len; i++) {
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
            g_cond_wait(&changed, &fake_mutex);
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
    g_cond_broadcast(&changed);
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

static void notify_free(gpointer p)
{
    struct notify *nt = p;

    for (guint i = 0; i < nt->acks->len; i++) {
        GByteArray *a = g_array_index(nt->acks, struct ack, i).payload;

        if (a) {
            g_byte_array_unref(a);
        }
    }
    g_array_unref(nt->acks);
    g_byte_array_unref(nt->payload);
    g_free(nt->key);
    g_free(nt);
}

void fake_start(unsigned workers)
{
    store_init();
    queue = g_ptr_array_new();
    log_lines = g_ptr_array_new_with_free_func(g_free);
    faults = g_array_new(FALSE, TRUE, sizeof(struct fake_fault));
    watches = g_ptr_array_new();
    notifies = g_ptr_array_new_with_free_func(notify_free);
    conns = g_ptr_array_new();
    rng = g_rand_new_with_seed(1);
    fault_hits = 0;
    required_seq = 0;
    reuse_cookie = false;
    next_instance = FIRST_INSTANCE;
    next_cookie = 0x7f0000001000;
    next_notify = 0;
    fake_workers(workers);
}

void fake_stop(void)
{
    fake_workers(0);
    FAKE_CHECK(!queue->len, "items are left in the queue");
    FAKE_CHECK(!watches->len, "a watch is left");
    FAKE_CHECK(!conns->len, "a connection is left");
    fake_faults_clear();
    g_array_unref(faults);
    g_ptr_array_unref(queue);
    g_ptr_array_unref(log_lines);
    g_ptr_array_unref(watches);
    g_ptr_array_unref(notifies);
    g_ptr_array_unref(conns);
    g_rand_free(rng);
    store_clear();
}

/* ---- connection and pools ------------------------------------------------ */

static int compare_text(gconstpointer a, gconstpointer b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int fake_conn_new(const struct pinrbd_cluster_options *o,
                         struct rados_conn **ret, struct pinrbd_error *reterr)
{
    struct conn *c;
    GPtrArray *text;
    int r = note_call("conn_new");

    if (r < 0) {
        if (reterr) {
            reterr->code = r;
            g_snprintf(reterr->text, sizeof(reterr->text),
                       "the fake has no connection: %s", g_strerror(-r));
        }
        return r;
    }
    c = g_new0(struct conn, 1);
    c->base.t = &fake_rados;
    c->options = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                       g_free);
    g_hash_table_insert(c->options, g_strdup("client_mount_timeout"),
                        g_strdup("300"));
    text = g_ptr_array_new_with_free_func(g_free);
    g_ptr_array_add(text, g_strdup_printf("user=%s",
                                          o->user ? o->user : "admin"));
    for (size_t i = 0; i < o->n_options; i++) {
        g_hash_table_insert(c->options, g_strdup(o->options[i].key),
                            g_strdup(o->options[i].value));
        g_ptr_array_add(text, g_strdup_printf("%s=%s", o->options[i].key,
                                              o->options[i].value));
    }
    g_ptr_array_sort(text, compare_text);
    g_ptr_array_add(text, NULL);
    c->identity = g_strjoinv("\n", (char **)text->pdata);
    g_ptr_array_unref(text);

    g_mutex_lock(&fake_mutex);
    c->client.gid = next_instance++;
    g_snprintf(c->client.address, sizeof(c->client.address), "127.0.0.1:0/%u",
               (unsigned)(next_instance - FIRST_INSTANCE));
    g_ptr_array_add(conns, c);
    g_mutex_unlock(&fake_mutex);
    *ret = &c->base;
    return 0;
}

static const char *fake_conn_identity(struct rados_conn *conn)
{
    return ((struct conn *)conn)->identity;
}

static int fake_conn_connect(struct rados_conn *conn,
                             struct pinrbd_error *reterr)
{
    int r = note_call("connect");

    if (r < 0 && reterr) {
        reterr->code = r;
        g_snprintf(reterr->text, sizeof(reterr->text),
                   "the fake does not connect: %s", g_strerror(-r));
    }
    ((struct conn *)conn)->connected = r == 0;
    return r;
}

static void fake_conn_free(struct rados_conn *conn)
{
    struct conn *c = (struct conn *)conn;

    if (!c) {
        return;
    }
    FAKE_CHECK(!c->pools, "conn_free with pools open");
    g_mutex_lock(&fake_mutex);
    g_ptr_array_remove(conns, c);
    g_mutex_unlock(&fake_mutex);
    g_hash_table_unref(c->options);
    g_free(c->identity);
    g_free(c);
}

static uint64_t fake_conn_instance(struct rados_conn *conn)
{
    return ((struct conn *)conn)->client.gid;
}

static const char *fake_conn_fsid(G_GNUC_UNUSED struct rados_conn *conn)
{
    return "00000000-1111-2222-3333-444444444444";
}

static const char *fake_conn_address(struct rados_conn *conn)
{
    return ((struct conn *)conn)->client.address;
}

static int fake_conn_option(struct rados_conn *conn, const char *key,
                            char *buf, size_t len)
{
    const char *v = g_hash_table_lookup(((struct conn *)conn)->options, key);

    if (!v) {
        return -ENOENT;
    }
    return g_strlcpy(buf, v, len) < len ? 0 : -ENAMETOOLONG;
}

static int open_pool(struct rados_conn *conn, int64_t id, const char *ns,
                     uint64_t snap, struct rados_pool **ret)
{
    struct conn *c = (struct conn *)conn;
    struct pool *p;
    bool is_fenced;

    FAKE_CHECK(c->connected, "pool_open before connect");
    if (id != FAKE_POOL_RBD && id != FAKE_POOL_DATA) {
        return -ENOENT;
    }
    g_mutex_lock(&fake_mutex);
    is_fenced = conn_fenced(c);
    g_mutex_unlock(&fake_mutex);
    if (is_fenced) {
        return -ESHUTDOWN;
    }
    p = g_new0(struct pool, 1);
    p->base.t = &fake_rados;
    p->base.id = id;
    p->base.snap = snap;
    p->base.name = g_strdup(id == FAKE_POOL_RBD ? "rbd" : "data");
    p->base.ns = g_strdup(ns ? ns : "");
    p->conn = c;
    g_mutex_lock(&fake_mutex);
    c->pools++;
    g_mutex_unlock(&fake_mutex);
    *ret = &p->base;
    return 0;
}

static int fake_pool_open(struct rados_conn *c, const char *name,
                          const char *ns, struct rados_pool **ret)
{
    g_autofree char *line = g_strdup_printf("pool_open %s/%s", name,
                                            ns ? ns : "");
    int r = note_call(line);

    if (r < 0) {
        return r;
    }
    return open_pool(c, g_str_equal(name, "rbd") ? FAKE_POOL_RBD :
                        g_str_equal(name, "data") ? FAKE_POOL_DATA : -1,
                     ns, RADOS_NOSNAP, ret);
}

static int fake_pool_open_id(struct rados_conn *c, int64_t id, const char *ns,
                             uint64_t snap, struct rados_pool **ret)
{
    g_autofree char *line = g_strdup_printf("pool_open_id %" G_GINT64_FORMAT
                                            "/%s", (gint64)id, ns ? ns : "");
    int r = note_call(line);

    return r < 0 ? r : open_pool(c, id, ns, snap, ret);
}

static void fake_pool_close(struct rados_pool *pool)
{
    struct pool *p = (struct pool *)pool;

    if (!p) {
        return;
    }
    g_mutex_lock(&fake_mutex);
    for (guint i = 0; i < queue->len; i++) {
        const struct item *it = g_ptr_array_index(queue, i);

        FAKE_CHECK(it->pool != p, "pool_close with requests on their way");
    }
    p->conn->pools--;
    g_mutex_unlock(&fake_mutex);
    g_free((char *)p->base.name);
    g_free((char *)p->base.ns);
    g_free(p);
}

/* ---- ops ----------------------------------------------------------------- */

static bool step_reads(enum rados_step_kind k)
{
    return k <= RADOS_CALL;
}

static bool step_allowed_in_write(enum rados_step_kind k)
{
    return k > RADOS_CALL || k == RADOS_CALL || k == RADOS_STAT ||
           k == RADOS_ASSERT_EXISTS || k == RADOS_ASSERT_VERSION;
}

static bool calls(const struct rados_op *op, const char *method)
{
    for (unsigned i = 0; i < op->n_steps; i++) {
        if (op->steps[i].kind == RADOS_CALL &&
            g_str_equal(op->steps[i].method, method)) {
            return true;
        }
    }
    return false;
}

static bool updates_head_map(const struct rados_op *op)
{
    return g_str_has_prefix(op->oid, "rbd_object_map.") &&
           !strchr(op->oid + strlen("rbd_object_map."), '.') &&
           calls(op, "object_map_update");
}

static bool asserts_lock(const struct rados_op *op)
{
    return op->steps[0].kind == RADOS_CALL &&
           g_str_equal(op->steps[0].method, "assert_locked");
}

static void check_op(const struct rados_op *op)
{
    bool write = op->flags & RADOS_OP_WRITE;
    const struct rados_snapc *sc = op->snapc;

    FAKE_CHECK(op->oid && op->oid[0], "an op without an object");
    FAKE_CHECK(op->n_steps && op->steps, "an op without steps");
    FAKE_CHECK(op->done, "an op without a callback");
    FAKE_CHECK(write || !sc, "a read op with a snapshot context");
    for (unsigned i = 0; i < op->n_steps; i++) {
        const struct rados_step *s = &op->steps[i];

        FAKE_CHECK(write ? step_allowed_in_write(s->kind) : step_reads(s->kind),
              "a step in an op of the other direction");
        FAKE_CHECK(s->kind != RADOS_READ || iov_total(s) >= s->len,
              "a read longer than its buffers");
        FAKE_CHECK(s->kind != RADOS_ZERO || s->len, "an empty zero step");
    }
    for (size_t i = 0; sc && i < sc->n; i++) {
        FAKE_CHECK(sc->ids[i] <= sc->seq, "a snapshot id above the sequence");
        FAKE_CHECK(!i || sc->ids[i] < sc->ids[i - 1], "ids that do not descend");
    }
    FAKE_CHECK(!write || !g_str_has_prefix(op->oid, "rbd_data.") ||
               (sc ? sc->seq : 0) >= required_seq || only_copies_up(op),
               "a write with an old snapshot context");
    FAKE_CHECK(!updates_head_map(op) || asserts_lock(op),
               "an update of a map that another client may have taken");
    for (guint i = 0; i < queue->len; i++) {
        FAKE_CHECK(((struct item *)queue->pdata[i])->op != op,
              "an op submitted twice");
    }
}

static GByteArray **copy_payload(const struct rados_op *op)
{
    GByteArray **p = g_new0(GByteArray *, op->n_steps + 1);

    for (unsigned i = 0; i < op->n_steps; i++) {
        p[i] = g_byte_array_new();
        for (int k = 0; k < op->steps[i].n_iov; k++) {
            g_byte_array_append(p[i], op->steps[i].iov[k].iov_base,
                                op->steps[i].iov[k].iov_len);
        }
    }
    return p;
}

static void fake_submit(struct rados_pool *pool, struct rados_op *op)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct item *it;

    check_op(op);
    op->result = 0;
    op->version = 0;
    op->pinned_bytes = 0;
    op->copied_bytes = 0;
    op->late = false;
    for (unsigned i = 0; i < op->n_steps; i++) {
        op->steps[i].rval = 0;
        op->steps[i].out_len = 0;
        op->steps[i].out = (struct rados_blob) { NULL, 0 };
    }
    *(GPtrArray **)op->priv = NULL;

    it = g_new0(struct item, 1);
    it->kind = ITEM_OP;
    it->pool = (struct pool *)pool;
    it->key = store_key(pool->id, pool->ns, op->oid);
    it->op = op;
    it->write = op->flags & RADOS_OP_WRITE;
    it->line = op_line(pool, op);
    if (it->write && op->flags & RADOS_OP_COPY) {
        it->payload = copy_payload(op);
    }
    push_locked(it);
}

static void fake_cancel(G_GNUC_UNUSED struct rados_pool *pool,
                        struct rados_op *op)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = 0; i < queue->len; i++) {
        struct item *it = g_ptr_array_index(queue, i);

        if (it->op == op) {
            it->cancelled = true;
            g_cond_broadcast(&changed);
        }
    }
}

static void fake_op_release(struct rados_op *op)
{
    GPtrArray **outputs = (GPtrArray **)op->priv;

    if (*outputs) {
        g_ptr_array_unref(*outputs);
        *outputs = NULL;
    }
}

/* ---- watches and notifies ------------------------------------------------ */

static void fake_watch_start(struct rados_pool *pool, struct rados_watch *w)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct watch *wt = g_new0(struct watch, 1);
    struct item *it = g_new0(struct item, 1);

    wt->w = w;
    wt->key = store_key(pool->id, pool->ns, w->oid);
    wt->conn = ((struct pool *)pool)->conn;
    g_ptr_array_add(watches, wt);
    w->priv[0] = wt;

    it->kind = ITEM_WATCH;
    it->pool = (struct pool *)pool;
    it->key = g_strdup(wt->key);
    it->watch = wt;
    it->w = w;
    it->line = oid_line(pool, "watch", w->oid, NULL);
    push_locked(it);
}

static void fake_watch_stop(struct rados_pool *pool, struct rados_watch *w)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct item *it = g_new0(struct item, 1);

    FAKE_CHECK(w->priv[0], "watch_stop of what is not watched");
    it->kind = ITEM_UNWATCH;
    it->pool = (struct pool *)pool;
    it->watch = w->priv[0];
    it->key = g_strdup(it->watch->key);
    it->w = w;
    it->line = oid_line(pool, "unwatch", w->oid, NULL);
    push_locked(it);
}

static int fake_watch_check(G_GNUC_UNUSED struct rados_pool *pool,
                            struct rados_watch *w)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct watch *wt = w->priv[0];

    return wt && wt->registered ? 1 : -ENOTCONN;
}

static void fake_notify(struct rados_pool *pool, struct rados_notify *n)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct item *it = g_new0(struct item, 1);

    n->result = 0;
    n->reply = (struct rados_blob) { NULL, 0 };
    it->kind = ITEM_NOTIFY;
    it->pool = (struct pool *)pool;
    it->key = store_key(pool->id, pool->ns, n->oid);
    it->notify = notify_new_locked(it->key, it->pool->conn->client.gid,
                                   n->payload, n->payload_len);
    it->notify->n = n;
    it->line = notify_line(pool, n);
    push_locked(it);
}

static void fake_notify_release(struct rados_notify *n)
{
    g_free((void *)n->reply.data);
    n->reply = (struct rados_blob) { NULL, 0 };
}

static void fake_notify_ack(struct rados_pool *pool, const char *oid,
                            uint64_t notify_id, uint64_t cookie,
                            const void *payload, size_t len)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *line = oid_line(pool, "ack", oid, &len);
    struct fake_fault ignored;

    (void)note_locked(line, &ignored);
    if (conn_fenced(((struct pool *)pool)->conn)) {
        return;
    }
    for (guint i = 0; i < notifies->len; i++) {
        struct notify *nt = g_ptr_array_index(notifies, i);

        for (guint k = 0; nt->id == notify_id && k < nt->acks->len; k++) {
            struct ack *a = &g_array_index(nt->acks, struct ack, k);

            if (a->ours && a->cookie == cookie) {
                FAKE_CHECK(a->state != ACK_DONE, "a notify acked twice");
                if (a->state == ACK_NONE) {
                    a->state = ACK_DONE;
                    a->payload = g_byte_array_new();
                    if (len) {
                        g_byte_array_append(a->payload, payload, len);
                    }
                    notify_over_locked(nt);
                }
            }
        }
    }
    g_cond_broadcast(&changed);
}

unsigned fake_watchers(const char *oid)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    unsigned n = 0;

    for (guint i = 0; i < watches->len; i++) {
        const struct watch *wt = g_ptr_array_index(watches, i);

        n += wt->registered && g_str_equal(oid_of_key(wt->key), oid);
    }
    return n;
}

static void lose_watch_locked(struct watch *wt, int err)
{
    struct item *it;

    watch_off_locked(wt);
    it = g_new0(struct item, 1);
    it->kind = ITEM_FAILED;
    it->key = g_strdup(wt->key);
    it->watch = wt;
    it->w = wt->w;
    it->result = err;
    it->line = g_strdup_printf("failed %s", oid_of_key(wt->key));
    g_ptr_array_add(queue, it);
    g_cond_broadcast(&changed);
}

void fake_lose_watch(const char *oid, int err)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = 0; i < watches->len; i++) {
        struct watch *wt = g_ptr_array_index(watches, i);

        if (wt->registered && g_str_equal(oid_of_key(wt->key), oid)) {
            lose_watch_locked(wt, err);
        }
    }
}

void fake_reuse_handle(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    reuse_cookie = true;
}

void fake_forget_watch(const char *oid)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = 0; i < watches->len; i++) {
        struct watch *wt = g_ptr_array_index(watches, i);

        if (g_str_equal(oid_of_key(wt->key), oid)) {
            watch_off_locked(wt);
        }
    }
}

uint64_t fake_notify_send(const char *oid, const void *payload, size_t len)
{
    return fake_notify_send_from(oid, FAKE_STRANGER, payload, len);
}

uint64_t fake_notify_send_from(const char *oid, uint64_t gid,
                               const void *payload, size_t len)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    const struct fake_image *img = fake_image_find(oid);
    g_autofree char *key = NULL;
    struct notify *nt;

    FAKE_CHECK(img, "no image has that header");
    key = store_key(img->pool, img->ns, oid);
    nt = notify_new_locked(key, gid, payload, len);
    notify_spread_locked(nt);
    return nt->id;
}

static struct notify *notify_find_locked(uint64_t id)
{
    FAKE_CHECK(id && id <= notifies->len, "no such notify");
    return g_ptr_array_index(notifies, id - 1);
}

unsigned fake_notify_unacked(uint64_t id)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct notify *nt = notify_find_locked(id);
    unsigned n = 0;

    for (guint i = 0; i < nt->acks->len; i++) {
        n += g_array_index(nt->acks, struct ack, i).state == ACK_NONE;
    }
    return n;
}

/* Newest first: the @skip-th of those that we sent. */
uint64_t fake_notify_sent(int op, unsigned skip)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = notifies->len; i; i--) {
        const struct notify *nt = g_ptr_array_index(notifies, i - 1);

        if (nt->n && notify_op(nt->payload->data, nt->payload->len) == op &&
            !skip--) {
            return nt->id;
        }
    }
    return 0;
}

const uint8_t *fake_notify_payload(uint64_t id, size_t *ret_len)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    const struct notify *nt = notify_find_locked(id);

    *ret_len = nt->payload->len;
    return nt->payload->data;
}

int fake_notify_answer(uint64_t id)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    const struct notify *nt = notify_find_locked(id);
    int answer = FAKE_TIMEOUT;

    for (guint i = 0; i < nt->acks->len; i++) {
        const struct ack *a = &g_array_index(nt->acks, struct ack, i);
        struct fake_input in;
        struct fake_input body;

        if (!a->ours || a->state != ACK_DONE) {
            continue;
        }
        if (!a->payload->len) {
            answer = answer == FAKE_TIMEOUT ? FAKE_EMPTY : answer;
            continue;
        }
        in = (struct fake_input) { a->payload->data, a->payload->len, 0,
                                   false };
        body = get_block(&in);
        FAKE_CHECK(answer > 0, "two watchers answer");
        answer = (int32_t)get_le(&body, 4);
        FAKE_CHECK(!body.bad && answer <= 0, "an answer that nobody reads");
    }
    return answer;
}

void fake_wait_acked(uint64_t id)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct notify *nt = notify_find_locked(id);

    while (!nt->over) {
        g_cond_wait(&changed, &fake_mutex);
    }
}

void fake_require_owner(struct fake_image *img)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    img->require_owner = true;
}

void fake_require_snapc(uint64_t seq)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    required_seq = seq;
}

void fake_notify_expire(uint64_t id)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct notify *nt = notify_find_locked(id);

    for (guint i = 0; i < nt->acks->len; i++) {
        struct ack *a = &g_array_index(nt->acks, struct ack, i);

        if (a->state == ACK_NONE) {
            a->state = ACK_MISSED;
        }
    }
    notify_over_locked(nt);
}

/* ---- blocking calls ------------------------------------------------------ */

/*
 * Log @line.  1: go on, perhaps to fail with @f->err afterwards; else the
 * result.
 */
static int begin_locked(const struct conn *c, const char *line,
                        struct fake_fault *f)
{
    int r = note_call_locked(line, f);

    if (r < 0 && f->kind != FAKE_FAIL_AFTER) {
        return r;
    }
    return conn_fenced(c) ? -ESHUTDOWN : 1;
}

static int fake_snap_alloc(struct rados_pool *pool, uint64_t *ret_id)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *line = g_strdup_printf("snap_alloc %s", pool->name);
    struct fake_fault f;
    int r = begin_locked(((struct pool *)pool)->conn, line, &f);
    uint64_t id;

    if (r <= 0) {
        return r;
    }
    id = cls_next_snap();
    if (f.err == 0) {
        *ret_id = id;
    }
    return f.err;
}

static int fake_snap_release(struct rados_pool *pool, uint64_t id)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *line = g_strdup_printf("snap_release %s %"
                                            G_GUINT64_FORMAT, pool->name,
                                            (guint64)id);
    struct fake_fault f;
    int r = begin_locked(((struct pool *)pool)->conn, line, &f);

    if (r <= 0) {
        return r;
    }
    store_trim(pool->id, id);
    return f.err;
}

static void fence_locked(const char *address)
{
    fenced_add(address);
    for (guint i = 0; i < watches->len; i++) {
        struct watch *wt = g_ptr_array_index(watches, i);

        if (wt->registered && conn_fenced(wt->conn)) {
            lose_watch_locked(wt, -ENOTCONN);
        }
    }
}

static int fake_blocklist_add(struct rados_conn *conn, const char *address)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *line = g_strdup_printf("blocklist %s", address);
    struct fake_fault f;
    int r = begin_locked((struct conn *)conn, line, &f);

    if (r <= 0) {
        return r;
    }
    fence_locked(address);
    return f.err;
}

void fake_blocklist_self(void)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    for (guint i = 0; i < conns->len; i++) {
        fence_locked(((struct conn *)g_ptr_array_index(conns, i))->
                     client.address);
    }
}

bool fake_blocklisted(const char *address)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    return fenced(address);
}

/* ---- objects and images, for the test ------------------------------------ */

int64_t fake_object_size(int64_t pool, const char *ns, const char *oid,
                         uint64_t snap)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(pool, ns, oid);
    const GByteArray *data = store_data(store_find(key), snap);

    return data ? (int64_t)data->len : -ENOENT;
}

int64_t fake_object_read(int64_t pool, const char *ns, const char *oid,
                         uint64_t snap, uint64_t off, void *buf, size_t len)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(pool, ns, oid);
    const GByteArray *data = store_data(store_find(key), snap);

    if (!data) {
        return -ENOENT;
    }
    if (off >= data->len) {
        return 0;
    }
    len = MIN(len, data->len - off);
    memcpy(buf, data->data + off, len);
    return len;
}

void fake_object_put(int64_t pool, const char *ns, const char *oid,
                     const void *data, size_t len)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(pool, ns, oid);
    GByteArray *bytes = g_byte_array_new();

    if (len) {
        g_byte_array_append(bytes, data, len);
    }
    store_put(key, bytes);
}

void fake_object_remove(int64_t pool, const char *ns, const char *oid)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    g_autofree char *key = store_key(pool, ns, oid);

    store_put(key, NULL);
}

static void touch_locked(struct fake_image *img)
{
    g_autofree char *key = store_key(img->pool, img->ns, img->header);

    store_bump(store_get(key));
}

void fake_image_touch(struct fake_image *img)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    touch_locked(img);
}

void fake_image_set_size(struct fake_image *img, uint64_t size)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    img->size = size;
    img->overlap = MIN(img->overlap, size);
    map_resized(img);
    touch_locked(img);
}

uint64_t fake_image_snap_add(struct fake_image *img, const char *name)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    touch_locked(img);
    return cls_snap_add(img, name);
}

void fake_image_snap_remove(struct fake_image *img, uint64_t id)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    touch_locked(img);
    cls_snap_remove(img, id);
}

const struct rados_transport fake_rados = {
    .name = "fake",
    .conn_new = fake_conn_new,
    .conn_identity = fake_conn_identity,
    .conn_connect = fake_conn_connect,
    .conn_free = fake_conn_free,
    .conn_instance = fake_conn_instance,
    .conn_fsid = fake_conn_fsid,
    .conn_address = fake_conn_address,
    .conn_option = fake_conn_option,
    .pool_open = fake_pool_open,
    .pool_open_id = fake_pool_open_id,
    .pool_close = fake_pool_close,
    .submit = fake_submit,
    .cancel = fake_cancel,
    .op_release = fake_op_release,
    .watch_start = fake_watch_start,
    .watch_stop = fake_watch_stop,
    .watch_check = fake_watch_check,
    .notify = fake_notify,
    .notify_release = fake_notify_release,
    .notify_ack = fake_notify_ack,
    .snap_alloc = fake_snap_alloc,
    .snap_release = fake_snap_release,
    .blocklist = fake_blocklist_add,
};
