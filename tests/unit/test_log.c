/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The log sink, error texts, and the limit on repeated messages.
 */
#include "check.h"

#include <errno.h>
#include <string.h>

#include "log.h"

struct sink {
    unsigned n;
    enum pinrbd_log_level level;
    char line[1100];
};

static void take(void *opaque, enum pinrbd_log_level level, const char *line)
{
    struct sink *s = opaque;

    s->n++;
    s->level = level;
    g_strlcpy(s->line, line, sizeof(s->line));
}

static void test_levels(void **state)
{
    static struct sink s;

    plog(PINRBD_LOG_ERROR, "nobody listens");
    pinrbd_log_set(take, &s, PINRBD_LOG_WARN);
    plog(PINRBD_LOG_INFO, "too quiet");
    assert_int_equal(s.n, 0);
    plog(PINRBD_LOG_WARN, "disk %d", 7);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.level, PINRBD_LOG_WARN);
    assert_string_equal(s.line, "disk 7");
    plog(PINRBD_LOG_ERROR, "louder");
    assert_int_equal(s.n, 2);

    pinrbd_log_set(take, &s, PINRBD_LOG_DEBUG);
    plog(PINRBD_LOG_DEBUG, "all");
    assert_int_equal(s.n, 3);

    pinrbd_log_set(NULL, NULL, PINRBD_LOG_DEBUG);
    plog(PINRBD_LOG_ERROR, "nobody again");
    assert_int_equal(s.n, 3);
}

static void test_long_line(void **state)
{
    static struct sink s;
    g_autofree char *text = g_strnfill(5000, 'x');

    pinrbd_log_set(take, &s, PINRBD_LOG_DEBUG);
    plog(PINRBD_LOG_ERROR, "%s", text);
    pinrbd_log_set(NULL, NULL, PINRBD_LOG_ERROR);
    assert_int_equal(s.n, 1);
    assert_in_range(strlen(s.line), 512, 1023);
    assert_int_equal(strspn(s.line, "x"), strlen(s.line));
}

static void test_error(void **state)
{
    struct pinrbd_error err;
    g_autofree char *text = g_strnfill(5000, 'y');

    memset(&err, 0x55, sizeof(err));
    assert_int_equal(perror_set(&err, -ENOENT, "no %s", "disk"), -ENOENT);
    assert_int_equal(err.code, -ENOENT);
    assert_string_equal(err.text, "no disk");

    memset(&err, 0x55, sizeof(err));
    assert_int_equal(perror_set(&err, -EIO, "%s", text), -EIO);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);

    assert_int_equal(perror_set(NULL, -EROFS, "%d", 1), -EROFS);
}

static void test_limit(void **state)
{
    struct plog_limit once = { 0 };
    struct plog_limit always = { 0 };
    unsigned held_back = 99;

    /* an hour: only the first passes */
    assert_true(plog_limit_pass(&once, 3600 * 1000, &held_back));
    assert_int_equal(held_back, 0);
    for (int i = 0; i < 5; i++) {
        assert_false(plog_limit_pass(&once, 3600 * 1000, &held_back));
    }
    /* the hour is over: what was kept back is told once */
    once.next_us = 0;
    assert_true(plog_limit_pass(&once, 3600 * 1000, &held_back));
    assert_int_equal(held_back, 5);
    once.next_us = 0;
    assert_true(plog_limit_pass(&once, 3600 * 1000, &held_back));
    assert_int_equal(held_back, 0);

    for (int i = 0; i < 5; i++) {
        assert_true(plog_limit_pass(&always, 0, &held_back));
    }
}

static void test_version(void **state)
{
    assert_string_equal(pinrbd_version(), PINRBD_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_version),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
