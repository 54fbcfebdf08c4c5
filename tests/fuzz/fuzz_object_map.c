/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An object map as it comes from the cluster: what is accepted has as many
 * bytes as it says, and is the same after being encoded and decoded again.
 */
#include <stdlib.h>
#include <string.h>

#include "object_map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *bits, *again;
    uint64_t n, n_again;
    GByteArray *bytes;

    if (object_map_decode(data, size, &n, &bits) < 0) {
        return 0;
    }
    if (bits < data || (size_t)(bits - data) + (n + 3) / 4 > size) {
        abort();
    }
    bytes = object_map_encode(n, bits);
    if (object_map_decode(bytes->data, bytes->len, &n_again, &again) < 0 ||
        n_again != n || memcmp(bits, again, (n + 3) / 4)) {
        abort();
    }
    for (uint64_t i = 0; i < n; i++) {
        if (object_bits_get(bits, i) != object_bits_get(again, i)) {
            abort();
        }
    }
    g_byte_array_unref(bytes);
    return 0;
}
