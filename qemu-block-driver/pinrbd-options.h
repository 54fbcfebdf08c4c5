/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where an image is, as plain C: what the file name and the options of a
 * block node say.  Knows nothing of QEMU, so that it can be tested without.
 */
#ifndef PINRBD_DRIVER_OPTIONS_H
#define PINRBD_DRIVER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "pinrbd.h"

/* Owned key/value pairs in the order they were given. */
struct pinrbd_pairs {
    struct pinrbd_kv *kv;
    size_t n;
};

void pinrbd_pairs_add(struct pinrbd_pairs *pairs, const char *key,
                      const char *value);
void pinrbd_pairs_clear(struct pinrbd_pairs *pairs);

/*
 * All strings owned.  NULL: not given.  An empty namespace was given and is
 * the default one.
 */
struct pinrbd_target {
    char *pool;
    char *ns;
    char *image;
    char *snapshot;
    char *conf;
    char *user;
    struct pinrbd_pairs ceph;   /* options of Ceph, applied in order */
    struct pinrbd_pairs own;    /* options of this product */
};

void pinrbd_target_clear(struct pinrbd_target *t);

/*
 * Take a file name apart:
 *
 *     rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT][:KEY=VALUE[:KEY=VALUE...]]
 *
 * `pinrbd:' may stand for `rbd:'.  A backslash takes the special meaning from
 * the character behind it.  @t is zeroed before, and to be cleared by the
 * caller after failures as well.
 */
int pinrbd_target_parse(struct pinrbd_target *t, const char *filename,
                        struct pinrbd_error *reterr);

/*
 * The last touches whatever the target came from: an image NS/IMAGE for which
 * no namespace was given is one in namespace NS; parts that cannot be empty
 * are checked.
 */
int pinrbd_target_complete(struct pinrbd_target *t,
                           struct pinrbd_error *reterr);

/* POOL/[NS/]IMAGE[@SNAPSHOT], for messages. */
char *pinrbd_target_name(const struct pinrbd_target *t);

/* Add server @host:@port to a value for mon_host; @list may be NULL. */
char *pinrbd_mon_host_add(char *list, const char *host, const char *port);

#endif
