/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The commands of the pinrbd tool.
 */
#ifndef PINRBD_CLI_H
#define PINRBD_CLI_H

#include "pinrbd.h"

/* Exit codes. */
#define CLI_OK 0
#define CLI_FAILED 1
#define CLI_USAGE 2

/* POOL/[NAMESPACE/]IMAGE[@SNAPSHOT], cut in place. */
struct cli_image {
    char *pool;
    char *ns;           /* NULL: default */
    char *image;
    char *snapshot;     /* NULL: head */
};

/* False, with a message, when @spec has another form.  Owns nothing. */
bool cli_parse_image(char *spec, struct cli_image *ret);

/* "pinrbd: TEXT" to stderr; returns CLI_FAILED. */
int cli_fail(const struct pinrbd_error *err);

/* Each gets its own name as argv[0] and returns an exit code. */
int cmd_info(int argc, char **argv);
int cmd_options(int argc, char **argv);

#endif
