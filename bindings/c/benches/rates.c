/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of the C library: the loops of rates.rs. One line each: what, thousands a second.
 *
 * usage: rates DIRECTORY RECORDS FILES      DIRECTORY is empty */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "esker.h"

#define CHECK(call)                                                                               \
    do {                                                                                          \
        if ((call) < 0) {                                                                         \
            fprintf(stderr, "%s\n", esker_error_message());                                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void show(const char *what, uint64_t calls, double start)
{
    printf("%s %.1f\n", what, (double)calls / (now() - start) / 1000);
}

/* Scatters keys as ids of particles are. */
static uint64_t key_of(uint64_t i)
{
    return i * 0x9e3779b97f4a7c15u;
}

static void append(esker_repository *repository, esker_session *session, esker_comm *comm,
                   uint64_t records, size_t batch)
{
    esker_imd_options options = ESKER_IMD_OPTIONS_INIT;
    esker_imd_writer *writer;
    char value[32] = "";
    uint64_t *keys = calloc(batch, sizeof *keys);
    char *values = calloc(batch, sizeof value);
    double start;

    options.key_bytes = 8;
    options.value_bytes = sizeof value;
    CHECK(esker_imd_create(comm, repository, session, batch > 1 ? "/many" : "/one", &options,
                           &writer));
    start = now();
    if (batch == 1) {
        for (uint64_t i = 0; i < records; i++) {
            uint64_t key = key_of(i);
            CHECK(esker_imd_append(writer, &key, 8, value, sizeof value));
        }
    } else {
        for (uint64_t i = 0; i < records; i += batch) {
            for (size_t j = 0; j < batch; j++)
                keys[j] = key_of(i + j);
            CHECK(esker_imd_append_many(writer, keys, values, batch));
        }
    }
    show(batch > 1 ? "append_many" : "append", records, start);
    CHECK(esker_imd_epoch_flush(writer));
    show(batch > 1 ? "append_many+flush" : "append+flush", records, start);
    CHECK(esker_imd_finish(writer, NULL));
    free(keys);
    free(values);
}

int main(int argc, char **argv)
{
    esker_repository *repository;
    esker_session *session;
    esker_comm *comm;
    esker_dir *root;
    esker_stat_t stat;
    uint64_t records, files;
    char path[4096], name[32];
    double start;

    if (argc != 4)
        return 2;
    records = strtoull(argv[2], NULL, 10);
    files = strtoull(argv[3], NULL, 10);
    snprintf(path, sizeof path, "%s/store", argv[1]);
    CHECK(esker_repository_create(path, NULL, &repository));
    CHECK(esker_session_begin(repository, NULL, &session));
    CHECK(esker_session_root(session, &root));
    CHECK(esker_comm_self(&comm));
    append(repository, session, comm, records, 1);
    append(repository, session, comm, records, 1000);
    start = now();
    for (uint64_t i = 0; i < files; i++) {
        snprintf(name, sizeof name, "%llu", (unsigned long long)i);
        CHECK(esker_create(root, name));
    }
    show("create", files, start);
    start = now();
    for (uint64_t i = 0; i < files; i++) {
        snprintf(name, sizeof name, "%llu", (unsigned long long)i);
        CHECK(esker_stat(root, name, 0, &stat));
    }
    show("stat", files, start);
    return 0;
}
