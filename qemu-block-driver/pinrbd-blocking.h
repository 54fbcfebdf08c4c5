/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Library calls that block, made without stopping QEMU's event loop.
 */
#ifndef PINRBD_BLOCKING_H
#define PINRBD_BLOCKING_H

#include "block/block_int.h"

typedef int pinrbd_blocking_fn(void *arg);

/*
 * @fn(@arg) on a thread of its own; returns its result.  Others' I/O goes on
 * meanwhile: a coroutine yields, the main thread polls the event loop for @bs.
 * So in the main thread everything may happen in between that may happen
 * during the I/O of any block driver.
 */
int pinrbd_run_blocking(BlockDriverState *bs, pinrbd_blocking_fn *fn,
                        void *arg);

#endif
