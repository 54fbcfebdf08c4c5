/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * File names of images: `rbd:...' taken apart, and the last touches that any
 * image address gets.  A target is written down as
 *
 *     pool|namespace|image|snapshot|conf|user {ceph options} (own options)
 *
 * with `-' for what is absent.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <glib.h>

#include "pinrbd-options.h"

static void append_pairs(GString *s, const struct pinrbd_pairs *pairs)
{
    for (size_t i = 0; i < pairs->n; i++) {
        g_string_append_printf(s, "%s%s=%s", i ? "," : "", pairs->kv[i].key,
                               pairs->kv[i].value);
    }
}

static char *describe(const struct pinrbd_target *t)
{
    const char *parts[] = {
        t->pool, t->ns, t->image, t->snapshot, t->conf, t->user,
    };
    GString *s = g_string_new("");

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_string_append_printf(s, "%s%s", i ? "|" : "",
                               parts[i] ? parts[i] : "-");
    }
    g_string_append(s, " {");
    append_pairs(s, &t->ceph);
    g_string_append(s, "} (");
    append_pairs(s, &t->own);
    g_string_append(s, ")");
    return g_string_free(s, FALSE);
}

static void parses(const char *filename, const char *expected)
{
    struct pinrbd_target t = { 0 };
    struct pinrbd_error err = { 0 };
    g_autofree char *got = NULL;

    if (pinrbd_target_parse(&t, filename, &err) < 0) {
        fail_msg("%s: %s", filename, err.text);
    }
    got = describe(&t);
    assert_string_equal(got, expected);
    pinrbd_target_clear(&t);
}

static void fails(const char *filename, const char *text)
{
    struct pinrbd_target t = { 0 };
    struct pinrbd_error err = { 0 };

    assert_int_equal(pinrbd_target_parse(&t, filename, &err), -EINVAL);
    assert_int_equal(err.code, -EINVAL);
    assert_string_equal(err.text, text);
    pinrbd_target_clear(&t);
    /* a NULL error is accepted as well */
    assert_int_equal(pinrbd_target_parse(&t, filename, NULL), -EINVAL);
    pinrbd_target_clear(&t);
}

static void parts(void **state)
{
    parses("rbd:p/i", "p||i|-|-|- {} ()");
    parses("pinrbd:p/i", "p||i|-|-|- {} ()");
    parses("rbd:p/n/i", "p|n|i|-|-|- {} ()");
    parses("rbd:p/i@s", "p||i|s|-|- {} ()");
    parses("rbd:p/n/i@s", "p|n|i|s|-|- {} ()");
    parses("rbd:p/n/i/j", "p|n|i/j|-|-|- {} ()");
    parses("rbd:/", "|||-|-|- {} ()");
}

static void options(void **state)
{
    parses("rbd:p/i:id=vm:conf=/etc/c", "p||i|-|/etc/c|vm {} ()");
    parses("rbd:p/i:conf=a:conf=b:id=x:id=y", "p||i|-|b|y {} ()");
    parses("rbd:p/i@s:id=vm", "p||i|s|-|vm {} ()");
    parses("rbd:p/i:a=1:b=2:a=3", "p||i|-|-|- {a=1,b=2,a=3} ()");
    parses("rbd:p/i:a=", "p||i|-|-|- {a=} ()");
    parses("rbd:p/i:a=b=c", "p||i|-|-|- {a=b=c} ()");
    parses("rbd:p/i:pin=never:debug_ms=1:pin-threshold=4k",
           "p||i|-|-|- {debug_ms=1} (pin=never,pin-threshold=4k)");
    parses("rbd:p/i:pin_threshold=1", "p||i|-|-|- {} (pin_threshold=1)");
    parses("rbd:p/i:pinn=1", "p||i|-|-|- {pinn=1} ()");
}

static void escapes(void **state)
{
    parses("rbd:p/a\\:b", "p||a:b|-|-|- {} ()");
    parses("rbd:p/a\\@b", "p||a@b|-|-|- {} ()");
    parses("rbd:p/aa\\/bb", "p||aa/bb|-|-|- {} ()");
    parses("rbd:p\\/q/i", "p/q||i|-|-|- {} ()");
    parses("rbd:p/a\\\\b", "p||a\\b|-|-|- {} ()");
    parses("rbd:p/\\n\\/m/i", "p|n/m|i|-|-|- {} ()");
    parses("rbd:p/i@s\\:t:id=a\\:b", "p||i|s:t|-|a:b {} ()");
    parses("rbd:p/i:mon_host=[v2\\:127.0.0.1\\:3300/0]",
           "p||i|-|-|- {mon_host=[v2:127.0.0.1:3300/0]} ()");
    parses("rbd:p/i:k\\=l=m", "p||i|-|-|- {k=l=m} ()");
    /* the last character has nothing behind it to escape */
    parses("rbd:p/i\\", "p||i\\|-|-|- {} ()");
    parses("rbd:p/\\\\:a=1", "p||\\|-|-|- {a=1} ()");
}

/* An `@' is looked for before the options are, as QEMU's driver does. */
static void at_sign_in_options(void **state)
{
    parses("rbd:p/i:a=b@c", "p||i:a=b|c|-|- {} ()");
    parses("rbd:p/i:a=b\\@c", "p||i|-|-|- {a=b@c} ()");
    parses("rbd:p/i@s@t", "p||i|s@t|-|- {} ()");
}

static void bad_names(void **state)
{
    fails("", "File name must start with 'rbd:'");
    fails("rbd", "File name must start with 'rbd:'");
    fails("nbd:p/i", "File name must start with 'rbd:'");
    fails("RBD:p/i", "File name must start with 'rbd:'");
    fails("rbd:", "Pool name is required");
    fails("rbd:p", "Pool name is required");
    fails("rbd:p\\/i", "Pool name is required");
    fails("rbd:p/i:", "conf option  has no value");
    fails("rbd:p/i:a", "conf option a has no value");
    fails("rbd:p/i:a=1:b", "conf option b has no value");
    fails("rbd:p/i:a\\=1", "conf option a=1 has no value");
    fails("rbd:p/i:a=1:", "conf option  has no value");
}

static void completes(const char *pool, const char *ns, const char *image,
                      const char *snapshot, const char *expected)
{
    struct pinrbd_target t = {
        .pool = g_strdup(pool),
        .ns = g_strdup(ns),
        .image = g_strdup(image),
        .snapshot = g_strdup(snapshot),
    };
    struct pinrbd_error err = { 0 };
    g_autofree char *got = NULL;

    if (pinrbd_target_complete(&t, &err) < 0) {
        got = g_strdup(err.text);
    } else {
        got = pinrbd_target_name(&t);
    }
    assert_string_equal(got, expected);
    pinrbd_target_clear(&t);
}

static void last_touches(void **state)
{
    completes("p", NULL, "i", NULL, "p/i");
    completes("p", "", "i", NULL, "p/i");
    completes("p", "n", "i", "s", "p/n/i@s");
    /* libvirt's users; only where no namespace was given at all */
    completes("p", NULL, "n/i", NULL, "p/n/i");
    completes("p", NULL, "n/i/j", NULL, "p/n/i/j");
    completes("p", NULL, "/i", NULL, "p/i");
    completes("", NULL, "i", NULL, "pool name is empty");
    completes(NULL, NULL, "i", NULL, "pool name is empty");
    completes("p", NULL, "", NULL, "image name is empty");
    completes("p", NULL, NULL, NULL, "image name is empty");
    completes("p", NULL, "n/", NULL, "image name is empty");
    completes("p", NULL, "i", "", "snapshot name is empty");
}

static void namespace_is_split_off_once(void **state)
{
    struct pinrbd_target t = {
        .pool = g_strdup("p"),
        .image = g_strdup("n/i"),
    };
    struct pinrbd_target escaped = { 0 };

    assert_int_equal(pinrbd_target_complete(&t, NULL), 0);
    assert_string_equal(t.ns, "n");
    assert_string_equal(t.image, "i");
    pinrbd_target_clear(&t);
    assert_null(t.image);

    /* a file name says what it means by a slash */
    assert_int_equal(pinrbd_target_parse(&escaped, "rbd:p/a\\/b", NULL), 0);
    assert_int_equal(pinrbd_target_complete(&escaped, NULL), 0);
    assert_string_equal(escaped.ns, "");
    assert_string_equal(escaped.image, "a/b");
    pinrbd_target_clear(&escaped);
}

static void mon_host(void **state)
{
    char *list = pinrbd_mon_host_add(NULL, "10.0.0.1", "6789");

    assert_string_equal(list, "10.0.0.1:6789");
    list = pinrbd_mon_host_add(list, "::1", "3300");
    list = pinrbd_mon_host_add(list, "[::2]", "1");
    list = pinrbd_mon_host_add(list, "mon.example", "2");
    assert_string_equal(list,
                        "10.0.0.1:6789;[::1]:3300;[::2]:1;mon.example:2");
    g_free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts),
        cmocka_unit_test(options),
        cmocka_unit_test(escapes),
        cmocka_unit_test(at_sign_in_options),
        cmocka_unit_test(bad_names),
        cmocka_unit_test(last_touches),
        cmocka_unit_test(namespace_is_split_off_once),
        cmocka_unit_test(mon_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
