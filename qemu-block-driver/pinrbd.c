/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Block driver `rbd', in place of QEMU's own, and the same one as `pinrbd'.
 *
 * This file is the border: QEMU's callbacks on one side, pinrbd.h on the
 * other.  It knows nothing of Ceph's protocol and keeps no copy of what the
 * library knows.
 *
 * A request is a coroutine.  Its state is on the coroutine's stack:
 *
 *     co_pwritev -> pinrbd_write() -- 1: finished --> return
 *                        |
 *                        0: yield ... request_done() on a thread of the
 *                           library: aio_co_wake() --> resumed where it ran
 *
 * aio_co_wake() may come before the yield; it then takes effect after it.
 * Requests may come from any AioContext and several at once, so what they
 * share is atomic or belongs to the library, and nothing here has to follow a
 * node from one AioContext to another.
 *
 * Control calls of the library block.  They go through
 * pinrbd_run_blocking(), except where a comment says why not.
 *
 * Growth.  A parent with the RESIZE permission writes behind the end.  The
 * image is then grown first, by a call that can only grow: the size in this
 * process may be old, and an image that somebody else has grown must not be
 * cut.  Writes below the size that QEMU was told never resize; if the image
 * was shrunk meanwhile they fail.
 *
 * Modules are loaded by programs we did not build.  abi_matches() compares
 * what can be compared before anything is registered, the first open compares
 * the front of BlockDriverState.
 */
#include "qemu/osdep.h"

#include <dlfcn.h>
#include <link.h>

#include "block/block_int.h"
#include "block/block-io.h"
#include "block/snapshot.h"
#include "qapi/error.h"
#include "qemu/cutils.h"
#include "qemu/error-report.h"
#include "qemu/iov.h"
#include "qemu/module.h"
#include "qemu/option.h"
#include "qemu/units.h"

#include "log.h"
#include "pinrbd-blocking.h"
#include "pinrbd-compat.h"
#include "pinrbd-options.h"
#include "pinrbd-qdict.h"
#include "pinrbd.h"

struct disk {
    /* fixed after open */
    struct pinrbd_image *image;
    struct pinrbd_settings *settings;
    char *name;                 /* for messages */
    bool snapshot;

    uint64_t told_size;         /* bytes; atomic; what QEMU knows at least */
    CoMutex resize_lock;
    struct plog_limit failures;
};

/* ---- messages ---------------------------------------------------------- */

static void log_line(void *opaque, enum pinrbd_log_level level,
                     const char *line)
{
    switch (level) {
    case PINRBD_LOG_ERROR:
        error_report("rbd: %s", line);
        break;
    case PINRBD_LOG_WARN:
        warn_report("rbd: %s", line);
        break;
    case PINRBD_LOG_INFO:
    case PINRBD_LOG_DEBUG:
        info_report("rbd: %s", line);
        break;
    }
}

/* The level is the process's: an image can raise it, none lowers it. */
static void log_at_least(enum pinrbd_log_level level)
{
    static enum pinrbd_log_level current = PINRBD_LOG_WARN;
    static GMutex lock;

    g_mutex_lock(&lock);
    current = MAX(current, level);
    pinrbd_log_set(log_line, NULL, current);
    g_mutex_unlock(&lock);
}

/* ---- open and close ---------------------------------------------------- */

/* What open and create do on the other thread. */
struct connect_job {
    const struct pinrbd_target *target;
    struct pinrbd_image_options image_options;
    struct pinrbd_settings *settings;
    struct pinrbd_cluster *cluster;
    struct pinrbd_image *image;
    struct pinrbd_error err;
};

static void connect_job_clear(struct connect_job *job)
{
    pinrbd_settings_free(job->settings);
    pinrbd_cluster_close(job->cluster);
    pinrbd_image_close(job->image);
}

static int job_connect(struct connect_job *job)
{
    const struct pinrbd_target *t = job->target;
    struct pinrbd_cluster_options options = {
        .size = sizeof(options),
        .conf = t->conf,
        .user = t->user,
        .options = t->ceph.kv,
        .n_options = t->ceph.n,
    };
    int ret;

    ret = pinrbd_settings_load(t->pool, t->ns, t->image, t->conf, t->own.kv,
                               t->own.n, &job->settings, &job->err);
    if (ret < 0) {
        return ret;
    }
    log_at_least(job->settings->log_level);
    options.own_handle = job->settings->cluster_handle == PINRBD_HANDLE_OWN;
    return pinrbd_cluster_open(&options, &job->cluster, &job->err);
}

static int open_job(void *arg)
{
    struct connect_job *job = arg;
    int ret;

    if (!job->cluster) {
        ret = job_connect(job);
        if (ret < 0) {
            return ret;
        }
        job->image_options.settings = job->settings;
    }
    return pinrbd_image_open(job->cluster, &job->image_options, &job->image,
                             &job->err);
}

/* The offsets this build believes in, against the program's own functions. */
static bool node_layout_matches(BlockDriverState *bs)
{
    return bs->aio_context == bdrv_get_aio_context(bs) &&
           bs->node_name == bdrv_get_node_name(bs) &&
           !g_strcmp0(bs->drv->format_name, bdrv_get_format_name(bs));
}

static int disk_open_image(BlockDriverState *bs, struct connect_job *job,
                           Error **errp)
{
    struct pinrbd_image_options *o = &job->image_options;
    int ret;

    if (o->snapshot) {
        ret = bdrv_apply_auto_read_only(bs, "rbd snapshots are read-only",
                                        errp);
        if (ret < 0) {
            return ret;
        }
    }
    o->read_only = bdrv_is_read_only(bs);
    ret = pinrbd_run_blocking(bs, open_job, job);
    if (ret == -EROFS && !o->read_only) {
        ret = bdrv_apply_auto_read_only(bs, job->err.text, errp);
        if (ret < 0) {
            return ret;
        }
        o->read_only = true;
        ret = pinrbd_run_blocking(bs, open_job, job);
    }
    return ret < 0 ? pinrbd_propagate(errp, ret, &job->err) : 0;
}

static int disk_open(BlockDriverState *bs, QDict *options, int flags,
                     Error **errp)
{
    static bool checked;
    struct disk *d = bs->opaque;
    struct pinrbd_target target = { 0 };
    struct connect_job job = { .target = &target };
    int ret;

    if (!checked && !node_layout_matches(bs)) {
        error_setg(errp, "the rbd module was built for another QEMU: the "
                   "layout of block nodes differs");
        return -ENOTSUP;
    }
    checked = true;

    ret = pinrbd_target_from_qdict(&target, options, errp);
    if (ret == 0) {
        job.image_options = (struct pinrbd_image_options) {
            .size = sizeof(job.image_options),
            .pool = target.pool,
            .ns = target.ns,
            .image = target.image,
            .snapshot = target.snapshot,
            .inactive = flags & BDRV_O_INACTIVE,
        };
        ret = disk_open_image(bs, &job, errp);
    }
    if (ret == 0) {
        d->image = g_steal_pointer(&job.image);
        d->settings = g_steal_pointer(&job.settings);
        d->name = pinrbd_target_name(&target);
        d->snapshot = target.snapshot;
        d->told_size = pinrbd_image_size(d->image);
        qemu_co_mutex_init(&d->resize_lock);
        /* an acknowledged write is stable: FUA costs nothing */
        bs->supported_write_flags = BDRV_REQ_FUA;
        bs->supported_zero_flags = BDRV_REQ_FUA | BDRV_REQ_MAY_UNMAP |
                                   BDRV_REQ_NO_FALLBACK;
        bs->supported_truncate_flags = BDRV_REQ_ZERO_WRITE;
    }
    connect_job_clear(&job);
    pinrbd_target_clear(&target);
    return ret;
}

static void append_stats(struct disk *d)
{
    struct pinrbd_stats s = { .size = sizeof(s) };
    g_autoptr(QString) name = qstring_from_str(d->name);
    g_autoptr(GString) line = g_string_new("{\"image\": ");
    g_autoptr(GString) quoted = qobject_to_json(QOBJECT(name));
    int fd;

    pinrbd_image_stats(d->image, &s);
    const struct {
        const char *name;
        uint64_t value;
    } counters[] = {
        { "reads", s.reads },
        { "writes", s.writes },
        { "discards", s.discards },
        { "zeroes", s.zeroes },
        { "flushes", s.flushes },
        { "failed", s.failed },
        { "read_bytes", s.read_bytes },
        { "write_bytes", s.write_bytes },
        { "object_ops", s.object_ops },
        { "pinned_bytes", s.pinned_bytes },
        { "copied_small_bytes", s.copied_small_bytes },
        { "copied_never_bytes", s.copied_never_bytes },
        { "read_copied_bytes", s.read_copied_bytes },
        { "late_refs", s.late_refs },
        { "refreshes", s.refreshes },
        { "old_snapc", s.old_snapc },
        { "lock_acquired", s.lock_acquired },
        { "lock_released", s.lock_released },
        { "map_updates", s.map_updates },
        { "copyups", s.copyups },
        { "parent_reads", s.parent_reads },
        { "absent_reads", s.absent_reads },
    };

    g_string_append(line, quoted->str);
    for (size_t i = 0; i < ARRAY_SIZE(counters); i++) {
        g_string_append_printf(line, ", \"%s\": %" PRIu64, counters[i].name,
                               counters[i].value);
    }
    g_string_append(line, "}\n");

    fd = open(d->settings->stats_file,
              O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line->str, line->len) != (ssize_t)line->len) {
        warn_report("rbd: stats-file %s: %s", d->settings->stats_file,
                    strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
}

static int close_job(void *arg)
{
    struct disk *d = arg;

    if (d->settings->stats_file) {
        append_stats(d);
    }
    pinrbd_image_close(d->image);
    return 0;
}

static void disk_close(BlockDriverState *bs)
{
    struct disk *d = bs->opaque;

    pinrbd_run_blocking(bs, close_job, d);
    pinrbd_settings_free(d->settings);
    g_free(d->name);
}

/* ---- becoming writable and back ---------------------------------------- */

struct image_job {
    struct pinrbd_image *image;
    uint64_t size;
    unsigned flags;
    struct pinrbd_error err;
};

static int activate_job(void *arg)
{
    struct image_job *job = arg;

    return pinrbd_image_activate(job->image, &job->err);
}

static int refresh_job(void *arg)
{
    struct image_job *job = arg;

    return pinrbd_image_refresh(job->image, &job->err);
}

/*
 * Blocks.  Only for moments at which the guest is stopped or the node is
 * drained, and in callbacks that cannot be left half way.
 */
static int inactivate(struct disk *d)
{
    struct pinrbd_error err;
    int ret = pinrbd_image_inactivate(d->image, &err);

    if (ret < 0) {
        error_report("rbd: %s", err.text);
    }
    return ret;
}

static int disk_reopen_prepare(BDRVReopenState *state,
                               BlockReopenQueue *queue, Error **errp)
{
    BlockDriverState *bs = state->bs;
    struct disk *d = bs->opaque;
    struct image_job job = { .image = d->image };
    int ret;

    if (!(state->flags & BDRV_O_RDWR) || !bdrv_is_read_only(bs)) {
        return 0;
    }
    if (d->snapshot) {
        error_setg(errp, "Cannot change node '%s' to r/w when using RBD "
                   "snapshot", bdrv_get_device_or_node_name(bs));
        return -EINVAL;
    }
    if (bs->open_flags & BDRV_O_INACTIVE) {
        return 0;               /* comes with invalidate_cache */
    }
    ret = pinrbd_run_blocking(bs, activate_job, &job);
    if (ret < 0) {
        return pinrbd_propagate(errp, ret, &job.err);
    }
    state->opaque = d;          /* to be undone by abort */
    return 0;
}

static void disk_reopen_commit(BDRVReopenState *state)
{
    BlockDriverState *bs = state->bs;

    if (!(state->flags & BDRV_O_RDWR) && !bdrv_is_read_only(bs) &&
        !(bs->open_flags & BDRV_O_INACTIVE)) {
        (void)inactivate(bs->opaque);
    }
}

static void disk_reopen_abort(BDRVReopenState *state)
{
    if (state->opaque) {
        (void)inactivate(state->opaque);
    }
}

/* The source of a migration lets go; called by the migration thread too. */
static int disk_inactivate(BlockDriverState *bs)
{
    return bdrv_is_read_only(bs) ? 0 : inactivate(bs->opaque);
}

/* The destination takes over, or the source takes back. */
static void coroutine_fn disk_invalidate_cache(BlockDriverState *bs,
                                               Error **errp)
{
    struct disk *d = bs->opaque;
    struct image_job job = { .image = d->image };
    int ret;

    ret = pinrbd_run_blocking(bs, bdrv_is_read_only(bs) ? refresh_job
                                                        : activate_job, &job);
    if (ret < 0) {
        pinrbd_propagate(errp, ret, &job.err);
        return;
    }
    qatomic_set(&d->told_size, pinrbd_image_size(d->image));
}

/* ---- requests ---------------------------------------------------------- */

struct request {
    Coroutine *co;
    int result;
};

static void request_done(void *opaque, int result)
{
    struct request *r = opaque;

    r->result = result;
    aio_co_wake(r->co);         /* *r may be gone now */
}

static void report_failure(struct disk *d, const char *what, int64_t offset,
                           int64_t bytes, int ret)
{
    unsigned held_back;

    if (plog_limit_pass(&d->failures, 1000, &held_back)) {
        plog(PINRBD_LOG_ERROR, "image '%s': %s of %" PRId64 " bytes at "
             "%" PRId64 " failed: %s; failures not reported since the last "
             "message: %u", d->name, what, bytes, offset, strerror(-ret),
             held_back);
    }
}

/* @submitted is what the submit returned. */
static int coroutine_fn request_wait(struct request *r, int submitted,
                                     struct disk *d, const char *what,
                                     int64_t offset, int64_t bytes)
{
    if (!submitted) {
        qemu_coroutine_yield();
    }
    if (unlikely(r->result < 0)) {
        report_failure(d, what, offset, bytes, r->result);
    }
    return r->result;
}

static int coroutine_fn read_image(struct disk *d, int64_t offset,
                                   int64_t bytes, QEMUIOVector *qiov)
{
    struct request r = { .co = qemu_coroutine_self() };
    int submitted = pinrbd_read(d->image, offset, bytes, qiov->iov,
                                qiov->niov, request_done, &r, &r.result);

    return request_wait(&r, submitted, d, "read", offset, bytes);
}

/*
 * QEMU counts in sectors: of an image that ends inside a sector it reads a few
 * bytes behind the end, which are zeroes.  How many, at most 511; 0 if this
 * is no such request.
 */
static uint64_t bytes_in_last_sector_behind(struct disk *d, uint64_t offset,
                                            uint64_t bytes)
{
    uint64_t size = pinrbd_image_size(d->image);
    uint64_t end = offset + bytes;

    if (likely(end <= size) || offset > size ||
        end > ROUND_UP(size, BDRV_SECTOR_SIZE)) {
        return 0;
    }
    return end - size;
}

static int coroutine_fn disk_preadv(BlockDriverState *bs, int64_t offset,
                                    int64_t bytes, QEMUIOVector *qiov,
                                    BdrvRequestFlags flags)
{
    struct disk *d = bs->opaque;
    uint64_t behind = bytes_in_last_sector_behind(d, offset, bytes);
    QEMUIOVector head;
    int ret = 0;

    if (likely(!behind)) {
        return read_image(d, offset, bytes, qiov);
    }
    bytes -= behind;
    qemu_iovec_memset(qiov, bytes, 0, behind);
    if (bytes) {
        qemu_iovec_init(&head, qiov->niov);
        qemu_iovec_concat(&head, qiov, 0, bytes);
        ret = read_image(d, offset, bytes, &head);
        qemu_iovec_destroy(&head);
    }
    return ret;
}

static int resize_job(void *arg)
{
    struct image_job *job = arg;

    return pinrbd_image_resize(job->image, job->size, job->flags, &job->err);
}

/* Before a write that ends at @end: make the image at least that large. */
static int coroutine_fn grow_to(BlockDriverState *bs, uint64_t end)
{
    struct disk *d = bs->opaque;
    struct image_job job = {
        .image = d->image,
        .size = end,
        .flags = PINRBD_RESIZE_GROW_ONLY,
    };
    int ret = 0;

    if (likely(end <= qatomic_read(&d->told_size))) {
        return 0;
    }
    qemu_co_mutex_lock(&d->resize_lock);
    if (end > qatomic_read(&d->told_size)) {
        ret = pinrbd_run_blocking(bs, resize_job, &job);
        if (ret == 0) {
            qatomic_set(&d->told_size, end);
        } else {
            plog(PINRBD_LOG_ERROR, "%s", job.err.text);
        }
    }
    qemu_co_mutex_unlock(&d->resize_lock);
    return ret;
}

static int coroutine_fn disk_pwritev(BlockDriverState *bs, int64_t offset,
                                     int64_t bytes, QEMUIOVector *qiov,
                                     BdrvRequestFlags flags)
{
    struct disk *d = bs->opaque;
    struct request r = { .co = qemu_coroutine_self() };
    int ret = grow_to(bs, offset + bytes);
    int submitted;

    if (ret < 0) {
        return ret;
    }
    submitted = pinrbd_write(d->image, offset, bytes, qiov->iov, qiov->niov,
                             request_done, &r, &r.result);
    return request_wait(&r, submitted, d, "write", offset, bytes);
}

static int coroutine_fn disk_pwrite_zeroes(BlockDriverState *bs,
                                           int64_t offset, int64_t bytes,
                                           BdrvRequestFlags flags)
{
    struct disk *d = bs->opaque;
    struct request r = { .co = qemu_coroutine_self() };
    unsigned zero_flags = flags & BDRV_REQ_MAY_UNMAP ? PINRBD_ZERO_MAY_UNMAP
                                                     : 0;
    int ret = grow_to(bs, offset + bytes);
    int submitted;

    if (ret < 0) {
        return ret;
    }
    submitted = pinrbd_write_zeroes(d->image, offset, bytes, zero_flags,
                                    request_done, &r, &r.result);
    return request_wait(&r, submitted, d, "zeroing", offset, bytes);
}

static int coroutine_fn disk_pdiscard(BlockDriverState *bs, int64_t offset,
                                      int64_t bytes)
{
    struct disk *d = bs->opaque;
    struct request r = { .co = qemu_coroutine_self() };
    int64_t told = qatomic_read(&d->told_size);
    int submitted;

    /* qcow2 discards clusters whole, and its file may end inside the last */
    bytes = MIN(bytes, MAX(told - offset, 0));
    bytes -= bytes_in_last_sector_behind(d, offset, bytes);
    if (!bytes) {
        return 0;
    }
    submitted = pinrbd_discard(d->image, offset, bytes, request_done, &r,
                               &r.result);
    return request_wait(&r, submitted, d, "discard", offset, bytes);
}

static int coroutine_fn disk_flush(BlockDriverState *bs)
{
    struct disk *d = bs->opaque;
    struct request r = { .co = qemu_coroutine_self() };
    int submitted = pinrbd_flush(d->image, request_done, &r, &r.result);

    return request_wait(&r, submitted, d, "flush", 0, 0);
}

static int coroutine_fn disk_truncate(BlockDriverState *bs, int64_t offset,
                                      bool exact, PreallocMode prealloc,
                                      BdrvRequestFlags flags, Error **errp)
{
    struct disk *d = bs->opaque;
    struct image_job job = {
        .image = d->image,
        .size = offset,
    };
    int ret;

    if (prealloc != PREALLOC_MODE_OFF) {
        error_setg(errp, "Unsupported preallocation mode '%s'",
                   PreallocMode_str(prealloc));
        return -ENOTSUP;
    }
    qemu_co_mutex_lock(&d->resize_lock);
    if (!exact && (uint64_t)offset >= qatomic_read(&d->told_size)) {
        /* "at least": not meant to cut what another client has added */
        job.flags = PINRBD_RESIZE_GROW_ONLY;
    }
    ret = pinrbd_run_blocking(bs, resize_job, &job);
    if (ret == 0) {
        qatomic_set(&d->told_size, pinrbd_image_size(d->image));
    } else {
        pinrbd_propagate(errp, ret, &job.err);
    }
    qemu_co_mutex_unlock(&d->resize_lock);
    return ret;
}

/* Enough for one answer: a large map need not be walked to its end. */
#define STATUS_MAX (16 * GiB)

/*
 * How far an answer may go.  The block layer keeps the last one that said
 * "data", until it is overwritten.  That is welcome, unless it only means that
 * the object map is not ours to believe yet.
 */
static uint64_t status_max(BlockDriverState *bs)
{
    struct disk *d = bs->opaque;
    struct pinrbd_image_info info = { .size = sizeof(info) };

    pinrbd_image_info(d->image, &info);
    if (!bdrv_is_read_only(bs) && !info.lock_owner &&
        info.features & PINRBD_FEATURE_OBJECT_MAP) {
        return info.object_size;
    }
    return STATUS_MAX;
}

/* What no object has is zeroes, where an object map tells. */
static int coroutine_fn disk_block_status(BlockDriverState *bs,
                                          pinrbd_status_mode mode,
                                          int64_t offset, int64_t bytes,
                                          int64_t *pnum, int64_t *map,
                                          BlockDriverState **file)
{
    struct disk *d = bs->opaque;
    int64_t size = pinrbd_image_size(d->image);
    uint64_t len = 0;
    bool zero = false;

    if (offset < size) {
        zero = pinrbd_image_extent_is_zero(d->image, offset,
                                           MIN(size - offset,
                                               status_max(bs)), &len);
    }
    /* the last sector may be cut: what is behind the end is zeroes anyway */
    *pnum = offset + (int64_t)len >= size ? MAX(bytes, (int64_t)len)
                                          : (int64_t)len;
    *map = offset;
    *file = bs;
    return (zero ? BDRV_BLOCK_ZERO : BDRV_BLOCK_DATA) |
           BDRV_BLOCK_OFFSET_VALID;
}

/* ---- questions, answered from memory ----------------------------------- */

static int64_t disk_getlength(BlockDriverState *bs)
{
    struct disk *d = bs->opaque;

    return pinrbd_image_size(d->image);
}

static int disk_get_info(BlockDriverState *bs, BlockDriverInfo *bdi)
{
    struct disk *d = bs->opaque;
    struct pinrbd_image_info info = { .size = sizeof(info) };

    pinrbd_image_info(d->image, &info);
    bdi->cluster_size = info.object_size;
    return 0;
}

static ImageInfoSpecific *disk_get_specific_info(BlockDriverState *bs,
                                                 Error **errp)
{
    ImageInfoSpecific *info = g_new0(ImageInfoSpecific, 1);

    info->type = IMAGE_INFO_SPECIFIC_KIND_RBD;
    info->u.rbd.data = g_new0(ImageInfoSpecificRbd, 1);
    return info;
}

static int disk_snapshot_list(BlockDriverState *bs,
                              QEMUSnapshotInfo **ret_list)
{
    struct disk *d = bs->opaque;
    struct pinrbd_snapshot *snaps;
    QEMUSnapshotInfo *list;
    size_t n, n_user = 0;
    int ret;

    ret = pinrbd_image_snapshots(d->image, &snaps, &n);
    if (ret < 0) {
        return ret;
    }
    list = g_new0(QEMUSnapshotInfo, n);
    for (size_t i = 0; i < n; i++) {
        QEMUSnapshotInfo *info = &list[n_user];

        if (!snaps[i].is_user) {
            continue;
        }
        /* the name is the only handle that QEMU's users know */
        pstrcpy(info->id_str, sizeof(info->id_str), snaps[i].name);
        pstrcpy(info->name, sizeof(info->name), snaps[i].name);
        info->vm_state_size = snaps[i].size;
        info->date_sec = snaps[i].time_s;
        info->date_nsec = snaps[i].time_ns;
        info->icount = -1ULL;
        n_user++;
    }
    free(snaps);
    *ret_list = list;
    return n_user;
}

/* ---- snapshots --------------------------------------------------------- */

struct snapshot_job {
    struct pinrbd_image *image;
    const char *name;
    int (*change)(struct pinrbd_image *image, const char *name,
                  struct pinrbd_error *err);
    struct pinrbd_error err;
};

static int snapshot_job(void *arg)
{
    struct snapshot_job *job = arg;

    return job->change(job->image, job->name, &job->err);
}

/* QEMU knows a snapshot by id and name; these have only a name. */
static int disk_snapshot_create(BlockDriverState *bs, QEMUSnapshotInfo *info)
{
    struct disk *d = bs->opaque;
    struct snapshot_job job = {
        .image = d->image,
        .name = info->name,
        .change = pinrbd_image_snap_create,
    };
    int ret;

    if (!info->name[0] ||
        (info->id_str[0] && strcmp(info->id_str, info->name))) {
        return -EINVAL;
    }
    if (strlen(info->name) >= sizeof(info->id_str)) {
        return -ERANGE;
    }
    ret = pinrbd_run_blocking(bs, snapshot_job, &job);
    if (ret < 0) {
        error_report("rbd: %s", job.err.text);
    }
    return ret;
}

static int disk_snapshot_delete(BlockDriverState *bs, const char *id,
                                const char *name, Error **errp)
{
    struct disk *d = bs->opaque;
    struct snapshot_job job = {
        .image = d->image,
        .name = name,
        .change = pinrbd_image_snap_remove,
    };
    int ret;

    if (!name) {
        error_setg(errp, "rbd need a valid snapshot name");
        return -EINVAL;
    }
    /* empty when a transaction takes back what it has created */
    if (id && id[0] && strcmp(id, name)) {
        error_setg(errp, "rbd do not support snapshot id, it should be NULL "
                   "or equal to snapshot name");
        return -EINVAL;
    }
    ret = pinrbd_run_blocking(bs, snapshot_job, &job);
    return ret < 0 ? pinrbd_propagate(errp, ret, &job.err) : 0;
}

/* The block layer has drained the node. */
static int disk_snapshot_goto(BlockDriverState *bs, const char *name)
{
    struct disk *d = bs->opaque;
    struct snapshot_job job = {
        .image = d->image,
        .name = name,
        .change = pinrbd_image_snap_rollback,
    };
    int ret = pinrbd_run_blocking(bs, snapshot_job, &job);

    if (ret < 0) {
        error_report("rbd: %s", job.err.text);
    }
    qatomic_set(&d->told_size, pinrbd_image_size(d->image));
    return ret;
}

static int disk_probe_blocksizes(BlockDriverState *bs, BlockSizes *bsz)
{
    struct disk *d = bs->opaque;

    if (!d->settings->block_size) {
        return -ENOTSUP;
    }
    bsz->phys = d->settings->block_size;
    bsz->log = d->settings->block_size;
    return 0;
}

static void disk_refresh_limits(BlockDriverState *bs, Error **errp)
{
    struct disk *d = bs->opaque;
    struct pinrbd_image_info info = { .size = sizeof(info) };

    pinrbd_image_info(d->image, &info);
    bs->bl.opt_transfer = MIN(info.object_size, 64 * MiB);
}

/* ---- create ------------------------------------------------------------ */

struct create_job {
    struct connect_job connect;
    struct pinrbd_create_options options;
};

static int create_job(void *arg)
{
    struct create_job *job = arg;
    int ret = job_connect(&job->connect);

    if (ret < 0) {
        return ret;
    }
    return pinrbd_image_create(job->connect.cluster, &job->options,
                               &job->connect.err);
}

static int coroutine_fn create(const struct pinrbd_target *t, uint64_t size,
                               uint64_t object_size, Error **errp)
{
    struct create_job job = {
        .connect.target = t,
        .options = {
            .size = sizeof(job.options),
            .pool = t->pool,
            .ns = t->ns,
            .image = t->image,
            .image_size = size,
        },
    };
    int ret;

    if (t->snapshot) {
        error_setg(errp, "Can't use snapshot name for image creation");
        return -EINVAL;
    }
    if (object_size) {
        if (!is_power_of_2(object_size)) {
            error_setg(errp, "obj size needs to be power of 2");
            return -EINVAL;
        }
        if (object_size < 4096) {
            error_setg(errp, "obj size too small");
            return -EINVAL;
        }
        if (object_size > 32 * MiB) {
            error_setg(errp, "obj size too large");
            return -EINVAL;
        }
        job.options.order = ctz64(object_size);
    }
    ret = pinrbd_run_blocking(NULL, create_job, &job);
    if (ret == -EEXIST) {
        error_setg_errno(errp, EEXIST, "error rbd create");
    } else if (ret < 0) {
        pinrbd_propagate(errp, ret, &job.connect.err);
    }
    connect_job_clear(&job.connect);
    return ret;
}

static int coroutine_fn disk_co_create(BlockdevCreateOptions *options,
                                       Error **errp)
{
    BlockdevCreateOptionsRbd *o = &options->u.rbd;
    struct pinrbd_target target = { 0 };
    int ret;

    if (o->encrypt) {
        error_setg(errp, "Encryption inside the RBD image is not supported; "
                   "put QEMU's 'luks' format on top of the image");
        return -ENOTSUP;
    }
    ret = pinrbd_target_from_qapi(&target, o->location, errp);
    if (ret == 0) {
        ret = create(&target, o->size,
                     o->has_cluster_size ? o->cluster_size : 0, errp);
    }
    pinrbd_target_clear(&target);
    return ret;
}

static int coroutine_fn disk_co_create_opts(BlockDriver *drv,
                                            const char *filename,
                                            QemuOpts *opts, Error **errp)
{
    struct pinrbd_target target = { 0 };
    struct pinrbd_error err;
    const char *secret = qemu_opt_get(opts, "password-secret");
    uint64_t size = ROUND_UP(qemu_opt_get_size(opts, BLOCK_OPT_SIZE, 0),
                             BDRV_SECTOR_SIZE);
    uint64_t object_size = qemu_opt_get_size(opts, BLOCK_OPT_CLUSTER_SIZE, 0);
    int ret;

    if (qemu_opt_get(opts, "encrypt.format")) {
        error_setg(errp, "Encryption inside the RBD image is not supported; "
                   "put QEMU's 'luks' format on top of the image");
        return -ENOTSUP;
    }
    ret = pinrbd_target_parse(&target, filename, &err);
    if (ret == 0) {
        ret = pinrbd_target_complete(&target, &err);
    }
    if (ret < 0) {
        pinrbd_propagate(errp, ret, &err);
    }
    if (ret == 0 && secret) {
        ret = pinrbd_target_set_key(&target, secret, errp);
    }
    if (ret == 0) {
        ret = create(&target, size, object_size, errp);
    }
    pinrbd_target_clear(&target);
    return ret;
}

/* The encryption options are listed to be refused with advice. */
static QemuOptsList create_opts = {
    .name = "rbd-create-opts",
    .head = QTAILQ_HEAD_INITIALIZER(create_opts.head),
    .desc = {
        {
            .name = BLOCK_OPT_SIZE,
            .type = QEMU_OPT_SIZE,
            .help = "Virtual disk size",
        }, {
            .name = BLOCK_OPT_CLUSTER_SIZE,
            .type = QEMU_OPT_SIZE,
            .help = "RBD object size",
        }, {
            .name = "password-secret",
            .type = QEMU_OPT_STRING,
            .help = "ID of secret providing the Ceph key",
        }, {
            .name = "encrypt.format",
            .type = QEMU_OPT_STRING,
            .help = "Not supported: use format luks on top",
        }, {
            .name = "encrypt.cipher-alg",
            .type = QEMU_OPT_STRING,
            .help = "Not supported: use format luks on top",
        }, {
            .name = "encrypt.key-secret",
            .type = QEMU_OPT_STRING,
            .help = "Not supported: use format luks on top",
        },
        { }
    }
};

/* ---- registration ------------------------------------------------------ */

/* What decides which data this is; only these go into json: file names. */
static const char *const strong_options[] = {
    "pool", "namespace", "image", "conf", "snapshot", "user", "server.",
    "password-secret", NULL
};

/*
 * Our own options hold from open to close, so none is mutable and a reopen
 * that changes one is refused by the block layer.
 */
static BlockDriver driver_rbd = {
    .format_name = "rbd",
    .protocol_name = "rbd",
    .instance_size = sizeof(struct disk),

    .bdrv_parse_filename = pinrbd_parse_filename,
    .PINRBD_MEMBER_OPEN = disk_open,
    .bdrv_close = disk_close,
    .bdrv_reopen_prepare = disk_reopen_prepare,
    .bdrv_reopen_commit = disk_reopen_commit,
    .bdrv_reopen_abort = disk_reopen_abort,
    .strong_runtime_opts = strong_options,

    .bdrv_co_create = disk_co_create,
    .bdrv_co_create_opts = disk_co_create_opts,
    .create_opts = &create_opts,
    .bdrv_has_zero_init = bdrv_has_zero_init_1,

    .PINRBD_MEMBER_GETLENGTH = disk_getlength,
    .PINRBD_MEMBER_GET_INFO = disk_get_info,
    .bdrv_get_specific_info = disk_get_specific_info,
    .bdrv_snapshot_create = disk_snapshot_create,
    .bdrv_snapshot_delete = disk_snapshot_delete,
    .bdrv_snapshot_goto = disk_snapshot_goto,
    .bdrv_snapshot_list = disk_snapshot_list,
    .bdrv_probe_blocksizes = disk_probe_blocksizes,
    .bdrv_refresh_limits = disk_refresh_limits,

    .bdrv_co_preadv = disk_preadv,
    .bdrv_co_pwritev = disk_pwritev,
    .bdrv_co_pwrite_zeroes = disk_pwrite_zeroes,
    .bdrv_co_pdiscard = disk_pdiscard,
    .bdrv_co_flush_to_disk = disk_flush,
    .bdrv_co_truncate = disk_truncate,
    .bdrv_co_block_status = disk_block_status,

    .bdrv_co_invalidate_cache = disk_invalidate_cache,
    .bdrv_inactivate = disk_inactivate,
};

static BlockDriver driver_pinrbd;

struct address_question {
    uintptr_t address;
    bool is_code;
};

/* Asked for the program itself only, which comes first. */
static int ask_program(struct dl_phdr_info *info, size_t size, void *opaque)
{
    struct address_question *q = opaque;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + p->p_vaddr;

        if (p->p_type == PT_LOAD && (p->p_flags & PF_X) &&
            q->address - start < p->p_memsz) {
            q->is_code = true;
        }
    }
    return 1;
}

/* Is @function code of the program?  Not if we read the wrong member. */
static bool is_program_code(const void *function)
{
    struct address_question q = { .address = (uintptr_t)function };

    dl_iterate_phdr(ask_program, &q);
    return q.is_code;
}

/* Why the program's struct BlockDriver is not ours; NULL if it is. */
static const char *abi_difference(void)
{
    Dl_info info;
    ElfW(Sym) *sym = NULL;

    if (!dladdr1(&bdrv_file, &info, (void **)&sym, RTLD_DL_SYMENT) || !sym ||
        sym->st_size != sizeof(BlockDriver)) {
        return "its size differs";
    }
    if (g_strcmp0(bdrv_raw.format_name, "raw") ||
        g_strcmp0(bdrv_file.protocol_name, "file")) {
        return "its names are elsewhere";
    }
    if (!is_program_code(bdrv_raw.bdrv_co_preadv) ||
        !is_program_code(bdrv_raw.bdrv_co_pwritev) ||
        !is_program_code(bdrv_raw.bdrv_co_block_status) ||
        !is_program_code(bdrv_raw.bdrv_refresh_limits) ||
        !is_program_code(bdrv_file.bdrv_parse_filename)) {
        return "its functions are elsewhere";
    }
    return NULL;
}

static void pinrbd_register(void)
{
    const char *difference = abi_difference();

    if (difference) {
        error_report("rbd: module not used, struct BlockDriver of this QEMU "
                     "is not the one it was built for: %s", difference);
        return;
    }
    log_at_least(PINRBD_LOG_WARN);
    driver_pinrbd = driver_rbd;
    driver_pinrbd.format_name = "pinrbd";
    driver_pinrbd.protocol_name = "pinrbd";
    bdrv_register(&driver_rbd);
    bdrv_register(&driver_pinrbd);
}

block_init(pinrbd_register);

/* By these two QEMU knows a module of the same build. */
PINRBD_EXPORT void qemu_module_dummy(void)
{
}

PINRBD_EXPORT void DSO_STAMP_FUN(void)
{
}
