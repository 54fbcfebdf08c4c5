/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Between QEMU's forms of block options and struct pinrbd_target.
 */
#ifndef PINRBD_QDICT_H
#define PINRBD_QDICT_H

#include "qapi/qapi-types-block-core.h"

#include "pinrbd-options.h"

/* BlockDriver.bdrv_parse_filename: @filename's parts as entries of @options. */
void pinrbd_parse_filename(const char *filename, QDict *options, Error **errp);

/*
 * Fill in the zeroed @t from the options of a node, or of QMP.  Entries are
 * taken out of @options, all of them unless it fails.  Cleared by the caller,
 * after failures as well.
 */
int pinrbd_target_from_qdict(struct pinrbd_target *t, QDict *options,
                             Error **errp);
int pinrbd_target_from_qapi(struct pinrbd_target *t,
                            const BlockdevOptionsRbd *o, Error **errp);

/* The key in secret object @id becomes the Ceph option `key'. */
int pinrbd_target_set_key(struct pinrbd_target *t, const char *id,
                          Error **errp);

/* @err as a QEMU error; returns @ret. */
int pinrbd_propagate(Error **errp, int ret, const struct pinrbd_error *err);

#endif
