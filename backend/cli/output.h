/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What commands print: the same fields as aligned text or as JSON.
 */
#ifndef PINRBD_CLI_OUTPUT_H
#define PINRBD_CLI_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

struct output;

/* "text" or "json"; NULL for anything else. */
struct output *output_new(const char *format);
/* Prints what was collected to stdout and frees it. */
void output_end(struct output *o);

/* @key is a JSON name; @label what text shows, NULL: JSON only. */
void output_string(struct output *o, const char *key, const char *label,
                   const char *value);
void output_u64(struct output *o, const char *key, const char *label,
                uint64_t value);
/* Bytes: text shows a rounded size as well. */
void output_bytes(struct output *o, const char *key, const char *label,
                  uint64_t value);
void output_bool(struct output *o, const char *key, const char *label,
                 bool value);

/* A list of objects; text shows a line for each. */
void output_list_begin(struct output *o, const char *key, const char *label);
void output_object_begin(struct output *o);
void output_object_end(struct output *o);
void output_list_end(struct output *o);

#endif
