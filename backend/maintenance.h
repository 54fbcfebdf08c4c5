/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Changes to a whole image: its size, its snapshots, its parent; for our
 * caller, and for other clients while we own the lock.
 */
#ifndef PINRBD_MAINTENANCE_H
#define PINRBD_MAINTENANCE_H

#include <glib.h>

#include "include/pinrbd.h"
#include "watch.h"

struct pinrbd_image;

#define TASKS_REMEMBERED 16

struct task_result {
    struct notify_async async;
    int result;                 /* TASK_RUNNING, or how it ended */
};

/* Belongs to maintenance.c; under the image's lock. */
struct maintenance {
    unsigned running;           /* changes that send requests of their own */
    unsigned tasks;             /* for others, not yet ended */
    bool interrupted;           /* end soon: somebody waits to close */
    bool yields;                /* what runs ends if another change waits */
    unsigned waiting;           /* changes that wait for their turn */
    uint64_t next_async;
    struct task_result known[TASKS_REMEMBERED];
    unsigned next_known;
};

/*
 * Another client asks for maintenance.  True: we own the lock, and *@ret_answer
 * goes into the acknowledgement: 0, then it is done and its end is told to all;
 * -EOPNOTSUPP, then the client has to do it, and will ask for the lock.
 */
bool maintenance_requested(struct pinrbd_image *image,
                           const struct notify_msg *m, int *ret_answer);

/*
 * One change at a time: wait for our turn.  A flatten, which takes long, ends
 * for it and is begun again by whoever asked.
 */
GMutexLocker *control_locker_new(struct pinrbd_image *image);

/* Make tasks end, and wait until they have; none begins until resumed. */
void maintenance_stop(struct pinrbd_image *image);
void maintenance_resume(struct pinrbd_image *image);

#endif
