/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One list of calls makes both forms.  JSON is written as it goes into a
 * GString; text lines are indented by the depth of lists.  A list element is
 * one text line: its fields, separated by blanks.
 */
#include "output.h"

#include <glib.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct output {
    bool json;
    bool first;                 /* no comma before the next value */
    bool in_object;             /* inside a list's object */
    GString *text;
};

struct output *output_new(const char *format)
{
    bool json = !strcmp(format, "json");
    struct output *o;

    if (!json && strcmp(format, "text")) {
        return NULL;
    }
    o = g_new0(struct output, 1);
    o->json = json;
    o->first = true;
    o->text = g_string_new(json ? "{" : "");
    return o;
}

void output_end(struct output *o)
{
    if (o->json) {
        g_string_append(o->text, "}\n");
    }
    fputs(o->text->str, stdout);
    g_string_free(o->text, TRUE);
    g_free(o);
}

static void json_string(GString *s, const char *value)
{
    g_string_append_c(s, '"');
    for (const unsigned char *p = (const void *)value; *p; p++) {
        if (*p == '"' || *p == '\\') {
            g_string_append_c(s, '\\');
            g_string_append_c(s, *p);
        } else if (*p < 0x20) {
            g_string_append_printf(s, "\\u%04x", *p);
        } else {
            g_string_append_c(s, *p);
        }
    }
    g_string_append_c(s, '"');
}

static void json_key(struct output *o, const char *key)
{
    if (!o->first) {
        g_string_append_c(o->text, ',');
    }
    o->first = false;
    if (key) {
        json_string(o->text, key);
        g_string_append_c(o->text, ':');
    }
}

static void text_field(struct output *o, const char *label, const char *value)
{
    if (!label) {
        return;
    }
    if (o->in_object) {
        g_string_append_printf(o->text, "  %s", value);
    } else {
        g_string_append_printf(o->text, "%-16s%s\n", label, value);
    }
}

void output_string(struct output *o, const char *key, const char *label,
                   const char *value)
{
    if (o->json) {
        json_key(o, key);
        json_string(o->text, value);
    } else {
        text_field(o, label, value);
    }
}

void output_u64(struct output *o, const char *key, const char *label,
                uint64_t value)
{
    char buf[24];

    snprintf(buf, sizeof(buf), "%" PRIu64, value);
    if (o->json) {
        json_key(o, key);
        g_string_append(o->text, buf);
    } else {
        text_field(o, label, buf);
    }
}

void output_bytes(struct output *o, const char *key, const char *label,
                  uint64_t value)
{
    g_autofree char *size = NULL;
    g_autofree char *line = NULL;

    if (o->json) {
        output_u64(o, key, label, value);
        return;
    }
    size = g_format_size_full(value, G_FORMAT_SIZE_IEC_UNITS);
    line = g_strdup_printf("%s (%" PRIu64 " bytes)", size, value);
    text_field(o, label, value < 1024 ? size : line);
}

void output_bool(struct output *o, const char *key, const char *label,
                 bool value)
{
    if (o->json) {
        json_key(o, key);
        g_string_append(o->text, value ? "true" : "false");
    } else {
        text_field(o, label, value ? "yes" : "no");
    }
}

void output_list_begin(struct output *o, const char *key, const char *label)
{
    if (o->json) {
        json_key(o, key);
        g_string_append_c(o->text, '[');
        o->first = true;
    } else if (label) {
        g_string_append_printf(o->text, "%s\n", label);
    }
}

void output_object_begin(struct output *o)
{
    if (o->json) {
        json_key(o, NULL);
        g_string_append_c(o->text, '{');
        o->first = true;
    }
    o->in_object = true;
}

void output_object_end(struct output *o)
{
    g_string_append_c(o->text, o->json ? '}' : '\n');
    o->first = false;
    o->in_object = false;
}

void output_list_end(struct output *o)
{
    if (o->json) {
        g_string_append_c(o->text, ']');
        o->first = false;
    }
}
