/*
 * A load of DLedger appends (request 50001): closed loop, one connection, one thread.
 *
 *   appends host=A port=N group=G id=ID depth=D body=BYTES seconds=S warmup=W [pids=P,P,P]
 *
 * `depth` is the number of appends in flight. `id` is the id of the leader, which must be the peer at host:port. Appends
 * that follow from one read are written together.
 *
 * Every response is checked. It must match an append in flight, its DLedger code (in the body) must be 200, and the
 * indexes must be unique and, at the end, dense. Violations are counted, and the exit status is then 5.
 *
 * Prints one JSON object: the appends whose responses arrived inside the window after the warm-up, their latencies, the
 * CPU time of the load itself and that of the processes `pids` together (utime + stime of /proc/PID/stat) in the same
 * window.
 *
 * Exit status: 0, 1 usage, 2 connection lost, 3 system call failed, 4 stalled, 5 wrong responses.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH_MAX = 4096, PIDS_MAX = 16, IN_CAPACITY = 4 << 20, STALL_S = 20 };

static const char *host = "127.0.0.1", *group = "default", *id = "n0";
static int port = 20911, depth = 1, body_bytes = 256, pids[PIDS_MAX], pid_count;
static double seconds = 0, warmup = 0;

static void die(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(status);
}

static void options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) die(1, "expected key=value, got %s", argv[i]);
        *value++ = 0;
        const char *key = argv[i];
        if (!strcmp(key, "host")) host = value;
        else if (!strcmp(key, "group")) group = value;
        else if (!strcmp(key, "id")) id = value;
        else if (!strcmp(key, "port")) port = atoi(value);
        else if (!strcmp(key, "depth")) depth = atoi(value);
        else if (!strcmp(key, "body")) body_bytes = atoi(value);
        else if (!strcmp(key, "seconds")) seconds = atof(value);
        else if (!strcmp(key, "warmup")) warmup = atof(value);
        else if (!strcmp(key, "pids")) {
            for (char *at = strtok(value, ","); at && pid_count < PIDS_MAX; at = strtok(NULL, ",")) pids[pid_count++] = atoi(at);
        } else die(1, "unknown option %s", key);
    }
    if (depth < 1 || depth > DEPTH_MAX) die(1, "depth must be 1..%d", DEPTH_MAX);
    if (body_bytes < 3 || body_bytes > 65536) die(1, "body must be 3..65536 bytes");
    if (seconds <= 0) die(1, "seconds are missing");
}

/* ---- clocks and CPU time ---- */
static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double own_cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static double peers_cpu_s(void) {
    double sum = 0;
    for (int i = 0; i < pid_count; i++) {
        char path[64], line[1024];
        snprintf(path, sizeof path, "/proc/%d/stat", pids[i]);
        FILE *file = fopen(path, "r");
        if (!file) die(3, "cannot read %s: the peer has ended", path);
        size_t n = fread(line, 1, sizeof line - 1, file);
        fclose(file);
        line[n] = 0;
        unsigned long utime = 0, stime = 0;
        char *after_name = strrchr(line, ')');
        if (after_name) sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &utime, &stime);
        sum += (double)(utime + stime) / sysconf(_SC_CLK_TCK);
    }
    return sum;
}

/* ---- latencies: 128 steps for every power of two of nanoseconds, so within 0.8 % ---- */
enum { STEP_BITS = 7, BUCKETS = 64 << STEP_BITS };
static uint64_t histogram[BUCKETS], measured;
static int64_t slowest_ns;

static int bucket_of(uint64_t ns) {
    if (ns < 1 << STEP_BITS) return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - STEP_BITS;
    return ((shift + 1) << STEP_BITS) + (int)((ns >> shift) & ((1 << STEP_BITS) - 1));
}

static double percentile_ms(double share) {
    uint64_t wanted = (uint64_t)(measured * share), seen = 0;
    for (int i = 0; i < BUCKETS; i++) {
        if ((seen += histogram[i]) <= wanted) continue;
        int shift = (i >> STEP_BITS) - 1;
        if (shift < 0) return i * 1e-6;
        uint64_t low = ((uint64_t)(1 << STEP_BITS) | (i & ((1 << STEP_BITS) - 1))) << shift;
        return (low + (1ull << shift) / 2) * 1e-6;
    }
    return slowest_ns * 1e-6;
}

/* ---- requests ---- */
typedef struct {
    uint32_t opaque; /* of the append in flight in this slot; 0 = none */
    int64_t sent_ns;
} Slot;

static Slot slots[DEPTH_MAX];
static int fd;
static char *frame, *at_opaque, *out, *in;
static size_t frame_bytes, out_len, in_len;
static uint32_t generation;
static long in_flight, answered, refused, unknown, duplicates;
static int64_t first_index = -1, last_index = -1;
static uint8_t *seen;
static size_t seen_bytes;

static void put32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static uint32_t get32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static void make_template(void) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char header[256];
    int n = snprintf(header, sizeof header,
        "{\"code\":50001,\"flag\":0,\"language\":\"JAVA\",\"opaque\":OOOOOOOOOO,\"serializeTypeCurrentRPC\":\"JSON\","
        "\"version\":479}");
    size_t coded = (size_t)(body_bytes + 2) / 3 * 4, left = (size_t)body_bytes % 3;
    char *body = malloc(coded + 1024);
    int m = snprintf(body, 512, "{\"group\":\"%s\",\"remoteId\":\"%s\",\"body\":\"", group, id);
    for (size_t i = 0; i < coded; i++) body[m + i] = letters[i * 7 % 64];
    if (left) { /* the last four characters encode one or two bytes */
        body[m + coded - 1] = '=';
        if (left == 1) body[m + coded - 2] = '=';
        body[m + coded - (left == 1 ? 3 : 2)] = 'A';
    }
    m += (int)coded;
    memcpy(body + m, "\"}", 2);
    m += 2;
    frame_bytes = 8 + n + m;
    frame = malloc(frame_bytes);
    put32(frame, (uint32_t)(4 + n + m));
    put32(frame + 4, (uint32_t)n);
    memcpy(frame + 8, header, n);
    memcpy(frame + 8 + n, body, m);
    free(body);
    at_opaque = memmem(frame, frame_bytes, "OOOOOOOOOO", 10);
    out = malloc(frame_bytes * depth);
    in = malloc(IN_CAPACITY);
}

/* Opaques are in 2^30 .. 2^31-1, so that they always have ten digits: 18 bits of generation, 12 of slot. */
static void make(int slot, int64_t now) {
    uint32_t opaque = slots[slot].opaque = 0x40000000u | (generation++ & 0x3ffff) << 12 | (uint32_t)slot;
    for (int i = 9; i >= 0; i--) at_opaque[i] = (char)('0' + opaque % 10), opaque /= 10;
    memcpy(out + out_len, frame, frame_bytes);
    out_len += frame_bytes;
    slots[slot].sent_ns = now;
    in_flight++;
}

static void flush(void) {
    for (size_t done = 0; done < out_len;) {
        ssize_t n = write(fd, out + done, out_len - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) die(errno == EAGAIN ? 4 : 2, "write: %s after %ld responses", strerror(errno), answered);
        done += n;
    }
    out_len = 0;
}

/* ---- responses ---- */
static long long number_after(const char *text, size_t n, const char *key, long long missing) {
    const char *at = memmem(text, n, key, strlen(key));
    return at ? strtoll(at + strlen(key), NULL, 10) : missing;
}

static void note_index(int64_t index) {
    if (first_index < 0) first_index = index > DEPTH_MAX ? index - DEPTH_MAX : 0; /* responses may arrive in any order */
    int64_t place = index - first_index;
    if (place < 0) { unknown++; return; }
    if ((size_t)place / 8 >= seen_bytes) {
        size_t wanted = ((size_t)place / 8 + 1) * 2;
        seen = realloc(seen, wanted);
        if (!seen) die(3, "out of memory");
        memset(seen + seen_bytes, 0, wanted - seen_bytes);
        seen_bytes = wanted;
    }
    if (seen[place / 8] & 1 << place % 8) duplicates++;
    seen[place / 8] |= (uint8_t)(1 << place % 8);
    if (index > last_index) last_index = index;
}

/* One whole frame without its length prefix. */
static void note_answer(const char *data, size_t n, int64_t now, int in_window, int going_on) {
    size_t header_len = get32(data) & 0xffffff;
    if (n < 4 || data[0] != 0 || header_len > n - 4) die(5, "a response is not a JSON frame");
    const char *header = data + 4, *body = header + header_len;
    size_t body_len = n - 4 - header_len;
    uint32_t opaque = (uint32_t)number_after(header, header_len, "\"opaque\":", 0);
    int slot = opaque & (DEPTH_MAX - 1);
    if (!opaque || slots[slot].opaque != opaque) { unknown++; return; }
    if (number_after(body, body_len, "\"code\":", -1) == 200) note_index(number_after(body, body_len, "\"index\":", -1));
    else refused++;
    if (in_window) {
        int64_t took = now - slots[slot].sent_ns;
        histogram[bucket_of((uint64_t)took)]++;
        measured++;
        if (took > slowest_ns) slowest_ns = took;
    }
    slots[slot].opaque = 0;
    answered++;
    in_flight--;
    if (going_on) make(slot, now);
}

static void run(void) {
    int64_t start = now_ns(), opens = start + (int64_t)(warmup * 1e9), closes = opens + (int64_t)(seconds * 1e9);
    int64_t opened = 0, closed = 0;
    double load_cpu_s = 0, cpu_s = 0;
    for (int slot = 0; slot < depth; slot++) make(slot, now_ns());
    flush();
    while (in_flight > 0) {
        ssize_t got = read(fd, in + in_len, IN_CAPACITY - in_len);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) die(4, "stalled after %ld answers", answered);
        if (got <= 0) die(2, "the peer closed the connection after %ld responses", answered);
        int64_t now = now_ns();
        if (!opened && now >= opens) opened = now, load_cpu_s = own_cpu_s(), cpu_s = peers_cpu_s();
        if (!closed && now >= closes) closed = now, load_cpu_s = own_cpu_s() - load_cpu_s, cpu_s = peers_cpu_s() - cpu_s;
        in_len += got;
        size_t done = 0;
        while (in_len - done >= 4) {
            size_t length = get32(in + done);
            if (length < 4 || length > IN_CAPACITY - 4) die(5, "an answer of %zu bytes", length);
            if (in_len - done - 4 < length) break;
            note_answer(in + done + 4, length, now, opened && !closed, !closed);
            done += 4 + length;
        }
        memmove(in, in + done, in_len - done);
        in_len -= done;
        flush();
    }
    if (!opened || !closed) die(4, "no response within the window");
    double window_s = (closed - opened) * 1e-9, appends = measured ? (double)measured : 1;
    long holes = 0;
    int begun = 0;
    for (int64_t place = 0; place <= last_index - first_index; place++) {
        int there = seen[place / 8] >> place % 8 & 1;
        begun |= there;
        holes += begun && !there;
    }
    printf("{\"seconds\":%.3f,\"per_second\":%.1f,\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.3f,", window_s,
           measured / window_s, percentile_ms(.5), percentile_ms(.99), slowest_ns * 1e-6);
    printf("\"cpu_us\":%.2f,\"load_cpu_us\":%.2f,\"load_cpu_share\":%.3f,", cpu_s * 1e6 / appends,
           load_cpu_s * 1e6 / appends, load_cpu_s / window_s);
    printf("\"answered\":%ld,\"refused\":%ld,\"unknown\":%ld,\"duplicates\":%ld,\"holes\":%ld}\n", answered, refused,
           unknown, duplicates, holes);
    if (refused || unknown || duplicates || holes) exit(5);
}

int main(int argc, char **argv) {
    options(argc, argv);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval limit = {.tv_sec = STALL_S};
    int one = 1, buffer = 4 << 20;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die(1, "host must be an IPv4 address");
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    if (connect(fd, (void *)&address, sizeof address)) die(2, "connect %s:%d: %s", host, port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    make_template();
    run();
    return 0;
}
