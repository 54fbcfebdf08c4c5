/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Walking iovecs: pieces cover each byte once, in order, by reference.
 */
#include "check.h"

#include <string.h>

#include <glib.h>

#include "iov.h"

static void test_bytes(void **state)
{
    struct iovec iov[3] = { { NULL, 3 }, { NULL, 0 }, { NULL, 5 } };
    struct iovec huge[2] = { { NULL, SIZE_MAX }, { NULL, 1 } };

    assert_int_equal(iov_bytes(iov, 3), 8);
    assert_int_equal(iov_bytes(iov, 1), 3);
    assert_int_equal(iov_bytes(iov, 0), 0);
    assert_true(iov_bytes(huge, 2) == UINT64_MAX);
    assert_true(iov_bytes(huge, 1) == SIZE_MAX);
}

/* Cut @n elements in pieces of @step and compare with the bytes in a row. */
static void cut(struct iovec *iov, int n, const char *want, size_t step)
{
    struct iov_cursor c = { iov, n, 0 };
    size_t at = 0;
    struct iovec p;

    for (;;) {
        p = iov_take(&c, step);
        if (!p.iov_len) {
            break;
        }
        assert_in_range(p.iov_len, 1, step);
        assert_memory_equal(p.iov_base, want + at, p.iov_len);
        at += p.iov_len;
    }
    assert_int_equal(at, strlen(want));
    assert_int_equal(iov_take(&c, step).iov_len, 0);
}

static void test_take(void **state)
{
    char a[] = "abc";
    char b[] = "defgh";
    char d[] = "i";
    struct iovec iov[] = {
        { NULL, 0 }, { a, 3 }, { NULL, 0 }, { NULL, 0 }, { b, 5 }, { d, 1 },
        { NULL, 0 },
    };
    struct iov_cursor c = { iov, 7, 0 };
    struct iovec p;

    for (size_t step = 1; step < 12; step++) {
        cut(iov, G_N_ELEMENTS(iov), "abcdefghi", step);
    }
    cut(iov, 0, "", 1);

    /* by reference */
    p = iov_take(&c, 2);
    assert_ptr_equal(p.iov_base, a);
    p = iov_take(&c, 2);
    assert_ptr_equal(p.iov_base, a + 2);
    assert_int_equal(p.iov_len, 1);
    p = iov_take(&c, 100);
    assert_ptr_equal(p.iov_base, b);
}

static void test_zero(void **state)
{
    for (uint64_t off = 0; off < 14; off++) {
        for (uint64_t len = 0; len < 14; len++) {
            char mem[13] = "abcdefghijkl";
            char want[13] = "abcdefghijkl";
            struct iovec iov[] = {
                { mem, 4 }, { NULL, 0 }, { mem + 4, 1 }, { mem + 5, 7 },
            };

            for (uint64_t i = off; i < off + len && i < 12; i++) {
                want[i] = 0;
            }
            iov_zero(iov, G_N_ELEMENTS(iov), off, len);
            assert_memory_equal(mem, want, sizeof(mem));
        }
    }
    iov_zero(NULL, 0, 0, UINT64_MAX);
}

static void test_zero_clips_huge_length(void **state)
{
    char mem[8] = "abcdefg";
    struct iovec iov[] = { { mem, 4 } };

    iov_zero(iov, 1, 2, UINT64_MAX);
    assert_memory_equal(mem, "ab\0\0efg", sizeof(mem));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_zero),
        cmocka_unit_test(test_zero_clips_huge_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
