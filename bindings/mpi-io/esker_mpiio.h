/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of MPI-IO that are shared files of Esker: what the parts of libesker_mpiio.so share.
 *
 *   mpi_file.c    the collective calls of MPI-IO, in front of the MPI library's own ones
 *   fortran.c     the same calls under their Fortran names
 *   posix.c       the calls of libc by which the MPI library then reads and writes a file
 *   job.c         the job of Esker in which all ranks write, from the first open to MPI_Finalize
 *   files.c       the open files, and which descriptors stand for them
 *
 * The MPI library's own code stays between the program and the file: views, datatypes, file pointers,
 * nonblocking calls. It opens a descriptor and reads and writes at offsets; these calls reach Esker, and
 * never another rank: what ranks must do together happens in the collective calls. A rank sees the writes
 * of others after MPI_File_sync or MPI_File_close, as MPI's rule is, and after MPI_Barrier.
 */
#ifndef ESKER_MPIIO_H
#define ESKER_MPIIO_H

#include <mpi.h>
#include <stdint.h>
#include <sys/types.h>

#include "esker.h"

/* A file that is open, or was closed by the program and is kept: it is synced, and this rank has its
 * index, so that it is opened again at once, and that libraries may look at it by POSIX calls. */
struct mpiio_file {
    struct mpiio_file *next;
    MPI_File handle;         /* MPI_FILE_NULL while it is being opened, and once it is closed */
    esker_shared_file *file;
    char *path;              /* within the namespace */
    int amode;
    int is_written;          /* since ranks last exchanged what they wrote */
    int is_kept;
    int descriptor;          /* its descriptors are duplicates of this one */
};

/* ---- files.c ---- */

/* Adds a file that is opened in a mode; NULL if memory or descriptors run out. */
struct mpiio_file *mpiio_files_add(esker_shared_file *file, const char *path, int amode);
/* Keeps a file that is closed, and removes and closes others if too many are kept. Collective; returns a
 * class of MPI's errors. */
int mpiio_files_keep(struct mpiio_file *file);
/* Takes a kept file of this path out; NULL if there is none. Gives up its descriptors. */
esker_shared_file *mpiio_files_take_kept(const char *path);
/* Removes a file, and gives up its descriptors. Its Esker file stays open. */
void mpiio_files_remove(struct mpiio_file *file);
/* Closes all kept files. Collective; returns a class of MPI's errors. */
int mpiio_files_close_kept(void);
/* The open file with this handle, or NULL. */
struct mpiio_file *mpiio_files_of_handle(MPI_File handle);
/* Files that are open, not counting kept ones. */
int mpiio_files_count_open(void);
/* Shows all ranks of `comm`, which has all, what others wrote to open files, and waits for all of them.
 * Collective. */
int mpiio_files_exchange(MPI_Comm comm);
/* Makes a descriptor of the file that is opened by `name`: -1 with errno ENOENT if it is none of these
 * files. */
int mpiio_descriptor_open(const char *name);
/* The file of a descriptor, or NULL, and the descriptor's place in the file. */
struct mpiio_file *mpiio_descriptor_file(int descriptor, off_t **position);
void mpiio_descriptor_close(int descriptor);

/* ---- job.c ---- */

/* The path within the namespace of a file name that lies in it; NULL for all others. */
const char *mpiio_path_within(const char *name);
/* Begins the job at the first call. Collective over MPI_COMM_WORLD. Returns a class of MPI's errors. */
int mpiio_job_begin(void);
esker_shared_job *mpiio_job(void);
/* True if the job publishes what it writes. */
int mpiio_job_writes(void);
/* Makes the directories above a file. Collective; returns a class of MPI's errors. */
int mpiio_job_make_parents(const char *path);
/* Removes files that ranks deleted since the last call. Collective. */
int mpiio_job_delete_pending(void);
/* Notes a file for that; returns 0, or -1 without memory. */
int mpiio_job_delete_later(const char *path);
/* Held during each call of Esker, since threads may read and write at once. */
void mpiio_lock(void);
void mpiio_unlock(void);
/* Prints the last failure of Esker in this thread, and returns its class among MPI's errors. */
int mpiio_failed(const char *call, const char *path);
/* Prints why a call is refused; returns `class_`. */
int mpiio_refuse(const char *call, const char *path, const char *why, int class_);

#endif
