/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Any text as an image's file name: no crash; and what was taken apart, put
 * together again with all escapes, is taken apart the same way.
 */
#include <glib.h>
#include <stdint.h>
#include <string.h>

#include "pinrbd-options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void append(GString *s, const char *before, const char *part)
{
    if (!part) {
        return;
    }
    g_string_append(s, before);
    for (; *part; part++) {
        if (strchr(":@/=\\", *part)) {
            g_string_append_c(s, '\\');
        }
        g_string_append_c(s, *part);
    }
}

static char *put_together(const struct pinrbd_target *t)
{
    const struct pinrbd_pairs *lists[] = { &t->ceph, &t->own };
    GString *s = g_string_new("rbd");

    append(s, ":", t->pool);
    append(s, "/", t->ns);
    append(s, "/", t->image);
    append(s, "@", t->snapshot);
    append(s, ":conf=", t->conf);
    append(s, ":id=", t->user);
    for (size_t l = 0; l < G_N_ELEMENTS(lists); l++) {
        for (size_t i = 0; i < lists[l]->n; i++) {
            append(s, ":", lists[l]->kv[i].key);
            append(s, "=", lists[l]->kv[i].value);
        }
    }
    return g_string_free(s, FALSE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *rest = g_strndup((const char *)data, size);
    g_autofree char *name = g_strconcat("rbd:", rest, NULL);
    struct pinrbd_target t = { 0 }, again = { 0 };
    struct pinrbd_error err;

    (void)pinrbd_target_parse(&t, rest, &err);
    pinrbd_target_clear(&t);
    if (pinrbd_target_parse(&t, name, &err) == 0) {
        g_autofree char *whole = put_together(&t);
        g_autofree char *twice = NULL;

        g_assert(pinrbd_target_parse(&again, whole, &err) == 0);
        twice = put_together(&again);
        g_assert_cmpstr(whole, ==, twice);
        (void)pinrbd_target_complete(&t, &err);
    }
    pinrbd_target_clear(&t);
    pinrbd_target_clear(&again);
    return 0;
}
