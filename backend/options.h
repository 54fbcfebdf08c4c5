/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The product's own options.  The interface is in pinrbd.h: the functions
 * pinrbd_settings_*(); here is only what the rest of the library needs.
 */
#ifndef PINRBD_OPTIONS_H
#define PINRBD_OPTIONS_H

#include "include/pinrbd.h"

/* A copy of @settings, of the defaults when it is NULL. */
struct pinrbd_settings *settings_dup(const struct pinrbd_settings *settings);

#endif
