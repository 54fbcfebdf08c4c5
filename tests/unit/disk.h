/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An image opened on the fake cluster, and requests that check the promises
 * about their completion: exactly one, never from inside the submit.
 *
 * What needs a job of the library (the lock, maintenance, parents) happens on
 * threads, so a test drives clock and cluster until it is there: DRIVE_UNTIL().
 */
#ifndef DISK_H
#define DISK_H

#include "fake_rados.h"
#include "include/pinrbd.h"

struct disk {
    struct pinrbd_cluster *cluster;
    struct fake_image *img;         /* what the cluster has */
    struct pinrbd_image *image;     /* what was opened */
    struct pinrbd_image_options o;
    struct pinrbd_error err;
    unsigned n_resized;             /* atomic */
};

/*
 * Manual mode; image "disk" of @size bytes in pool "rbd", not open yet; @o
 * says the same.
 */
void disk_init(struct disk *d, uint64_t size, uint8_t order);
/*
 * A control call on another thread, while this one runs queue and clock until
 * it is over.
 */
int disk_call(struct disk *d, int (*fn)(struct disk *d));
int disk_open(struct disk *d);
void disk_close(struct disk *d);        /* takes a disk that is not open */
/* Close, and everything else goes too. */
void disk_finish(struct disk *d);

/* A control call on another thread, while this one runs the fake. */
struct background {
    GThread *thread;
    struct disk *d;
    int (*fn)(struct disk *d);
    int result;
    int over;                           /* atomic */
};
void background_start(struct background *b, struct disk *d,
                      int (*fn)(struct disk *d));
bool background_over(struct background *b);
int background_join(struct background *b);
/* Let clock and queue run until it is over. */
int background_drive(struct background *b);

/* One turn of the cluster and of the clock, and a moment for other threads. */
void disk_turn(void);
/* Until then; a test that would never end fails. */
#define DRIVE_UNTIL(condition) \
    do { \
        for (unsigned turns_ = 0; !(condition); turns_++) { \
            if (turns_ > 20000) { \
                fail_msg("it did not come to: %s", #condition); \
            } \
            disk_turn(); \
        } \
    } while (0)

int do_refresh(struct disk *d);
int do_activate(struct disk *d);
int do_inactivate(struct disk *d);
int do_open(struct disk *d);
int do_close(struct disk *d);

/* ---- requests ------------------------------------------------------------ */

struct io {
    unsigned n_done;                    /* atomic */
    int result;
    bool at_once;                       /* finished inside the submit */
    uint8_t *buf;
    size_t len;
    struct iovec iov[8];
    int n_iov;
};

/* The bytes are cut into a few iovecs; freed by io_free(). */
void io_prepare(struct io *io, size_t len, uint8_t fill);
void io_free(struct io *io);
void io_read(struct disk *d, struct io *io, uint64_t off);
void io_write(struct disk *d, struct io *io, uint64_t off);
void io_read_iov(struct disk *d, struct io *io, uint64_t off, uint64_t len,
                 const struct iovec *iov, int n_iov);
void io_write_iov(struct disk *d, struct io *io, uint64_t off, uint64_t len,
                  const struct iovec *iov, int n_iov);
void io_discard(struct disk *d, struct io *io, uint64_t off, uint64_t len);
void io_zeroes(struct disk *d, struct io *io, uint64_t off, uint64_t len,
               unsigned flags);
void io_flush(struct disk *d, struct io *io);
/* 0 while it is under way. */
unsigned io_done(const struct io *io);
/* It is done, once, with @result. */
void io_expect(const struct io *io, int result);
/* Drive until it is done; its result. */
int io_wait(struct io *io);
/* Whole requests in manual mode: submit, run, expect, free. */
void write_now(struct disk *d, uint64_t off, size_t len, uint8_t fill);
int write_result(struct disk *d, uint64_t off, size_t len);
/* All @len bytes from @off on are @fill. */
void read_expect(struct disk *d, uint64_t off, size_t len, uint8_t fill);

/* ---- the log ------------------------------------------------------------- */

/* Note the library's lines from now on, until disk_finish(). */
void hear_log(void);
/* How many of them match. */
unsigned heard(const char *match);
/* What was asked of the cluster, and said, before a test fails. */
void print_log(void);
/* Line number of the first request that matches, from @from on. */
unsigned line_of(const char *match, unsigned from);
/* Exactly one request of the cluster's log matches. */
void expect_line(const char *match);

/* ---- the lock ------------------------------------------------------------ */

/* As the cluster has it. */
bool we_hold(struct disk *d);

/* ---- other clients ------------------------------------------------------- */

/*
 * Make the image a clone with @overlap of @parent's newest snapshot.  Its own
 * features stay.
 */
void make_clone(struct disk *d, const struct fake_image *parent,
                uint64_t overlap);
/*
 * Read as librbd would, without striping: a map that is valid is believed, and
 * what is absent comes from the parent.
 */
void other_client_read(const struct fake_image *img, uint64_t snap,
                       uint64_t off, uint8_t *buf, size_t len);
/* What another client does: write @fill with its own snapshot context. */
void other_client_write(struct disk *d, const char *oid, uint64_t seq,
                        const uint64_t *ids, size_t n, uint8_t fill);

#endif
