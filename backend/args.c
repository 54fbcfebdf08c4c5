/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A structure that is larger than ours comes from a program built with a newer
 * header: it may ask for something we would silently leave out, so it is
 * refused.
 */
#include "args.h"

#include <errno.h>
#include <string.h>

#include "log.h"

int args_take(const char *name, const void *given, void *known,
              size_t known_size, struct pinrbd_error *reterr)
{
    size_t size;

    memcpy(&size, given, sizeof(size));
    if (size < sizeof(size) || size > known_size) {
        return perror_set(reterr, -EINVAL, "struct %s has size %zu, this "
                          "library knows %zu", name, size, known_size);
    }
    memset(known, 0, known_size);
    memcpy(known, given, size);
    return 0;
}
