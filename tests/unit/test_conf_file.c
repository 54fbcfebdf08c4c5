/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The ceph.conf reader: each case is a text and the settings it must give,
 * written `[section]key=value@line' one a line, and the first bad line.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <glib.h>
#include <string.h>

#include "conf_file.h"

static void collect(void *opaque, const char *section, const char *key,
                    const char *value, unsigned line)
{
    g_string_append_printf(opaque, "[%s]%s=%s@%u\n", section, key, value,
                           line);
}

/* The text is put at the end of an exact allocation: ASan sees overruns. */
static void check_len(const char *text, size_t len, int result,
                      const char *expected, unsigned bad_line)
{
    g_autoptr(GString) got = g_string_new("");
    g_autofree char *exact = g_memdup2(text, len);
    unsigned bad = 12345;

    assert_int_equal(conf_file_parse(exact, len, collect, got, &bad), result);
    assert_string_equal(got->str, expected);
    assert_int_equal(bad, bad_line);
}

static void check(const char *text, const char *expected, unsigned bad_line)
{
    check_len(text, strlen(text), 0, expected, bad_line);
}

static void plain(void **state)
{
    check("", "", 0);
    check("\n\n  \n", "", 0);
    check("a=b", "[]a=b@1\n", 0);
    check("[global]\nfsid = 1-2\n[client.x]\nkey=v\n",
          "[global]fsid=1-2@2\n[client.x]key=v@4\n", 0);
    check("[ pinrbd ]\npin=auto\n[pinrbd]\npin=never\n",
          "[pinrbd]pin=auto@2\n[pinrbd]pin=never@4\n", 0);
    check("k = a = b\n", "[]k=a = b@1\n", 0);
    check("k =\n", "[]k=@1\n", 0);
    check("k =", "[]k=@1\n", 0);
    check("[]\nk=v\n", "[]k=v@2\n", 0);
}

static void keys_are_normalised(void **state)
{
    check("Mon Host = x\n", "[]mon_host=x@1\n", 0);
    check("  mon-host=x\n", "[]mon_host=x@1\n", 0);
    check("mon \t  host\t=x\n", "[]mon_host=x@1\n", 0);
    check("mon_host=x\n", "[]mon_host=x@1\n", 0);
    check("mon \\\n host = x\n", "[]mon_host=x@1\n", 0);
}

static void comments(void **state)
{
    check("; a=b\n# c=d\n  ;x\ne=f ; g\nh=i#j\n", "[]e=f@4\n[]h=i@5\n", 0);
    check("[s] ; c\nk=v", "[s]k=v@2\n", 0);
    check("k = a\\;b\\#c ;d", "[]k=a;b#c@1\n", 0);
    check("; no continuation \\\nk=v\n", "[]k=v@2\n", 0);
    check("k = ; only a comment\n", "[]k=@1\n", 0);
}

static void quotes(void **state)
{
    check("k = \"a;b # c\" ; d\n", "[]k=a;b # c@1\n", 0);
    check("k = ' a \"b\" '\n", "[]k= a \"b\" @1\n", 0);
    check("k = \"a\\\"b\\\\\"\n", "[]k=a\"b\\@1\n", 0);
    check("k = a \"b\"\n", "[]k=a \"b\"@1\n", 0);
    check("k = \"a \\\nb\"\nl=m\n", "[]k=a b@1\n[]l=m@3\n", 0);
}

static void continuations(void **state)
{
    check("k = a, \\\n  b\nl = m\n", "[]k=a,   b@1\n[]l=m@3\n", 0);
    check("k = \\\n  v\n", "[]k=v@1\n", 0);
    check("k = a\\\r\nb\r\nl=m\r\n", "[]k=ab@1\n[]l=m@3\n", 0);
    check("k = a\\", "[]k=a\\@1\n", 0);
    check("k = a\\\n", "[]k=a@1\n", 0);
    check("k = a\\\\\nl=m\n", "[]k=a\\@1\n[]l=m@2\n", 0);
}

static void other_line_ends(void **state)
{
    check("[s]\r\nk = v\r\n", "[s]k=v@2\n", 0);
    check("k = v\r", "[]k=v@1\n", 0);
    check("\xef\xbb\xbfk=v\n", "[]k=v@1\n", 0);
    check("k = v  \t \n", "[]k=v@1\n", 0);
}

static void nonsense_is_skipped(void **state)
{
    check("just words\nk=v\n", "[]k=v@2\n", 1);
    check("=v\nk=v\n", "[]k=v@2\n", 1);
    check("k=v\n= \n", "[]k=v@1\n", 2);
    check("a;=b\nk=v\n", "[]k=v@2\n", 1);
    check("k = \"open\nl=m\n", "[]l=m@2\n", 1);
    check("k = 'a' b\nl=m\n", "[]l=m@2\n", 1);
    check("ok=1\nbad\nbad\n", "[]ok=1@1\n", 2);
}

/* Keys behind a broken header must not go to the section before it. */
static void broken_header_hides_its_keys(void **state)
{
    check("[pinrbd]\na=1\n[clie\nb=2\n[x]\nc=3\n",
          "[pinrbd]a=1@2\n[x]c=3@6\n", 3);
    check("[a] b\nk=v\n", "", 1);
    check("[", "", 1);
}

static void zero_byte_is_no_text(void **state)
{
    check_len("k=v\n\0", 5, -EINVAL, "", 0);
    check_len("\0", 1, -EINVAL, "", 0);
}

static void bad_line_is_optional(void **state)
{
    g_autoptr(GString) got = g_string_new("");

    assert_int_equal(conf_file_parse("x\nk=v", 5, collect, got, NULL), 0);
    assert_string_equal(got->str, "[]k=v@2\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(keys_are_normalised),
        cmocka_unit_test(comments),
        cmocka_unit_test(quotes),
        cmocka_unit_test(continuations),
        cmocka_unit_test(other_line_ends),
        cmocka_unit_test(nonsense_is_skipped),
        cmocka_unit_test(broken_header_hides_its_keys),
        cmocka_unit_test(zero_byte_is_no_text),
        cmocka_unit_test(bad_line_is_optional),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
