/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * libpinrbd: RBD images on librados, without copying what is written.
 *
 *     struct pinrbd_error err;
 *     struct pinrbd_cluster_options co = { .size = sizeof(co), .user = "vm" };
 *     struct pinrbd_image_options io = {
 *         .size = sizeof(io), .pool = "rbd", .image = "disk1",
 *     };
 *     struct pinrbd_cluster *cluster;
 *     struct pinrbd_image *image;
 *
 *     if (pinrbd_cluster_open(&co, &cluster, &err) < 0 ||
 *         pinrbd_image_open(cluster, &io, &image, &err) < 0) {
 *         fprintf(stderr, "%s\n", err.text);
 *     }
 *     if (pinrbd_write(image, 0, len, iov, n, 0, done, arg, &result)) {
 *         done(arg, result);
 *     }
 *
 * Threads.  Every function may be called from any thread.  Control calls
 * (open, close, create, resize, refresh) block and must not be made from a
 * completion callback.  I/O submits never block.  Completion callbacks run on
 * a thread of the library or of librados; they must not block and must not
 * make control calls, but may submit.
 *
 * Lifetimes.  A cluster outlives its images: each image holds a reference.
 * pinrbd_image_close() waits for the requests in flight, then for the watch
 * to be gone, and frees the image.  Freeing functions accept NULL.
 *
 * Memory.  The iovec array is read during submit only.  The bytes it names are
 * borrowed until the completion: a write's bytes may be read, by us or by the
 * network stack below us, until then and never after.
 *
 * Errors.  Functions return 0 or a negative errno.  Control calls also fill in
 * a struct pinrbd_error (NULL is accepted): one sentence that names the object
 * and the reason.  I/O results are 0 or a negative errno; there is no partial
 * success.
 *
 * Argument structures start with their size; fields are only ever added at the
 * end, and a zero field means its default.
 */
#ifndef PINRBD_H
#define PINRBD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PINRBD_EXPORT __attribute__((visibility("default")))

struct pinrbd_cluster;
struct pinrbd_image;

/* ---- errors and log ---------------------------------------------------- */

struct pinrbd_error {
    int code;           /* negative errno, 0 if nothing failed */
    char text[512];     /* one sentence, no newline, always terminated */
};

enum pinrbd_log_level {
    PINRBD_LOG_ERROR = 0,
    PINRBD_LOG_WARN = 1,
    PINRBD_LOG_INFO = 2,
    PINRBD_LOG_DEBUG = 3,
};

typedef void pinrbd_log_fn(void *opaque, enum pinrbd_log_level level,
                           const char *line);

/*
 * Send the library's messages of @level and more urgent ones to @fn; a NULL
 * @fn silences it (the state at start).  @fn is called from any thread,
 * one call at a time.
 */
PINRBD_EXPORT void pinrbd_log_set(pinrbd_log_fn *fn, void *opaque,
                                  enum pinrbd_log_level level);

PINRBD_EXPORT const char *pinrbd_version(void);

/* ---- settings ---------------------------------------------------------- */

/* What a write of guest memory does with the bytes (key `pin`). */
enum pinrbd_pin {
    PINRBD_PIN_AUTO = 0,    /* by reference from pin-threshold on */
    PINRBD_PIN_ALWAYS,
    PINRBD_PIN_NEVER,
};

enum pinrbd_handle {        /* key `cluster-handle` */
    PINRBD_HANDLE_SHARED = 0,
    PINRBD_HANDLE_OWN,
};

enum pinrbd_lock_policy {   /* key `lock-policy` */
    PINRBD_LOCK_COOPERATIVE = 0,
    PINRBD_LOCK_EXCLUSIVE,
};

struct pinrbd_kv {
    const char *key;
    const char *value;
};

/* The product's own options for one image, all sources weighed. */
struct pinrbd_settings {
    size_t size;
    enum pinrbd_pin pin;
    uint64_t pin_threshold;             /* bytes */
    enum pinrbd_handle cluster_handle;
    uint32_t block_size;                /* bytes told to the guest; 0: stock */
    enum pinrbd_log_level log_level;
    char *stats_file;                   /* owned; NULL: none */
    enum pinrbd_lock_policy lock_policy;
};

/*
 * Weigh the sources for image @pool/[@ns/]@image, most important first:
 * @options (@n_options pairs, our own keys only), the environment (key `a-b`
 * is PINRBD_A_B), section [pinrbd] of the Ceph configuration file @conf (NULL:
 * none named; an unreadable file is an error), the host file
 * (/etc/ceph/pinrbd.conf or $PINRBD_CONF; sections [pinrbd], [pool POOL],
 * [image POOL/[NS/]IMAGE], the narrower wins; a missing default file is fine),
 * the default.  An unknown key or a bad value fails, naming key, value and
 * source.  Free *@ret with pinrbd_settings_free().
 */
PINRBD_EXPORT int pinrbd_settings_load(const char *pool, const char *ns,
                                       const char *image, const char *conf,
                                       const struct pinrbd_kv *options,
                                       size_t n_options,
                                       struct pinrbd_settings **ret,
                                       struct pinrbd_error *reterr);
PINRBD_EXPORT void pinrbd_settings_free(struct pinrbd_settings *settings);

/* Is @key one of our own option keys (spelled with dashes)? */
PINRBD_EXPORT bool pinrbd_settings_known(const char *key);

/* The option table, for help texts: false when @i is past the end. */
struct pinrbd_option_info {
    const char *key;
    const char *values;         /* "auto|always|never", "SIZE", ... */
    const char *standard;       /* default, as text */
    const char *help;           /* one or two sentences */
};
PINRBD_EXPORT bool pinrbd_settings_describe(unsigned i,
                                            struct pinrbd_option_info *ret);

/* ---- cluster ----------------------------------------------------------- */

struct pinrbd_cluster_options {
    size_t size;
    const char *conf;           /* NULL: the default places, absence is fine */
    const char *user;           /* without "client."; NULL: admin */
    const struct pinrbd_kv *options;    /* Ceph options, applied in order */
    size_t n_options;
    bool own_handle;            /* never share the connection */
};

/*
 * Connect, or join the process's connection with the same effective settings
 * (user and every Ceph option, wherever it came from; not the path of the
 * file).  Bounded by client_mount_timeout.  Fails with the number librados
 * gave, -ETIMEDOUT when no monitor answers.
 */
PINRBD_EXPORT int pinrbd_cluster_open(const struct pinrbd_cluster_options *o,
                                      struct pinrbd_cluster **ret,
                                      struct pinrbd_error *reterr);
/* Drop the reference; the last one shuts the connection down. */
PINRBD_EXPORT void pinrbd_cluster_close(struct pinrbd_cluster *cluster);

/* ---- image ------------------------------------------------------------- */

#define PINRBD_FEATURE_LAYERING         (1ULL << 0)
#define PINRBD_FEATURE_STRIPINGV2       (1ULL << 1)
#define PINRBD_FEATURE_EXCLUSIVE_LOCK   (1ULL << 2)
#define PINRBD_FEATURE_OBJECT_MAP       (1ULL << 3)
#define PINRBD_FEATURE_FAST_DIFF        (1ULL << 4)
#define PINRBD_FEATURE_DEEP_FLATTEN     (1ULL << 5)
#define PINRBD_FEATURE_JOURNALING       (1ULL << 6)
#define PINRBD_FEATURE_DATA_POOL        (1ULL << 7)
#define PINRBD_FEATURE_OPERATIONS       (1ULL << 8)
#define PINRBD_FEATURE_MIGRATING        (1ULL << 9)
#define PINRBD_FEATURE_NON_PRIMARY      (1ULL << 10)
#define PINRBD_FEATURE_DIRTY_CACHE      (1ULL << 11)

/* Name of feature bit @bit ("exclusive-lock"), NULL if it has none here. */
PINRBD_EXPORT const char *pinrbd_feature_name(unsigned bit);

struct pinrbd_image_options {
    size_t size;
    const char *pool;
    const char *ns;             /* NULL or "": the default namespace */
    const char *image;          /* name; or */
    const char *image_id;       /* id, when the name is NULL */
    const char *snapshot;       /* NULL: the head; else read-only */
    bool read_only;
    bool inactive;              /* writable later: pinrbd_image_activate() */
    const struct pinrbd_settings *settings;     /* copied; NULL: defaults */
    /*
     * Called from a library thread after the image's size changed; may be
     * NULL.  Must not call back into the library except pinrbd_image_size().
     */
    void (*resized)(void *opaque);
    void *opaque;
};

/*
 * Open an RBD v2 image.  Blocks for a handful of round trips, bounded by
 * client_mount_timeout.  -ENOENT pool, namespace, image or snapshot does not
 * exist; -ENOSYS a feature we cannot keep valid (named in the text);
 * -ENOTSUP format 1; -EBADMSG header values that make no sense; -EROFS a
 * writable open of what can only be read.
 */
PINRBD_EXPORT int pinrbd_image_open(struct pinrbd_cluster *cluster,
                                    const struct pinrbd_image_options *o,
                                    struct pinrbd_image **ret,
                                    struct pinrbd_error *reterr);

/*
 * No more submits may come.  Waits for requests in flight, then removes the
 * watch, then drops the cluster.  Cannot fail.
 */
PINRBD_EXPORT void pinrbd_image_close(struct pinrbd_image *image);

struct pinrbd_image_info {
    size_t size;
    uint64_t image_size;        /* bytes, of the opened revision */
    uint64_t features;
    uint64_t object_size;       /* bytes */
    uint64_t stripe_unit;       /* bytes; object_size without striping */
    uint64_t stripe_count;
    uint64_t snap_count;
    int64_t pool_id;
    int64_t data_pool_id;
    int64_t parent_pool_id;     /* -1: no parent */
    uint64_t parent_snap_id;
    uint64_t parent_overlap;    /* bytes */
    bool read_only;
    char id[32];
    char object_prefix[96];
    char parent_ns[128];
    char parent_image_id[32];
    char fsid[40];
    char address[128];          /* this client, as `rbd lock ls` prints it */
    bool lock_owner;            /* of the exclusive lock, now */
    uint64_t flags;             /* 1: object map invalid, 2: fast-diff too */
};

/* From memory; sets only the fields that fit into @ret->size. */
PINRBD_EXPORT void pinrbd_image_info(struct pinrbd_image *image,
                                     struct pinrbd_image_info *ret);
/* Bytes, from memory. */
PINRBD_EXPORT uint64_t pinrbd_image_size(struct pinrbd_image *image);

struct pinrbd_snapshot {
    uint64_t id;
    uint64_t size;              /* bytes */
    uint64_t time_s;            /* creation, seconds since 1970 */
    uint32_t time_ns;
    bool is_user;               /* false: group, trash or mirror snapshot */
    bool is_protected;
    char name[256];
};

/* Oldest first, from memory.  Free *@ret with free(). */
PINRBD_EXPORT int pinrbd_image_snapshots(struct pinrbd_image *image,
                                         struct pinrbd_snapshot **ret,
                                         size_t *ret_n);

/* Read the header again; blocks.  New I/O uses what was found. */
PINRBD_EXPORT int pinrbd_image_refresh(struct pinrbd_image *image,
                                       struct pinrbd_error *reterr);

/*
 * Make an image that was opened read-only or inactive writable: watch the
 * header, read it again, check the features.  Blocks.
 */
PINRBD_EXPORT int pinrbd_image_activate(struct pinrbd_image *image,
                                        struct pinrbd_error *reterr);
/*
 * The reverse: wait for writes in flight and stop watching; writes are
 * refused with -EROFS from here on.  Blocks.
 */
PINRBD_EXPORT int pinrbd_image_inactivate(struct pinrbd_image *image,
                                          struct pinrbd_error *reterr);

#define PINRBD_RESIZE_GROW_ONLY 1u      /* smaller than now: success, no-op */

/*
 * Set the size and tell the other clients.  Never acts on a stale size.  A
 * smaller one removes the data behind it, which no request may use any more;
 * PINRBD_RESIZE_GROW_ONLY forbids that.  Blocks.
 */
PINRBD_EXPORT int pinrbd_image_resize(struct pinrbd_image *image,
                                      uint64_t size, unsigned flags,
                                      struct pinrbd_error *reterr);

/*
 * Snapshots of the head, by name; the image must be writable.  Each takes the
 * exclusive lock where the image has one.  Blocks.
 *
 * create: -EEXIST the name is taken.  Point in time: it holds every write that
 * had completed, and none that was submitted after.
 * remove: -ENOENT; -EBUSY it is protected or has clones.
 * rollback: the head gets the snapshot's size and data.  No request may be in
 * flight.
 */
PINRBD_EXPORT int pinrbd_image_snap_create(struct pinrbd_image *image,
                                           const char *name,
                                           struct pinrbd_error *reterr);
PINRBD_EXPORT int pinrbd_image_snap_remove(struct pinrbd_image *image,
                                           const char *name,
                                           struct pinrbd_error *reterr);
PINRBD_EXPORT int pinrbd_image_snap_rollback(struct pinrbd_image *image,
                                             const char *name,
                                             struct pinrbd_error *reterr);

/*
 * What is known, from memory, of the bytes from @off on: *@ret_len (1 to @len)
 * of them are zeroes (true: no object of the image or its parents has them),
 * or may be data (false).  All is data where no object map is at hand: it is
 * for snapshots, and for the head while this client owns the lock.
 */
PINRBD_EXPORT bool pinrbd_image_extent_is_zero(struct pinrbd_image *image,
                                               uint64_t off, uint64_t len,
                                               uint64_t *ret_len);

struct pinrbd_create_options {
    size_t size;
    const char *pool;
    const char *ns;
    const char *image;
    const char *data_pool;      /* NULL: the same pool */
    uint64_t image_size;        /* bytes */
    uint8_t order;              /* 0: 22 */
    uint64_t features;          /* 0: rbd_default_features of pool or client */
    uint64_t stripe_unit;       /* 0 with stripe_count 0: none */
    uint64_t stripe_count;
};

/* Leaves nothing behind on failure.  -EEXIST the name is taken.  Blocks. */
PINRBD_EXPORT int pinrbd_image_create(struct pinrbd_cluster *cluster,
                                      const struct pinrbd_create_options *o,
                                      struct pinrbd_error *reterr);

/* ---- I/O --------------------------------------------------------------- */

typedef void pinrbd_done_fn(void *opaque, int result);

#define PINRBD_ZERO_MAY_UNMAP   1u      /* may deallocate */

/*
 * Each submit returns 1 (finished, *@ret_result is set, no callback) or 0
 * (@done runs exactly once, possibly before the submit returns, on another
 * thread, never from inside the submit).  @off and @len are bytes; the iovecs
 * must hold exactly @len bytes.  Beyond the image: -EINVAL.
 *
 * Writes are stable when they complete.  A flush completes after every write,
 * discard and zeroing submitted before it.
 */
PINRBD_EXPORT int pinrbd_read(struct pinrbd_image *image, uint64_t off,
                              uint64_t len, const struct iovec *iov,
                              int n_iov, pinrbd_done_fn *done, void *opaque,
                              int *ret_result);
PINRBD_EXPORT int pinrbd_write(struct pinrbd_image *image, uint64_t off,
                               uint64_t len, const struct iovec *iov,
                               int n_iov, pinrbd_done_fn *done, void *opaque,
                               int *ret_result);
/* May do nothing for pieces smaller than 64 KiB, as librbd. */
PINRBD_EXPORT int pinrbd_discard(struct pinrbd_image *image, uint64_t off,
                                 uint64_t len, pinrbd_done_fn *done,
                                 void *opaque, int *ret_result);
PINRBD_EXPORT int pinrbd_write_zeroes(struct pinrbd_image *image,
                                      uint64_t off, uint64_t len,
                                      unsigned flags, pinrbd_done_fn *done,
                                      void *opaque, int *ret_result);
PINRBD_EXPORT int pinrbd_flush(struct pinrbd_image *image,
                               pinrbd_done_fn *done, void *opaque,
                               int *ret_result);

/* ---- statistics -------------------------------------------------------- */

struct pinrbd_stats {
    size_t size;
    uint64_t reads, writes, discards, zeroes, flushes;  /* completed */
    uint64_t failed;            /* of these, with an error */
    uint64_t read_bytes, write_bytes;
    uint64_t object_ops;        /* RADOS operations on data objects */
    uint64_t pinned_bytes;      /* written by reference */
    uint64_t copied_small_bytes;    /* copied: below pin-threshold */
    uint64_t copied_never_bytes;    /* copied: pin=never */
    uint64_t read_copied_bytes; /* reply to guest memory: once a byte */
    uint64_t late_refs;         /* acked writes that waited for a reference */
    uint64_t refreshes;         /* headers read again */
    uint64_t old_snapc;         /* writes resent with a newer context */
    uint64_t in_flight;         /* requests now */
    uint64_t oldest_ms;         /* age of the oldest one */
    uint64_t lock_acquired, lock_released;
    uint64_t map_updates;       /* object map operations */
    uint64_t copyups;
    uint64_t parent_reads;      /* requests sent to the parent */
    uint64_t absent_reads;      /* objects known not to exist: not asked for */
};

/* A request is counted right after its callback. */
PINRBD_EXPORT void pinrbd_image_stats(struct pinrbd_image *image,
                                      struct pinrbd_stats *ret);

#ifdef __cplusplus
}
#endif

#endif
