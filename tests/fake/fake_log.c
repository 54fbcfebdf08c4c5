/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A line of text for each request: the log, and the faults that go by it.
 */
#include "fake_queue.h"

#include <string.h>

static GPtrArray *log_lines;
static GArray *faults;          /* struct fake_fault, match owned */
static unsigned fault_hits;
static GPtrArray *held;         /* lines of calls that block */

/* ---- text ---------------------------------------------------------------- */

const char *oid_of_key(const char *key)
{
    return strchr(strchr(key, '/') + 1, '/') + 1;
}

static void add_place(GString *s, const struct rados_pool *p)
{
    if (p->id != FAKE_POOL_RBD || p->ns[0]) {
        g_string_append_printf(s, " in %s/%s", p->name, p->ns);
    }
}

size_t iov_total(const struct rados_step *s)
{
    size_t n = 0;

    for (int i = 0; i < s->n_iov; i++) {
        n += s->iov[i].iov_len;
    }
    return n;
}

/* Enough for all but bulk data. */
#define CALL_BYTES 256u

static void add_call(GString *s, const struct rados_step *step)
{
    size_t left = CALL_BYTES;

    g_string_append_printf(s, "%s.%s(", step->cls, step->method);
    for (int i = 0; i < step->n_iov; i++) {
        const uint8_t *p = step->iov[i].iov_base;

        for (size_t k = 0; k < step->iov[i].iov_len && left; k++, left--) {
            g_string_append_printf(s, "%02x", p[k]);
        }
    }
    g_string_append(s, left ? ")" : "...)");
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

char *op_line(const struct rados_pool *p, const struct rados_op *op)
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

char *oid_line(const struct rados_pool *p, const char *verb,
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

char *notify_line(const struct rados_pool *p,
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

bool matches(const char *match, const char *line)
{
    return g_pattern_match_simple(match, line);
}

/* ---- log and faults ------------------------------------------------------ */

/* Log the request; the fault it meets, if any, goes to @ret. */
bool note_locked(const char *line, struct fake_fault *ret)
{
    bool hit = false;

    g_ptr_array_add(log_lines, g_strdup(line));
    g_cond_broadcast(&fake_changed);
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

/* For calls that block, which may be held: 0 or the fault's number. */
int note_call_locked(const char *line, struct fake_fault *f)
{
    memset(f, 0, sizeof(*f));
    if (note_locked(line, f) && f->kind == FAKE_HOLD) {
        g_ptr_array_add(held, (gpointer)line);
        while (g_ptr_array_find(held, line, NULL)) {
            g_cond_wait(&fake_changed, &fake_mutex);
        }
    }
    return f->err;
}

void release_calls_locked(const char *match)
{
    for (guint i = held->len; i; i--) {
        if (matches(match, g_ptr_array_index(held, i - 1))) {
            g_ptr_array_remove_index(held, i - 1);
        }
    }
}

int note_call(const char *line)
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
        g_cond_wait(&fake_changed, &fake_mutex);
    }
}

void log_start(void)
{
    log_lines = g_ptr_array_new_with_free_func(g_free);
    faults = g_array_new(FALSE, TRUE, sizeof(struct fake_fault));
    fault_hits = 0;
    held = g_ptr_array_new();
}

void log_stop(void)
{
    FAKE_CHECK(!held->len, "a call is held");
    fake_faults_clear();
    g_array_unref(faults);
    g_ptr_array_unref(held);
    g_ptr_array_unref(log_lines);
}
