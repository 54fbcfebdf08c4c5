/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Little-endian encodings of the cluster, written a second time on purpose:
 * what the library's codec gets wrong must not look right here.
 */
#ifndef FAKE_BYTES_H
#define FAKE_BYTES_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

void put_le(GByteArray *a, uint64_t v, unsigned n);
void put_string(GByteArray *a, const char *s);
void put_bytes(GByteArray *a, const GByteArray *bytes);
/* A block of version @v, compatible with 1, around @body, which is freed. */
void put_block_v(GByteArray *a, unsigned v, GByteArray *body);
void put_block(GByteArray *a, GByteArray *body);

/* A place in input; @bad: a read went past the end, and got zeroes. */
struct fake_input {
    const uint8_t *p;
    size_t len;
    size_t pos;
    bool bad;
};

uint64_t get_le(struct fake_input *in, unsigned n);
/* Fails on text that does not fit. */
void get_string(struct fake_input *in, char *buf, size_t size);
/* @len bytes, NULL if there are not so many. */
const uint8_t *get_bytes(struct fake_input *in, size_t len);
/* The inside of a block that a reader of version 1 understands. */
struct fake_input get_block(struct fake_input *in);

/* CRC-32C without inversions. */
uint32_t fake_crc32c(uint32_t crc, const uint8_t *p, size_t len);

#endif
