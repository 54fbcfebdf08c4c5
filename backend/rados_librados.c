/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The seam of rados_op.h on librados.
 *
 * An op's life, with the state in its private memory:
 *
 *     submit -> rados_iov.cc builds and sends it
 *                  | sent                          | refused at once
 *     op_complete (librados thread)                |
 *                  | payload free    | still held  |
 *                  |                 v             v
 *                  |             the deferred list, watchdog thread
 *                  v                 v
 *                 done: from here on the op belongs to the caller again
 *
 * `gate' decides between a completion and a cancel that meet.  A cancel uses
 * librados' completion, which the completing side frees; so while a cancel is
 * at work a completion leaves the rest to it, and it passes the op on to the
 * deferred list, for the caller may hold a lock that done takes.
 *
 *     LIVE --cancel--> CANCELLING --back--> LIVE
 *     LIVE --complete--> OVER      CANCELLING --complete--> HANDED --> OVER
 *
 * The deferred list holds what must be called later and from elsewhere.  The
 * watchdog polls it in millisecond steps, wider ones while nothing moves, and
 * not at all when it is empty, which is nearly always.
 *
 * Submit must not block, but librados blocks a sender above a number of ops
 * and of bytes in flight.  Where nobody configured these limits they are
 * lifted: what is in flight is bounded by the guest's queues, and pinned
 * payload takes no memory.  Likewise one messenger and one finisher thread
 * serve a connection: each more costs wake-ups (docs/decisions/0005).
 *
 * Callbacks of a watch run on another librados thread than `started': a notify
 * may be reported while, or even before, started(0) is.  The cookie is valid by
 * then.  A start that fails and a stop report only after librados has drained
 * its callbacks.
 *
 * Settings come, in this order, from the file (or the default places, by
 * librados), CEPH_ARGS (librados, by itself) and the caller's options.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <rados/librados.h>
#include <string.h>
#include <unistd.h>

#include "conf_file.h"
#include "log.h"
#include "rados_iov.h"
#include "rados_op.h"
#include "timer.h"

#define LATE_WARN_US    G_GINT64_CONSTANT(1000000)
#define LATE_LOG_MS     10000u
#define POLL_MIN_MS     1u
#define POLL_MAX_MS     10u

struct conn {
    struct rados_conn base;
    rados_t cluster;
    char *user;
    char *identity;
    uint64_t instance;      /* these three: fixed after connect */
    char fsid[40];
    char address[128];
};

struct pool {
    struct rados_pool base;
    rados_t cluster;
    rados_ioctx_t io;
    char *name;
    char *ns;
};

/* ---- deferred calls ---------------------------------------------------- */

struct deferred {
    struct deferred *next;
    bool (*poll)(struct deferred *d);   /* true: done, @d is gone */
};

static void deferred_fire(struct ptimer *t);

static GMutex deferred_lock;
static struct deferred *deferred_list;          /* under deferred_lock */
static unsigned deferred_pause_ms;              /* under deferred_lock */
static struct ptimer deferred_timer = { .fire = deferred_fire };

static void defer(struct deferred *d, unsigned delay_ms)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&deferred_lock);

    d->next = deferred_list;
    deferred_list = d;
    deferred_pause_ms = POLL_MIN_MS;
    ptimer_arm(&deferred_timer, delay_ms);
}

static void deferred_fire(struct ptimer *t)
{
    struct deferred *list, *d;
    struct deferred *keep = NULL;
    struct deferred **tail = &keep;

    g_mutex_lock(&deferred_lock);
    list = deferred_list;
    deferred_list = NULL;
    g_mutex_unlock(&deferred_lock);

    while ((d = list) != NULL) {
        list = d->next;
        if (!d->poll(d)) {
            *tail = d;
            tail = &d->next;
        }
    }
    *tail = NULL;
    if (!keep) {
        return;
    }
    g_mutex_lock(&deferred_lock);
    if (!deferred_list) {   /* otherwise defer() has armed the timer */
        ptimer_arm(t, deferred_pause_ms);
        deferred_pause_ms = MIN(deferred_pause_ms * 2, POLL_MAX_MS);
    }
    *tail = deferred_list;
    deferred_list = keep;
    g_mutex_unlock(&deferred_lock);
}

/* ---- ops --------------------------------------------------------------- */

enum gate {
    GATE_LIVE,
    GATE_CANCELLING,
    GATE_HANDED,        /* completed while a cancel was at work */
    GATE_OVER,
};

struct op_state {
    struct deferred deferred;
    rados_completion_t completion;  /* NULL: refused at submit */
    gint64 held_since_us;           /* 0: results not fetched yet */
    enum gate gate;                 /* atomic */
    bool warned;
    struct rados_iov iov;
};

G_STATIC_ASSERT(sizeof(struct op_state) <= RADOS_OP_PRIV);

static struct op_state *op_state(struct rados_op *op)
{
    return (struct op_state *)op->priv;
}

static struct rados_op *op_of(struct deferred *d)
{
    return (struct rados_op *)((char *)d - offsetof(struct rados_op, priv) -
                               offsetof(struct op_state, deferred));
}

static bool gate_move(struct op_state *st, enum gate from, enum gate to)
{
    return __atomic_compare_exchange_n(&st->gate, &from, to, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void op_fetch_results(struct rados_op *op)
{
    struct op_state *st = op_state(op);
    int r = rados_aio_get_return_value(st->completion);

    op->version = rados_aio_get_version(st->completion);
    rados_aio_release(st->completion);
    op->result = r < 0 ? r : rados_iov_collect(&st->iov, op);
}

static void op_finish(struct rados_op *op)
{
    struct op_state *st = op_state(op);

    if (!st->iov.has_out) {
        rados_iov_drop(&st->iov);
    }
    op->done(op);
}

static void op_log_late(struct op_state *st, const struct rados_op *op)
{
    static struct plog_limit limit;
    unsigned held_back;
    gint64 waits_us = g_get_monotonic_time() - st->held_since_us;

    if (st->warned || waits_us < LATE_WARN_US) {
        return;
    }
    st->warned = true;
    if (plog_limit_pass(&limit, LATE_LOG_MS, &held_back)) {
        plog(PINRBD_LOG_INFO, "object '%s': write of %" PRIu64 " bytes has its "
             "result (%d), but librados still refers to the payload after "
             "%" PRId64 " ms (%u more such)", op->oid, op->pinned_bytes,
             op->result, (int64_t)(waits_us / 1000), held_back);
    }
}

static bool op_poll(struct deferred *d)
{
    struct rados_op *op = op_of(d);
    struct op_state *st = op_state(op);

    if (st->completion && !st->held_since_us) {
        op_fetch_results(op);
        st->held_since_us = g_get_monotonic_time();
    }
    if (rados_iov_held(&st->iov, op)) {
        op->late = true;
        op_log_late(st, op);
        return false;
    }
    op_finish(op);
    return true;
}

static void op_complete(G_GNUC_UNUSED rados_completion_t c, void *opaque)
{
    struct rados_op *op = opaque;
    struct op_state *st = op_state(op);

    while (!gate_move(st, GATE_LIVE, GATE_OVER)) {
        if (gate_move(st, GATE_CANCELLING, GATE_HANDED)) {
            return;
        }
    }
    op_fetch_results(op);
    if (G_UNLIKELY(rados_iov_held(&st->iov, op))) {
        op->late = true;
        st->held_since_us = g_get_monotonic_time();
        defer(&st->deferred, POLL_MIN_MS);
        return;
    }
    op_finish(op);
}

static void op_submit(struct rados_pool *pool, struct rados_op *op)
{
    struct pool *p = (struct pool *)pool;
    struct op_state *st = op_state(op);
    rados_completion_t c;
    int r;

    op->result = 0;
    op->version = 0;
    op->pinned_bytes = 0;
    op->copied_bytes = 0;
    op->late = false;
    for (unsigned i = 0; i < op->n_steps; i++) {
        op->steps[i].rval = 0;
        op->steps[i].out_len = 0;
        op->steps[i].out = (struct rados_blob){ 0 };
    }
    st->deferred.poll = op_poll;
    st->held_since_us = 0;
    st->gate = GATE_LIVE;
    st->warned = false;

    rados_aio_create_completion2(op, op_complete, &c);
    st->completion = c;
    r = rados_iov_submit(&st->iov, p->io, c, op);
    if (r < 0) {
        rados_aio_release(c);
        __atomic_store_n(&st->gate, GATE_OVER, __ATOMIC_RELEASE);
        st->completion = NULL;
        op->result = r;
        defer(&st->deferred, 0);
    }
}

static void op_cancel(struct rados_pool *pool, struct rados_op *op)
{
    struct pool *p = (struct pool *)pool;
    struct op_state *st = op_state(op);

    if (!gate_move(st, GATE_LIVE, GATE_CANCELLING)) {
        return;
    }
    rados_aio_cancel(p->io, st->completion);
    if (!gate_move(st, GATE_CANCELLING, GATE_LIVE)) {
        __atomic_store_n(&st->gate, GATE_OVER, __ATOMIC_RELEASE);
        defer(&st->deferred, 0);
    }
}

static void op_release(struct rados_op *op)
{
    rados_iov_drop(&op_state(op)->iov);
}

/* ---- watches and notifies ---------------------------------------------- */

/*
 * Kept in a watch's private memory.  The cookie is the address of librados'
 * own state, which an unwatch frees: between started(0) and watch_stop it is
 * good for all calls, later only as a number.
 */
struct watch_state {
    struct pool *pool;
    rados_completion_t completion;
    int result;             /* of start or stop, while callbacks drain */
    bool stopping;
};

G_STATIC_ASSERT(sizeof(struct watch_state) <=
                sizeof(((struct rados_watch *)0)->priv));

struct notify_state {
    rados_completion_t completion;
    char *reply;
    size_t reply_len;
};

G_STATIC_ASSERT(sizeof(struct notify_state) <=
                sizeof(((struct rados_notify *)0)->priv));

/* A call librados refused at once, on its way to its callback. */
struct refused {
    struct deferred deferred;
    void (*fn)(void *arg, int result);
    void *arg;
    int result;
};

static bool refused_poll(struct deferred *d)
{
    g_autofree struct refused *r = (struct refused *)d;

    r->fn(r->arg, r->result);
    return true;
}

static void refuse(void (*fn)(void *arg, int result), void *arg, int result)
{
    struct refused *r = g_new0(struct refused, 1);

    r->deferred.poll = refused_poll;
    r->fn = fn;
    r->arg = arg;
    r->result = result;
    defer(&r->deferred, 0);
}

static int completion_result(rados_completion_t *c)
{
    int r = rados_aio_get_return_value(*c);

    rados_aio_release(*c);
    *c = NULL;
    return MIN(r, 0);
}

static struct watch_state *watch_state(struct rados_watch *w)
{
    return (struct watch_state *)w->priv;
}

static void watch_ended(void *arg, G_GNUC_UNUSED int result)
{
    struct rados_watch *w = arg;
    struct watch_state *st = watch_state(w);

    if (st->stopping) {
        w->stopped(w, st->result);
    } else {
        w->started(w, st->result);
    }
}

static void watch_drained_cb(G_GNUC_UNUSED rados_completion_t c, void *arg)
{
    watch_ended(arg, completion_result(&watch_state(arg)->completion));
}

/* The watch is no more; report it behind the last callback. */
static void watch_drain(void *arg, int result)
{
    struct rados_watch *w = arg;
    struct watch_state *st = watch_state(w);
    int r;

    st->result = result;
    rados_aio_create_completion2(w, watch_drained_cb, &st->completion);
    r = rados_aio_watch_flush(st->pool->cluster, st->completion);
    if (r < 0) {
        rados_aio_release(st->completion);
        refuse(watch_ended, w, r);
    }
}

static void watch_started_cb(G_GNUC_UNUSED rados_completion_t c, void *arg)
{
    struct rados_watch *w = arg;
    int r = completion_result(&watch_state(w)->completion);

    if (r < 0) {
        watch_drain(w, r);
    } else {
        w->started(w, 0);
    }
}

static void watch_stopped_cb(G_GNUC_UNUSED rados_completion_t c, void *arg)
{
    watch_drain(arg, completion_result(&watch_state(arg)->completion));
}

static void watch_notified_cb(void *arg, uint64_t notify_id,
                              G_GNUC_UNUSED uint64_t cookie,
                              uint64_t notifier, void *data, size_t len)
{
    struct rados_watch *w = arg;

    w->notified(w, notify_id, notifier, data, len);
}

static void watch_failed_cb(void *arg, G_GNUC_UNUSED uint64_t cookie, int err)
{
    struct rados_watch *w = arg;

    w->failed(w, err);
}

static void watch_start(struct rados_pool *pool, struct rados_watch *w)
{
    struct watch_state *st = watch_state(w);
    int r;

    *st = (struct watch_state){ .pool = (struct pool *)pool };
    rados_aio_create_completion2(w, watch_started_cb, &st->completion);
    r = rados_aio_watch2(st->pool->io, w->oid, st->completion, &w->cookie,
                         watch_notified_cb, watch_failed_cb, w->timeout_s, w);
    if (r < 0) {
        rados_aio_release(st->completion);
        refuse(watch_drain, w, r);
    }
}

static void watch_stop(G_GNUC_UNUSED struct rados_pool *pool,
                       struct rados_watch *w)
{
    struct watch_state *st = watch_state(w);
    int r;

    st->stopping = true;
    rados_aio_create_completion2(w, watch_stopped_cb, &st->completion);
    r = rados_aio_unwatch(st->pool->io, w->cookie, st->completion);
    if (r < 0) {
        rados_aio_release(st->completion);
        refuse(watch_drain, w, r);
    }
}

static int watch_check(struct rados_pool *pool, struct rados_watch *w)
{
    return rados_watch_check(((struct pool *)pool)->io, w->cookie);
}

static void notify_ended(void *arg, int result)
{
    struct rados_notify *n = arg;

    n->result = result;
    n->done(n);
}

static void notify_cb(G_GNUC_UNUSED rados_completion_t c, void *arg)
{
    struct rados_notify *n = arg;
    struct notify_state *st = (struct notify_state *)n->priv;

    /* filled in for -ETIMEDOUT too: who acked, and who did not */
    n->reply.data = (uint8_t *)st->reply;
    n->reply.len = st->reply_len;
    notify_ended(n, completion_result(&st->completion));
}

static void notify(struct rados_pool *pool, struct rados_notify *n)
{
    struct notify_state *st = (struct notify_state *)n->priv;
    int r;

    *st = (struct notify_state){ 0 };
    n->reply = (struct rados_blob){ 0 };
    rados_aio_create_completion2(n, notify_cb, &st->completion);
    r = rados_aio_notify(((struct pool *)pool)->io, n->oid, st->completion,
                         n->payload, n->payload_len, n->timeout_ms,
                         &st->reply, &st->reply_len);
    if (r < 0) {
        rados_aio_release(st->completion);
        refuse(notify_ended, n, r);
    }
}

static void notify_release(struct rados_notify *n)
{
    rados_buffer_free((char *)n->reply.data);
    n->reply = (struct rados_blob){ 0 };
}

static void notify_ack(struct rados_pool *pool, const char *oid,
                       uint64_t notify_id, uint64_t cookie,
                       const void *payload, size_t len)
{
    /* an ack that is lost is one that comes too late: the notifier copes */
    (void)rados_notify_ack(((struct pool *)pool)->io, oid, notify_id, cookie,
                           payload, len);
}

/* ---- settings ---------------------------------------------------------- */

#define CONF_FILE_MAX   (1u << 20)
#define CONF_VALUE_MAX  (1u << 20)

/* Name of each option that somebody set, and how it was written. */
struct named {
    GHashTable *raw;        /* option name -> text, both owned */
    const char *user;       /* "client.NAME" */
};

static void named_put(struct named *names, const char *key, const char *value)
{
    g_hash_table_replace(names->raw, g_strdup(key), g_strdup(value));
}

static void named_put_cb(void *opaque, const char *section, const char *key,
                         const char *value, G_GNUC_UNUSED unsigned line)
{
    struct named *names = opaque;

    if (!*section || !strcmp(section, "global") ||
        !strcmp(section, "client") || !strcmp(section, names->user)) {
        named_put(names, key, value);
    }
}

static int file_read(const char *path, GByteArray *ret)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t buf[4096];
    ssize_t n;
    int r = 0;

    if (fd < 0) {
        return -errno;
    }
    do {
        n = read(fd, buf, sizeof(buf));
        if (n < 0 && errno != EINTR) {
            r = -errno;
        } else if (n > 0) {
            g_byte_array_append(ret, buf, n);
            r = ret->len > CONF_FILE_MAX ? -EFBIG : 0;
        }
    } while (n && r == 0);
    close(fd);
    return r;
}

static int names_from_file(struct named *names, const char *path)
{
    g_autoptr(GByteArray) text = g_byte_array_new();
    int r = file_read(path, text);

    if (r < 0) {
        return r;
    }
    return conf_file_parse((const char *)text->data, text->len, named_put_cb,
                           names, NULL);
}

/*
 * Names from all the places where librados may look.  It takes the first file
 * it can read; a name too many does no harm, since values come from librados.
 */
static void names_from_default_files(struct named *names)
{
    const char *env = g_getenv("CEPH_CONF");
    g_autofree char *list = env && *env ? g_strdup(env) :
        g_strdup_printf("/etc/ceph/ceph.conf,%s/.ceph/ceph.conf,ceph.conf",
                        g_get_home_dir());
    g_auto(GStrv) paths = g_strsplit_set(list, ",; \t", -1);

    for (char **path = paths; *path; path++) {
        (void)names_from_file(names, *path);
    }
}

static char *option_text(rados_t cluster, const char *key)
{
    g_autofree char *buf = NULL;
    size_t size = 256;
    int r;

    do {
        size *= 2;
        buf = g_realloc(buf, size);
        r = rados_conf_get(cluster, key, buf, size);
    } while (r == -ENAMETOOLONG && size < CONF_VALUE_MAX);
    return r < 0 ? NULL : g_steal_pointer(&buf);
}

static bool option_is_secret(const char *key)
{
    return g_str_has_suffix(key, "key") || strstr(key, "secret") ||
           strstr(key, "password");
}

static int name_compare(gconstpointer a, gconstpointer b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/*
 * Two connections with equal texts reach the same cluster as the same client
 * in the same way.  Values are the effective ones, from whatever source;
 * $cctid names the instance itself, so such a value counts as it was written.
 */
static char *identity_text(rados_t cluster, const struct named *names)
{
    static const char *const always[] = {
        "auth_client_required", "auth_supported", "client_mount_timeout",
        "fsid", "key", "keyfile", "keyring", "mon_dns_srv_name", "mon_host",
        "monmap", "ms_client_mode", "ms_mon_client_mode",
        "rados_mon_op_timeout", "rados_osd_op_timeout",
    };
    g_autoptr(GPtrArray) keys = g_ptr_array_new();
    g_autoptr(GString) text = g_string_new(names->user);
    GHashTableIter iter;
    gpointer key;

    g_hash_table_iter_init(&iter, names->raw);
    while (g_hash_table_iter_next(&iter, &key, NULL)) {
        g_ptr_array_add(keys, key);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(always); i++) {
        if (!g_hash_table_contains(names->raw, always[i])) {
            g_ptr_array_add(keys, (gpointer)always[i]);
        }
    }
    g_ptr_array_sort(keys, name_compare);
    g_string_append_c(text, '\n');
    for (guint i = 0; i < keys->len; i++) {
        const char *k = keys->pdata[i];
        const char *raw = g_hash_table_lookup(names->raw, k);
        g_autofree char *value = option_text(cluster, k);

        if (!value) {
            continue;       /* no option of librados: it has no effect */
        }
        if (raw && strstr(raw, "cctid")) {
            g_free(value);
            value = g_strdup(raw);
        }
        if (*value && option_is_secret(k)) {
            g_autofree char *hash =
                g_compute_checksum_for_string(G_CHECKSUM_SHA256, value, -1);

            g_string_append_printf(text, "%s=sha256:%s\n", k, hash);
        } else {
            g_string_append_printf(text, "%s=%s\n", k, value);
        }
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static int read_conf(struct conn *c, const struct pinrbd_cluster_options *o,
                     struct named *names, struct pinrbd_error *reterr)
{
    int r;

    if (!o->conf) {
        names_from_default_files(names);
        (void)rados_conf_read_file(c->cluster, NULL);
        return 0;
    }
    r = names_from_file(names, o->conf);
    if (r == 0) {
        r = rados_conf_read_file(c->cluster, o->conf);
    }
    if (r < 0) {
        return perror_set(reterr, r, "error reading conf file %s: %s",
                          o->conf, g_strerror(-r));
    }
    return 0;
}

static int set_option(struct conn *c, const struct pinrbd_kv *kv,
                      struct named *names, struct pinrbd_error *reterr)
{
    g_autofree char *name = g_ascii_strdown(kv->key, -1);
    int r = rados_conf_set(c->cluster, kv->key, kv->value);

    if (r == -ENOENT || (r < 0 && option_is_secret(name))) {
        return perror_set(reterr, r, "invalid conf option %s: %s", kv->key,
                          g_strerror(-r));
    }
    if (r < 0) {
        return perror_set(reterr, r, "invalid conf option %s: value '%s': %s",
                          kv->key, kv->value, g_strerror(-r));
    }
    named_put(names, g_strdelimit(name, " -", '_'), kv->value);
    return 0;
}

/* Our value where nobody chose one; see the top of the file. */
static void prefer(struct conn *c, const struct named *names, const char *key,
                   const char *standard, const char *ours)
{
    g_autofree char *value = option_text(c->cluster, key);

    if (!g_hash_table_contains(names->raw, key) &&
        g_strcmp0(value, standard) == 0) {
        (void)rados_conf_set(c->cluster, key, ours);
    }
}

/* ---- connections and pools --------------------------------------------- */

static void conn_free(struct rados_conn *conn)
{
    struct conn *c = (struct conn *)conn;

    if (!c) {
        return;
    }
    if (c->cluster) {
        rados_shutdown(c->cluster);
    }
    g_free(c->user);
    g_free(c->identity);
    g_free(c);
}

/* What waits for a monitor waits no longer than a connect does. */
static void limit_mon_wait(struct conn *c, const struct named *names)
{
    g_autofree char *timeout = option_text(c->cluster, "client_mount_timeout");

    if (timeout) {
        prefer(c, names, "rados_mon_op_timeout", "0", timeout);
    }
}

static int conn_new(const struct pinrbd_cluster_options *o,
                    struct rados_conn **ret, struct pinrbd_error *reterr)
{
    struct conn *c = g_new0(struct conn, 1);
    g_autoptr(GHashTable) raw =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    struct named names = { .raw = raw };
    int r;

    c->base.t = &rados_librados;
    c->user = g_strdup_printf("client.%s",
                              o->user && *o->user ? o->user : "admin");
    names.user = c->user;
    r = rados_create2(&c->cluster, "ceph", c->user, 0);
    if (r < 0) {
        c->cluster = NULL;
        perror_set(reterr, r, "cannot set up a Ceph client as %s: %s",
                   c->user, g_strerror(-r));
        goto fail;
    }
    r = read_conf(c, o, &names, reterr);
    if (r < 0) {
        goto fail;
    }
    for (size_t i = 0; i < o->n_options; i++) {
        r = set_option(c, &o->options[i], &names, reterr);
        if (r < 0) {
            goto fail;
        }
    }
    prefer(c, &names, "objecter_inflight_ops", "1024", "0");
    prefer(c, &names, "objecter_inflight_op_bytes", "104857600", "0");
    prefer(c, &names, "ms_async_op_threads", "3", "1");
    prefer(c, &names, "librados_thread_count", "2", "1");
    limit_mon_wait(c, &names);
    c->identity = identity_text(c->cluster, &names);
    *ret = &c->base;
    return 0;

fail:
    conn_free(&c->base);
    return r;
}

static const char *conn_identity(struct rados_conn *conn)
{
    return ((struct conn *)conn)->identity;
}

static int conn_connect(struct rados_conn *conn, struct pinrbd_error *reterr)
{
    struct conn *c = (struct conn *)conn;
    char *address;
    int r = rados_connect(c->cluster);

    if (r >= 0) {
        r = rados_cluster_fsid(c->cluster, c->fsid, sizeof(c->fsid));
    }
    if (r >= 0) {
        r = rados_getaddrs(c->cluster, &address);
    }
    if (r < 0) {
        return perror_set(reterr, r,
                          "cannot connect to the Ceph cluster as %s: %s",
                          c->user, g_strerror(-r));
    }
    g_strlcpy(c->address, address, sizeof(c->address));
    rados_buffer_free(address);
    c->instance = rados_get_instance_id(c->cluster);
    return 0;
}

static uint64_t conn_instance(struct rados_conn *conn)
{
    return ((struct conn *)conn)->instance;
}

static const char *conn_user(struct rados_conn *conn)
{
    return ((struct conn *)conn)->user;
}

static const char *conn_fsid(struct rados_conn *conn)
{
    return ((struct conn *)conn)->fsid;
}

static const char *conn_address(struct rados_conn *conn)
{
    return ((struct conn *)conn)->address;
}

static int conn_option(struct rados_conn *conn, const char *key, char *buf,
                       size_t len)
{
    return MIN(rados_conf_get(((struct conn *)conn)->cluster, key, buf, len),
               0);
}

static void pool_close(struct rados_pool *pool)
{
    struct pool *p = (struct pool *)pool;

    if (!p) {
        return;
    }
    rados_ioctx_destroy(p->io);
    g_free(p->name);
    g_free(p->ns);
    g_free(p);
}

/* Takes @io and @name over. */
static struct rados_pool *pool_new(struct conn *c, rados_ioctx_t io,
                                   char *name, const char *ns, uint64_t snap)
{
    struct pool *p = g_new0(struct pool, 1);

    p->cluster = c->cluster;
    p->io = io;
    p->name = name;
    p->ns = g_strdup(ns ? ns : "");
    p->base.t = &rados_librados;
    p->base.id = rados_ioctx_get_id(io);
    p->base.snap = snap;
    p->base.name = p->name;
    p->base.ns = p->ns;
    if (*p->ns) {
        rados_ioctx_set_namespace(io, p->ns);
    }
    if (snap != RADOS_NOSNAP) {
        rados_ioctx_snap_set_read(io, snap);
    }
    return &p->base;
}

/* Is the pool @name, or with that id if it is NULL, in the map we have? */
static bool pool_in_map(struct conn *c, const char *name, int64_t id)
{
    int room = rados_pool_list(c->cluster, NULL, 0);
    g_autofree char *list = room > 0 ? g_try_malloc0(room) : NULL;

    /* a list that has grown meanwhile is cut, with its end marked as ever */
    if (!list || rados_pool_list(c->cluster, list, room) < 0) {
        return false;
    }
    for (const char *p = list; p < list + room && *p; p += strlen(p) + 1) {
        if (name ? !strcmp(p, name)
                 : rados_pool_lookup(c->cluster, p) == id) {
            return true;
        }
    }
    return false;
}

/*
 * For a pool that it does not know librados asks for the newest map, and waits
 * for ever.  So make sure first, in bounded time, that somebody answers; that
 * we may not ask this question is an answer.
 */
static int pool_expect(struct conn *c, const char *name, int64_t id)
{
    const char *cmd = "{\"prefix\": \"version\"}";
    int r;

    if (pool_in_map(c, name, id)) {
        return 0;
    }
    r = rados_mon_command(c->cluster, &cmd, 1, "", 0, NULL, NULL, NULL, NULL);
    return r == -ETIMEDOUT ? r : 0;
}

static int pool_open(struct rados_conn *conn, const char *name, const char *ns,
                     struct rados_pool **ret)
{
    struct conn *c = (struct conn *)conn;
    rados_ioctx_t io;
    int r = pool_expect(c, name, -1);

    if (r == 0) {
        r = rados_ioctx_create(c->cluster, name, &io);
    }

    if (r < 0) {
        return r;
    }
    *ret = pool_new(c, io, g_strdup(name), ns, RADOS_NOSNAP);
    return 0;
}

static int pool_open_id(struct rados_conn *conn, int64_t id, const char *ns,
                        uint64_t snap, struct rados_pool **ret)
{
    struct conn *c = (struct conn *)conn;
    rados_ioctx_t io;
    char name[256];
    int r = pool_expect(c, NULL, id);

    if (r == 0) {
        r = rados_ioctx_create2(c->cluster, id, &io);
    }
    if (r < 0) {
        return r;
    }
    r = rados_ioctx_get_pool_name(io, name, sizeof(name));
    if (r < 0) {
        rados_ioctx_destroy(io);
        return r;
    }
    *ret = pool_new(c, io, g_strdup(name), ns, snap);
    return 0;
}

/* ---- snapshot ids and shutting out -------------------------------------- */

static int snap_alloc(struct rados_pool *pool, uint64_t *ret_id)
{
    rados_snap_t id;
    int r = rados_ioctx_selfmanaged_snap_create(((struct pool *)pool)->io,
                                                &id);

    if (r == 0) {
        *ret_id = id;
    }
    return r;
}

static int snap_release(struct rados_pool *pool, uint64_t id)
{
    return rados_ioctx_selfmanaged_snap_remove(((struct pool *)pool)->io, id);
}

static int blocklist(struct rados_conn *conn, const char *address)
{
    struct conn *c = (struct conn *)conn;
    g_autofree char *copy = g_strdup(address);
    int r = rados_blocklist_add(c->cluster, copy, 0);

    /* What an OSD executes for us from now on, it executes knowing this. */
    return r < 0 ? r : rados_wait_for_latest_osdmap(c->cluster);
}

const struct rados_transport rados_librados = {
    .name = "librados",
    .conn_new = conn_new,
    .conn_identity = conn_identity,
    .conn_connect = conn_connect,
    .conn_free = conn_free,
    .conn_instance = conn_instance,
    .conn_user = conn_user,
    .conn_fsid = conn_fsid,
    .conn_address = conn_address,
    .conn_option = conn_option,
    .pool_open = pool_open,
    .pool_open_id = pool_open_id,
    .pool_close = pool_close,
    .submit = op_submit,
    .cancel = op_cancel,
    .op_release = op_release,
    .watch_start = watch_start,
    .watch_stop = watch_stop,
    .watch_check = watch_check,
    .notify = notify,
    .notify_release = notify_release,
    .notify_ack = notify_ack,
    .snap_alloc = snap_alloc,
    .snap_release = snap_release,
    .blocklist = blocklist,
};
