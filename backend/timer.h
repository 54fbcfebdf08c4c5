/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Timers of the whole process, served by its one watchdog thread.
 */
#ifndef PINRBD_TIMER_H
#define PINRBD_TIMER_H

#include <glib.h>
#include <stdbool.h>

/* Zero-initialised, then timer fields belong to timer.c. */
struct ptimer {
    void (*fire)(struct ptimer *t);     /* set before arming */
    gint64 due_us;                      /* 0: not armed */
    struct ptimer *next;
};

/*
 * Call t->fire once, @delay_ms from now, on the watchdog thread, where it must
 * not block.  Arming an armed timer moves it.  fire may arm its timer again.
 */
void ptimer_arm(struct ptimer *t, unsigned delay_ms);

/*
 * After this, fire is neither pending nor running (except that a fire
 * function may cancel its own timer) and will not run until armed again.
 * Waits for a fire in progress: hold no lock that fire takes.
 */
void ptimer_cancel(struct ptimer *t);

#endif
