/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Options of a block node, in all the ways QEMU delivers them.
 *
 *     rbd:p/i:k=v   --> pinrbd_parse_filename --+
 *     -drive, json: --> QDict of strings -------+--> pinrbd_target_from_qdict
 *     -blockdev     --> QDict of typed values --+            |
 *     blockdev-create -----------------------> pinrbd_target_from_qapi
 *
 * What QAPI does not know is taken out of the dictionary before QAPI converts
 * the rest and refuses what is left over: the product's own keys, the older
 * spelling `password-secret', and the Ceph options of a file name.  Those
 * travel from the parser to the open function as entries
 * `=ceph.N.key' and `=ceph.N.value', flat strings that survive everything the
 * block layer does with a dictionary; no user can write such a key in front
 * of its `='.
 *
 * An overlay written long ago may name its base by a json: object with nothing
 * but `filename' in it.  That still opens, with a warning.
 */
#include "qemu/osdep.h"

#include "block/qdict.h"
#include "crypto/secret.h"
#include "qapi/error.h"
#include "qapi/qapi-visit-block-core.h"
#include "qapi/qobject-input-visitor.h"
#include "qemu/error-report.h"

#include "pinrbd-compat.h"
#include "pinrbd-qdict.h"

int pinrbd_propagate(Error **errp, int ret, const struct pinrbd_error *err)
{
    error_setg(errp, "%s", err->text);
    return ret;
}

static void put(QDict *options, const char *key, const char *value)
{
    if (value) {
        qdict_put_str(options, key, value);
    }
}

static void target_to_qdict(const struct pinrbd_target *t, QDict *options)
{
    put(options, "pool", t->pool);
    put(options, "namespace", t->ns);
    put(options, "image", t->image);
    put(options, "snapshot", t->snapshot);
    put(options, "conf", t->conf);
    put(options, "user", t->user);
    for (size_t i = 0; i < t->own.n; i++) {
        put(options, t->own.kv[i].key, t->own.kv[i].value);
    }
    for (size_t i = 0; i < t->ceph.n; i++) {
        g_autofree char *key = g_strdup_printf("=ceph.%zu.key", i);
        g_autofree char *value = g_strdup_printf("=ceph.%zu.value", i);

        put(options, key, t->ceph.kv[i].key);
        put(options, value, t->ceph.kv[i].value);
    }
}

void pinrbd_parse_filename(const char *filename, QDict *options, Error **errp)
{
    struct pinrbd_target t = { 0 };
    struct pinrbd_error err;

    if (pinrbd_target_parse(&t, filename, &err) < 0) {
        pinrbd_propagate(errp, 0, &err);
    } else {
        target_to_qdict(&t, options);
    }
    pinrbd_target_clear(&t);
}

static void take_ceph_pairs(struct pinrbd_target *t, QDict *options)
{
    for (size_t i = 0; ; i++) {
        g_autofree char *key = g_strdup_printf("=ceph.%zu.key", i);
        g_autofree char *value = g_strdup_printf("=ceph.%zu.value", i);
        const char *k = qdict_get_try_str(options, key);
        const char *v = qdict_get_try_str(options, value);

        if (!k || !v) {
            return;
        }
        pinrbd_pairs_add(&t->ceph, k, v);
        qdict_del(options, key);
        qdict_del(options, value);
    }
}

/* Values from -drive are strings, those in json: may be numbers. */
static char *scalar_text(QObject *obj)
{
    QString *string = qobject_to(QString, obj);
    QNum *number = qobject_to(QNum, obj);

    if (string) {
        return g_strdup(qstring_get_str(string));
    }
    return number ? qnum_to_string(number) : NULL;
}

static int take_own_options(struct pinrbd_target *t, QDict *options,
                            Error **errp)
{
    const QDictEntry *entry, *next;

    for (entry = qdict_first(options); entry; entry = next) {
        const char *key = qdict_entry_key(entry);
        g_autofree char *value = NULL;

        next = qdict_next(options, entry);
        if (!pinrbd_settings_known(key)) {
            continue;
        }
        value = scalar_text(qdict_entry_value(entry));
        if (!value) {
            error_setg(errp, "Option '%s' takes a string or a number", key);
            return -EINVAL;
        }
        pinrbd_pairs_add(&t->own, key, value);
        qdict_del(options, key);
    }
    return 0;
}

static BlockdevOptionsRbd *convert(QDict *options, Error **errp)
{
    BlockdevOptionsRbd *o = NULL;
    Visitor *v = qobject_input_visitor_new_flat_confused(options, errp);

    if (v) {
        visit_type_BlockdevOptionsRbd(v, NULL, &o, errp);
        visit_free(v);
    }
    return o;
}

/*
 * Options in the oldest form: everything in a file name.  An error of its own
 * would only hide the one that led here, so there is none.
 */
static BlockdevOptionsRbd *convert_filename(struct pinrbd_target *t,
                                            QDict *options)
{
    const char *filename = qdict_get_try_str(options, "filename");
    Error *err = NULL;
    BlockdevOptionsRbd *o = NULL;
    g_autofree char *copy = g_strdup(filename);

    if (!filename || t->ceph.n) {
        return NULL;
    }
    qdict_del(options, "filename");
    pinrbd_parse_filename(copy, options, &err);
    if (!err && take_own_options(t, options, &err) == 0) {
        take_ceph_pairs(t, options);
        o = convert(options, &err);
    }
    error_free(err);
    if (o) {
        warn_report("RBD options encoded in the filename as keyvalue pairs "
                    "is deprecated");
    }
    return o;
}

int pinrbd_target_set_key(struct pinrbd_target *t, const char *id,
                          Error **errp)
{
    g_autofree char *key = qcrypto_secret_lookup_as_base64(id, errp);

    if (!key) {
        return -EIO;
    }
    pinrbd_pairs_add(&t->ceph, "key", key);
    return 0;
}

int pinrbd_target_from_qapi(struct pinrbd_target *t,
                            const BlockdevOptionsRbd *o, Error **errp)
{
    g_autofree char *mon_host = NULL;
    g_autofree char *auth = NULL;
    struct pinrbd_error err;
    int ret;

    if (o->encrypt) {
        error_setg(errp, "Encryption inside the RBD image is not supported; "
                   "put QEMU's 'luks' driver on top of the image");
        return -ENOTSUP;
    }
    t->pool = g_strdup(o->pool);
    t->ns = g_strdup(o->q_namespace);
    t->image = g_strdup(o->image);
    t->snapshot = g_strdup(o->snapshot);
    t->conf = g_strdup(o->conf);
    t->user = g_strdup(o->user);
    ret = pinrbd_target_complete(t, &err);
    if (ret < 0) {
        return pinrbd_propagate(errp, ret, &err);
    }
    for (InetSocketAddressBaseList *s = o->server; s; s = s->next) {
        mon_host = pinrbd_mon_host_add(mon_host, s->value->host,
                                       s->value->port);
    }
    if (mon_host) {
        pinrbd_pairs_add(&t->ceph, "mon_host", mon_host);
    }
    if (o->key_secret) {
        ret = pinrbd_target_set_key(t, o->key_secret, errp);
        if (ret < 0) {
            return ret;
        }
    }
    for (RbdAuthModeList *a = o->auth_client_required; a; a = a->next) {
        char *longer = g_strconcat(auth ? auth : "", auth ? ";" : "",
                                   RbdAuthMode_str(a->value), NULL);

        g_free(auth);
        auth = longer;
    }
    if (auth) {
        pinrbd_pairs_add(&t->ceph, "auth_client_required", auth);
    }
    return 0;
}

int pinrbd_target_from_qdict(struct pinrbd_target *t, QDict *options,
                             Error **errp)
{
    g_autofree char *secret =
        g_strdup(qdict_get_try_str(options, "password-secret"));
    g_autoptr(BlockdevOptionsRbd) o = NULL;
    Error *err = NULL;
    const QDictEntry *entry;
    int ret;

    qdict_del(options, "password-secret");
    take_ceph_pairs(t, options);
    ret = take_own_options(t, options, errp);
    if (ret < 0) {
        return ret;
    }
    o = convert(options, &err);
    if (!o) {
        o = convert_filename(t, options);
        if (!o) {
            error_propagate(errp, err);
            return -EINVAL;
        }
        error_free(err);
    }
    if (secret && o->key_secret) {
        error_setg(errp, "Legacy 'password-secret' clashes with 'key-secret'");
        return -EINVAL;
    }
    while ((entry = qdict_first(options))) {
        qdict_del(options, qdict_entry_key(entry));
    }
    ret = pinrbd_target_from_qapi(t, o, errp);
    if (ret == 0 && secret) {
        ret = pinrbd_target_set_key(t, secret, errp);
    }
    return ret;
}
