/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Esker for programs in C: file systems as stacks of snapshots in a directory or a bucket.
 *
 * A program opens a repository by the URL of its store, begins a session on top of snapshots that
 * others have published, changes files at memory speed, and publishes the result under a name.
 * There is no server: every process that can access the store has the file system.
 *
 *     esker_repository *repository;
 *     esker_session *session;
 *     esker_dir *root;
 *
 *     if (esker_repository_create("memory:", NULL, &repository) < 0
 *         || esker_session_begin(repository, NULL, &session) < 0
 *         || esker_session_root(session, &root) < 0
 *         || esker_write_file(root, "/result", "42", 2) < 0
 *         || esker_session_publish(session, "run", 0, NULL) < 0)
 *         fprintf(stderr, "%s\n", esker_error_message());
 *
 * Results. A function returns 0, or a count, or minus an errno. After a failure esker_error_kind()
 * says what a program can do about it, and esker_error_message() names the object and the next
 * step. Both are the thread's own and stay until its next failure.
 *
 * Handles. Objects are opaque pointers that are not addresses: a null pointer, a closed handle and
 * a handle of another kind fail with EINVAL. Each function that opens an object has one that closes
 * it, and sets the handle to NULL when it fails. Objects keep the objects on which they depend: a
 * file stays usable when the handle of its session is closed. An object that is closed during a
 * call of another thread is freed when that call returns.
 *
 * Threads. Any thread may use any object, several at once, except communicators and the objects
 * that use them (indexed directory writers, shared jobs and their files), which only one thread at
 * a time may use.
 *
 * Processes. A child that fork() made can only close the handles of its parent, which does nothing
 * there; other calls with them fail with EINVAL. It opens the repository again.
 *
 * Texts are UTF-8 and end with a zero byte. Paths are bytes, as in POSIX: one that begins with a
 * slash starts at the root of the tree, any other at the directory that is given. A null pointer
 * for bytes is allowed where their number is 0. Callbacks run in the thread that called. Those of
 * scans may call any function of this library; message functions may not use the communicator that
 * they serve, nor objects that use it: such calls, and those of a second thread, fail with
 * ESKER_INVALID.
 *
 * Options. A struct of options begins with its own size: begin with its INIT macro and set what
 * differs. A null pointer means all defaults. Programs that were compiled with an older header keep
 * working.
 *
 * What survives a crash. esker_session_publish, _snapshot and _complete, esker_job_publish and
 * esker_shared_publish survive power loss once they have returned, and so does everything before
 * esker_session_sync, esker_session_flush and esker_file_sync if the session can be resumed (its
 * durability is not ESKER_PRIVATE). A snapshot never changes, and a crash leaves the state after
 * some prefix of a session's operations. docs/guide/durability.md has the details.
 *
 * Cost. Opening a stack costs two store requests for each change set. After that a look-up costs at
 * most one block read for each layer, and mostly none; a create none at all; reading a file one
 * request for each log that has a part of it.
 */
#ifndef ESKER_H
#define ESKER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version and errors --------------------------------------------------------------------- */

/* The version of this header: major << 16 | minor << 8 | patch. */
#define ESKER_VERSION 0x000100u

/* The version of the library, in the form of ESKER_VERSION. */
uint32_t esker_version(void);
/* The same as text, such as "0.1.0". */
const char *esker_version_text(void);

/* Kinds of errors, by what a caller can do about them. The numbers are the exit codes of the esker
 * command. */
enum esker_kind {
    ESKER_OK = 0,                   /* nothing has failed in this thread */
    ESKER_BUG = 1,                  /* a bug in Esker: please report it with the message (EIO) */
    ESKER_NOT_FOUND = 3,            /* no such object, name, file or attribute (ENOENT) */
    ESKER_EXISTS = 4,               /* the name is taken (EEXIST) */
    ESKER_NOT_A_DIRECTORY = 5,      /* a path component is not a directory (ENOTDIR) */
    ESKER_IS_A_DIRECTORY = 6,       /* it does not work on a directory (EISDIR) */
    ESKER_NOT_EMPTY = 7,            /* the directory still has entries (ENOTEMPTY) */
    ESKER_DENIED = 8,               /* the mode bits, or the store, deny it (EACCES) */
    ESKER_CONFLICT = 9,             /* another process changed the same thing: retry (EAGAIN) */
    ESKER_FENCED = 10,              /* another writer took the session over: stop (ESTALE) */
    ESKER_UNAVAILABLE = 11,         /* the store, or another rank, did not answer (EIO) */
    ESKER_CORRUPT = 12,             /* bytes that are not what was written (EIO) */
    ESKER_INVALID = 13,             /* a bad argument (EINVAL) */
    ESKER_TOO_LARGE = 14,           /* a name, value or object over its limit (ENAMETOOLONG) */
    ESKER_CLOSED = 15,              /* ended, or stopped by an earlier failure (EIO) */
    ESKER_NO_SPACE = 16,            /* the store is full: make room and retry (ENOSPC) */
    ESKER_READ_ONLY = 17,           /* a snapshot, or a store that can only be read (EROFS) */
    ESKER_NOT_PERMITTED = 18,       /* for the owner or the superuser only (EPERM) */
    ESKER_LOOP = 19,                /* symbolic links that form a loop (ELOOP) */
    ESKER_NO_ATTRIBUTE = 20,        /* no such extended attribute (ENODATA) */
    ESKER_TOO_MANY_LINKS = 21,      /* the file has the maximum number of names (EMLINK) */
    ESKER_FILE_TOO_LARGE = 22,      /* over the maximum file size (EFBIG) */
    ESKER_UNSUPPORTED = 23,         /* not supported here (EOPNOTSUPP) */
    ESKER_DEVICE_FAILED = 24,       /* the device under the store failed (EIO) */
    ESKER_TOO_MANY_OPEN_FILES = 25, /* a limit of open files or objects (EMFILE) */
    ESKER_CROSS_DEVICE = 26         /* rename or link between places that share nothing (EXDEV) */
};

/* The kind of the thread's last failure, an esker_kind. */
int esker_error_kind(void);
/* Its text: object, place, what to do next. Stays until the thread's next failure. */
const char *esker_error_message(void);
/* The name of a kind, such as "not found". */
const char *esker_kind_name(int kind);

/* ---- Objects -------------------------------------------------------------------------------- */

typedef struct esker_repository esker_repository;     /* change sets and names in a store */
typedef struct esker_names esker_names;               /* a listing of published names */
typedef struct esker_namespace esker_namespace;       /* a snapshot, or a stack, to read */
typedef struct esker_session esker_session;           /* a tree to write */
typedef struct esker_dir esker_dir;                   /* an open directory of either */
typedef struct esker_entries esker_entries;           /* a listing of a directory */
typedef struct esker_file esker_file;                 /* an open file */
typedef struct esker_live esker_live;                 /* a tree that many clients change */
typedef struct esker_comm esker_comm;                 /* a rank of a job and its messages */
typedef struct esker_imd_writer esker_imd_writer;     /* an indexed directory that is written */
typedef struct esker_imd esker_imd;                   /* an indexed directory to read */
typedef struct esker_imd_answers esker_imd_answers;   /* values of some keys */
typedef struct esker_shared_job esker_shared_job;     /* a rank of a job that shares files */
typedef struct esker_shared_file esker_shared_file;   /* a file that all ranks write */

/* Bytes of the text of an id: 32 hexadecimal digits and a zero byte. */
#define ESKER_ID_BYTES 33

/* ---- Repositories --------------------------------------------------------------------------- */

typedef struct esker_repository_options {
    size_t struct_size;
    uint64_t cache_bytes; /* memory for blocks and rows; 0: a sixteenth of what there is */
} esker_repository_options;
#define ESKER_REPOSITORY_OPTIONS_INIT { sizeof(esker_repository_options), 0 }

/* Opens the repository at `url`: a directory ("/scratch/store", "file:..."), "memory:", or
 * "s3://bucket/prefix". Cost: one read. Fails with ESKER_NOT_FOUND if there is no store. */
int esker_repository_open(const char *url, const esker_repository_options *options,
                          esker_repository **repository);
/* Makes a store at `url` and opens it. Fails with ESKER_EXISTS if there is one. */
int esker_repository_create(const char *url, const esker_repository_options *options,
                            esker_repository **repository);
int esker_repository_close(esker_repository *repository);

/* Finds the change set of a snapshot, which is a published name, or '@' and an id. A name may stand
 * for another snapshot tomorrow; an id never does: ranks of a job resolve a name once. Cost: one
 * read. */
int esker_repository_resolve(esker_repository *repository, const char *snapshot,
                             char (*id)[ESKER_ID_BYTES]);

/* Merges a stack of snapshots, the uppermost first, into one change set and publishes it as `name`:
 * it shows the same tree. File data is not copied. `id` may be NULL. Survives power loss. Cost: all
 * tables of the stack are read, and one set of tables is written. */
int esker_repository_squash(esker_repository *repository, const char *const *snapshots,
                            size_t snapshots_count, const char *name, char (*id)[ESKER_ID_BYTES]);

typedef struct esker_gc_options {
    size_t struct_size;
    uint64_t grace_seconds; /* younger garbage stays; 0: the default of the esker command */
    int32_t without_grace;  /* 1: grace_seconds counts, even if it is 0 */
    int32_t dry_run;        /* 1: only count */
    int32_t scan_data;      /* 1: also look for data that no file refers to */
    int32_t reserved;       /* 0 */
} esker_gc_options;
#define ESKER_GC_OPTIONS_INIT { sizeof(esker_gc_options), 0, 0, 0, 0, 0 }

typedef struct esker_gc_report {
    uint64_t sets;     /* change sets that were deleted */
    uint64_t objects;  /* objects of the store that were deleted */
    uint64_t bytes;    /* their bytes */
    uint64_t problems; /* errors of reading: what they hit was left alone */
} esker_gc_report;

/* Deletes change sets that no name, session or reader needs. `report` may be NULL. */
int esker_repository_collect_garbage(esker_repository *repository, const esker_gc_options *options,
                                     esker_gc_report *report);

typedef struct esker_verify_report {
    uint64_t sets;       /* change sets that were examined */
    uint64_t records;    /* records that were read */
    uint64_t data_bytes; /* bytes of file data that were read */
    uint64_t errors;     /* losses; `esker verify` lists them with the paths that they hit */
    uint64_t warnings;   /* things that are not as they were written, without a loss */
} esker_verify_report;

/* Checks all change sets and names; with `reads_data` not 0 also every byte of file data. Returns 0
 * even if it finds damage. */
int esker_repository_verify(esker_repository *repository, int reads_data,
                            esker_verify_report *report);

/* ---- Published names ------------------------------------------------------------------------ */

typedef struct esker_name {
    const char *name;        /* stays until the next call with the listing */
    char id[ESKER_ID_BYTES]; /* the change set for which it stands */
    uint64_t published_ns;   /* nanoseconds since 1970 */
} esker_name;

/* Lists the names, in their order. Cost: a few reads, for any number of names. */
int esker_names_open(esker_repository *repository, esker_names **names);
/* Returns up to `buffer_count` more names; 0 at the end. */
int64_t esker_names_next(esker_names *names, esker_name *buffer, size_t buffer_count);
int esker_names_close(esker_names *names);

/* Gives a snapshot one more name. Fails with ESKER_EXISTS if it is taken. Survives power loss, as
 * the other changes of names do. */
int esker_name_publish(esker_repository *repository, const char *snapshot, const char *name);
/* Renames in one step: readers find the old name or the new one. */
int esker_name_rename(esker_repository *repository, const char *old_name, const char *new_name);
/* Deletes a name. Its change set stays as long as another name or a reader needs it, and at least
 * for the grace of the collection. */
int esker_name_delete(esker_repository *repository, const char *name);
/* Restores a deleted name that the collection has not forgotten. */
int esker_name_undelete(esker_repository *repository, const char *name);

/* ---- Namespaces: trees to read -------------------------------------------------------------- */

typedef struct esker_transfer_counts {
    uint64_t files;
    uint64_t directories;
    uint64_t symlinks;
    uint64_t links;              /* further names of files with several */
    uint64_t specials;           /* pipes, sockets, devices */
    uint64_t bytes;              /* of regular files */
    uint64_t owners_dropped;     /* exported files whose owner only the superuser could set */
    uint64_t attributes_dropped; /* attributes that only the superuser could set */
    uint64_t problems;           /* files and directories that could not be copied */
} esker_transfer_counts;

/* Opens snapshots, the uppermost first, as one tree: directories merge, and if two have a file at
 * one path, the tree shows that of the earlier one. The tree never changes, and no collection
 * deletes it while it is open. Cost: a look-up of each name and two requests for each change
 * set. */
int esker_namespace_open(esker_repository *repository, const char *const *snapshots,
                         size_t snapshots_count, esker_namespace **namespace_);
/* Opens the root of the tree. */
int esker_namespace_root(esker_namespace *namespace_, esker_dir **root);
/* Writes the tree below `source` into the new directory `target` of the operating system, which
 * appears complete or not at all. `counts` may be NULL. */
int esker_namespace_export(esker_namespace *namespace_, const char *source, const char *target,
                           esker_transfer_counts *counts);
/* Fails if the marker that protects the tree from collections could not be renewed, so that a
 * reader that goes on for long may lose its snapshot. No request. */
int esker_namespace_check_lease(esker_namespace *namespace_);
int esker_namespace_close(esker_namespace *namespace_);

/* ---- Sessions: trees to write --------------------------------------------------------------- */

/* The promise of a session for each change, in addition to that of esker_session_sync. */
enum esker_durability {
    ESKER_PRIVATE = 0, /* nothing, and it cannot be resumed: it is given up when it is closed */
    ESKER_NONE = 1,    /* nothing before a sync; can be resumed */
    ESKER_ASYNC = 2,   /* survives the process 100 ms later, power loss after a sync */
    ESKER_ALWAYS = 3   /* survives power loss when the call has returned */
};

typedef struct esker_session_options {
    size_t struct_size;
    const char *const *bases;      /* snapshots to build on, the uppermost first */
    size_t bases_count;
    int32_t durability;            /* an esker_durability; for a part of a job 0 is ESKER_ASYNC */
    int32_t take_over;             /* 1: even from a writer that seems to be alive */
    uint64_t memory_bytes;         /* for changes that are not in tables yet; 0: the default */
    const char *job;               /* the id of a job of which this is a part; NULL: none */
    uint32_t rank;                 /* the rank of the part */
    uint32_t properties_count;     /* number of descriptions */
    const char *const *properties; /* descriptions for `esker show`: a key and a value each */
    int32_t insertable;            /* 1: for esker_live_insert; without bases */
    int32_t reserved;              /* 0 */
} esker_session_options;
#define ESKER_SESSION_OPTIONS_INIT { sizeof(esker_session_options), NULL, 0, 0, 0, 0, NULL, 0, 0, NULL, 0, 0 }

/* Begins a session. Cost: as esker_namespace_open, and two writes. */
int esker_session_begin(esker_repository *repository, const esker_session_options *options,
                        esker_session **session);
/* Continues a session, by its id, after its writer ended: with everything that was durable. Fails
 * with ESKER_CONFLICT while another process writes it. Bases, job and properties are those that it
 * has. */
int esker_session_resume(esker_repository *repository, const char *id,
                         const esker_session_options *options, esker_session **session);
/* The id of its change set, for esker_session_resume. */
int esker_session_id(esker_session *session, char (*id)[ESKER_ID_BYTES]);
/* Opens the root of the tree, in which all calls of the next parts work. */
int esker_session_root(esker_session *session, esker_dir **root);
/* Copies the entries of the directory `source` of the operating system into the directory `target`
 * of the session, with attributes. `counts` may be NULL. */
int esker_session_import(esker_session *session, const char *source, const char *target,
                         esker_transfer_counts *counts);
/* Makes every change so far durable. Cost: a write for each log with new bytes. */
int esker_session_sync(esker_session *session);
/* As esker_session_sync, and writes the changes into tables, so that memory and log are empty. */
int esker_session_flush(esker_session *session);
/* Publishes the state so far as `name` and goes on. `id` may be NULL. */
int esker_session_snapshot(esker_session *session, const char *name, char (*id)[ESKER_ID_BYTES]);

/* Flag of esker_session_publish: the name moves from the snapshot that it stands for. */
#define ESKER_REPLACE 1
/* Ends the session and publishes it as `name`, which must be free without ESKER_REPLACE. If it
 * fails with ESKER_EXISTS, the session is as before. `id` may be NULL. Cost: as
 * esker_session_flush, a commit, and one write of the name. */
int esker_session_publish(esker_session *session, const char *name, int flags,
                          char (*id)[ESKER_ID_BYTES]);
/* Ends the session without a name, as a part of a job. */
int esker_session_complete(esker_session *session, char (*id)[ESKER_ID_BYTES]);
/* Leaves the session so that it can be resumed, with all changes durable. */
int esker_session_suspend(esker_session *session, char (*id)[ESKER_ID_BYTES]);
/* Gives the session up with all its changes, and closes its handle. */
int esker_session_abandon(esker_session *session);
/* Closes the handle. A session of ESKER_PRIVATE that was not published is given up when its last
 * directory and file are closed, too. */
int esker_session_close(esker_session *session);

/* ---- Jobs: parts of many ranks -------------------------------------------------------------- */

typedef struct esker_job_report {
    uint64_t parts;     /* parts that the snapshot shows, with those that index shared files */
    uint64_t conflicts; /* names that parts changed differently: `esker show` lists them */
} esker_job_report;

/* Makes a new id. One rank makes it and sends it to the others (esker_comm_broadcast); each begins
 * its part with esker_session_options.job and .rank, and completes it. */
int esker_job_id(char (*id)[ESKER_ID_BYTES]);
/* Publishes all complete parts as the snapshot `name`. Fails with ESKER_INVALID if one is not
 * complete. `report` may be NULL. */
int esker_job_publish(esker_repository *repository, const char *job, const char *name,
                      esker_job_report *report);
/* Gives up all parts. */
int esker_job_abandon(esker_repository *repository, const char *job);

/* ---- Directories and paths ------------------------------------------------------------------ */

/* Opens a directory, for short paths and fast calls. Changes fail with ESKER_READ_ONLY in a
 * namespace. */
int esker_dir_open(esker_dir *at, const char *path, esker_dir **dir);
/* Copies the path of the directory, without a zero byte, and returns its length, which may exceed
 * `buffer_bytes`. */
int64_t esker_dir_path(esker_dir *dir, void *buffer, size_t buffer_bytes);
int esker_dir_close(esker_dir *dir);

/* Makes a directory with mode 0755. */
int esker_mkdir(esker_dir *at, const char *path);
/* Makes a directory and those above it, as far as they are missing. */
int esker_mkdir_all(esker_dir *at, const char *path);
/* Makes an empty file with mode 0644: the fastest way to make many names. */
int esker_create(esker_dir *at, const char *path);
int esker_unlink(esker_dir *at, const char *path);
int esker_rmdir(esker_dir *at, const char *path);
/* Removes a directory and everything below it. */
int esker_remove_all(esker_dir *at, const char *path);

/* Flags of esker_rename; without one the target is replaced. */
#define ESKER_RENAME_NOREPLACE 1 /* fail with ESKER_EXISTS */
#define ESKER_RENAME_EXCHANGE 2  /* swap both */
int esker_rename(esker_dir *at, const char *from, const char *to, int flags);
/* Gives a file one more name. */
int esker_link(esker_dir *at, const char *file, const char *link);
/* Makes a symbolic link with the text `target`. */
int esker_symlink(esker_dir *at, const char *target, const char *link);
/* Copies the text of a symbolic link, without a zero byte, and returns its length, which may exceed
 * `buffer_bytes`. */
int64_t esker_readlink(esker_dir *at, const char *link, void *buffer, size_t buffer_bytes);

/* Reads a whole file, verifies its checksum, copies as much as there is room for and returns its
 * size, which may exceed `buffer_bytes`. */
int64_t esker_read_file(esker_dir *at, const char *path, void *buffer, size_t buffer_bytes);
/* Writes a whole file: creates it, or replaces its content in one step. Cost: an append to a log
 * that many files share; none for up to 256 bytes. */
int esker_write_file(esker_dir *at, const char *path, const void *content, size_t content_bytes);

/* ---- Attributes ----------------------------------------------------------------------------- */

typedef struct esker_stat_t {
    uint8_t file_id[16];  /* the same for all names of a file, and for no other file of the tree */
    uint64_t size;        /* bytes of content */
    int64_t atime_ns;     /* nanoseconds since 1970 */
    int64_t mtime_ns;
    int64_t ctime_ns;
    uint32_t mode;        /* type and permission bits, as in stat(2) */
    uint32_t uid;
    uint32_t gid;
    uint32_t nlink;       /* number of names; 1 for a directory */
    uint32_t is_indexed;  /* 1 for an indexed directory */
    uint32_t reserved[7]; /* 0 */
} esker_stat_t;

/* Flag of esker_stat: of a symbolic link itself. */
#define ESKER_NOFOLLOW 1
int esker_stat(esker_dir *at, const char *path, int flags, esker_stat_t *stat);

/* Bits of esker_attributes.changes: the members that count. */
#define ESKER_SET_MODE 1u
#define ESKER_SET_UID 2u
#define ESKER_SET_GID 4u
#define ESKER_SET_SIZE 8u
#define ESKER_SET_ATIME 16u
#define ESKER_SET_MTIME 32u

typedef struct esker_attributes {
    uint32_t changes;
    uint32_t mode; /* permission bits */
    uint32_t uid;
    uint32_t gid;
    uint64_t size; /* shorter: cut; longer: zeros */
    int64_t atime_ns;
    int64_t mtime_ns;
} esker_attributes;

/* Changes attributes, following symbolic links. */
int esker_setattr(esker_dir *at, const char *path, const esker_attributes *attributes);

/* Extended attributes. Values and lists (names, each with a zero byte) are copied as far as there
 * is room; the whole size is returned. Flags are XATTR_CREATE and XATTR_REPLACE of
 * <sys/xattr.h>. */
int64_t esker_getxattr(esker_dir *at, const char *path, const char *attribute, void *buffer,
                       size_t buffer_bytes);
int64_t esker_listxattr(esker_dir *at, const char *path, void *buffer, size_t buffer_bytes);
int esker_setxattr(esker_dir *at, const char *path, const char *attribute, const void *value,
                   size_t value_bytes, int flags);
int esker_removexattr(esker_dir *at, const char *path, const char *attribute);

/* ---- Listings ------------------------------------------------------------------------------- */

typedef struct esker_entry {
    const char *name; /* stays until the next call with the listing */
    esker_stat_t stat;
} esker_entry;

/* Lists a directory, from the first entry after the name `after`, or all if it is NULL. The order
 * is the store's, not that of names; a listing goes on correctly while the directory changes. */
int esker_entries_open(esker_dir *at, const char *path, const char *after, esker_entries **entries);
/* Returns up to `buffer_count` more entries; 0 at the end. */
int64_t esker_entries_next(esker_entries *entries, esker_entry *buffer, size_t buffer_count);
int esker_entries_close(esker_entries *entries);

/* ---- Many files in one call ----------------------------------------------------------------- */

/* Each element is handled as by the call for one file, in the order of the array, and has a result
 * of its own, 0 or minus an errno. The functions return how many succeeded; the last error is that
 * of the last element that failed. */
int64_t esker_create_many(esker_dir *at, const char *const *paths, size_t paths_count, int *results);
int64_t esker_stat_many(esker_dir *at, const char *const *paths, size_t paths_count,
                        esker_stat_t *stats, int *results);

typedef struct esker_file_content {
    const char *path;
    void *bytes;        /* to write, or room to read into */
    size_t bytes_count;
    int64_t result;     /* the size of the file, or minus an errno */
} esker_file_content;

int64_t esker_read_many(esker_dir *at, esker_file_content *files, size_t files_count);
int64_t esker_write_many(esker_dir *at, esker_file_content *files, size_t files_count);

/* ---- Open files ----------------------------------------------------------------------------- */

/* Opens a file with flags of <fcntl.h>: O_RDONLY, O_WRONLY or O_RDWR, and O_CREAT, O_EXCL, O_TRUNC.
 * `mode` are the permission bits of a file that is created, of which no umask is subtracted. The
 * file stays usable after its names are removed. */
int esker_file_open(esker_dir *at, const char *path, int flags, uint32_t mode, esker_file **file);
/* Reads up to `buffer_bytes` from `offset`; fewer only at the end of the file. */
int64_t esker_file_pread(esker_file *file, void *buffer, size_t buffer_bytes, uint64_t offset);
/* Writes all bytes at `offset`; a gap before it reads as zeros. */
int64_t esker_file_pwrite(esker_file *file, const void *content, size_t content_bytes,
                          uint64_t offset);
/* Writes at the end and returns the offset at which the bytes begin. */
int64_t esker_file_append(esker_file *file, const void *content, size_t content_bytes);
int64_t esker_file_size(esker_file *file);
int esker_file_stat(esker_file *file, esker_stat_t *stat);
int esker_file_truncate(esker_file *file, uint64_t size);
int esker_file_setattr(esker_file *file, const esker_attributes *attributes);
/* Makes the file's bytes and its name durable, in a session that can be resumed. */
int esker_file_sync(esker_file *file);
/* Closes the file; its changes become an operation of the session. The handle is closed even if
 * this fails; the session's next sync or publish tries again. */
int esker_file_close(esker_file *file);

/* ---- Live namespaces: trees that many clients change at once ---------------------------------- */

/* A server, `esker live serve NAME`, carries out the changes of all clients, and each sees those of
 * the others at once. It acts for the user of this process. If it dies, calls wait up to half a
 * minute for the next one and are carried out once; then they fail with ESKER_UNAVAILABLE. A change
 * lasts as long as its server, and survives power loss after esker_live_sync. Paths begin at the
 * root. Cost: a round trip or two for each call, however many files it has. */

/* Makes a live namespace on top of snapshots, the uppermost first. Fails with ESKER_EXISTS if the
 * name is taken; names of live namespaces are apart from those of snapshots. */
int esker_live_create(esker_repository *repository, const char *name, const char *const *bases,
                      size_t bases_count);
/* Connects to its server. Waits half a minute for one, then fails with ESKER_UNAVAILABLE. */
int esker_live_open(esker_repository *repository, const char *name, esker_live **live);
/* Connects as esker_live_open does, but waits only so many milliseconds for a server, now and in
 * later calls: 0 to try once, 300,000 at most. */
int esker_live_open_within(esker_repository *repository, const char *name, uint64_t patience_ms,
                           esker_live **live);
int esker_live_close(esker_live *live);

/* Makes a directory with mode 0755. */
int esker_live_mkdir(esker_live *live, const char *path);
/* Makes a directory and those above it, as far as they are missing. */
int esker_live_mkdir_all(esker_live *live, const char *path);
/* Makes empty files with mode 0644 in a directory, and returns how many; `results` as of
 * esker_create_many. Cost: a round trip for each 1,024. */
int64_t esker_live_create_many(esker_live *live, const char *dir, const char *const *names,
                               size_t names_count, int *results);
/* Attributes; `flags` as of esker_stat. */
int esker_live_stat(esker_live *live, const char *path, int flags, esker_stat_t *stat);
/* Attributes of names in a directory, of symbolic links themselves; returns how many were found. */
int64_t esker_live_stat_many(esker_live *live, const char *dir, const char *const *names,
                             size_t names_count, esker_stat_t *stats, int *results);
/* Reads a whole file, copies as much as there is room for and returns its size, which may exceed
 * `buffer_bytes`. */
int64_t esker_live_read_file(esker_live *live, const char *path, void *buffer, size_t buffer_bytes);
/* Writes a whole file: creates it, or replaces its content, which others may see in part meanwhile. */
int esker_live_write_file(esker_live *live, const char *path, const void *content,
                          size_t content_bytes);
/* Lists a directory, for esker_entries_next. */
int esker_live_entries_open(esker_live *live, const char *path, esker_entries **entries);
/* Renames; the target is replaced. */
int esker_live_rename(esker_live *live, const char *from, const char *to);
int esker_live_unlink(esker_live *live, const char *path);
int esker_live_rmdir(esker_live *live, const char *path);
/* Makes every change so far durable. Fails with ESKER_DEVICE_FAILED, once, if a server died with
 * changes that it had answered and not synced: some may be lost. */
int esker_live_sync(esker_live *live);
/* Publishes the current state as the snapshot `name`. `id` may be NULL. Fails with
 * ESKER_NOT_PERMITTED unless this is the server's user, or the superuser. */
int esker_live_snapshot(esker_live *live, const char *name, char (*id)[ESKER_ID_BYTES]);
/* Makes the directory `from` in the root of an insertable session the new directory `to`: others
 * see nothing of it before, and all of it afterwards. It survives power loss once this has
 * returned, and the session takes no more changes. One directory of a session can be inserted, once.
 * Users as of esker_live_snapshot. Cost: a flush of the session, and some store requests of the
 * server, for any number of files. */
int esker_live_insert(esker_live *live, esker_session *session, const char *from, const char *to);
/* The same for a directory in the root of a snapshot, which stays: the result of a job whose ranks
 * each wrote a part of the directory, in insertable sessions. */
int esker_live_insert_snapshot(esker_live *live, const char *snapshot, const char *from,
                               const char *to);

/* ---- Communicators: ranks of a job ---------------------------------------------------------- */

/* Collective calls wait for all ranks. A rank that never makes one, or that ends, fails the calls
 * of the others with ESKER_UNAVAILABLE: at once where its loss is noticed, else after 300
 * seconds. */

/* A job of this process alone. */
int esker_comm_self(esker_comm **comm);
/* A job of `ranks` threads of this process, `ranks_per_node` on each pretended node (0: all on
 * one). Fills `comms[0..ranks]`, one for each thread. */
int esker_comm_threads(size_t ranks, uint32_t ranks_per_node, esker_comm **comms);
/* The job that `esker run`, srun or mpirun started: the ranks meet in the store at `meet` (NULL:
 * that of the environment, ESKER_MEET or ESKER_STORE) and connect by TCP. A process that was not
 * started as a rank is alone. Collective. */
int esker_comm_from_environment(const char *meet, esker_comm **comm);

/* Functions that move messages, for ranks over a library of the caller; esker_mpi.h makes them of
 * an MPI communicator. All return 0, or another number for a failure, after which the communicator
 * is of no more use. */
typedef struct esker_message_functions {
    size_t struct_size;
    void *context;         /* the first argument of all functions */
    uint32_t rank;
    uint32_t size;         /* number of ranks */
    const uint32_t *nodes; /* for each rank a number; equal ones share a node. NULL: one node */
    /* Starts a send. The bytes stay as they are until test_send has said that it is done, which is
     * not before the receiver has taken them. */
    int (*start_send)(void *context, uint32_t to, uint32_t tag, const void *bytes,
                      size_t bytes_count, void **request);
    /* Sets `done` to 1, and frees the request, or to 0. */
    int (*test_send)(void *context, void *request, int *done);
    /* Sets `found` to 1 if a message with `tag` has arrived, with its sender and size; messages of
     * one sender and tag are found in order. */
    int (*probe)(void *context, uint32_t tag, int *found, uint32_t *from, size_t *bytes_count,
                 void **message);
    /* Copies a message that was found, and frees it. */
    int (*receive)(void *context, void *message, void *bytes, size_t bytes_count);
    /* Called last, also if the communicator cannot be made; may be NULL. */
    void (*release)(void *context);
} esker_message_functions;

int esker_comm_from_functions(const esker_message_functions *functions, esker_comm **comm);

int esker_comm_rank(esker_comm *comm, uint32_t *rank, uint32_t *size);
/* Returns once every rank has called it. */
int esker_comm_barrier(esker_comm *comm);
/* Copies the bytes of rank 0 to all ranks, whose buffers have equal sizes. Returns the size. */
int64_t esker_comm_broadcast(esker_comm *comm, void *buffer, size_t buffer_bytes);
/* Leaves the job, now or when the writer or the shared job that uses the communicator ends. Call it
 * after a barrier; collective if it was made of one of MPI. */
int esker_comm_close(esker_comm *comm);

/* ---- Indexed directories: records by key ---------------------------------------------------- */

enum esker_imd_format {
    ESKER_IMD_BASE = 0,    /* whole records move to their key's partition */
    ESKER_IMD_POINTER = 1, /* values stay where they were appended; keys and exact pointers move */
    ESKER_IMD_LOSSY = 2,   /* records stay; hashes of keys and ranks move (cuckoo tables) */
    ESKER_IMD_STATIC = 3,  /* records stay; a static function maps a key to its rank */
    ESKER_IMD_ORDERED = 4  /* whole records move to the partition of their key range */
};

typedef struct esker_imd_options {
    size_t struct_size;
    int32_t format;         /* an esker_imd_format */
    uint32_t key_bytes;     /* 1 to 255; with value_bytes 0, too: lengths differ */
    uint32_t value_bytes;
    int32_t routes_by_node; /* 1: messages pass through one rank of each node (three hops) */
    uint64_t memory_bytes;  /* of a rank in all; 0: 256 MiB */
} esker_imd_options;
#define ESKER_IMD_OPTIONS_INIT { sizeof(esker_imd_options), 0, 0, 0, 0, 0 }

typedef struct esker_imd_summary {
    uint64_t records;     /* in this rank's partition */
    uint64_t epochs;
    uint64_t memory_peak; /* bytes, on this rank */
} esker_imd_summary;

/* Begins an indexed directory that all ranks of `comm` write, with equal options. Collective: if it
 * fails at one rank, it fails at all, with ESKER_UNAVAILABLE at the others. Rank 0 gives the
 * session in which the directory will have the path `path`, which must be free; the session of the
 * others is not used and may be NULL. The writer uses the communicator, and keeps the session,
 * until it is finished or discarded. */
int esker_imd_create(esker_comm *comm, esker_repository *repository, esker_session *session,
                     const char *path, const esker_imd_options *options, esker_imd_writer **writer);
/* Appends a record. Readers get the values of one key and epoch in the order in which a rank
 * appended them. Nothing is durable before the epoch is flushed. */
int esker_imd_append(esker_imd_writer *writer, const void *key, size_t key_bytes, const void *value,
                     size_t value_bytes);
/* Appends `records` records of fixed sizes: keys one after the other, and values likewise. If it
 * fails, those before the one that failed were appended. */
int esker_imd_append_many(esker_imd_writer *writer, const void *keys, const void *values,
                          size_t records);
/* Receives messages of other ranks: call it now and then during long computations. */
int esker_imd_poll(esker_imd_writer *writer);
/* Ends an epoch, whose step is one more than the last. Collective. Once it has returned at any
 * rank, all records that all ranks appended before survive power loss. */
int esker_imd_epoch_flush(esker_imd_writer *writer);
/* The same with a step, greater than the last, such as the time step of a simulation. */
int esker_imd_epoch_flush_at(esker_imd_writer *writer, uint64_t step);
/* Finishes the directory; rank 0 makes its entry in the session. Collective. Closes the handle,
 * even if it fails; a directory whose entry cannot be made, since its path was taken or its parent
 * removed meanwhile, is lost. `summary` may be NULL. */
int esker_imd_finish(esker_imd_writer *writer, esker_imd_summary *summary);
/* Gives the directory up, after a failure: this rank is lost to the others. Closes the handle. */
int esker_imd_discard(esker_imd_writer *writer);

/* Opens an indexed directory of a snapshot or session. `cache_bytes` 0: 64 MiB. */
int esker_imd_open(esker_dir *at, const char *path, uint64_t cache_bytes, esker_imd **reader);

typedef struct esker_imd_info {
    uint64_t epochs;
    uint32_t key_bytes;   /* 0, as the next: lengths differ */
    uint32_t value_bytes;
} esker_imd_info;

int esker_imd_info_of(esker_imd *reader, esker_imd_info *info);
/* Copies the steps of the epochs as far as there is room, and returns their number. */
int64_t esker_imd_steps(esker_imd *reader, uint64_t *steps, size_t steps_count);

typedef struct esker_imd_value {
    const void *bytes; /* stays until the answers are closed */
    size_t bytes_count;
    uint32_t epoch;
    uint32_t reserved; /* 0 */
} esker_imd_value;

/* Finds all values of one key, by epoch. A key that no record has is no failure: it has no
 * values. */
int esker_imd_get(esker_imd *reader, const void *key, size_t key_bytes, esker_imd_answers **answers);
/* Finds the values of `keys_count` keys of `key_bytes` each, one after the other, in `epochs_count`
 * epochs from `first_epoch` (0: all from there), by `threads` threads. */
int esker_imd_get_many(esker_imd *reader, const void *keys, size_t key_bytes, size_t keys_count,
                       uint32_t first_epoch, uint32_t epochs_count, uint32_t threads,
                       esker_imd_answers **answers);
/* The values of the key with number `key_index`. */
int esker_imd_values(esker_imd_answers *answers, size_t key_index, const esker_imd_value **values,
                     size_t *values_count);
int esker_imd_answers_close(esker_imd_answers *answers);

/* Called with each record; returns 0 to go on. Key and value stay during the call only. */
typedef int (*esker_record_function)(void *argument, const void *key, size_t key_bytes,
                                     const void *value, size_t value_bytes);
/* Passes every record of an epoch to `visit`, until it returns another number than 0. */
int esker_imd_scan(esker_imd *reader, uint32_t epoch, esker_record_function visit, void *argument);
/* The same for the records with keys from `first_key` to `last_key`, in order of keys, in a
 * directory of ESKER_IMD_ORDERED. */
int esker_imd_range(esker_imd *reader, uint32_t epoch, const void *first_key, size_t first_key_bytes,
                    const void *last_key, size_t last_key_bytes, esker_record_function visit,
                    void *argument);
int esker_imd_close(esker_imd *reader);

/* ---- Shared files: files that all ranks write ----------------------------------------------- */

typedef struct esker_shared_options {
    size_t struct_size;
    const char *const *bases;    /* snapshots to build on, the uppermost first */
    size_t bases_count;
    int32_t durability;          /* what a sync promises: at ESKER_NONE that others can read;
                                    0 is ESKER_ASYNC */
    int32_t take_over;           /* 1: even if ranks of an earlier run seem to be alive */
    uint64_t memory_bytes;       /* for changes that are not in the store yet; 0: the default */
    uint32_t servers_per_node;   /* ranks of each node that keep the index; 0: one */
    int32_t reads_through_ranks; /* 1: read what others wrote through them, not from the store */
} esker_shared_options;
#define ESKER_SHARED_OPTIONS_INIT { sizeof(esker_shared_options), NULL, 0, 0, 0, 0, 0, 0 }

/* Begins a job whose ranks write files together, or continues it after its ranks ended without
 * publishing it. All ranks give one `job` (esker_job_id) and equal options. Collective, as all
 * calls below that say so: all ranks make them in the same order. A rank answers the others while
 * it waits in any call. */
int esker_shared_begin(esker_comm *comm, esker_repository *repository, const char *job,
                       const esker_shared_options *options, esker_shared_job **shared);
/* Opens the root of this rank's own part, in which other files are made as in a session. */
int esker_shared_root(esker_shared_job *shared, esker_dir **root);
/* Opens a file, or makes it if `creates` is not 0. Collective. Fails with ESKER_INVALID if it is
 * open. */
int esker_shared_open(esker_shared_job *shared, const char *path, int creates,
                      esker_shared_file **file);
/* Removes a file that no rank has open. Collective. */
int esker_shared_unlink(esker_shared_job *shared, const char *path);
/* Writes at `offset`. Other ranks see it after this rank's sync. */
int64_t esker_shared_pwrite(esker_shared_file *file, const void *content, size_t content_bytes,
                            uint64_t offset);
int64_t esker_shared_pread(esker_shared_file *file, void *buffer, size_t buffer_bytes,
                           uint64_t offset);

typedef struct esker_shared_request {
    int32_t writes;       /* 1: write, 0: read */
    int32_t reserved;     /* 0 */
    uint64_t offset;      /* of the first piece */
    uint64_t piece_bytes;
    uint64_t stride;      /* from the start of a piece to that of the next one */
    uint64_t pieces;
    void *buffer;         /* all pieces, one after the other */
    int64_t result;       /* bytes that were moved, or minus an errno */
} esker_shared_request;

/* Carries out requests of strided pieces; returns how many succeeded. */
int64_t esker_shared_io(esker_shared_file *file, esker_shared_request *requests,
                        size_t requests_count);
/* Shows this rank's writes to the others, and makes them durable as the job's options say. */
int esker_shared_sync(esker_shared_file *file);
/* Shows each rank all earlier writes of all ranks, and gives each the index of the file: until the
 * next collective call with the file, a rank reads those and its own writes, and waits for no other
 * rank. Use it if ranks wait for each other in calls that are not Esker's. If the same bytes are
 * written before and after an exchange, the later write wins. From the first exchange on,
 * esker_shared_sync is collective. A write takes some 100 bytes of memory until the next sync.
 * Collective. */
int esker_shared_exchange(esker_shared_file *file);
/* Cuts or extends the file. Collective. */
int esker_shared_truncate(esker_shared_file *file, uint64_t size);
/* Ends all writing, so that every rank finds all bytes by itself. Collective. */
int esker_shared_laminate(esker_shared_file *file);
/* Size and time of the last write, which all ranks agree on. `mtime_ns` may be NULL. */
int esker_shared_stat(esker_shared_file *file, uint64_t *size, int64_t *mtime_ns);
/* The size as this rank knows it: that of the last call in which all ranks agreed on it, or a
 * larger one if this rank has written beyond. */
int64_t esker_shared_known_size(esker_shared_file *file);
/* Closes the file. Collective. */
int esker_shared_close(esker_shared_file *file);
int esker_shared_barrier(esker_shared_job *shared);
/* Answers other ranks for up to `milliseconds`: call it now and then during long computations. */
int esker_shared_serve(esker_shared_job *shared, uint32_t milliseconds);
/* Publishes the writes of all ranks as the snapshot `name`, and closes the handle. Collective.
 * `report` is filled at rank 0, and may be NULL. Fails with ESKER_INVALID while files are open. */
int esker_shared_publish(esker_shared_job *shared, const char *name, char (*id)[ESKER_ID_BYTES],
                         esker_job_report *report);
/* Leaves the job as it is, to be begun again, and closes the handle. */
int esker_shared_leave(esker_shared_job *shared);

#ifdef __cplusplus
}
#endif

#endif
