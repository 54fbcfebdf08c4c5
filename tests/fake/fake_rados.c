/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The transport: connections, pools, ops, and the calls that block.  The last
 * take effect at once, on the thread that calls; all else is queued.
 */
#include "fake_queue.h"

#include <errno.h>
#include <string.h>

#define FIRST_INSTANCE 4100

static GPtrArray *conns;        /* struct conn */
static uint64_t next_instance;

/* ---- connections --------------------------------------------------------- */

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

static const char *fake_conn_user(G_GNUC_UNUSED struct rados_conn *c)
{
    return "client.admin";
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

bool conn_fenced(const struct conn *c)
{
    return fenced(c->client.address);
}

void conns_start(void)
{
    conns = g_ptr_array_new();
    next_instance = FIRST_INSTANCE;
}

void conns_stop(void)
{
    FAKE_CHECK(!conns->len, "a connection is left");
    g_ptr_array_unref(conns);
}

/* ---- pools --------------------------------------------------------------- */

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
    for (guint i = 0; i < fake_items->len; i++) {
        const struct item *it = g_ptr_array_index(fake_items, i);

        FAKE_CHECK(it->pool != p, "pool_close with requests on their way");
    }
    p->conn->pools--;
    g_mutex_unlock(&fake_mutex);
    g_free((char *)p->base.name);
    g_free((char *)p->base.ns);
    g_free(p);
}

/* ---- ops ----------------------------------------------------------------- */

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

    check_submit_locked(op);
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

    for (guint i = 0; i < fake_items->len; i++) {
        struct item *it = g_ptr_array_index(fake_items, i);

        if (it->op == op) {
            it->cancelled = true;
            g_cond_broadcast(&fake_changed);
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

/* ---- calls that block ---------------------------------------------------- */

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
    watches_fenced_locked();
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

/* ---- the table ----------------------------------------------------------- */

const struct rados_transport fake_rados = {
    .name = "fake",
    .conn_new = fake_conn_new,
    .conn_identity = fake_conn_identity,
    .conn_connect = fake_conn_connect,
    .conn_free = fake_conn_free,
    .conn_instance = fake_conn_instance,
    .conn_user = fake_conn_user,
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
