/* Notes when NVTX ranges of a program begin: a library that NVTX loads by NVTX_INJECTION64_PATH.
 *
 * At the end of the process it writes the file that KANALYZE_MARKS names, as bare_run.py does, unless there is one: the
 * first process with ranges that ends has it. Nothing is synchronized. The layout of NVTX's tables is that of nvtx3,
 * nvtxDetail/nvtxTypes.h; ranges named in wide characters or by resources count as one without a name.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAMES = 200, EACH = 20000, LONGEST = 1024 };
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
    char name[LONGEST];
    int64_t *starts_ns;
    size_t count;
} Ranges;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Ranges *ranges[NAMES];
static size_t names;
static int64_t began_ns;
static pid_t process; /* 0 where nothing is noted any more */

static int64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

/* The ranges of a name, new ones for a new name; NULL where there are too many. The last one is looked at first. */
static Ranges *ranges_of(const char *name) {
    static Ranges *last;
    if (last && !strncmp(last->name, name, LONGEST - 1)) return last;
    for (size_t at = 0; at < names; at++)
        if (!strncmp(ranges[at]->name, name, LONGEST - 1)) return last = ranges[at];
    Ranges *made = names < NAMES ? calloc(1, sizeof *made) : NULL;
    if (made && !(made->starts_ns = malloc(EACH * sizeof *made->starts_ns))) free(made), made = NULL;
    if (!made) return NULL;
    snprintf(made->name, LONGEST, "%s", name);
    return last = ranges[names++] = made;
}

static void mark(const char *name) {
    if (getpid() != process) return; /* a child that was forked may find the lock held for ever */
    pthread_mutex_lock(&lock);
    Ranges *of = process ? ranges_of(name ? name : "") : NULL;
    if (of && of->count < EACH) of->starts_ns[of->count++] = now_ns();
    pthread_mutex_unlock(&lock);
}

static void mark_ex(const Attributes *of) {
    mark(of && (of->message_type == ASCII || of->message_type == REGISTERED) ? of->message : NULL);
}

static int push_ex(const Attributes *of) { return mark_ex(of), 0; }
static int push_text(const char *name) { return mark(name), 0; }
static int push_wide(const void *name) { return (void)name, mark(NULL), 0; }
static uint64_t start_ex(const Attributes *of) { return mark_ex(of), 0; }
static uint64_t start_text(const char *name) { return mark(name), 0; }
static uint64_t start_wide(const void *name) { return (void)name, mark(NULL), 0; }
static int domain_push(const void *domain, const Attributes *of) { return (void)domain, mark_ex(of), 0; }
static uint64_t domain_start(const void *domain, const Attributes *of) { return (void)domain, mark_ex(of), 0; }
static const void *register_text(const void *domain, const char *text) { return (void)domain, strdup(text ? text : ""); }

static void write_name(FILE *file, const char *name) {
    fputc('"', file);
    for (; *name; name++) {
        unsigned char letter = (unsigned char)*name;
        if (letter == '"' || letter == '\\' || letter < 32) fprintf(file, "\\u%04x", letter);
        else fputc(letter, file);
    }
    fputc('"', file);
}

static void write_ranges(FILE *file) {
    fprintf(file, "{\"schema\": 1, \"duration_ns\": %lld, \"starts_ns\": {", (long long)(now_ns() - began_ns));
    for (size_t at = 0; at < names; at++) {
        fputs(at ? ", " : "", file);
        write_name(file, ranges[at]->name);
        for (size_t number = 0; number < ranges[at]->count; number++)
            fprintf(file, "%s%lld", number ? ", " : ": [", (long long)ranges[at]->starts_ns[number]);
        fputs("]", file);
    }
    fputs("}}\n", file);
}

__attribute__((destructor)) static void write_marks(void) {
    const char *target = getenv("KANALYZE_MARKS");
    char part[4096];
    if (!target || getpid() != process) return;
    pthread_mutex_lock(&lock);
    pid_t own = process;
    process = 0;
    FILE *file = NULL;
    if (names && snprintf(part, sizeof part, "%s.%d.part", target, (int)own) < (int)sizeof part) file = fopen(part, "w");
    if (file) {
        write_ranges(file);
        if (fclose(file) == 0) (void)!link(part, target); /* not over that of a process before */
        unlink(part);
    }
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void *(*exports)(uint32_t)) {
    const Callbacks *callbacks = exports(CALLBACKS);
    Function **core, **core2;
    unsigned count, count2;
    if (!callbacks || !callbacks->table(CORE, &core, &count) || !callbacks->table(CORE2, &core2, &count2)) return 0;
    if (count < 11 || count2 < 11) return 0;
    began_ns = now_ns(), process = getpid();
    *core[4] = (Function)start_ex, *core[5] = (Function)start_text, *core[6] = (Function)start_wide;
    *core[8] = (Function)push_ex, *core[9] = (Function)push_text, *core[10] = (Function)push_wide;
    *core2[2] = (Function)domain_start, *core2[4] = (Function)domain_push, *core2[10] = (Function)register_text;
    return 1;
}
