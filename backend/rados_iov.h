/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the librados transport needs C++ for: building an op whose payload is
 * foreign memory, and looking at the references to that memory.
 */
#ifndef PINRBD_RADOS_IOV_H
#define PINRBD_RADOS_IOV_H

#include <rados/librados.h>

#include "rados_op.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RADOS_IOV_ROOM 160

/* The buffers of one op; lives in the op's private memory. */
struct rados_iov {
    void *slots;            /* one per payload by reference or output */
    unsigned n_slots;       /* of them alive */
    bool has_out;           /* steps' out points into the slots */
    unsigned char room[RADOS_IOV_ROOM] __attribute__((aligned(16)));
};

/*
 * Build @op in @v and send it; @completion fires once.  Returns -errno when
 * it was not sent: then @completion will not fire and nothing is held.  On
 * success neither @v nor @op may be looked at: they may be gone already.
 */
int rados_iov_submit(struct rados_iov *v, rados_ioctx_t io,
                     rados_completion_t completion, struct rados_op *op);

/* A read op came back with success: put its data where the steps say. */
int rados_iov_collect(struct rados_iov *v, struct rados_op *op);

/* Is payload memory still referenced from below? */
bool rados_iov_held(const struct rados_iov *v, const struct rados_op *op);

/* Free all buffers.  Harmless when it was done before. */
void rados_iov_drop(struct rados_iov *v);

#ifdef __cplusplus
}
#endif

#endif
