/* SPDX-License-Identifier: Apache-2.0 */
/* The collective calls of MPI-IO on files of the namespace: all ranks carry them out together in
 * Esker, and then call the MPI library. Calls on other files go to the MPI library as they are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "esker_mpiio.h"

/* Files without handles that are kept open. */
#define KEPT_MAX 16


/* Calls the error handler of a file, which by default does nothing. Without a file it is that of
 * MPI_FILE_NULL, which only MPI itself can call; this function only recognizes the handler that
 * ends the job. */
static int raise_error(MPI_File file, int code)
{
    MPI_Errhandler handler;

    if (code != MPI_SUCCESS && file != MPI_FILE_NULL) {
        PMPI_File_call_errhandler(file, code);
    } else if (code != MPI_SUCCESS) {
        PMPI_File_get_errhandler(MPI_FILE_NULL, &handler);
        if (handler == MPI_ERRORS_ARE_FATAL)
            MPI_Abort(MPI_COMM_WORLD, code);
    }
    return code;
}

/* A copy of `info` that makes the MPI library write each piece as it is. Otherwise it reads the
 * bytes between pieces and writes them back, which would undo changes that other ranks have made
 * meanwhile. */
static MPI_Info without_sieving(MPI_Info info)
{
    MPI_Info copy;

    if (info == MPI_INFO_NULL)
        MPI_Info_create(&copy);
    else
        MPI_Info_dup(info, &copy);
    MPI_Info_set(copy, "romio_cb_write", "disable");
    MPI_Info_set(copy, "romio_ds_write", "disable");
    return copy;
}

#ifdef OMPI_MAJOR_VERSION
/* OMPIO reads the same settings from the environment, before MPI_Init. */
__attribute__((constructor)) static void choose_ompio(void)
{
    setenv("OMPI_MCA_fcoll", "individual", 1);
    setenv("OMPI_MCA_fbtl_posix_write_datasieving", "0", 1);
}
#endif

/* Opens a file in Esker that is not open, or makes it. */
static int open_in_job(const char *path, int creates, int *is_new, struct mpiio_shared **shared)
{
    esker_shared_file *file;
    int code = MPI_SUCCESS;

    *is_new = esker_shared_open(mpiio_job(), path, 0, &file) < 0;
    if (*is_new && (!creates || esker_error_kind() != ESKER_NOT_FOUND))
        return mpiio_failed("open", path);
    if (*is_new && esker_shared_open(mpiio_job(), path, 1, &file) < 0)
        return mpiio_failed("create", path);
    /* From here on no read and no write needs another rank. */
    if (esker_shared_exchange(file) < 0)
        code = mpiio_failed("open", path);
    else if ((*shared = mpiio_shared_add(file, path)) == NULL)
        code = MPI_ERR_NO_MEM;
    if (mpiio_is_true_for_all(code == MPI_SUCCESS))
        return MPI_SUCCESS;
    if (*shared != NULL)
        mpiio_shared_close(*shared);
    else
        esker_shared_close(file);
    return code == MPI_SUCCESS ? MPI_ERR_IO : code;
}

/* Opens a file once for all its handles. */
static int open_shared(const char *path, int amode, struct mpiio_shared **shared)
{
    int code = MPI_SUCCESS, is_new = 0;

    *shared = mpiio_shared_find(path);
    if (*shared != NULL && (*shared)->is_deleted)
        return mpiio_refuse("open", path, "it is deleted, and still open", MPI_ERR_FILE_IN_USE);
    if (*shared == NULL)
        code = open_in_job(path, (amode & MPI_MODE_CREATE) != 0, &is_new, shared);
    if (code == MPI_SUCCESS && !is_new && (amode & MPI_MODE_EXCL) != 0)
        code = MPI_ERR_FILE_EXISTS;
    return code;
}

/* Fails for modes that exclude each other, before anything is made. */
static int check_amode(int amode)
{
    int is_read_only = (amode & MPI_MODE_RDONLY) != 0;
    int modes = is_read_only + ((amode & MPI_MODE_WRONLY) != 0) + ((amode & MPI_MODE_RDWR) != 0);

    if (modes != 1 || (is_read_only && (amode & (MPI_MODE_CREATE | MPI_MODE_EXCL)) != 0))
        return MPI_ERR_AMODE;
    return MPI_SUCCESS;
}

static int open_within(MPI_Comm comm, const char *path, int amode, struct mpiio_shared **shared)
{
    int code = check_amode(amode), relation;

    if (code != MPI_SUCCESS)
        return code;
    MPI_Comm_compare(comm, MPI_COMM_WORLD, &relation);
    if (relation == MPI_UNEQUAL)
        return mpiio_refuse("open", path, "only all processes of MPI_COMM_WORLD together open a file",
                            MPI_ERR_UNSUPPORTED_OPERATION);
    if ((amode & MPI_MODE_SEQUENTIAL) != 0)
        return mpiio_refuse("open", path, "MPI_MODE_SEQUENTIAL needs shared file pointers",
                            MPI_ERR_UNSUPPORTED_OPERATION);
    if ((amode & MPI_MODE_RDONLY) == 0 && !mpiio_job_writes())
        return mpiio_refuse("open", path, "ESKER_MPIIO_WRITE must name what is published",
                            MPI_ERR_READ_ONLY);
    code = mpiio_job_begin();
    if (code == MPI_SUCCESS)
        code = mpiio_job_delete_pending();
    if (code == MPI_SUCCESS && (amode & MPI_MODE_CREATE) != 0)
        code = mpiio_job_make_parents(path);
    return code == MPI_SUCCESS ? open_shared(path, amode, shared) : code;
}

/* Opens the descriptors of the MPI library by its driver for plain files, since no other driver
 * could identify the file system. Leaves out the modes that Esker has carried out, and APPEND, for
 * which ROMIO makes a file of its own beside this one. */
static int open_mpi(MPI_Comm comm, const char *filename, MPI_Info info, struct mpiio_file *file)
{
    const int done = MPI_MODE_EXCL | MPI_MODE_DELETE_ON_CLOSE | MPI_MODE_APPEND;
    char *name = malloc(strlen(filename) + sizeof "ufs:");
    int code = MPI_ERR_NO_MEM, failed;

    if (mpiio_is_true_for_all(name != NULL)) {
        sprintf(name, "ufs:%s", strchr(filename, '/'));
        info = without_sieving(info);
        code = PMPI_File_open(comm, name, file->amode & ~done, info, &file->handle);
        MPI_Info_free(&info);
    }
    free(name);
    failed = code != MPI_SUCCESS;
    if (!mpiio_is_true_for_all(!failed) && code == MPI_SUCCESS) {
        /* It cannot be closed here alone. */
        fprintf(stderr, "esker: open of %s: MPI opened it at some ranks only\n", file->shared->path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (code == MPI_SUCCESS && (file->amode & MPI_MODE_APPEND) != 0)
        code = PMPI_File_seek(file->handle, 0, MPI_SEEK_END);
    return code;
}

int MPI_Init(int *argc, char ***argv)
{
    int code = PMPI_Init(argc, argv);

    return code == MPI_SUCCESS && getenv("ESKER_MPIIO_AT") != NULL ? mpiio_job_expect() : code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int code = PMPI_Init_thread(argc, argv, required, provided);

    return code == MPI_SUCCESS && getenv("ESKER_MPIIO_AT") != NULL ? mpiio_job_expect() : code;
}

/* Removes a handle; the file is kept, or closed if it is deleted. */
static int remove_handle(struct mpiio_file *file)
{
    struct mpiio_shared *shared = file->shared;

    mpiio_files_remove(file);
    if (shared->handles == 0 && shared->is_deleted)
        return mpiio_shared_close(shared);
    return mpiio_shared_close_kept(KEPT_MAX);
}

int MPI_File_open(MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *handle)
{
    struct mpiio_shared *shared = NULL;
    struct mpiio_file *file = NULL;
    char path[MPIIO_PATH_BYTES];
    int code;

    if (!mpiio_path_within(filename, path))
        return PMPI_File_open(comm, filename, amode, info, handle);
    *handle = MPI_FILE_NULL;
    mpiio_lock();
    code = open_within(comm, path, amode, &shared);
    if (code == MPI_SUCCESS) {
        file = mpiio_files_add(shared, amode);
        code = mpiio_is_true_for_all(file != NULL) ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    }
    mpiio_unlock();
    if (code == MPI_SUCCESS)
        code = open_mpi(comm, filename, info, file);
    if (code == MPI_SUCCESS) {
        *handle = file->handle;
        return MPI_SUCCESS;
    }
    if (file != NULL) {
        mpiio_lock();
        remove_handle(file);
        mpiio_unlock();
    }
    return raise_error(MPI_FILE_NULL, code);
}

int MPI_File_get_amode(MPI_File handle, int *amode)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);

    if (file == NULL)
        return PMPI_File_get_amode(handle, amode);
    *amode = file->amode;
    return MPI_SUCCESS;
}

/* Syncs a file; fails at all ranks if a write of one has failed since the last sync. */
static int sync_shared(const char *call, struct mpiio_shared *shared)
{
    int code = MPI_SUCCESS;

    /* Esker waits for late ranks for some minutes only. */
    if (!mpiio_is_true_for_all(!shared->has_failed)) {
        mpiio_job_spoil();
        code = MPI_ERR_IO;
    }
    shared->has_failed = 0;
    if (esker_shared_sync(shared->file) < 0)
        code = mpiio_failed(call, shared->path);
    shared->is_written = 0;
    return code;
}

int MPI_File_close(MPI_File *handle)
{
    struct mpiio_file *file = mpiio_files_of_handle(*handle);
    int code, closed, removed;

    if (file == NULL)
        return PMPI_File_close(handle);
    /* The MPI library may still write. */
    code = PMPI_File_close(handle);
    mpiio_lock();
    closed = sync_shared("close", file->shared);
    file->shared->is_deleted |= (file->amode & MPI_MODE_DELETE_ON_CLOSE) != 0;
    removed = remove_handle(file);
    mpiio_unlock();
    if (code == MPI_SUCCESS)
        code = closed == MPI_SUCCESS ? removed : closed;
    return raise_error(MPI_FILE_NULL, code);
}

int MPI_File_delete(const char *filename, MPI_Info info)
{
    char path[MPIIO_PATH_BYTES];

    if (!mpiio_path_within(filename, path))
        return PMPI_File_delete(filename, info);
    if (!mpiio_job_writes())
        return raise_error(MPI_FILE_NULL, mpiio_refuse("delete", path, "ESKER_MPIIO_WRITE is not set",
                                                       MPI_ERR_READ_ONLY));
    /* One rank calls this, but all must take part; they do so in the next open or at the end. */
    if (mpiio_job_delete_later(path) < 0)
        return raise_error(MPI_FILE_NULL, MPI_ERR_NO_MEM);
    return MPI_SUCCESS;
}

int MPI_File_sync(MPI_File handle)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);
    int code = PMPI_File_sync(handle), synced;

    if (file == NULL)
        return code;
    mpiio_lock();
    synced = sync_shared("sync", file->shared);
    mpiio_unlock();
    return raise_error(handle, code == MPI_SUCCESS ? synced : code);
}

/* Libraries order their writes by barriers: HDF5 fills a chunk at one rank, waits, and writes to it
 * at another. A file system shows and orders writes as they come, so a barrier of all ranks must do
 * the same here. */
int MPI_Barrier(MPI_Comm comm)
{
    int code, is_inter = 1, size = 0, all = -1;

    if (!mpiio_files_is_any_open())
        return PMPI_Barrier(comm);
    PMPI_Comm_test_inter(comm, &is_inter);
    PMPI_Comm_size(comm, &size);
    PMPI_Comm_size(MPI_COMM_WORLD, &all);
    if (is_inter || size != all)
        return PMPI_Barrier(comm);
    mpiio_lock();
    code = mpiio_files_exchange();
    mpiio_unlock();
    return code;
}

/* Changes the size to `size`, or to that only if it is smaller. */
static int resize(const char *call, MPI_File handle, MPI_Offset size, int only_grows)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);
    int code = MPI_SUCCESS;
    uint64_t now = 0;

    if (size < 0)
        return raise_error(handle, MPI_ERR_ARG);
    if ((file->amode & MPI_MODE_RDONLY) != 0)
        return raise_error(handle, MPI_ERR_READ_ONLY);
    PMPI_Barrier(mpiio_world());
    mpiio_lock();
    if ((only_grows && esker_shared_stat(file->shared->file, &now, NULL) < 0)
        || ((!only_grows || now < (uint64_t)size)
            && esker_shared_truncate(file->shared->file, (uint64_t)size) < 0))
        code = mpiio_failed(call, file->shared->path);
    mpiio_unlock();
    return raise_error(handle, code);
}

int MPI_File_set_size(MPI_File handle, MPI_Offset size)
{
    if (mpiio_files_of_handle(handle) == NULL)
        return PMPI_File_set_size(handle, size);
    return resize("set_size", handle, size, 0);
}

int MPI_File_preallocate(MPI_File handle, MPI_Offset size)
{
    if (mpiio_files_of_handle(handle) == NULL)
        return PMPI_File_preallocate(handle, size);
    /* Logs take no space before they are written, but the size must be as on a file system. */
    return resize("preallocate", handle, size, 1);
}

int MPI_File_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype element,
                      MPI_Datatype view, const char *representation, MPI_Info info)
{
    int code;

    if (mpiio_files_of_handle(handle) == NULL)
        return PMPI_File_set_view(handle, displacement, element, view, representation, info);
    info = without_sieving(info);
    code = PMPI_File_set_view(handle, displacement, element, view, representation, info);
    MPI_Info_free(&info);
    return code;
}

int MPI_File_set_info(MPI_File handle, MPI_Info info)
{
    int code;

    if (mpiio_files_of_handle(handle) == NULL)
        return PMPI_File_set_info(handle, info);
    info = without_sieving(info);
    code = PMPI_File_set_info(handle, info);
    MPI_Info_free(&info);
    return code;
}

int MPI_File_set_atomicity(MPI_File handle, int flag)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);

    if (file == NULL || !flag)
        return PMPI_File_set_atomicity(handle, flag);
    return raise_error(handle, mpiio_refuse("set_atomicity", file->shared->path,
                                            "ranks see each other's writes after MPI_File_sync only",
                                            MPI_ERR_UNSUPPORTED_OPERATION));
}

/* Shared file pointers. */
static int is_refused(MPI_File handle, const char *call)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);

    if (file == NULL)
        return 0;
    mpiio_refuse(call, file->shared->path, "shared file pointers are not supported; use offsets",
                 MPI_ERR_UNSUPPORTED_OPERATION);
    return 1;
}

#define SHARED_POINTER(call, parameters, arguments)                                                \
    int MPI_File_##call parameters                                                                 \
    {                                                                                              \
        if (is_refused(handle, #call))                                                             \
            return raise_error(handle, MPI_ERR_UNSUPPORTED_OPERATION);                             \
        return PMPI_File_##call arguments;                                                         \
    }

SHARED_POINTER(read_shared,
               (MPI_File handle, void *buffer, int count, MPI_Datatype type, MPI_Status *status),
               (handle, buffer, count, type, status))
SHARED_POINTER(write_shared,
               (MPI_File handle, const void *buffer, int count, MPI_Datatype type, MPI_Status *status),
               (handle, buffer, count, type, status))
SHARED_POINTER(read_ordered,
               (MPI_File handle, void *buffer, int count, MPI_Datatype type, MPI_Status *status),
               (handle, buffer, count, type, status))
SHARED_POINTER(write_ordered,
               (MPI_File handle, const void *buffer, int count, MPI_Datatype type, MPI_Status *status),
               (handle, buffer, count, type, status))
SHARED_POINTER(iread_shared,
               (MPI_File handle, void *buffer, int count, MPI_Datatype type, MPI_Request *request),
               (handle, buffer, count, type, request))
SHARED_POINTER(iwrite_shared,
               (MPI_File handle, const void *buffer, int count, MPI_Datatype type, MPI_Request *request),
               (handle, buffer, count, type, request))
SHARED_POINTER(read_ordered_begin, (MPI_File handle, void *buffer, int count, MPI_Datatype type),
               (handle, buffer, count, type))
SHARED_POINTER(write_ordered_begin,
               (MPI_File handle, const void *buffer, int count, MPI_Datatype type),
               (handle, buffer, count, type))
SHARED_POINTER(seek_shared, (MPI_File handle, MPI_Offset offset, int whence), (handle, offset, whence))
SHARED_POINTER(get_position_shared, (MPI_File handle, MPI_Offset * offset), (handle, offset))
