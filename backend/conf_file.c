/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A tolerant reader for the ceph.conf syntax.
 *
 *     ; comment                       # comment
 *     fsid = 0a1b...                  before any header: section ""
 *     [client.vm]                     ; comment
 *     mon host = a, b, \
 *                c                    one value
 *     keyring = "/a;b"                quotes keep comment characters,
 *     log-file = /a\;b                so does a backslash
 *
 * A file that the Ceph tools accept must be accepted here, whatever the
 * other sections hold, or a disk would not start because of a line that is
 * none of our business.  So a line that makes no sense is skipped and its
 * number reported; only a zero byte (not a text file) is refused.
 *
 * After a header that cannot be read we do not know which section the next
 * keys belong to: they are skipped too, up to the next good header.
 *
 * The reader walks the text once with one cursor.  It keeps no state between
 * calls and never reads past @len: the text need not be terminated.
 */
#include "conf_file.h"

#include <errno.h>
#include <glib.h>
#include <stdbool.h>
#include <string.h>

struct cursor {
    const char *p;
    const char *end;
    unsigned line;          /* of *p */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\v' || c == '\f';
}

/* Length of the line end at the cursor: 0 (none), 1 or 2; 0 at the end. */
static size_t line_end(const struct cursor *c, const char *p)
{
    if (p < c->end && *p == '\n') {
        return 1;
    }
    if (p + 1 < c->end && p[0] == '\r' && p[1] == '\n') {
        return 2;
    }
    return 0;
}

/* At the end of a line, or of the text (with or without a last `\r'). */
static bool at_line_end(const struct cursor *c)
{
    return c->p == c->end || line_end(c, c->p) ||
           (*c->p == '\r' && c->p + 1 == c->end);
}

static void skip_blanks(struct cursor *c)
{
    while (c->p < c->end && is_blank(*c->p)) {
        c->p++;
    }
}

static bool at_comment(const struct cursor *c)
{
    return c->p < c->end && (*c->p == ';' || *c->p == '#');
}

/* To the start of the next line. */
static void skip_line(struct cursor *c)
{
    const char *nl = memchr(c->p, '\n', c->end - c->p);

    if (nl) {
        c->p = nl + 1;
        c->line++;
    } else {
        c->p = c->end;
    }
}

/* Only blanks and a comment are left on this line. */
static bool nothing_follows(struct cursor *c)
{
    skip_blanks(c);
    return at_line_end(c) || at_comment(c);
}

/* `\' before a line end: go on in the next line. */
static bool skip_continuation(struct cursor *c)
{
    size_t n = *c->p == '\\' ? line_end(c, c->p + 1) : 0;

    if (!n) {
        return false;
    }
    c->p += 1 + n;
    c->line++;
    return true;
}

/* The cursor is behind `['. */
static bool read_section(struct cursor *c, GString *section)
{
    g_string_truncate(section, 0);
    while (!at_line_end(c) && *c->p != ']') {
        g_string_append_c(section, *c->p++);
    }
    if (at_line_end(c)) {
        return false;
    }
    c->p++;
    g_strstrip(section->str);
    section->len = strlen(section->str);
    return nothing_follows(c);
}

static bool read_key(struct cursor *c, GString *key)
{
    bool gap = false;

    g_string_truncate(key, 0);
    while (!at_line_end(c) && *c->p != '=') {
        if (at_comment(c)) {
            return false;
        }
        if (skip_continuation(c) || is_blank(*c->p)) {
            gap = true;
            skip_blanks(c);
            continue;
        }
        if (gap) {
            g_string_append_c(key, '_');
            gap = false;
        }
        g_string_append_c(key, *c->p == '-' ? '_' : g_ascii_tolower(*c->p));
        c->p++;
    }
    if (at_line_end(c) || !key->len) {
        return false;
    }
    c->p++;
    return true;
}

/* Behind the opening @quote; a quoted value may be continued as well. */
static bool read_quoted(struct cursor *c, char quote, GString *value)
{
    while (!at_line_end(c)) {
        if (skip_continuation(c)) {
            continue;
        }
        if (*c->p == quote) {
            c->p++;
            return nothing_follows(c);
        }
        if (*c->p == '\\' && c->p + 1 < c->end) {
            c->p++;
        }
        g_string_append_c(value, *c->p++);
    }
    return false;
}

static bool read_value(struct cursor *c, GString *value)
{
    size_t keep = 0;            /* bytes up to the last that is no blank */

    g_string_truncate(value, 0);
    do {
        skip_blanks(c);
    } while (c->p < c->end && skip_continuation(c));
    if (c->p < c->end && (*c->p == '"' || *c->p == '\'')) {
        char quote = *c->p++;

        return read_quoted(c, quote, value);
    }
    while (!at_line_end(c) && !at_comment(c)) {
        if (skip_continuation(c)) {
            continue;
        }
        if (*c->p == '\\' && c->p + 1 < c->end) {
            c->p++;
            g_string_append_c(value, *c->p++);
            keep = value->len;
            continue;
        }
        g_string_append_c(value, *c->p);
        if (!is_blank(*c->p)) {
            keep = value->len;
        }
        c->p++;
    }
    g_string_truncate(value, keep);
    return true;
}

int conf_file_parse(const char *text, size_t len, conf_file_fn *fn,
                    void *opaque, unsigned *ret_bad_line)
{
    g_autoptr(GString) section = g_string_new("");
    g_autoptr(GString) key = g_string_new("");
    g_autoptr(GString) value = g_string_new("");
    struct cursor c = { .p = text, .end = len ? text + len : text, .line = 1 };
    bool lost = false;          /* behind a header that made no sense */
    unsigned bad_line = 0;
    int r = 0;

    if (len && memchr(text, '\0', len)) {
        r = -EINVAL;
        c.p = c.end;
    }
    if (c.end - c.p >= 3 && !memcmp(c.p, "\xef\xbb\xbf", 3)) {
        c.p += 3;               /* byte order mark of Windows editors */
    }
    while (c.p < c.end) {
        unsigned line = c.line;
        bool good = true;

        if (nothing_follows(&c)) {
            skip_line(&c);
            continue;
        }
        if (*c.p == '[') {
            c.p++;
            good = read_section(&c, section);
            lost = !good;
        } else {
            good = read_key(&c, key) && read_value(&c, value) && !lost;
            if (good) {
                fn(opaque, section->str, key->str, value->str, line);
            }
        }
        if (!good && !bad_line) {
            bad_line = line;
        }
        if (c.p < c.end) {
            skip_line(&c);
        }
    }
    if (ret_bad_line) {
        *ret_bad_line = bad_line;
    }
    return r;
}
