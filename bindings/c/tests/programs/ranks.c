/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that write parts of a job, an indexed directory and a shared file, and read each other's
 * bytes: as threads, as processes that `esker run` started, or, compiled with -DWITH_MPI, over MPI.
 *
 * usage: ranks STORE [THREADS]
 */
#ifdef WITH_MPI
#include "esker_mpi.h"
#endif
#include <pthread.h>

#include "check.h"

#define KEYS 1000u

struct work {
    const char *store;
    esker_comm *comm;
};

/* Every rank makes some files; the job shows those of all. */
static void write_parts(esker_repository *repository, esker_comm *comm, uint32_t rank, uint32_t size)
{
    esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
    esker_job_report report;
    esker_session *session;
    esker_namespace *all;
    esker_dir *root;
    esker_stat_t stat;
    const char *snapshots[1] = { "parts" };
    char job[ESKER_ID_BYTES] = "", name[32];

    if (rank == 0)
        OK(esker_job_id(&job));
    OK(esker_comm_broadcast(comm, job, sizeof job));
    options.job = job;
    options.rank = rank;
    OK(esker_session_begin(repository, &options, &session));
    OK(esker_session_root(session, &root));
    snprintf(name, sizeof name, "/of-%u", rank);
    OK(esker_write_file(root, name, &rank, sizeof rank));
    OK(esker_dir_close(root));
    OK(esker_session_complete(session, NULL));
    OK(esker_session_close(session));
    OK(esker_comm_barrier(comm));
    if (rank == 0) {
        OK(esker_job_publish(repository, job, "parts", &report));
        CHECK(report.parts == size && report.conflicts == 0);
        OK(esker_namespace_open(repository, snapshots, 1, &all));
        OK(esker_namespace_root(all, &root));
        for (uint32_t i = 0; i < size; i++) {
            snprintf(name, sizeof name, "/of-%u", i);
            OK(esker_stat(root, name, 0, &stat));
        }
        OK(esker_dir_close(root));
        OK(esker_namespace_close(all));
    }
    OK(esker_comm_barrier(comm));
}

/* Keys of all ranks, found by the first one. */
static void write_indexed(esker_repository *repository, esker_comm *comm, uint32_t rank,
                          uint32_t size)
{
    esker_imd_options options = ESKER_IMD_OPTIONS_INIT;
    esker_session *session = NULL;
    esker_imd_writer *writer;
    esker_imd *reader;
    esker_imd_answers *answers;
    const esker_imd_value *values;
    esker_dir *root;
    size_t count;

    if (rank == 0)
        OK(esker_session_begin(repository, NULL, &session));
    options.key_bytes = 8;
    options.value_bytes = 4;
    options.memory_bytes = 8 << 20;
    OK(esker_imd_create(comm, repository, session, "/run", &options, &writer));
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        for (uint64_t i = rank; i < KEYS; i += size) {
            uint32_t value = (uint32_t)(i * 10 + epoch);
            OK(esker_imd_append(writer, &i, 8, &value, 4));
        }
        OK(esker_imd_epoch_flush_at(writer, epoch * 100));
    }
    OK(esker_imd_finish(writer, NULL));
    if (rank == 0) {
        OK(esker_session_root(session, &root));
        OK(esker_imd_open(root, "/run", 0, &reader));
        for (uint64_t i = 0; i < KEYS; i++) {
            OK(esker_imd_get(reader, &i, 8, &answers));
            OK(esker_imd_values(answers, 0, &values, &count));
            CHECK(count == 2);
            CHECK(*(const uint32_t *)values[1].bytes == i * 10 + 1);
            OK(esker_imd_answers_close(answers));
        }
        OK(esker_imd_close(reader));
        OK(esker_dir_close(root));
        OK(esker_session_publish(session, "indexed", 0, NULL));
        OK(esker_session_close(session));
    }
}

/* Each rank writes strided pieces of one file, and reads those of its neighbour. */
static void write_shared(esker_repository *repository, esker_comm *comm, uint32_t rank,
                         uint32_t size)
{
    enum { PIECE = 512, PIECES = 100 };
    esker_shared_job *shared;
    esker_shared_file *file;
    esker_shared_request request = { 1, 0, 0, PIECE, 0, PIECES, NULL, 0 };
    uint32_t neighbour = (rank + 1) % size;
    char job[ESKER_ID_BYTES] = "", *bytes = malloc(PIECE * PIECES);
    uint64_t total;

    CHECK(bytes != NULL);
    if (rank == 0)
        OK(esker_job_id(&job));
    OK(esker_comm_broadcast(comm, job, sizeof job));
    OK(esker_shared_begin(comm, repository, job, NULL, &shared));
    OK(esker_shared_open(shared, "/matrix", 1, &file));
    memset(bytes, 'a' + (int)rank, PIECE * PIECES);
    request.offset = rank * PIECE;
    request.stride = (uint64_t)PIECE * size;
    request.buffer = bytes;
    CHECK(esker_shared_io(file, &request, 1) == 1 && request.result == PIECE * PIECES);
    OK(esker_shared_sync(file));
    OK(esker_shared_barrier(shared));
    request.writes = 0;
    request.offset = neighbour * PIECE;
    CHECK(esker_shared_io(file, &request, 1) == 1 && request.result == PIECE * PIECES);
    for (int i = 0; i < PIECE * PIECES; i++)
        CHECK(bytes[i] == 'a' + (int)neighbour);
    OK(esker_shared_stat(file, &total, NULL));
    CHECK(total == (uint64_t)PIECE * PIECES * size);
    OK(esker_shared_close(file));
    OK(esker_shared_publish(shared, "matrix", NULL, NULL));
    free(bytes);
}

static void *run(void *argument)
{
    struct work *work = (struct work *)argument;
    esker_repository *repository;
    uint32_t rank, size;

    OK(esker_comm_rank(work->comm, &rank, &size));
    OK(esker_repository_open(work->store, NULL, &repository));
    write_parts(repository, work->comm, rank, size);
    write_indexed(repository, work->comm, rank, size);
    write_shared(repository, work->comm, rank, size);
    OK(esker_repository_close(repository));
    OK(esker_comm_barrier(work->comm));
    OK(esker_comm_close(work->comm));
    if (rank == 0)
        printf("%u ranks agree\n", size);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
#ifdef WITH_MPI
    struct work work = { argv[1], NULL };
    CHECK(MPI_Init(&argc, &argv) == MPI_SUCCESS);
    OK(esker_comm_from_mpi(MPI_COMM_WORLD, &work.comm));
    run(&work);
    CHECK(MPI_Finalize() == MPI_SUCCESS);
#else
    if (argc == 2) {
        struct work work = { argv[1], NULL };
        OK(esker_comm_from_environment(argv[1], &work.comm));
        run(&work);
    } else {
        size_t ranks = (size_t)atoi(argv[2]);
        struct work *work = calloc(ranks, sizeof *work);
        esker_comm **comms = calloc(ranks, sizeof *comms);
        pthread_t *threads = calloc(ranks, sizeof *threads);

        CHECK(work != NULL && comms != NULL && threads != NULL);
        OK(esker_comm_threads(ranks, 2, comms));
        for (size_t i = 0; i < ranks; i++) {
            work[i].store = argv[1];
            work[i].comm = comms[i];
            CHECK(pthread_create(&threads[i], NULL, run, &work[i]) == 0);
        }
        for (size_t i = 0; i < ranks; i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
        free(work);
        free(comms);
        free(threads);
    }
#endif
    return 0;
}
