/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Walking iovecs.
 */
#ifndef PINRBD_IOV_H
#define PINRBD_IOV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* A place in an iovec array; starts as { iov, n, 0 }. */
struct iov_cursor {
    const struct iovec *iov;
    int n;              /* elements from iov on */
    size_t off;         /* into the first one */
};

/* Sum of the lengths, UINT64_MAX if it overflows. */
uint64_t iov_bytes(const struct iovec *iov, int n);

/*
 * The next piece, at most @len bytes; the cursor moves behind it.  Empty
 * elements are skipped; the piece is empty only at the end of the array.
 */
struct iovec iov_take(struct iov_cursor *c, size_t len);

/* Move the cursor over @len bytes. */
void iov_skip(struct iov_cursor *c, uint64_t len);

/* Are all @len bytes zero? */
bool bytes_are_zero(const uint8_t *data, size_t len);

/* Zero @len bytes from byte @off on, clipped to the array. */
void iov_zero(const struct iovec *iov, int n, uint64_t off, uint64_t len);

#endif
