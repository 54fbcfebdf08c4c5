/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The cursors: values, bounds, and that a cursor which ran over stays so.
 */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "codec.h"

static void test_values(void **state)
{
    static const uint8_t in[] = {
        0x80, 0x34, 0x12, 0x78, 0x56, 0x34, 0x92,
        0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x82,
        0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    };
    struct pdec d;

    pdec_init(&d, in, sizeof(in));
    assert_int_equal(pdec_left(&d), sizeof(in));
    assert_int_equal(pdec_u8(&d), 0x80);
    assert_int_equal(pdec_u16(&d), 0x1234);
    assert_int_equal(pdec_u32(&d), 0x92345678);
    assert_true(pdec_u64(&d) == 0x823456789abcdef0);
    assert_true(pdec_i64(&d) == -2);
    assert_int_equal(pdec_left(&d), 0);
    assert_true(pdec_ok(&d));
}

static void test_bad_stays_bad(void **state)
{
    static const uint8_t in[] = { 1, 2, 3, 4, 5 };
    char text[4] = "zz";
    size_t len = 9;
    struct pdec d;

    pdec_init(&d, in, sizeof(in));
    assert_int_equal(pdec_u32(&d), 0x04030201);
    assert_int_equal(pdec_u16(&d), 0);
    assert_false(pdec_ok(&d));
    /* the byte that is left must not be given out any more */
    assert_int_equal(pdec_left(&d), 0);
    assert_int_equal(pdec_u8(&d), 0);
    assert_null(pdec_bytes(&d, 1));
    (void)pdec_blob(&d, &len);
    assert_int_equal(len, 0);
    pdec_text(&d, text, sizeof(text));
    assert_string_equal(text, "");
    assert_int_equal(pdec_count(&d, 1), 0);
    assert_false(pdec_ok(&d));
}

static void test_empty(void **state)
{
    struct pdec d;

    pdec_init(&d, NULL, 0);
    assert_true(pdec_ok(&d));
    assert_non_null(pdec_bytes(&d, 0));
    assert_true(pdec_ok(&d));
    assert_int_equal(pdec_u8(&d), 0);
    assert_false(pdec_ok(&d));
}

static void test_text(void **state)
{
    static const struct {
        const char *in;
        size_t len;
        size_t room;
        const char *text;       /* NULL: bad */
    } cases[] = {
        { "\0\0\0\0", 4, 1, "" },
        { "\3\0\0\0abc", 7, 4, "abc" },
        { "\3\0\0\0abc", 7, 3, NULL },          /* no room for the end */
        { "\3\0\0\0ab", 6, 8, NULL },           /* short */
        { "\3\0\0\0a\0c", 7, 8, NULL },         /* not text */
        { "\377\377\377\377abc", 7, 8, NULL },
        { "\3\0\0", 3, 8, NULL },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *buf = malloc(cases[i].room);  /* ASan guards its end */
        struct pdec d;

        pdec_init(&d, cases[i].in, cases[i].len);
        pdec_text(&d, buf, cases[i].room);
        assert_int_equal(pdec_ok(&d), cases[i].text != NULL);
        assert_string_equal(buf, cases[i].text ? cases[i].text : "");
        free(buf);
    }
}

static void test_count(void **state)
{
    static const uint8_t in[] = { 2, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
                                  11, 12, 13, 14, 15, 16 };
    static const uint8_t huge[] = { 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4 };
    struct pdec d;

    pdec_init(&d, in, sizeof(in));
    assert_int_equal(pdec_count(&d, 8), 2);
    assert_true(pdec_ok(&d));
    pdec_init(&d, in, sizeof(in) - 1);
    assert_int_equal(pdec_count(&d, 8), 0);
    assert_false(pdec_ok(&d));
    pdec_init(&d, huge, sizeof(huge));
    assert_int_equal(pdec_count(&d, 1), 0);
    assert_false(pdec_ok(&d));
}

static void test_block(void **state)
{
    /* version 3, compat 1, two bytes, one behind */
    static const uint8_t in[] = { 3, 1, 2, 0, 0, 0, 0xaa, 0xbb, 0xcc };
    struct pdec d;
    struct pdec body;

    pdec_init(&d, in, sizeof(in));
    assert_int_equal(pdec_block(&d, 1, &body), 3);
    assert_int_equal(pdec_u8(&body), 0xaa);
    /* what the body has more is skipped */
    assert_int_equal(pdec_u8(&d), 0xcc);
    assert_true(pdec_ok(&d));
    /* a body that is read over does not reach the bytes behind it */
    assert_int_equal(pdec_u16(&body), 0);
    assert_false(pdec_ok(&body));
    assert_true(pdec_ok(&d));

    /* too new for us */
    pdec_init(&d, in, sizeof(in));
    pdec_block(&d, 0, &body);
    assert_false(pdec_ok(&d));
    assert_false(pdec_ok(&body));

    for (size_t len = 0; len < 8; len++) {
        pdec_init(&d, in, len);
        assert_int_equal(pdec_block(&d, 1, &body), 0);
        assert_false(pdec_ok(&d));
        assert_false(pdec_ok(&body));
        assert_int_equal(pdec_u8(&body), 0);
    }
}

static void test_fail(void **state)
{
    struct pdec d;

    pdec_init(&d, "abc", 3);
    pdec_fail(&d);
    assert_int_equal(pdec_u8(&d), 0);
    assert_false(pdec_ok(&d));
}

static void test_encode(void **state)
{
    static const uint8_t want[] = {
        0x07, 0x78, 0x56, 0x34, 0x12, 0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56,
        0x34, 0x82, 2, 0, 0, 0, 'h', 'i',
        7, 1, 6, 0, 0, 0, 1, 1, 0, 0, 0, 0,
    };
    uint8_t buf[sizeof(want)];
    struct penc e;
    size_t outer;
    size_t inner;

    penc_init(&e, buf, sizeof(buf));
    penc_u8(&e, 7);
    penc_u32(&e, 0x12345678);
    penc_u64(&e, 0x823456789abcdef0);
    penc_string(&e, "hi");
    outer = penc_block(&e, 7, 1);
    inner = penc_block(&e, 1, 1);
    penc_block_end(&e, inner);
    penc_block_end(&e, outer);
    assert_false(e.bad);
    assert_int_equal(penc_len(&e), sizeof(want));
    assert_memory_equal(buf, want, sizeof(want));
}

static void test_encode_too_long(void **state)
{
    for (size_t room = 0; room < 16; room++) {
        uint8_t *buf = malloc(room + 1);
        struct penc e;
        size_t block;

        buf[room] = 0x5a;
        penc_init(&e, buf, room);
        block = penc_block(&e, 1, 1);
        penc_u64(&e, UINT64_MAX);
        penc_string(&e, "ab");
        penc_block_end(&e, block);
        assert_true(e.bad);
        assert_int_equal(buf[room], 0x5a);
        assert_in_range(penc_len(&e), 0, room);
        free(buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_bad_stays_bad),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_block),
        cmocka_unit_test(test_fail),
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_encode_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
