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
    const struct notify_client who = { 1, 2 };
    struct notify_reply reply;
    struct notify_msg m, again;
    uint8_t buf[NOTIFY_MAX];
    size_t len;

    (void)notify_reply_decode(data, size, &who, &reply);
    if (notify_decode(data, size, &m) < 0) {
        return 0;
    }
    if (size && size < 10) {
        abort();
    }
    if (m.op <= NOTIFY_ASYNC_COMPLETE || m.op == NOTIFY_QUIESCE) {
        /* what we send, we understand */
        len = notify_encode(&m, buf);
        if (notify_decode(buf, len, &again) < 0 || again.op != m.op ||
            again.client.gid != m.client.gid ||
            again.async.id != m.async.id || again.result != m.result) {
            abort();
        }
    }
    return 0;
}
