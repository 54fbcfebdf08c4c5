/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Connections of the process, shared by their effective settings.
 */
#ifndef PINRBD_CLUSTER_H
#define PINRBD_CLUSTER_H

#include <glib.h>

#include "rados_op.h"

struct pinrbd_cluster {
    struct rados_conn *conn;    /* fixed after open */
    /* the rest belongs to cluster.c */
    char *identity;
    bool shared;
    unsigned refs;
    GHashTable *claims;         /* a set of keys */
};

/* pinrbd_cluster_open() over another transport; tests pass the fake one. */
int cluster_open(const struct rados_transport *t,
                 const struct pinrbd_cluster_options *o,
                 struct pinrbd_cluster **ret, struct pinrbd_error *reterr);

struct pinrbd_cluster *cluster_ref(struct pinrbd_cluster *cluster);

/* Blocklisted: later opens with the same settings get another connection. */
void cluster_retire(struct pinrbd_cluster *cluster);

/*
 * What only one user of the connection may have: -EBUSY if @key is taken.
 */
int cluster_claim(struct pinrbd_cluster *cluster, const char *key);
void cluster_unclaim(struct pinrbd_cluster *cluster, const char *key);

/* client_mount_timeout of the connection in milliseconds; 0: no limit. */
unsigned cluster_mount_timeout_ms(struct pinrbd_cluster *cluster);
/* osd_client_watch_timeout, as far as this client knows it: seconds. */
unsigned cluster_watch_timeout_s(struct pinrbd_cluster *cluster);

#endif
