/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The command-line tool: finds the command and runs it.
 */
#include <glib.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    { "info", cmd_info, "what an image's header says" },
    { "options", cmd_options, "the options of the driver and where they go" },
};

static void usage(FILE *f)
{
    fprintf(f, "usage: pinrbd COMMAND [OPTION...] [ARGUMENT...]\n"
               "       pinrbd --version\n\ncommands:\n");
    for (size_t i = 0; i < G_N_ELEMENTS(commands); i++) {
        fprintf(f, "  %-10s%s\n", commands[i].name, commands[i].help);
    }
    fprintf(f, "\n`pinrbd COMMAND --help' describes a command.\n");
}

bool cli_parse_image(char *spec, struct cli_image *ret)
{
    g_autofree char *copy = g_strdup(spec);
    char *slash = strchr(spec, '/');
    char *last = strrchr(spec, '/');
    char *at;

    *ret = (struct cli_image) { .pool = spec };
    if (slash) {
        at = strchr(last, '@');
        if (at) {
            *at = '\0';
            ret->snapshot = at + 1;
        }
        *slash = '\0';
        *last = '\0';
        ret->ns = last != slash ? slash + 1 : NULL;
        ret->image = last + 1;
    }
    if (!slash || !ret->pool[0] || !ret->image[0] ||
        (ret->ns && (!ret->ns[0] || strchr(ret->ns, '/'))) ||
        (ret->snapshot && !ret->snapshot[0])) {
        fprintf(stderr, "pinrbd: '%s' is not of the form POOL/"
                "[NAMESPACE/]IMAGE[@SNAPSHOT]\n", copy);
        return false;
    }
    return true;
}

int cli_fail(const struct pinrbd_error *err)
{
    fprintf(stderr, "pinrbd: %s\n", err->text);
    return CLI_FAILED;
}

static void log_line(void *opaque, enum pinrbd_log_level level,
                     const char *line)
{
    fprintf(stderr, "pinrbd: %s\n", line);
}

int main(int argc, char **argv)
{
    pinrbd_log_set(log_line, NULL, PINRBD_LOG_WARN);
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        printf("pinrbd %s\n", pinrbd_version());
        return CLI_OK;
    }
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        usage(stdout);
        return CLI_OK;
    }
    for (size_t i = 0; argc > 1 && i < G_N_ELEMENTS(commands); i++) {
        if (!strcmp(argv[1], commands[i].name)) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    if (argc > 1) {
        fprintf(stderr, "pinrbd: unknown command '%s'\n", argv[1]);
    }
    usage(stderr);
    return CLI_USAGE;
}
