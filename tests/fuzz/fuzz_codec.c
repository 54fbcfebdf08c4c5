/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A program for the cursors: the first half of the input says what to read,
 * the second half is what is read.  A reader never leaves its bytes, a cursor
 * that went bad stays bad, and what is written again is what was read.
 */
#include <glib.h>
#include <stdint.h>
#include <string.h>

#include "codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_DEPTH 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n_ops = size / 2;
    size_t n = size - n_ops;
    g_autofree uint8_t *in = g_memdup2(data + n_ops, n);
    g_autofree uint8_t *again = g_malloc(n + 1);
    struct pdec stack[MAX_DEPTH];
    unsigned depth = 0;
    struct penc e;
    bool same = true;           /* everything so far was plain values */

    pdec_init(&stack[0], in, n);
    penc_init(&e, again, n);
    for (size_t i = 0; i < n_ops; i++) {
        struct pdec *d = &stack[depth];
        bool was_bad = !pdec_ok(d);
        size_t left = pdec_left(d);
        char text[16];
        size_t len;
        const char *p;
        uint64_t v = 0;

        switch (data[i] % 9) {
        case 0:
            v = pdec_u8(d);
            penc_u8(&e, v);
            break;
        case 1:
            v = pdec_u32(d);
            penc_u32(&e, v);
            break;
        case 2:
            v = pdec_u64(d);
            penc_u64(&e, v);
            break;
        case 3:
            pdec_text(d, text, sizeof(text));
            g_assert(memchr(text, 0, sizeof(text)));
            g_assert(pdec_ok(d) || !text[0]);
            penc_string(&e, text);
            break;
        case 4:
            p = pdec_blob(d, &len);
            g_assert(len <= left);
            if (len) {
                g_assert((const uint8_t *)p >= in &&
                         (const uint8_t *)p + len <= in + n);
            }
            penc_u32(&e, len);
            penc_bytes(&e, p, len);
            break;
        case 5:
            len = 1 + data[i] / 9;
            g_assert(pdec_count(d, len) <= left / len);
            same = false;
            break;
        case 6:
            same = false;
            if (depth + 1 < MAX_DEPTH) {
                pdec_block(d, data[i] / 9, &stack[depth + 1]);
                g_assert(pdec_left(&stack[depth + 1]) <= left);
                depth++;
            }
            break;
        case 7:
            same = false;
            depth -= depth > 0;
            break;
        case 8:
            v = pdec_u16(d);
            same = false;
            break;
        }
        if (was_bad) {
            g_assert(!pdec_ok(d) && !v && !pdec_left(d));
        }
    }
    if (same && pdec_ok(&stack[0])) {
        g_assert(!e.bad);
        g_assert(penc_len(&e) == n - pdec_left(&stack[0]));
        g_assert(!penc_len(&e) || !memcmp(again, in, penc_len(&e)));
    }
    return 0;
}
