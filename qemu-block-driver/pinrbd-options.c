/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * File names and the parts of an image's address.
 *
 * The file name syntax is that of QEMU's own rbd driver, to the letter, for
 * such names are written in the headers of overlay images and in scripts:
 *
 *   - the first `/' ends the pool;
 *   - if there is an `@' anywhere behind it, the image name reaches up to it,
 *     and the snapshot from there to the next `:' (so a value with an `@' in
 *     it needs a backslash);
 *   - a `/' inside the image name ends a namespace; without one the namespace
 *     is empty, which is not the same as absent (pinrbd_target_complete());
 *   - `id' and `conf' are the user and the conf file, our own keys are ours,
 *     every other pair goes to Ceph.
 *
 * All of these characters count only without a backslash before them.  The
 * backslashes are taken away part by part, after the cutting.
 */
#include "pinrbd-options.h"

#include <errno.h>
#include <glib.h>
#include <string.h>

#include "log.h"

void pinrbd_pairs_add(struct pinrbd_pairs *pairs, const char *key,
                      const char *value)
{
    pairs->kv = g_renew(struct pinrbd_kv, pairs->kv, pairs->n + 1);
    pairs->kv[pairs->n].key = g_strdup(key);
    pairs->kv[pairs->n].value = g_strdup(value);
    pairs->n++;
}

void pinrbd_pairs_clear(struct pinrbd_pairs *pairs)
{
    for (size_t i = 0; i < pairs->n; i++) {
        g_free((char *)pairs->kv[i].key);
        g_free((char *)pairs->kv[i].value);
    }
    g_clear_pointer(&pairs->kv, g_free);
    pairs->n = 0;
}

void pinrbd_target_clear(struct pinrbd_target *t)
{
    g_clear_pointer(&t->pool, g_free);
    g_clear_pointer(&t->ns, g_free);
    g_clear_pointer(&t->image, g_free);
    g_clear_pointer(&t->snapshot, g_free);
    g_clear_pointer(&t->conf, g_free);
    g_clear_pointer(&t->user, g_free);
    pinrbd_pairs_clear(&t->ceph);
    pinrbd_pairs_clear(&t->own);
}

/* The first @c in @s that has no backslash before it, NULL if none. */
static char *find_plain(char *s, char c)
{
    for (; *s; s++) {
        if (*s == c) {
            return s;
        }
        if (*s == '\\' && s[1]) {
            s++;
        }
    }
    return NULL;
}

/*
 * Cut *@rest at the first plain @c: returns what was before it, *@rest is
 * what is behind it, NULL if there was no @c.
 */
static char *cut(char **rest, char c)
{
    char *part = *rest;
    char *at = find_plain(part, c);

    if (at) {
        *at++ = '\0';
    }
    *rest = at;
    return part;
}

/* A copy without the backslashes. */
static char *plain_copy(const char *s)
{
    char *copy = g_malloc(strlen(s) + 1);
    char *to = copy;

    while (*s) {
        if (*s == '\\' && s[1]) {
            s++;
        }
        *to++ = *s++;
    }
    *to = '\0';
    return copy;
}

static void replace(char **field, char *owned)
{
    g_free(*field);
    *field = owned;
}

static int parse_pairs(struct pinrbd_target *t, char *rest,
                       struct pinrbd_error *reterr)
{
    while (rest) {
        g_autofree char *key = plain_copy(cut(&rest, '='));
        g_autofree char *value = NULL;

        if (!rest) {
            return perror_set(reterr, -EINVAL, "conf option %s has no value",
                              key);
        }
        value = plain_copy(cut(&rest, ':'));
        if (!strcmp(key, "conf")) {
            replace(&t->conf, g_steal_pointer(&value));
        } else if (!strcmp(key, "id")) {
            replace(&t->user, g_steal_pointer(&value));
        } else {
            pinrbd_pairs_add(pinrbd_settings_known(key) ? &t->own : &t->ceph,
                             key, value);
        }
    }
    return 0;
}

int pinrbd_target_parse(struct pinrbd_target *t, const char *filename,
                        struct pinrbd_error *reterr)
{
    g_autofree char *text = NULL;
    char *rest, *part;

    if (g_str_has_prefix(filename, "rbd:")) {
        text = g_strdup(filename + strlen("rbd:"));
    } else if (g_str_has_prefix(filename, "pinrbd:")) {
        text = g_strdup(filename + strlen("pinrbd:"));
    } else {
        return perror_set(reterr, -EINVAL, "File name must start with 'rbd:'");
    }
    rest = text;
    part = cut(&rest, '/');
    if (!rest) {
        return perror_set(reterr, -EINVAL, "Pool name is required");
    }
    t->pool = plain_copy(part);

    if (find_plain(rest, '@')) {
        part = cut(&rest, '@');
        t->snapshot = plain_copy(cut(&rest, ':'));
    } else {
        part = cut(&rest, ':');
    }
    t->ns = find_plain(part, '/') ? plain_copy(cut(&part, '/')) : g_strdup("");
    t->image = plain_copy(part);
    return parse_pairs(t, rest, reterr);
}

int pinrbd_target_complete(struct pinrbd_target *t,
                           struct pinrbd_error *reterr)
{
    char *slash = !t->ns && t->image ? strchr(t->image, '/') : NULL;

    if (slash) {
        /* libvirt has no field for the namespace */
        char *image = g_strdup(slash + 1);

        t->ns = g_strndup(t->image, slash - t->image);
        replace(&t->image, image);
    }
    if (!t->pool || !*t->pool) {
        return perror_set(reterr, -EINVAL, "pool name is empty");
    }
    if (!t->image || !*t->image) {
        return perror_set(reterr, -EINVAL, "image name is empty");
    }
    if (t->snapshot && !*t->snapshot) {
        return perror_set(reterr, -EINVAL, "snapshot name is empty");
    }
    return 0;
}

char *pinrbd_target_name(const struct pinrbd_target *t)
{
    return g_strconcat(t->pool, "/", t->ns ? t->ns : "",
                       t->ns && *t->ns ? "/" : "", t->image,
                       t->snapshot ? "@" : "",
                       t->snapshot ? t->snapshot : "", NULL);
}

char *pinrbd_mon_host_add(char *list, const char *host, const char *port)
{
    bool v6 = strchr(host, ':') && *host != '[';
    char *longer = g_strconcat(list ? list : "", list ? ";" : "",
                               v6 ? "[" : "", host, v6 ? "]" : "", ":", port,
                               NULL);

    g_free(list);
    return longer;
}
