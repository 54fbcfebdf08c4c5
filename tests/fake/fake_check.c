/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a caller may not do: break the rules of rados_op.h, and those without
 * which an image would lose data though every op succeeds.  It ends the
 * process with a message that starts with "fake:".
 */
#include "fake_queue.h"

#include <string.h>

static uint64_t required_seq;

/* ---- ops by themselves --------------------------------------------------- */

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

void check_submit_locked(const struct rados_op *op)
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
        FAKE_CHECK(!i || sc->ids[i] < sc->ids[i - 1],
                   "ids that do not descend");
    }
    FAKE_CHECK(!write || !g_str_has_prefix(op->oid, "rbd_data.") ||
               (sc ? sc->seq : 0) >= required_seq || only_copies_up(op),
               "a write with an old snapshot context");
    FAKE_CHECK(!updates_head_map(op) || asserts_lock(op),
               "an update of a map that another client may have taken");
    for (guint i = 0; i < fake_items->len; i++) {
        FAKE_CHECK(((struct item *)fake_items->pdata[i])->op != op,
                   "an op submitted twice");
    }
}

/* ---- what the test asked for --------------------------------------------- */

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
void check_execute_locked(const struct item *it)
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
    FAKE_CHECK(state == 1 || (state == 2 && (has_step(it->op, RADOS_REMOVE) ||
                                             only_copies_up(it->op))),
               "a write that the object map does not know of");
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

void check_start(void)
{
    required_seq = 0;
}
