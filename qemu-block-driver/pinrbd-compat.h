/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Everything that differs between QEMU versions, in one place, so that the
 * driver itself has no conditional code.  Include after qemu/osdep.h.
 *
 * A name here stands for a member of BlockDriver (PINRBD_MEMBER_*) or for a
 * type that changed; where a header moved, the one that exists is taken.
 */
#ifndef PINRBD_COMPAT_H
#define PINRBD_COMPAT_H

/*
 * Both move members of AioContext that inline functions use; QEMU's module
 * stamp does not cover them, so headers without them must not go unnoticed.
 */
#if !defined(CONFIG_LINUX_AIO) || !defined(CONFIG_LINUX_IO_URING)
#error "QEMU's headers are configured without linux-aio or io_uring"
#endif

#define PINRBD_QEMU_VERSION \
    (QEMU_VERSION_MAJOR * 100 + QEMU_VERSION_MINOR)

#if __has_include("qobject/qdict.h")
#include "qobject/qdict.h"
#include "qobject/qjson.h"
#include "qobject/qnum.h"
#include "qobject/qstring.h"
#else
#include "qapi/qmp/qdict.h"
#include "qapi/qmp/qjson.h"
#include "qapi/qmp/qnum.h"
#include "qapi/qmp/qstring.h"
#endif

/* Coroutines since 8.0, with another name; the bodies do not mind. */
#if PINRBD_QEMU_VERSION >= 800
#define PINRBD_MEMBER_GETLENGTH bdrv_co_getlength
#define PINRBD_MEMBER_GET_INFO  bdrv_co_get_info
#else
#define PINRBD_MEMBER_GETLENGTH bdrv_getlength
#define PINRBD_MEMBER_GET_INFO  bdrv_get_info
#endif

/* One member for protocols and formats since 9.1. */
#if PINRBD_QEMU_VERSION >= 901
#define PINRBD_MEMBER_OPEN      bdrv_open
#else
#define PINRBD_MEMBER_OPEN      bdrv_file_open
#endif

/* What block_status is asked for: a flag, later a mask. */
#if PINRBD_QEMU_VERSION >= 1001
typedef unsigned int pinrbd_status_mode;
#else
typedef bool pinrbd_status_mode;
#endif

#endif
