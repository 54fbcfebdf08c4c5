/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Iovecs are cut, never copied: the pieces go on naming the guest's memory.
 */
#include "iov.h"

#include <string.h>

uint64_t iov_bytes(const struct iovec *iov, int n)
{
    uint64_t sum = 0;

    for (int i = 0; i < n; i++) {
        if (iov[i].iov_len > UINT64_MAX - sum) {
            return UINT64_MAX;
        }
        sum += iov[i].iov_len;
    }
    return sum;
}

struct iovec iov_take(struct iov_cursor *c, size_t len)
{
    struct iovec piece = { NULL, 0 };

    while (c->n && c->off == c->iov->iov_len) {
        c->iov++;
        c->n--;
        c->off = 0;
    }
    if (c->n) {
        size_t left = c->iov->iov_len - c->off;

        piece.iov_base = (char *)c->iov->iov_base + c->off;
        piece.iov_len = left < len ? left : len;
        c->off += piece.iov_len;
    }
    return piece;
}

void iov_skip(struct iov_cursor *c, uint64_t len)
{
    while (len) {
        struct iovec piece = iov_take(c, len);

        if (!piece.iov_len) {
            break;
        }
        len -= piece.iov_len;
    }
}

bool bytes_are_zero(const uint8_t *data, size_t len)
{
    return !len || (!data[0] && !memcmp(data, data + 1, len - 1));
}

void iov_zero(const struct iovec *iov, int n, uint64_t off, uint64_t len)
{
    for (int i = 0; i < n && len; i++) {
        uint64_t size = iov[i].iov_len;

        if (off >= size) {
            off -= size;
            continue;
        }
        size -= off;
        if (size > len) {
            size = len;
        }
        memset((char *)iov[i].iov_base + off, 0, size);
        len -= size;
        off = 0;
    }
}
