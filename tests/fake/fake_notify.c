/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Watches and notifies.
 *
 * A notify that reaches its object becomes an item for each of our watches
 * and is acked by the peers at once; it is over when our watches have acked
 * it as well, or are gone, or the test says that its time is up.  Its record
 * stays until the end, so that tests can look at it.
 */
#include "fake_queue.h"

#include <errno.h>

static GPtrArray *watches;      /* struct watch */
static GPtrArray *notifies;     /* struct notify, in the order of their ids */
static uint64_t next_cookie;
static bool reuse_cookie;

/* ---- notifies ------------------------------------------------------------ */

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
        it = queue_add_locked(ITEM_NOTIFY_DONE, nt->key,
                              g_strdup_printf("notify_done %s",
                                              oid_of_key(nt->key)));
        it->notify = nt;
    }
    g_cond_broadcast(&fake_changed);
}

static struct notify *notify_new_locked(const char *key, uint64_t sender,
                                        const void *payload, size_t len)
{
    struct notify *nt = g_new0(struct notify, 1);

    nt->id = notifies->len + 1;
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

void notify_spread_locked(struct notify *nt)
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
        it = queue_add_locked(ITEM_NOTIFIED, nt->key,
                              g_strdup_printf("notified %s",
                                              oid_of_key(nt->key)));
        it->watch = wt;
        it->notify = nt;
    }
    notify_peers_locked(nt);
    notify_over_locked(nt);
    g_cond_broadcast(&fake_changed);
}

void notify_reply_locked(struct notify *nt)
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

/* ---- watches ------------------------------------------------------------- */

void watch_on_locked(struct watch *wt)
{
    next_cookie += !reuse_cookie;
    reuse_cookie = false;
    wt->registered = true;
    wt->cookie = next_cookie;
    wt->w->cookie = next_cookie;
}

/* No callback and no ack is expected of a watch that is gone. */
void watch_off_locked(struct watch *wt)
{
    wt->registered = false;
    queue_drop_locked(wt);
    for (guint i = 0; i < notifies->len; i++) {
        struct notify *nt = g_ptr_array_index(notifies, i);
        bool missed = false;    /* else it may not have reached the object */

        for (guint k = 0; k < nt->acks->len; k++) {
            struct ack *a = &g_array_index(nt->acks, struct ack, k);

            if (a->ours && a->cookie == wt->cookie && a->state == ACK_NONE) {
                a->state = ACK_MISSED;
                missed = true;
            }
        }
        if (missed) {
            notify_over_locked(nt);
        }
    }
}

void watch_forget_locked(struct watch *wt)
{
    g_ptr_array_remove(watches, wt);
    g_free(wt->key);
    g_free(wt);
}

static void lose_watch_locked(struct watch *wt, int err)
{
    struct item *it;

    watch_off_locked(wt);
    it = queue_add_locked(ITEM_FAILED, wt->key,
                          g_strdup_printf("failed %s", oid_of_key(wt->key)));
    it->watch = wt;
    it->w = wt->w;
    it->result = err;
}

void watches_fenced_locked(void)
{
    for (guint i = 0; i < watches->len; i++) {
        struct watch *wt = g_ptr_array_index(watches, i);

        if (wt->registered && conn_fenced(wt->conn)) {
            lose_watch_locked(wt, -ENOTCONN);
        }
    }
}

/* ---- the transport ------------------------------------------------------- */

void fake_watch_start(struct rados_pool *pool, struct rados_watch *w)
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

void fake_watch_stop(struct rados_pool *pool, struct rados_watch *w)
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

int fake_watch_check(G_GNUC_UNUSED struct rados_pool *pool,
                            struct rados_watch *w)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct watch *wt = w->priv[0];

    return wt && wt->registered ? 1 : -ENOTCONN;
}

void fake_notify(struct rados_pool *pool, struct rados_notify *n)
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

void fake_notify_release(struct rados_notify *n)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);

    g_free((void *)n->reply.data);
    n->reply = (struct rados_blob) { NULL, 0 };
}

void fake_notify_ack(struct rados_pool *pool, const char *oid,
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
    g_cond_broadcast(&fake_changed);
}

/* ---- the test's hands ---------------------------------------------------- */

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
        g_cond_wait(&fake_changed, &fake_mutex);
    }
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

void notify_start(void)
{
    watches = g_ptr_array_new();
    notifies = g_ptr_array_new_with_free_func(notify_free);
    next_cookie = 0x7f0000001000;
    reuse_cookie = false;
}

void notify_stop(void)
{
    FAKE_CHECK(!watches->len, "a watch is left");
    g_ptr_array_unref(watches);
    g_ptr_array_unref(notifies);
}
