/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See fake_bytes.h. */
#include "fake_bytes.h"

#include <string.h>

void put_le(GByteArray *a, uint64_t v, unsigned n)
{
    while (n--) {
        uint8_t b = v;

        g_byte_array_append(a, &b, 1);
        v >>= 8;
    }
}

void put_bytes(GByteArray *a, const GByteArray *bytes)
{
    if (bytes->len) {
        g_byte_array_append(a, bytes->data, bytes->len);
    }
}

void put_string(GByteArray *a, const char *s)
{
    put_le(a, strlen(s), 4);
    g_byte_array_append(a, (const uint8_t *)s, strlen(s));
}

void put_block_v(GByteArray *a, unsigned v, GByteArray *body)
{
    put_le(a, v, 1);
    put_le(a, 1, 1);
    put_le(a, body->len, 4);
    put_bytes(a, body);
    g_byte_array_unref(body);
}

void put_block(GByteArray *a, GByteArray *body)
{
    put_block_v(a, 1, body);
}

const uint8_t *get_bytes(struct fake_input *in, size_t len)
{
    const uint8_t *p = in->p + in->pos;

    if (in->bad || in->len - in->pos < len) {
        in->bad = true;
        return NULL;
    }
    in->pos += len;
    return p;
}

uint64_t get_le(struct fake_input *in, unsigned n)
{
    const uint8_t *p = get_bytes(in, n);
    uint64_t v = 0;

    for (unsigned i = 0; p && i < n; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

void get_string(struct fake_input *in, char *buf, size_t size)
{
    size_t len = get_le(in, 4);
    const uint8_t *p = get_bytes(in, len);

    buf[0] = '\0';
    if (!p || len >= size) {
        in->bad = true;
        return;
    }
    memcpy(buf, p, len);
    buf[len] = '\0';
}

struct fake_input get_block(struct fake_input *in)
{
    struct fake_input body = { 0 };

    (void)get_le(in, 1);
    in->bad = get_le(in, 1) > 1 || in->bad;
    body.len = get_le(in, 4);
    body.p = get_bytes(in, body.len);
    body.bad = !body.p;
    return body;
}

uint32_t fake_crc32c(uint32_t crc, const uint8_t *p, size_t len)
{
    while (len--) {
        crc ^= *p++;
        for (int i = 0; i < 8; i++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
        }
    }
    return crc;
}
