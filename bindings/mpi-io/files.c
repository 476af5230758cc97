/* SPDX-License-Identifier: Apache-2.0 */
/* The open files, and the descriptors that stand for them.
 *
 * A descriptor is a real one: a duplicate of an empty file in memory, so the kernel keeps its
 * number from others and closes it with the process. That file is sealed, and open for writing
 * only: a read or a write by a call that posix.c does not intercept fails, instead of bypassing
 * Esker unseen. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "esker_mpiio.h"

/* Descriptors from this number on are refused. */
#define DESCRIPTORS_MAX 65536

struct descriptor {
    struct mpiio_shared *shared;
    off_t position;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The lists are the same at all ranks, since they open and close files together; new ones come
 * first. */
static struct mpiio_shared *shared_files;
static struct mpiio_file *files;
static struct descriptor *descriptors[DESCRIPTORS_MAX];
/* One more than the highest that was ever made. */
static int descriptors_end;
/* The process to which the descriptors belong; a child by vfork, which shares this memory, is
 * another one. */
static pid_t owner;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    owner = getpid();
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void)
{
    owner = getpid();
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static int sealed_file(void)
{
    char link[64];
    int memory = memfd_create("esker-mpiio", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int descriptor;

    if (memory < 0)
        return -1;
    if (fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0) {
        close(memory);
        return -1;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", memory);
    descriptor = open(link, O_WRONLY | O_CLOEXEC);
    close(memory);
    return descriptor;
}

struct mpiio_shared *mpiio_shared_add(esker_shared_file *file, const char *path)
{
    struct mpiio_shared *added = calloc(1, sizeof *added);

    if (added == NULL)
        return NULL;
    added->file = file;
    added->path = strdup(path);
    added->descriptor = sealed_file();
    if (added->path == NULL || added->descriptor < 0) {
        if (added->descriptor >= 0)
            close(added->descriptor);
        free(added->path);
        free(added);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    added->next = shared_files;
    shared_files = added;
    pthread_mutex_unlock(&lock);
    return added;
}

/* The file with this path. The caller holds the lock. */
static struct mpiio_shared *find(const char *path)
{
    struct mpiio_shared *shared = shared_files;

    while (shared != NULL && strcmp(shared->path, path) != 0)
        shared = shared->next;
    return shared;
}

struct mpiio_shared *mpiio_shared_find(const char *path)
{
    struct mpiio_shared *shared;

    pthread_mutex_lock(&lock);
    shared = find(path);
    pthread_mutex_unlock(&lock);
    return shared;
}

/* Takes a file out of the list, and gives up its descriptors. */
static void take_out(struct mpiio_shared *shared)
{
    struct mpiio_shared **at;

    pthread_mutex_lock(&lock);
    for (at = &shared_files; *at != shared; at = &(*at)->next)
        ;
    *at = shared->next;
    for (int i = 0; i < descriptors_end; i++) {
        if (descriptors[i] != NULL && descriptors[i]->shared == shared) {
            free(descriptors[i]);
            descriptors[i] = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    close(shared->descriptor);
}

int mpiio_shared_close(struct mpiio_shared *shared)
{
    int code = MPI_SUCCESS;

    take_out(shared);
    if (esker_shared_close(shared->file) < 0)
        code = mpiio_failed("close", shared->path);
    else if (shared->is_deleted && esker_shared_unlink(mpiio_job(), shared->path) < 0
             && esker_error_kind() != ESKER_NOT_FOUND)
        code = mpiio_failed("delete", shared->path);
    free(shared->path);
    free(shared);
    return code;
}

int mpiio_shared_close_kept(int count_max)
{
    struct mpiio_shared *oldest;
    int code = MPI_SUCCESS, count;

    do {
        oldest = NULL;
        count = 0;
        for (struct mpiio_shared *shared = shared_files; shared != NULL; shared = shared->next) {
            if (shared->handles == 0) {
                oldest = shared;
                count++;
            }
        }
        if (count > count_max) {
            int closed = mpiio_shared_close(oldest);

            code = code == MPI_SUCCESS ? closed : code;
        }
    } while (count > count_max);
    return code;
}

struct mpiio_file *mpiio_files_add(struct mpiio_shared *shared, int amode)
{
    struct mpiio_file *added = calloc(1, sizeof *added);

    if (added == NULL)
        return NULL;
    added->handle = MPI_FILE_NULL;
    added->amode = amode;
    added->shared = shared;
    pthread_mutex_lock(&lock);
    added->next = files;
    files = added;
    shared->handles++;
    pthread_mutex_unlock(&lock);
    return added;
}

void mpiio_files_remove(struct mpiio_file *file)
{
    struct mpiio_file **at;

    pthread_mutex_lock(&lock);
    for (at = &files; *at != file; at = &(*at)->next)
        ;
    *at = file->next;
    file->shared->handles--;
    pthread_mutex_unlock(&lock);
    free(file);
}

struct mpiio_file *mpiio_files_of_handle(MPI_File handle)
{
    struct mpiio_file *file;

    /* Those that are being opened have no handle yet. */
    if (handle == MPI_FILE_NULL)
        return NULL;
    pthread_mutex_lock(&lock);
    for (file = files; file != NULL && file->handle != handle; file = file->next)
        ;
    pthread_mutex_unlock(&lock);
    return file;
}

int mpiio_files_is_any_open(void)
{
    return __atomic_load_n(&files, __ATOMIC_ACQUIRE) != NULL;
}

int mpiio_files_exchange(void)
{
    int count = 0, i = 0, code;
    struct mpiio_shared *shared;
    int *written;

    for (shared = shared_files; shared != NULL; shared = shared->next)
        count++;
    written = malloc((size_t)(count + 1) * sizeof *written);
    if (written == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (shared = shared_files; shared != NULL; shared = shared->next)
        written[i++] = shared->is_written;
    code = PMPI_Allreduce(MPI_IN_PLACE, written, count, MPI_INT, MPI_MAX, mpiio_world());
    i = 0;
    for (shared = shared_files; shared != NULL && code == MPI_SUCCESS; shared = shared->next) {
        if (written[i++] && esker_shared_exchange(shared->file) < 0)
            code = mpiio_failed("exchange", shared->path);
        shared->is_written = 0;
    }
    free(written);
    return code;
}

int mpiio_descriptor_open(const char *name)
{
    char path[MPIIO_PATH_BYTES];
    struct mpiio_shared *shared;
    struct descriptor *made;
    int number;

    errno = ENOENT;
    if (__atomic_load_n(&shared_files, __ATOMIC_ACQUIRE) == NULL || !mpiio_path_within(name, path))
        return -1;
    pthread_mutex_lock(&lock);
    shared = find(path);
    if (shared == NULL) {
        pthread_mutex_unlock(&lock);
        errno = ENOENT;
        return -1;
    }
    made = calloc(1, sizeof *made);
    number = made == NULL ? -1 : fcntl(shared->descriptor, F_DUPFD_CLOEXEC, 0);
    if (number < 0 || number >= DESCRIPTORS_MAX) {
        pthread_mutex_unlock(&lock);
        if (number >= 0)
            close(number);
        errno = made == NULL ? ENOMEM : EMFILE;
        free(made);
        return -1;
    }
    made->shared = shared;
    if (number >= descriptors_end)
        descriptors_end = number + 1;
    __atomic_store_n(&descriptors[number], made, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return number;
}

struct mpiio_shared *mpiio_descriptor_file(int number, off_t **position)
{
    struct descriptor *found;

    if (number < 0 || number >= DESCRIPTORS_MAX)
        return NULL;
    found = __atomic_load_n(&descriptors[number], __ATOMIC_ACQUIRE);
    if (found == NULL)
        return NULL;
    if (position != NULL)
        *position = &found->position;
    return found->shared;
}

void mpiio_descriptor_close(int number)
{
    if (number < 0 || number >= DESCRIPTORS_MAX
        || __atomic_load_n(&descriptors[number], __ATOMIC_RELAXED) == NULL || getpid() != owner)
        return;
    free(__atomic_exchange_n(&descriptors[number], NULL, __ATOMIC_ACQ_REL));
}
