/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An open image.
 */
#ifndef PINRBD_IMAGE_H
#define PINRBD_IMAGE_H

#include <glib.h>

#include "cluster.h"
#include "exclusive_lock.h"
#include "image_header.h"
#include "log.h"
#include "maintenance.h"
#include "parent.h"
#include "queue.h"
#include "request.h"
#include "striper.h"
#include "timer.h"
#include "watch.h"

struct pinrbd_image {
    /* fixed after open */
    struct pinrbd_cluster *cluster;
    struct rados_pool *md_pool;     /* header; head revision */
    struct rados_pool *data_pool;   /* data; the opened revision */
    struct pinrbd_settings *settings;   /* a copy */
    struct layout layout;
    uint64_t snap_id;               /* RADOS_NOSNAP: the head */
    int64_t data_pool_id;
    char *spec;                     /* POOL/[NS/]IMAGE[@SNAP], for messages */
    char id[32];
    char header_oid[64];
    char oid_prefix[104];           /* of data objects, with the dot */
    size_t oid_prefix_len;
    struct pinrbd_image *child;     /* whose parent this is, or NULL */
    unsigned depth;                 /* in a chain of parents; 0: the image */
    void (*resized)(void *opaque);
    void *opaque;

    struct queue queues[QUEUES];    /* their own locks, inside `lock' */
    struct object_stripe stripes[STRIPES];  /* likewise */
    struct copyups copyups;                 /* likewise */

    GMutex control;                 /* one control call at a time; outermost */
    GMutex lock;
    GCond changed;
    /* under lock */
    struct image_meta *meta;        /* references */
    struct object_map *map;         /* NULL: none to be used */
    struct image_lock lk;
    struct maintenance maintenance;
    uint64_t told_size;             /* bytes, by `resized' or at open */
    uint64_t size_limit;            /* while it shrinks: the size to be */
    unsigned gates;                 /* as in every queue */
    bool writable;                  /* watched, writes admitted */
    bool loading;                   /* no refresh yet, see image_loaded() */
    bool closing;
    bool watch_lost;
    int dead;                       /* why all I/O fails, or 0 */
    unsigned holds;
    bool refreshing;
    uint64_t refresh_started;       /* counts fetches */
    uint64_t refresh_wanted;        /* the newest fetch somebody needs */
    uint64_t refresh_done;
    int refresh_result;
    struct object_request *parked;  /* wait for a newer snapshot context */
    GArray *acks;                   /* notify ids that wait for the refresh */
    bool quiescing;                 /* drain, then ack quiesce_notify */
    uint64_t quiesce_notify;
    uint64_t n_refreshes;

    bool fetching;
    struct header_fetch fetch;      /* while fetching */
    struct header_watch watch;
    struct ptimer retry;            /* of a failed refresh */
    struct ptimer tick;             /* the watchdog's look at this image */
    struct ptimer unquiesce;
    struct plog_limit slow_limit;
    /* by a clock that does not stop while the host is suspended */
    gint64 alive_us;                /* atomic; the watchdog's last look */
    gint64 lease_us;                /* atomic; see image_trusts_map() */
    uint64_t parent_epoch;          /* atomic; changes with parent, overlap */
    uint64_t map_ops;               /* atomic; of maps that are gone */
};

uint64_t image_gid(const struct pinrbd_image *image);
/* client.NAME, for messages about what it may not do. */
const char *image_user(const struct pinrbd_image *image);
/* Send @m to the watchers and wait; as rados_notify_sync(). */
int image_notify(struct pinrbd_image *image, const struct notify_msg *m,
                 GByteArray *reply);

/*
 * References to the metadata, and to the map, in force.  image_view: 0, or why
 * all I/O fails.
 */
struct image_meta *image_meta(struct pinrbd_image *image);
int image_view(struct pinrbd_image *image, struct image_meta **ret_meta,
               struct object_map **ret_map);
/* Use @map, whose reference is taken (NULL: none), instead of the present. */
void image_set_map(struct pinrbd_image *image, struct object_map *map);
/*
 * May a read leave out an object that the map does not have, @parent_len bytes
 * of which the parent would have?  For the head only while it is certain that
 * our lock has not been broken, because our watch was confirmed lately.
 */
bool image_trusts_map(struct pinrbd_image *image, uint64_t parent_len);
/* The watch was confirmed, as far as librados knows. */
void image_renew_lease(struct pinrbd_image *image);

/* Close and open gates; what may go then goes. */
void image_gate(struct pinrbd_image *image, unsigned set, unsigned clear);
/* GATE_LOCK as the header and the lock's state want it. */
void image_gate_for_lock(struct pinrbd_image *image);
/* End with @error what waits at the gates. */
void image_fail_waiting(struct pinrbd_image *image, int error);
/* Both under the image's lock. */
bool image_has_waiting(struct pinrbd_image *image);
unsigned image_active_writes(struct pinrbd_image *image);

/* @o was refused for its old snapshot context: send it after a refresh. */
void image_park(struct pinrbd_image *image, struct object_request *o);
/* An operation said that this client is blocklisted. */
void image_fenced(struct pinrbd_image *image);

/* Keep the image while its last request goes; under a queue's lock. */
void image_hold(struct pinrbd_image *image);
void image_release(struct pinrbd_image *image);
/* A queue with a closed gate has no write on its way any more. */
void image_drained(struct pinrbd_image *image);

/*
 * Before a write: if this process stood still for long, its watch may be gone
 * without its knowing; then writes are held until the header has been read.
 */
void image_check_stall(struct pinrbd_image *image);

/* The timers and the watch's callbacks; start after a successful open. */
void image_follow_init(struct pinrbd_image *image);
void image_follow_start(struct pinrbd_image *image);
/* Nothing is watched now; a watch that was lost before does not count. */
void image_watch_anew(struct pinrbd_image *image);

/*
 * The caller that set `loading', to read and publish the header by itself, has
 * done so: updates that came meanwhile are followed now.
 */
void image_loaded(struct pinrbd_image *image);

/*
 * Read the header in a reading that begins from now on, wait for its end, and
 * use what it found.
 */
int image_refresh_sync(struct pinrbd_image *image, gint64 deadline_us);

/*
 * Can @meta be used for this image's revision?  Otherwise -errno and why, as
 * the rest of a sentence that begins with the image.
 */
int image_judge(struct pinrbd_image *image, const struct image_meta *meta,
                bool writable, uint64_t *ret_size, char *buf, size_t size);
/*
 * Set what @meta says of the parent of the opened revision, with a link to it:
 * the one in use if it is the same, else it is opened.  With a NULL @deadline
 * nothing blocks, and -EAGAIN says that it would.
 */
int image_link_parent(struct pinrbd_image *image, struct image_meta *meta,
                      const gint64 *deadline_us, struct pinrbd_error *reterr);
/* Use @meta, whose reference is taken and which is linked, from now on. */
void image_publish(struct pinrbd_image *image, struct image_meta *meta,
                   uint64_t size, int write_error);

/* Open @spec read-only, as the parent of @child. */
int image_open_parent(struct pinrbd_image *child,
                      const struct header_parent *spec, gint64 deadline_us,
                      struct pinrbd_image **ret, struct pinrbd_error *reterr);

/* Names of feature bits, with commas. */
void image_list_features(uint64_t bits, char *buf, size_t size);
/*
 * What keeps @meta from being used, as one text; 0, -ENOSYS, or -EROFS for
 * what forbids writing only.
 */
int image_check_features(const struct image_meta *meta, bool writable,
                         char *buf, size_t size);

#endif
