/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Changing an object alone.  Where a change takes several steps (the map, then
 * the object; the parent's data, then the object; the object, then the map) the
 * request holds its object, and other changes of the object wait in a list of
 * the holder.  It lets go once its ops are sent, since ops on one object are
 * executed in the order they were sent in, or, after a remove, once the map
 * says so.
 *
 * What is sent without holding is sent under the stripe's lock: nothing comes
 * between looking at the map and sending.
 *
 * Stripes are few, and holders fewer: a list does.
 */
#include "object_request.h"

struct object_request *stripe_holder_locked(struct object_stripe *s,
                                            uint64_t object)
{
    struct object_request *h = s->holders;

    while (h && h->object != object) {
        h = h->holders_next;
    }
    return h;
}

/* True: another request holds the object, and @o waits for it. */
bool stripe_wait_locked(struct object_stripe *s, struct object_request *o)
{
    struct object_request *h = stripe_holder_locked(s, o->object);

    if (!h) {
        return false;
    }
    o->phase = OBJECT_WAITING;
    o->list_next = NULL;
    *h->waiters_end = o;
    h->waiters_end = &o->list_next;
    return true;
}

void stripe_hold_locked(struct object_stripe *s, struct object_request *o)
{
    o->holds = true;
    o->waiters = NULL;
    o->waiters_end = &o->waiters;
    o->holders_next = s->holders;
    s->holders = o;
    s->changes++;
}

/* The requests that waited; to be started without the lock. */
struct object_request *stripe_let_go_locked(struct object_stripe *s,
                                            struct object_request *o)
{
    struct object_request **p = &s->holders;

    while (*p && *p != o) {
        p = &(*p)->holders_next;
    }
    g_assert(*p);
    *p = o->holders_next;
    o->holds = false;
    return o->waiters;
}

void object_start_list(struct object_request *o)
{
    while (o) {
        struct object_request *next = o->list_next;

        object_write_start(o);
        o = next;
    }
}

void object_let_go(struct object_request *o)
{
    struct object_stripe *s = object_stripe_of(o);
    struct object_request *waiters;

    if (!o->holds) {
        return;
    }
    g_mutex_lock(&s->lock);
    waiters = stripe_let_go_locked(s, o);
    g_mutex_unlock(&s->lock);
    object_start_list(waiters);
}

/* A memory map learns of absent objects only while none can be appearing. */
void stripe_count_locked(struct object_stripe *s,
                         struct object_request *o)
{
    struct object_map *map = object_map_of(o);

    o->in_flight = map && object_map_is_memory(map);
    s->in_flight += o->in_flight;
    s->changes++;
}

void object_uncount(struct object_request *o)
{
    struct object_stripe *s = object_stripe_of(o);

    if (o->in_flight) {
        g_mutex_lock(&s->lock);
        s->in_flight--;
        g_mutex_unlock(&s->lock);
        o->in_flight = false;
    }
}

/* The op is built: send it; a holder that has no more to do lets go. */
void stripe_send_locked(struct object_stripe *s, struct object_request *o,
                        struct object_request **ret_waiters)
{
    if (o->holds && !(o->removes && object_map_of(o))) {
        *ret_waiters = stripe_let_go_locked(s, o);
    }
    stripe_count_locked(s, o);
    o->phase = OBJECT_SENT;
    rados_submit(object_image(o)->data_pool, &o->op);
}
