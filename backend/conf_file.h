/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Reading the ceph.conf syntax, as forgiving as Ceph reads it.
 */
#ifndef PINRBD_CONF_FILE_H
#define PINRBD_CONF_FILE_H

#include <stddef.h>

/*
 * One `key = value`.  @section is what stood between the brackets, without
 * outer blanks, "" before the first header.  @key is in lower case with `_'
 * for blanks and dashes.  @value is without quotes and escapes.  @line counts
 * from 1.  The strings are valid during the call only.
 */
typedef void conf_file_fn(void *opaque, const char *section, const char *key,
                          const char *value, unsigned line);

/*
 * Call @fn for each setting in the @len bytes of @text, in file order; a key
 * may come more than once.  *@ret_bad_line (may be NULL) is the first line
 * that was not understood and was left out, 0 if there was none.  Returns 0,
 * or -EINVAL when the text cannot be such a file at all (a zero byte).
 */
int conf_file_parse(const char *text, size_t len, conf_file_fn *fn,
                    void *opaque, unsigned *ret_bad_line);

#endif
