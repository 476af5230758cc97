/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of libc by which an MPI library reads and writes a file, for descriptors of files.c;
 * all other descriptors go to libc.
 *
 * ROMIO (of MPICH, Intel MPI, Cray MPICH and Open MPI) and OMPIO (of Open MPI) call open, close,
 * pread, pwrite, preadv, pwritev, read, write, lseek, fsync, ftruncate, fcntl for locks, aio_read
 * and aio_write. PnetCDF also asks for files, reads their first bytes and empties them. Sync and
 * truncation have happened at all ranks in mpi_file.c. Locks are not needed, since a write never
 * reads the bytes beside it. Asynchronous calls are carried out at once. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#include "esker_mpiio.h"

/* Calls the next definition of the function, which is that of libc. */
#define LIBC(name, type)                                                                           \
    static __typeof__(type) libc_##name;                                                           \
    static __typeof__(type) load_##name(void)                                                      \
    {                                                                                              \
        __typeof__(type) found = __atomic_load_n(&libc_##name, __ATOMIC_RELAXED);                  \
        if (found == NULL) {                                                                       \
            *(void **)&found = dlsym(RTLD_NEXT, #name);                                            \
            __atomic_store_n(&libc_##name, found, __ATOMIC_RELAXED);                               \
        }                                                                                          \
        return found;                                                                              \
    }

/* Reads or writes at an offset. Returns the bytes, or -1 with errno. */
static ssize_t transfer(struct mpiio_shared *file, void *buffer, size_t bytes, off_t offset, int writes)
{
    int64_t moved;

    if (offset < 0) {
        errno = EINVAL;
        return -1;
    }
    if (writes && file->handles == 0) {
        errno = EBADF;
        return -1;
    }
    if (bytes > SSIZE_MAX)
        bytes = SSIZE_MAX;
    mpiio_lock();
    moved = writes ? esker_shared_pwrite(file->file, buffer, bytes, (uint64_t)offset)
                   : esker_shared_pread(file->file, buffer, bytes, (uint64_t)offset);
    if (writes)
        file->is_written = 1;
    if (moved < 0) {
        mpiio_failed(writes ? "write" : "read", file->path);
        /* The MPI library does not always tell the program. */
        file->has_failed |= writes;
    }
    mpiio_unlock();
    if (moved < 0) {
        errno = (int)-moved;
        return -1;
    }
    return (ssize_t)moved;
}

static ssize_t transfer_all(struct mpiio_shared *file, const struct iovec *pieces, int count,
                            off_t offset, int writes)
{
    ssize_t moved = 0;

    if (count < 0 || count > IOV_MAX) {
        errno = EINVAL;
        return -1;
    }
    for (int i = 0; i < count; i++) {
        ssize_t part = transfer(file, pieces[i].iov_base, pieces[i].iov_len, offset + moved, writes);

        if (part < 0)
            return moved > 0 ? moved : -1;
        moved += part;
        if ((size_t)part < pieces[i].iov_len)
            break;
    }
    return moved;
}

#define OPEN(name)                                                                                 \
    LIBC(name, int (*)(const char *, int, ...))                                                    \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        mode_t mode = 0;                                                                           \
        if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {                          \
            va_list arguments;                                                                     \
            va_start(arguments, flags);                                                            \
            mode = va_arg(arguments, mode_t);                                                      \
            va_end(arguments);                                                                     \
        }                                                                                          \
        int before = errno, made = mpiio_descriptor_open(path);                                    \
        if (made >= 0 || errno != ENOENT)                                                          \
            return made;                                                                           \
        errno = before;                                                                            \
        return load_##name()(path, flags, mode);                                                   \
    }

#define PREAD(name, offset_type)                                                                   \
    LIBC(name, ssize_t (*)(int, void *, size_t, offset_type))                                      \
    ssize_t name(int descriptor, void *buffer, size_t bytes, offset_type offset)                   \
    {                                                                                              \
        struct mpiio_shared *file = mpiio_descriptor_file(descriptor, NULL);                       \
        return file == NULL ? load_##name()(descriptor, buffer, bytes, offset)                     \
                            : transfer(file, buffer, bytes, offset, 0);                            \
    }

#define PWRITE(name, offset_type)                                                                  \
    LIBC(name, ssize_t (*)(int, const void *, size_t, offset_type))                                \
    ssize_t name(int descriptor, const void *buffer, size_t bytes, offset_type offset)             \
    {                                                                                              \
        struct mpiio_shared *file = mpiio_descriptor_file(descriptor, NULL);                       \
        return file == NULL ? load_##name()(descriptor, buffer, bytes, offset)                     \
                            : transfer(file, (void *)(uintptr_t)buffer, bytes, offset, 1);         \
    }

#define VECTOR(name, offset_type, writes)                                                          \
    LIBC(name, ssize_t (*)(int, const struct iovec *, int, offset_type))                           \
    ssize_t name(int descriptor, const struct iovec *pieces, int count, offset_type offset)        \
    {                                                                                              \
        struct mpiio_shared *file = mpiio_descriptor_file(descriptor, NULL);                       \
        return file == NULL ? load_##name()(descriptor, pieces, count, offset)                     \
                            : transfer_all(file, pieces, count, offset, writes);                   \
    }

#define LSEEK(name, offset_type)                                                                   \
    LIBC(name, offset_type (*)(int, offset_type, int))                                             \
    offset_type name(int descriptor, offset_type offset, int whence)                               \
    {                                                                                              \
        off_t *position;                                                                           \
        struct mpiio_shared *file = mpiio_descriptor_file(descriptor, &position);                  \
        return file == NULL ? load_##name()(descriptor, offset, whence)                            \
                            : move(file, position, offset, whence);                                \
    }

#define FTRUNCATE(name, offset_type)                                                               \
    LIBC(name, int (*)(int, offset_type))                                                          \
    int name(int descriptor, offset_type size)                                                     \
    {                                                                                              \
        return mpiio_descriptor_file(descriptor, NULL) == NULL ? load_##name()(descriptor, size)   \
                                                               : 0;                                \
    }

#define FCNTL(name)                                                                                \
    LIBC(name, int (*)(int, int, ...))                                                             \
    int name(int descriptor, int command, ...)                                                     \
    {                                                                                              \
        va_list arguments;                                                                         \
        void *argument;                                                                            \
        va_start(arguments, command);                                                              \
        argument = va_arg(arguments, void *);                                                      \
        va_end(arguments);                                                                         \
        if (is_lock(command) && mpiio_descriptor_file(descriptor, NULL) != NULL) {                 \
            if (command == F_GETLK || command == F_OFD_GETLK)                                      \
                ((struct flock *)argument)->l_type = F_UNLCK;                                      \
            return 0;                                                                              \
        }                                                                                          \
        return load_##name()(descriptor, command, argument);                                       \
    }

static off_t move(struct mpiio_shared *file, off_t *position, off_t offset, int whence)
{
    off_t from = 0, to;

    if (whence == SEEK_CUR) {
        from = *position;
    } else if (whence == SEEK_END) {
        mpiio_lock();
        from = esker_shared_known_size(file->file);
        mpiio_unlock();
    }
    if ((whence != SEEK_SET && whence != SEEK_CUR && whence != SEEK_END) || from < 0
        || __builtin_add_overflow(from, offset, &to) || to < 0) {
        errno = EINVAL;
        return -1;
    }
    return *position = to;
}

static int is_lock(int command)
{
    return command == F_SETLK || command == F_SETLKW || command == F_GETLK || command == F_OFD_SETLK
           || command == F_OFD_SETLKW || command == F_OFD_GETLK;
}

OPEN(open)
PREAD(pread, off_t)
PWRITE(pwrite, off_t)
VECTOR(preadv, off_t, 0)
VECTOR(pwritev, off_t, 1)
LSEEK(lseek, off_t)
FTRUNCATE(ftruncate, off_t)
FCNTL(fcntl)

/* The second names of programs that were compiled for files over 2 GiB. */
OPEN(open64)
PREAD(pread64, off64_t)
PWRITE(pwrite64, off64_t)
VECTOR(preadv64, off64_t, 0)
VECTOR(pwritev64, off64_t, 1)
LSEEK(lseek64, off64_t)
FTRUNCATE(ftruncate64, off64_t)
FCNTL(fcntl64)

LIBC(close, int (*)(int))
int close(int descriptor)
{
    mpiio_descriptor_close(descriptor);
    return load_close()(descriptor);
}

/* Other descriptors take the numbers. */
LIBC(dup2, int (*)(int, int))
int dup2(int from, int to)
{
    int made = load_dup2()(from, to);

    if (made >= 0 && from != to)
        mpiio_descriptor_close(to);
    return made;
}

LIBC(dup3, int (*)(int, int, int))
int dup3(int from, int to, int flags)
{
    int made = load_dup3()(from, to, flags);

    if (made >= 0)
        mpiio_descriptor_close(to);
    return made;
}

/* A rank alone knows nothing of files of earlier runs that this run has not opened. */
LIBC(access, int (*)(const char *, int))
int access(const char *name, int mode)
{
    char path[MPIIO_PATH_BYTES];

    if (!mpiio_path_within(name, path))
        return load_access()(name, mode);
    if (mpiio_shared_find(path) != NULL)
        return 0;
    errno = ENOENT;
    return -1;
}

/* Emptying a file takes all ranks: as after a deletion, the next open finds a new file. */
static int empty(const char *path, off_t size)
{
    if (mpiio_shared_find(path) == NULL)
        errno = ENOENT;
    else if (!mpiio_job_writes())
        errno = EROFS;
    else if (size != 0)
        errno = EOPNOTSUPP;
    else
        return mpiio_job_delete_later(path);
    return -1;
}

#define TRUNCATE(name, offset_type)                                                                \
    LIBC(name, int (*)(const char *, offset_type))                                                 \
    int name(const char *file, offset_type size)                                                   \
    {                                                                                              \
        char path[MPIIO_PATH_BYTES];                                                               \
        return mpiio_path_within(file, path) ? empty(path, size) : load_##name()(file, size);      \
    }

TRUNCATE(truncate, off_t)
TRUNCATE(truncate64, off64_t)

LIBC(read, ssize_t (*)(int, void *, size_t))
ssize_t read(int descriptor, void *buffer, size_t bytes)
{
    off_t *position;
    struct mpiio_shared *file = mpiio_descriptor_file(descriptor, &position);
    ssize_t moved;

    if (file == NULL)
        return load_read()(descriptor, buffer, bytes);
    moved = transfer(file, buffer, bytes, *position, 0);
    *position += moved > 0 ? moved : 0;
    return moved;
}

LIBC(write, ssize_t (*)(int, const void *, size_t))
ssize_t write(int descriptor, const void *buffer, size_t bytes)
{
    off_t *position;
    struct mpiio_shared *file = mpiio_descriptor_file(descriptor, &position);
    ssize_t moved;

    if (file == NULL)
        return load_write()(descriptor, buffer, bytes);
    moved = transfer(file, (void *)(uintptr_t)buffer, bytes, *position, 1);
    *position += moved > 0 ? moved : 0;
    return moved;
}

LIBC(fsync, int (*)(int))
int fsync(int descriptor)
{
    return mpiio_descriptor_file(descriptor, NULL) == NULL ? load_fsync()(descriptor) : 0;
}

LIBC(fdatasync, int (*)(int))
int fdatasync(int descriptor)
{
    return mpiio_descriptor_file(descriptor, NULL) == NULL ? load_fdatasync()(descriptor) : 0;
}

/* glibc's aio_error, aio_return and aio_suspend look no further than at these two fields. */
static int carry_out(struct mpiio_shared *file, struct aiocb *request, int writes)
{
    ssize_t moved = transfer(file, (void *)(uintptr_t)request->aio_buf, request->aio_nbytes,
                             request->aio_offset, writes);

    request->__error_code = moved < 0 ? errno : 0;
    request->__return_value = moved;
    return 0;
}

#define AIO(name, control, writes)                                                                 \
    LIBC(name, int (*)(struct control *))                                                          \
    int name(struct control *request)                                                              \
    {                                                                                              \
        struct mpiio_shared *file = mpiio_descriptor_file(request->aio_fildes, NULL);              \
        return file == NULL ? load_##name()(request)                                               \
                            : carry_out(file, (struct aiocb *)request, writes);                    \
    }

AIO(aio_read, aiocb, 0)
AIO(aio_write, aiocb, 1)
AIO(aio_read64, aiocb64, 0)
AIO(aio_write64, aiocb64, 1)
