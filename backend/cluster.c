/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The registry of the process's connections.
 *
 * Ten disks on one cluster need one set of librados threads, not ten.  The
 * registry maps the text of a connection's effective settings to the cluster
 * that has them; so the settings are read first, and what was read is thrown
 * away when such a connection exists.
 *
 * No lock is held while the network is waited for.  An entry without `conn' is
 * one whose first user is connecting; others with the same settings wait for
 * it.  If it fails they look again, and the next of them tries for itself: its
 * error is then its own.  An entry leaves the registry with its last user, and
 * before the connection is shut down: an open that comes meanwhile connects
 * anew.  A fenced connection leaves at once, it would be of no use to others.
 */
#include "cluster.h"

#include <errno.h>

#include "args.h"

static GMutex lock;
static GCond changed;               /* an entry has connected, or is gone */
static GHashTable *registry;        /* under lock: identity -> cluster */

static void cluster_free(struct pinrbd_cluster *cluster)
{
    g_hash_table_unref(cluster->claims);
    g_free(cluster->identity);
    g_free(cluster);
}

/*
 * A reference to the connected cluster of that identity, after waiting for one
 * that is connecting; or NULL, and @cluster is now the entry to connect.
 */
static struct pinrbd_cluster *join_or_enter(struct pinrbd_cluster *cluster)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);
    struct pinrbd_cluster *found;

    if (!registry) {
        registry = g_hash_table_new(g_str_hash, g_str_equal);
    }
    for (;;) {
        found = g_hash_table_lookup(registry, cluster->identity);
        if (!found) {
            g_hash_table_insert(registry, cluster->identity, cluster);
            return NULL;
        }
        if (found->conn) {
            found->refs++;
            return found;
        }
        g_cond_wait(&changed, &lock);
    }
}

/* The entry is connected (@conn) or has failed (NULL). */
static void settle(struct pinrbd_cluster *cluster, struct rados_conn *conn)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    cluster->conn = conn;
    if (!conn) {
        g_hash_table_remove(registry, cluster->identity);
    }
    g_cond_broadcast(&changed);
}

int cluster_open(const struct rados_transport *t,
                 const struct pinrbd_cluster_options *o,
                 struct pinrbd_cluster **ret, struct pinrbd_error *reterr)
{
    struct pinrbd_cluster *cluster, *found;
    struct rados_conn *conn;
    int r = t->conn_new(o, &conn, reterr);

    if (r < 0) {
        return r;
    }
    cluster = g_new0(struct pinrbd_cluster, 1);
    cluster->identity = g_strdup_printf("%s\n%s", t->name,
                                        t->conn_identity(conn));
    cluster->claims = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                            NULL);
    cluster->shared = !o->own_handle;
    cluster->refs = 1;
    if (cluster->shared) {
        found = join_or_enter(cluster);
        if (found) {
            t->conn_free(conn);
            cluster_free(cluster);
            *ret = found;
            return 0;
        }
    }
    r = t->conn_connect(conn, reterr);
    if (cluster->shared) {
        settle(cluster, r < 0 ? NULL : conn);
    } else {
        cluster->conn = conn;
    }
    if (r < 0) {
        t->conn_free(conn);
        cluster_free(cluster);
        return r;
    }
    *ret = cluster;
    return 0;
}

int pinrbd_cluster_open(const struct pinrbd_cluster_options *o,
                        struct pinrbd_cluster **ret,
                        struct pinrbd_error *reterr)
{
    struct pinrbd_cluster_options all;
    int r = args_take("pinrbd_cluster_options", o, &all, sizeof(all), reterr);

    return r < 0 ? r : cluster_open(&rados_librados, &all, ret, reterr);
}

struct pinrbd_cluster *cluster_ref(struct pinrbd_cluster *cluster)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    cluster->refs++;
    return cluster;
}

void cluster_retire(struct pinrbd_cluster *cluster)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    if (cluster->shared) {
        cluster->shared = false;
        g_hash_table_remove(registry, cluster->identity);
    }
}

void pinrbd_cluster_close(struct pinrbd_cluster *cluster)
{
    if (!cluster) {
        return;
    }
    g_mutex_lock(&lock);
    if (--cluster->refs) {
        g_mutex_unlock(&lock);
        return;
    }
    if (cluster->shared) {
        g_hash_table_remove(registry, cluster->identity);
    }
    g_mutex_unlock(&lock);
    cluster->conn->t->conn_free(cluster->conn);
    cluster_free(cluster);
}

int cluster_claim(struct pinrbd_cluster *cluster, const char *key)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    if (g_hash_table_contains(cluster->claims, key)) {
        return -EBUSY;
    }
    g_hash_table_add(cluster->claims, g_strdup(key));
    return 0;
}

void cluster_unclaim(struct pinrbd_cluster *cluster, const char *key)
{
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&lock);

    g_hash_table_remove(cluster->claims, key);
}

/* A number of seconds; @standard where there is none. */
static double option_seconds(struct pinrbd_cluster *cluster, const char *key,
                             double standard)
{
    char text[64];

    if (cluster->conn->t->conn_option(cluster->conn, key, text,
                                      sizeof(text)) < 0) {
        return standard;
    }
    return g_ascii_strtod(text, NULL);
}

unsigned cluster_mount_timeout_ms(struct pinrbd_cluster *cluster)
{
    double seconds = option_seconds(cluster, "client_mount_timeout", 0);

    return seconds > 0 ? (unsigned)MIN(seconds * 1000, G_MAXINT) : 0;
}

unsigned cluster_watch_timeout_s(struct pinrbd_cluster *cluster)
{
    double seconds = option_seconds(cluster, "osd_client_watch_timeout", 30);

    return CLAMP(seconds, 1, 3600);
}
