/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What clients of an image say to each other, what an OSD says of locks and
 * object maps: bytes recorded from librbd and a cluster of 16.2.
 */
#include "check.h"

#include <errno.h>
#include <string.h>

#include "cls_lock.h"
#include "object_map.h"
#include "watch.h"

static GByteArray *unhex(const char *text)
{
    GByteArray *a = g_byte_array_new();

    for (; *text; text++) {
        uint8_t b;

        if (*text == ' ') {
            continue;
        }
        b = g_ascii_xdigit_value(text[0]) << 4 | g_ascii_xdigit_value(text[1]);
        g_byte_array_append(a, &b, 1);
        text++;
    }
    return a;
}

static struct notify_msg decode(const char *hex)
{
    g_autoptr(GByteArray) a = unhex(hex);
    struct notify_msg m;

    assert_int_equal(notify_decode(a->data, a->len, &m), 0);
    return m;
}

static void encode_expect(const struct notify_msg *m, const char *hex)
{
    g_autoptr(GByteArray) a = unhex(hex);
    uint8_t buf[NOTIFY_MAX];

    assert_int_equal(notify_encode(m, buf), a->len);
    assert_memory_equal(buf, a->data, a->len);
}

static void test_lock_messages(void **state)
{
    const char *acquired = "0701 14000000 00000000 ab10000000000000"
                           "c01400d0367f0000";
    const char *request = "0701 15000000 02000000 b710000000000000"
                          "70750060637f0000 00";
    struct notify_msg m = decode(acquired);

    assert_int_equal(m.op, NOTIFY_ACQUIRED_LOCK);
    assert_int_equal(m.client.gid, 4267);
    assert_int_equal(m.client.handle, 0x7f36d00014c0);
    encode_expect(&m, acquired);
    m = decode(request);
    assert_int_equal(m.op, NOTIFY_REQUEST_LOCK);
    assert_int_equal(m.client.gid, 0x10b7);
    encode_expect(&m, request);
    m.op = NOTIFY_RELEASED_LOCK;
    encode_expect(&m, "0701 14000000 01000000 b710000000000000"
                  "70750060637f0000");
}

static void test_maintenance_messages(void **state)
{
    struct notify_msg m = decode("0701 25000000 07000000 0000800100000000"
                                 "c510000000000000 9040014ceb7f0000"
                                 "0100000000000000 00");

    assert_int_equal(m.op, NOTIFY_RESIZE);
    assert_int_equal(m.size, 0x1800000);
    assert_false(m.allow_shrink);
    assert_true(m.has_async);
    assert_int_equal(m.async.client.gid, 0x10c5);
    assert_int_equal(m.async.id, 1);

    m = decode("0701 34000000 08000000 02000000 6131 010104000000 00000000"
               "c310000000000000 f0470160147f0000 0100000000000000"
               "0000000000000000");
    assert_int_equal(m.op, NOTIFY_SNAP_CREATE);
    assert_string_equal(m.name, "a1");
    assert_int_equal(m.snap_type, 0);
    assert_int_equal(m.snap_flags, 0);
    assert_int_equal(m.async.client.gid, 0x10c3);

    /* older senders have no async id: it cannot be carried out */
    m = decode("0501 08000000 06000000 0000000000000000");
    assert_int_equal(m.op, NOTIFY_FLATTEN);
    assert_false(m.has_async);
    /* an operation of the future */
    m = decode("0701 04000000 40000000");
    assert_int_equal(m.op, 64);
    assert_false(m.has_async);

    m = (struct notify_msg) {
        .op = NOTIFY_ASYNC_COMPLETE, .has_async = true,
        .async = { { 0x124b, 0x7f54c0011fc0 }, 1 },
    };
    encode_expect(&m, "0701 20000000 05000000 4b12000000000000"
                  "c01f01c0547f0000 0100000000000000 00000000");
    m.result = -EOPNOTSUPP;
    encode_expect(&m, "0701 20000000 05000000 4b12000000000000"
                  "c01f01c0547f0000 0100000000000000 a1ffffff");
}

static void test_not_messages(void **state)
{
    static const char *const bad[] = {
        "00", "0701 04000000", "0701 02000000 0300", "0908 04000000 03000000",
        "0701 08000000 00000000 00000000",      /* AcquiredLock of nobody */
    };
    struct notify_msg m;

    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GByteArray) a = unhex(bad[i]);

        assert_int_equal(notify_decode(a->data, a->len, &m), -EBADMSG);
    }
    assert_int_equal(notify_decode(NULL, 0, &m), 0);
    assert_int_equal(m.op, NOTIFY_HEADER_UPDATE);
}

static void reply_is(const char *hex, uint64_t gid, uint64_t handle,
                     struct notify_reply expected)
{
    g_autoptr(GByteArray) a = unhex(hex);
    const struct notify_client who = { gid, handle };
    struct notify_reply r;

    assert_int_equal(notify_reply_decode(a->data, a->len, &who, &r), 0);
    assert_int_equal(r.listed, expected.listed);
    assert_int_equal(r.answered, expected.answered);
    assert_int_equal(r.result, expected.result);
}

static void test_replies(void **state)
{
    /* 1/2 acked without a word, 3/4 says -EROFS; 5/6 did not answer */
    const char *two = "02000000 0100000000000000 0200000000000000 00000000"
                      "0300000000000000 0400000000000000 0a000000"
                      "0101 04000000 e2ffffff"
                      "01000000 0500000000000000 0600000000000000";
    const char *none = "00000000 00000000";
    g_autoptr(GByteArray) cut = unhex(two);
    struct notify_reply r;

    reply_is(two, 1, 2, (struct notify_reply) { true, true, -EROFS });
    reply_is(two, 5, 6, (struct notify_reply) { true, true, -EROFS });
    reply_is(two, 5, 2, (struct notify_reply) { false, true, -EROFS });
    reply_is(none, 1, 2, (struct notify_reply) { false, false, 0 });
    for (guint len = 0; len < cut->len; len++) {
        assert_int_equal(notify_reply_decode(cut->data, len,
                                             &(struct notify_client) { 1, 2 },
                                             &r), -EBADMSG);
    }
}

static int owner_of(const char *hex, struct lock_owner *o)
{
    g_autoptr(GByteArray) a = unhex(hex);

    return lock_decode_owner(a->data, a->len, o);
}

#define HELD(entity, cookie, tag) \
    "01016d000000 01000000 0101 21000000 " entity " ab10000000000000 " \
    "14000000 " cookie " 0101 2f000000 0000000000000000 01 0101 1c000000 " \
    "01000000 214ed565 10000000 0200 0000 7f000001 0000000000000000 " \
    "00000000 01 08000000 " tag
#define AUTO "6175746f20313339383733333934363237373736"
#define NOT_AUTO "6275746f20313339383733333934363237373736"
#define INTERNAL "696e7465726e616c"
#define OTHER_TAG "696e7465726e616d"

static void test_lock_owner(void **state)
{
    struct lock_owner o;

    assert_int_equal(owner_of("010111000000 00000000 01 08000000 " INTERNAL,
                              &o), 0);
    assert_int_equal(owner_of(HELD("08", AUTO, INTERNAL), &o), 1);
    assert_true(o.internal);
    assert_int_equal(o.gid, 4267);
    assert_int_equal(o.handle, 139873394627776);
    assert_string_equal(o.cookie, "auto 139873394627776");
    assert_string_equal(o.address, "127.0.0.1:0/1708477985");

    assert_int_equal(owner_of(HELD("04", AUTO, INTERNAL), &o), 1);
    assert_false(o.internal);           /* no client */
    assert_int_equal(owner_of(HELD("08", NOT_AUTO, INTERNAL), &o), 1);
    assert_false(o.internal);
    assert_int_equal(owner_of(HELD("08", AUTO, OTHER_TAG), &o), 1);
    assert_false(o.internal);
    assert_string_equal(o.tag, "internam");
    assert_int_equal(owner_of("0101 02000000 0000", &o), -EBADMSG);
}

static void test_object_map(void **state)
{
    /* 40 objects, the fourth exists; with the checksums of the disk */
    g_autoptr(GByteArray) a =
        unhex("0e000000 010108000000 2800000000000000 01000000000000000000"
              "0c000000 11db8ca5 01000000 a57b56cb");
    g_autoptr(GByteArray) again = NULL;
    const uint8_t *bits;
    uint64_t n;

    assert_int_equal(object_map_decode(a->data, a->len, &n, &bits), 0);
    assert_int_equal(n, 40);
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(object_bits_get(bits, i), i == 3 ? OBJECT_EXISTS
                                                          : OBJECT_NONEXISTENT);
    }
    again = object_map_encode(n, bits);
    assert_int_equal(again->len, 4 + 14 + 10 + 4);
    assert_memory_equal(again->data, a->data, 4 + 14 + 10);
    for (guint len = 0; len < 28; len++) {
        assert_int_equal(object_map_decode(a->data, len, &n, &bits), -EBADMSG);
    }

    uint8_t two[2] = { 0 };

    object_bits_set(two, 0, OBJECT_EXISTS_CLEAN);
    object_bits_set(two, 5, OBJECT_PENDING);
    assert_int_equal(two[0], 0xc0);
    assert_int_equal(two[1], 0x20);
    object_bits_set(two, 0, OBJECT_EXISTS);
    assert_int_equal(two[0], 0x40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_messages),
        cmocka_unit_test(test_maintenance_messages),
        cmocka_unit_test(test_not_messages),
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_lock_owner),
        cmocka_unit_test(test_object_map),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
