/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * pinrbd options: the option table, for people, for the manual page and for
 * the option reference.
 */
#include <glib.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

static void print_text(const struct pinrbd_option_info *o, const char *env)
{
    printf("%s=%s\n    %s\n    default %s; environment %s\n", o->key,
           o->values, o->help, o->standard, env);
}

static void print_markdown(const struct pinrbd_option_info *o,
                           const char *env)
{
    g_auto(GStrv) parts = g_strsplit(o->values, "|", -1);
    g_autofree char *values = g_strjoinv("`, `", parts);

    printf("| `%s` | `%s` | `%s` | `%s` | %s |\n", o->key, values,
           o->standard, env, o->help);
}

static void print_man(const struct pinrbd_option_info *o, const char *env)
{
    g_auto(GStrv) parts = g_strsplit(o->key, "-", -1);
    g_autofree char *key = g_strjoinv("\\-", parts);

    printf(".TP\n.BI %s= %s\n%s\nDefault: %s. Environment: %s.\n", key,
           o->values, o->help, o->standard, env);
}

int cmd_options(int argc, char **argv)
{
    g_autofree char *format = NULL;
    const GOptionEntry entries[] = {
        { "format", 0, 0, G_OPTION_ARG_STRING, &format,
          "text (default), markdown or man", "FORMAT" },
        { NULL },
    };
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_autoptr(GError) error = NULL;
    void (*print)(const struct pinrbd_option_info *o, const char *env);
    struct pinrbd_option_info o;

    g_option_context_set_summary(context, "Prints the driver's own options.");
    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &error)) {
        fprintf(stderr, "pinrbd options: %s\n", error->message);
        return CLI_USAGE;
    }
    if (!format || !strcmp(format, "text")) {
        print = print_text;
    } else if (!strcmp(format, "markdown")) {
        print = print_markdown;
        printf("| key | values | default | environment | meaning |\n"
               "|---|---|---|---|---|\n");
    } else if (!strcmp(format, "man")) {
        print = print_man;
    } else {
        fprintf(stderr, "pinrbd options: format '%s' is none of text, "
                "markdown and man\n", format);
        return CLI_USAGE;
    }
    for (unsigned i = 0; pinrbd_settings_describe(i, &o); i++) {
        g_autofree char *env = g_ascii_strup(o.key, -1);

        g_strdelimit(env, "-", '_');
        {
            g_autofree char *name = g_strconcat("PINRBD_", env, NULL);

            print(&o, name);
        }
    }
    return CLI_OK;
}
