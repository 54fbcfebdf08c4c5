/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The product's own options: one table, and the sources a value comes from.
 *
 * The table below is the only place that knows an option: parser, help text
 * and manual page are made from it.  A new option is a row and a field of
 * struct pinrbd_settings.
 *
 *     default < host file < [pinrbd] of the conf file < environment < caller
 *                  |
 *                  [pinrbd] < [pool POOL] < [image POOL/[NS/]IMAGE]
 *
 * The sources are read from the least important on, and each value simply
 * replaces the one before it.  A wrong value is refused even where a more
 * important source would replace it: what is written in a file of this
 * product was meant, and a typing mistake must not lie there unseen until the
 * override goes away.
 *
 * The host file is a GKeyFile of our own.  The conf file belongs to Ceph and
 * is read by conf_file.c; only its section [pinrbd] is ours.  Variables named
 * PINRBD_something that are no option are left alone: the environment is
 * shared with scripts.
 *
 * Nothing is cached: an image's options are what the files say when it is
 * opened.
 */
#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "conf_file.h"
#include "log.h"

#define HOST_FILE "/etc/ceph/pinrbd.conf"
#define FILE_MAX (4 * 1024 * 1024)  /* a larger one is not a settings file */

enum kind {
    KIND_CHOICE,        /* one of `values`; its place there is stored */
    KIND_NUMBER,        /* one of `values`, which are numbers; uint32_t */
    KIND_SIZE,          /* bytes, with a suffix K, M or G; uint64_t */
    KIND_PATH,          /* any text; empty is NULL */
};

struct option {
    const char *key;
    enum kind kind;
    size_t offset;      /* in struct pinrbd_settings */
    const char *values;
    const char *standard;
    const char *help;
};

#define FIELD(f) offsetof(struct pinrbd_settings, f)

static const struct option table[] = {
    {
        "pin", KIND_CHOICE, FIELD(pin), "auto|always|never", "auto",
        "Whether written bytes are sent from where they are, without a copy. "
        "auto does so from pin-threshold on.",
    }, {
        "pin-threshold", KIND_SIZE, FIELD(pin_threshold), "SIZE", "32K",
        "With pin=auto, writes to an object smaller than this are copied: "
        "for few bytes a copy is cheaper than keeping track of them.",
    }, {
        "cluster-handle", KIND_CHOICE, FIELD(cluster_handle), "shared|own",
        "shared",
        "shared uses one cluster connection for all images of the process "
        "that have the same Ceph settings; own gives the image one of its "
        "own.",
    }, {
        "lock-policy", KIND_CHOICE, FIELD(lock_policy),
        "cooperative|exclusive", "cooperative",
        "cooperative hands the image's exclusive lock to any client that asks "
        "for it and takes it back for the next write; exclusive takes it when "
        "the image is opened and keeps it, except for maintenance by `rbd`.",
    }, {
        "block-size", KIND_NUMBER, FIELD(block_size), "0|512|4096", "0",
        "Logical and physical block size, in bytes, that a guest is told. "
        "0 says nothing, like QEMU's own driver, and the guest sees 512.",
    }, {
        "log-level", KIND_CHOICE, FIELD(log_level), "error|warn|info|debug",
        "warn",
        "The least urgent messages to let through. It holds for the whole "
        "process; the most talkative image decides.",
    }, {
        "stats-file", KIND_PATH, FIELD(stats_file), "PATH", "",
        "File that gets one line of JSON with the image's counters appended "
        "when the image is closed.",
    },
};

/* Values of choices are stored by their place in the table's text. */
G_STATIC_ASSERT(sizeof(enum pinrbd_pin) == sizeof(unsigned));
G_STATIC_ASSERT(sizeof(enum pinrbd_handle) == sizeof(unsigned));
G_STATIC_ASSERT(sizeof(enum pinrbd_lock_policy) == sizeof(unsigned));
G_STATIC_ASSERT(sizeof(enum pinrbd_log_level) == sizeof(unsigned));

/* `A b_c' -> `a-b-c' */
static char *normal_key(const char *key)
{
    char *k = g_ascii_strdown(key, -1);

    g_strdelimit(g_strstrip(k), "_ \t", '-');
    return k;
}

static const struct option *find_option(const char *normal)
{
    for (size_t i = 0; i < G_N_ELEMENTS(table); i++) {
        if (!strcmp(table[i].key, normal)) {
            return &table[i];
        }
    }
    return NULL;
}

static bool parse_size(const char *text, uint64_t *ret)
{
    const char *suffix = text + strspn(text, "0123456789");
    unsigned shift = 0;
    uint64_t n = 0;

    for (const char *p = text; p < suffix; p++) {
        unsigned digit = *p - '0';

        if (n > (UINT64_MAX - digit) / 10) {
            return false;
        }
        n = n * 10 + digit;
    }
    if (*suffix) {
        const char *at = strchr("kmg", g_ascii_tolower(*suffix));

        if (!at || suffix[1]) {
            return false;
        }
        shift = 10 * (at - "kmg" + 1);
    }
    if (suffix == text || n > (uint64_t)INT64_MAX >> shift) {
        return false;
    }
    *ret = n << shift;
    return true;
}

/* Place of @text among the `|'-separated @values, -1 if it is none of them. */
static int find_choice(const char *values, const char *text)
{
    g_auto(GStrv) list = g_strsplit(values, "|", -1);

    for (int i = 0; list[i]; i++) {
        if (!strcmp(list[i], text)) {
            return i;
        }
    }
    return -1;
}

static bool store(struct pinrbd_settings *s, const struct option *o,
                  const char *value)
{
    char *field = (char *)s + o->offset;
    int place;

    switch (o->kind) {
    case KIND_CHOICE:
        place = find_choice(o->values, value);
        if (place < 0) {
            return false;
        }
        memcpy(field, &(unsigned){ place }, sizeof(unsigned));
        return true;
    case KIND_NUMBER:
        if (find_choice(o->values, value) < 0) {
            return false;
        }
        *(uint32_t *)field = g_ascii_strtoull(value, NULL, 10);
        return true;
    case KIND_SIZE:
        return parse_size(value, (uint64_t *)field);
    case KIND_PATH:
        g_free(*(char **)field);
        *(char **)field = *value ? g_strdup(value) : NULL;
        return true;
    }
    return false;
}

/* @source stands in front of the message: where the value was found. */
static int set(struct pinrbd_settings *s, const char *key, const char *value,
               const char *source, struct pinrbd_error *reterr)
{
    g_autofree char *normal = normal_key(key);
    const struct option *o = find_option(normal);

    if (!o) {
        return perror_set(reterr, -EINVAL, "%s: unknown option '%s' "
                          "(value '%s')", source, normal, value);
    }
    if (!store(s, o, value)) {
        return perror_set(reterr, -EINVAL, "%s: option '%s' cannot be '%s', "
                          "%s%s", source, normal, value,
                          o->kind == KIND_SIZE ? "only a number of bytes with "
                          "or without a suffix K, M or G" : "only ",
                          o->kind == KIND_SIZE ? "" : o->values);
    }
    return 0;
}

static struct pinrbd_settings *settings_new(void)
{
    struct pinrbd_settings *s = g_new0(struct pinrbd_settings, 1);

    s->size = sizeof(*s);
    for (size_t i = 0; i < G_N_ELEMENTS(table); i++) {
        if (!store(s, &table[i], table[i].standard)) {
            g_assert_not_reached();
        }
    }
    return s;
}

/* All of @path as text; a zero byte is put behind it. */
static int read_text(const char *path, char **ret, size_t *ret_len)
{
    g_autofree char *buf = NULL;
    size_t len = 0, room = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    int r = 0;

    if (fd < 0) {
        return -errno;
    }
    for (;;) {
        ssize_t n;

        if (room - len < 2) {
            room = room ? room * 2 : 16 * 1024;
            buf = g_realloc(buf, room);
        }
        n = read(fd, buf + len, room - len - 1);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            r = n < 0 ? -errno : 0;
            break;
        }
        len += n;
        if (len > FILE_MAX) {
            r = -EFBIG;
            break;
        }
    }
    (void)close(fd);
    if (r < 0) {
        return r;
    }
    buf[len] = '\0';
    *ret = g_steal_pointer(&buf);
    *ret_len = len;
    return 0;
}

/* ---- host file --------------------------------------------------------- */

static int load_group(struct pinrbd_settings *s, GKeyFile *file,
                      const char *path, const char *group,
                      struct pinrbd_error *reterr)
{
    g_autofree char *source = g_strdup_printf("%s, section [%s]", path, group);
    g_auto(GStrv) keys = g_key_file_get_keys(file, group, NULL, NULL);

    for (size_t i = 0; keys && keys[i]; i++) {
        g_autofree char *value = g_key_file_get_value(file, group, keys[i],
                                                      NULL);
        int r = set(s, keys[i], g_strstrip(value), source, reterr);

        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* A section of a kind that does not exist would never be looked at. */
static int check_groups(GKeyFile *file, const char *path,
                        struct pinrbd_error *reterr)
{
    g_auto(GStrv) groups = g_key_file_get_groups(file, NULL);

    for (size_t i = 0; groups[i]; i++) {
        const char *g = groups[i];

        if (strcmp(g, "pinrbd") && !g_str_has_prefix(g, "pool ") &&
            !(g_str_has_prefix(g, "image ") && strchr(g, '/'))) {
            return perror_set(reterr, -EINVAL, "%s: unknown section [%s], "
                              "there are [pinrbd], [pool POOL] and "
                              "[image POOL/IMAGE]", path, g);
        }
    }
    return 0;
}

static int load_host_file(struct pinrbd_settings *s, const char *pool,
                          const char *ns, const char *image,
                          struct pinrbd_error *reterr)
{
    const char *named = g_getenv("PINRBD_CONF");
    const char *path = named && *named ? named : HOST_FILE;
    g_autoptr(GKeyFile) file = g_key_file_new();
    g_autoptr(GError) gerr = NULL;
    g_autofree char *text = NULL;
    g_autofree char *for_pool = g_strdup_printf("pool %s", pool);
    g_autofree char *for_image = g_strdup_printf("image %s/%s%s%s", pool,
                                                 ns ? ns : "",
                                                 ns && *ns ? "/" : "", image);
    const char *groups[] = { "pinrbd", for_pool, for_image };
    size_t len;
    int r;

    r = read_text(path, &text, &len);
    if (r == -ENOENT && path != named) {
        return 0;
    }
    if (r < 0) {
        return perror_set(reterr, r, "%s: cannot read the host file: %s",
                          path, g_strerror(-r));
    }
    if (!g_key_file_load_from_data(file, text, len, G_KEY_FILE_NONE, &gerr)) {
        return perror_set(reterr, -EINVAL, "%s: %s", path, gerr->message);
    }
    r = check_groups(file, path, reterr);
    for (size_t i = 0; r == 0 && i < G_N_ELEMENTS(groups); i++) {
        if (g_key_file_has_group(file, groups[i])) {
            r = load_group(s, file, path, groups[i], reterr);
        }
    }
    return r;
}

/* ---- conf file of Ceph ------------------------------------------------- */

struct conf_load {
    struct pinrbd_settings *settings;
    const char *path;
    struct pinrbd_error *reterr;
    int r;              /* first failure */
};

static void conf_setting(void *opaque, const char *section, const char *key,
                         const char *value, unsigned line)
{
    struct conf_load *load = opaque;
    g_autofree char *source = NULL;

    if (strcmp(section, "pinrbd") || load->r < 0) {
        return;
    }
    source = g_strdup_printf("%s, section [pinrbd], line %u", load->path, line);
    load->r = set(load->settings, key, value, source, load->reterr);
}

static int load_conf(struct pinrbd_settings *s, const char *path,
                     struct pinrbd_error *reterr)
{
    struct conf_load load = { s, path, reterr, 0 };
    g_autofree char *text = NULL;
    unsigned bad_line;
    size_t len;
    int r;

    r = read_text(path, &text, &len);
    if (r < 0) {
        return perror_set(reterr, r, "error reading conf file %s: %s", path,
                          g_strerror(-r));
    }
    r = conf_file_parse(text, len, conf_setting, &load, &bad_line);
    if (r < 0) {
        return perror_set(reterr, r, "error reading conf file %s: not a text "
                          "file", path);
    }
    if (bad_line) {
        plog(PINRBD_LOG_WARN, "conf file %s: line %u makes no sense and was "
             "skipped", path, bad_line);
    }
    return load.r;
}

/* ---- environment ------------------------------------------------------- */

static int load_environment(struct pinrbd_settings *s,
                            struct pinrbd_error *reterr)
{
    for (size_t i = 0; i < G_N_ELEMENTS(table); i++) {
        g_autofree char *upper = g_ascii_strup(table[i].key, -1);
        g_autofree char *name = g_strconcat("PINRBD_",
                                            g_strdelimit(upper, "-", '_'),
                                            NULL);
        g_autofree char *source = g_strconcat("environment variable ", name,
                                              NULL);
        const char *value = g_getenv(name);
        int r;

        if (!value || !*value) {
            continue;
        }
        r = set(s, table[i].key, value, source, reterr);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* ---- interface --------------------------------------------------------- */

int pinrbd_settings_load(const char *pool, const char *ns, const char *image,
                         const char *conf, const struct pinrbd_kv *options,
                         size_t n_options, struct pinrbd_settings **ret,
                         struct pinrbd_error *reterr)
{
    struct pinrbd_settings *s = settings_new();
    int r;

    r = load_host_file(s, pool, ns, image, reterr);
    if (r == 0 && conf) {
        r = load_conf(s, conf, reterr);
    }
    if (r == 0) {
        r = load_environment(s, reterr);
    }
    for (size_t i = 0; r == 0 && i < n_options; i++) {
        r = set(s, options[i].key, options[i].value, "drive options", reterr);
    }
    if (r < 0) {
        pinrbd_settings_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

struct pinrbd_settings *settings_dup(const struct pinrbd_settings *settings)
{
    struct pinrbd_settings *s = settings_new();

    if (settings) {
        g_clear_pointer(&s->stats_file, g_free);
        memcpy(s, settings, MIN(settings->size, sizeof(*s)));
        s->size = sizeof(*s);
        s->stats_file = g_strdup(s->stats_file);
    }
    return s;
}

void pinrbd_settings_free(struct pinrbd_settings *settings)
{
    if (settings) {
        g_free(settings->stats_file);
        g_free(settings);
    }
}

bool pinrbd_settings_known(const char *key)
{
    g_autofree char *normal = normal_key(key);

    return find_option(normal) != NULL;
}

bool pinrbd_settings_describe(unsigned i, struct pinrbd_option_info *ret)
{
    if (i >= G_N_ELEMENTS(table)) {
        return false;
    }
    ret->key = table[i].key;
    ret->values = table[i].values;
    ret->standard = table[i].standard;
    ret->help = table[i].help;
    return true;
}
