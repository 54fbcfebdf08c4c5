/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Any bytes as a ceph.conf: no crash, and what comes out is clean text from
 * lines that exist, in their order.
 */
#include <glib.h>
#include <stdint.h>
#include <string.h>

#include "conf_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    unsigned line;
    unsigned lines;
};

static void check(void *opaque, const char *section, const char *key,
                  const char *value, unsigned line)
{
    struct seen *seen = opaque;

    g_assert(*key);
    g_assert(!strpbrk(key, " -\n"));
    g_assert(!strpbrk(section, "]\n"));
    g_assert(!strchr(value, '\n'));
    g_assert(line > seen->line && line <= seen->lines);
    seen->line = line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen seen = { .lines = 1 };
    unsigned bad_line;

    for (size_t i = 0; i < size; i++) {
        seen.lines += data[i] == '\n';
    }
    (void)conf_file_parse((const char *)data, size, check, &seen, &bad_line);
    g_assert(bad_line <= seen.lines);
    return 0;
}
