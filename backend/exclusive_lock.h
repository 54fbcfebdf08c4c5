/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The exclusive lock of an open image: who has it, and how it changes hands.
 */
#ifndef PINRBD_EXCLUSIVE_LOCK_H
#define PINRBD_EXCLUSIVE_LOCK_H

#include <glib.h>

#include "log.h"
#include "timer.h"
#include "watch.h"

struct object_request;
struct pinrbd_image;

enum lock_state {
    LOCK_NONE,              /* not ours */
    LOCK_ACQUIRING,
    LOCK_HELD,              /* writes go */
    LOCK_CHECKING,          /* is it still ours? */
    LOCK_RELEASING,
};

/* Belongs to exclusive_lock.c; all under the image's lock. */
struct image_lock {
    enum lock_state state;
    bool owned;             /* on disk, as far as we know */
    bool left;              /* perhaps on disk: closing looks */
    bool job;               /* a thread is at work on it */
    bool wanted;            /* writes or a control call wait for it */
    bool give_up;           /* another client waits for it */
    bool check;             /* see LOCK_CHECKING */
    bool map_lost;          /* ... the object map's lock, too */
    bool claimed;
    unsigned pins;          /* control calls that need it now */
    unsigned attempts;      /* at acquiring, ended */
    int error;              /* of the last one */
    char cookie[32];
    uint64_t handle;        /* of the watch, in the cookie */
    unsigned heard;         /* messages that may let us go on */
    struct object_request *parked;

    /* whom we made way for, and how long at most */
    struct notify_client peer;
    unsigned hold_off_ms;
    gint64 hold_off_until_us;   /* 0: none */
    struct ptimer alarm;        /* ends a wait of the job */
    bool alarmed;
    /* who asked for maintenance that we do not do, and until when it counts */
    struct notify_client maintainer;
    unsigned maintainer_ms;
    gint64 maintainer_until_us;

    char waits_for[400];    /* for the log, empty: nobody */
    gint64 waits_since_us;
    char said[400];         /* ... what was logged last, and when */
    gint64 said_us;
    char refused_by[200];   /* of the last attempt */
    struct plog_limit failures;
    uint64_t acquired, released;
};

void image_lock_init(struct pinrbd_image *image);

/*
 * May this image be locked through its connection?  -EBUSY: another image
 * handle of this process may lock it; the two could not be told apart.
 */
int image_lock_claim(struct pinrbd_image *image);
void image_lock_unclaim(struct pinrbd_image *image);

/* Does a write need the lock?  Under the image's lock. */
bool image_needs_lock_locked(const struct pinrbd_image *image);
/* ... and may it go? */
bool image_may_write_locked(const struct pinrbd_image *image);

/* A lock is needed now and was not before: writes that wait want it. */
void image_lock_needed_locked(struct pinrbd_image *image);
/* A write waits; from any thread, does not block. */
void image_lock_want(struct pinrbd_image *image);
/* The object map is not ours any more: @o is sent again when it is. */
void image_lock_park(struct pinrbd_image *image, struct object_request *o);
void image_lock_lost(struct pinrbd_image *image);
/* No write may go any more: those that wait for the map's lock end. */
void image_lock_refuse(struct pinrbd_image *image, int error);

/* The watch is back, under another cookie perhaps. */
void image_lock_check(struct pinrbd_image *image);
/* The lock is not needed any more (feature off, image dead). */
void image_lock_forget(struct pinrbd_image *image, int error);

/* Messages of other clients. */
void image_lock_heard(struct pinrbd_image *image, const struct notify_msg *m);
/* True: we own it, and *@ret_answer goes into the acknowledgement. */
bool image_lock_requested(struct pinrbd_image *image,
                          const struct notify_client *client,
                          int *ret_answer);
/* @client will ask for the lock, for maintenance that may take @hold_off_ms. */
void image_lock_expect(struct pinrbd_image *image,
                       const struct notify_client *client,
                       unsigned hold_off_ms);

/*
 * For a control call: have the lock and keep it until unpinned.  0 also where
 * the image has no lock.  Blocks.
 */
int image_lock_pin(struct pinrbd_image *image, gint64 deadline_us);
void image_lock_unpin(struct pinrbd_image *image);

/*
 * No write is left and none may come: stop what is going on, give the lock
 * back.  Blocks.
 */
void image_lock_close(struct pinrbd_image *image, gint64 deadline_us);

/* The object map of the present header, again from disk.  With a pin. */
int image_map_reload(struct pinrbd_image *image, gint64 deadline_us);

#endif
