/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A job is rare (a lock changes hands, a snapshot is made) and takes at least
 * a round trip, so a thread for each costs nothing that matters, keeps no
 * thread in idle processes, and no job waits behind another that hangs.
 *
 * Whoever starts a job keeps what the job uses: for an image with image_hold().
 */
#include "jobs.h"

#include <glib.h>

struct job {
    void (*fn)(void *arg);
    void *arg;
};

static gpointer job_main(gpointer opaque)
{
    struct job job = *(struct job *)opaque;

    g_free(opaque);
    job.fn(job.arg);
    return NULL;
}

void job_start(const char *name, void (*fn)(void *arg), void *arg)
{
    struct job *job = g_new(struct job, 1);

    *job = (struct job) { fn, arg };
    g_thread_unref(g_thread_new(name, job_main, job));
}
