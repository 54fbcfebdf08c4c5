/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A parent is opened read-only, by pool and image id, at the snapshot it was
 * cloned from: it may have been renamed or moved to the trash meanwhile.  It
 * opens its own parent in the same way, so a chain is a list of images, each
 * of which knows only the next.  A snapshot needs no watch and no lock.
 *
 * Metadata keeps a reference, and so does every request on its way; the image
 * is closed when a flatten has taken the parent away and the last of them is
 * done.  That may be on a librados thread, where nothing may block: the
 * closing is a job, for which the child waits at its end.
 */
#include "parent.h"

#include <string.h>

#include "image.h"
#include "jobs.h"

uint64_t parent_bytes(const struct layout *l, uint64_t overlap,
                      uint64_t object)
{
    uint64_t n = 0;

    while (n < l->object_size) {
        uint64_t run;
        uint64_t off = striper_unmap(l, object, n, &run);

        if (off >= overlap) {
            break;
        }
        n += MIN(run, overlap - off);
        if (run > overlap - off) {
            break;
        }
    }
    return n;
}

bool parent_is(const struct parent *p, const struct header_parent *spec)
{
    return p && p->spec.pool_id == spec->pool_id &&
           p->spec.snap_id == spec->snap_id && !strcmp(p->spec.ns, spec->ns) &&
           !strcmp(p->spec.image_id, spec->image_id);
}

int parent_open(struct pinrbd_image *child, const struct header_parent *spec,
                gint64 deadline_us, struct parent **ret,
                struct pinrbd_error *reterr)
{
    struct pinrbd_image *image;
    struct parent *p;
    int r = image_open_parent(child, spec, deadline_us, &image, reterr);

    if (r < 0) {
        return r;
    }
    p = g_new0(struct parent, 1);
    g_atomic_ref_count_init(&p->refs);
    p->spec = *spec;
    p->image = image;
    p->child = child;
    image_hold(child);
    *ret = p;
    return 0;
}

static void close_job(void *arg)
{
    struct parent *p = arg;
    struct pinrbd_image *child = p->child;

    pinrbd_image_close(p->image);
    g_free(p);
    image_release(child);
}

struct parent *parent_ref(struct parent *p)
{
    if (p) {
        g_atomic_ref_count_inc(&p->refs);
    }
    return p;
}

void parent_unref(struct parent *p)
{
    if (p && g_atomic_ref_count_dec(&p->refs)) {
        job_start("pinrbd-parent", close_job, p);
    }
}
