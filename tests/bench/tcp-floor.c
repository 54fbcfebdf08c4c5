/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the network alone costs: requests and replies of a given size over one
 * TCP connection on loopback, as many under way as asked for.  The client does
 * nothing but send and receive: no thread, no checksum, no parsing.  What a
 * block driver takes beyond this is its own.
 *
 *     tcp-floor REQUEST-BYTES REPLY-BYTES COUNT DEPTH
 *
 * prints one line of JSON: seconds in all, and the client's CPU time, user and
 * system, in microseconds per exchange.  The server is a child process, so
 * that its CPU time is not counted.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char buffer[8 << 20];

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void no_delay(int fd)
{
    int one = 1;

    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0) {
        die("TCP_NODELAY");
    }
}

static void send_all(int fd, size_t len)
{
    while (len) {
        ssize_t n = send(fd, buffer, len, MSG_NOSIGNAL);

        if (n < 0) {
            die("send");
        }
        len -= n;
    }
}

/* Bytes received: at least one, at most what fits.  0 is the end. */
static size_t receive_some(int fd)
{
    ssize_t n = recv(fd, buffer, sizeof(buffer), 0);

    if (n < 0) {
        die("recv");
    }
    return n;
}

static void serve(int fd, size_t request, size_t reply)
{
    size_t have = 0;
    size_t n;

    no_delay(fd);
    while ((n = receive_some(fd))) {
        for (have += n; have >= request; have -= request) {
            send_all(fd, reply);
        }
    }
}

static double seconds(struct timeval t)
{
    return t.tv_sec + t.tv_usec / 1e6;
}

static void run_client(int fd, size_t request, size_t reply, long count,
                       long depth)
{
    struct timespec begin, end;
    struct rusage u;
    size_t have = 0;
    long sent = 0;
    long done = 0;

    no_delay(fd);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (done < count) {
        size_t n;

        for (; sent < count && sent - done < depth; sent++) {
            send_all(fd, request);
        }
        n = receive_some(fd);
        if (!n) {
            fprintf(stderr, "tcp-floor: the server is gone\n");
            exit(1);
        }
        for (have += n; have >= reply; have -= reply) {
            done++;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (getrusage(RUSAGE_SELF, &u) < 0) {
        die("getrusage");
    }
    printf("{\"seconds\": %.6f, \"user_us\": %.3f, \"sys_us\": %.3f}\n",
           end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9,
           seconds(u.ru_utime) * 1e6 / count,
           seconds(u.ru_stime) * 1e6 / count);
}

int main(int argc, char **argv)
{
    struct sockaddr_in addr = { .sin_family = AF_INET };
    socklen_t len = sizeof(addr);
    size_t request, reply;
    long count, depth;
    int listener, fd;
    int status;
    pid_t pid;

    if (argc != 5) {
        fprintf(stderr, "tcp-floor REQUEST-BYTES REPLY-BYTES COUNT DEPTH\n");
        return 2;
    }
    request = strtoul(argv[1], NULL, 10);
    reply = strtoul(argv[2], NULL, 10);
    count = strtol(argv[3], NULL, 10);
    depth = strtol(argv[4], NULL, 10);
    if (!request || !reply || count < 1 || depth < 1) {
        fprintf(stderr, "tcp-floor: every argument is at least 1\n");
        return 2;
    }
    memset(buffer, 1, sizeof(buffer));

    listener = socket(AF_INET, SOCK_STREAM, 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 ||
        bind(listener, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
        listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&addr, &len) < 0) {
        die("listen");
    }
    pid = fork();
    if (pid < 0) {
        die("fork");
    }
    if (pid == 0) {
        fd = accept(listener, NULL, NULL);
        if (fd < 0) {
            die("accept");
        }
        serve(fd, request, reply);
        return 0;
    }
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, len) < 0) {
        die("connect");
    }
    run_client(fd, request, reply, count, depth);
    close(fd);
    return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 1;
}
