/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A run of the library, once for each request it makes of the cluster, each
 * time with something else going wrong at that request.
 */
#ifndef MISHAP_H
#define MISHAP_H

#include "disk.h"

/* What goes wrong. */
struct mishap {
    const char *name;
    const char *match;          /* at which requests */
    enum fake_fault_kind kind;
    int err;                    /* FAKE_FAIL, FAKE_FAIL_AFTER */
    /* FAKE_HOLD: what happens while the request is on its way */
    void (*event)(struct disk *d);
};

/* A run. */
struct trial {
    void (*prepare)(struct disk *d);    /* from disk_init() on */
    void (*begin)(struct disk *d);      /* what is tried; does not wait */
    bool (*over)(struct disk *d);
    /* What has come of it; the image is still open.  @m NULL: nothing was. */
    void (*check)(struct disk *d, const struct mishap *m);
    /* The image is closed. */
    void (*check_closed)(struct disk *d, const struct mishap *m);
};

/*
 * Run @t once undisturbed, then with @m at each request.  Returns how many
 * there were.
 */
unsigned try_with(struct disk *d, const struct trial *t,
                  const struct mishap *m);

/* Everything that is known to go wrong. */
extern const struct mishap mishaps[];
extern const size_t n_mishaps;
void try_all(struct disk *d, const struct trial *t);
/* For cmocka: says what went wrong when a test failed in the middle. */
int try_teardown(void **state);

/* May a request of this run have ended with @result? */
bool result_fits(const struct mishap *m, int result);
/* Did the cluster shut us out? */
bool was_fenced(const struct mishap *m);

/* Another client asks for the lock: gid, and the handle of its watch. */
#define PEER 4711
#define PEER_HANDLE 99
#define PEER_COOKIE "auto 99"
uint64_t peer_asks(struct disk *d, uint64_t gid);
/* ... says that it gave it back */
void peer_releases(struct disk *d, uint64_t gid);
/* ... is alive and has it; it refuses or lets go as fake_peer_answer() says */
void peer_holds(struct disk *d);

#endif
