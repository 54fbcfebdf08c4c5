/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Striping against the definition, written down a second time as a loop that
 * deals blocks to objects one after the other.
 */
#include "check.h"

#include <glib.h>

#include "striper.h"

struct place {
    uint64_t object;
    uint64_t off;
};

/* Where each unit of the image goes, by dealing. */
static struct place *deal(const struct layout *l, uint64_t n_units)
{
    struct place *p = g_new(struct place, n_units);
    uint64_t set = 0;
    uint64_t in_object = 0;
    uint64_t position = 0;

    for (uint64_t i = 0; i < n_units; i++) {
        p[i].object = set * l->count + position;
        p[i].off = in_object;
        if (++position == l->count) {
            position = 0;
            in_object += l->unit;
            if (in_object == l->object_size) {
                in_object = 0;
                set++;
            }
        }
    }
    return p;
}

/* Layouts smaller than images can have: the arithmetic is the same. */
static const struct layout layouts[] = {
    { 8, 8, 1 }, { 8, 4, 1 }, { 8, 4, 2 }, { 8, 2, 3 }, { 8, 1, 5 },
    { 16, 16, 3 }, { 16, 4, 4 }, { 16, 1, 7 },
};

static void test_map_and_back(void **state)
{
    for (size_t k = 0; k < G_N_ELEMENTS(layouts); k++) {
        const struct layout *l = &layouts[k];
        uint64_t size = l->object_size * l->count * 3;
        g_autofree struct place *want = deal(l, size / l->unit);

        for (uint64_t off = 0; off < size; off++) {
            struct object_extent e = striper_map(l, off, UINT64_MAX);
            const struct place *p = &want[off / l->unit];
            uint64_t run;

            assert_int_equal(e.object, p->object);
            assert_int_equal(e.off, p->off + off % l->unit);
            assert_int_equal(e.len, l->unit - off % l->unit);
            assert_int_equal(striper_unmap(l, e.object, e.off, &run), off);
            assert_int_equal(run, e.len);
            assert_int_equal(striper_map(l, off, 1).len, 1);
        }
    }
}

/* Every byte of every object has exactly one place in the image. */
static void test_inverse_covers_all(void **state)
{
    for (size_t k = 0; k < G_N_ELEMENTS(layouts); k++) {
        const struct layout *l = &layouts[k];
        uint64_t n = l->count * 3;
        g_autofree uint8_t *seen = g_malloc0(n * l->object_size);

        for (uint64_t object = 0; object < n; object++) {
            for (uint64_t off = 0; off < l->object_size; off++) {
                uint64_t run;
                uint64_t at = striper_unmap(l, object, off, &run);

                assert_in_range(at, 0, n * l->object_size - 1);
                assert_int_equal(seen[at]++, 0);
            }
        }
    }
}

static void test_objects(void **state)
{
    for (size_t k = 0; k < G_N_ELEMENTS(layouts); k++) {
        const struct layout *l = &layouts[k];

        for (uint64_t size = 0; size < l->object_size * l->count * 3; size++) {
            uint64_t count = 0;

            /* With fewer bytes than a stripe some objects are not used. */
            for (uint64_t off = 0; off < size; off++) {
                count = MAX(count, striper_map(l, off, 1).object + 1);
            }
            assert_int_equal(striper_objects(l, size), count);
        }
    }
}

static void test_known_values(void **state)
{
    const uint64_t kib = 1024;
    static const struct {
        uint64_t off_kib;
        uint64_t object;
        uint64_t in_object_kib;
    } known[] = {
        { 0, 0, 0 }, { 64, 1, 0 }, { 128, 2, 0 }, { 192, 3, 0 },
        { 1024, 0, 256 }, { 4096 - 64, 3, 960 }, { 4096, 4, 0 },
    };
    struct layout l;

    layout_init(&l, 20, 64 * kib, 4);
    assert_int_equal(l.object_size, 1024 * kib);
    for (size_t i = 0; i < G_N_ELEMENTS(known); i++) {
        struct object_extent e = striper_map(&l, known[i].off_kib * kib,
                                             1024 * kib);

        assert_int_equal(e.object, known[i].object);
        assert_int_equal(e.off, known[i].in_object_kib * kib);
        assert_int_equal(e.len, 64 * kib);
    }

    layout_init(&l, 22, 0, 0);
    assert_int_equal(l.unit, 4096 * kib);
    assert_int_equal(l.count, 1);
    assert_int_equal(striper_objects(&l, 20 * 1024 * kib), 5);
    assert_int_equal(striper_objects(&l, 20 * 1024 * kib + 1), 6);
    assert_int_equal(striper_map(&l, 4096 * kib - 1, 9).len, 1);

    /* one object in a row: the unit does not matter */
    layout_init(&l, 22, 65536, 1);
    assert_int_equal(l.unit, 4096 * kib);
}

static void test_far_end(void **state)
{
    struct layout l;
    struct object_extent e;
    uint64_t run;

    layout_init(&l, 12, 4096, 3);
    e = striper_map(&l, INT64_MAX, 1);
    assert_true(striper_unmap(&l, e.object, e.off, &run) == INT64_MAX);
    assert_true(striper_objects(&l, INT64_MAX) >= INT64_MAX / 4096);
    layout_init(&l, 25, 1 << 25, 1000);
    e = striper_map(&l, INT64_MAX, 1);
    assert_true(striper_unmap(&l, e.object, e.off, &run) == INT64_MAX);
}

static void test_valid(void **state)
{
    static const struct {
        uint8_t order;
        uint64_t unit;
        uint64_t count;
        bool valid;
    } cases[] = {
        { 11, 0, 0, false }, { 12, 0, 0, true }, { 25, 0, 0, true },
        { 26, 0, 0, false }, { 0, 0, 0, false }, { 255, 0, 0, false },
        { 22, 65536, 4, true }, { 22, 0, 4, false }, { 22, 65536, 0, false },
        { 22, 65535, 4, false }, { 22, 3 << 20, 4, false },
        { 22, 4 << 20, 16, true }, { 22, 8 << 20, 2, false },
        { 22, 65536, UINT32_MAX, true },
        { 22, 65536, (uint64_t)UINT32_MAX + 1, false },
        { 22, UINT64_MAX, 2, false }, { 22, 1, UINT64_MAX, false },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        assert_int_equal(layout_valid(cases[i].order, cases[i].unit,
                                      cases[i].count), cases[i].valid);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_and_back),
        cmocka_unit_test(test_inverse_covers_all),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_far_end),
        cmocka_unit_test(test_valid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
