/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What an OSD says of a lock: texts end, an owner that counts as one of
 * librbd's kind has all that is needed to ask it, and to shut it out.
 */
#include <stdlib.h>
#include <string.h>

#include "cls_lock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lock_owner o;

    if (lock_decode_owner(data, size, &o) <= 0) {
        return 0;
    }
    if (!memchr(o.cookie, 0, sizeof(o.cookie)) ||
        !memchr(o.tag, 0, sizeof(o.tag)) ||
        !memchr(o.address, 0, sizeof(o.address))) {
        abort();
    }
    if (o.internal && (!o.address[0] || strcmp(o.tag, LOCK_TAG) ||
                       strncmp(o.cookie, LOCK_COOKIE_PREFIX,
                               strlen(LOCK_COOKIE_PREFIX)))) {
        abort();
    }
    return 0;
}
