/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * See mishap.h.  A request is held, while it is on its way something happens,
 * and then it goes on: so an event can come between any two requests.
 */
#include "check.h"

#include <errno.h>

#include "fake_timer.h"
#include "mishap.h"

uint64_t peer_asks(struct disk *d, uint64_t gid)
{
    uint8_t m[] = {
        7, 1, 21, 0, 0, 0, 2, 0, 0, 0, gid & 255, gid >> 8, 0, 0, 0, 0, 0, 0,
        PEER_HANDLE, 0, 0, 0, 0, 0, 0, 0, 0,
    };

    return fake_notify_send_from(d->img->header, gid, m, sizeof(m));
}

void peer_releases(struct disk *d, uint64_t gid)
{
    uint8_t m[] = {
        7, 1, 20, 0, 0, 0, 1, 0, 0, 0, gid & 255, gid >> 8, 0, 0, 0, 0, 0, 0,
        PEER_HANDLE, 0, 0, 0, 0, 0, 0, 0,
    };

    fake_notify_send_from(d->img->header, gid, m, sizeof(m));
}

void peer_holds(struct disk *d)
{
    fake_peer_add(d->img->header, PEER, PEER_HANDLE);
    fake_lock_hold(d->img, PEER, PEER_COOKIE, "internal");
}

/* ---- what happens -------------------------------------------------------- */

static void lose_watch(struct disk *d)
{
    fake_lose_watch(d->img->header, -ENOTCONN);
}

static void update(struct disk *d)
{
    fake_image_touch(d->img);
    fake_notify_send(d->img->header, NULL, 0);
}

/* As the dashboards do, and whoever else believes that we are dead. */
static void shut_out(struct disk *d)
{
    fake_blocklist_self();
}

/* A peer that takes the lock when it gets it, and gives it back when asked. */
static void ask(struct disk *d)
{
    fake_peer_add(d->img->header, PEER, PEER_HANDLE);
    fake_peer_answer(d->img->header, PEER, 2, FAKE_YIELD);
    peer_asks(d, PEER);
}

const struct mishap mishaps[] = {
    { "EIO", "*", FAKE_FAIL, -EIO, NULL },
    { "EBUSY", "*", FAKE_FAIL, -EBUSY, NULL },
    { "EEXIST", "*", FAKE_FAIL, -EEXIST, NULL },
    { "ETIMEDOUT", "*", FAKE_FAIL, -ETIMEDOUT, NULL },
    { "ECANCELED", "*", FAKE_FAIL, -ECANCELED, NULL },
    { "ESHUTDOWN", "*", FAKE_FAIL, -ESHUTDOWN, NULL },
    /* of data objects it is an answer, not a failure */
    { "ENOENT of the header", "call rbd_header*", FAKE_FAIL, -ENOENT, NULL },
    { "ENOENT of a map", "call rbd_object_map*", FAKE_FAIL, -ENOENT, NULL },
    { "a lost answer", "*", FAKE_FAIL_AFTER, -ETIMEDOUT, NULL },
    { "a lost watch", "*", FAKE_HOLD, 0, lose_watch },
    { "a header update", "*", FAKE_HOLD, 0, update },
    { "blocklisting", "*", FAKE_HOLD, 0, shut_out },
    { "a request for the lock", "*", FAKE_HOLD, 0, ask },
};
const size_t n_mishaps = G_N_ELEMENTS(mishaps);

bool was_fenced(const struct mishap *m)
{
    return m && (m->event == shut_out || m->err == -ESHUTDOWN);
}

bool result_fits(const struct mishap *m, int result)
{
    return result == 0 || (m && result == m->err) ||
           (was_fenced(m) && result == -ESHUTDOWN);
}

/* ---- one run ------------------------------------------------------------- */

static const char *trying;      /* NULL: nothing */
static unsigned step;
static bool broken;             /* a test failed in the middle */
static bool verbose;

/* True: the mishap came to pass. */
static bool try_once(struct disk *d, const struct trial *t,
                     const struct mishap *m, unsigned skip)
{
    unsigned hits;
    bool happened = false;

    if (verbose) {
        print_message("%s at request %u\n", trying, step);
    }
    t->prepare(d);
    hear_log();
    hits = fake_fault_hits();
    if (m) {
        fake_fault_add(&(struct fake_fault) {
            .match = m->match, .skip = skip, .kind = m->kind, .err = m->err,
        });
    }
    t->begin(d);
    for (unsigned i = 0; !t->over(d) || fake_pending(); i++) {
        if (i > 20000) {
            fail_msg("it does not end");
        }
        disk_turn();
        if (fake_fault_hits() != hits && !happened) {
            happened = true;
            if (m->event) {
                m->event(d);
            }
            fake_release("*");
        }
    }
    fake_faults_clear();
    t->check(d, m);
    disk_close(d);
    assert_int_equal(fake_pending(), 0);
    assert_int_equal(fake_watchers(d->img->header), 0);
    t->check_closed(d, m);
    disk_finish(d);
    return happened;
}

unsigned try_with(struct disk *d, const struct trial *t,
                  const struct mishap *m)
{
    bool happened;

    if (broken) {
        skip();                 /* what is left of it cannot be taken down */
    }
    verbose = g_getenv("PINRBD_TRIALS");
    trying = "nothing";
    step = 0;
    try_once(d, t, NULL, 0);
    trying = m->name;
    do {
        happened = try_once(d, t, m, step++);
    } while (happened);
    trying = NULL;
    return step - 1;
}

void try_all(struct disk *d, const struct trial *t)
{
    for (size_t i = 0; i < n_mishaps; i++) {
        (void)try_with(d, t, &mishaps[i]);
    }
}

int try_teardown(void **state)
{
    if (trying && !broken) {
        broken = true;
        print_message("with %s at request %u\n", trying, step - 1);
    }
    return 0;
}
