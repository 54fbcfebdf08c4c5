/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Watchers of a header that belong to other clients.  They ack at once, by
 * default as librbd does when it does not own the lock: HeaderUpdate and
 * Quiesce with 0, all else without a word.
 */
#include "fake_store.h"

#include <errno.h>

#define OP_HEADER_UPDATE 3
#define OP_QUIESCE 18

struct peer {
    char *key;
    uint64_t gid;
    uint64_t handle;
    GHashTable *answers;        /* op -> answer */
};

static GPtrArray *peers;

static void peer_free(gpointer p)
{
    struct peer *peer = p;

    g_hash_table_unref(peer->answers);
    g_free(peer->key);
    g_free(peer);
}

void peer_init(void)
{
    peers = g_ptr_array_new_with_free_func(peer_free);
}

void peer_clear(void)
{
    g_clear_pointer(&peers, g_ptr_array_unref);
}

int notify_op(const void *payload, size_t len)
{
    struct fake_input in = { payload, len, 0, false };
    struct fake_input body;
    int op;

    if (!len) {
        return OP_HEADER_UPDATE;
    }
    body = get_block(&in);
    op = get_le(&body, 4);
    return body.bad ? -1 : op;
}

static int answer_of(const struct peer *p, int op)
{
    gpointer answer;

    if (g_hash_table_lookup_extended(p->answers, GINT_TO_POINTER(op), NULL,
                                     &answer)) {
        return GPOINTER_TO_INT(answer);
    }
    return op == OP_HEADER_UPDATE || op == OP_QUIESCE ? 0 : FAKE_EMPTY;
}

GArray *peer_answers(const char *key, int op)
{
    GArray *acks = g_array_new(FALSE, TRUE, sizeof(struct peer_ack));

    for (guint i = 0; i < peers->len; i++) {
        const struct peer *p = g_ptr_array_index(peers, i);
        int answer = answer_of(p, op);
        struct peer_ack a = { .gid = p->gid, .handle = p->handle };

        if (!g_str_equal(p->key, key)) {
            continue;
        }
        a.yields = answer == FAKE_YIELD;
        a.missed = answer == FAKE_TIMEOUT;
        if (!a.missed) {
            a.payload = g_byte_array_new();
        }
        if (a.yields || answer <= 0) {
            GByteArray *body = g_byte_array_new();

            put_le(body, a.yields ? 0 : answer, 4);
            put_block(a.payload, body);
        }
        g_array_append_val(acks, a);
    }
    return acks;
}

static char *key_of_header(const char *oid)
{
    const struct fake_image *img = fake_image_find(oid);

    FAKE_CHECK(img, "no image has that header");
    return store_key(img->pool, img->ns, oid);
}

static struct peer *find_locked(const char *oid, uint64_t gid, guint *ret_i)
{
    g_autofree char *key = key_of_header(oid);

    for (guint i = 0; i < peers->len; i++) {
        struct peer *p = g_ptr_array_index(peers, i);

        if (p->gid == gid && g_str_equal(p->key, key)) {
            *ret_i = i;
            return p;
        }
    }
    g_error("fake: no such peer");
}

void fake_peer_add(const char *oid, uint64_t gid, uint64_t handle)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    struct peer *p = g_new0(struct peer, 1);

    p->key = key_of_header(oid);
    p->gid = gid;
    p->handle = handle;
    p->answers = g_hash_table_new(NULL, NULL);
    g_ptr_array_add(peers, p);
}

void fake_peer_answer(const char *oid, uint64_t gid, int op, int answer)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    guint i;

    g_hash_table_insert(find_locked(oid, gid, &i)->answers,
                        GINT_TO_POINTER(op), GINT_TO_POINTER(answer));
}

void fake_peer_remove(const char *oid, uint64_t gid)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&fake_mutex);
    guint i;

    (void)find_locked(oid, gid, &i);
    g_ptr_array_remove_index(peers, i);
}
