/* SPDX-License-Identifier: Apache-2.0 */
/* The job of Esker in which all ranks write: it begins with the first file that is opened in the
 * namespace, and ends, published, when MPI does. The environment describes it. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "esker_mpi.h"
#include "esker_mpiio.h"

/* Most snapshots below the job. */
#define BASES_MAX 64

static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
static esker_comm *comm;
static esker_repository *repository;
static esker_shared_job *job;
static char job_id[ESKER_ID_BYTES];
static char **deleted;
static int deleted_count;
static MPI_Comm world = MPI_COMM_NULL;
static int is_spoiled;

void mpiio_lock(void)
{
    pthread_mutex_lock(&calls);
}

void mpiio_unlock(void)
{
    pthread_mutex_unlock(&calls);
}

MPI_Comm mpiio_world(void)
{
    return world;
}

void mpiio_job_spoil(void)
{
    is_spoiled = 1;
}

static int world_rank(void)
{
    int rank = 0;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

/* Prints a line of the first rank. */
static void say(const char *format, ...)
{
    va_list arguments;

    if (world_rank() != 0)
        return;
    va_start(arguments, format);
    fprintf(stderr, "esker: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

static int class_of_kind(int kind)
{
    switch (kind) {
    case ESKER_NOT_FOUND:
        return MPI_ERR_NO_SUCH_FILE;
    case ESKER_EXISTS:
        return MPI_ERR_FILE_EXISTS;
    case ESKER_NOT_A_DIRECTORY:
    case ESKER_IS_A_DIRECTORY:
    case ESKER_LOOP:
        return MPI_ERR_BAD_FILE;
    case ESKER_DENIED:
    case ESKER_NOT_PERMITTED:
        return MPI_ERR_ACCESS;
    case ESKER_READ_ONLY:
        return MPI_ERR_READ_ONLY;
    case ESKER_NO_SPACE:
        return MPI_ERR_NO_SPACE;
    case ESKER_INVALID:
    case ESKER_TOO_LARGE:
        return MPI_ERR_ARG;
    default:
        return MPI_ERR_IO;
    }
}

int mpiio_failed(const char *call, const char *path)
{
    int kind = esker_error_kind();

    /* An open that finds no file is often a question. */
    if (kind != ESKER_NOT_FOUND)
        fprintf(stderr, "esker: rank %d: %s of %s: %s\n", world_rank(), call, path,
                esker_error_message());
    return class_of_kind(kind);
}

int mpiio_refuse(const char *call, const char *path, const char *why, int class_)
{
    say("%s of %s: %s", call, path, why);
    return class_;
}

int mpiio_path_within(const char *name, char path[MPIIO_PATH_BYTES])
{
    const char *at = getenv("ESKER_MPIIO_AT"), *colon;
    size_t length = 0, at_length;

    if (at == NULL || at[0] != '/' || name == NULL)
        return 0;
    /* Prefixes such as "ufs:" choose a driver of the MPI library. */
    colon = strchr(name, ':');
    if (colon != NULL && colon[1] == '/' && memchr(name, '/', (size_t)(colon - name)) == NULL)
        name = colon + 1;
    if (name[0] != '/' || strlen(name) >= MPIIO_PATH_BYTES)
        return 0;
    while (*name != 0) {
        size_t word = strcspn(name, "/");

        if (word == 2 && name[0] == '.' && name[1] == '.') {
            while (length > 0 && path[--length] != '/')
                ;
        } else if (word > 0 && !(word == 1 && name[0] == '.')) {
            path[length++] = '/';
            memcpy(path + length, name, word);
            length += word;
        }
        name += word + (name[word] == '/');
    }
    path[length] = 0;
    for (at_length = strlen(at); at_length > 0 && at[at_length - 1] == '/'; at_length--)
        ;
    if (strncmp(path, at, at_length) != 0 || path[at_length] != '/')
        return 0;
    memmove(path, path + at_length, length - at_length + 1);
    return 1;
}

int mpiio_job_writes(void)
{
    const char *name = getenv("ESKER_MPIIO_WRITE");

    return name != NULL && name[0] != 0;
}

esker_shared_job *mpiio_job(void)
{
    return job;
}

/* The names in a list with commas, which is cut. */
static size_t split(char *list, const char **names, size_t names_max)
{
    size_t count = 0;
    char *rest = NULL;

    for (char *name = strtok_r(list, ",", &rest); name != NULL && count < names_max;
         name = strtok_r(NULL, ",", &rest))
        names[count++] = name;
    return count;
}

/* The error code of the first rank that has one: either all ranks go on, or none. */
static int agreed(int code)
{
    int worst = code;

    MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, world);
    return worst;
}

int mpiio_is_true_for_all(int truth)
{
    return agreed(!truth) == 0;
}

/* Publishes the job. MPI calls it at the start of MPI_Finalize, while it still works. */
static int end_job(MPI_Comm self, int key, void *attribute, void *state)
{
    const char *name = getenv("ESKER_MPIIO_WRITE");
    char id[ESKER_ID_BYTES];
    int failed = 0, is_ended = 0;

    (void)self;
    (void)key;
    (void)attribute;
    (void)state;
    if (job == NULL && mpiio_is_true_for_all(deleted_count == 0)) {
        MPI_Comm_free(&world);
        return MPI_SUCCESS;
    }
    /* It may not have begun where files were deleted only. */
    if (mpiio_job_begin() != MPI_SUCCESS) {
        failed = 1;
    } else if (mpiio_files_is_any_open()) {
        say("files are open at MPI_Finalize, so nothing is published");
        failed = 1;
    } else if (mpiio_job_delete_pending() != MPI_SUCCESS || mpiio_shared_close_kept(0) != MPI_SUCCESS) {
        failed = 1;
    } else if (agreed(is_spoiled)) {
        say("writes have failed, so nothing is published");
        failed = 1;
    } else if (!mpiio_job_writes()) {
        failed = esker_shared_leave(job) < 0;
        is_ended = 1;
        if (!failed && world_rank() == 0)
            failed = esker_job_abandon(repository, job_id) < 0;
    } else {
        failed = esker_shared_publish(job, name, &id, NULL) < 0;
        is_ended = 1;
        if (!failed)
            say("published %s @%s", name, id);
    }
    if (failed) {
        if (is_ended)
            fprintf(stderr, "esker: rank %d: %s\n", world_rank(), esker_error_message());
        if (mpiio_job_writes() && job_id[0] != 0)
            say("the job is kept: a run with ESKER_MPIIO_JOB=%s goes on with it", job_id);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    esker_comm_close(comm);
    esker_repository_close(repository);
    MPI_Comm_free(&world);
    return MPI_SUCCESS;
}

int mpiio_job_expect(void)
{
    int key;

    if (world != MPI_COMM_NULL)
        return MPI_SUCCESS;
    /* MPI deletes attributes in the reverse order, so other libraries first do their work at the
     * end, such as closing files. */
    if (MPI_Comm_dup(MPI_COMM_WORLD, &world) != MPI_SUCCESS
        || MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end_job, &key, NULL) != MPI_SUCCESS
        || MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL) != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    return MPI_SUCCESS;
}

/* Opens the store at every rank, and fails if the name for the result is taken. */
static int open_store(void)
{
    const char *store = getenv("ESKER_STORE"), *name = getenv("ESKER_MPIIO_WRITE");
    esker_namespace *taken;

    if (store == NULL || store[0] == 0)
        return mpiio_refuse("open", "the store", "set ESKER_STORE", MPI_ERR_ARG);
    if (esker_repository_open(store, NULL, &repository) < 0) {
        fprintf(stderr, "esker: rank %d: %s\n", world_rank(), esker_error_message());
        return MPI_ERR_IO;
    }
    if (world_rank() != 0 || !mpiio_job_writes())
        return MPI_SUCCESS;
    if (esker_namespace_open(repository, &name, 1, &taken) < 0)
        return MPI_SUCCESS;
    esker_namespace_close(taken);
    return mpiio_refuse("write", name, "the name is taken; choose another in ESKER_MPIIO_WRITE",
                        MPI_ERR_FILE_EXISTS);
}

static int begin(char *bases)
{
    esker_shared_options options = ESKER_SHARED_OPTIONS_INIT;
    const char *names[BASES_MAX];

    options.bases_count = bases == NULL ? 0 : split(bases, names, BASES_MAX);
    options.bases = names;
    options.take_over = getenv("ESKER_MPIIO_JOB") != NULL;
    if (esker_shared_begin(comm, repository, job_id, &options, &job) < 0) {
        fprintf(stderr, "esker: rank %d: %s\n", world_rank(), esker_error_message());
        return MPI_ERR_IO;
    }
    return MPI_SUCCESS;
}

int mpiio_job_begin(void)
{
    const char *given = getenv("ESKER_MPIIO_JOB"), *list = getenv("ESKER_MPIIO_BASE");
    char *bases;
    int code;

    if (job != NULL)
        return MPI_SUCCESS;
    if (mpiio_job_expect() != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    code = agreed(open_store());
    if (code == MPI_SUCCESS) {
        if (world_rank() == 0 && given == NULL && esker_job_id(&job_id) < 0)
            code = MPI_ERR_OTHER;
        if (world_rank() == 0 && given != NULL)
            snprintf(job_id, sizeof job_id, "%s", given);
        MPI_Bcast(job_id, sizeof job_id, MPI_CHAR, 0, world);
        code = agreed(code);
    }
    if (code == MPI_SUCCESS && esker_comm_from_mpi(MPI_COMM_WORLD, &comm) < 0)
        code = MPI_ERR_OTHER;
    code = agreed(code);
    if (code != MPI_SUCCESS) {
        if (comm != NULL)
            esker_comm_close(comm);
        if (repository != NULL)
            esker_repository_close(repository);
        comm = NULL;
        repository = NULL;
        return code;
    }
    bases = list == NULL ? NULL : strdup(list);
    code = begin(bases);
    free(bases);
    return code;
}

int mpiio_job_make_parents(const char *path)
{
    const char *slash = strrchr(path, '/');
    esker_dir *root;
    char *parent;
    int code = MPI_SUCCESS;

    /* The first rank has the names of files. */
    if (world_rank() == 0 && slash != path) {
        parent = strndup(path, (size_t)(slash - path));
        if (parent == NULL) {
            code = MPI_ERR_NO_MEM;
        } else if (esker_shared_root(job, &root) < 0) {
            code = mpiio_failed("open", path);
        } else {
            if (esker_mkdir_all(root, parent) < 0)
                code = mpiio_failed("mkdir", parent);
            esker_dir_close(root);
        }
        free(parent);
    }
    MPI_Bcast(&code, 1, MPI_INT, 0, world);
    return code;
}

int mpiio_job_delete_later(const char *path)
{
    char **grown = realloc(deleted, (size_t)(deleted_count + 1) * sizeof *grown);
    char *copy = strdup(path);

    if (grown != NULL)
        deleted = grown;
    if (grown == NULL || copy == NULL) {
        free(copy);
        return -1;
    }
    deleted[deleted_count++] = copy;
    return 0;
}

/* Removes a file that rank `from` deleted; it knows the path. */
static int delete_of(int from, const char *path)
{
    int length = path == NULL ? 0 : (int)strlen(path) + 1, code = MPI_SUCCESS;
    struct mpiio_shared *shared;
    char *name;

    MPI_Bcast(&length, 1, MPI_INT, from, world);
    name = malloc((size_t)length);
    if (name == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    if (path != NULL)
        memcpy(name, path, (size_t)length);
    MPI_Bcast(name, length, MPI_CHAR, from, world);
    shared = mpiio_shared_find(name);
    if (shared != NULL) {
        /* It is removed when it is closed, as it may be now. */
        shared->is_deleted = 1;
        if (shared->handles == 0)
            code = mpiio_shared_close(shared);
    } else if (esker_shared_unlink(job, name) < 0 && esker_error_kind() != ESKER_NOT_FOUND) {
        code = mpiio_failed("delete", name);
    }
    free(name);
    return code;
}

int mpiio_job_delete_pending(void)
{
    int code = MPI_SUCCESS, most, rank = world_rank(), size;
    int *counts;

    MPI_Allreduce(&deleted_count, &most, 1, MPI_INT, MPI_MAX, world);
    if (most == 0)
        return MPI_SUCCESS;
    MPI_Comm_size(world, &size);
    counts = calloc((size_t)size, sizeof *counts);
    if (counts == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Allgather(&deleted_count, 1, MPI_INT, counts, 1, MPI_INT, world);
    for (int from = 0; from < size; from++) {
        for (int i = 0; i < counts[from]; i++) {
            int one = delete_of(from, from == rank ? deleted[i] : NULL);

            code = code == MPI_SUCCESS ? one : code;
        }
    }
    free(counts);
    while (deleted_count > 0)
        free(deleted[--deleted_count]);
    return code;
}
