/* SPDX-License-Identifier: Apache-2.0 */
/* The open files, and which descriptors stand for them.
 *
 * A descriptor is a real one: a duplicate of an empty file in memory, so the kernel keeps its number from
 * others and closes it with the process. That file is sealed, and open for writing only: a read or a
 * write by a call that posix.c does not know fails, and never passes by Esker unseen. */
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
/* Closed files that are kept. */
#define KEPT_MAX 16

struct descriptor {
    struct mpiio_file *file;
    off_t position;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mpiio_file *files;
static struct descriptor *descriptors[DESCRIPTORS_MAX];

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

struct mpiio_file *mpiio_files_add(esker_shared_file *file, const char *path, int amode)
{
    struct mpiio_file *added = calloc(1, sizeof *added);

    if (added == NULL)
        return NULL;
    added->handle = MPI_FILE_NULL;
    added->file = file;
    added->amode = amode;
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
    added->next = files;
    files = added;
    pthread_mutex_unlock(&lock);
    return added;
}

/* Gives up the descriptors of a file. */
static void forget_descriptors(const struct mpiio_file *file)
{
    for (int i = 0; i < DESCRIPTORS_MAX; i++) {
        if (descriptors[i] != NULL && descriptors[i]->file == file) {
            free(descriptors[i]);
            descriptors[i] = NULL;
        }
    }
}

void mpiio_files_remove(struct mpiio_file *file)
{
    struct mpiio_file **at;

    pthread_mutex_lock(&lock);
    for (at = &files; *at != file; at = &(*at)->next)
        ;
    *at = file->next;
    forget_descriptors(file);
    pthread_mutex_unlock(&lock);
    close(file->descriptor);
    free(file->path);
    free(file);
}

/* The file that has been kept longest, if more than `count_max` are. New files are the first in the
 * list, and the list is the same at all ranks, since they open and close files together. */
static struct mpiio_file *oldest_kept(int count_max)
{
    struct mpiio_file *oldest = NULL;
    int count = 0;

    for (struct mpiio_file *file = files; file != NULL; file = file->next) {
        if (file->is_kept) {
            oldest = file;
            count++;
        }
    }
    return count > count_max ? oldest : NULL;
}

static int close_kept(int count_max)
{
    struct mpiio_file *file;
    int code = MPI_SUCCESS;

    while ((file = oldest_kept(count_max)) != NULL) {
        if (esker_shared_close(file->file) < 0)
            code = mpiio_failed("close", file->path);
        mpiio_files_remove(file);
    }
    return code;
}

int mpiio_files_keep(struct mpiio_file *file)
{
    file->handle = MPI_FILE_NULL;
    file->is_kept = 1;
    return close_kept(KEPT_MAX);
}

int mpiio_files_close_kept(void)
{
    return close_kept(0);
}

esker_shared_file *mpiio_files_take_kept(const char *path)
{
    esker_shared_file *kept;

    for (struct mpiio_file *file = files; file != NULL; file = file->next) {
        if (file->is_kept && strcmp(file->path, path) == 0) {
            kept = file->file;
            mpiio_files_remove(file);
            return kept;
        }
    }
    return NULL;
}

struct mpiio_file *mpiio_files_of_handle(MPI_File handle)
{
    struct mpiio_file *file;

    pthread_mutex_lock(&lock);
    for (file = files; file != NULL && (file->is_kept || file->handle != handle); file = file->next)
        ;
    pthread_mutex_unlock(&lock);
    return file;
}

int mpiio_files_count_open(void)
{
    int count = 0;

    if (__atomic_load_n(&files, __ATOMIC_ACQUIRE) == NULL)
        return 0;
    pthread_mutex_lock(&lock);
    for (struct mpiio_file *file = files; file != NULL; file = file->next)
        count += !file->is_kept;
    pthread_mutex_unlock(&lock);
    return count;
}

int mpiio_files_exchange(MPI_Comm comm)
{
    int count = 0, i = 0, code;
    struct mpiio_file *file;
    int *written;

    for (file = files; file != NULL; file = file->next)
        count++;
    written = malloc((size_t)(count + 1) * sizeof *written);
    if (written == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (file = files; file != NULL; file = file->next)
        written[i++] = file->is_written;
    code = PMPI_Allreduce(MPI_IN_PLACE, written, count, MPI_INT, MPI_MAX, comm);
    i = 0;
    for (file = files; file != NULL && code == MPI_SUCCESS; file = file->next) {
        if (written[i++] && esker_shared_exchange(file->file) < 0)
            code = mpiio_failed("exchange", file->path);
        file->is_written = 0;
    }
    free(written);
    return code;
}

int mpiio_descriptor_open(const char *name)
{
    struct descriptor *made;
    struct mpiio_file *file;
    const char *path;
    int number;

    errno = ENOENT;
    if (__atomic_load_n(&files, __ATOMIC_ACQUIRE) == NULL)
        return -1;
    path = mpiio_path_within(name);

    pthread_mutex_lock(&lock);
    for (file = path == NULL ? NULL : files; file != NULL; file = file->next) {
        if (strcmp(file->path, path) == 0)
            break;
    }
    if (file == NULL) {
        pthread_mutex_unlock(&lock);
        errno = ENOENT;
        return -1;
    }
    made = calloc(1, sizeof *made);
    number = made == NULL ? -1 : fcntl(file->descriptor, F_DUPFD_CLOEXEC, 0);
    if (number < 0 || number >= DESCRIPTORS_MAX) {
        pthread_mutex_unlock(&lock);
        if (number >= 0)
            close(number);
        errno = made == NULL ? ENOMEM : EMFILE;
        free(made);
        return -1;
    }
    made->file = file;
    descriptors[number] = made;
    pthread_mutex_unlock(&lock);
    return number;
}

struct mpiio_file *mpiio_descriptor_file(int number, off_t **position)
{
    struct descriptor *found;

    if (number < 0 || number >= DESCRIPTORS_MAX)
        return NULL;
    found = __atomic_load_n(&descriptors[number], __ATOMIC_ACQUIRE);
    if (found == NULL)
        return NULL;
    if (position != NULL)
        *position = &found->position;
    return found->file;
}

void mpiio_descriptor_close(int number)
{
    struct descriptor *found;

    if (number < 0 || number >= DESCRIPTORS_MAX)
        return;
    pthread_mutex_lock(&lock);
    found = descriptors[number];
    descriptors[number] = NULL;
    pthread_mutex_unlock(&lock);
    free(found);
}
