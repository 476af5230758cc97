/* SPDX-License-Identifier: Apache-2.0 */
/* The collective calls of MPI-IO on files of the namespace: what all ranks do together in Esker, and
 * then the call of the MPI library. Calls on other files go to the MPI library as they are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "esker_mpiio.h"


/* Calls the error handler of a file, which by default does nothing. Without a file it is that of
 * MPI_FILE_NULL, which only MPI itself can call: of these, the one that ends the job is known. */
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

/* A copy of `info` by which the MPI library writes each piece as it is. Its other ways read what lies
 * between pieces and write it back, which would bring back what other ranks have changed meanwhile. */
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
/* OMPIO takes the same choices from the environment, before MPI_Init. */
__attribute__((constructor)) static void choose_ompio(void)
{
    setenv("OMPI_MCA_fcoll", "individual", 1);
    setenv("OMPI_MCA_fbtl_posix_write_datasieving", "0", 1);
}
#endif

/* Opens the file in Esker. */
static int open_shared(const char *path, int amode, esker_shared_file **file)
{
    int creates = (amode & MPI_MODE_CREATE) != 0;

    *file = mpiio_files_take_kept(path);
    if (*file == NULL && esker_shared_open(mpiio_job(), path, 0, file) < 0) {
        if (!creates || esker_error_kind() != ESKER_NOT_FOUND)
            return mpiio_failed("open", path);
        if (esker_shared_open(mpiio_job(), path, 1, file) < 0)
            return mpiio_failed("create", path);
    } else if ((amode & MPI_MODE_EXCL) != 0) {
        esker_shared_close(*file);
        return MPI_ERR_FILE_EXISTS;
    }
    /* From here on no read and no write needs another rank. */
    if (esker_shared_exchange(*file) < 0) {
        int code = mpiio_failed("open", path);

        esker_shared_close(*file);
        return code;
    }
    return MPI_SUCCESS;
}

static int open_within(MPI_Comm comm, const char *path, int amode, esker_shared_file **file)
{
    int code, relation, writes = (amode & (MPI_MODE_WRONLY | MPI_MODE_RDWR)) != 0;

    MPI_Comm_compare(comm, MPI_COMM_WORLD, &relation);
    if (relation == MPI_UNEQUAL)
        return mpiio_refuse("open", path, "only all processes of MPI_COMM_WORLD together open a file",
                            MPI_ERR_UNSUPPORTED_OPERATION);
    if ((amode & MPI_MODE_SEQUENTIAL) != 0)
        return mpiio_refuse("open", path, "MPI_MODE_SEQUENTIAL needs shared file pointers",
                            MPI_ERR_UNSUPPORTED_OPERATION);
    if (writes && !mpiio_job_writes())
        return mpiio_refuse("open", path, "ESKER_MPIIO_WRITE must name what is published",
                            MPI_ERR_READ_ONLY);
    code = mpiio_job_begin();
    if (code == MPI_SUCCESS)
        code = mpiio_job_delete_pending();
    if (code == MPI_SUCCESS && (amode & MPI_MODE_CREATE) != 0)
        code = mpiio_job_make_parents(path);
    return code == MPI_SUCCESS ? open_shared(path, amode, file) : code;
}

/* Opens the descriptors of the MPI library, by the driver of plain files: no other would find out what
 * file system this is. Without the modes that Esker has carried out, and without APPEND, for which
 * ROMIO makes a file of its own beside this one. */
static int open_mpi(MPI_Comm comm, const char *filename, MPI_Info info, struct mpiio_file *file)
{
    const int done = MPI_MODE_EXCL | MPI_MODE_DELETE_ON_CLOSE | MPI_MODE_APPEND;
    char *name = malloc(strlen(filename) + sizeof "ufs:");
    int code = MPI_ERR_NO_MEM, has_name = name != NULL, failed;

    MPI_Allreduce(MPI_IN_PLACE, &has_name, 1, MPI_INT, MPI_MIN, comm);
    if (has_name) {
        sprintf(name, "ufs:%s", strchr(filename, '/'));
        info = without_sieving(info);
        code = PMPI_File_open(comm, name, file->amode & ~done, info, &file->handle);
        MPI_Info_free(&info);
    }
    free(name);
    failed = code != MPI_SUCCESS;
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, comm);
    if (failed && code == MPI_SUCCESS) {
        /* It cannot be closed here alone. */
        fprintf(stderr, "esker: open of %s: MPI opened it at some ranks only\n", file->path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (code == MPI_SUCCESS && (file->amode & MPI_MODE_APPEND) != 0)
        code = PMPI_File_seek(file->handle, 0, MPI_SEEK_END);
    return code;
}

int MPI_File_open(MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *handle)
{
    const char *path = mpiio_path_within(filename);
    esker_shared_file *shared;
    struct mpiio_file *file;
    int code, has_all;

    if (path == NULL)
        return PMPI_File_open(comm, filename, amode, info, handle);
    *handle = MPI_FILE_NULL;
    mpiio_lock();
    code = open_within(comm, path, amode, &shared);
    mpiio_unlock();
    if (code != MPI_SUCCESS)
        return raise_error(MPI_FILE_NULL, code);
    file = mpiio_files_add(shared, path, amode);
    has_all = file != NULL;
    MPI_Allreduce(MPI_IN_PLACE, &has_all, 1, MPI_INT, MPI_MIN, comm);
    code = has_all ? open_mpi(comm, filename, info, file) : MPI_ERR_NO_MEM;
    if (code == MPI_SUCCESS) {
        *handle = file->handle;
        return MPI_SUCCESS;
    }
    if (file != NULL)
        mpiio_files_remove(file);
    mpiio_lock();
    esker_shared_close(shared);
    mpiio_unlock();
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

int MPI_File_close(MPI_File *handle)
{
    struct mpiio_file *file = mpiio_files_of_handle(*handle);
    int code, closed = MPI_SUCCESS;

    if (file == NULL)
        return PMPI_File_close(handle);
    /* The MPI library may still write. */
    code = PMPI_File_close(handle);
    mpiio_lock();
    if (esker_shared_sync(file->file) < 0)
        closed = mpiio_failed("close", file->path);
    if (closed == MPI_SUCCESS && (file->amode & MPI_MODE_DELETE_ON_CLOSE) == 0) {
        closed = mpiio_files_keep(file);
    } else {
        esker_shared_close(file->file);
        if (closed == MPI_SUCCESS && esker_shared_unlink(mpiio_job(), file->path) < 0)
            closed = mpiio_failed("delete", file->path);
        mpiio_files_remove(file);
    }
    mpiio_unlock();
    return raise_error(MPI_FILE_NULL, code == MPI_SUCCESS ? closed : code);
}

int MPI_File_delete(const char *filename, MPI_Info info)
{
    const char *path = mpiio_path_within(filename);

    if (path == NULL)
        return PMPI_File_delete(filename, info);
    if (!mpiio_job_writes())
        return raise_error(MPI_FILE_NULL, mpiio_refuse("delete", path, "ESKER_MPIIO_WRITE is not set",
                                                       MPI_ERR_READ_ONLY));
    /* One rank calls it; all have to take part, which they do in the next open or at the end. */
    if (mpiio_job_delete_later(path) < 0)
        return raise_error(MPI_FILE_NULL, MPI_ERR_NO_MEM);
    return MPI_SUCCESS;
}

int MPI_File_sync(MPI_File handle)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);
    int code;

    code = PMPI_File_sync(handle);
    if (file == NULL)
        return code;
    mpiio_lock();
    if (esker_shared_sync(file->file) < 0)
        code = mpiio_failed("sync", file->path);
    mpiio_unlock();
    return raise_error(handle, code);
}

/* Libraries order their writes by barriers: HDF5 fills a chunk at one rank, waits, and writes to it at
 * another. A file system shows and orders writes as they come, so a barrier of all ranks does. */
int MPI_Barrier(MPI_Comm comm)
{
    int code, is_inter = 1, size = 0, all = -1;

    if (mpiio_files_count_open() == 0)
        return PMPI_Barrier(comm);
    PMPI_Comm_test_inter(comm, &is_inter);
    PMPI_Comm_size(comm, &size);
    PMPI_Comm_size(MPI_COMM_WORLD, &all);
    if (is_inter || size != all)
        return PMPI_Barrier(comm);
    mpiio_lock();
    code = mpiio_files_exchange(comm);
    mpiio_unlock();
    return code;
}

int MPI_File_set_size(MPI_File handle, MPI_Offset size)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);
    int code = MPI_SUCCESS;

    if (file == NULL)
        return PMPI_File_set_size(handle, size);
    if (size < 0)
        return raise_error(handle, MPI_ERR_ARG);
    mpiio_lock();
    if (esker_shared_truncate(file->file, (uint64_t)size) < 0)
        code = mpiio_failed("set_size", file->path);
    mpiio_unlock();
    return raise_error(handle, code);
}

int MPI_File_preallocate(MPI_File handle, MPI_Offset size)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);
    int code = MPI_SUCCESS;
    uint64_t now;

    if (file == NULL)
        return PMPI_File_preallocate(handle, size);
    if (size < 0)
        return raise_error(handle, MPI_ERR_ARG);
    /* Logs take no space before they are written, but the size must be what it would be. */
    mpiio_lock();
    if (esker_shared_stat(file->file, &now, NULL) < 0
        || (now < (uint64_t)size && esker_shared_truncate(file->file, (uint64_t)size) < 0))
        code = mpiio_failed("preallocate", file->path);
    mpiio_unlock();
    return raise_error(handle, code);
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
    return raise_error(handle, mpiio_refuse("set_atomicity", file->path,
                                            "ranks see each other's writes after MPI_File_sync only",
                                            MPI_ERR_UNSUPPORTED_OPERATION));
}

/* Shared file pointers. */
static int is_refused(MPI_File handle, const char *call)
{
    struct mpiio_file *file = mpiio_files_of_handle(handle);

    if (file == NULL)
        return 0;
    mpiio_refuse(call, file->path, "shared file pointers are not supported; use offsets",
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
