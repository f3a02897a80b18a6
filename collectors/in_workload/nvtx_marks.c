/* Notes when NVTX ranges of a program begin and end: a library that NVTX loads by NVTX_INJECTION64_PATH.
 *
 * At the end of the process it writes the file that KANALYZE_MARKS names, as bare_run.py does, unless there is one: the
 * first process with ranges that ends has it. Nothing is synchronized. The layout of NVTX's tables is that of nvtx3,
 * nvtxDetail/nvtxTypes.h; texts in wide characters and resources have no name here.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAMES = 1000, EACH = 20000, DEPTH = 64, SLOTS = 4096, LONGEST = 1024 };
enum { CALLBACKS = 1, CORE = 1, CORE2 = 5, ASCII = 1, REGISTERED = 3 };

typedef void (*Function)(void);
typedef struct {
    size_t size;
    int (*table)(int module, Function ***functions, unsigned *count);
} Callbacks;
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} Attributes;
typedef struct {
    char *name;
    int64_t *spans;
    size_t count, room;
} Ranges;
typedef struct {
    const void *domain;
    int slot;
    int64_t start_ns;
} Open;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Ranges ranges[SLOTS];
static size_t names, left_out;
static Open started[SLOTS];
static uint64_t last_id;
static int64_t began_ns;
static pid_t process;
static __thread Open opened[DEPTH];
static __thread int depth;

static int64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

/* The slot of a name; -1 where there are too many. */
static int slot_of(const char *name) {
    char text[LONGEST];
    uint32_t hash = 2166136261u;
    snprintf(text, sizeof text, "%s", name ? name : "");
    for (const char *at = text; *at; at++) hash = (hash ^ (unsigned char)*at) * 16777619u;
    pthread_mutex_lock(&lock);
    int slot = (int)(hash % SLOTS);
    while (ranges[slot].name && strcmp(ranges[slot].name, text)) slot = (slot + 1) % SLOTS;
    if (!ranges[slot].name) {
        if (names < NAMES && (ranges[slot].name = strdup(text))) names++;
        else slot = -1;
    }
    pthread_mutex_unlock(&lock);
    return slot;
}

static void keep(Open one, int64_t end_ns) {
    pthread_mutex_lock(&lock);
    Ranges *of = one.slot < 0 ? NULL : &ranges[one.slot];
    if (of && of->count == of->room && of->room < EACH) {
        size_t room = of->room ? 2 * of->room : 64;
        room = room > EACH ? EACH : room;
        int64_t *more = realloc(of->spans, room * 2 * sizeof *more);
        if (more) of->spans = more, of->room = room;
    }
    if (of && of->count < of->room) {
        of->spans[2 * of->count] = one.start_ns;
        of->spans[2 * of->count++ + 1] = end_ns;
    } else left_out++;
    pthread_mutex_unlock(&lock);
}

static const char *text_of(const Attributes *of) {
    return of && (of->message_type == ASCII || of->message_type == REGISTERED) ? of->message : NULL;
}

static int push(const void *domain, const char *name) {
    if (depth < DEPTH) opened[depth] = (Open){domain, slot_of(name), now_ns()};
    return depth++;
}

static int pop(const void *domain) {
    int64_t end_ns = now_ns();
    int at = (depth > DEPTH ? DEPTH : depth) - 1;
    while (at >= 0 && opened[at].domain != domain) at--;
    if (depth > DEPTH) at = -1;
    if (at >= 0) {
        keep(opened[at], end_ns);
        memmove(&opened[at], &opened[at + 1], (size_t)(depth - at - 1) * sizeof *opened);
    }
    if (at >= 0 || depth > DEPTH) depth--;
    return depth;
}

static uint64_t start(const char *name) {
    Open one = {NULL, slot_of(name), now_ns()};
    uint64_t id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    started[id % SLOTS] = one; /* of ranges that overlap, the last so many */
    return id;
}

static void end(uint64_t id) {
    if (id) keep(started[id % SLOTS], now_ns());
}

static int push_ex(const Attributes *of) { return push(NULL, text_of(of)); }
static int push_text(const char *name) { return push(NULL, name); }
static int push_wide(const void *name) { (void)name; return push(NULL, NULL); }
static int pop_any(void) { return pop(NULL); }
static uint64_t start_ex(const Attributes *of) { return start(text_of(of)); }
static uint64_t start_wide(const void *name) { (void)name; return start(NULL); }
static int domain_push(const void *domain, const Attributes *of) { return push(domain, text_of(of)); }
static uint64_t domain_start(const void *domain, const Attributes *of) { (void)domain; return start(text_of(of)); }
static void domain_end(const void *domain, uint64_t id) { (void)domain; end(id); }
static const void *register_text(const void *domain, const char *text) { (void)domain; return strdup(text ? text : ""); }
static const void *make_domain(const char *name) { return strdup(name ? name : ""); }

static void write_name(FILE *file, const char *name) {
    fputc('"', file);
    for (; *name; name++) {
        unsigned char letter = (unsigned char)*name;
        if (letter == '"' || letter == '\\' || letter < 32) fprintf(file, "\\u%04x", letter);
        else fputc(letter, file);
    }
    fputc('"', file);
}

__attribute__((destructor)) static void write_marks(void) {
    const char *target = getenv("KANALYZE_MARKS");
    char part[4096];
    if (!target || !names || getpid() != process) return;
    if (snprintf(part, sizeof part, "%s.%d.part", target, (int)process) >= (int)sizeof part) return;
    FILE *file = fopen(part, "w");
    if (!file) return;
    fprintf(file, "{\"schema\": 1, \"duration_ns\": %lld, \"left_out\": %zu, \"marks\": {", (long long)(now_ns() - began_ns), left_out);
    const char *between = "";
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!ranges[slot].name) continue;
        fputs(between, file);
        write_name(file, ranges[slot].name);
        fputs(": [", file);
        for (size_t at = 0; at < 2 * ranges[slot].count; at++) fprintf(file, "%s%lld", at ? ", " : "", (long long)ranges[slot].spans[at]);
        fputs("]", file);
        between = ", ";
    }
    fputs("}}\n", file);
    if (fclose(file) == 0) (void)!link(part, target); /* not over that of a process before */
    unlink(part);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void *(*exports)(uint32_t)) {
    const Callbacks *callbacks = exports(CALLBACKS);
    Function **core, **core2;
    unsigned count, count2;
    if (!callbacks || !callbacks->table(CORE, &core, &count) || !callbacks->table(CORE2, &core2, &count2)) return 0;
    if (count < 12 || count2 < 13) return 0;
    began_ns = now_ns(), process = getpid();
    *core[4] = (Function)start_ex, *core[5] = (Function)start, *core[6] = (Function)start_wide, *core[7] = (Function)end;
    *core[8] = (Function)push_ex, *core[9] = (Function)push_text, *core[10] = (Function)push_wide, *core[11] = (Function)pop_any;
    *core2[2] = (Function)domain_start, *core2[3] = (Function)domain_end, *core2[4] = (Function)domain_push;
    *core2[5] = (Function)pop, *core2[10] = (Function)register_text, *core2[12] = (Function)make_domain;
    return 1;
}
