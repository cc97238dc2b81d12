/* A completions server that knows when it sent what. One thread, epoll, one request a connection at a time.
 *
 * usage: truth_server STREAMS TOKENS PERIOD_NS LOCKSTEP OUT
 * Prints its port. A prompt holding "stream-K" is stream K; a later request for K replaces what was noted of it, so that
 * warm-ups (which re-send stream 0) leave no trace. Each token is one event, one HTTP chunk and one send(), stamped with
 * CLOCK_MONOTONIC right before. Streams are staggered evenly over a period, or all in step when LOCKSTEP is 1.
 * On SIGTERM writes one line a stream to OUT: K, the request's kernel receive stamp, then each token's stamp, in ns.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FD = 4096, REQUEST_BYTES = 65536 };

typedef struct {
    char *request;
    size_t length;
    int64_t arrived;
    int stream; /* -1 while no answer is under way */
    int sent;
    int64_t due;
} connection;

static connection connections[MAX_FD];
static int streams, tokens, lockstep, highest, timer;
static int64_t period, *arrivals, *stamps, armed;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_on(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Realtime minus monotonic, from the tightest of many tries: being preempted between two single readings would
 * shift every arrival converted by them. */
static int64_t clock_offset(void) {
    int64_t best = INT64_MAX, offset = 0;
    for (int i = 0; i < 1000; i++) {
        int64_t before = now_on(CLOCK_MONOTONIC), wall = now_on(CLOCK_REALTIME), after = now_on(CLOCK_MONOTONIC);
        if (after - before < best) {
            best = after - before;
            offset = wall - (before + after) / 2;
        }
    }
    return offset;
}

static void send_all(int fd, const char *data, size_t size) {
    /* Answers are small and their readers awake: a full socket buffer would spoil the measurement, so it ends it. */
    if (send(fd, data, size, MSG_NOSIGNAL) != (ssize_t)size && errno != EPIPE && errno != ECONNRESET) die("send");
}

static size_t framed(char *out, size_t room, const char *events) {
    return (size_t)snprintf(out, room, "%zx\r\n%s\r\n", strlen(events), events);
}

static void send_token(int fd, connection *c) {
    char event[512], piece[600];
    snprintf(event, sizeof event,
             "data: {\"id\":\"cmpl-%08d\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"truth\","
             "\"choices\":[{\"index\":0,\"text\":\" t%d\",\"logprobs\":null,\"finish_reason\":null,"
             "\"stop_reason\":null,\"token_ids\":null,\"prompt_token_ids\":null}],\"usage\":null}\n\n",
             c->stream, c->sent);
    size_t size = framed(piece, sizeof piece, event);
    stamps[(size_t)c->stream * tokens + c->sent] = now_on(CLOCK_MONOTONIC);
    send_all(fd, piece, size);
    c->sent++;
    c->due += period;
}

static void send_end(int fd, connection *c) {
    char event[256], piece[400];
    snprintf(event, sizeof event,
             "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n"
             "data: [DONE]\n\n",
             tokens, tokens + 3);
    size_t size = framed(piece, sizeof piece, event);
    memcpy(piece + size, "0\r\n\r\n", 5);
    send_all(fd, piece, size + 5);
    c->stream = -1;
}

static void answer(int fd, connection *c) {
    if (!strncmp(c->request, "GET ", 4)) { /* the vLLM client asks for /metrics first */
        static const char absent[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        c->length = 0;
        send_all(fd, absent, sizeof absent - 1);
        return;
    }
    const char *mark = strstr(c->request, "stream-");
    int k = mark ? atoi(mark + 7) : -1;
    if (k < 0 || k >= streams) {
        fprintf(stderr, "a prompt names no stream below %d\n", streams);
        exit(1);
    }
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    c->stream = k;
    c->sent = 0;
    c->length = 0;
    arrivals[k] = c->arrived;
    int64_t phase = lockstep ? 0 : period * k / streams;
    int64_t tick = (now_on(CLOCK_MONOTONIC) / period + 2) * period; /* a common grid, so that phases hold */
    c->due = tick + phase;
    send_all(fd, head, sizeof head - 1);
}

static int64_t receive_stamp(struct msghdr *message, int64_t offset) {
    for (struct cmsghdr *m = CMSG_FIRSTHDR(message); m; m = CMSG_NXTHDR(message, m))
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(m), sizeof t);
            return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - offset;
        }
    return now_on(CLOCK_MONOTONIC); /* stamping is switched on in the background: only the first packets lack one */
}

static int request_complete(const connection *c) {
    const char *end = strstr(c->request, "\r\n\r\n");
    const char *field = strcasestr(c->request, "content-length:");
    return end && c->length >= (size_t)(end + 4 - c->request) + (field ? strtoul(field + 15, NULL, 10) : 0);
}

static void on_readable(int fd, int64_t offset) {
    connection *c = &connections[fd];
    char control[256];
    struct iovec vector = {c->request + c->length, REQUEST_BYTES - 1 - c->length};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, 0);
    if (got <= 0) {
        free(c->request);
        memset(c, 0, sizeof *c);
        close(fd);
        return;
    }
    c->length += (size_t)got;
    c->request[c->length] = 0;
    c->arrived = receive_stamp(&message, offset);
    if (request_complete(c)) answer(fd, c);
}

static void on_connection(int listener, int epoll) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;
    if (fd < 0) return;
    if (fd >= MAX_FD) die("too many connections");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    connections[fd] = (connection){.request = malloc(REQUEST_BYTES), .stream = -1};
    if (fd > highest) highest = fd;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

/* Sends what is due and arms the timer for what is next. */
static void serve_due(void) {
    int64_t next = 0;
    for (int fd = 0; fd <= highest; fd++) {
        connection *c = &connections[fd];
        if (!c->request || c->stream < 0) continue;
        if (c->due <= now_on(CLOCK_MONOTONIC)) {
            if (c->sent < tokens) send_token(fd, c);
            if (c->sent == tokens) send_end(fd, c);
        }
        if (c->stream >= 0 && (!next || c->due < next)) next = c->due;
    }
    if (next == armed) return;
    armed = next;
    struct itimerspec when = {.it_value = {next / 1000000000, next % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void write_truth(const char *path) {
    FILE *out = fopen(path, "w");
    if (!out) die("fopen");
    for (int k = 0; k < streams; k++) {
        fprintf(out, "%d %lld", k, (long long)arrivals[k]);
        for (int i = 0; i < tokens; i++) fprintf(out, " %lld", (long long)stamps[(size_t)k * tokens + i]);
        fputc('\n', out);
    }
    if (fclose(out)) die("fclose");
}

static int listen_anywhere(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(fd, (struct sockaddr *)&address, size) || listen(fd, 1024)) die("listen");
    getsockname(fd, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: truth_server STREAMS TOKENS PERIOD_NS LOCKSTEP OUT\n");
        return 64;
    }
    streams = atoi(argv[1]);
    tokens = atoi(argv[2]);
    period = atoll(argv[3]);
    lockstep = atoi(argv[4]);
    arrivals = calloc((size_t)streams, sizeof *arrivals);
    stamps = calloc((size_t)streams * tokens, sizeof *stamps);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int stop = signalfd(-1, &signals, 0), epoll = epoll_create1(0), listener = listen_anywhere();
    int64_t offset = clock_offset();
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    int watched[] = {stop, listener, timer};
    for (int i = 0; i < 3; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = watched[i]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, watched[i], &event);
    }
    for (;;) {
        struct epoll_event ready[64];
        int count = epoll_wait(epoll, ready, 64, -1);
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            uint64_t expirations;
            if (fd == stop) {
                write_truth(argv[5]);
                return 0;
            }
            if (fd == listener) on_connection(listener, epoll);
            else if (fd == timer) (void)!read(timer, &expirations, sizeof expirations);
            else on_readable(fd, offset);
        }
        serve_due();
    }
}
