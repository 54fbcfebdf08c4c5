/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The product's own options: every source, their order, and what is refused
 * with which text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#include "options.h"

static char *folder, *host_file, *conf_file;

static void put_file(const char *path, const char *text)
{
    g_autoptr(GError) err = NULL;

    if (!g_file_set_contents(path, text, -1, &err)) {
        fail_msg("%s", err->message);
    }
}

static int make_folder(void **state)
{
    folder = g_dir_make_tmp("pinrbd-options-XXXXXX", NULL);
    host_file = g_build_filename(folder, "host.conf", NULL);
    conf_file = g_build_filename(folder, "ceph.conf", NULL);
    return folder ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)g_unlink(host_file);
    (void)g_unlink(conf_file);
    (void)g_rmdir(folder);
    g_free(folder);
    g_free(host_file);
    g_free(conf_file);
    return 0;
}

/* Empty files, no variables: what every test starts from. */
static int reset(void **state)
{
    struct pinrbd_option_info info;

    for (unsigned i = 0; pinrbd_settings_describe(i, &info); i++) {
        g_autofree char *key = g_ascii_strup(info.key, -1);
        g_autofree char *name = g_strconcat("PINRBD_",
                                            g_strdelimit(key, "-", '_'), NULL);

        g_unsetenv(name);
    }
    put_file(host_file, "");
    put_file(conf_file, "");
    g_setenv("PINRBD_CONF", host_file, true);
    return 0;
}

static struct pinrbd_settings *load_of(const char *ns, const char *key,
                                       const char *value)
{
    struct pinrbd_kv kv = { key, value };
    struct pinrbd_settings *s = NULL;
    struct pinrbd_error err = { 0 };

    if (pinrbd_settings_load("p", ns, "i", conf_file, &kv, key ? 1 : 0, &s,
                             &err) < 0) {
        fail_msg("%s", err.text);
    }
    return s;
}

static struct pinrbd_settings *load(void)
{
    return load_of(NULL, NULL, NULL);
}

/* A load that succeeds, with the threshold the table says. */
static void check_default(void)
{
    struct pinrbd_settings *s = load(), *standard = settings_dup(NULL);

    assert_int_equal(s->pin_threshold, standard->pin_threshold);
    pinrbd_settings_free(s);
    pinrbd_settings_free(standard);
}

static void check_threshold(const char *ns, uint64_t expected)
{
    struct pinrbd_settings *s = load_of(ns, NULL, NULL);

    assert_int_equal(s->pin_threshold, expected);
    pinrbd_settings_free(s);
}

static void fails_of(const char *conf, const char *key, const char *value,
                     int code, const char *text)
{
    struct pinrbd_kv kv = { key, value };
    struct pinrbd_settings *s = (void *)&kv;
    struct pinrbd_error err = { 0 };
    g_auto(GStrv) parts = g_strsplit(text, "HOST", -1);
    g_autofree char *step = g_strjoinv(host_file, parts);
    g_auto(GStrv) rest = g_strsplit(step, "CONF", -1);
    g_autofree char *expected = g_strjoinv(conf_file, rest);

    assert_int_equal(pinrbd_settings_load("p", NULL, "i", conf, &kv,
                                          key ? 1 : 0, &s, &err), code);
    assert_string_equal(err.text, expected);
    assert_int_equal(err.code, code);
    assert_ptr_equal(s, &kv);       /* untouched */
}

static void fails(const char *text)
{
    fails_of(conf_file, NULL, NULL, -EINVAL, text);
}

static void defaults(void **state)
{
    struct pinrbd_settings *s = load();

    assert_int_equal(s->size, sizeof(*s));
    assert_int_equal(s->pin, PINRBD_PIN_AUTO);
    assert_int_equal(s->cluster_handle, PINRBD_HANDLE_SHARED);
    assert_int_equal(s->block_size, 0);
    assert_int_equal(s->log_level, PINRBD_LOG_WARN);
    assert_null(s->stats_file);
    assert_in_range(s->pin_threshold, 1, 65536);
    pinrbd_settings_free(s);
    pinrbd_settings_free(NULL);
}

static void all_values(void **state)
{
    struct pinrbd_settings *s;

    put_file(host_file,
             "# comment\n[pinrbd]\npin=always\ncluster-handle=own\n"
             "block-size = 4096 \nlog-level=debug\nstats-file=/tmp/a b\n"
             "pin-threshold=3\n");
    s = load();
    assert_int_equal(s->pin, PINRBD_PIN_ALWAYS);
    assert_int_equal(s->cluster_handle, PINRBD_HANDLE_OWN);
    assert_int_equal(s->block_size, 4096);
    assert_int_equal(s->log_level, PINRBD_LOG_DEBUG);
    assert_string_equal(s->stats_file, "/tmp/a b");
    assert_int_equal(s->pin_threshold, 3);
    pinrbd_settings_free(s);

    put_file(host_file,
             "[pinrbd]\npin=never\nblock-size=512\nlog-level=error\n"
             "stats-file=\n");
    s = load();
    assert_int_equal(s->pin, PINRBD_PIN_NEVER);
    assert_int_equal(s->block_size, 512);
    assert_int_equal(s->log_level, PINRBD_LOG_ERROR);
    assert_null(s->stats_file);
    pinrbd_settings_free(s);
}

/* Each source in turn is put above those before it. */
static void precedence(void **state)
{
    struct pinrbd_settings *s;

    put_file(host_file, "[pinrbd]\npin-threshold=1\n");
    check_threshold(NULL, 1);
    put_file(host_file, "[pool p]\npin-threshold=2\n"
                        "[pinrbd]\npin-threshold=1\n"
                        "[pool q]\npin-threshold=22\n");
    check_threshold(NULL, 2);
    put_file(host_file, "[image p/i]\npin-threshold=3\n"
                        "[pool p]\npin-threshold=2\n"
                        "[image p/n/i]\npin-threshold=4\n"
                        "[image q/i]\npin-threshold=33\n");
    check_threshold(NULL, 3);
    check_threshold("", 3);
    check_threshold("n", 4);
    check_threshold("m", 2);
    put_file(conf_file, "[global]\npin threshold = 44\n"
                        "[pinrbd]\npin threshold = 5\n");
    check_threshold(NULL, 5);
    g_setenv("PINRBD_PIN_THRESHOLD", "6", true);
    check_threshold(NULL, 6);
    s = load_of(NULL, "pin-threshold", "7");
    assert_int_equal(s->pin_threshold, 7);
    pinrbd_settings_free(s);
    g_setenv("PINRBD_PIN_THRESHOLD", "", true);     /* as if unset */
    check_threshold(NULL, 5);
}

static void spelling_of_keys(void **state)
{
    put_file(host_file, "[pinrbd]\npin_threshold=1\n");
    check_threshold(NULL, 1);
    put_file(host_file, "[pinrbd]\nPin Threshold=2\n");
    check_threshold(NULL, 2);
    put_file(conf_file, "[pinrbd]\npin-threshold=3\n");
    check_threshold(NULL, 3);
    put_file(conf_file, "[pinrbd]\nPIN_THRESHOLD=4\n");
    check_threshold(NULL, 4);
    assert_true(pinrbd_settings_known("pin"));
    assert_true(pinrbd_settings_known("pin-threshold"));
    assert_true(pinrbd_settings_known("stats_file"));
    assert_false(pinrbd_settings_known(""));
    assert_false(pinrbd_settings_known("pinrbd"));
    assert_false(pinrbd_settings_known("pin-thresholds"));
}

static void sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t value;         /* UINT64_MAX: refused */
    } cases[] = {
        { "0", 0 },
        { "4096", 4096 },
        { "4k", 4096 },
        { "64K", 65536 },
        { "1M", 1048576 },
        { "2g", 2147483648 },
        { "9223372036854775807", INT64_MAX },
        { "9223372036854775808", UINT64_MAX },
        { "18446744073709551616", UINT64_MAX },
        { "8589934592G", UINT64_MAX },
        { "99999999999999999999k", UINT64_MAX },
        { "", UINT64_MAX },
        { "k", UINT64_MAX },
        { "-1", UINT64_MAX },
        { "+1", UINT64_MAX },
        { " 1", UINT64_MAX },
        { "1 k", UINT64_MAX },
        { "1kB", UINT64_MAX },
        { "1t", UINT64_MAX },
        { "0x10", UINT64_MAX },
        { "1.5k", UINT64_MAX },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct pinrbd_settings *s;

        if (cases[i].value == UINT64_MAX) {
            g_autofree char *text = g_strdup_printf("drive options: option "
                "'pin-threshold' cannot be '%s', only a number of bytes with "
                "or without a suffix K, M or G", cases[i].text);

            fails_of(NULL, "pin-threshold", cases[i].text, -EINVAL, text);
            continue;
        }
        s = load_of(NULL, "pin-threshold", cases[i].text);
        assert_int_equal(s->pin_threshold, cases[i].value);
        pinrbd_settings_free(s);
    }
}

static void refused_in_host_file(void **state)
{
    put_file(host_file, "[pinrbd]\npinn=auto\n");
    fails("HOST, section [pinrbd]: unknown option 'pinn' (value 'auto')");
    put_file(host_file, "[pool p]\npin=maybe\n");
    fails("HOST, section [pool p]: option 'pin' cannot be 'maybe', only "
          "auto|always|never");
    put_file(host_file, "[image p/i]\nblock-size=1024\n");
    fails("HOST, section [image p/i]: option 'block-size' cannot be '1024', "
          "only 0|512|4096");
    put_file(host_file, "[pools p]\npin=auto\n");
    fails("HOST: unknown section [pools p], there are [pinrbd], [pool POOL] "
          "and [image POOL/IMAGE]");
    put_file(host_file, "[image i]\npin=auto\n");
    fails("HOST: unknown section [image i], there are [pinrbd], [pool POOL] "
          "and [image POOL/IMAGE]");
    /* other images' sections hold what they like */
    put_file(host_file, "[image p/other]\npin=maybe\n");
    check_default();
}

static void host_file_that_is_none(void **state)
{
    struct pinrbd_error err = { 0 };
    struct pinrbd_settings *s;
    g_autofree char *prefix = g_strconcat(host_file, ": ", NULL);

    put_file(host_file, "pin=auto\n");      /* no section */
    assert_int_equal(pinrbd_settings_load("p", NULL, "i", NULL, NULL, 0, &s,
                                          &err), -EINVAL);
    assert_memory_equal(err.text, prefix, strlen(prefix));

    (void)g_unlink(host_file);
    fails_of(NULL, NULL, NULL, -ENOENT,
             "HOST: cannot read the host file: No such file or directory");
    g_setenv("PINRBD_CONF", "/", true);
    fails_of(NULL, NULL, NULL, -EISDIR,
             "/: cannot read the host file: Is a directory");
    g_setenv("PINRBD_CONF", "/dev/null", true);
    check_default();
    g_setenv("PINRBD_CONF", "/dev/zero", true);
    fails_of(NULL, NULL, NULL, -EFBIG,
             "/dev/zero: cannot read the host file: File too large");
}

static void refused_in_conf(void **state)
{
    put_file(conf_file, "[global]\nfoo=1\n\n[pinrbd]\n\nfoo = 1\npin=x\n");
    fails("CONF, section [pinrbd], line 6: unknown option 'foo' (value '1')");
    put_file(conf_file, "[pinrbd]\npin = \"maybe not\"\n");
    fails("CONF, section [pinrbd], line 2: option 'pin' cannot be "
          "'maybe not', only auto|always|never");
    /* what Ceph's own sections hold is none of our business */
    put_file(conf_file, "[client\nnonsense\n[x]\n=\n");
    check_default();
    (void)g_unlink(conf_file);
    fails_of(conf_file, NULL, NULL, -ENOENT,
             "error reading conf file CONF: No such file or directory");
    fails_of("/", NULL, NULL, -EISDIR,
             "error reading conf file /: Is a directory");
}

static void refused_elsewhere(void **state)
{
    fails_of(NULL, "pin", "on", -EINVAL, "drive options: option 'pin' cannot "
             "be 'on', only auto|always|never");
    fails_of(NULL, "pin", "auto|always", -EINVAL, "drive options: option "
             "'pin' cannot be 'auto|always', only auto|always|never");
    fails_of(NULL, "pin", "", -EINVAL, "drive options: option 'pin' cannot "
             "be '', only auto|always|never");
    fails_of(NULL, "no such", "x", -EINVAL, "drive options: unknown option "
             "'no-such' (value 'x')");
    g_setenv("PINRBD_CLUSTER_HANDLE", "mine", true);
    fails("environment variable PINRBD_CLUSTER_HANDLE: option "
          "'cluster-handle' cannot be 'mine', only shared|own");
    /* also where something more important would replace it */
    fails_of(NULL, "cluster-handle", "own", -EINVAL, "environment variable "
             "PINRBD_CLUSTER_HANDLE: option 'cluster-handle' cannot be "
             "'mine', only shared|own");
}

static void no_error_wanted(void **state)
{
    struct pinrbd_kv kv = { "pin", "x" };
    struct pinrbd_settings *s;

    assert_int_equal(pinrbd_settings_load("p", NULL, "i", NULL, &kv, 1, &s,
                                          NULL), -EINVAL);
}

static void copies(void **state)
{
    struct pinrbd_settings *s = load_of(NULL, "stats-file", "/x");
    struct pinrbd_settings *copy = settings_dup(s);

    assert_string_equal(copy->stats_file, "/x");
    assert_ptr_not_equal(copy->stats_file, s->stats_file);
    pinrbd_settings_free(s);
    pinrbd_settings_free(copy);
    copy = settings_dup(NULL);
    assert_int_equal(copy->log_level, PINRBD_LOG_WARN);
    pinrbd_settings_free(copy);
}

/* Every row can be used as it is documented. */
static void table(void **state)
{
    struct pinrbd_option_info info;
    unsigned n;

    for (n = 0; pinrbd_settings_describe(n, &info); n++) {
        struct pinrbd_settings *s = load_of(NULL, info.key, info.standard);

        pinrbd_settings_free(s);
        assert_true(pinrbd_settings_known(info.key));
        assert_true(strlen(info.help) > 20);
        if (strchr(info.values, '|')) {
            g_auto(GStrv) values = g_strsplit(info.values, "|", -1);

            for (size_t i = 0; values[i]; i++) {
                pinrbd_settings_free(load_of(NULL, info.key, values[i]));
            }
        }
    }
    assert_true(n >= 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults, reset),
        cmocka_unit_test_setup(all_values, reset),
        cmocka_unit_test_setup(precedence, reset),
        cmocka_unit_test_setup(spelling_of_keys, reset),
        cmocka_unit_test_setup(sizes, reset),
        cmocka_unit_test_setup(refused_in_host_file, reset),
        cmocka_unit_test_setup(host_file_that_is_none, reset),
        cmocka_unit_test_setup(refused_in_conf, reset),
        cmocka_unit_test_setup(refused_elsewhere, reset),
        cmocka_unit_test_setup(no_error_wanted, reset),
        cmocka_unit_test_setup(copies, reset),
        cmocka_unit_test_setup(table, reset),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
