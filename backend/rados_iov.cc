// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Ops over foreign memory, for rados_librados.c.
 *
 * librados' C write calls copy their payload; its C++ calls take a buffer
 * list, and a buffer of that list may be a window on memory of ours.  Such a
 * window is reference counted, but nobody tells when the count drops, so each
 * op keeps its own list (a slot) beside the one it hands down.  The payload is
 * free when no count is higher than what the slot holds.  That is nearly always
 * so when the completion comes; when a connection still had the message
 * queued (the op was sent again elsewhere, or cancelled) it is later.
 *
 * A buffer caches the checksum of the last range it was asked for, and foreign
 * memory changes behind its back: guests do modify pages that are being
 * written.  The OSD then drops the connection because of a wrong checksum, and
 * with the cached one every new attempt would fail in the same way, for ever.
 * So a buffer lives for one op only, and is never shown as one range: segments
 * of memory are windows on a buffer that spans them all (at most 2 GiB; nothing
 * looks at what lies between), the first of them in two halves.  The ranges
 * push each other out of that cache of one entry, and each attempt sums up what
 * is there now.
 *
 * Reads come back in memory that librados owns, and are copied once into the
 * caller's.  Output of class calls stays in its slot until the op is released.
 *
 * Slots are built in the op's private memory, and in one heap block only for
 * an op with more of them than fit.  No exception leaves this file.
 */
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include <rados/librados.hpp>

#include "rados_iov.h"

using ceph::bufferlist;
using librados::snap_t;

namespace {

// A completion of the C interface seen from C++: they are the same object
// below.  The union keeps the destructor, which would release it, from running.
union completion_ref {
    librados::AioCompletion c;

    explicit completion_ref(rados_completion_t completion)
        : c(static_cast<librados::AioCompletionImpl *>(completion)) {}
    ~completion_ref() {}
};

constexpr size_t slots_inline = RADOS_IOV_ROOM / sizeof(bufferlist);

static_assert(slots_inline >= 4, "the usual ops do not touch the heap");
static_assert(alignof(bufferlist) <= 16, "slots fit the room's alignment");

bufferlist *slot_at(const struct rados_iov *v, unsigned i)
{
    return static_cast<bufferlist *>(v->slots) + i;
}

bufferlist &slot_new(struct rados_iov *v)
{
    return *new (slot_at(v, v->n_slots++)) bufferlist();
}

bool is_payload(const struct rados_step *s)
{
    return s->kind == RADOS_WRITE || s->kind == RADOS_WRITE_FULL ||
           s->kind == RADOS_WRITESAME;
}

bool has_blob(const struct rados_step *s)
{
    return s->kind == RADOS_CALL || s->kind == RADOS_CHECKSUM;
}

bool needs_slot(const struct rados_op *op, const struct rados_step *s)
{
    if (op->flags & RADOS_OP_WRITE) {
        return !(op->flags & RADOS_OP_COPY) && is_payload(s);
    }
    return s->kind == RADOS_READ || has_blob(s);
}

int slots_alloc(struct rados_iov *v, const struct rados_op *op)
{
    size_t n = 0;

    for (unsigned i = 0; i < op->n_steps; i++) {
        n += needs_slot(op, &op->steps[i]);
    }
    v->slots = n <= slots_inline ? v->room
        : ::operator new(n * sizeof(bufferlist), std::nothrow);
    return v->slots ? 0 : -ENOMEM;
}

// Bytes of the step's iovec, -EMSGSIZE when that is more than an op can carry.
int64_t iov_bytes(const struct rados_step *s)
{
    uint64_t n = 0;

    for (int i = 0; i < s->n_iov; i++) {
        if (s->iov[i].iov_len > INT_MAX - n) {
            return -EMSGSIZE;
        }
        n += s->iov[i].iov_len;
    }
    return n;
}

void append_copy(bufferlist &bl, const struct rados_step *s, size_t bytes)
{
    if (!bytes) {
        return;
    }
    ceph::bufferptr p(static_cast<unsigned>(bytes));
    char *to = p.c_str();

    for (int i = 0; i < s->n_iov; i++) {
        if (s->iov[i].iov_len) {
            memcpy(to, s->iov[i].iov_base, s->iov[i].iov_len);
            to += s->iov[i].iov_len;
        }
    }
    bl.push_back(std::move(p));
}

// Segments of @s from @i on that one buffer can span, and how many of them are
// not empty.
struct span {
    int n_iov = 0;
    unsigned n_windows = 0;
    uintptr_t begin = UINTPTR_MAX;
    uintptr_t end = 0;
};

span span_from(const struct rados_step *s, int i)
{
    span sp;

    for (; i < s->n_iov; i++, sp.n_iov++) {
        uintptr_t at = reinterpret_cast<uintptr_t>(s->iov[i].iov_base);
        uintptr_t begin = std::min(sp.begin, at);
        uintptr_t end = std::max(sp.end, at + s->iov[i].iov_len);

        if (!s->iov[i].iov_len) {
            continue;
        }
        if (end - begin > INT_MAX) {
            break;      // iov_bytes() saw that each alone is less
        }
        sp.begin = begin;
        sp.end = end;
        sp.n_windows++;
    }
    return sp;
}

// @payload gets the windows, @slot one reference to each buffer behind them.
void append_windows(bufferlist &payload, bufferlist &slot,
                    const struct rados_step *s)
{
    for (int i = 0; i < s->n_iov;) {
        span sp = span_from(s, i);
        int end = i + sp.n_iov;

        if (!sp.n_windows) {
            break;
        }
        ceph::bufferptr p(ceph::buffer::create_static(
            sp.end - sp.begin, reinterpret_cast<char *>(sp.begin)));
        bool first = true;

        for (; i < end; i++) {
            unsigned off =
                reinterpret_cast<uintptr_t>(s->iov[i].iov_base) - sp.begin;
            unsigned len = s->iov[i].iov_len;
            unsigned half = first ? len / 2 : 0;

            if (half) {
                payload.push_back(ceph::bufferptr(p, off, half));
            }
            if (len) {
                payload.push_back(ceph::bufferptr(p, off + half, len - half));
                first = false;
            }
        }
        slot.push_back(std::move(p));
    }
}

int add_payload(struct rados_iov *v, librados::ObjectWriteOperation &w,
                struct rados_op *op, const struct rados_step *s)
{
    bufferlist bl;
    int64_t bytes = iov_bytes(s);

    if (bytes < 0) {
        return bytes;
    }
    if (op->flags & RADOS_OP_COPY) {
        append_copy(bl, s, bytes);
        op->copied_bytes += bytes;
    } else {
        append_windows(bl, slot_new(v), s);
        op->pinned_bytes += bytes;
    }
    if (s->kind == RADOS_WRITE) {
        w.write(s->off, bl);
    } else if (s->kind == RADOS_WRITE_FULL) {
        w.write_full(bl);
    } else {
        w.writesame(s->off, s->len, bl);
    }
    return 0;
}

int build_write(struct rados_iov *v, librados::ObjectWriteOperation &w,
                struct rados_op *op)
{
    for (unsigned i = 0; i < op->n_steps; i++) {
        struct rados_step *s = &op->steps[i];
        int64_t r = 0;

        switch (s->kind) {
        case RADOS_WRITE:
        case RADOS_WRITE_FULL:
        case RADOS_WRITESAME:
            r = add_payload(v, w, op, s);
            break;
        case RADOS_CALL: {
            bufferlist in;

            r = iov_bytes(s);
            if (r >= 0) {
                append_copy(in, s, r);
                w.exec(s->cls, s->method, in);
            }
            break;
        }
        case RADOS_ASSERT_EXISTS:
            w.assert_exists();
            break;
        case RADOS_ASSERT_VERSION:
            w.assert_version(s->off);
            break;
        case RADOS_CREATE:
            w.create(s->exclusive);
            break;
        case RADOS_ZERO:
            w.zero(s->off, s->len);
            break;
        case RADOS_TRUNCATE:
            w.truncate(s->off);
            break;
        case RADOS_REMOVE:
            w.remove();
            break;
        case RADOS_ALLOC_HINT:
            w.set_alloc_hint2(s->off, s->len, 0);
            break;
        case RADOS_ROLLBACK:
            w.selfmanaged_snap_rollback(s->off);
            break;
        case RADOS_READ:
        case RADOS_STAT:
        case RADOS_CHECKSUM:
            r = -EINVAL;
            break;
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

int build_read(struct rados_iov *v, librados::ObjectReadOperation &rd,
               struct rados_op *op)
{
    for (unsigned i = 0; i < op->n_steps; i++) {
        struct rados_step *s = &op->steps[i];

        switch (s->kind) {
        case RADOS_READ:
            rd.read(s->off, s->len, &slot_new(v), &s->rval);
            break;
        case RADOS_STAT:
            rd.stat(&s->out_len, nullptr, &s->rval);
            break;
        case RADOS_CHECKSUM: {
            // the seed is part of the input: all ones, as Ceph's own users
            bufferlist seed;

            seed.append("\xff\xff\xff\xff", 4);
            rd.checksum(LIBRADOS_CHECKSUM_TYPE_CRC32C, seed, s->off, s->len,
                        0, &slot_new(v), &s->rval);
            break;
        }
        case RADOS_CALL: {
            bufferlist in;
            int64_t bytes = iov_bytes(s);

            if (bytes < 0) {
                return bytes;
            }
            append_copy(in, s, bytes);
            rd.exec(s->cls, s->method, in, &slot_new(v), &s->rval);
            break;
        }
        case RADOS_ASSERT_EXISTS:
            rd.assert_exists();
            break;
        case RADOS_ASSERT_VERSION:
            rd.assert_version(s->off);
            break;
        default:
            return -EINVAL;
        }
        v->has_out |= has_blob(s);
    }
    return 0;
}

// Both keep the name and the snapshot ids in memory that the thread reuses.
const std::string &thread_oid(const struct rados_op *op)
{
    static thread_local std::string oid;

    return oid.assign(op->oid);
}

std::vector<snap_t> &thread_snaps(const struct rados_snapc *snapc)
{
    static thread_local std::vector<snap_t> snaps;

    snaps.assign(snapc->ids, snapc->ids + snapc->n);
    return snaps;
}

int send_write(struct rados_iov *v, librados::IoCtx &io,
               librados::AioCompletion *c, struct rados_op *op)
{
    librados::ObjectWriteOperation w;
    const struct rados_snapc *snapc = op->snapc;
    int flags = librados::OPERATION_NOFLAG;
    int r = build_write(v, w, op);

    if (r < 0) {
        return r;
    }
    if (op->flags & RADOS_OP_ORDERSNAP) {
        flags |= librados::OPERATION_ORDERSNAP;
    }
    if (op->flags & RADOS_OP_FULL_TRY) {
        flags |= librados::OPERATION_FULL_TRY;
    }
    if (snapc) {
        return io.aio_operate(thread_oid(op), c, &w, snapc->seq,
                              thread_snaps(snapc), flags, nullptr);
    }
    return io.aio_operate(thread_oid(op), c, &w, flags);
}

int send_read(struct rados_iov *v, librados::IoCtx &io,
              librados::AioCompletion *c, struct rados_op *op)
{
    librados::ObjectReadOperation rd;
    int r = build_read(v, rd, op);

    if (r < 0) {
        return r;
    }
    return io.aio_operate(thread_oid(op), c, &rd, librados::OPERATION_NOFLAG,
                          nullptr);
}

void scatter(const bufferlist &bl, struct rados_op *op, struct rados_step *s)
{
    int to = 0;
    size_t to_off = 0;

    s->out_len = 0;
    for (const auto &p : bl.buffers()) {
        size_t from = 0;

        while (from < p.length() && to < s->n_iov) {
            size_t n = std::min<size_t>(p.length() - from,
                                        s->iov[to].iov_len - to_off);

            if (n) {
                memcpy(static_cast<char *>(s->iov[to].iov_base) + to_off,
                       p.c_str() + from, n);
            }
            from += n;
            to_off += n;
            s->out_len += n;
            if (to_off == s->iov[to].iov_len) {
                to++;
                to_off = 0;
            }
        }
    }
    op->copied_bytes += s->out_len;
}

} // namespace

int rados_iov_submit(struct rados_iov *v, rados_ioctx_t io,
                     rados_completion_t completion, struct rados_op *op)
{
    completion_ref ref(completion);
    int r;

    v->n_slots = 0;
    v->has_out = false;
    r = slots_alloc(v, op);
    if (r < 0) {
        return r;
    }
    // librados allocates before it queues: after a throw nothing was sent
    try {
        librados::IoCtx ctx;

        librados::IoCtx::from_rados_ioctx_t(io, ctx);
        r = op->flags & RADOS_OP_WRITE ? send_write(v, ctx, &ref.c, op)
                                       : send_read(v, ctx, &ref.c, op);
    } catch (const std::bad_alloc &) {
        r = -ENOMEM;
    } catch (...) {
        r = -EIO;
    }
    if (r < 0) {
        rados_iov_drop(v);
        op->pinned_bytes = 0;
        op->copied_bytes = 0;
    }
    return r;
}

int rados_iov_collect(struct rados_iov *v, struct rados_op *op)
{
    unsigned slot = 0;

    if (op->flags & RADOS_OP_WRITE) {
        return 0;
    }
    try {
        for (unsigned i = 0; i < op->n_steps; i++) {
            struct rados_step *s = &op->steps[i];

            if (s->kind == RADOS_READ) {
                scatter(*slot_at(v, slot++), op, s);
            } else if (has_blob(s)) {
                bufferlist &bl = *slot_at(v, slot++);

                s->out.len = bl.length();
                s->out.data = reinterpret_cast<uint8_t *>(bl.c_str());
            }
        }
    } catch (...) {
        return -ENOMEM;     // flattening an output is all that allocates
    }
    return 0;
}

bool rados_iov_held(const struct rados_iov *v, const struct rados_op *op)
{
    if (!(op->flags & RADOS_OP_WRITE)) {
        return false;
    }
    for (unsigned i = 0; i < v->n_slots; i++) {
        for (const auto &p : slot_at(v, i)->buffers()) {
            if (p.raw_nref() != 1) {
                return true;
            }
        }
    }
    return false;
}

void rados_iov_drop(struct rados_iov *v)
{
    while (v->n_slots) {
        slot_at(v, --v->n_slots)->~bufferlist();
    }
    if (v->slots != v->room) {
        ::operator delete(v->slots);
    }
    v->slots = v->room;
}
