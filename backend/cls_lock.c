/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Encodings of class lock, versions 1 of everything, as the OSDs of 16.2 to
 * 20.2 take and give them.  rados_lock_exclusive() of librados cannot set the
 * tag that librbd's lock on the header carries, hence the class calls.
 *
 * An owner's address comes as a binary sockaddr; it is printed in the form
 * that the blocklist wants: IPv6 in brackets, the port (0 for clients), and
 * the nonce, which tells two clients of one host apart.
 */
#include "cls_lock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "codec.h"
#include "rados_sync.h"

#define LOCK_NAME "rbd_lock"
#define LOCK_EXCLUSIVE 1
#define ENTITY_CLIENT 8
#define WIRE_AF_INET 2
#define WIRE_AF_INET6 10

static void put_name(struct penc *e, const char *cookie, const char *tag)
{
    penc_string(e, LOCK_NAME);
    penc_u8(e, LOCK_EXCLUSIVE);
    penc_string(e, cookie);
    penc_string(e, tag);
}

static int call(struct rados_pool *pool, const char *oid, const char *method,
                struct penc *e, size_t block, gint64 deadline_us)
{
    penc_block_end(e, block);
    return rados_call_sync(pool, oid, "lock", method, e->start, penc_len(e),
                           deadline_us);
}

int lock_take(struct rados_pool *pool, const char *oid, const char *cookie,
              const char *tag, gint64 deadline_us)
{
    uint8_t buf[256];
    struct penc e;
    size_t block;

    penc_init(&e, buf, sizeof(buf));
    block = penc_block(&e, 1, 1);
    put_name(&e, cookie, tag);
    penc_string(&e, "");        /* description */
    penc_u64(&e, 0);            /* duration: until it is dropped */
    penc_u8(&e, 0);             /* flags */
    return call(pool, oid, "lock", &e, block, deadline_us);
}

int lock_drop(struct rados_pool *pool, const char *oid, const char *cookie,
              gint64 deadline_us)
{
    uint8_t buf[128];
    struct penc e;
    size_t block;

    penc_init(&e, buf, sizeof(buf));
    block = penc_block(&e, 1, 1);
    penc_string(&e, LOCK_NAME);
    penc_string(&e, cookie);
    return call(pool, oid, "unlock", &e, block, deadline_us);
}

int lock_break(struct rados_pool *pool, const char *oid,
               const struct lock_owner *owner, gint64 deadline_us)
{
    uint8_t buf[384];
    struct penc e;
    size_t block;

    penc_init(&e, buf, sizeof(buf));
    block = penc_block(&e, 1, 1);
    penc_string(&e, LOCK_NAME);
    penc_u8(&e, ENTITY_CLIENT);
    penc_u64(&e, owner->gid);
    penc_string(&e, owner->cookie);
    return call(pool, oid, "break_lock", &e, block, deadline_us);
}

int lock_set_cookie(struct rados_pool *pool, const char *oid,
                    const char *cookie, const char *tag,
                    const char *new_cookie, gint64 deadline_us)
{
    uint8_t buf[256];
    struct penc e;
    size_t block;

    penc_init(&e, buf, sizeof(buf));
    block = penc_block(&e, 1, 1);
    put_name(&e, cookie, tag);
    penc_string(&e, new_cookie);
    return call(pool, oid, "set_cookie", &e, block, deadline_us);
}

void lock_assert_step(struct rados_step *step, struct iovec *iov,
                      uint8_t buf[LOCK_ASSERT_MAX], const char *cookie,
                      const char *tag)
{
    struct penc e;
    size_t block;

    penc_init(&e, buf, LOCK_ASSERT_MAX);
    block = penc_block(&e, 1, 1);
    put_name(&e, cookie, tag);
    penc_block_end(&e, block);
    *iov = (struct iovec) { buf, penc_len(&e) };
    *step = (struct rados_step) {
        .kind = RADOS_CALL, .cls = "lock", .method = "assert_locked",
        .iov = iov, .n_iov = 1,
    };
}

int lock_assert(struct rados_pool *pool, const char *oid, const char *cookie,
                const char *tag, gint64 deadline_us)
{
    uint8_t buf[LOCK_ASSERT_MAX];
    struct iovec iov;
    struct rados_step step;
    struct rados_op op = { .oid = oid, .steps = &step, .n_steps = 1 };
    int r;

    lock_assert_step(&step, &iov, buf, cookie, tag);
    r = rados_op_sync(pool, &op, deadline_us);
    rados_op_done_with(pool, &op);
    return r;
}

/* ---- get_info ----------------------------------------------------------- */

static uint16_t big_endian_16(const uint8_t *p)
{
    return p[0] << 8 | p[1];
}

/* An address of messenger 1 or 2; an unknown family leaves @buf empty. */
static void decode_address(struct pdec *d, char *buf, size_t size)
{
    char ip[INET6_ADDRSTRLEN];
    struct pdec body;
    const uint8_t *sa;
    uint32_t nonce, len;
    uint16_t family;

    buf[0] = '\0';
    if (pdec_u8(d) != 1) {
        pdec_fail(d);           /* the encoding before 10.2 */
        return;
    }
    pdec_block(d, 1, &body);
    (void)pdec_u32(&body);      /* messenger */
    nonce = pdec_u32(&body);
    len = pdec_u32(&body);
    if (len < 2) {
        return;                 /* blank */
    }
    family = pdec_u16(&body);
    sa = pdec_bytes(&body, len - 2);
    if (!sa) {
        pdec_fail(d);
    } else if (family == WIRE_AF_INET && len >= 8 &&
               inet_ntop(AF_INET, sa + 2, ip, sizeof(ip))) {
        snprintf(buf, size, "%s:%u/%" PRIu32, ip, big_endian_16(sa), nonce);
    } else if (family == WIRE_AF_INET6 && len >= 24 &&
               inet_ntop(AF_INET6, sa + 6, ip, sizeof(ip))) {
        snprintf(buf, size, "[%s]:%u/%" PRIu32, ip, big_endian_16(sa), nonce);
    }
}

/* `auto NUMBER' */
static bool parse_cookie(const char *cookie, uint64_t *ret)
{
    size_t n = strlen(LOCK_COOKIE_PREFIX);

    return g_str_has_prefix(cookie, LOCK_COOKIE_PREFIX) &&
           g_ascii_string_to_unsigned(cookie + n, 10, 0, UINT64_MAX, ret,
                                      NULL);
}

int lock_decode_owner(const void *data, size_t len, struct lock_owner *ret)
{
    struct lock_owner o = { 0 };
    struct pdec d, body, id, info;
    uint32_t n;
    uint8_t entity, type;

    pdec_init(&d, data, len);
    pdec_block(&d, 1, &body);
    n = pdec_count(&body, 12);
    for (uint32_t i = 0; i < n; i++) {
        struct lock_owner next = { 0 };

        pdec_block(&body, 1, &id);
        entity = pdec_u8(&id);
        next.gid = pdec_u64(&id);
        pdec_text(&id, next.cookie, sizeof(next.cookie));
        pdec_block(&body, 1, &info);
        (void)pdec_u64(&info);  /* expiration */
        decode_address(&info, next.address, sizeof(next.address));
        if (!pdec_ok(&id) || !pdec_ok(&info)) {
            return -EBADMSG;
        }
        next.internal = entity == ENTITY_CLIENT && next.address[0] &&
                        parse_cookie(next.cookie, &next.handle);
        if (!i) {
            o = next;
        }
    }
    type = pdec_u8(&body);
    pdec_text(&body, o.tag, sizeof(o.tag));
    if (!pdec_ok(&body) || !pdec_ok(&d)) {
        return -EBADMSG;
    }
    o.internal = o.internal && n == 1 && type == LOCK_EXCLUSIVE &&
                 !strcmp(o.tag, LOCK_TAG);
    *ret = o;
    return n ? 1 : 0;
}

int lock_get_owner(struct rados_pool *pool, const char *oid,
                   gint64 deadline_us, struct lock_owner *ret)
{
    uint8_t buf[64];
    struct penc e;
    size_t block;
    struct iovec iov;
    struct rados_step step = {
        .kind = RADOS_CALL, .cls = "lock", .method = "get_info",
        .iov = &iov, .n_iov = 1,
    };
    struct rados_op op = { .oid = oid, .steps = &step, .n_steps = 1 };
    int r;

    penc_init(&e, buf, sizeof(buf));
    block = penc_block(&e, 1, 1);
    penc_string(&e, LOCK_NAME);
    penc_block_end(&e, block);
    iov = (struct iovec) { buf, penc_len(&e) };
    r = rados_op_sync(pool, &op, deadline_us);
    if (r == 0) {
        r = lock_decode_owner(step.out.data, step.out.len, ret);
    }
    rados_op_done_with(pool, &op);
    return r;
}
