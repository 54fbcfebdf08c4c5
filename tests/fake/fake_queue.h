/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Inside the fake: what is on its way between the library and the store.
 * Functions named _locked are called under the fake's one lock.
 *
 *   fake_rados.c    connections, pools, ops, and calls that block
 *   fake_notify.c   watches and notifies
 *   fake_queue.c    the items both make, executed and completed in some order
 *   fake_log.c      their lines of text, the log and the faults
 *   fake_check.c    what a caller may not do
 */
#ifndef FAKE_QUEUE_H
#define FAKE_QUEUE_H

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

extern GCond fake_changed;      /* for all waits of tests and workers */
extern GPtrArray *fake_items;   /* struct item, in submit order */

/* ---- queue --------------------------------------------------------------- */

/* A request of the library: logged, may meet a fault. */
void push_locked(struct item *it);
/* Something that comes to the library; takes @line. */
struct item *queue_add_locked(enum item_kind kind, const char *key,
                              char *line);
/* Nothing comes to this watch any more. */
void queue_drop_locked(const struct watch *wt);

/* ---- text, log and faults ------------------------------------------------ */

void log_start(void);
void log_stop(void);
const char *oid_of_key(const char *key);
size_t iov_total(const struct rados_step *s);
char *op_line(const struct rados_pool *p, const struct rados_op *op);
char *oid_line(const struct rados_pool *p, const char *verb, const char *oid,
               const size_t *len);
char *notify_line(const struct rados_pool *p, const struct rados_notify *n);
bool matches(const char *match, const char *line);
/* Log the request; the fault it meets, if any, goes to @ret. */
bool note_locked(const char *line, struct fake_fault *ret);
/* For calls that block, which may be held: 0 or the fault's number. */
int note_call_locked(const char *line, struct fake_fault *f);
int note_call(const char *line);
void release_calls_locked(const char *match);

/* ---- watches and notifies ------------------------------------------------ */

void notify_start(void);
void notify_stop(void);
/* It has reached the object. */
void notify_spread_locked(struct notify *nt);
/* It is over: the reply. */
void notify_reply_locked(struct notify *nt);
void watch_on_locked(struct watch *wt);
/* No callback and no ack is expected of a watch that is gone. */
void watch_off_locked(struct watch *wt);
void watch_forget_locked(struct watch *wt);
/* Some connections have been shut out. */
void watches_fenced_locked(void);

void fake_watch_start(struct rados_pool *pool, struct rados_watch *w);
void fake_watch_stop(struct rados_pool *pool, struct rados_watch *w);
int fake_watch_check(struct rados_pool *pool, struct rados_watch *w);
void fake_notify(struct rados_pool *pool, struct rados_notify *n);
void fake_notify_release(struct rados_notify *n);
void fake_notify_ack(struct rados_pool *pool, const char *oid,
                     uint64_t notify_id, uint64_t cookie, const void *payload,
                     size_t len);

/* ---- connections and checks ---------------------------------------------- */

void conns_start(void);
void conns_stop(void);
bool conn_fenced(const struct conn *c);
void check_start(void);
void check_submit_locked(const struct rados_op *op);
void check_execute_locked(const struct item *it);

#endif
