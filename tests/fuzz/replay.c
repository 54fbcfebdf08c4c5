/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A fuzz target without a fuzzer: runs it on the files and folders named on
 * the command line, then on some thousand mutations of each.
 *
 *     build/tests/fuzz/header tests/fuzz/corpus/header/...
 *
 * Mutations come from a fixed seed, so a crash comes again.  The input that
 * runs is kept in memory of exactly its size, where ASan watches; when the
 * process dies by a signal it is written to the file crash-TARGET in $TMPDIR.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROUNDS 2000
#define MAX_SIZE 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_set_death_callback(void (*fn)(void)) __attribute__((weak));

static uint8_t *volatile current;
static volatile size_t current_size;
static char crash_file[PATH_MAX];
static unsigned long n_runs;

static void keep_crash(void)
{
    int fd = open(crash_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    static const char said[] = "input kept in ";

    if (fd >= 0 && write(fd, current, current_size) >= 0) {
        (void)!write(2, said, sizeof(said) - 1);
        (void)!write(2, crash_file, strlen(crash_file));
        (void)!write(2, "\n", 1);
    }
}

static void on_signal(int sig)
{
    keep_crash();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void run(const uint8_t *data, size_t size)
{
    current = malloc(size ? size : 1);
    if (!current) {
        abort();
    }
    memcpy(current, data, size);
    current_size = size;
    LLVMFuzzerTestOneInput(current, size);
    n_runs++;
    free(current);
}

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Change @buf, which has room for MAX_SIZE bytes; returns the new size. */
static size_t mutate(uint8_t *buf, size_t size, uint64_t *seed)
{
    static const uint8_t telling[] = { 0, 1, 2, 0x7f, 0x80, 0xfe, 0xff };
    size_t at = size ? next_random(seed) % size : 0;
    size_t n;

    switch (next_random(seed) % 7) {
    case 0:
        if (size) {
            buf[at] ^= 1u << next_random(seed) % 8;
        }
        break;
    case 1:
        if (size) {
            buf[at] = telling[next_random(seed) % sizeof(telling)];
        }
        break;
    case 2:                     /* cut the end off */
        size = at;
        break;
    case 3:                     /* a length that means it */
        n = size - at < 4 ? size - at : 4;
        memset(buf + at, next_random(seed) & 1 ? 0xff : 0, n);
        break;
    case 4:                     /* take bytes out */
        if (size) {
            n = 1 + next_random(seed) % (size - at);
            memmove(buf + at, buf + at + n, size - at - n);
            size -= n;
        }
        break;
    case 5:                     /* double bytes */
        n = size - at < 16 ? size - at : 16;
        if (size + n <= MAX_SIZE) {
            memmove(buf + at + n, buf + at, size - at);
            size += n;
        }
        break;
    case 6:
        if (size < MAX_SIZE) {
            memmove(buf + at + 1, buf + at, size - at);
            buf[at] = next_random(seed);
            size++;
        }
        break;
    }
    return size;
}

static int do_file(const char *path)
{
    static uint8_t seed_bytes[MAX_SIZE];
    static uint8_t buf[MAX_SIZE];
    uint64_t seed = 1;
    FILE *f = fopen(path, "rb");
    size_t size;

    if (!f) {
        perror(path);
        return 1;
    }
    size = fread(seed_bytes, 1, sizeof(seed_bytes), f);
    fclose(f);
    run(seed_bytes, size);
    for (unsigned i = 0; i < ROUNDS; i++) {
        size_t n = size;

        memcpy(buf, seed_bytes, size);
        for (unsigned k = next_random(&seed) % 4; k < 4; k++) {
            n = mutate(buf, n, &seed);
        }
        run(buf, n);
    }
    return 0;
}

static int do_path(const char *path)
{
    struct stat st;
    struct dirent *e;
    DIR *dir;
    int r = 0;

    if (stat(path, &st) < 0) {
        perror(path);
        return 1;
    }
    if (!S_ISDIR(st.st_mode)) {
        return do_file(path);
    }
    dir = opendir(path);
    if (!dir) {
        perror(path);
        return 1;
    }
    while ((e = readdir(dir))) {
        char name[PATH_MAX];

        if (e->d_name[0] != '.') {
            snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
            r |= do_path(name);
        }
    }
    closedir(dir);
    return r;
}

int main(int argc, char **argv)
{
    static const int fatal[] = { SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE,
                                 SIGTRAP };
    const char *folder = getenv("TMPDIR");
    const char *name = strrchr(argv[0], '/');
    int r = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE-OR-FOLDER...\n", argv[0]);
        return 2;
    }
    snprintf(crash_file, sizeof(crash_file), "%s/crash-%s",
             folder ? folder : "/tmp", name ? name + 1 : argv[0]);
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++) {
        signal(fatal[i], on_signal);
    }
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(keep_crash);
    }
    for (int i = 1; i < argc; i++) {
        r |= do_path(argv[i]);
    }
    printf("%lu inputs\n", n_runs);
    return r || !n_runs;
}
