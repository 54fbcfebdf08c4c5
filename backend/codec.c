/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The cursors.  Reading: one place checks bounds (pdec_bytes), everything else
 * is built on it.  Writing: likewise (penc_bytes).  Values are assembled byte
 * by byte, so alignment and host order do not matter.
 */
#include "codec.h"

#include <string.h>

void pdec_init(struct pdec *d, const void *data, size_t len)
{
    static const uint8_t nothing;

    d->p = len ? data : &nothing;
    d->end = d->p + len;
    d->bad = false;
}

size_t pdec_left(const struct pdec *d)
{
    return d->end - d->p;
}

bool pdec_ok(const struct pdec *d)
{
    return !d->bad;
}

void pdec_fail(struct pdec *d)
{
    d->bad = true;
    d->p = d->end;
}

const void *pdec_bytes(struct pdec *d, size_t len)
{
    const uint8_t *p = d->p;

    if (len > pdec_left(d)) {
        pdec_fail(d);
        return NULL;
    }
    d->p += len;
    return p;
}

static uint64_t dec_le(struct pdec *d, unsigned n)
{
    const uint8_t *p = pdec_bytes(d, n);
    uint64_t v = 0;

    while (p && n--) {
        v = v << 8 | p[n];
    }
    return v;
}

uint8_t pdec_u8(struct pdec *d)
{
    return dec_le(d, 1);
}

uint16_t pdec_u16(struct pdec *d)
{
    return dec_le(d, 2);
}

uint32_t pdec_u32(struct pdec *d)
{
    return dec_le(d, 4);
}

uint64_t pdec_u64(struct pdec *d)
{
    return dec_le(d, 8);
}

int64_t pdec_i64(struct pdec *d)
{
    return (int64_t)dec_le(d, 8);
}

const char *pdec_blob(struct pdec *d, size_t *ret_len)
{
    uint32_t len = pdec_u32(d);
    const char *p = pdec_bytes(d, len);

    *ret_len = p ? len : 0;
    return p;
}

void pdec_text(struct pdec *d, char *buf, size_t size)
{
    size_t len;
    const char *p = pdec_blob(d, &len);

    if (!p || len >= size || memchr(p, 0, len)) {
        pdec_fail(d);
        len = 0;
    }
    if (len) {
        memcpy(buf, p, len);
    }
    buf[len] = '\0';
}

uint32_t pdec_count(struct pdec *d, size_t min_size)
{
    uint32_t n = pdec_u32(d);

    if (n > pdec_left(d) / min_size) {
        pdec_fail(d);
        return 0;
    }
    return n;
}

uint8_t pdec_block(struct pdec *d, uint8_t known, struct pdec *body)
{
    uint8_t version = pdec_u8(d);
    uint8_t compat = pdec_u8(d);
    uint32_t len = pdec_u32(d);
    const void *p;

    if (compat > known) {
        pdec_fail(d);
    }
    p = pdec_bytes(d, len);
    pdec_init(body, p, p ? len : 0);
    body->bad = d->bad;
    return d->bad ? 0 : version;
}

void penc_init(struct penc *e, void *buf, size_t size)
{
    e->start = e->p = buf;
    e->end = e->start + size;
    e->bad = false;
}

size_t penc_len(const struct penc *e)
{
    return e->p - e->start;
}

void penc_bytes(struct penc *e, const void *data, size_t len)
{
    if (len > (size_t)(e->end - e->p)) {
        e->bad = true;
        return;
    }
    if (len) {
        memcpy(e->p, data, len);
        e->p += len;
    }
}

static void enc_le(struct penc *e, uint64_t v, unsigned n)
{
    uint8_t b[8];

    for (unsigned i = 0; i < n; i++) {
        b[i] = v >> (8 * i);
    }
    penc_bytes(e, b, n);
}

void penc_u8(struct penc *e, uint8_t v)
{
    enc_le(e, v, 1);
}

void penc_u32(struct penc *e, uint32_t v)
{
    enc_le(e, v, 4);
}

void penc_u64(struct penc *e, uint64_t v)
{
    enc_le(e, v, 8);
}

void penc_string(struct penc *e, const char *s)
{
    size_t len = strlen(s);

    penc_u32(e, len);
    penc_bytes(e, s, len);
}

size_t penc_block(struct penc *e, uint8_t version, uint8_t compat)
{
    penc_u8(e, version);
    penc_u8(e, compat);
    penc_u32(e, 0);
    return penc_len(e);
}

void penc_block_end(struct penc *e, size_t block)
{
    size_t len = penc_len(e) - block;

    if (e->bad) {
        return;
    }
    for (unsigned i = 0; i < 4; i++) {
        e->start[block - 4 + i] = len >> (8 * i);
    }
}
