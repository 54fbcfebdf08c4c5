/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The stand-in of a cluster against bytes recorded from a real one: what the
 * other unit tests believe of locks, object maps, copyup, snapshots and
 * notifies is only worth as much as this.
 *
 * Each test drives the transport directly, in manual mode, with input and
 * output in hex as recorded.  `us' is the first client, `them' another one of
 * the same process.
 */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_rados.h"

#define HEADER "rbd_header.img1"
#define MAP "rbd_object_map.img1"
#define NOSNAP_HEX "feffffffffffffff"

/* The header's lock, cookie `auto 7', and what else is said with it. */
#define LOCK_NAME_HEX "080000007262645f6c6f636b"
#define TAG_HEX "08000000696e7465726e616c"
#define COOKIE_HEX "060000006175746f2037"
#define LOCK_HEX "010130000000" LOCK_NAME_HEX "01" COOKIE_HEX TAG_HEX \
                 "00000000" "0000000000000000" "00"
#define MAP_LOCK_HEX "010122000000080000007262645f6c6f636b0100000000000000" \
                     "0000000000000000000000000000"
#define MAP_ASSERT_HEX "010115000000080000007262645f6c6f636b010000000000000000"
#define INFO_HEX "01010c000000" LOCK_NAME_HEX

static struct fake_image *img;
static struct rados_conn *us;
static struct rados_conn *them;
static struct rados_pool *pool;
static struct rados_pool *their_pool;

static void connect_to(struct rados_conn **c, struct rados_pool **p)
{
    static const struct pinrbd_cluster_options o = { .size = sizeof(o) };

    assert_int_equal(fake_rados.conn_new(&o, c, NULL), 0);
    assert_int_equal(fake_rados.conn_connect(*c, NULL), 0);
    assert_int_equal(fake_rados.pool_open(*c, "rbd", "", p), 0);
}

static int setup(void **state)
{
    fake_start(0);
    connect_to(&us, &pool);
    connect_to(&them, &their_pool);
    img = fake_image_add("rbd", "", "disk", 40 << 12, 12);
    return 0;
}

static int teardown(void **state)
{
    fake_rados.pool_close(pool);
    fake_rados.pool_close(their_pool);
    fake_rados.conn_free(us);
    fake_rados.conn_free(them);
    fake_stop();
    return 0;
}

/* ---- hex ----------------------------------------------------------------- */

static GByteArray *from_hex(const char *hex)
{
    GByteArray *a = g_byte_array_new();

    for (; hex[0] && hex[1]; hex += 2) {
        uint8_t b = g_ascii_xdigit_value(hex[0]) << 4 |
                    g_ascii_xdigit_value(hex[1]);

        g_byte_array_append(a, &b, 1);
    }
    return a;
}

static char *to_hex(const uint8_t *p, size_t len)
{
    GString *s = g_string_new(NULL);

    for (size_t i = 0; i < len; i++) {
        g_string_append_printf(s, "%02x", p[i]);
    }
    return g_string_free(s, FALSE);
}

/* ---- ops ----------------------------------------------------------------- */

#define MAX_STEPS 4

struct batch {
    struct rados_step steps[MAX_STEPS];
    struct iovec iov[MAX_STEPS];
    GByteArray *bytes[MAX_STEPS];
    unsigned n;
    bool write;
};

static struct rados_step *add_bytes(struct batch *b, enum rados_step_kind kind,
                                    uint64_t off, GByteArray *bytes)
{
    struct rados_step *s = &b->steps[b->n];

    assert_true(b->n < MAX_STEPS);
    b->bytes[b->n] = bytes;
    b->iov[b->n] = (struct iovec) { bytes->data, bytes->len };
    *s = (struct rados_step) {
        .kind = kind, .off = off, .iov = &b->iov[b->n], .n_iov = 1,
    };
    b->n++;
    return s;
}

static void add_call(struct batch *b, const char *cls, const char *method,
                     const char *hex)
{
    struct rados_step *s = add_bytes(b, RADOS_CALL, 0, from_hex(hex));

    s->cls = cls;
    s->method = method;
}

static void add_text(struct batch *b, enum rados_step_kind kind, uint64_t off,
                     const char *text)
{
    GByteArray *a = g_byte_array_new();

    g_byte_array_append(a, (const uint8_t *)text, strlen(text));
    add_bytes(b, kind, off, a);
}

static void add_plain(struct batch *b, enum rados_step_kind kind, uint64_t off)
{
    b->steps[b->n++] = (struct rados_step) { .kind = kind, .off = off };
}

static void over(struct rados_op *op)
{
    *(bool *)op->opaque = true;
}

/* Run and empty @b; the output of its last step, in hex, to @ret. */
static int run(struct rados_pool *p, const char *oid, struct batch *b,
               const struct rados_snapc *sc, char **ret)
{
    bool done = false;
    struct rados_op op = {
        .oid = oid, .steps = b->steps, .n_steps = b->n,
        .flags = b->write ? RADOS_OP_WRITE : 0, .snapc = sc, .done = over,
        .opaque = &done,
    };
    const struct rados_blob *out = &b->steps[b->n - 1].out;

    rados_submit(p, &op);
    fake_run();
    assert_true(done);
    if (ret) {
        *ret = to_hex(out->data, out->len);
    }
    rados_op_done_with(p, &op);
    for (unsigned i = 0; i < b->n; i++) {
        if (b->bytes[i]) {
            g_byte_array_unref(b->bytes[i]);
        }
    }
    memset(b, 0, sizeof(*b));
    return op.result;
}

static int change_as(struct rados_pool *p, const char *oid, const char *cls,
                     const char *method, const char *hex)
{
    struct batch b = { .write = true };

    add_call(&b, cls, method, hex);
    return run(p, oid, &b, NULL, NULL);
}

static int change(const char *oid, const char *cls, const char *method,
                  const char *hex)
{
    return change_as(pool, oid, cls, method, hex);
}

static int ask(const char *oid, const char *cls, const char *method,
               const char *hex, char **ret)
{
    struct batch b = { 0 };

    add_call(&b, cls, method, hex);
    return run(pool, oid, &b, NULL, ret);
}

static void expect(const char *oid, const char *cls, const char *method,
                   const char *hex, const char *out)
{
    g_autofree char *got = NULL;

    assert_int_equal(ask(oid, cls, method, hex, &got), 0);
    assert_string_equal(got, out);
}

static void expect_bytes(const char *oid, const char *hex)
{
    uint8_t buf[256];
    int64_t n = fake_object_read(FAKE_POOL_RBD, "", oid, RADOS_NOSNAP, 0, buf,
                                 sizeof(buf));
    g_autofree char *got = n >= 0 ? to_hex(buf, n) : NULL;

    assert_non_null(got);
    assert_string_equal(got, hex);
}

/* Text at a revision of a data object, "-": there is none. */
static void expect_text(const char *oid, uint64_t snap, const char *text)
{
    char buf[64] = "-";
    int64_t n = fake_object_read(FAKE_POOL_RBD, "", oid, snap, 0, buf,
                                 sizeof(buf));

    assert_int_equal(n >= 0 ? n : 1, (int64_t)strlen(text));
    assert_memory_equal(buf, text, strlen(text));
}

/* ---- locks --------------------------------------------------------------- */

static void test_lock(void **state)
{
    expect(HEADER, "lock", "get_info", INFO_HEX, "0101090000000000000000"
           "00000000");
    assert_int_equal(change(HEADER, "lock", "lock", LOCK_HEX), 0);
    assert_int_equal(change(HEADER, "lock", "lock", LOCK_HEX), -EEXIST);
    assert_int_equal(change_as(their_pool, HEADER, "lock", "lock", LOCK_HEX),
                     -EBUSY);
    /* the same with another cookie; with another tag */
    assert_int_equal(change(HEADER, "lock", "lock", "010130000000"
                            LOCK_NAME_HEX "01" "060000006175746f2038" TAG_HEX
                            "00000000" "0000000000000000" "00"), -EBUSY);
    assert_int_equal(change(HEADER, "lock", "lock", "010128000000"
                            LOCK_NAME_HEX "01" COOKIE_HEX "00000000"
                            "00000000" "0000000000000000" "00"), -EBUSY);
    assert_int_equal(change(HEADER, "lock", "assert_locked", "010123000000"
                            LOCK_NAME_HEX "01" COOKIE_HEX TAG_HEX), 0);
    assert_int_equal(change_as(their_pool, HEADER, "lock", "assert_locked",
                               "010123000000" LOCK_NAME_HEX "01" COOKIE_HEX
                               TAG_HEX), -EBUSY);
    assert_int_equal(change(HEADER, "lock", "assert_locked", MAP_ASSERT_HEX),
                     -EBUSY);
    assert_int_equal(change(HEADER, "lock", "assert_locked", "01011b000000"
                            LOCK_NAME_HEX "01" COOKIE_HEX "00000000"), -EBUSY);

    /* a cookie nobody has; its own; a new one */
    assert_int_equal(change(HEADER, "lock", "set_cookie",
                            "01012d000000080000007262645f6c6f636b01060000006175"
                            "746f203108000000696e7465726e616c060000006175746f20"
                            "32"), -EBUSY);
    assert_int_equal(change(HEADER, "lock", "set_cookie", "01012d000000"
                            LOCK_NAME_HEX "01" COOKIE_HEX TAG_HEX COOKIE_HEX),
                     -EBUSY);
    assert_int_equal(change(HEADER, "lock", "set_cookie", "01012d000000"
                            LOCK_NAME_HEX "01" COOKIE_HEX TAG_HEX
                            "060000006175746f2031"), 0);
    assert_int_equal(change(HEADER, "lock", "unlock", "010116000000"
                            LOCK_NAME_HEX COOKIE_HEX), -ENOENT);
    assert_int_equal(change_as(their_pool, HEADER, "lock", "unlock",
                               "010116000000" LOCK_NAME_HEX
                               "060000006175746f2031"), -ENOENT);
    assert_int_equal(change(HEADER, "lock", "unlock", "010116000000"
                            LOCK_NAME_HEX "060000006175746f2031"), 0);
    /* type and tag stay */
    expect(HEADER, "lock", "get_info", INFO_HEX,
           "010111000000000000000108000000696e7465726e616c");
}

/* Nothing is left of an op that fails; objects come and go with their lock. */
static void test_lock_is_part_of_the_op(void **state)
{
    struct batch b = { .write = true };

    add_call(&b, "lock", "lock", LOCK_HEX);
    add_call(&b, "rbd", "set_size", "0000000000100000");
    add_call(&b, "rbd", "no_such", "");
    assert_int_equal(run(pool, HEADER, &b, NULL, NULL), -EOPNOTSUPP);
    assert_false(fake_lock_owner(img, NULL));
    assert_int_equal(img->size, 40 << 12);

    assert_int_equal(ask("none", "lock", "get_info", INFO_HEX, NULL),
                     -ENOENT);
    assert_int_equal(change("none", "lock", "unlock", "010116000000"
                            LOCK_NAME_HEX COOKIE_HEX), -ENOENT);
    assert_int_equal(change("none", "lock", "lock", MAP_LOCK_HEX), 0);
    assert_int_equal(fake_object_size(FAKE_POOL_RBD, "", "none",
                                      RADOS_NOSNAP), 0);
    b.write = true;
    add_plain(&b, RADOS_REMOVE, 0);
    assert_int_equal(run(pool, "none", &b, NULL, NULL), 0);
    assert_int_equal(change_as(their_pool, "none", "lock", "lock",
                               MAP_LOCK_HEX), 0);
}

/* client.4267 at 127.0.0.1:0/1708477985 as get_info gave it */
static void test_locker_as_recorded(void **state)
{
    static const char recorded[] =
        "01016d0000000100000001012100000008ab10000000000000140000006175746f20"
        "31333938373333393436323737373601012f0000000000000000000000010101"
        "1c00000001000000214ed56510000000020000007f00000100000000000000000000"
        "00000108000000696e7465726e616c";
    g_autofree char *got = NULL;
    struct fake_locker owner;

    fake_lock_hold(img, 4267, "auto 139873394627776", "internal");
    assert_true(fake_lock_owner(img, &owner));
    assert_int_equal(owner.gid, 4267);
    assert_string_equal(owner.address, FAKE_PEER_ADDRESS "4267");
    assert_int_equal(ask(HEADER, "lock", "get_info", INFO_HEX, &got), 0);
    assert_int_equal(strlen(got), strlen(recorded));
    /* all but nonce and IP address */
    assert_memory_equal(got, recorded, 2 * 74);
    assert_string_equal(got + 2 * 90, recorded + 2 * 90);
    assert_memory_equal(got + 2 * 74, "ab10000010000000020000000a000001", 32);

    assert_int_equal(fake_rados.blocklist(us, owner.address), 0);
    assert_int_equal(fake_log_count("blocklist 10.0.0.1:0/4267"), 1);
    assert_true(fake_blocklisted(owner.address));
    assert_int_equal(change(HEADER, "lock", "break_lock",
                            "01012d000000080000007262645f6c6f636b08ac1000000000"
                            "0000140000006175746f2031333938373333393436323737"
                            "3736"), -ENOENT);
    assert_int_equal(change(HEADER, "lock", "break_lock",
                            "01012d000000080000007262645f6c6f636b08ab1000000000"
                            "0000140000006175746f2031333938373333393436323737"
                            "3736"), 0);
    assert_false(fake_lock_owner(img, NULL));
}

/* ---- object maps --------------------------------------------------------- */

static const char five_clean[] =
    "0e0000000101080000000500000000000000ffc00c000000184596820100000047026e60";
static const char five_exist[] =
    "0e000000010108000000050000000000000055400c000000184596820100000092d381dc";
static const char forty_one[] =
    "0e0000000101080000002800000000000000010000000000000000000c00000011db8ca5"
    "01000000a57b56cb";

static int update_map(const char *hex)
{
    struct batch b = { .write = true };

    add_call(&b, "lock", "assert_locked", MAP_ASSERT_HEX);
    add_call(&b, "rbd", "object_map_update", hex);
    return run(pool, MAP, &b, NULL, NULL);
}

static void test_map_bytes(void **state)
{
    assert_int_equal(ask(MAP, "rbd", "object_map_load", "", NULL), -ENOENT);
    assert_int_equal(update_map("030000000000000004000000000000000100"),
                     -ENOENT);
    assert_int_equal(change(MAP, "lock", "lock", MAP_LOCK_HEX), 0);
    assert_int_equal(ask(MAP, "rbd", "object_map_load", "", NULL), -ENOENT);
    assert_int_equal(update_map("030000000000000004000000000000000100"),
                     -EINVAL);
    assert_int_equal(change(MAP, "rbd", "object_map_resize",
                            "280000000000000000"), 0);
    assert_int_equal(update_map("030000000000000004000000000000000100"), 0);
    expect_bytes(MAP, forty_one);
    expect(MAP, "rbd", "object_map_load", "",
           "0e00000001010800000028000000000000000100000000000000000000000000");

    /* only if it is PENDING, which it is not */
    assert_int_equal(update_map("03000000000000000400000000000000000102"), 0);
    expect_bytes(MAP, forty_one);
    assert_int_equal(update_map("280000000000000029000000000000000100"),
                     -ERANGE);
    assert_int_equal(update_map("030000000000000003000000000000000100"),
                     -ERANGE);
    /* what is dropped must be as the input says */
    assert_int_equal(change(MAP, "rbd", "object_map_resize",
                            "030000000000000000"), -ESTALE);
    assert_int_equal(change(MAP, "rbd", "object_map_resize",
                            "050000000000000000"), 0);
    assert_int_equal(fake_map_entries(img, RADOS_NOSNAP), 5);
    assert_int_equal(change(MAP, "rbd", "object_map_resize",
                            "0140420f0000000000"), -EINVAL);
}

static void test_map_snapshots(void **state)
{
    g_autofree char *save = NULL;
    struct batch b = { .write = true };

    add_bytes(&b, RADOS_WRITE_FULL, 0, from_hex(five_exist));
    assert_int_equal(run(pool, MAP, &b, NULL, NULL), 0);
    expect(MAP, "rbd", "object_map_load", "",
           "0e0000000101080000000500000000000000554000000000");
    assert_int_equal(change(MAP, "rbd", "object_map_snap_add", ""), 0);
    expect_bytes(MAP, five_clean);
    /* who takes it for EXISTS is right, too */
    assert_int_equal(change(MAP, "lock", "lock", MAP_LOCK_HEX), 0);
    assert_int_equal(update_map("00000000000000000500000000000000010101"), 0);
    expect_bytes(MAP, five_exist);
    assert_int_equal(change(MAP, "rbd", "object_map_snap_add", ""), 0);
    expect(MAP, "rbd", "object_map_load", "",
           "0e0000000101080000000500000000000000ffc000000000");
    /* saved as loaded, the checksums come by themselves */
    assert_int_equal(change("copy", "rbd", "object_map_save",
                            "0e0000000101080000000500000000000000ffc000000000"),
                     0);
    expect_bytes("copy", five_clean);
    assert_int_equal(change("copy", "rbd", "object_map_save", "0e00"),
                     -EINVAL);
    assert_int_equal(change(MAP, "rbd", "object_map_snap_remove",
                            "0e0000000101080000000500000000000000554000000000"),
                     0);
    expect_bytes(MAP, five_exist);
    /* beyond the end of the removed map all may have changed */
    assert_int_equal(change("copy", "rbd", "object_map_snap_remove",
                            "0e0000000101080000000100000000000000c000000000"),
                     0);
    assert_int_equal(ask("copy", "rbd", "object_map_load", "", &save), 0);
    assert_string_equal(save,
                        "0e0000000101080000000500000000000000d54000000000");
    assert_int_equal(change("none", "rbd", "object_map_snap_add", ""),
                     -ENOENT);
}

static void test_map_damage(void **state)
{
    static const struct {
        enum fake_map_damage damage;
        int load;
        int update;
    } cases[] = {
        { FAKE_MAP_DATA, -EINVAL, -EINVAL },
        { FAKE_MAP_HEADER, -EINVAL, 0 },
        { FAKE_MAP_CUT, -EINVAL, -EINVAL },
        { FAKE_MAP_EMPTY, -ENOENT, -EINVAL },
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct batch b = { .write = true };

        fake_image_enable(img, FAKE_DEFAULT_FEATURES);
        (void)change(MAP, "lock", "lock", MAP_LOCK_HEX);
        assert_int_equal(update_map("030000000000000004000000000000000100"),
                         0);
        fake_map_corrupt(img, RADOS_NOSNAP, cases[i].damage);
        assert_int_equal(ask(MAP, "rbd", "object_map_load", "", NULL),
                         cases[i].load);
        assert_int_equal(update_map("030000000000000004000000000000000100"),
                         cases[i].update);
        assert_int_equal(fake_map_state(img, RADOS_NOSNAP, 3), -ENOENT);
        assert_true(fake_map_exists(img, RADOS_NOSNAP));

        /* as librbd mends it */
        add_call(&b, "lock", "assert_locked", MAP_ASSERT_HEX);
        add_plain(&b, RADOS_TRUNCATE, 0);
        add_call(&b, "rbd", "object_map_resize", "280000000000000000");
        assert_int_equal(run(pool, MAP, &b, NULL, NULL), 0);
        assert_int_equal(fake_map_state(img, RADOS_NOSNAP, 3), 0);
    }
    fake_map_remove(img, RADOS_NOSNAP);
    assert_false(fake_map_exists(img, RADOS_NOSNAP));
}

/* ---- the check of the maps ----------------------------------------------- */

#define OBJ(n) "rbd_data.img1.000000000000000" #n

static void maps_are(const char *text)
{
    const char *got = fake_map_check(img);

    assert_string_equal(got ? got : "fine", text);
}

static void write_object(const char *oid, const char *text,
                         const struct rados_snapc *sc)
{
    struct batch b = { .write = true };

    add_text(&b, RADOS_WRITE, 0, text);
    assert_int_equal(run(pool, oid, &b, sc, NULL), 0);
}

static void test_check(void **state)
{
    uint64_t snap;
    struct rados_snapc sc = { .n = 1, .ids = &snap };
    struct batch b = { .write = true };

    write_object(OBJ(1), "old", NULL);
    write_object(OBJ(2), "old", NULL);
    fake_image_enable(img, FAKE_DEFAULT_FEATURES);
    maps_are("fine");
    assert_int_equal(fake_map_state(img, RADOS_NOSNAP, 0), 0);
    assert_int_equal(fake_map_state(img, RADOS_NOSNAP, 1), 1);
    snap = sc.seq = fake_image_snap_add(img, "one");
    maps_are("fine");
    assert_int_equal(fake_map_state(img, snap, 1), 1);
    assert_int_equal(fake_map_state(img, RADOS_NOSNAP, 1), 3);

    /* a lie of each kind */
    write_object(OBJ(1), "old", &sc);
    maps_are("map of the head: object 1 is EXISTS_CLEAN and not EXISTS");
    fake_map_set(img, RADOS_NOSNAP, 1, 1);
    maps_are("fine");
    write_object(OBJ(3), "new", &sc);
    maps_are("map of the head: object 3 is NONEXISTENT and not EXISTS");
    assert_non_null(fake_map_check_safe(img));
    fake_map_set(img, RADOS_NOSNAP, 3, 1);
    maps_are("fine");
    add_plain(&b, RADOS_REMOVE, 0);
    assert_int_equal(run(pool, OBJ(2), &b, &sc, NULL), 0);
    fake_map_set(img, RADOS_NOSNAP, 2, 2);
    maps_are("map of the head: object 2 is PENDING and not NONEXISTENT");
    assert_null(fake_map_check_safe(img));
    fake_map_set(img, RADOS_NOSNAP, 2, 0);
    maps_are("fine");
    fake_map_set(img, snap, 2, 0);
    maps_are("map of snapshot 4: object 2 is NONEXISTENT and not EXISTS");
    assert_non_null(fake_map_check_safe(img));
    fake_map_set(img, snap, 2, 1);

    fake_map_resize(img, RADOS_NOSNAP, 41);
    maps_are("map of the head: 41 entries for 40 objects");
    assert_null(fake_map_check_safe(img));
    fake_map_resize(img, RADOS_NOSNAP, 39);
    assert_non_null(fake_map_check_safe(img));
    fake_map_resize(img, RADOS_NOSNAP, 40);
    maps_are("fine");
    fake_map_corrupt(img, snap, FAKE_MAP_DATA);
    maps_are("map of snapshot 4: missing or corrupt");
    g_array_index(img->snaps, struct fake_snap, 0).flags = 1;
    maps_are("map of snapshot 4: flagged invalid");
    assert_null(fake_map_check_safe(img));
    fake_image_snap_remove(img, snap);
    maps_are("fine");

    fake_image_set_size(img, 2 << 12);
    maps_are("map of the head: object 3 is left beyond the end");
    fake_object_remove(FAKE_POOL_RBD, "", OBJ(3));
    maps_are("fine");
}

/* What changed before a removed snapshot has changed since the older one. */
static void test_check_of_removed_snapshot(void **state)
{
    uint64_t ids[2];
    struct rados_snapc one = { .n = 1, .ids = ids + 1 };
    uint64_t two;

    fake_image_enable(img, FAKE_DEFAULT_FEATURES);
    ids[1] = one.seq = fake_image_snap_add(img, "one");
    write_object(OBJ(1), "new", &one);
    fake_map_set(img, RADOS_NOSNAP, 1, 1);
    two = fake_image_snap_add(img, "two");
    assert_int_equal(fake_map_state(img, RADOS_NOSNAP, 1), 3);
    maps_are("fine");
    fake_image_snap_remove(img, two);
    assert_int_equal(fake_map_state(img, RADOS_NOSNAP, 1), 1);
    assert_false(fake_map_exists(img, two));
    maps_are("fine");
}

/* ---- header -------------------------------------------------------------- */

static void test_header_methods(void **state)
{
    uint64_t id;
    g_autofree char *name = NULL;

    fake_image_enable(img, FAKE_DEFAULT_FEATURES);
    assert_int_equal(change(HEADER, "rbd", "set_flags", "0300000000000000"
                            "0300000000000000" NOSNAP_HEX), 0);
    expect(HEADER, "rbd", "get_flags", NOSNAP_HEX, "0300000000000000");
    assert_int_equal(change(HEADER, "rbd", "set_flags", "0000000000000000"
                            "0100000000000000" NOSNAP_HEX), 0);
    expect(HEADER, "rbd", "get_flags", NOSNAP_HEX, "0200000000000000");
    assert_int_equal(change(HEADER, "rbd", "set_flags", "0100000000000000"
                            "0100000000000000" "6300000000000000"), -ENOENT);

    /* the snapshot s1 takes size and flags of the head */
    assert_int_equal(fake_rados.snap_alloc(pool, &id), 0);
    assert_int_equal(id, 4);
    assert_int_equal(fake_log_count("snap_alloc rbd"), 1);
    assert_int_equal(change(HEADER, "rbd", "snapshot_add", "020000007331"
                            "0400000000000000" "010104000000" "00000000"), 0);
    assert_int_equal(change(HEADER, "rbd", "set_size", "0000020000000000"),
                     0);
    expect(HEADER, "rbd", "get_snapcontext", "", "0400000000000000" "01000000"
           "0400000000000000");
    expect(HEADER, "rbd", "snapshot_get", "0400000000000000",
           "01012c000000040000000000000001010400000000000000020000007331"
           "0080020000000000" "00f1536500000000" "00000000");
    expect(HEADER, "rbd", "get_flags", "0400000000000000",
           "0200000000000000");
    /* the name again; an id that is taken; one that is too old */
    assert_int_equal(change(HEADER, "rbd", "snapshot_add", "020000007331"
                            "0500000000000000" "010104000000" "00000000"),
                     -EEXIST);
    assert_int_equal(change(HEADER, "rbd", "snapshot_add", "020000007332"
                            "0400000000000000" "010104000000" "00000000"),
                     -EEXIST);
    assert_int_equal(change(HEADER, "rbd", "snapshot_add", "020000007332"
                            "0300000000000000" "010104000000" "00000000"),
                     -ESTALE);

    assert_int_equal(change(HEADER, "rbd", "set_protection_status",
                            "0400000000000000" "02"), 0);
    expect(HEADER, "rbd", "get_protection_status", "0400000000000000", "02");
    assert_int_equal(change(HEADER, "rbd", "snapshot_remove",
                            "0400000000000000"), -EBUSY);
    assert_int_equal(change(HEADER, "rbd", "set_protection_status",
                            "0400000000000000" "00"), 0);
    assert_int_equal(change(HEADER, "rbd", "snapshot_remove",
                            "0400000000000000"), 0);
    assert_int_equal(change(HEADER, "rbd", "snapshot_remove",
                            "0400000000000000"), -ENOENT);
    expect(HEADER, "rbd", "get_snapcontext", "",
           "0400000000000000" "00000000");

    fake_image_metadata(img, "foo", "bar");
    expect(HEADER, "rbd", "metadata_get", "03000000666f6f",
           "03000000626172");
    assert_int_equal(ask(HEADER, "rbd", "metadata_get", "03000000666f66",
                         NULL), -ENOENT);
}

/* ---- data objects -------------------------------------------------------- */

#define SPARSE_HEX "02000000" "00000000000000000400000000000000" \
                   "00100000000000000400000000000000" "08000000" \
                   "4142434445464748"

static void test_copyup(void **state)
{
    char buf[4100];

    assert_int_equal(change("a", "rbd", "copyup", "4142"), 0);
    expect_text("a", RADOS_NOSNAP, "AB");
    assert_int_equal(change("a", "rbd", "copyup", "4344"), 0);
    assert_int_equal(change("a", "rbd", "sparse_copyup", SPARSE_HEX), 0);
    expect_text("a", RADOS_NOSNAP, "AB");
    assert_int_equal(change("b", "rbd", "copyup", ""), 0);
    expect_text("b", RADOS_NOSNAP, "");
    assert_int_equal(change("c", "rbd", "sparse_copyup", "0000000000000000"),
                     0);
    expect_text("c", RADOS_NOSNAP, "");
    assert_int_equal(change("d", "rbd", "sparse_copyup", SPARSE_HEX), 0);
    assert_int_equal(fake_object_read(FAKE_POOL_RBD, "", "d", RADOS_NOSNAP, 0,
                                      buf, sizeof(buf)), 4100);
    assert_memory_equal(buf, "ABCD\0\0", 6);
    assert_memory_equal(buf + 4096, "EFGH", 4);
    assert_int_equal(change("e", "rbd", "sparse_copyup", "0200"), -EINVAL);
}

/* The parent's data appears in snapshots that are older than the object. */
static void test_deep_copyup(void **state)
{
    static const uint64_t ids[] = { 5, 4 };
    const struct rados_snapc sc = { 5, 2, ids };
    struct batch b = { .write = true };

    /* What changes nothing leaves the object as unknown as it was. */
    add_plain(&b, RADOS_TRUNCATE, 0);
    assert_int_equal(run(pool, OBJ(0), &b, &sc, NULL), 0);

    fake_require_snapc(5);
    assert_int_equal(change(OBJ(0), "rbd", "copyup", "4142"), 0);
    b.write = true;
    add_text(&b, RADOS_WRITE, 1, "x");
    assert_int_equal(run(pool, OBJ(0), &b, &sc, NULL), 0);
    expect_text(OBJ(0), 4, "AB");
    expect_text(OBJ(0), 5, "AB");
    expect_text(OBJ(0), RADOS_NOSNAP, "Ax");

    /* in one op with the snapshots they see nothing */
    b.write = true;
    add_call(&b, "rbd", "copyup", "");
    add_text(&b, RADOS_WRITE, 0, "y");
    assert_int_equal(run(pool, OBJ(1), &b, &sc, NULL), 0);
    expect_text(OBJ(1), 4, "-");
    expect_text(OBJ(1), RADOS_NOSNAP, "y");

    /* copyup of what is there makes no clone, not even with a new context */
    b.write = true;
    add_call(&b, "rbd", "copyup", "4142");
    add_call(&b, "lock", "get_info", INFO_HEX);
    assert_int_equal(run(pool, OBJ(1), &b, &(struct rados_snapc) {
                         6, 2, (const uint64_t[]) { 6, 5 } }, NULL), 0);
    write_object(OBJ(1), "z", &sc);
    expect_text(OBJ(1), 6, "z");
}

static void test_snapshots_of_objects(void **state)
{
    static const uint64_t ids[] = { 5, 4 };
    const struct rados_snapc one = { 4, 1, ids + 1 };
    const struct rados_snapc two = { 5, 2, ids };
    struct batch b = { .write = true };

    write_object("a", "old", NULL);
    write_object("a", "mid", &one);
    add_plain(&b, RADOS_REMOVE, 0);
    assert_int_equal(run(pool, "a", &b, &two, NULL), 0);
    expect_text("a", 4, "old");
    expect_text("a", 5, "mid");
    expect_text("a", RADOS_NOSNAP, "-");

    b.write = true;
    add_plain(&b, RADOS_ASSERT_EXISTS, 0);
    add_text(&b, RADOS_WRITE, 0, "new");
    assert_int_equal(run(pool, "a", &b, &two, NULL), -ENOENT);
    expect_text("a", RADOS_NOSNAP, "-");
    b.write = true;
    add_plain(&b, RADOS_CREATE, 0);
    add_plain(&b, RADOS_TRUNCATE, 0);
    assert_int_equal(run(pool, "a", &b, &two, NULL), 0);
    expect_text("a", RADOS_NOSNAP, "");
    b.write = true;
    add_plain(&b, RADOS_ROLLBACK, 4);
    assert_int_equal(run(pool, "a", &b, &two, NULL), 0);
    expect_text("a", RADOS_NOSNAP, "old");
    /* to before it was made */
    write_object("b", "new", &two);
    b.write = true;
    add_plain(&b, RADOS_ROLLBACK, 4);
    assert_int_equal(run(pool, "b", &b, &two, NULL), 0);
    expect_text("b", RADOS_NOSNAP, "-");

    assert_int_equal(fake_rados.snap_release(pool, 4), 0);
    assert_int_equal(fake_log_count("snap_release rbd 4"), 1);
    expect_text("a", 4, "-");
    expect_text("a", 5, "mid");
}

/* ---- watches and notifies ------------------------------------------------ */

struct ear {
    struct rados_watch w;
    int started;
    int failed;
    int stopped;
    unsigned heard;
    uint64_t notify_id;
    uint64_t notifier;
};

static void ear_started(struct rados_watch *w, int result)
{
    ((struct ear *)w->opaque)->started = result;
}

static void ear_notified(struct rados_watch *w, uint64_t id, uint64_t notifier,
                         const void *payload, size_t len)
{
    struct ear *e = w->opaque;

    e->heard++;
    e->notify_id = id;
    e->notifier = notifier;
}

static void ear_failed(struct rados_watch *w, int err)
{
    ((struct ear *)w->opaque)->failed = err;
}

static void ear_stopped(struct rados_watch *w, int result)
{
    ((struct ear *)w->opaque)->stopped = result;
}

static void ear_start(struct ear *e, struct rados_pool *p)
{
    *e = (struct ear) {
        .w = { .oid = HEADER, .started = ear_started,
               .notified = ear_notified, .failed = ear_failed,
               .stopped = ear_stopped, .opaque = e },
        .started = 1, .stopped = 1,
    };
    fake_rados.watch_start(p, &e->w);
    fake_run();
}

static void ear_stop(struct ear *e, struct rados_pool *p, int result)
{
    fake_rados.watch_stop(p, &e->w);
    fake_run();
    assert_int_equal(e->stopped, result);
}

static void notify_over(struct rados_notify *n)
{
    *(bool *)n->opaque = true;
}

static const uint8_t request_lock[] = {
    7, 1, 0x15, 0, 0, 0, 2, 0, 0, 0, 0xc3, 0x10, 0, 0, 0, 0, 0, 0,
    0xf0, 0x47, 1, 0x60, 0x14, 0x7f, 0, 0, 0,
};

/* As recorded but for the ids: two empty acks, and one with a result. */
static void test_notify_reply(void **state)
{
    bool done = false;
    struct rados_notify n = {
        .oid = HEADER, .payload = request_lock,
        .payload_len = sizeof(request_lock), .done = notify_over,
        .opaque = &done,
    };
    g_autofree char *got = NULL;
    g_autofree char *missed = NULL;
    uint64_t id;
    size_t len;
    struct ear e;

    ear_start(&e, pool);
    assert_int_equal(e.started, 0);
    fake_peer_add(HEADER, 4267, 0x7f36d000141f);
    fake_peer_add(HEADER, 4279, 0x7f6360007570);
    fake_peer_answer(HEADER, 4279, 2, 0);
    fake_rados.notify(pool, &n);
    fake_run();
    assert_int_equal(fake_log_count("notify " HEADER " 27 op 2"), 1);
    assert_int_equal(e.heard, 1);
    assert_int_equal(e.notifier, fake_rados.conn_instance(us));
    assert_false(done);
    id = fake_notify_sent(2, 0);
    assert_int_equal(id, e.notify_id);
    assert_memory_equal(fake_notify_payload(id, &len), request_lock,
                        sizeof(request_lock));
    assert_int_equal(fake_notify_answer(id), FAKE_TIMEOUT);
    fake_rados.notify_ack(pool, HEADER, id, e.w.cookie, NULL, 0);
    fake_run();
    assert_true(done);
    assert_int_equal(n.result, 0);
    assert_int_equal(fake_notify_answer(id), FAKE_EMPTY);
    got = to_hex(n.reply.data, n.reply.len);
    assert_string_equal(got, "03000000"
                        "0410000000000000" "0110000000" "7f0000" "00000000"
                        "ab10000000000000" "1f1400d0367f0000" "00000000"
                        "b710000000000000" "70750060637f0000" "0a000000"
                        "01010400000000000000" "00000000");
    fake_rados.notify_release(&n);

    /* two of them do not ack */
    done = false;
    fake_peer_answer(HEADER, 4279, 2, -EROFS);
    fake_peer_answer(HEADER, 4267, 2, FAKE_TIMEOUT);
    fake_rados.notify(pool, &n);
    fake_run();
    fake_notify_expire(fake_notify_sent(2, 0));
    fake_run();
    assert_true(done);
    assert_int_equal(n.result, -ETIMEDOUT);
    missed = to_hex(n.reply.data, n.reply.len);
    assert_string_equal(missed, "01000000"
                        "b710000000000000" "70750060637f0000" "0a000000"
                        "010104000000e2ffffff" "02000000"
                        "0410000000000000" "01100000007f0000"
                        "ab10000000000000" "1f1400d0367f0000");
    fake_rados.notify_release(&n);
    fake_peer_remove(HEADER, 4279);
    ear_stop(&e, pool, 0);
}

static void test_yielding_peer(void **state)
{
    bool done = false;
    struct rados_notify n = {
        .oid = HEADER, .payload = request_lock,
        .payload_len = sizeof(request_lock), .done = notify_over,
        .opaque = &done,
    };
    struct ear e;
    size_t len;
    g_autofree char *payload = NULL;

    ear_start(&e, pool);
    fake_peer_add(HEADER, 4291, 0x7f14600147f0);
    fake_peer_answer(HEADER, 4291, 2, FAKE_YIELD);
    fake_lock_hold(img, 4291, "auto 139724543346672", "internal");
    fake_map_lock_hold(img, 4291);
    fake_rados.notify(pool, &n);
    fake_run();
    assert_false(fake_lock_owner(img, NULL));
    assert_false(fake_map_lock_owner(img, NULL));
    assert_int_equal(e.heard, 2);
    assert_int_equal(e.notifier, 4291);
    payload = to_hex(fake_notify_payload(e.notify_id, &len), 26);
    assert_int_equal(len, 26);
    assert_string_equal(payload, "07011400000001000000c310000000000000"
                        "f0470160147f0000");
    fake_notify_expire(fake_notify_sent(2, 0));
    fake_run();
    assert_true(done);
    fake_rados.notify_release(&n);
    ear_stop(&e, pool, 0);
}

static void test_handle_again(void **state)
{
    struct ear e;
    uint64_t cookie;

    ear_start(&e, pool);
    cookie = e.w.cookie;
    fake_lose_watch(HEADER, -ENOTCONN);
    fake_run();
    assert_int_equal(e.failed, -ENOTCONN);
    ear_stop(&e, pool, 0);
    fake_reuse_handle();
    ear_start(&e, pool);
    assert_int_equal(e.w.cookie, cookie);
    ear_stop(&e, pool, 0);
    ear_start(&e, pool);
    assert_int_not_equal(e.w.cookie, cookie);
    ear_stop(&e, pool, 0);
}

/* ---- blocklisted --------------------------------------------------------- */

static void test_blocklisted(void **state)
{
    struct rados_pool *none;
    bool done = false;
    struct rados_notify n = { .oid = HEADER, .done = notify_over,
                              .opaque = &done };
    struct ear e;
    struct ear other;
    uint64_t id;

    assert_string_not_equal(fake_rados.conn_address(us),
                            fake_rados.conn_address(them));
    assert_int_equal(change(HEADER, "lock", "lock", LOCK_HEX), 0);
    ear_start(&e, pool);
    ear_start(&other, their_pool);
    assert_int_equal(fake_watchers(HEADER), 2);
    assert_int_equal(fake_rados.blocklist(them,
                                          fake_rados.conn_address(us)), 0);
    fake_run();
    assert_int_equal(e.failed, -ENOTCONN);
    assert_int_equal(fake_rados.watch_check(pool, &e.w), -ENOTCONN);
    assert_int_equal(other.failed, 0);
    assert_int_equal(fake_watchers(HEADER), 1);

    assert_int_equal(ask(HEADER, "lock", "get_info", INFO_HEX, NULL),
                     -ESHUTDOWN);
    assert_int_equal(change("a", "rbd", "copyup", ""), -ESHUTDOWN);
    assert_int_equal(fake_object_size(FAKE_POOL_RBD, "", "a", RADOS_NOSNAP),
                     -ENOENT);
    assert_int_equal(change_as(their_pool, "a", "rbd", "copyup", ""), 0);
    fake_rados.notify(pool, &n);
    fake_run();
    assert_true(done);
    assert_int_equal(n.result, -ESHUTDOWN);
    assert_int_equal(other.heard, 0);
    assert_int_equal(fake_rados.pool_open(us, "rbd", "", &none), -ESHUTDOWN);
    assert_int_equal(fake_rados.pool_open_id(us, 1, "", 4, &none),
                     -ESHUTDOWN);
    assert_int_equal(fake_rados.snap_alloc(pool, &id), -ESHUTDOWN);
    assert_int_equal(fake_rados.snap_release(pool, 4), -ESHUTDOWN);
    assert_int_equal(fake_rados.blocklist(us, "1.2.3.4:0/5"), -ESHUTDOWN);
    ear_stop(&e, pool, -ESHUTDOWN);
    ear_start(&e, pool);
    assert_int_equal(e.started, -ESHUTDOWN);

    /* the other one may take the lock away */
    assert_int_equal(change_as(their_pool, HEADER, "lock", "break_lock",
                               "01011f000000" LOCK_NAME_HEX "08"
                               "0410000000000000" COOKIE_HEX), 0);
    fake_blocklist_self();
    fake_run();
    assert_int_equal(other.failed, -ENOTCONN);
    ear_stop(&other, their_pool, -ESHUTDOWN);
}

static void test_faults_of_blocking_calls(void **state)
{
    uint64_t id = 77;

    fake_fault_add(&(struct fake_fault) { .match = "snap_*", .times = 2,
                                          .err = -EIO });
    fake_fault_add(&(struct fake_fault) { .match = "blocklist *",
                                          .err = -EACCES });
    assert_int_equal(fake_rados.snap_alloc(pool, &id), -EIO);
    assert_int_equal(id, 77);
    assert_int_equal(fake_rados.snap_release(pool, 4), -EIO);
    assert_int_equal(fake_rados.blocklist(us, "1.2.3.4:0/5"), -EACCES);
    assert_false(fake_blocklisted("1.2.3.4:0/5"));
    fake_fault_add(&(struct fake_fault) { .match = "blocklist *",
                                          .kind = FAKE_FAIL_AFTER,
                                          .err = -ETIMEDOUT });
    assert_int_equal(fake_rados.blocklist(us, "1.2.3.4:0/5"), -ETIMEDOUT);
    assert_true(fake_blocklisted("1.2.3.4:0/5"));
}

static gpointer fence_someone(gpointer arg)
{
    return GINT_TO_POINTER(fake_rados.blocklist(us, "1.2.3.4:0/5"));
}

static void test_held_call(void **state)
{
    GThread *t;

    fake_fault_add(&(struct fake_fault) { .match = "blocklist *",
                                          .kind = FAKE_HOLD });
    t = g_thread_new("fence", fence_someone, NULL);
    fake_wait_log("blocklist *");
    fake_release("other");
    assert_false(fake_blocklisted("1.2.3.4:0/5"));
    fake_release("blocklist *");
    assert_int_equal(GPOINTER_TO_INT(g_thread_join(t)), 0);
    assert_true(fake_blocklisted("1.2.3.4:0/5"));
}

/* ---- what ends the process ----------------------------------------------- */

/* The signal that ends a copy of this process in @fn, 0: none does. */
static int signal_of(void (*fn)(void))
{
    const struct rlimit no_core = { 0, 0 };
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (!pid) {
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &no_core);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void write_first(void)
{
    write_object(OBJ(0), "x", NULL);
}

static void remove_first(void)
{
    struct batch b = { .write = true };

    add_plain(&b, RADOS_REMOVE, 0);
    (void)run(pool, OBJ(0), &b, NULL, NULL);
}

static void update_unguarded(void)
{
    (void)change(MAP, "rbd", "object_map_update",
                 "030000000000000004000000000000000100");
}

static void break_4267(void)
{
    (void)change(HEADER, "lock", "break_lock", "010119000000" LOCK_NAME_HEX
                 "08" "ab10000000000000" "00000000");
}

static void test_guards(void **state)
{
    fake_require_snapc(1);
    assert_int_not_equal(signal_of(write_first), 0);
    fake_require_snapc(0);
    assert_int_equal(signal_of(write_first), 0);

    assert_int_not_equal(signal_of(update_unguarded), 0);
    fake_lock_hold(img, 4267, "", "");
    assert_int_not_equal(signal_of(break_4267), 0);
    assert_int_equal(fake_rados.blocklist(us, FAKE_PEER_ADDRESS "4267"), 0);
    assert_int_equal(signal_of(break_4267), 0);

    fake_image_enable(img, FAKE_DEFAULT_FEATURES);
    fake_map_set(img, RADOS_NOSNAP, 0, 1);
    assert_int_equal(signal_of(write_first), 0);
    fake_require_owner(img);
    assert_int_not_equal(signal_of(write_first), 0);
    fake_lock_drop(img);
    assert_int_not_equal(signal_of(write_first), 0);
    assert_int_equal(change(HEADER, "lock", "lock", LOCK_HEX), 0);
    assert_int_equal(signal_of(write_first), 0);
    fake_map_set(img, RADOS_NOSNAP, 0, 2);
    assert_int_not_equal(signal_of(write_first), 0);
    assert_int_equal(signal_of(remove_first), 0);
    fake_map_set(img, RADOS_NOSNAP, 0, 3);
    assert_int_not_equal(signal_of(write_first), 0);
    fake_map_set(img, RADOS_NOSNAP, 0, 0);
    assert_int_not_equal(signal_of(write_first), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lock, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lock_is_part_of_the_op, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_locker_as_recorded, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_map_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map_snapshots, setup, teardown),
        cmocka_unit_test_setup_teardown(test_map_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_check, setup, teardown),
        cmocka_unit_test_setup_teardown(test_check_of_removed_snapshot, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_header_methods, setup, teardown),
        cmocka_unit_test_setup_teardown(test_copyup, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deep_copyup, setup, teardown),
        cmocka_unit_test_setup_teardown(test_snapshots_of_objects, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_notify_reply, setup, teardown),
        cmocka_unit_test_setup_teardown(test_yielding_peer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_handle_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_blocklisted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_faults_of_blocking_calls, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_held_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_guards, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
