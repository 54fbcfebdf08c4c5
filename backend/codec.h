/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Bounded little-endian cursors.  Every byte that comes off the wire or a disk
 * goes through a struct pdec, every byte that goes there through a struct penc.
 */
#ifndef PINRBD_CODEC_H
#define PINRBD_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Reading.  The first read past the end sets `bad'; it and all later reads
 * give zeroes and empty strings, so a decoder checks once, at its end, with
 * pdec_ok().  Never owns the bytes.
 */
struct pdec {
    const uint8_t *p;
    const uint8_t *end;
    bool bad;
};

void pdec_init(struct pdec *d, const void *data, size_t len);
size_t pdec_left(const struct pdec *d);
bool pdec_ok(const struct pdec *d);
void pdec_fail(struct pdec *d);
uint8_t pdec_u8(struct pdec *d);
uint16_t pdec_u16(struct pdec *d);
uint32_t pdec_u32(struct pdec *d);
uint64_t pdec_u64(struct pdec *d);
int64_t pdec_i64(struct pdec *d);
/* @len bytes in place, NULL when there are not as many. */
const void *pdec_bytes(struct pdec *d, size_t len);
/* u32 length + bytes, in place; *@ret_len is 0 on failure. */
const char *pdec_blob(struct pdec *d, size_t *ret_len);
/*
 * A string into @buf as C text.  One that does not fit, or holds a zero byte,
 * is bad.
 */
void pdec_text(struct pdec *d, char *buf, size_t size);
/*
 * u32 element count, bad when fewer than @min_size bytes an element are left:
 * a safe size for an allocation.
 */
uint32_t pdec_count(struct pdec *d, size_t min_size);
/*
 * A versioned block (u8 version, u8 compat, u32 length, body): *@body is bound
 * to the body, @d moves behind it.  A compat newer than @known is bad.
 * Returns the version.
 */
uint8_t pdec_block(struct pdec *d, uint8_t known, struct pdec *body);

/* Writing into a caller's buffer; past its end `bad' is set, no more. */
struct penc {
    uint8_t *start;
    uint8_t *p;
    uint8_t *end;
    bool bad;
};

void penc_init(struct penc *e, void *buf, size_t size);
size_t penc_len(const struct penc *e);
void penc_u8(struct penc *e, uint8_t v);
void penc_u32(struct penc *e, uint32_t v);
void penc_u64(struct penc *e, uint64_t v);
void penc_bytes(struct penc *e, const void *data, size_t len);
void penc_string(struct penc *e, const char *s);
/* Opens a versioned block; pass the result to penc_block_end(). */
size_t penc_block(struct penc *e, uint8_t version, uint8_t compat);
void penc_block_end(struct penc *e, size_t block);

#endif
