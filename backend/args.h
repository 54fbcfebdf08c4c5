/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Argument structures of pinrbd.h: they begin with their size, and grow.
 */
#ifndef PINRBD_ARGS_H
#define PINRBD_ARGS_H

#include <stddef.h>

#include "include/pinrbd.h"

/*
 * Copy @given, of an older or the same version of struct @name, into @known of
 * @known_size bytes; what it lacks is zero.  -EINVAL when it is newer.
 */
int args_take(const char *name, const void *given, void *known,
              size_t known_size, struct pinrbd_error *reterr);

#endif
