/*
 * A load of RocketMQ remoting requests: closed loop, one thread, epoll, JSON headers.
 *
 *   load send host=A port=N topic=T queues=Q connections=C depth=D body=BYTES (seconds=S warmup=W | count=N) [pid=P]
 *   load pull host=A port=N topic=T queues=Q connections=C depth=D batch=M (seconds=S warmup=W | once=1) [pid=P] [crc=1]
 *   load pop  host=A port=N topic=T queues=Q connections=C depth=D batch=M seconds=S warmup=W [pid=P]
 *
 * `depth` is the number of requests in flight on each connection. `send` uses SEND_MESSAGE_V2 (310) and takes the queues
 * in turn. `pull` uses PULL_MESSAGE (11); each request slot of each connection reads its own queue from the first message
 * to the last and then from the start again (`once=1`: once; the load ends with the last message). Requests that follow
 * from one read are written together, so that the load needs much less CPU time than the broker; `write=each` writes each
 * of them with its own system call. `pop` uses POP_MESSAGE (200050): each slot is a consumer of one new group. It acknowledges
 * every message of a response by an ACK_MESSAGE (200051) of its own, all at once, and then pops again. A message counts when its
 * acknowledgement is answered; latencies are those from a POP to the last acknowledgement of its messages.
 *
 * More options of `send`: `rate=N` starts N sends per second at fixed times, instead of one for each response; latencies
 * count from these times, also while all slots are in use. `fresh=1` sends to queues without messages and does not query
 * their offsets first. `topics=N` (with `count` and `fresh=1`) sends to the topics T00000, T00001, ... in turn, to queue
 * `queue=Q` of each. `broker=NAME` is the broker name in the requests. SIGUSR1 opens the measured window, SIGTERM ends it.
 * `stall=S`: the load fails after S seconds without a response (default 10). `digit=1` gives every message a property `a` from
 * 0 to 9 in turn. `timer=MS` sends messages that are due MS milliseconds after they are sent, `due=EPOCH_MS` messages that are
 * due in the second from that time on, evenly; their offsets are those of RocketMQ's timer topic. With `spread=S` they are
 * due in the S seconds from that time on.
 *
 * `sql=DIGIT` (with `pull`) pulls the messages with `a` up to this digit, by an SQL92 expression; the topic must have been filled
 * with `digit=1`.
 *
 * Every response is checked. It must match a request in flight on its connection. Queue offsets must be unique and, at the
 * end, dense from the queue's max offset before the load. Pulled records must be whole, of the requested queue, with
 * consecutive offsets and (crc=1) with a valid CRC; with `sql` they must have rising offsets and match the expression. No message
 * may be popped twice, and none be left out. Violations are counted, and the exit status is then 5.
 *
 * Prints one JSON object: the messages whose responses arrived inside the window after the warm-up, their latencies (from
 * the creation of the request to the return of the read with its response), the CPU time of the load itself and, with
 * `pid`, that of the process `pid` (utime + stime of /proc/PID/stat) in the same window.
 *
 * Exit status: 0, 1 usage, 2 connection lost, 3 system call failed, 4 stalled, 5 wrong responses.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS_MAX = 4096, QUEUES_MAX = 65536, DIGITS_MAX = 5, CONNECTIONS_MAX = 1024, CODES = 64, IN_CAPACITY = 4 << 20 };
enum { SUCCESS = 0, PULL_NOT_FOUND = 19, PULL_RETRY_IMMEDIATELY = 20, POLLING_FULL = 209, POLLING_TIMEOUT = 210 };
enum { POPPED_MAX = 32, POLL_MS = 1000, INVISIBLE_MS = 3600000 };
enum { SEND, PULL, POP };
static const char *TIMER_TOPIC = "rmq_sys_wheel_timer";
static int stall_ms = 10000, mode = SEND;

/* ---- options ---- */
static const char *host = "127.0.0.1", *topic = "BenchmarkTest", *broker = "load";
static int port = 10911, queues = 8, connections = 1, depth = 1, body_bytes = 1024, batch = 32, pid = 0, crc = 0, each = 0;
static int once = 0, fresh = 0, topics = 0, queue_id = 0, digit = 0, sql = -1;
static double seconds = 0, warmup = 0, rate = 0;
static long count = 0, timer_ms = 0, due_ms = 0, spread_ms = 1000;

static void die(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(status);
}

static void options(int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) die(1, "expected key=value, got %s", argv[i]);
        *value++ = 0;
        const char *key = argv[i];
        if (!strcmp(key, "host")) host = value;
        else if (!strcmp(key, "topic")) topic = value;
        else if (!strcmp(key, "broker")) broker = value;
        else if (!strcmp(key, "port")) port = atoi(value);
        else if (!strcmp(key, "queues")) queues = atoi(value);
        else if (!strcmp(key, "connections")) connections = atoi(value);
        else if (!strcmp(key, "depth")) depth = atoi(value);
        else if (!strcmp(key, "body")) body_bytes = atoi(value);
        else if (!strcmp(key, "batch")) batch = atoi(value);
        else if (!strcmp(key, "pid")) pid = atoi(value);
        else if (!strcmp(key, "crc")) crc = atoi(value);
        else if (!strcmp(key, "seconds")) seconds = atof(value);
        else if (!strcmp(key, "warmup")) warmup = atof(value);
        else if (!strcmp(key, "count")) count = atol(value);
        else if (!strcmp(key, "once")) once = atoi(value);
        else if (!strcmp(key, "fresh")) fresh = atoi(value);
        else if (!strcmp(key, "topics")) topics = atoi(value);
        else if (!strcmp(key, "queue")) queue_id = atoi(value);
        else if (!strcmp(key, "digit")) digit = atoi(value);
        else if (!strcmp(key, "sql")) sql = atoi(value);
        else if (!strcmp(key, "timer")) timer_ms = atol(value);
        else if (!strcmp(key, "due")) due_ms = atol(value);
        else if (!strcmp(key, "spread")) spread_ms = atol(value) * 1000;
        else if (!strcmp(key, "rate")) rate = atof(value);
        else if (!strcmp(key, "stall")) stall_ms = atoi(value) * 1000;
        else if (!strcmp(key, "write")) each = !strcmp(value, "each");
        else die(1, "unknown option %s", key);
    }
    if (connections < 1 || connections > CONNECTIONS_MAX || depth < 1 || (long)connections * depth > SLOTS_MAX)
        die(1, "connections must be 1..%d and connections x depth 1..%d", CONNECTIONS_MAX, SLOTS_MAX);
    if (queues < 1 || queues > QUEUES_MAX) die(1, "queues must be 1..%d", QUEUES_MAX);
    if (topics < 0 || topics > QUEUES_MAX || queue_id < 0 || queue_id > 9)
        die(1, "topics must be 0..%d and queue 0..9", QUEUES_MAX);
    if (topics && (!fresh || !count)) die(1, "topics needs fresh=1 and count");
    if (batch < 1 || (mode == POP && batch > POPPED_MAX)) die(1, "batch must be 1..%d", POPPED_MAX);
    if (sql > 9 || (sql >= 0 && mode != PULL)) die(1, "sql must be 0..9, with pull");
    if (mode == POP && !seconds) die(1, "pop needs seconds");
    if (topics) queues = topics; /* then each entry of the table is a topic */
    if (body_bytes < 1 || body_bytes > 4 << 20) die(1, "body must be 1..4194304 bytes");
    if ((seconds > 0) + (count > 0) + once != 1) die(1, "give exactly one of seconds, count and once");
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

static double peer_cpu_s(void) {
    char path[64], line[1024];
    if (!pid) return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) die(3, "cannot read %s: the broker has ended", path);
    size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = 0;
    unsigned long utime = 0, stime = 0;
    char *after_name = strrchr(line, ')'); /* the name may contain spaces and parentheses */
    if (after_name) sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &utime, &stime);
    return (double)(utime + stime) / sysconf(_SC_CLK_TCK);
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

static double bucket_ms(int bucket) {
    int shift = (bucket >> STEP_BITS) - 1;
    if (shift < 0) return bucket * 1e-6;
    uint64_t low = ((uint64_t)(1 << STEP_BITS) | (bucket & ((1 << STEP_BITS) - 1))) << shift;
    return (low + (1ull << shift) / 2) * 1e-6;
}

static double percentile_ms(double share) {
    uint64_t wanted = (uint64_t)(measured * share), seen = 0;
    for (int i = 0; i < BUCKETS; i++)
        if ((seen += histogram[i]) > wanted) return bucket_ms(i);
    return slowest_ns * 1e-6;
}

/* ---- state ---- */
typedef struct {
    int fd, wants_write, dirty;
    char *in, *out;
    size_t in_len, out_len, out_done, out_capacity;
} Connection;

typedef struct {
    uint32_t opaque; /* of the request in flight in this slot; 0 = none */
    int connection, queue, ended, unacknowledged;
    int64_t sent_ns, offset; /* offset: the next one to pull */
    uint32_t acks[POPPED_MAX]; /* opaques of the acknowledgements in flight; 0 = none */
} Slot;

typedef struct {
    int64_t first, last; /* lowest offset expected; highest offset received */
    long answered;
    uint8_t *seen;
    size_t seen_bytes;
} Queue;

static Connection peers[CONNECTIONS_MAX];
static Slot slots[SLOTS_MAX];
static Queue table[QUEUES_MAX];
static uint32_t generation;
static int next_queue, epoll_fd, over, free_slots[SLOTS_MAX], free_count;
static int64_t due_ns; /* the time of the next send, with `rate` */
static volatile sig_atomic_t told_to_open, told_to_end;
static long made, answered, in_flight, window_messages, window_bytes, codes[CODES], other_codes;
static long unknown, duplicates, below, broken, rewinds, empty;

/* ---- requests ---- */
typedef struct { /* length, header length, header, body: only the digits at these positions change */
    char *frame, *at_opaque, *at_place, *at_key, *at_born, *at_due, *at_digit;
    size_t bytes;
} Template;

static Template templates[DIGITS_MAX + 1]; /* by the number of digits of the queue id; a single one for topics */

/* Opaques are in 2^30 .. 2^31-1, so that they always have ten digits: 18 bits of generation, 12 of slot. */
static uint32_t take_opaque(int slot) {
    return slots[slot].opaque = 0x40000000u | (generation++ & 0x3ffff) << 12 | (uint32_t)slot;
}

static void digits(char *at, uint64_t value, int n) {
    while (n--) at[n] = (char)('0' + value % 10), value /= 10;
}

static void put32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static uint32_t get32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static uint64_t get64(const char *at) { return (uint64_t)get32(at) << 32 | get32(at + 4); }

static void make_send_template(int n_digits) {
    Template *t = &templates[n_digits];
    char header[2048], place[DIGITS_MAX + 1], fixed_queue[2] = {(char)('0' + queue_id), 0};
    const char *with_due = timer_ms || due_ms ? "\\u0002TIMER_DELIVER_MS\\u0001DDDDDDDDDDDDD" : "";
    const char *with_digit = digit ? "\\u0002a\\u00010" : "";
    memset(place, 'Q', n_digits);
    place[n_digits] = 0;
    int n = snprintf(header, sizeof header,
        "{\"code\":310,\"extFields\":{\"a\":\"load\",\"b\":\"%s%s\",\"c\":\"TBW102\",\"d\":\"8\",\"e\":\"%s\",\"f\":\"0\","
        "\"g\":\"BBBBBBBBBBBBB\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001%08X%04XKKKKKKKKKKKKKKKKKKKK\\u0002WAIT\\u0001true"
        "\\u0002TAGS\\u0001TagA%s%s\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\",\"n\":\"%s\"},\"flag\":0,"
        "\"language\":\"JAVA\",\"opaque\":OOOOOOOOOO,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        topic, topics ? place : "", topics ? fixed_queue : place, 0x7F000001, getpid() & 0xFFFF,
        with_due, with_digit, broker);
    if (n >= (int)sizeof header) die(1, "topic too long");
    t->bytes = 8 + n + body_bytes;
    char *frame = t->frame = malloc(t->bytes);
    if (!frame) die(3, "out of memory");
    put32(frame, (uint32_t)(4 + n + body_bytes));
    put32(frame + 4, (uint32_t)n);
    memcpy(frame + 8, header, n);
    for (int i = 0; i < body_bytes; i++) frame[8 + n + i] = (char)('a' + i % 26);
    char *field = memmem(frame, t->bytes, topics ? "\"b\":\"" : "\"e\":\"", 5);
    t->at_place = field + 5 + (topics ? strlen(topic) : 0);
    t->at_born = memmem(frame, t->bytes, "BBBBBBBBBBBBB", 13);
    t->at_key = memmem(frame, t->bytes, "KKKKKKKKKKKKKKKKKKKK", 20);
    t->at_opaque = memmem(frame, t->bytes, "OOOOOOOOOO", 10);
    t->at_due = memmem(frame, t->bytes, "DDDDDDDDDDDDD", 13);
    t->at_digit = digit ? (char *)memmem(frame, t->bytes, "u0002a", 6) + 12 : NULL;
}

static Template *template_of(int place) {
    int n = topics ? DIGITS_MAX : 1;
    for (int rest = place; !topics && rest >= 10; rest /= 10) n++;
    if (!templates[n].frame) make_send_template(n);
    digits(templates[n].at_place, (uint64_t)place, n);
    return &templates[n];
}

static char *reserve(Connection *peer, size_t bytes) {
    if (peer->out_len + bytes > peer->out_capacity) {
        peer->out_capacity = (peer->out_len + bytes) * 2;
        peer->out = realloc(peer->out, peer->out_capacity);
        if (!peer->out) die(3, "out of memory");
    }
    return peer->out + peer->out_len;
}

static void flush(Connection *peer) {
    while (peer->out_done < peer->out_len) {
        ssize_t n = write(peer->fd, peer->out + peer->out_done, peer->out_len - peer->out_done);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) die(2, "write: %s after %ld responses", strerror(errno), answered);
        peer->out_done += n;
    }
    int left = peer->out_done < peer->out_len;
    if (!left) peer->out_len = peer->out_done = 0;
    if (left != peer->wants_write) {
        struct epoll_event event = {.events = EPOLLIN | (left ? EPOLLOUT : 0), .data.u32 = (uint32_t)(peer - peers)};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, peer->fd, &event)) die(3, "epoll_ctl: %s", strerror(errno));
        peer->wants_write = left;
    }
    peer->dirty = 0;
}

static int64_t wall_ms(int64_t now) {
    static int64_t found_ms, found_at;
    if (now - found_at > 1000000 || !found_ms) {
        struct timespec wall;
        clock_gettime(CLOCK_REALTIME, &wall);
        found_ms = (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000;
        found_at = now;
    }
    return found_ms;
}

static void make_send(int slot, int64_t now) {
    slots[slot].queue = next_queue;
    next_queue = (next_queue + 1) % queues;
    Template *t = template_of(slots[slot].queue);
    int64_t born_ms = wall_ms(now);
    digits(t->at_born, (uint64_t)born_ms, 13);
    if (t->at_due) digits(t->at_due, (uint64_t)(due_ms ? due_ms + made * (count && spread_ms > count ? spread_ms / count : 1) % spread_ms : born_ms + timer_ms), 13);
    if (digit) *t->at_digit = (char)('0' + made / queues % 10);
    digits(t->at_opaque, take_opaque(slot), 10);
    digits(t->at_key, (uint64_t)made, 20);
    Connection *peer = &peers[slots[slot].connection];
    memcpy(reserve(peer, t->bytes), t->frame, t->bytes);
    peer->out_len += t->bytes;
}

static void make_pull(int slot) {
    Slot *s = &slots[slot];
    Connection *peer = &peers[s->connection];
    char *at = reserve(peer, 2048);
    char subscription[64] = "*";
    if (sql >= 0) snprintf(subscription, sizeof subscription, "a BETWEEN 0 AND %d", sql);
    int n = snprintf(at + 8, 2040,
        "{\"code\":11,\"extFields\":{\"commitOffset\":\"0\",\"consumerGroup\":\"load\",\"expressionType\":\"%s\","
        "\"maxMsgBytes\":\"%d\",\"maxMsgNums\":\"%d\",\"queueId\":\"%d\",\"queueOffset\":\"%lld\",\"subVersion\":\"0\","
        "\"subscription\":\"%s\",\"suspendTimeoutMillis\":\"0\",\"sysFlag\":\"4\",\"topic\":\"%s\"},\"flag\":0,"
        "\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        sql >= 0 ? "SQL92" : "TAG", 0x7fffffff, batch, s->queue, (long long)s->offset, subscription, topic, take_opaque(slot));
    put32(at, (uint32_t)(4 + n));
    put32(at + 4, (uint32_t)n);
    peer->out_len += 8 + n;
}

static void make_pop(int slot, int64_t now) {
    Connection *peer = &peers[slots[slot].connection];
    char *at = reserve(peer, 2048);
    int n = snprintf(at + 8, 2040,
        "{\"code\":200050,\"extFields\":{\"bname\":\"%s\",\"bornTime\":\"%lld\",\"consumerGroup\":\"pop-%d\",\"exp\":\"*\","
        "\"expType\":\"TAG\",\"initMode\":\"0\",\"invisibleTime\":\"%d\",\"maxMsgNums\":\"%d\",\"order\":\"false\","
        "\"pollTime\":\"%d\",\"queueId\":\"-1\",\"topic\":\"%s\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        broker, (long long)wall_ms(now), getpid(), INVISIBLE_MS, batch, POLL_MS, topic, take_opaque(slot));
    put32(at, (uint32_t)(4 + n));
    put32(at + 4, (uint32_t)n);
    peer->out_len += 8 + n;
}

/* Acknowledges the message at this offset. `info`: the start offset of its queue in the POP's response, the time of the POP,
 * the invisible time and the revive queue. */
static void make_ack(int slot, const long long info[4], int queue, long long offset) {
    Slot *s = &slots[slot];
    Connection *peer = &peers[s->connection];
    char *at = reserve(peer, 2048);
    uint32_t opaque = 0x40000000u | (generation++ & 0x3ffff) << 12 | (uint32_t)slot;
    int n = snprintf(at + 8, 2040,
        "{\"code\":200051,\"extFields\":{\"bname\":\"%s\",\"consumerGroup\":\"pop-%d\",\"extraInfo\":\"%lld %lld %lld %lld 0 %s "
        "%d %lld\",\"offset\":\"%lld\",\"queueId\":\"%d\",\"topic\":\"%s\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        broker, getpid(), info[0], info[1], info[2], info[3], broker, queue, offset, offset, queue, topic, opaque);
    put32(at, (uint32_t)(4 + n));
    put32(at + 4, (uint32_t)n);
    peer->out_len += 8 + n;
    s->acks[s->unacknowledged++] = opaque;
    made++;
    in_flight++;
    peer->dirty = 1;
    if (each) flush(peer);
}

static void make(int slot, int64_t now) {
    if (mode == PULL) make_pull(slot);
    else if (mode == POP) make_pop(slot, now);
    else make_send(slot, now);
    slots[slot].sent_ns = now;
    made++;
    in_flight++;
    Connection *peer = &peers[slots[slot].connection];
    peer->dirty = 1;
    if (each) flush(peer);
}

/* ---- responses ---- */
static long long number_after(const char *header, size_t n, const char *key, long long missing) {
    const char *at = memmem(header, n, key, strlen(key));
    return at ? strtoll(at + strlen(key), NULL, 10) : missing;
}

static void note_offset(int queue, int64_t offset) {
    Queue *q = &table[queue];
    int64_t place = offset - q->first;
    if (place < 0) { below++; return; }
    if ((size_t)place / 8 >= q->seen_bytes) {
        size_t wanted = ((size_t)place / 8 + 1) * 2;
        q->seen = realloc(q->seen, wanted);
        if (!q->seen) die(3, "out of memory");
        memset(q->seen + q->seen_bytes, 0, wanted - q->seen_bytes);
        q->seen_bytes = wanted;
    }
    uint8_t bit = (uint8_t)(1 << place % 8);
    if (q->seen[place / 8] & bit) duplicates++;
    q->seen[place / 8] |= bit;
    if (offset > q->last) q->last = offset;
    q->answered++;
}

static uint32_t crc_of(const char *data, size_t n) {
    static uint32_t steps[256];
    if (!steps[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int k = 0; k < 8; k++) value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
            steps[i] = value;
        }
    uint32_t value = ~0u;
    for (size_t i = 0; i < n; i++) value = steps[(value ^ (uint8_t)data[i]) & 255] ^ value >> 8;
    return ~value;
}

/* Walks over the records of a pull response; returns their number. */
static long note_records(Slot *slot, const char *body, size_t n) {
    long records = 0;
    while (n >= 88) {
        uint32_t size = get32(body), magic = get32(body + 4), body_len = get32(body + 84);
        int v2 = magic == 0xDAA320ABu;
        if (size > n || size < 91 || (magic != 0xDAA320A7u && !v2) || body_len > size - 91) break;
        int64_t offset = (int64_t)get64(body + 20);
        if ((int)get32(body + 12) != slot->queue || (sql < 0 ? offset != slot->offset : offset < slot->offset)) broken++;
        if (sql >= 0) {
            const char *found = memmem(body + 88 + body_len, size - 88 - body_len, "\2a\1", 3);
            if (!found || found[3] > '0' + sql) broken++;
            slot->offset = offset;
        }
        if (crc && (crc_of(body + 88, body_len) & 0x7fffffff) != get32(body + 8)) broken++;
        slot->offset++;
        records++;
        body += size;
        n -= size;
    }
    if (n) broken++;
    return records;
}

static void note_pull(Slot *slot, const char *header, size_t header_len, int code, const char *body, size_t body_len,
                      int in_window) {
    if (code == 0) {
        long records = note_records(slot, body, body_len);
        int64_t next = number_after(header, header_len, "\"nextBeginOffset\":\"", -1);
        if (!records || (sql < 0 ? next != slot->offset : next < slot->offset)) broken++;
        slot->offset = next;
        if (in_window) window_messages += records;
    } else if (code == PULL_RETRY_IMMEDIATELY && sql >= 0) { /* no message of this step matched */
        slot->offset = number_after(header, header_len, "\"nextBeginOffset\":\"", -1);
    } else if (code == PULL_NOT_FOUND && once) {
        slot->ended = 1;
    } else if (code == PULL_NOT_FOUND && slot->offset > 0) { /* the end of the queue: continue at its start */
        slot->offset = number_after(header, header_len, "\"minOffset\":\"", 0);
        rewinds++;
    }
}

/* The start offset of a queue in the `startOffsetInfo` of a POP's response: entries `flag queue offset`, separated by `;`. */
static long long start_of(const char *info, int queue) {
    while (info && *info != '"') {
        char *end;
        strtol(info, &end, 10);
        long found = strtol(end, &end, 10);
        long long start = strtoll(end, &end, 10);
        if (found == queue) return start;
        if (*end != ';' || end == info) break;
        info = end + 1;
    }
    broken++;
    return -1;
}

/* The response to a POP: acknowledges its messages. Returns their number. */
static long note_popped(int slot, const char *header, size_t header_len, const char *body, size_t n) {
    const char *starts = memmem(header, header_len, "\"startOffsetInfo\":\"", 19);
    long long info[4] = {0, number_after(header, header_len, "\"popTime\":\"", -1),
                         number_after(header, header_len, "\"invisibleTime\":\"", -1),
                         number_after(header, header_len, "\"reviveQid\":\"", -1)};
    long found = 0;
    for (; n >= 91 && found < POPPED_MAX; found++) {
        uint32_t size = get32(body);
        int queue = (int)get32(body + 12);
        if (size > n || size < 91 || get32(body + 4) != 0xDAA320A7u || queue < 0 || queue >= queues) break;
        long long offset = (long long)get64(body + 20);
        info[0] = start_of(starts ? starts + 19 : NULL, queue);
        note_offset(queue, offset);
        make_ack(slot, info, queue, offset);
        body += size;
        n -= size;
    }
    if (n) broken++;
    return found;
}

/* The response to an acknowledgement. Returns whether it is one. */
static int note_acked(Slot *slot, uint32_t opaque) {
    for (int i = 0; i < slot->unacknowledged; i++)
        if (slot->acks[i] == opaque) {
            slot->acks[i] = slot->acks[--slot->unacknowledged];
            return 1;
        }
    return 0;
}

static void note_latency(Slot *slot, int64_t now) {
    int64_t took = now - slot->sent_ns;
    histogram[bucket_of((uint64_t)took)]++;
    measured++;
    if (took > slowest_ns) slowest_ns = took;
}

/* A response to a POP or an acknowledgement. */
static void note_consumer(int slot, uint32_t opaque, long long code, const char *header, size_t header_len, const char *body,
                          size_t body_len, int64_t now, int in_window, int going_on) {
    Slot *s = &slots[slot];
    answered++;
    in_flight--;
    if (s->opaque == opaque) {
        s->opaque = 0;
        if (code == SUCCESS && !note_popped(slot, header, header_len, body, body_len)) broken++;
        if (code == POLLING_TIMEOUT || code == POLLING_FULL) empty++;
    } else {
        if (code == SUCCESS && in_window) window_messages++;
        if (!s->unacknowledged && in_window) note_latency(s, now);
    }
    if (!s->unacknowledged && going_on) make(slot, now);
}

/* One whole frame without its length prefix. */
static void note_answer(Connection *peer, const char *data, size_t n, int64_t now, int in_window, int going_on) {
    size_t header_len = get32(data) & 0xffffff;
    if (n < 4 || data[0] != 0 || header_len > n - 4) die(5, "a response is not a JSON frame");
    const char *header = data + 4, *body = header + header_len;
    uint32_t opaque = (uint32_t)number_after(header, header_len, "\"opaque\":", 0);
    long long code = number_after(header, header_len, "\"code\":", -1);
    int slot = opaque & (SLOTS_MAX - 1);
    int expected = opaque && &peers[slots[slot].connection] == peer;
    if (!expected || (slots[slot].opaque != opaque && !note_acked(&slots[slot], opaque))) { unknown++; return; }
    if (code >= 0 && code < CODES) codes[code]++;
    else if (mode != POP || (code != POLLING_TIMEOUT && code != POLLING_FULL)) other_codes++;
    if (in_window) window_bytes += (long)n + 4;
    if (mode == POP) {
        note_consumer(slot, opaque, code, header, header_len, body, n - 4 - header_len, now, in_window, going_on);
        return;
    }
    if (mode == PULL)
        note_pull(&slots[slot], header, header_len, (int)code, body, n - 4 - header_len, in_window);
    else if (code == 0) {
        int queue = topics ? queue_id : slots[slot].queue;
        if (number_after(header, header_len, "\"queueId\":\"", -1) != queue) broken++;
        note_offset(timer_ms || due_ms ? 0 : slots[slot].queue, number_after(header, header_len, "\"queueOffset\":\"", -1));
        if (in_window) window_messages++;
    }
    if (in_window) note_latency(&slots[slot], now);
    slots[slot].opaque = 0;
    answered++;
    in_flight--;
    if (rate > 0) free_slots[free_count++] = slot;
    else if (going_on && !slots[slot].ended && (!count || made < count)) make(slot, now);
}

/* Starts due requests. A send that is due while no slot is free keeps its time, from which its latency counts. */
static void make_due(int64_t now) {
    while (free_count > 0 && due_ns <= now && (!count || made < count)) {
        int slot = free_slots[--free_count];
        make(slot, due_ns);
        flush(&peers[slots[slot].connection]);
        due_ns += (int64_t)(1e9 / rate);
    }
}

/* The time for which the loop may wait for responses: until the next send is due, if a slot is free. */
static int timeout_ms(void) {
    if (rate <= 0 || !free_count || over) return stall_ms;
    int64_t left_ns = due_ns - now_ns();
    return left_ns <= 0 ? 0 : (int)(left_ns / 1000000) + 1;
}

static void receive(Connection *peer, int in_window, int going_on) {
    ssize_t got = read(peer->fd, peer->in + peer->in_len, IN_CAPACITY - peer->in_len);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die(2, "the broker closed a connection after %ld responses", answered);
    int64_t now = now_ns();
    peer->in_len += got;
    size_t done = 0;
    while (peer->in_len - done >= 4) {
        size_t length = get32(peer->in + done);
        if (length < 4 || length > IN_CAPACITY - 4) die(5, "an answer of %zu bytes", length);
        if (peer->in_len - done - 4 < length) break;
        note_answer(peer, peer->in + done + 4, length, now, in_window, going_on);
        done += 4 + length;
    }
    memmove(peer->in, peer->in + done, peer->in_len - done);
    peer->in_len -= done;
}

/* ---- set-up ---- */
static void connect_all(void) {
    epoll_fd = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
        if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die(1, "host must be an IPv4 address");
        if (connect(fd, (void *)&address, sizeof address)) die(2, "connect %s:%d: %s", host, port, strerror(errno));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event)) die(3, "epoll_ctl: %s", strerror(errno));
        peers[i] = (Connection){.fd = fd, .in = malloc(IN_CAPACITY)};
    }
}

/* Calls GET_MAX_OFFSET (30) or GET_MIN_OFFSET (31) for one queue, blocking. */
static int64_t ask_offset(int code, const char *name, int queue) {
    char buffer[4096];
    int n = snprintf(buffer + 8, sizeof buffer - 8,
        "{\"code\":%d,\"extFields\":{\"queueId\":\"%d\",\"topic\":\"%s\"},\"flag\":0,\"language\":\"JAVA\","
        "\"opaque\":7,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}", code, queue, name);
    put32(buffer, (uint32_t)(4 + n));
    put32(buffer + 4, (uint32_t)n);
    if (write(peers[0].fd, buffer, 8 + n) != 8 + n) die(2, "write: %s", strerror(errno));
    size_t have = 0;
    while (have < 4 || have < 4 + get32(buffer)) {
        ssize_t got = read(peers[0].fd, buffer + have, sizeof buffer - 1 - have);
        if (got <= 0) die(2, "the broker closed the connection at request %d", code);
        have += got;
    }
    if (number_after(buffer, have, "\"code\":", -1) != 0) die(5, "request %d for %s/%d rejected", code, name, queue);
    return number_after(buffer, have, "\"offset\":\"", 0);
}

static void note_signal(int number) {
    if (number == SIGUSR1) told_to_open = 1;
    else told_to_end = 1;
}

static void prepare(void) {
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART}; /* epoll_wait returns nevertheless */
    if (sigaction(SIGTERM, &action, NULL) || sigaction(SIGUSR1, &action, NULL)) die(3, "sigaction: %s", strerror(errno));
    for (int i = 0; i < queues; i++) {
        if (timer_ms || due_ms) table[i].first = i ? 0 : ask_offset(30, TIMER_TOPIC, 0);
        else table[i].first = fresh ? 0 : ask_offset(mode == SEND ? 30 : 31, topic, i);
        table[i].last = table[i].first - 1;
    }
    for (int i = 0; i < connections; i++)
        if (fcntl(peers[i].fd, F_SETFL, O_NONBLOCK)) die(3, "fcntl: %s", strerror(errno));
    for (int slot = 0; slot < connections * depth; slot++) {
        slots[slot].connection = slot % connections;
        slots[slot].queue = slot % queues;
        slots[slot].offset = table[slot % queues].first;
    }
}

/* ---- the loop ---- */
static double window_s, load_cpu_s, broker_cpu_s;

static void run(void) {
    int64_t start = now_ns(), opens = start + (int64_t)(warmup * 1e9);
    int64_t closes = count || once ? INT64_MAX : opens + (int64_t)(seconds * 1e9), opened = 0, closed = 0;
    struct epoll_event events[CONNECTIONS_MAX];
    int places = connections * depth;
    due_ns = start;
    for (int slot = places; rate > 0 && slot-- > 0;) free_slots[free_count++] = slot;
    for (int slot = 0; rate <= 0 && slot < places && (!count || made < count); slot++) make(slot, now_ns());
    for (int i = 0; i < connections; i++) flush(&peers[i]);
    while (in_flight > 0 || (rate > 0 && !over && (!count || made < count))) {
        int n = epoll_wait(epoll_fd, events, CONNECTIONS_MAX, timeout_ms());
        if (n == 0 && (rate <= 0 || !free_count || over)) die(4, "stalled: %ld responses to %ld requests", answered, made);
        if (n < 0 && errno != EINTR) die(3, "epoll_wait: %s", strerror(errno));
        int64_t now = now_ns();
        if (told_to_open && now < opens) opens = now;
        if (told_to_end && now < closes) closes = now;
        if (!opened && now >= opens) {
            opened = now;
            load_cpu_s = own_cpu_s();
            broker_cpu_s = peer_cpu_s();
        }
        if (!closed && now >= closes) {
            closed = now;
            load_cpu_s = own_cpu_s() - load_cpu_s;
            broker_cpu_s = peer_cpu_s() - broker_cpu_s;
            over = 1;
        }
        for (int i = 0; i < n; i++) {
            Connection *peer = &peers[events[i].data.u32];
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(peer, opened && !closed, !closed);
            if (peer->dirty || events[i].events & EPOLLOUT) flush(peer);
        }
        if (rate > 0 && !over) make_due(now);
    }
    if (!closed) {
        closed = now_ns();
        load_cpu_s = own_cpu_s() - load_cpu_s;
        broker_cpu_s = peer_cpu_s() - broker_cpu_s;
    }
    window_s = opened && closed > opened ? (closed - opened) * 1e-9 : 1e-9; /* stopped before the window opened */
}

static int report(void) {
    long holes = 0, messages = window_messages ? window_messages : 1;
    for (int i = 0; i < queues && mode != PULL; i++) holes += table[i].last - table[i].first + 1 - table[i].answered;
    printf("{\"seconds\":%.3f,\"messages\":%ld,\"per_second\":%.1f,\"bytes_per_second\":%.0f,", window_s, window_messages,
           window_messages / window_s, window_bytes / window_s);
    printf("\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"p999_ms\":%.4f,\"max_ms\":%.3f,", percentile_ms(.5), percentile_ms(.99),
           percentile_ms(.999), slowest_ns * 1e-6);
    printf("\"load_cpu_us\":%.3f,\"load_cpu_share\":%.3f,\"broker_cpu_us\":%.3f,\"broker_cpu_share\":%.3f,",
           load_cpu_s * 1e6 / messages, load_cpu_s / window_s, broker_cpu_s * 1e6 / messages, broker_cpu_s / window_s);
    printf("\"requests\":%ld,\"codes\":{", made);
    const char *comma = "";
    long refused = other_codes;
    for (int i = 0; i < CODES; i++)
        if (codes[i]) {
            printf("%s\"%d\":%ld", comma, i, codes[i]);
            comma = ",";
            int expected = mode == PULL && (i == PULL_NOT_FOUND || (i == PULL_RETRY_IMMEDIATELY && sql >= 0));
            if (i && !expected) refused += codes[i];
        }
    if (other_codes) printf("%s\"other\":%ld", comma, other_codes);
    printf("},\"unknown\":%ld,\"duplicates\":%ld,\"below\":%ld,\"holes\":%ld,\"broken\":%ld,\"rewinds\":%ld,\"empty\":%ld}\n",
           unknown, duplicates, below, holes, broken, rewinds, empty);
    return refused || unknown || duplicates || below || holes || broken ? 5 : 0;
}

int main(int argc, char **argv) {
    if (argc >= 2 && !strcmp(argv[1], "pull")) mode = PULL;
    else if (argc >= 2 && !strcmp(argv[1], "pop")) mode = POP;
    else if (argc < 2 || strcmp(argv[1], "send")) die(1, "load send|pull|pop key=value ...");
    options(argc, argv);
    connect_all();
    prepare();
    run();
    return report();
}
