/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Short-lived threads for what blocks and nobody waits for: taking the
 * exclusive lock, maintenance for others, opening and closing a parent.
 */
#ifndef PINRBD_JOBS_H
#define PINRBD_JOBS_H

/* Run @fn(@arg) on a thread of its own, named @name (15 bytes at most). */
void job_start(const char *name, void (*fn)(void *arg), void *arg);

#endif
