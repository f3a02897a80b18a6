/*
 * Steps through the rows and columns of an nsys report that `kanalyze summarize` needs, with SQLite's own interface,
 * and does nothing with them but add them up: what reading the file by rows costs at the very least.
 *
 *     cc -O2 -o step step.c -l:libsqlite3.so.0 && ./step report.sqlite
 *
 * The few functions are declared here, so that no header of SQLite need be installed.
 */

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;

int sqlite3_open_v2(const char *path, sqlite3 **database, int flags, const char *vfs);
int sqlite3_prepare_v2(sqlite3 *database, const char *sql, int length, sqlite3_stmt **statement, const char **tail);
int sqlite3_step(sqlite3_stmt *statement);
int sqlite3_column_count(sqlite3_stmt *statement);
int64_t sqlite3_column_int64(sqlite3_stmt *statement, int column);
int sqlite3_finalize(sqlite3_stmt *statement);
int sqlite3_close(sqlite3 *database);
const char *sqlite3_errmsg(sqlite3 *database);

enum { OK = 0, ROW = 100, DONE = 101, READ_ONLY = 1 };

static const char *const TABLES[][2] = {
    {"CUPTI_ACTIVITY_KIND_KERNEL",
     "SELECT start, end, globalPid, deviceId, contextId, streamId, correlationId, demangledName, gridX, gridY, gridZ, "
     "blockX, blockY, blockZ, registersPerThread, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, "
     "graphNodeId FROM CUPTI_ACTIVITY_KIND_KERNEL"},
    {"CUPTI_ACTIVITY_KIND_MEMCPY",
     "SELECT start, end, globalPid, deviceId, contextId, streamId, correlationId, copyKind, bytes, srcKind, dstKind "
     "FROM CUPTI_ACTIVITY_KIND_MEMCPY"},
    {"CUPTI_ACTIVITY_KIND_MEMSET",
     "SELECT start, end, globalPid, deviceId, contextId, streamId, correlationId, bytes "
     "FROM CUPTI_ACTIVITY_KIND_MEMSET"},
    {"CUPTI_ACTIVITY_KIND_RUNTIME",
     "SELECT start, end, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME"},
    {"NVTX_EVENTS",
     "SELECT start, end, eventType, rangeId, text, textId, domainId, globalTid, endGlobalTid FROM NVTX_EVENTS"},
    {"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
     "SELECT start, end, globalPid, deviceId, contextId, streamId, correlationId, syncType, eventId "
     "FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"},
    {"CUDA_GPU_MEMORY_USAGE_EVENTS",
     "SELECT start, globalPid, deviceId, contextId, streamId, correlationId, address, bytes, memKind, "
     "memoryOperationType FROM CUDA_GPU_MEMORY_USAGE_EVENTS"},
    {"PROFILER_OVERHEAD", "SELECT start, end, globalTid, nameId FROM PROFILER_OVERHEAD"},
};

/* Whether the database has a table of that name. */
static int is_there(sqlite3 *database, const char *table)
{
    char sql[200];
    sqlite3_stmt *statement;
    snprintf(sql, sizeof sql, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '%s'", table);
    if (sqlite3_prepare_v2(database, sql, -1, &statement, NULL) != OK)
        return 0;
    int found = sqlite3_step(statement) == ROW;
    sqlite3_finalize(statement);
    return found;
}

/* Steps through all rows of a query; the last result code. */
static int add_up(sqlite3 *database, const char *sql, int64_t *rows, uint64_t *sum)
{
    sqlite3_stmt *statement;
    int code = sqlite3_prepare_v2(database, sql, -1, &statement, NULL);
    if (code != OK)
        return code;
    int columns = sqlite3_column_count(statement);
    while ((code = sqlite3_step(statement)) == ROW) {
        *rows += 1;
        for (int column = 0; column < columns; column++)
            *sum += (uint64_t)sqlite3_column_int64(statement, column);
    }
    sqlite3_finalize(statement);
    return code;
}

int main(int count, char **arguments)
{
    sqlite3 *database;
    if (count != 2) {
        fprintf(stderr, "usage: %s report.sqlite\n", arguments[0]);
        return 2;
    }
    if (sqlite3_open_v2(arguments[1], &database, READ_ONLY, NULL) != OK) {
        fprintf(stderr, "%s: %s\n", arguments[1], sqlite3_errmsg(database));
        return 1;
    }
    int64_t rows = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof TABLES / sizeof TABLES[0]; i++) {
        if (is_there(database, TABLES[i][0]) && add_up(database, TABLES[i][1], &rows, &sum) != DONE) {
            fprintf(stderr, "%s: %s: %s\n", arguments[1], TABLES[i][0], sqlite3_errmsg(database));
            return 1;
        }
    }
    printf("%" PRId64 " rows, sum %" PRIu64 "\n", rows, sum);
    return sqlite3_close(database) == OK ? 0 : 1;
}
