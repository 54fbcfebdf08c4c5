/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * pinrbd info POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]
 */
#include <glib.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "output.h"

static void print_features(struct output *out, uint64_t features)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (unsigned bit = 0; bit < 64; bit++) {
        const char *name = pinrbd_feature_name(bit);

        if (features >> bit & 1) {
            g_string_append(text, text->len ? ", " : "");
            if (name) {
                g_string_append(text, name);
            } else {
                g_string_append_printf(text, "bit %u", bit);
            }
        }
    }
    output_u64(out, "features", NULL, features);
    output_string(out, "feature_names", "features", text->str);
}

static void print_flags(struct output *out, uint64_t flags)
{
    output_u64(out, "flags", NULL, flags);
    if (flags) {
        output_string(out, "flag_names", "flags",
                      flags & 2 ? "object map invalid, fast diff invalid"
                                : "object map invalid");
    }
}

static void print_parent(struct output *out,
                         const struct pinrbd_image_info *info)
{
    g_autofree char *text = NULL;

    if (info->parent_pool_id < 0) {
        return;
    }
    text = g_strdup_printf("pool %" PRId64 ", %s%s%simage id %s, snapshot %"
                           PRIu64, info->parent_pool_id,
                           info->parent_ns[0] ? "namespace " : "",
                           info->parent_ns, info->parent_ns[0] ? ", " : "",
                           info->parent_image_id, info->parent_snap_id);
    output_string(out, "parent", "parent", text);
    output_bytes(out, "parent_overlap", "overlap", info->parent_overlap);
}

static void print_snapshots(struct output *out, struct pinrbd_image *image)
{
    g_autofree struct pinrbd_snapshot *snaps = NULL;
    size_t n;

    if (pinrbd_image_snapshots(image, &snaps, &n) < 0) {
        return;
    }
    output_list_begin(out, "snapshots", n ? "snapshots" : NULL);
    for (size_t i = 0; i < n; i++) {
        output_object_begin(out);
        output_u64(out, "id", "", snaps[i].id);
        output_string(out, "name", "", snaps[i].name);
        output_bytes(out, "size", "", snaps[i].size);
        output_bool(out, "protected", NULL, snaps[i].is_protected);
        output_bool(out, "user", NULL, snaps[i].is_user);
        output_u64(out, "created", NULL, snaps[i].time_s);
        output_object_end(out);
    }
    output_list_end(out);
}

static void print_image(struct output *out, const char *spec,
                        struct pinrbd_image *image)
{
    struct pinrbd_image_info info = { .size = sizeof(info) };

    pinrbd_image_info(image, &info);
    output_string(out, "image", "image", spec);
    output_string(out, "id", "id", info.id);
    output_bytes(out, "size", "size", info.image_size);
    output_bytes(out, "object_size", "object size", info.object_size);
    output_string(out, "object_prefix", "object prefix", info.object_prefix);
    if (info.stripe_count > 1) {
        output_bytes(out, "stripe_unit", "stripe unit", info.stripe_unit);
        output_u64(out, "stripe_count", "stripe count", info.stripe_count);
    }
    print_features(out, info.features);
    print_flags(out, info.flags);
    output_u64(out, "pool_id", NULL, info.pool_id);
    output_u64(out, "data_pool_id",
               info.data_pool_id != info.pool_id ? "data pool" : NULL,
               info.data_pool_id);
    print_parent(out, &info);
    output_string(out, "fsid", "cluster", info.fsid);
    print_snapshots(out, image);
}

int cmd_info(int argc, char **argv)
{
    g_autofree char *conf = NULL;
    g_autofree char *user = NULL;
    g_autofree char *format = NULL;
    g_autofree char *spec = NULL;
    const GOptionEntry entries[] = {
        { "conf", 'c', 0, G_OPTION_ARG_FILENAME, &conf,
          "Ceph configuration file", "FILE" },
        { "id", 0, 0, G_OPTION_ARG_STRING, &user,
          "Ceph user, without `client.'", "USER" },
        { "format", 0, 0, G_OPTION_ARG_STRING, &format,
          "text (default) or json", "FORMAT" },
        { NULL },
    };
    g_autoptr(GOptionContext) context =
        g_option_context_new("POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]");
    g_autoptr(GError) error = NULL;
    struct pinrbd_cluster_options co = { .size = sizeof(co) };
    struct pinrbd_image_options io = { .size = sizeof(io),
                                       .read_only = true };
    struct pinrbd_cluster *cluster;
    struct pinrbd_image *image;
    struct pinrbd_error err;
    struct cli_image name;
    struct output *out;

    g_option_context_set_summary(context, "Prints what the header of an "
                                          "image says.");
    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &error)) {
        fprintf(stderr, "pinrbd info: %s\n", error->message);
        return CLI_USAGE;
    }
    if (argc != 2) {
        fprintf(stderr, "pinrbd info: one image is needed\n");
        return CLI_USAGE;
    }
    spec = g_strdup(argv[1]);
    if (!cli_parse_image(spec, &name)) {
        return CLI_USAGE;
    }
    out = output_new(format ?: "text");
    if (!out) {
        fprintf(stderr, "pinrbd info: format '%s' is neither text nor "
                "json\n", format);
        return CLI_USAGE;
    }

    co.conf = conf;
    co.user = user;
    if (pinrbd_cluster_open(&co, &cluster, &err) < 0) {
        return cli_fail(&err);
    }
    io.pool = name.pool;
    io.ns = name.ns;
    io.image = name.image;
    io.snapshot = name.snapshot;
    if (pinrbd_image_open(cluster, &io, &image, &err) < 0) {
        pinrbd_cluster_close(cluster);
        return cli_fail(&err);
    }
    print_image(out, argv[1], image);
    output_end(out);
    pinrbd_image_close(image);
    pinrbd_cluster_close(cluster);
    return CLI_OK;
}
