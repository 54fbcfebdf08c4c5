/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One client writes to an image at a time: the one whose lock is on the header
 * object.  The lock is taken for the first write, not at open: a second VM that
 * only has the disk attached, the target of a migration, a tool that reads, do
 * not take it away from anybody.  With lock-policy=exclusive it is taken at
 * open, so that a second VM fails to start instead of stealing the disk.
 *
 * The cookie of the lock names our watch on the header.  By it others see
 * whether we are alive; when the watch is registered anew, the cookie follows.
 *
 *                 write waits                      locked, header read,
 *      NONE ------------------------> ACQUIRING -- map loaded ----> HELD
 *       ^ ^                               |                         | ^ |
 *       | +-- refused (-EROFS), feature --+      watch anew, map    v | |
 *       |     off, closing                       locked by others CHECKING
 *       |                                                  lost |       |
 *       +<------------------------------------------------------+       |
 *       +<-- unlocked, told -- RELEASING <-- somebody asked for it -----+
 *
 * Each state between NONE and HELD is a job: a thread that exists while there
 * is something to do, since blocklisting and waiting for others block.  Writes
 * wait at GATE_LOCK meanwhile.  Events (messages, drained writes, the watch)
 * wake the job through image->changed.
 *
 * Acquiring.  Whoever has the lock is asked for it (RequestLock).  The answer
 * comes with the list of all watchers: an owner that is not in it is dead.  It
 * is blocklisted first, so that writes of it that are still on their way fail,
 * and only then is its lock broken.  This is the one thing that takes long,
 * for a dead client's watch lives on for the cluster's watch timeout (30 s).
 *
 * Giving up.  A client that asks gets the lock after the writes on their way
 * are done; if writes are waiting then, we ask for it back after a pause: a
 * short one, or, where that client asked for maintenance before, until it says
 * that it is done.  Asking back at once would cancel its work, and it would
 * begin again.
 *
 * Being fenced (-ESHUTDOWN from anything) is the end of the image, not of the
 * lock: image_fenced().
 */
#include "exclusive_lock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "change.h"
#include "cls_lock.h"
#include "image.h"
#include "jobs.h"
#include "rados_sync.h"
#include "request.h"

#define OP_MS 5000              /* one operation of a job */
#define NOTIFY_MS 5000          /* as librbd */
#define FULFIL_MS 10000         /* an owner that agreed is asked again after */
#define RETRY_MS 1000
#define LISTED_MS 100           /* an owner that is there but did not answer */
#define FOREIGN_MS 2000
#define REFUSALS 10             /* so often it may be meant for a moment */
#define PAUSE_MS 50             /* before a lock given to a writer is wanted */
#define CHANGED_MS 200          /* ... after a maintainer changed the header */
#define LOG_EVERY_MS 30000
#define PATIENCE_MS 2000        /* before a wait is worth a line */

enum step {
    STEP_NOTHING,
    STEP_ACQUIRE,
    STEP_CHECK,
    STEP_RELEASE,
};

static bool same_client(const struct notify_client *a,
                        const struct notify_client *b)
{
    return a->gid == b->gid && a->handle == b->handle;
}

/* ---- what is needed ------------------------------------------------------ */

bool image_needs_lock_locked(const struct pinrbd_image *image)
{
    return image->writable && image->meta &&
           image->meta->features & PINRBD_FEATURE_EXCLUSIVE_LOCK;
}

bool image_may_write_locked(const struct pinrbd_image *image)
{
    return !image_needs_lock_locked(image) || image->lk.state == LOCK_HELD ||
           image->lk.state == LOCK_RELEASING;
}

static bool stopping_locked(const struct pinrbd_image *image)
{
    return image->dead || image->closing || !image->writable;
}

static enum step next_step_locked(const struct pinrbd_image *image)
{
    const struct image_lock *lk = &image->lk;

    if (stopping_locked(image) || !image_needs_lock_locked(image)) {
        return STEP_NOTHING;
    }
    switch (lk->state) {
    case LOCK_NONE:
        return lk->wanted ? STEP_ACQUIRE : STEP_NOTHING;
    case LOCK_HELD:
        return lk->check ? STEP_CHECK :
               lk->give_up && !lk->pins ? STEP_RELEASE : STEP_NOTHING;
    default:
        return STEP_NOTHING;
    }
}

static void lock_job(void *opaque);

static void kick_locked(struct pinrbd_image *image)
{
    if (!image->lk.job && next_step_locked(image) != STEP_NOTHING) {
        image->lk.job = true;
        image_hold(image);
        job_start("pinrbd-lock", lock_job, image);
    }
}

void image_lock_needed_locked(struct pinrbd_image *image)
{
    image->lk.wanted |= image_has_waiting(image);
    kick_locked(image);
}

void image_lock_want(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->lk.wanted = true;
    kick_locked(image);
}

/* Resend, or end, what waited for the map's lock. */
static void resend_parked(struct pinrbd_image *image, int error)
{
    struct object_request *o;
    struct object_request *next;

    g_mutex_lock(&image->lock);
    o = image->lk.parked;
    if (error == 0 && !image_may_write_locked(image)) {
        o = NULL;               /* needed again already: they go on waiting */
    } else {
        image->lk.parked = NULL;
    }
    g_mutex_unlock(&image->lock);
    for (; o; o = next) {
        next = o->list_next;
        object_request_resend(o, error);
    }
}

void image_lock_refuse(struct pinrbd_image *image, int error)
{
    resend_parked(image, error);
}

void image_lock_lost(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->lk.check = true;
    image->lk.map_lost = true;
    image->lk.wanted = true;
    g_cond_broadcast(&image->changed);
    kick_locked(image);
}

void image_lock_park(struct pinrbd_image *image, struct object_request *o)
{
    int dead;

    g_mutex_lock(&image->lock);
    dead = image->dead ?: image->writable ? 0 : -EROFS;
    if (!dead) {
        o->list_next = image->lk.parked;
        image->lk.parked = o;
        image->lk.wanted = true;
        kick_locked(image);
    }
    g_mutex_unlock(&image->lock);
    if (dead) {
        object_request_resend(o, dead);
    }
}

/* ---- the job's tools ----------------------------------------------------- */

static void alarm_fired(struct ptimer *t)
{
    struct pinrbd_image *image =
        (void *)((char *)t - offsetof(struct pinrbd_image, lk.alarm));
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->lk.alarmed = true;
    g_cond_broadcast(&image->changed);
}

void image_lock_init(struct pinrbd_image *image)
{
    image->lk.alarm.fire = alarm_fired;
}

/* The messages so far: what comes after is an event. */
static unsigned heard_now(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    return image->lk.heard;
}

/* Wait for an event after @heard, at most @ms; false: the job has to end. */
static bool wait_since(struct pinrbd_image *image, unsigned heard, unsigned ms)
{
    struct image_lock *lk = &image->lk;
    bool go_on;

    g_mutex_lock(&image->lock);
    lk->alarmed = false;
    ptimer_arm(&lk->alarm, ms);
    while (!stopping_locked(image) && lk->heard == heard && !lk->alarmed) {
        g_cond_wait(&image->changed, &image->lock);
    }
    go_on = !stopping_locked(image);
    g_mutex_unlock(&image->lock);
    ptimer_cancel(&lk->alarm);
    return go_on;
}

static bool wait_event(struct pinrbd_image *image, unsigned ms)
{
    return wait_since(image, heard_now(image), ms);
}

static gint64 soon(void)
{
    return deadline_after(OP_MS);
}

/*
 * An operation of the job failed.  True: try again, after a pause; false: the
 * image is at its end.
 */
static bool can_retry(struct pinrbd_image *image, int error, const char *doing)
{
    unsigned held_back;

    if (error == -ESHUTDOWN) {
        image_fenced(image);
        return false;
    }
    if (plog_limit_pass(&image->lk.failures, LOG_EVERY_MS, &held_back)) {
        plog(PINRBD_LOG_WARN, "image '%s': cannot %s: %s; it is tried again, "
             "writes wait", image->spec, doing, g_strerror(-error));
    }
    return wait_event(image, RETRY_MS);
}

static void notify_all(struct pinrbd_image *image, enum notify_op op,
                       uint64_t handle)
{
    struct notify_msg m = {
        .op = op, .client = { image_gid(image), handle },
    };

    (void)image_notify(image, &m, NULL);
}

/*
 * For whom we wait: kept for the watchdog, and logged once it takes long, for
 * a lock that changes hands in a moment is nothing to report.
 */
static void say_waiting(struct pinrbd_image *image,
                        const struct lock_owner *owner)
{
    struct image_lock *lk = &image->lk;
    gint64 now_us = g_get_monotonic_time();
    gint64 patience_us = owner->internal ? PATIENCE_MS * 1000 : 0;
    char text[sizeof(lk->waits_for)];
    bool say;

    if (owner->internal) {
        snprintf(text, sizeof(text), "its lock, which client.%" PRIu64 " (%s) "
                 "has", owner->gid, owner->address);
    } else {
        snprintf(text, sizeof(text), "its lock, which client.%" PRIu64 " (%s) "
                 "holds by another mechanism (id '%.200s'), like `rbd lock "
                 "add'",
                 owner->gid, owner->address[0] ? owner->address
                                               : "no address", owner->cookie);
    }
    g_mutex_lock(&image->lock);
    if (strcmp(lk->waits_for, text)) {
        g_strlcpy(lk->waits_for, text, sizeof(lk->waits_for));
        lk->waits_since_us = now_us;
    }
    say = now_us - lk->waits_since_us >= patience_us &&
          (strcmp(lk->said, text) || now_us - lk->said_us >=
           LOG_EVERY_MS * G_GINT64_CONSTANT(1000));
    if (say) {
        g_strlcpy(lk->said, text, sizeof(lk->said));
        lk->said_us = now_us;
    }
    g_mutex_unlock(&image->lock);
    if (say) {
        plog(PINRBD_LOG_WARN, "image '%s': writes wait for %s", image->spec,
             text);
    }
}

/* ---- acquiring ----------------------------------------------------------- */

/* Who another part of this process is cannot be told from ourselves. */
int image_lock_claim(struct pinrbd_image *image)
{
    g_autofree char *key = g_strdup_printf("%" PRId64 "/%s/%s",
                                           image->md_pool->id,
                                           image->md_pool->ns, image->id);
    int r = 0;

    g_mutex_lock(&image->lock);
    if (!image->lk.claimed) {
        r = cluster_claim(image->cluster, key);
        image->lk.claimed = r == 0;
    }
    g_mutex_unlock(&image->lock);
    return r;
}

void image_lock_unclaim(struct pinrbd_image *image)
{
    g_autofree char *key = NULL;

    if (image->lk.claimed) {
        key = g_strdup_printf("%" PRId64 "/%s/%s", image->md_pool->id,
                              image->md_pool->ns, image->id);
        cluster_unclaim(image->cluster, key);
        image->lk.claimed = false;
    }
}

/* The owner's watch is gone: shut it out, then take its lock away. */
static bool break_dead(struct pinrbd_image *image,
                       const struct lock_owner *owner)
{
    struct rados_conn *conn = image->cluster->conn;
    struct lock_owner now;
    int r = lock_get_owner(image->md_pool, image->header_oid, soon(), &now);

    if (r <= 0 || now.gid != owner->gid || strcmp(now.cookie, owner->cookie)) {
        return true;            /* it is another now, or nobody */
    }
    plog(PINRBD_LOG_WARN, "image '%s': client.%" PRIu64 " (%s), the owner of "
         "its lock, is dead: blocklisting it and taking the lock",
         image->spec, owner->gid, owner->address);
    r = conn->t->blocklist(conn, owner->address);
    if (r < 0) {
        plog(PINRBD_LOG_ERROR, "image '%s': cannot blocklist client.%" PRIu64
             " (%s): %s%s%s; its lock stays and writes wait", image->spec,
             owner->gid, owner->address, g_strerror(-r),
             r == -EPERM || r == -EACCES ? "; the monitor capability "
             "`profile rbd' (osd blocklist add) is needed by " : "",
             r == -EPERM || r == -EACCES ? image_user(image) : "");
        return wait_event(image, FULFIL_MS);
    }
    r = lock_break(image->md_pool, image->header_oid, owner, soon());
    return r == 0 || r == -ENOENT ||
           can_retry(image, r, "break the lock of a dead client");
}

/*
 * Ask the owner for the lock and wait for what comes of it.  0: look again;
 * -EROFS: it refuses, for long now; -ECANCELED: the job has to end.
 */
static int ask_owner(struct pinrbd_image *image,
                     const struct lock_owner *owner, uint64_t handle,
                     unsigned *refusals)
{
    struct notify_client who = { owner->gid, owner->handle };
    struct notify_msg m = {
        .op = NOTIFY_REQUEST_LOCK, .client = { image_gid(image), handle },
    };
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    struct notify_reply reply;
    unsigned heard = heard_now(image);
    bool go_on = true;
    int r = image_notify(image, &m, bytes);

    if (r < 0 && r != -ETIMEDOUT) {
        return can_retry(image, r, "ask the owner for its lock") ? 0
                                                                 : -ECANCELED;
    }
    if (notify_reply_decode(bytes->data, bytes->len, &who, &reply) < 0) {
        return can_retry(image, -EBADMSG, "understand the answers to a "
                         "request for its lock") ? 0 : -ECANCELED;
    }
    if (!reply.answered || reply.result != -EROFS) {
        *refusals = 0;
    }
    if (!reply.answered && !reply.listed) {
        go_on = break_dead(image, owner);
    } else if (!reply.answered) {
        go_on = wait_since(image, heard, LISTED_MS);
    } else if (reply.result == 0) {
        /* not if it was released while we waited for all the answers */
        go_on = wait_since(image, heard, FULFIL_MS);
    } else if (reply.result == -EROFS && ++*refusals > REFUSALS) {
        return -EROFS;
    } else {
        go_on = wait_event(image, RETRY_MS);
    }
    return go_on ? 0 : -ECANCELED;
}

/* A job ends without knowing whether the lock is on disk. */
static void left_behind(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->lk.left = true;
}

/*
 * Get the lock on the header.  0: it is ours, image->lk has the cookie; 1: it
 * is not needed any more; -EROFS, -EBUSY: refused; -ECANCELED: to end.
 */
static int lock_header(struct pinrbd_image *image)
{
    struct image_lock *lk = &image->lk;
    unsigned refusals = 0;
    struct lock_owner owner;
    char cookie[sizeof(lk->cookie)];
    uint64_t handle;
    bool needed;
    int r = image_lock_claim(image);

    if (r < 0) {
        plog(PINRBD_LOG_ERROR, "image '%s': is open for writing twice through "
             "one connection; use cluster-handle=own", image->spec);
        return r;
    }
    for (;;) {
        g_mutex_lock(&image->lock);
        needed = image_needs_lock_locked(image);
        r = stopping_locked(image) ? -ECANCELED : 0;
        g_mutex_unlock(&image->lock);
        if (r < 0 || !needed) {
            return r < 0 ? r : 1;
        }
        if (!watch_cookie(&image->watch, &handle)) {
            wait_event(image, RETRY_MS);
            continue;
        }
        snprintf(cookie, sizeof(cookie), LOCK_COOKIE_PREFIX "%" PRIu64,
                 handle);
        r = lock_get_owner(image->md_pool, image->header_oid, soon(), &owner);
        if (r > 0 && owner.gid == image_gid(image)) {
            /* ours: of an attempt that timed out, or of an earlier watch */
            if (!strcmp(owner.cookie, cookie)) {
                break;
            }
            r = lock_break(image->md_pool, image->header_oid, &owner, soon());
            if (r == 0 || r == -ENOENT) {
                continue;
            }
        } else if (r > 0 && !owner.internal) {
            say_waiting(image, &owner);
            wait_event(image, FOREIGN_MS);
            continue;
        } else if (r > 0) {
            say_waiting(image, &owner);
            r = ask_owner(image, &owner, handle, &refusals);
            if (r == -EROFS) {
                g_mutex_lock(&image->lock);
                snprintf(lk->refused_by, sizeof(lk->refused_by), "client.%"
                         PRIu64 " (%s) has it and does not give it up",
                         owner.gid, owner.address);
                g_mutex_unlock(&image->lock);
                plog(PINRBD_LOG_ERROR, "image '%s': writes fail without its "
                     "exclusive lock: %s", image->spec, lk->refused_by);
            }
            if (r < 0) {
                return r;
            }
            continue;
        } else if (r == 0) {
            r = lock_take(image->md_pool, image->header_oid, cookie, LOCK_TAG,
                          soon());
            if (r == 0) {
                break;
            }
            if (r == -EBUSY || r == -EEXIST) {
                continue;       /* somebody was faster, or we were: look */
            }
            left_behind(image);
        }
        if (r == -EPERM || r == -EACCES) {
            plog(PINRBD_LOG_ERROR, "image '%s': writes fail without its "
                 "exclusive lock: %s; %s needs the OSD capability `profile "
                 "rbd' on the pool", image->spec, g_strerror(-r),
                 image_user(image));
            return r;
        }
        (void)can_retry(image, r, "take its lock");
    }
    g_mutex_lock(&image->lock);
    g_strlcpy(lk->cookie, cookie, sizeof(lk->cookie));
    lk->handle = handle;
    lk->owned = true;
    lk->left = false;
    g_mutex_unlock(&image->lock);
    return 0;
}

int image_map_reload(struct pinrbd_image *image, gint64 deadline_us)
{
    struct image_meta *meta = image_meta(image);
    uint64_t n = striper_objects(&image->layout, meta->size);
    struct object_map *map = NULL;
    struct object_map_home home;
    int r = 0;

    if (meta->features & PINRBD_FEATURE_OBJECT_MAP) {
        change_map_home(image, meta, &home);
        r = object_map_open(&home, n, deadline_us, &map);
    } else if (meta->features & PINRBD_FEATURE_EXCLUSIVE_LOCK &&
               meta->parent_link && n <= OBJECT_MAP_MAX) {
        map = object_map_new_memory(n);
    }
    meta_unref(meta);
    if (r == 0) {
        image_set_map(image, map);
    }
    return r;
}

/* Behind the lock: what others did before is read now.  As lock_header(). */
static int take_over(struct pinrbd_image *image)
{
    int r;

    for (;;) {
        r = image_refresh_sync(image, soon());
        if (r == -ETIMEDOUT || r == -ECANCELED) {
            if (!wait_event(image, RETRY_MS)) {
                return -ECANCELED;
            }
            continue;
        }
        if (r < 0) {
            return r;           /* the image is dead */
        }
        g_mutex_lock(&image->lock);
        r = image_needs_lock_locked(image) ? 0 : 1;
        g_mutex_unlock(&image->lock);
        if (r) {
            return r;
        }
        r = image_map_reload(image, soon());
        if (r == 0) {
            return 0;
        }
        if (!can_retry(image, r, "take its object map over")) {
            return -ECANCELED;
        }
    }
}

/* On disk, as far as it goes; memory follows in any case. */
static int unlock(struct pinrbd_image *image, gint64 deadline_us)
{
    struct image_meta *meta = image_meta(image);
    struct object_map_home home;
    int r = 0;

    image_set_map(image, NULL);
    if (meta->features & PINRBD_FEATURE_OBJECT_MAP) {
        change_map_home(image, meta, &home);
        r = object_map_unlock(&home, deadline_us);
    }
    meta_unref(meta);
    if (r != -ESHUTDOWN) {
        r = lock_drop(image->md_pool, image->header_oid, image->lk.cookie,
                      deadline_us);
    }
    return r == -ENOENT ? 0 : r;
}

/* Nothing is ours any more; who waits is told @error, or waits on. */
static void none_now(struct pinrbd_image *image, int error)
{
    struct image_lock *lk = &image->lk;

    g_mutex_lock(&image->lock);
    lk->state = LOCK_NONE;
    lk->owned = false;
    lk->give_up = false;        /* whoever asked finds it free */
    lk->check = false;
    lk->map_lost = false;
    lk->waits_for[0] = '\0';
    g_cond_broadcast(&image->changed);
    g_mutex_unlock(&image->lock);
    if (error < 0) {
        image_fail_waiting(image, error);
        resend_parked(image, error);
    }
}

static void held_now(struct pinrbd_image *image)
{
    struct image_lock *lk = &image->lk;
    uint64_t handle;
    bool on = watch_cookie(&image->watch, &handle);

    image_renew_lease(image);
    g_mutex_lock(&image->lock);
    lk->state = LOCK_HELD;
    lk->check |= on && handle != lk->handle;    /* changed meanwhile */
    lk->wanted = false;
    lk->waits_for[0] = '\0';
    lk->said[0] = '\0';
    lk->failures = (struct plog_limit) { 0 };
    g_cond_broadcast(&image->changed);
    g_mutex_unlock(&image->lock);
    image_gate(image, 0, GATE_LOCK);
    resend_parked(image, 0);
    notify_all(image, NOTIFY_ACQUIRED_LOCK, lk->handle);
}

static unsigned ms_until(gint64 when_us)
{
    gint64 left_us = when_us - g_get_monotonic_time();

    return left_us > 0 ? left_us / 1000 + 1 : 0;
}

/* Make way for whom we gave it to. */
static void hold_off(struct pinrbd_image *image)
{
    struct image_lock *lk = &image->lk;

    g_mutex_lock(&image->lock);
    lk->alarmed = false;
    if (lk->hold_off_until_us) {
        ptimer_arm(&lk->alarm, ms_until(lk->hold_off_until_us));
    }
    while (!stopping_locked(image) && lk->hold_off_until_us && !lk->alarmed) {
        g_cond_wait(&image->changed, &image->lock);
    }
    lk->hold_off_until_us = 0;
    g_mutex_unlock(&image->lock);
    ptimer_cancel(&lk->alarm);
}

static void acquire(struct pinrbd_image *image)
{
    struct image_lock *lk = &image->lk;
    int r;

    g_mutex_lock(&image->lock);
    lk->state = LOCK_ACQUIRING;
    lk->check = false;
    lk->map_lost = false;
    g_mutex_unlock(&image->lock);
    hold_off(image);

    r = lock_header(image);
    if (r == 0) {
        r = take_over(image);
        if (r && unlock(image, soon()) < 0) {
            left_behind(image);
        }
    }
    g_mutex_lock(&image->lock);
    lk->attempts++;
    lk->error = MIN(r, 0);
    lk->acquired += r == 0;
    lk->wanted = false;
    g_mutex_unlock(&image->lock);
    if (r == 0) {
        held_now(image);
    } else {
        none_now(image, r == -ECANCELED ? 0 : r);
        if (r == 1) {
            image_gate_for_lock(image);
            resend_parked(image, 0);
        }
    }
}

/* ---- checking and giving up ---------------------------------------------- */

/* 0: still ours, under the present cookie; 1: not ours; -ECANCELED: to end. */
static int confirm(struct pinrbd_image *image)
{
    struct image_lock *lk = &image->lk;
    char cookie[sizeof(lk->cookie)];
    uint64_t handle;
    int r;

    for (;;) {
        if (!watch_cookie(&image->watch, &handle)) {
            if (!wait_event(image, RETRY_MS)) {
                return -ECANCELED;
            }
            continue;
        }
        snprintf(cookie, sizeof(cookie), LOCK_COOKIE_PREFIX "%" PRIu64,
                 handle);
        /* set_cookie refuses a cookie that is there: also the same one */
        if (strcmp(cookie, lk->cookie)) {
            r = lock_set_cookie(image->md_pool, image->header_oid, lk->cookie,
                                LOCK_TAG, cookie, soon());
        } else {
            r = 0;
        }
        if (r == 0 || r == -EBUSY) {
            /* also for one that timed out and did take effect */
            r = lock_assert(image->md_pool, image->header_oid, cookie,
                            LOCK_TAG, soon());
        }
        if (r == 0) {
            g_mutex_lock(&image->lock);
            g_strlcpy(lk->cookie, cookie, sizeof(lk->cookie));
            lk->handle = handle;
            g_mutex_unlock(&image->lock);
            return 0;
        }
        if (r == -EBUSY || r == -ENOENT) {
            return 1;
        }
        if (!can_retry(image, r, "confirm its lock")) {
            return -ECANCELED;
        }
    }
}

static void check(struct pinrbd_image *image)
{
    struct image_lock *lk = &image->lk;
    bool map_lost, ours;
    int r;

    image_gate(image, GATE_LOCK, 0);
    g_mutex_lock(&image->lock);
    lk->state = LOCK_CHECKING;
    lk->check = false;
    map_lost = lk->map_lost;
    lk->map_lost = false;
    g_mutex_unlock(&image->lock);

    r = confirm(image);
    ours = r == 0;
    if (ours && map_lost) {
        image_set_map(image, NULL);
        r = take_over(image);
    }
    if (r == 0) {
        held_now(image);
        return;
    }
    image_set_map(image, NULL);
    left_behind(image);         /* an answer may have been wrong */
    if (r > 0 && !ours) {
        plog(PINRBD_LOG_WARN, "image '%s': its lock was taken away",
             image->spec);
    }
    g_mutex_lock(&image->lock);
    lk->wanted = true;
    g_mutex_unlock(&image->lock);
    none_now(image, 0);
}

static void release(struct pinrbd_image *image)
{
    struct image_lock *lk = &image->lk;
    uint64_t handle;
    int r;

    image_gate(image, GATE_LOCK, 0);
    g_mutex_lock(&image->lock);
    lk->give_up = false;
    while (image_active_writes(image) && !lk->map_lost && !image->dead) {
        g_cond_wait(&image->changed, &image->lock);
    }
    if (lk->map_lost && !image->dead) {
        /* some wait for the map's lock: first have it back, for them */
        lk->state = LOCK_HELD;
        lk->give_up = true;
        g_mutex_unlock(&image->lock);
        return;
    }
    handle = lk->handle;
    g_mutex_unlock(&image->lock);

    do {
        r = unlock(image, soon());
    } while (r < 0 && can_retry(image, r, "give its lock back"));

    if (r < 0) {
        left_behind(image);
        none_now(image, 0);
        return;
    }
    g_mutex_lock(&image->lock);
    lk->released++;
    lk->hold_off_until_us = g_get_monotonic_time() +
                            lk->hold_off_ms * G_GINT64_CONSTANT(1000);
    lk->wanted = lk->wanted || lk->parked || image_has_waiting(image);
    g_mutex_unlock(&image->lock);
    none_now(image, 0);
    notify_all(image, NOTIFY_RELEASED_LOCK, handle);
}

static void lock_job(void *opaque)
{
    struct pinrbd_image *image = opaque;
    enum step step;

    do {
        g_mutex_lock(&image->lock);
        step = next_step_locked(image);
        if (step == STEP_NOTHING) {
            image->lk.job = false;
            g_cond_broadcast(&image->changed);
        } else if (step == STEP_RELEASE) {
            image->lk.state = LOCK_RELEASING;   /* no pin from here on */
        }
        g_mutex_unlock(&image->lock);
        switch (step) {
        case STEP_ACQUIRE:
            acquire(image);
            break;
        case STEP_CHECK:
            check(image);
            break;
        case STEP_RELEASE:
            release(image);
            break;
        case STEP_NOTHING:
            break;
        }
    } while (step != STEP_NOTHING);
    image_release(image);
}

/* ---- events -------------------------------------------------------------- */

void image_lock_check(struct pinrbd_image *image)
{
    bool held;

    g_mutex_lock(&image->lock);
    held = image->lk.state == LOCK_HELD;
    image->lk.check |= held;
    image->lk.heard++;
    g_cond_broadcast(&image->changed);
    g_mutex_unlock(&image->lock);
    if (held) {
        image_gate(image, GATE_LOCK, 0);
    }
    g_mutex_lock(&image->lock);
    kick_locked(image);
    g_mutex_unlock(&image->lock);
}

void image_lock_forget(struct pinrbd_image *image, int error)
{
    image_set_map(image, NULL);
    g_mutex_lock(&image->lock);
    g_cond_broadcast(&image->changed);
    g_mutex_unlock(&image->lock);
    resend_parked(image, error);
}

void image_lock_heard(struct pinrbd_image *image, const struct notify_msg *m)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);
    struct image_lock *lk = &image->lk;
    gint64 changed_us = g_get_monotonic_time() +
                        CHANGED_MS * G_GINT64_CONSTANT(1000);

    if (m->op == NOTIFY_HEADER_UPDATE) {
        if (lk->hold_off_until_us > changed_us) {
            lk->hold_off_until_us = changed_us;
            if (lk->state == LOCK_ACQUIRING) {
                ptimer_arm(&lk->alarm, CHANGED_MS);
            }
        }
    } else {
        lk->heard++;
        if (m->op == NOTIFY_RELEASED_LOCK && same_client(&m->client,
                                                         &lk->peer)) {
            lk->hold_off_until_us = 0;
        }
    }
    g_cond_broadcast(&image->changed);
}

void image_lock_expect(struct pinrbd_image *image,
                       const struct notify_client *client,
                       unsigned hold_off_ms)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->lk.maintainer = *client;
    image->lk.maintainer_ms = hold_off_ms;
    image->lk.maintainer_until_us = g_get_monotonic_time() +
                                    FULFIL_MS * G_GINT64_CONSTANT(1000);
}

bool image_lock_requested(struct pinrbd_image *image,
                          const struct notify_client *client, int *ret_answer)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);
    struct image_lock *lk = &image->lk;
    bool maintainer = same_client(client, &lk->maintainer) &&
                      g_get_monotonic_time() < lk->maintainer_until_us;

    if (!lk->owned) {
        return false;
    }
    if (image->settings->lock_policy == PINRBD_LOCK_EXCLUSIVE && !maintainer) {
        *ret_answer = -EROFS;
        return true;
    }
    lk->peer = *client;
    lk->hold_off_ms = maintainer ? lk->maintainer_ms : PAUSE_MS;
    lk->give_up = true;
    kick_locked(image);
    *ret_answer = 0;
    return true;
}

/* ---- control calls ------------------------------------------------------- */

int image_lock_pin(struct pinrbd_image *image, gint64 deadline_us)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);
    struct image_lock *lk = &image->lk;
    unsigned attempts = lk->attempts;

    for (;;) {
        if (image->dead) {
            return image->dead;
        }
        if (!image_needs_lock_locked(image) ||
            (lk->state == LOCK_HELD && !lk->check)) {
            lk->pins++;
            return 0;
        }
        if (lk->attempts != attempts && lk->error < 0) {
            return lk->error;
        }
        if (image->maintenance.interrupted) {
            return -EINTR;      /* somebody waits to close */
        }
        lk->wanted = true;
        kick_locked(image);
        if (!deadline_us) {
            g_cond_wait(&image->changed, &image->lock);
        } else if (!g_cond_wait_until(&image->changed, &image->lock,
                                      deadline_us)) {
            return -ETIMEDOUT;
        }
    }
}

void image_lock_unpin(struct pinrbd_image *image)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&image->lock);

    image->lk.pins--;
    kick_locked(image);
}

void image_lock_close(struct pinrbd_image *image, gint64 deadline_us)
{
    struct image_lock *lk = &image->lk;
    struct lock_owner owner;
    bool owned, left;
    int r;

    g_mutex_lock(&image->lock);
    g_cond_broadcast(&image->changed);
    while (lk->job) {
        g_cond_wait(&image->changed, &image->lock);
    }
    owned = lk->owned && !image->dead;
    left = lk->left && !image->dead;
    lk->left = false;
    g_mutex_unlock(&image->lock);
    if (left && !owned) {
        r = lock_get_owner(image->md_pool, image->header_oid, deadline_us,
                           &owner);
        owned = r < 0 || (r > 0 && owner.gid == image_gid(image));
        if (r > 0 && owned) {
            g_strlcpy(lk->cookie, owner.cookie, sizeof(lk->cookie));
        }
    }
    if (owned) {
        r = unlock(image, deadline_us);
        if (r < 0) {
            plog(PINRBD_LOG_WARN, "image '%s': its lock could not be given "
                 "back; others take it when our watch is gone", image->spec);
        }
        lk->released++;
        none_now(image, 0);
        if (r == 0) {
            notify_all(image, NOTIFY_RELEASED_LOCK, lk->handle);
        }
    } else {
        image_set_map(image, NULL);
    }
    image_lock_unclaim(image);
}
