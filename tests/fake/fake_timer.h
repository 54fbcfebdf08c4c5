/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A clock in the test's hand.  Linked instead of the library's timer.c: timers
 * fire inside fake_clock_advance(), on the calling thread, and never else.
 */
#ifndef FAKE_TIMER_H
#define FAKE_TIMER_H

#include "timer.h"

/* Let @ms pass; whatever falls due on the way fires, in order. */
void fake_clock_advance(unsigned ms);
/* Milliseconds until the next timer fires, -1: none is armed. */
int fake_clock_next(void);
unsigned fake_timers(void);
/* Block until a timer is armed that is due within @ms. */
void fake_wait_timer(unsigned ms);

#endif
