/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of DeltaFS over esker.h, so that programs that were written for it compile against
 * Esker. All functions are in this header; errors are -1 or NULL, with errno. docs/guide/deltafs.md
 * describes each group here, and the differences.
 *
 * The functions work in one session of the process, which begins with the first call:
 *
 *     ESKER_STORE           the URL of the store
 *     ESKER_DELTAFS_BASE    a snapshot to build on, if there is one
 *     ESKER_DELTAFS_NAME    the name under which the result is published when the program exits;
 *                           without it the session stays, and `esker publish` gives it a name
 *
 * Concurrency: the functions lock one mutex of the process for the time of a call, except that
 * calls with different plfsdir handles do not wait for each other.
 */
#ifndef ESKER_DELTAFS_API_H
#define ESKER_DELTAFS_API_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "../esker.h"

#define DELTAFS_DIR_PLFS_STYLE 0x10000
#define DELTAFS_DIR_MASK 0xf0000
#define DELTAFS_DIR_IS_PLFS_STYLE(mode) (((mode) & DELTAFS_DIR_MASK) == DELTAFS_DIR_PLFS_STYLE)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- State of the process ------------------------------------------------------------------- */

/* An indexed directory that is written through files. */
struct esker_deltafs_indexed {
    char *path;
    esker_comm *comm;
    esker_imd_writer *writer; /* NULL once it is finished */
    unsigned descriptors;     /* open ones: its own, and those of its files */
    int has_records;          /* since its last epoch */
    struct esker_deltafs_indexed *next;
};

enum esker_deltafs_kind {
    ESKER_DELTAFS_FREE,
    ESKER_DELTAFS_FILE,
    ESKER_DELTAFS_DIR,
    ESKER_DELTAFS_KEY /* a file of an indexed directory */
};

struct esker_deltafs_descriptor {
    enum esker_deltafs_kind kind;
    esker_file *file;
    esker_dir *dir;
    uint64_t offset;
    int appends;
    struct esker_deltafs_indexed *indexed; /* of a directory or key that is written */
    char *key;
    char *bytes; /* of a key: what was written or found */
    size_t bytes_count;
};

struct esker_deltafs_process {
    pthread_mutex_t mutex;
    int has_begun;
    esker_repository *repository;
    esker_session *session;
    esker_dir *root;
    esker_dir *current;
    mode_t mask;
    struct esker_deltafs_descriptor *descriptors;
    int descriptors_count;
    struct esker_deltafs_indexed *indexed;
};

/* One for all files that include this header. */
__attribute__((weak)) struct esker_deltafs_process esker_deltafs_process = {
    PTHREAD_MUTEX_INITIALIZER, 0, NULL, NULL, NULL, NULL, 022, NULL, 0, NULL
};

static inline int esker_deltafs_fail(int64_t result)
{
    errno = (int)-result;
    return -1;
}

/* Publishes the session, or leaves it to be resumed, when the program exits. */
static inline void esker_deltafs_end(void)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;
    const char *name = getenv("ESKER_DELTAFS_NAME");
    char id[ESKER_ID_BYTES];
    int result;

    if (!p->has_begun)
        return;
    p->has_begun = 0;
    result = name != NULL ? esker_session_publish(p->session, name, 0, NULL)
                          : esker_session_suspend(p->session, &id);
    if (result < 0)
        fprintf(stderr, "esker: %s\n", esker_error_message());
    else if (name == NULL)
        fprintf(stderr, "esker: the session @%s is not published: esker publish @%s NAME\n", id, id);
}

/* Begins the session with the first call; the mutex is locked. */
static inline int esker_deltafs_begin(void)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;
    esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
    const char *url = getenv("ESKER_STORE"), *base = getenv("ESKER_DELTAFS_BASE");
    int result;

    if (p->has_begun)
        return 0;
    if (url == NULL) {
        fprintf(stderr, "esker: set ESKER_STORE to the URL of a store\n");
        return -ENODEV;
    }
    if (base != NULL) {
        options.bases = &base;
        options.bases_count = 1;
    }
    options.durability = ESKER_ASYNC;
    if ((result = esker_repository_open(url, NULL, &p->repository)) < 0
        || (result = esker_session_begin(p->repository, &options, &p->session)) < 0
        || (result = esker_session_root(p->session, &p->root)) < 0
        || (result = esker_dir_open(p->root, "/", &p->current)) < 0) {
        fprintf(stderr, "esker: %s\n", esker_error_message());
        return result;
    }
    p->has_begun = 1;
    atexit(esker_deltafs_end);
    return 0;
}

/* Begins a function that uses the session: locks the mutex, which `esker_deltafs_return`
 * unlocks. */
static inline int64_t esker_deltafs_enter(void)
{
    pthread_mutex_lock(&esker_deltafs_process.mutex);
    return esker_deltafs_begin();
}

static inline int esker_deltafs_return(int64_t result)
{
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    return result < 0 ? esker_deltafs_fail(result) : (int)result;
}

/* The directory at which a path starts. */
static inline esker_dir *esker_deltafs_start(const char *path)
{
    return *path == '/' ? esker_deltafs_process.root : esker_deltafs_process.current;
}

/* The path from there. */
static inline const char *esker_deltafs_rest(const char *path)
{
    while (*path == '/')
        path++;
    return *path == '\0' ? "." : path;
}

static inline void esker_deltafs_convert(const esker_stat_t *from, struct stat *to)
{
    memset(to, 0, sizeof *to);
    memcpy(&to->st_ino, from->file_id, sizeof to->st_ino);
    to->st_mode = from->mode;
    to->st_nlink = from->nlink;
    to->st_uid = from->uid;
    to->st_gid = from->gid;
    to->st_size = (off_t)from->size;
    to->st_blksize = 4096;
    to->st_blocks = (blkcnt_t)((from->size + 511) / 512);
    to->st_atime = (time_t)(from->atime_ns / 1000000000);
    to->st_mtime = (time_t)(from->mtime_ns / 1000000000);
    to->st_ctime = (time_t)(from->ctime_ns / 1000000000);
}

/* The descriptor `fd`, or NULL. */
static inline struct esker_deltafs_descriptor *esker_deltafs_of(int fd)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;

    if (fd < 0 || fd >= p->descriptors_count || p->descriptors[fd].kind == ESKER_DELTAFS_FREE)
        return NULL;
    return &p->descriptors[fd];
}

/* A free descriptor, or minus an errno. */
static inline int esker_deltafs_allocate(void)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;
    struct esker_deltafs_descriptor *larger;
    int fd, count;

    for (fd = 0; fd < p->descriptors_count; fd++)
        if (p->descriptors[fd].kind == ESKER_DELTAFS_FREE)
            break;
    if (fd == p->descriptors_count) {
        count = p->descriptors_count ? p->descriptors_count * 2 : 64;
        larger = (struct esker_deltafs_descriptor *)realloc(p->descriptors,
                                                            (size_t)count * sizeof *larger);
        if (larger == NULL)
            return -ENOMEM;
        memset(larger + p->descriptors_count, 0,
               (size_t)(count - p->descriptors_count) * sizeof *larger);
        p->descriptors = larger;
        p->descriptors_count = count;
    }
    memset(&p->descriptors[fd], 0, sizeof p->descriptors[fd]);
    return fd;
}

/* ---- Indexed directories that are written through files ------------------------------------- */

/* The absolute path of `path`, to be freed, or NULL. */
static inline char *esker_deltafs_absolute(const char *path)
{
    esker_dir *at = esker_deltafs_start(path);
    char *absolute = (char *)malloc(PATH_MAX + strlen(path) + 2);
    int64_t length;

    if (absolute == NULL)
        return NULL;
    path = esker_deltafs_rest(path);
    length = esker_dir_path(at, absolute, PATH_MAX);
    if (length < 0 || length > PATH_MAX) {
        free(absolute);
        return NULL;
    }
    if (length > 0 && absolute[length - 1] == '/')
        length--;
    absolute[length++] = '/';
    strcpy(absolute + length, path);
    length += (int64_t)strlen(path);
    while (length > 1 && absolute[length - 1] == '/')
        absolute[--length] = '\0';
    return absolute;
}

/* The indexed directory that is written at an absolute path, or NULL. */
static inline struct esker_deltafs_indexed *esker_deltafs_indexed_at(const char *absolute)
{
    struct esker_deltafs_indexed *indexed = esker_deltafs_process.indexed;

    while (indexed != NULL && (indexed->writer == NULL || strcmp(indexed->path, absolute) != 0))
        indexed = indexed->next;
    return indexed;
}

static inline int esker_deltafs_make_indexed(const char *path)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;
    esker_imd_options options = ESKER_IMD_OPTIONS_INIT;
    struct esker_deltafs_indexed *indexed;
    int result;

    indexed = (struct esker_deltafs_indexed *)calloc(1, sizeof *indexed);
    if (indexed == NULL || (indexed->path = esker_deltafs_absolute(path)) == NULL) {
        free(indexed);
        return -ENOMEM;
    }
    if (esker_deltafs_indexed_at(indexed->path) != NULL)
        result = -EEXIST;
    else if ((result = esker_comm_self(&indexed->comm)) == 0)
        result = esker_imd_create(indexed->comm, p->repository, p->session, indexed->path, &options,
                                  &indexed->writer);
    if (result < 0) {
        if (indexed->comm != NULL)
            esker_comm_close(indexed->comm);
        free(indexed->path);
        free(indexed);
        return result;
    }
    indexed->next = p->indexed;
    p->indexed = indexed;
    return 0;
}

static inline int esker_deltafs_flush_indexed(struct esker_deltafs_indexed *indexed)
{
    int result = esker_imd_epoch_flush(indexed->writer);

    if (result == 0)
        indexed->has_records = 0;
    return result;
}

/* Gives up one descriptor of an indexed directory; the last one finishes it. */
static inline int esker_deltafs_leave_indexed(struct esker_deltafs_indexed *indexed)
{
    int result = 0;

    if (--indexed->descriptors > 0 || indexed->writer == NULL)
        return 0;
    if (indexed->has_records)
        result = esker_deltafs_flush_indexed(indexed);
    if (result == 0)
        result = esker_imd_finish(indexed->writer, NULL);
    else
        esker_imd_discard(indexed->writer);
    indexed->writer = NULL;
    esker_comm_close(indexed->comm);
    return result;
}

/* Finds all values of a key, one after the other, in a buffer to be freed; NULL if there are
 * none. */
static inline int esker_deltafs_find(esker_imd *reader, const void *key, size_t key_bytes, int epoch,
                                     char **bytes, size_t *bytes_count)
{
    esker_imd_answers *answers;
    const esker_imd_value *values;
    size_t count, i;
    int result;

    *bytes = NULL;
    *bytes_count = 0;
    result = epoch < 0 ? esker_imd_get(reader, key, key_bytes, &answers)
                       : esker_imd_get_many(reader, key, key_bytes, 1, (uint32_t)epoch, 1, 1, &answers);
    if (result < 0)
        return result;
    if ((result = esker_imd_values(answers, 0, &values, &count)) == 0 && count > 0) {
        for (i = 0; i < count; i++)
            *bytes_count += values[i].bytes_count;
        *bytes = (char *)malloc(*bytes_count + 1);
        if (*bytes == NULL)
            result = -ENOMEM;
        *bytes_count = 0;
        for (i = 0; result == 0 && i < count; i++) {
            memcpy(*bytes + *bytes_count, values[i].bytes, values[i].bytes_count);
            *bytes_count += values[i].bytes_count;
        }
    }
    esker_imd_answers_close(answers);
    return result;
}

/* Opens the key `name` of the indexed directory `dir`, to write or to read. */
static inline int esker_deltafs_open_key(const char *dir, const char *name, int flags)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;
    struct esker_deltafs_indexed *indexed = esker_deltafs_indexed_at(dir);
    esker_imd *reader;
    char *bytes = NULL;
    size_t bytes_count = 0;
    int fd, result;

    if (name[0] == '\0' || strchr(name, '/') != NULL || strlen(name) > 255)
        return -EINVAL;
    if ((flags & O_ACCMODE) != O_RDONLY) {
        if (indexed == NULL)
            return -EROFS; /* it is finished */
        if ((flags & O_ACCMODE) == O_RDWR)
            return -EINVAL;
    } else {
        if (indexed != NULL)
            return -EAGAIN; /* readable once it is finished */
        if ((result = esker_imd_open(p->root, dir, 0, &reader)) < 0)
            return result;
        result = esker_deltafs_find(reader, name, strlen(name), -1, &bytes, &bytes_count);
        esker_imd_close(reader);
        if (result < 0 || bytes == NULL)
            return result < 0 ? result : -ENOENT;
    }
    if ((fd = esker_deltafs_allocate()) < 0 || (p->descriptors[fd].key = strdup(name)) == NULL) {
        free(bytes);
        return fd < 0 ? fd : -ENOMEM;
    }
    p->descriptors[fd].kind = ESKER_DELTAFS_KEY;
    p->descriptors[fd].bytes = bytes;
    p->descriptors[fd].bytes_count = bytes_count;
    if (indexed != NULL) {
        p->descriptors[fd].indexed = indexed;
        indexed->descriptors++;
    }
    return fd;
}

/* True if `path` leads to a key: its parent is an indexed directory, whose absolute path is
 * returned in a buffer to be freed, with the name of the key. */
static inline char *esker_deltafs_parent_indexed(const char *path, const char **name)
{
    char *absolute = esker_deltafs_absolute(path), *slash;
    esker_stat_t stat;

    if (absolute == NULL || (slash = strrchr(absolute, '/')) == NULL || slash == absolute) {
        free(absolute);
        return NULL;
    }
    *slash = '\0';
    if (esker_deltafs_indexed_at(absolute) == NULL
        && (esker_stat(esker_deltafs_process.root, absolute, 0, &stat) < 0 || !stat.is_indexed)) {
        free(absolute);
        return NULL;
    }
    *name = slash + 1;
    return absolute;
}

/* ---- The file system ------------------------------------------------------------------------ */

static inline void deltafs_print_sysinfo(void)
{
    fprintf(stderr, "Esker %s behind the interface of DeltaFS\n", esker_version_text());
}

static inline int deltafs_nonop(void)
{
    return esker_deltafs_return(esker_deltafs_enter());
}

static inline mode_t deltafs_umask(mode_t mode)
{
    mode_t before;

    pthread_mutex_lock(&esker_deltafs_process.mutex);
    before = esker_deltafs_process.mask;
    esker_deltafs_process.mask = mode & 0777;
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    return before;
}

/* Paths that begin with a slash start there from now on. This confines nothing: `..` and links lead
 * out. */
static inline int deltafs_chroot(const char *path)
{
    int64_t result = esker_deltafs_enter();
    esker_dir *dir;

    if (result == 0)
        result = esker_dir_open(esker_deltafs_start(path), esker_deltafs_rest(path), &dir);
    if (result == 0) {
        esker_dir_close(esker_deltafs_process.root);
        esker_deltafs_process.root = dir;
    }
    return esker_deltafs_return(result);
}

static inline int deltafs_chdir(const char *path)
{
    int64_t result = esker_deltafs_enter();
    esker_dir *dir;

    if (result == 0)
        result = esker_dir_open(esker_deltafs_start(path), esker_deltafs_rest(path), &dir);
    if (result == 0) {
        esker_dir_close(esker_deltafs_process.current);
        esker_deltafs_process.current = dir;
    }
    return esker_deltafs_return(result);
}

static inline char *deltafs_getcwd(char *buffer, size_t size)
{
    int64_t result = esker_deltafs_enter();

    if (result == 0 && (result = esker_dir_path(esker_deltafs_process.current, buffer, size)) >= 0) {
        if ((uint64_t)result < size)
            buffer[result] = '\0';
        else
            result = -ERANGE;
    }
    return esker_deltafs_return(result) < 0 ? NULL : buffer;
}

/* Opens a file or directory; the mutex is locked. Returns a descriptor, or minus an errno. */
static inline int64_t esker_deltafs_open_at(esker_dir *at, const char *path, int flags, mode_t mode)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;
    esker_stat_t stat;
    esker_file *file = NULL;
    esker_dir *dir = NULL;
    const int known = O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC;
    int64_t result = esker_stat(at, path, 0, &stat);
    int fd;

    if (result == 0 && S_ISDIR(stat.mode)) {
        if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT))
            return -EISDIR;
        if (!stat.is_indexed && (result = esker_dir_open(at, path, &dir)) < 0)
            return result;
    } else {
#ifdef O_DIRECTORY
        if (flags & O_DIRECTORY)
            return result < 0 ? result : -ENOTDIR;
#endif
        result = esker_file_open(at, path, flags & known, mode & ~p->mask & 0777, &file);
        if (result < 0)
            return result;
    }
    if ((fd = esker_deltafs_allocate()) < 0) {
        if (file != NULL)
            esker_file_close(file);
        if (dir != NULL)
            esker_dir_close(dir);
        return fd;
    }
    p->descriptors[fd].kind = file != NULL ? ESKER_DELTAFS_FILE : ESKER_DELTAFS_DIR;
    p->descriptors[fd].file = file;
    p->descriptors[fd].dir = dir;
    p->descriptors[fd].appends = (flags & O_APPEND) != 0;
    /* The path, by which openat finds the keys of an indexed directory. */
    p->descriptors[fd].key = stat.is_indexed && file == NULL ? esker_deltafs_absolute(path) : NULL;
    return fd;
}

static inline int deltafs_open(const char *path, int flags, mode_t mode)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_indexed *indexed;
    const char *name;
    char *absolute;
    int fd;

    if (result < 0)
        return esker_deltafs_return(result);
    if ((absolute = esker_deltafs_parent_indexed(path, &name)) != NULL) {
        result = esker_deltafs_open_key(absolute, name, flags);
    } else if ((absolute = esker_deltafs_absolute(path)) != NULL
               && (indexed = esker_deltafs_indexed_at(absolute)) != NULL) {
        result = fd = esker_deltafs_allocate();
        if (fd >= 0) {
            p->descriptors[fd].kind = ESKER_DELTAFS_DIR;
            p->descriptors[fd].indexed = indexed;
            indexed->descriptors++;
        }
    } else {
        result = esker_deltafs_open_at(esker_deltafs_start(path), esker_deltafs_rest(path), flags,
                                       mode);
    }
    free(absolute);
    return esker_deltafs_return(result);
}

static inline int deltafs_creat(const char *path, mode_t mode)
{
    return deltafs_open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static inline int deltafs_openat(int at, const char *path, int flags, mode_t mode)
{
    struct esker_deltafs_descriptor *dir;
    int64_t result;

    if (at == AT_FDCWD || path[0] == '/')
        return deltafs_open(path, flags, mode);
    if ((result = esker_deltafs_enter()) == 0) {
        dir = esker_deltafs_of(at);
        if (dir == NULL)
            result = -EBADF;
        else if (dir->kind != ESKER_DELTAFS_DIR)
            result = -ENOTDIR;
        else if (dir->indexed != NULL)
            result = esker_deltafs_open_key(dir->indexed->path, path, flags);
        else if (dir->dir == NULL)
            result = dir->key == NULL ? -ENOMEM : esker_deltafs_open_key(dir->key, path, flags);
        else
            result = esker_deltafs_open_at(dir->dir, path, flags, mode);
    }
    return esker_deltafs_return(result);
}

static inline int deltafs_stat(const char *path, struct stat *stat)
{
    int64_t result = esker_deltafs_enter();
    esker_stat_t found;
    char *absolute;

    if (result == 0) {
        absolute = esker_deltafs_absolute(path);
        if (absolute != NULL && esker_deltafs_indexed_at(absolute) != NULL) {
            /* An indexed directory has attributes once it is finished. */
            memset(stat, 0, sizeof *stat);
            stat->st_mode = S_IFDIR | 0755;
            stat->st_nlink = 1;
        } else {
            result = esker_stat(esker_deltafs_start(path), esker_deltafs_rest(path), 0, &found);
            if (result == 0)
                esker_deltafs_convert(&found, stat);
        }
        free(absolute);
    }
    return esker_deltafs_return(result);
}

static inline int deltafs_getattr(const char *path, struct stat *stat)
{
    return deltafs_stat(path, stat);
}

static inline int deltafs_fstat(int fd, struct stat *stat)
{
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_descriptor *open = esker_deltafs_of(fd);
    esker_stat_t found;

    if (result == 0 && open == NULL)
        result = -EBADF;
    if (result == 0 && open->file != NULL) {
        if ((result = esker_file_stat(open->file, &found)) == 0)
            esker_deltafs_convert(&found, stat);
    } else if (result == 0 && open->dir != NULL) {
        if ((result = esker_stat(open->dir, ".", 0, &found)) == 0)
            esker_deltafs_convert(&found, stat);
    } else if (result == 0) {
        memset(stat, 0, sizeof *stat);
        stat->st_mode = open->kind == ESKER_DELTAFS_KEY ? S_IFREG | 0644 : S_IFDIR | 0755;
        stat->st_size = (off_t)open->bytes_count;
        stat->st_nlink = 1;
    }
    return esker_deltafs_return(result);
}

static inline int deltafs_close(int fd)
{
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_descriptor *open = esker_deltafs_of(fd);
    int left;

    if (result == 0 && open == NULL)
        result = -EBADF;
    if (result < 0)
        return esker_deltafs_return(result);
    if (open->file != NULL)
        result = esker_file_close(open->file);
    if (open->dir != NULL)
        esker_dir_close(open->dir);
    if (open->indexed != NULL) {
        if (open->kind == ESKER_DELTAFS_KEY && open->bytes_count > 0) {
            result = esker_imd_append(open->indexed->writer, open->key, strlen(open->key), open->bytes,
                                      open->bytes_count);
            if (result == 0)
                open->indexed->has_records = 1;
        }
        left = esker_deltafs_leave_indexed(open->indexed);
        if (result == 0)
            result = left;
    }
    free(open->key);
    free(open->bytes);
    memset(open, 0, sizeof *open);
    return esker_deltafs_return(result);
}

static inline int deltafs_openstat(const char *path, int flags, mode_t mode, struct stat *stat)
{
    int fd = deltafs_open(path, flags, mode), failure;

    if (fd >= 0 && deltafs_fstat(fd, stat) < 0) {
        failure = errno;
        deltafs_close(fd);
        errno = failure;
        return -1;
    }
    return fd;
}

/* Sets the mode of a file that was just made; the mutex is locked. */
static inline int esker_deltafs_set_mode(esker_dir *at, const char *path, mode_t mode)
{
    esker_attributes changes;

    memset(&changes, 0, sizeof changes);
    changes.changes = ESKER_SET_MODE;
    changes.mode = mode & ~esker_deltafs_process.mask & 07777;
    return esker_setattr(at, path, &changes);
}

static inline int deltafs_mkfile(const char *path, mode_t mode)
{
    int fd = deltafs_open(path, O_CREAT | O_EXCL | O_WRONLY, mode);

    return fd < 0 ? -1 : deltafs_close(fd);
}

static inline int deltafs_mkdir(const char *path, mode_t mode)
{
    int64_t result = esker_deltafs_enter();
    esker_dir *at;

    if (result == 0 && DELTAFS_DIR_IS_PLFS_STYLE(mode)) {
        result = esker_deltafs_make_indexed(path);
    } else if (result == 0) {
        at = esker_deltafs_start(path);
        path = esker_deltafs_rest(path);
        if ((result = esker_mkdir(at, path)) == 0)
            result = esker_deltafs_set_mode(at, path, mode);
    }
    return esker_deltafs_return(result);
}

static inline int deltafs_mkdirs(const char *path, mode_t mode)
{
    int64_t result = esker_deltafs_enter();
    esker_stat_t found;
    esker_dir *at;

    if (result == 0) {
        at = esker_deltafs_start(path);
        path = esker_deltafs_rest(path);
        if (esker_stat(at, path, 0, &found) < 0 && (result = esker_mkdir_all(at, path)) == 0)
            result = esker_deltafs_set_mode(at, path, mode);
    }
    return esker_deltafs_return(result);
}

static inline int esker_deltafs_change(const char *path, esker_attributes *changes)
{
    int64_t result = esker_deltafs_enter();

    if (result == 0)
        result = esker_setattr(esker_deltafs_start(path), esker_deltafs_rest(path), changes);
    return esker_deltafs_return(result);
}

static inline int deltafs_chmod(const char *path, mode_t mode)
{
    esker_attributes changes;

    memset(&changes, 0, sizeof changes);
    changes.changes = ESKER_SET_MODE;
    changes.mode = mode & 07777;
    return esker_deltafs_change(path, &changes);
}

static inline int deltafs_chown(const char *path, uid_t user, gid_t group)
{
    esker_attributes changes;

    memset(&changes, 0, sizeof changes);
    changes.changes = (user == (uid_t)-1 ? 0 : ESKER_SET_UID) | (group == (gid_t)-1 ? 0 : ESKER_SET_GID);
    changes.uid = user;
    changes.gid = group;
    return esker_deltafs_change(path, &changes);
}

static inline int deltafs_truncate(const char *path, off_t size)
{
    esker_attributes changes;

    if (size < 0)
        return esker_deltafs_fail(-EINVAL);
    memset(&changes, 0, sizeof changes);
    changes.changes = ESKER_SET_SIZE;
    changes.size = (uint64_t)size;
    return esker_deltafs_change(path, &changes);
}

/* True if the user of this process has all of `mode` (R_OK, W_OK, X_OK), by the mode bits. */
static inline int deltafs_access(const char *path, int mode)
{
    struct stat found;
    mode_t bits;

    if (deltafs_stat(path, &found) < 0)
        return -1;
    if (geteuid() == 0)
        bits = 06 | ((found.st_mode & 0111) || S_ISDIR(found.st_mode) ? 1 : 0);
    else if (geteuid() == found.st_uid)
        bits = found.st_mode >> 6;
    else if (getegid() == found.st_gid)
        bits = found.st_mode >> 3;
    else
        bits = found.st_mode;
    return ((mode_t)mode & ~bits & 07) == 0 ? 0 : esker_deltafs_fail(-EACCES);
}

static inline int deltafs_accessdir(const char *path, int mode)
{
    struct stat found;

    if (deltafs_stat(path, &found) < 0)
        return -1;
    return S_ISDIR(found.st_mode) ? deltafs_access(path, mode) : esker_deltafs_fail(-ENOTDIR);
}

static inline int deltafs_unlink(const char *path)
{
    int64_t result = esker_deltafs_enter();

    if (result == 0)
        result = esker_unlink(esker_deltafs_start(path), esker_deltafs_rest(path));
    return esker_deltafs_return(result);
}

typedef int (*deltafs_filler_t)(const char *name, void *argument);

/* Passes the names of a directory to `fill` until it returns another number than 0. */
static inline int deltafs_listdir(const char *path, deltafs_filler_t fill, void *argument)
{
    int64_t result = esker_deltafs_enter();
    esker_entries *entries;
    esker_entry entry;
    int64_t count;

    if (result == 0)
        result = esker_entries_open(esker_deltafs_start(path), esker_deltafs_rest(path), NULL,
                                    &entries);
    if (esker_deltafs_return(result) < 0)
        return -1;
    /* Not locked: `fill` may call any function. */
    while ((count = esker_entries_next(entries, &entry, 1)) == 1)
        if (fill(entry.name, argument) != 0)
            break;
    esker_entries_close(entries);
    return count < 0 ? esker_deltafs_fail(count) : 0;
}

static inline ssize_t deltafs_pread(int fd, void *buffer, size_t size, off_t offset)
{
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_descriptor *open = esker_deltafs_of(fd);
    size_t left;

    if (result == 0 && (open == NULL || open->kind == ESKER_DELTAFS_DIR))
        result = open == NULL ? -EBADF : -EISDIR;
    else if (result == 0 && offset < 0)
        result = -EINVAL;
    else if (result == 0 && open->kind == ESKER_DELTAFS_FILE)
        result = esker_file_pread(open->file, buffer, size, (uint64_t)offset);
    else if (result == 0 && open->indexed != NULL)
        result = -EBADF; /* it is written */
    else if (result == 0) {
        left = (size_t)offset < open->bytes_count ? open->bytes_count - (size_t)offset : 0;
        result = (int64_t)(size < left ? size : left);
        memcpy(buffer, open->bytes + (left ? offset : 0), (size_t)result);
    }
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    return result < 0 ? esker_deltafs_fail(result) : (ssize_t)result;
}

static inline ssize_t deltafs_pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_descriptor *open = esker_deltafs_of(fd);

    if (result == 0 && (open == NULL || open->kind == ESKER_DELTAFS_DIR))
        result = open == NULL ? -EBADF : -EISDIR;
    else if (result == 0 && offset < 0)
        result = -EINVAL;
    else if (result == 0 && open->kind == ESKER_DELTAFS_KEY)
        result = -ENOTSUP; /* values are appended */
    else if (result == 0)
        result = esker_file_pwrite(open->file, bytes, size, (uint64_t)offset);
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    return result < 0 ? esker_deltafs_fail(result) : (ssize_t)result;
}

static inline ssize_t deltafs_read(int fd, void *buffer, size_t size)
{
    struct esker_deltafs_descriptor *open;
    uint64_t offset = 0;
    ssize_t count;

    pthread_mutex_lock(&esker_deltafs_process.mutex);
    if ((open = esker_deltafs_of(fd)) != NULL)
        offset = open->offset;
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    count = deltafs_pread(fd, buffer, size, (off_t)offset);
    pthread_mutex_lock(&esker_deltafs_process.mutex);
    if (count > 0 && (open = esker_deltafs_of(fd)) != NULL)
        open->offset = offset + (uint64_t)count;
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    return count;
}

static inline ssize_t deltafs_write(int fd, const void *bytes, size_t size)
{
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_descriptor *open = esker_deltafs_of(fd);
    char *larger;

    if (result == 0 && (open == NULL || open->kind == ESKER_DELTAFS_DIR)) {
        result = open == NULL ? -EBADF : -EISDIR;
    } else if (result == 0 && open->kind == ESKER_DELTAFS_KEY) {
        if (open->indexed == NULL)
            result = -EBADF; /* it is read */
        else if ((larger = (char *)realloc(open->bytes, open->bytes_count + size + 1)) == NULL)
            result = -ENOMEM;
        else {
            open->bytes = larger;
            memcpy(larger + open->bytes_count, bytes, size);
            open->bytes_count += size;
            result = (int64_t)size;
        }
    } else if (result == 0 && open->appends) {
        result = esker_file_append(open->file, bytes, size);
        if (result >= 0)
            result = (int64_t)size;
    } else if (result == 0) {
        result = esker_file_pwrite(open->file, bytes, size, open->offset);
        if (result > 0)
            open->offset += (uint64_t)result;
    }
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    return result < 0 ? esker_deltafs_fail(result) : (ssize_t)result;
}

/* Ends an epoch of the indexed directory `fd`. `argument` is not used. */
static inline int deltafs_epoch_flush(int fd, void *argument)
{
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_descriptor *open = esker_deltafs_of(fd);

    (void)argument;
    if (result == 0 && (open == NULL || open->indexed == NULL || open->indexed->writer == NULL))
        result = open == NULL ? -EBADF : -EINVAL;
    else if (result == 0)
        result = esker_deltafs_flush_indexed(open->indexed);
    return esker_deltafs_return(result);
}

static inline int deltafs_ftruncate(int fd, off_t size)
{
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_descriptor *open = esker_deltafs_of(fd);

    if (result == 0 && (open == NULL || open->kind != ESKER_DELTAFS_FILE || size < 0))
        result = open == NULL ? -EBADF : -EINVAL;
    else if (result == 0)
        result = esker_file_truncate(open->file, (uint64_t)size);
    return esker_deltafs_return(result);
}

static inline int deltafs_fdatasync(int fd)
{
    int64_t result = esker_deltafs_enter();
    struct esker_deltafs_descriptor *open = esker_deltafs_of(fd);

    if (result == 0 && open == NULL)
        result = -EBADF;
    else if (result == 0 && open->file != NULL)
        result = esker_file_sync(open->file);
    else if (result == 0 && open->indexed != NULL)
        result = -ENOTSUP; /* records are durable when their epoch ends */
    else if (result == 0)
        result = esker_session_sync(esker_deltafs_process.session);
    return esker_deltafs_return(result);
}

/* ---- Environments and thread pools, which Esker does not need ------------------------------- */

typedef struct deltafs_env {
    int unused;
} deltafs_env_t;

static inline deltafs_env_t *deltafs_env_init(int argc, void **argv)
{
    (void)argc, (void)argv;
    return (deltafs_env_t *)calloc(1, sizeof(deltafs_env_t));
}

static inline int deltafs_env_is_system(deltafs_env_t *env)
{
    (void)env;
    return 0;
}

static inline int deltafs_env_close(deltafs_env_t *env)
{
    free(env);
    return 0;
}

typedef struct deltafs_tp {
    int unused;
} deltafs_tp_t;

static inline deltafs_tp_t *deltafs_tp_init(int size)
{
    (void)size;
    return (deltafs_tp_t *)calloc(1, sizeof(deltafs_tp_t));
}

static inline int deltafs_tp_pause(deltafs_tp_t *pool)
{
    (void)pool;
    return esker_deltafs_fail(-ENOTSUP); /* the work that it would hold back is not its own */
}

static inline int deltafs_tp_rerun(deltafs_tp_t *pool)
{
    (void)pool;
    return 0;
}

static inline int deltafs_tp_close(deltafs_tp_t *pool)
{
    free(pool);
    return 0;
}

/* ---- Light-weight indexed directories: a partition of a rank -------------------------------- */

#define DELTAFS_PLFSDIR_DEFAULT 0
#define DELTAFS_PLFSDIR_LEVELDB 1
#define DELTAFS_PLFSDIR_LEVELDB_L0ONLY 3
#define DELTAFS_PLFSDIR_LEVELDB_L0ONLY_BF 7

typedef void (*deltafs_printer_t)(const char *error, void *argument);

/* The directory NAME has an indexed directory part-RANK for each rank, and its log as a file. */
typedef struct deltafs_plfsdir {
    int writes;
    int rank;
    int is_multimap;
    int epoch;
    int has_records;
    uint64_t records; /* appended */
    char *path;       /* of the partition */
    char *log_path;
    esker_comm *comm;
    esker_imd_writer *writer;
    esker_imd *reader;
    esker_file *log;
    deltafs_printer_t printer;
    void *printer_argument;
} deltafs_plfsdir_t;

/* Reports a failure, and returns -1 with its errno. */
static inline int esker_plfsdir_fail(deltafs_plfsdir_t *dir, int64_t result, int has_message)
{
    if (dir->printer != NULL)
        dir->printer(has_message && esker_error_kind() != ESKER_OK ? esker_error_message()
                                                                  : strerror((int)-result),
                     dir->printer_argument);
    return esker_deltafs_fail(result);
}

static inline deltafs_plfsdir_t *deltafs_plfsdir_create_handle(const char *conf, int mode, int engine)
{
    deltafs_plfsdir_t *dir = (deltafs_plfsdir_t *)calloc(1, sizeof *dir);
    const char *rank = conf != NULL ? strstr(conf, "rank=") : NULL;

    (void)engine; /* all are the same directory here */
    if (dir == NULL)
        return NULL;
    dir->writes = (mode & O_ACCMODE) != O_RDONLY;
    dir->is_multimap = 1;
    if (rank != NULL && (rank == conf || rank[-1] == '&'))
        dir->rank = atoi(rank + 5);
    return dir;
}

/* Options that change how DeltaFS stores records, not which: records here have their own sizes. */
static inline int deltafs_plfsdir_set_key_size(deltafs_plfsdir_t *dir, size_t size)
{
    return size > 255 ? esker_plfsdir_fail(dir, -EINVAL, 0) : 0;
}
static inline int deltafs_plfsdir_set_val_size(deltafs_plfsdir_t *dir, size_t size)
{
    (void)dir, (void)size;
    return 0;
}
static inline int deltafs_plfsdir_set_unordered(deltafs_plfsdir_t *dir, int flag)
{
    (void)dir, (void)flag;
    return 0;
}
static inline int deltafs_plfsdir_set_env(deltafs_plfsdir_t *dir, deltafs_env_t *env)
{
    (void)dir, (void)env;
    return 0;
}
static inline int deltafs_plfsdir_set_thread_pool(deltafs_plfsdir_t *dir, deltafs_tp_t *pool)
{
    (void)dir, (void)pool;
    return 0;
}
static inline int deltafs_plfsdir_force_leveldb_fmt(deltafs_plfsdir_t *dir, int flag)
{
    (void)dir, (void)flag;
    return 0;
}
static inline int deltafs_plfsdir_enable_io_measurement(deltafs_plfsdir_t *dir, int flag)
{
    (void)dir, (void)flag;
    return 0;
}
static inline int deltafs_plfsdir_set_fixed_kv(deltafs_plfsdir_t *dir, int flag)
{
    (void)dir, (void)flag;
    return 0;
}
static inline int deltafs_plfsdir_set_non_blocking(deltafs_plfsdir_t *dir, int flag)
{
    return flag ? esker_plfsdir_fail(dir, -ENOTSUP, 0) : 0; /* appends wait for memory */
}

/* Without multimap semantics a look-up returns the last value of a key only. */
static inline int deltafs_plfsdir_set_multimap(deltafs_plfsdir_t *dir, int flag)
{
    dir->is_multimap = flag;
    return 0;
}

static inline int deltafs_plfsdir_set_rank(deltafs_plfsdir_t *dir, int rank)
{
    if (rank < 0)
        return esker_plfsdir_fail(dir, -EINVAL, 0);
    dir->rank = rank;
    return 0;
}

static inline int deltafs_plfsdir_set_err_printer(deltafs_plfsdir_t *dir, deltafs_printer_t printer,
                                                  void *argument)
{
    dir->printer = printer;
    dir->printer_argument = argument;
    return 0;
}

static inline int deltafs_plfsdir_get_memparts(deltafs_plfsdir_t *dir)
{
    (void)dir;
    return 1;
}

static inline int deltafs_plfsdir_destroy(deltafs_plfsdir_t *dir, const char *name)
{
    int64_t result = esker_deltafs_enter();

    if (result == 0)
        result = esker_remove_all(esker_deltafs_start(name), esker_deltafs_rest(name));
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    return result < 0 ? esker_plfsdir_fail(dir, result, 1) : 0;
}

static inline int64_t esker_plfsdir_open(deltafs_plfsdir_t *dir, const char *name)
{
    struct esker_deltafs_process *p = &esker_deltafs_process;
    esker_imd_options options = ESKER_IMD_OPTIONS_INIT;
    char *absolute = esker_deltafs_absolute(name);
    size_t room = absolute != NULL ? strlen(absolute) + 32 : 0;
    int64_t result;

    if (absolute == NULL || (dir->path = (char *)malloc(room)) == NULL
        || (dir->log_path = (char *)malloc(room)) == NULL) {
        free(absolute);
        return -ENOMEM;
    }
    snprintf(dir->path, room, "%s/part-%08d", absolute, dir->rank);
    snprintf(dir->log_path, room, "%s/log-%08d", absolute, dir->rank);
    if (!dir->writes) {
        result = esker_imd_open(p->root, dir->path, 0, &dir->reader);
    } else if ((result = esker_mkdir_all(p->root, absolute)) == 0
               && (result = esker_comm_self(&dir->comm)) == 0) {
        result = esker_imd_create(dir->comm, p->repository, p->session, dir->path, &options,
                                  &dir->writer);
    }
    free(absolute);
    return result;
}

static inline int deltafs_plfsdir_open(deltafs_plfsdir_t *dir, const char *name)
{
    int64_t result = esker_deltafs_enter();

    if (result == 0)
        result = dir->path != NULL ? -EBUSY : esker_plfsdir_open(dir, name);
    pthread_mutex_unlock(&esker_deltafs_process.mutex);
    return result < 0 ? esker_plfsdir_fail(dir, result, result != -EBUSY) : 0;
}

/* Appends to the log of the rank, a file beside the records. */
static inline ssize_t deltafs_plfsdir_io_append(deltafs_plfsdir_t *dir, const void *bytes, size_t size)
{
    int64_t result = 0;

    if (!dir->writes || dir->log_path == NULL)
        return esker_plfsdir_fail(dir, -EBADF, 0);
    if (dir->log == NULL)
        result = esker_file_open(esker_deltafs_process.root, dir->log_path, O_RDWR | O_CREAT, 0644,
                                 &dir->log);
    if (result == 0)
        result = esker_file_append(dir->log, bytes, size);
    return result < 0 ? esker_plfsdir_fail(dir, result, 1) : (ssize_t)size;
}

static inline int deltafs_plfsdir_io_flush(deltafs_plfsdir_t *dir)
{
    (void)dir;
    return 0;
}

static inline int deltafs_plfsdir_io_sync(deltafs_plfsdir_t *dir)
{
    int result = dir->log != NULL ? esker_file_sync(dir->log) : 0;

    return result < 0 ? esker_plfsdir_fail(dir, result, 1) : 0;
}

/* Appends a record to the current epoch, whose number `epoch` is, or -1. */
static inline ssize_t deltafs_plfsdir_put(deltafs_plfsdir_t *dir, const char *key, size_t key_bytes,
                                          int epoch, const char *value, size_t size)
{
    int result;

    if (dir->writer == NULL)
        return esker_plfsdir_fail(dir, -EBADF, 0);
    if (epoch >= 0 && epoch != dir->epoch)
        return esker_plfsdir_fail(dir, -EINVAL, 0);
    if ((result = esker_imd_append(dir->writer, key, key_bytes, value, size)) < 0)
        return esker_plfsdir_fail(dir, result, 1);
    dir->has_records = 1;
    dir->records++;
    return (ssize_t)size;
}

/* The name itself is the key: no two names share one. */
static inline ssize_t deltafs_plfsdir_append(deltafs_plfsdir_t *dir, const char *name, int epoch,
                                             const void *bytes, size_t size)
{
    return deltafs_plfsdir_put(dir, name, strlen(name), epoch, (const char *)bytes, size);
}

/* Counts of seeks are 0: a look-up reads no table in search of a key. */
static inline char *deltafs_plfsdir_get(deltafs_plfsdir_t *dir, const char *key, size_t key_bytes,
                                        int epoch, size_t *size, size_t *table_seeks, size_t *seeks)
{
    esker_imd_answers *answers = NULL;
    const esker_imd_value *values;
    size_t count, found = 0;
    char *bytes = NULL;
    int result;

    if (table_seeks != NULL)
        *table_seeks = 0;
    if (seeks != NULL)
        *seeks = 0;
    if (dir->reader == NULL) {
        esker_plfsdir_fail(dir, -EBADF, 0);
        return NULL;
    }
    if (dir->is_multimap) {
        result = esker_deltafs_find(dir->reader, key, key_bytes, epoch, &bytes, &found);
    } else if ((result = epoch < 0
                    ? esker_imd_get(dir->reader, key, key_bytes, &answers)
                    : esker_imd_get_many(dir->reader, key, key_bytes, 1, (uint32_t)epoch, 1, 1,
                                         &answers)) == 0) {
        if ((result = esker_imd_values(answers, 0, &values, &count)) == 0 && count > 0) {
            found = values[count - 1].bytes_count;
            if ((bytes = (char *)malloc(found + 1)) != NULL)
                memcpy(bytes, values[count - 1].bytes, found);
            else
                result = -ENOMEM;
        }
        esker_imd_answers_close(answers);
    }
    if (result < 0) {
        esker_plfsdir_fail(dir, result, 1);
        return NULL;
    }
    if (bytes == NULL) {
        errno = ENOENT;
        return NULL;
    }
    bytes[found] = '\0';
    if (size != NULL)
        *size = found;
    return bytes;
}

static inline void *deltafs_plfsdir_read(deltafs_plfsdir_t *dir, const char *name, int epoch,
                                         size_t *size, size_t *table_seeks, size_t *seeks)
{
    return deltafs_plfsdir_get(dir, name, strlen(name), epoch, size, table_seeks, seeks);
}

typedef int (*esker_plfsdir_saver)(void *argument, const char *key, size_t key_bytes,
                                   const char *value, size_t size);

struct esker_plfsdir_visit {
    esker_plfsdir_saver save;
    void *argument;
    ssize_t records;
    int stopped;
};

static inline int esker_plfsdir_visit_record(void *argument, const void *key, size_t key_bytes,
                                             const void *value, size_t value_bytes)
{
    struct esker_plfsdir_visit *visit = (struct esker_plfsdir_visit *)argument;

    visit->records++;
    if (visit->save == NULL)
        return 0;
    visit->stopped = visit->save(visit->argument, (const char *)key, key_bytes, (const char *)value,
                                 value_bytes) != 0;
    return visit->stopped;
}

/* Passes the records of an epoch, or of all for -1, to `save` until it returns another number than
 * 0; returns how many it passed. */
static inline ssize_t deltafs_plfsdir_scan(deltafs_plfsdir_t *dir, int epoch, esker_plfsdir_saver save,
                                           void *argument)
{
    struct esker_plfsdir_visit visit = { save, argument, 0, 0 };
    esker_imd_info info;
    uint32_t first, end;
    int result;

    if (dir->reader == NULL)
        return esker_plfsdir_fail(dir, -EBADF, 0);
    if ((result = esker_imd_info_of(dir->reader, &info)) < 0)
        return esker_plfsdir_fail(dir, result, 1);
    first = epoch < 0 ? 0 : (uint32_t)epoch;
    end = epoch < 0 ? (uint32_t)info.epochs : first + 1;
    for (; first < end && first < info.epochs && !visit.stopped; first++) {
        result = esker_imd_scan(dir->reader, first, esker_plfsdir_visit_record, &visit);
        if (result < 0)
            return esker_plfsdir_fail(dir, result, 1);
    }
    return visit.records;
}

/* Records of an epoch, or of all; a key counts once for each of its records. */
static inline ssize_t deltafs_plfsdir_count(deltafs_plfsdir_t *dir, int epoch)
{
    return deltafs_plfsdir_scan(dir, epoch, NULL, NULL);
}

/* Knows "num_keys" of a writer: the records that it has appended. */
static inline long long deltafs_plfsdir_get_integer_property(deltafs_plfsdir_t *dir, const char *key)
{
    if (dir->writes && strcmp(key, "num_keys") == 0)
        return (long long)dir->records;
    errno = ENOTSUP;
    return -1;
}

static inline char *deltafs_plfsdir_get_property(deltafs_plfsdir_t *dir, const char *key)
{
    long long number = deltafs_plfsdir_get_integer_property(dir, key);
    char *text = number < 0 ? NULL : (char *)malloc(24);

    if (text != NULL)
        snprintf(text, 24, "%lld", number);
    return text;
}

/* Ends the epoch, whose number `epoch` is, or -1: its records survive power loss. */
static inline int deltafs_plfsdir_epoch_flush(deltafs_plfsdir_t *dir, int epoch)
{
    int result;

    if (dir->writer == NULL)
        return esker_plfsdir_fail(dir, -EBADF, 0);
    if (epoch >= 0 && epoch != dir->epoch)
        return esker_plfsdir_fail(dir, -EINVAL, 0);
    if ((result = esker_imd_epoch_flush(dir->writer)) < 0)
        return esker_plfsdir_fail(dir, result, 1);
    dir->epoch++;
    dir->has_records = 0;
    return 0;
}

/* Records are written in the background at any time: there is nothing to start. */
static inline int deltafs_plfsdir_flush(deltafs_plfsdir_t *dir, int epoch)
{
    (void)epoch;
    return dir->writer == NULL ? esker_plfsdir_fail(dir, -EBADF, 0) : 0;
}

/* Fails with ENOTSUP while the epoch has records: they are durable when it ends. */
static inline int deltafs_plfsdir_sync(deltafs_plfsdir_t *dir)
{
    if (dir->writer == NULL)
        return esker_plfsdir_fail(dir, -EBADF, 0);
    return dir->has_records ? esker_plfsdir_fail(dir, -ENOTSUP, 0) : 0;
}

static inline int deltafs_plfsdir_wait(deltafs_plfsdir_t *dir)
{
    (void)dir;
    return 0;
}

/* Ends the last epoch, if it has records, and finishes the directory. */
static inline int deltafs_plfsdir_finish(deltafs_plfsdir_t *dir)
{
    int result = 0;

    if (dir->writer == NULL)
        return dir->writes ? esker_plfsdir_fail(dir, -EBADF, 0) : 0;
    if (dir->has_records && deltafs_plfsdir_epoch_flush(dir, -1) < 0)
        return -1;
    result = esker_imd_finish(dir->writer, NULL);
    dir->writer = NULL;
    if (result == 0 && dir->log != NULL) {
        result = esker_file_close(dir->log);
        dir->log = NULL;
    }
    return result < 0 ? esker_plfsdir_fail(dir, result, 1) : 0;
}

/* Records of a directory that was not finished are given up. */
static inline int deltafs_plfsdir_free_handle(deltafs_plfsdir_t *dir)
{
    if (dir->writer != NULL)
        esker_imd_discard(dir->writer);
    if (dir->reader != NULL)
        esker_imd_close(dir->reader);
    if (dir->log != NULL)
        esker_file_close(dir->log);
    if (dir->comm != NULL)
        esker_comm_close(dir->comm);
    free(dir->path);
    free(dir->log_path);
    free(dir);
    return 0;
}

static inline int deltafs_version_major(void)
{
    return (int)(esker_version() >> 16);
}
static inline int deltafs_version_minor(void)
{
    return (int)(esker_version() >> 8 & 255);
}
static inline int deltafs_version_patch(void)
{
    return (int)(esker_version() & 255);
}

#ifdef __cplusplus
}
#endif

#endif
