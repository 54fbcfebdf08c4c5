/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Notify payloads: any client of the image can send one.  What decodes must be
 * a whole message, and a message of ours decodes to what it was made from.
 */
#include <stdlib.h>
#include <string.h>

#include "watch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t buf[NOTIFY_MAX];
    unsigned op = 0;

    if (notify_decode(data, size, &op) == 0 && size && size < 10) {
        abort();
    }
    if (size) {
        size_t len = notify_encode(data[0], buf);

        if (notify_decode(buf, len, &op) < 0 || op != data[0] ||
            notify_decode(buf, len - 1, &op) == 0) {
            abort();
        }
    }
    return 0;
}
