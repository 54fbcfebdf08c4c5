/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What every unit test includes: cmocka with the headers it wants before it.
 */
#ifndef CHECK_H
#define CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
