/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Messages: the log sink and the text of struct pinrbd_error.
 */
#ifndef PINRBD_LOG_H
#define PINRBD_LOG_H

#include <glib.h>

#include "include/pinrbd.h"

/* One line to the sink, without a newline; dropped below its level. */
void plog(enum pinrbd_log_level level, const char *fmt, ...)
    G_GNUC_PRINTF(2, 3);

/*
 * Fill in @reterr (may be NULL) and return @code, a negative errno.  Where
 * strerror helps, the caller adds g_strerror(-code) itself.
 */
int perror_set(struct pinrbd_error *reterr, int code, const char *fmt, ...)
    G_GNUC_PRINTF(3, 4);

/* A message of which at most one in @every_ms milliseconds is let through. */
struct plog_limit {
    gint64 next_us;     /* atomic */
    guint held_back;    /* atomic */
};

/*
 * True when a message may go out now; *@ret_held_back is how many did not
 * since the last one.
 */
bool plog_limit_pass(struct plog_limit *limit, unsigned every_ms,
                     unsigned *ret_held_back);

#endif
