/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of MPI-IO that are shared files of Esker: the declarations that the parts of
 * libesker_mpiio.so share.
 *
 *   mpi_file.c    the collective calls of MPI-IO, in front of the MPI library's own ones
 *   fortran.c     the same calls under their Fortran names
 *   posix.c       the calls of libc by which the MPI library then reads and writes a file
 *   job.c         the job of Esker in which all ranks write, from the first open to MPI_Finalize
 *   files.c       the open files, and which descriptors stand for them
 *
 * The MPI library's own code stays between the program and the file: views, datatypes, file
 * pointers, nonblocking calls. It opens a descriptor and reads and writes at offsets; these calls
 * reach Esker, and never another rank: work that takes all ranks is done in the collective calls. A
 * rank sees the writes of others after MPI_File_sync or MPI_File_close, by MPI's rule, and also
 * after MPI_Barrier.
 */
#ifndef ESKER_MPIIO_H
#define ESKER_MPIIO_H

#include <mpi.h>
#include <stdint.h>
#include <sys/types.h>

#include "esker.h"

/* A file of the job that is open, once for all of its handles, or was open and is kept. A kept file
 * is synced, and this rank has its index, so it can be opened again at once, and libraries may read
 * it by POSIX calls. */
struct mpiio_shared {
    struct mpiio_shared *next;
    esker_shared_file *file;
    char *path;              /* within the namespace */
    int handles;             /* that are open; 0: it is kept */
    int is_written;          /* since ranks last exchanged what they wrote */
    int has_failed;          /* a write to it failed, and no sync has said so yet */
    int is_deleted;          /* it is removed when its last handle is closed */
    int descriptor;          /* its descriptors are duplicates of this one */
};

/* An open file of the program. */
struct mpiio_file {
    struct mpiio_file *next;
    MPI_File handle;         /* MPI_FILE_NULL while it is being opened */
    int amode;
    struct mpiio_shared *shared;
};

/* ---- files.c ---- */

/* Adds a file of the job, without handles; NULL if memory or descriptors run out. */
struct mpiio_shared *mpiio_shared_add(esker_shared_file *file, const char *path);
/* The file with this path, or NULL: a rank knows no other files without asking. */
struct mpiio_shared *mpiio_shared_find(const char *path);
/* Closes a file without handles, and removes it from the job if it is deleted. Collective, as the
 * next one; returns a class of MPI's errors. */
int mpiio_shared_close(struct mpiio_shared *shared);
/* Closes all files without handles but the `count_max` that were added last. */
int mpiio_shared_close_kept(int count_max);
/* Adds a handle of a file; NULL without memory. */
struct mpiio_file *mpiio_files_add(struct mpiio_shared *shared, int amode);
void mpiio_files_remove(struct mpiio_file *file);
/* The open file with this handle, or NULL. */
struct mpiio_file *mpiio_files_of_handle(MPI_File handle);
int mpiio_files_is_any_open(void);
/* Shows all ranks what others wrote to open files, and waits for all of them. Collective. */
int mpiio_files_exchange(void);
/* Makes a descriptor of the file that is opened by `name`: -1 with errno ENOENT if it is none of
 * these files. */
int mpiio_descriptor_open(const char *name);
/* The file of a descriptor, or NULL, and the descriptor's place in the file. */
struct mpiio_shared *mpiio_descriptor_file(int descriptor, off_t **position);
/* Forgets a descriptor that is closed. Takes no lock, since signal handlers and children close
 * files. */
void mpiio_descriptor_close(int descriptor);

/* ---- job.c ---- */

#define MPIIO_PATH_BYTES 4096
/* Finds the path within the namespace of a file name that lies in it, without `.`, `..` and doubled
 * slashes; returns 0 for all others. */
int mpiio_path_within(const char *name, char path[MPIIO_PATH_BYTES]);
/* All ranks, by a communicator of this library. */
MPI_Comm mpiio_world(void);
/* Collective: true if `truth` is, at all ranks. */
int mpiio_is_true_for_all(int truth);
/* Arranges for the job to be published at the end of MPI. Called after MPI_Init, or at the first
 * open. */
int mpiio_job_expect(void);
/* Begins the job at the first call. Collective over MPI_COMM_WORLD. Returns a class of MPI's
 * errors. */
int mpiio_job_begin(void);
esker_shared_job *mpiio_job(void);
/* True if the job publishes what it writes. */
int mpiio_job_writes(void);
/* Makes the directories above a file. Collective; returns a class of MPI's errors. */
int mpiio_job_make_parents(const char *path);
/* Removes files that ranks deleted since the last call. Collective. */
int mpiio_job_delete_pending(void);
/* Records a file for that; returns 0, or -1 without memory. */
int mpiio_job_delete_later(const char *path);
/* Keeps the job from being published, since bytes are missing. */
void mpiio_job_spoil(void);
/* Held during each call of Esker, since threads may read and write at once. */
void mpiio_lock(void);
void mpiio_unlock(void);
/* Prints the last failure of Esker in this thread, and returns its class among MPI's errors. */
int mpiio_failed(const char *call, const char *path);
/* Prints why a call is refused; returns `class_`. */
int mpiio_refuse(const char *call, const char *path, const char *why, int class_);

#endif
