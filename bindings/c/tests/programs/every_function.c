/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every function that needs no second rank, as a program would, and checks what it does. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "check.h"

static void versions(void)
{
    CHECK(esker_version() == ESKER_VERSION);
    CHECK(strcmp(esker_version_text(), "0.1.0") == 0);
    CHECK(esker_error_kind() == ESKER_OK);
    CHECK(strcmp(esker_kind_name(ESKER_NOT_FOUND), "not found") == 0);
    CHECK(strcmp(esker_kind_name(1000), "unknown") == 0);
}

static void paths(esker_dir *root)
{
    esker_dir *dir;
    char text[64];

    OK(esker_mkdir(root, "/a"));
    FAILS(esker_mkdir(root, "/a"), ESKER_EXISTS, EEXIST);
    OK(esker_mkdir_all(root, "/a/b/c"));
    OK(esker_dir_open(root, "/a/b", &dir));
    CHECK(esker_dir_path(dir, text, sizeof text) == 4 && memcmp(text, "/a/b", 4) == 0);
    CHECK(esker_dir_path(dir, NULL, 0) == 4);
    OK(esker_create(dir, "empty"));
    OK(esker_write_file(dir, "file", "hello", 5));
    memset(text, 0, sizeof text);
    CHECK(esker_read_file(root, "/a/b/file", text, sizeof text) == 5);
    CHECK(strcmp(text, "hello") == 0);
    CHECK(esker_read_file(root, "/a/b/file", text, 2) == 5);
    OK(esker_link(dir, "file", "link"));
    OK(esker_symlink(dir, "file", "symlink"));
    memset(text, 0, sizeof text);
    CHECK(esker_readlink(dir, "symlink", text, sizeof text) == 4 && strcmp(text, "file") == 0);
    OK(esker_rename(dir, "link", "moved", 0));
    FAILS(esker_rename(dir, "moved", "file", ESKER_RENAME_NOREPLACE), ESKER_EXISTS, EEXIST);
    OK(esker_rename(dir, "empty", "file", ESKER_RENAME_EXCHANGE));
    OK(esker_rename(dir, "empty", "file", ESKER_RENAME_EXCHANGE));
    OK(esker_unlink(dir, "moved"));
    FAILS(esker_unlink(dir, "moved"), ESKER_NOT_FOUND, ENOENT);
    OK(esker_rmdir(root, "/a/b/c"));
    FAILS(esker_rmdir(root, "/a/b"), ESKER_NOT_EMPTY, ENOTEMPTY);
    OK(esker_dir_close(dir));
    OK(esker_mkdir_all(root, "/gone/below"));
    OK(esker_remove_all(root, "/gone"));
}

static void attributes(esker_dir *root)
{
    esker_stat_t stat;
    esker_attributes changes = { 0 };
    char text[64];

    OK(esker_stat(root, "/a/b/symlink", 0, &stat));
    CHECK(S_ISREG(stat.mode) && (stat.mode & 0777) == 0644 && stat.size == 5 && stat.nlink == 1);
    CHECK(!stat.is_indexed && stat.reserved[6] == 0);
    OK(esker_stat(root, "/a/b/symlink", ESKER_NOFOLLOW, &stat));
    CHECK(S_ISLNK(stat.mode));
    changes.changes = ESKER_SET_MODE | ESKER_SET_SIZE | ESKER_SET_MTIME | ESKER_SET_ATIME;
    changes.mode = 0600;
    changes.size = 3;
    changes.mtime_ns = -1000000001;
    changes.atime_ns = 5;
    OK(esker_setattr(root, "/a/b/file", &changes));
    OK(esker_stat(root, "/a/b/file", 0, &stat));
    CHECK((stat.mode & 0777) == 0600 && stat.size == 3);
    CHECK(stat.mtime_ns == -1000000001 && stat.atime_ns == 5);
    changes.changes = 1024;
    FAILS(esker_setattr(root, "/a/b/file", &changes), ESKER_INVALID, EINVAL);
    changes.changes = ESKER_SET_UID | ESKER_SET_GID;
    changes.uid = stat.uid;
    changes.gid = stat.gid;
    OK(esker_setattr(root, "/a/b/file", &changes));

    OK(esker_setxattr(root, "/a/b/file", "user.one", "1", 1, XATTR_CREATE));
    FAILS(esker_setxattr(root, "/a/b/file", "user.one", "2", 1, XATTR_CREATE), ESKER_EXISTS,
          EEXIST);
    OK(esker_setxattr(root, "/a/b/file", "user.two", NULL, 0, 0));
    CHECK(esker_getxattr(root, "/a/b/file", "user.one", text, sizeof text) == 1);
    CHECK(text[0] == '1');
    CHECK(esker_listxattr(root, "/a/b/file", text, sizeof text) == 18);
    CHECK(memcmp(text, "user.one\0user.two\0", 18) == 0);
    OK(esker_removexattr(root, "/a/b/file", "user.two"));
    FAILS(esker_getxattr(root, "/a/b/file", "user.two", text, sizeof text), ESKER_NO_ATTRIBUTE,
          ENODATA);
}

static void listings(esker_dir *root)
{
    esker_entries *entries;
    esker_entry batch[3];
    char last[64];
    int64_t count;
    int all = 0;

    OK(esker_mkdir(root, "/many"));
    for (int i = 0; i < 10; i++) {
        char name[32];
        snprintf(name, sizeof name, "/many/%d", i);
        OK(esker_create(root, name));
    }
    OK(esker_entries_open(root, "/many", NULL, &entries));
    OK(count = esker_entries_next(entries, batch, 3));
    CHECK(count == 3);
    snprintf(last, sizeof last, "%s", batch[2].name);
    while ((count = esker_entries_next(entries, batch, 3)) > 0) {
        for (int64_t i = 0; i < count; i++)
            CHECK(S_ISREG(batch[i].stat.mode) && batch[i].name[1] == '\0');
        all += (int)count;
    }
    CHECK(count == 0 && all == 7);
    OK(esker_entries_close(entries));
    OK(esker_entries_open(root, "/many", last, &entries));
    for (all = 0; (count = esker_entries_next(entries, batch, 3)) > 0;)
        all += (int)count;
    CHECK(all == 7);
    OK(esker_entries_close(entries));
    FAILS(esker_entries_open(root, "/none", NULL, &entries), ESKER_NOT_FOUND, ENOENT);
    CHECK(entries == NULL);
}

static void many_files(esker_dir *root)
{
    const char *names[3] = { "x", "y", "x" };
    int results[3];
    esker_stat_t stats[3];
    char one[8] = "", two[8] = "";
    esker_file_content files[2] = { { "x", "abc", 3, 0 }, { "/none/z", "d", 1, 0 } };
    esker_dir *dir;

    OK(esker_mkdir(root, "/bulk"));
    OK(esker_dir_open(root, "/bulk", &dir));
    CHECK(esker_create_many(dir, names, 3, results) == 2);
    CHECK(results[0] == 0 && results[1] == 0 && results[2] == -EEXIST);
    CHECK(esker_write_many(dir, files, 2) == 1);
    CHECK(files[0].result == 3 && files[1].result == -ENOENT);
    names[2] = "none";
    CHECK(esker_stat_many(dir, names, 3, stats, results) == 2);
    CHECK(stats[0].size == 3 && stats[1].size == 0 && results[2] == -ENOENT);
    files[0].bytes = one;
    files[0].bytes_count = sizeof one;
    files[1].path = "y";
    files[1].bytes = two;
    files[1].bytes_count = sizeof two;
    CHECK(esker_read_many(dir, files, 2) == 2);
    CHECK(files[0].result == 3 && strcmp(one, "abc") == 0 && files[1].result == 0);
    OK(esker_dir_close(dir));
}

static void open_files(esker_dir *root)
{
    esker_file *file;
    esker_stat_t stat;
    esker_attributes changes = { 0 };
    char text[64] = "";

    OK(esker_file_open(root, "/open", O_RDWR | O_CREAT | O_EXCL, 0640, &file));
    CHECK(esker_file_pwrite(file, "world", 5, 10) == 5);
    CHECK(esker_file_append(file, "!", 1) == 15);
    CHECK(esker_file_size(file) == 16);
    CHECK(esker_file_pread(file, text, sizeof text, 9) == 7);
    CHECK(memcmp(text, "\0world!", 7) == 0);
    OK(esker_file_truncate(file, 12));
    changes.changes = ESKER_SET_MTIME;
    changes.mtime_ns = 77;
    OK(esker_file_setattr(file, &changes));
    OK(esker_file_stat(file, &stat));
    CHECK(stat.size == 12 && (stat.mode & 07777) == 0640 && stat.mtime_ns == 77);
    OK(esker_file_sync(file));
    OK(esker_file_close(file));
    FAILS(esker_file_open(root, "/open", O_RDWR | O_CREAT | O_EXCL, 0640, &file), ESKER_EXISTS,
          EEXIST);
    CHECK(file == NULL);
    FAILS(esker_file_open(root, "/open", O_RDWR | O_DIRECTORY, 0, &file), ESKER_INVALID, EINVAL);
    OK(esker_file_open(root, "/open", O_WRONLY | O_TRUNC, 0, &file));
    CHECK(esker_file_size(file) == 0);
    CHECK(esker_file_pread(file, text, 1, 0) < 0);
    OK(esker_file_close(file));
}

static int count_records(void *argument, const void *key, size_t key_bytes, const void *value,
                         size_t value_bytes)
{
    CHECK(key_bytes == 8 && value_bytes == 4 && key != NULL && value != NULL);
    return ++*(int *)argument == 3;
}

static void indexed(esker_repository *repository, esker_session *session, esker_dir *root)
{
    esker_imd_options options = ESKER_IMD_OPTIONS_INIT;
    esker_imd_summary summary;
    esker_imd_info info;
    esker_comm *comm;
    esker_imd_writer *writer;
    esker_imd *reader;
    esker_imd_answers *answers;
    const esker_imd_value *values;
    size_t count;
    uint64_t steps[4], keys[100];
    uint32_t numbers[100], rank, size;
    int seen = 0;
    char id[ESKER_ID_BYTES] = "";

    OK(esker_comm_self(&comm));
    OK(esker_comm_rank(comm, &rank, &size));
    CHECK(rank == 0 && size == 1);
    OK(esker_comm_barrier(comm));
    CHECK(esker_comm_broadcast(comm, id, sizeof id) == sizeof id);
    options.format = ESKER_IMD_ORDERED;
    options.key_bytes = 8;
    options.value_bytes = 4;
    options.memory_bytes = 4 << 20;
    OK(esker_imd_create(comm, repository, session, "/tracers", &options, &writer));
    FAILS(esker_comm_barrier(comm), ESKER_INVALID, EINVAL);
    for (uint32_t i = 0; i < 100; i++) {
        keys[i] = __builtin_bswap64(i);
        numbers[i] = i;
    }
    for (int i = 0; i < 50; i++)
        OK(esker_imd_append(writer, &keys[i], 8, &numbers[i], 4));
    OK(esker_imd_append_many(writer, keys + 50, numbers + 50, 50));
    FAILS(esker_imd_append(writer, keys, 7, numbers, 4), ESKER_INVALID, EINVAL);
    OK(esker_imd_poll(writer));
    OK(esker_imd_epoch_flush(writer));
    OK(esker_imd_append_many(writer, keys, numbers, 100));
    OK(esker_imd_epoch_flush_at(writer, 500));
    OK(esker_imd_finish(writer, &summary));
    CHECK(summary.records == 200 && summary.epochs == 2 && summary.memory_peak > 0);
    FAILS(esker_imd_create(comm, repository, session, "/tracers", &options, &writer), ESKER_EXISTS,
          EEXIST);
    FAILS(esker_imd_create(comm, repository, session, "/none/tracers", &options, &writer),
          ESKER_NOT_FOUND, ENOENT);
    options.format = ESKER_IMD_BASE;
    OK(esker_imd_create(comm, repository, session, "/given-up", &options, &writer));
    OK(esker_comm_close(comm)); /* the writer has it */
    OK(esker_imd_append(writer, keys, 8, numbers, 4));
    OK(esker_imd_discard(writer));

    OK(esker_imd_open(root, "/tracers", 0, &reader));
    OK(esker_imd_info_of(reader, &info));
    CHECK(info.epochs == 2 && info.key_bytes == 8 && info.value_bytes == 4);
    CHECK(esker_imd_steps(reader, steps, 4) == 2 && steps[0] == 0 && steps[1] == 500);
    OK(esker_imd_get(reader, &keys[42], 8, &answers));
    OK(esker_imd_values(answers, 0, &values, &count));
    CHECK(count == 2 && values[1].epoch == 1 && values[1].bytes_count == 4);
    CHECK(memcmp(values[0].bytes, &numbers[42], 4) == 0);
    FAILS(esker_imd_values(answers, 1, &values, &count), ESKER_INVALID, EINVAL);
    OK(esker_imd_answers_close(answers));
    OK(esker_imd_get_many(reader, keys, 8, 100, 1, 0, 2, &answers));
    for (size_t i = 0; i < 100; i++) {
        OK(esker_imd_values(answers, i, &values, &count));
        CHECK(count == 1 && memcmp(values->bytes, &numbers[i], 4) == 0);
    }
    OK(esker_imd_answers_close(answers));
    OK(esker_imd_scan(reader, 0, count_records, &seen));
    CHECK(seen == 3);
    seen = 10;
    OK(esker_imd_range(reader, 1, &keys[5], 8, &keys[8], 8, count_records, &seen));
    CHECK(seen == 14);
    OK(esker_imd_close(reader));
}

static void shared(esker_repository *repository)
{
    esker_shared_options options = ESKER_SHARED_OPTIONS_INIT;
    esker_job_report report = { 0 };
    esker_comm *comm;
    esker_shared_job *job;
    esker_shared_file *file;
    esker_dir *root;
    char id[ESKER_ID_BYTES], set[ESKER_ID_BYTES], text[8] = "";
    uint64_t size;
    int64_t mtime_ns;
    esker_shared_request requests[2] = {
        { 1, 0, 100, 2, 10, 3, NULL, 0 },
        { 0, 0, 100, 2, 10, 3, NULL, 0 },
    };

    OK(esker_job_id(&id));
    OK(esker_comm_from_environment(NULL, &comm));
    options.durability = ESKER_NONE;
    OK(esker_shared_begin(comm, repository, id, &options, &job));
    OK(esker_shared_root(job, &root));
    OK(esker_mkdir(root, "/out"));
    OK(esker_shared_open(job, "/out/matrix", 1, &file));
    CHECK(esker_shared_pwrite(file, "abc", 3, 5) == 3);
    requests[0].buffer = "112233";
    requests[1].buffer = text;
    CHECK(esker_shared_io(file, requests, 2) == 2);
    CHECK(requests[0].result == 6 && requests[1].result == 6 && strcmp(text, "112233") == 0);
    CHECK(esker_shared_pread(file, text, 2, 110) == 2 && memcmp(text, "22", 2) == 0);
    OK(esker_shared_sync(file));
    OK(esker_shared_stat(file, &size, &mtime_ns));
    CHECK(size == 122 && mtime_ns > 0);
    OK(esker_shared_exchange(file));
    CHECK(esker_shared_pwrite(file, "z", 1, 200) == 1 && esker_shared_known_size(file) == 201);
    OK(esker_shared_sync(file));
    OK(esker_shared_truncate(file, 50));
    OK(esker_shared_barrier(job));
    OK(esker_shared_serve(job, 1));
    OK(esker_shared_laminate(file));
    FAILS(esker_shared_publish(job, "matrix", NULL, NULL), ESKER_INVALID, EINVAL);
    OK(esker_shared_close(file));
    OK(esker_shared_open(job, "/out/short-lived", 1, &file));
    OK(esker_shared_close(file));
    OK(esker_shared_unlink(job, "/out/short-lived"));
    FAILS(esker_shared_open(job, "/out/short-lived", 0, &file), ESKER_NOT_FOUND, ENOENT);
    OK(esker_dir_close(root));
    OK(esker_shared_publish(job, "matrix", &set, &report));
    /* The rank's files, and the index of the shared ones. */
    CHECK(report.parts == 2 && report.conflicts == 0 && strlen(set) == 32);
    OK(esker_job_id(&id));
    OK(esker_shared_begin(comm, repository, id, NULL, &job));
    OK(esker_shared_leave(job));
    OK(esker_job_abandon(repository, id));
    OK(esker_comm_close(comm));
}

static void sessions(esker_repository *repository, const char *directory)
{
    esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
    const char *bases[] = { "first" };
    const char *properties[] = { "author", "somebody" };
    esker_transfer_counts counts;
    esker_job_report report;
    esker_session *session;
    esker_namespace *stack;
    esker_dir *root;
    char id[ESKER_ID_BYTES], again[ESKER_ID_BYTES], job[ESKER_ID_BYTES], path[4096];

    options.bases = bases;
    options.bases_count = 1;
    options.durability = ESKER_ASYNC;
    options.memory_bytes = 1 << 20;
    options.properties = properties;
    options.properties_count = 1;
    OK(esker_session_begin(repository, &options, &session));
    OK(esker_session_root(session, &root));
    OK(esker_write_file(root, "/second", "2", 1));
    OK(esker_session_sync(session));
    OK(esker_session_flush(session));
    OK(esker_session_snapshot(session, "between", &id));
    OK(esker_session_suspend(session, &id));
    OK(esker_dir_close(root));
    OK(esker_session_close(session));
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    OK(esker_session_resume(repository, id, &options, &session));
    OK(esker_session_id(session, &again));
    CHECK(strcmp(id, again) == 0);
    OK(esker_session_root(session, &root));
    OK(esker_mkdir(root, "/imported"));
    OK(esker_dir_close(root));
    snprintf(path, sizeof path, "%s/import", directory);
    OK(esker_session_import(session, path, "/imported", &counts));
    CHECK(counts.files == 1 && counts.bytes == 4);
    FAILS(esker_session_publish(session, "first", 0, NULL), ESKER_EXISTS, EEXIST);
    OK(esker_session_publish(session, "first", ESKER_REPLACE, &again));
    CHECK(strcmp(id, again) == 0);
    OK(esker_session_close(session));

    OK(esker_namespace_open(repository, bases, 1, &stack));
    OK(esker_namespace_root(stack, &root));
    FAILS(esker_mkdir(root, "/x"), ESKER_READ_ONLY, EROFS);
    snprintf(path, sizeof path, "%s/exported", directory);
    OK(esker_namespace_export(stack, "/imported", path, &counts));
    CHECK(counts.files == 1);
    OK(esker_namespace_check_lease(stack));
    OK(esker_namespace_close(stack));
    CHECK(esker_read_file(root, "/second", NULL, 0) == 1);
    OK(esker_dir_close(root));

    OK(esker_job_id(&job));
    options.job = job;
    for (options.rank = 0; options.rank < 2; options.rank++) {
        OK(esker_session_begin(repository, &options, &session));
        OK(esker_session_root(session, &root));
        OK(esker_create(root, options.rank ? "one" : "zero"));
        OK(esker_dir_close(root));
        OK(esker_session_complete(session, &id));
        OK(esker_session_close(session));
    }
    OK(esker_job_publish(repository, job, "parts", &report));
    CHECK(report.parts == 2 && report.conflicts == 0);
    OK(esker_session_begin(repository, NULL, &session));
    OK(esker_session_abandon(session));
}

static void names(esker_repository *repository)
{
    esker_gc_options gc = ESKER_GC_OPTIONS_INIT;
    esker_gc_report collected;
    esker_verify_report verified;
    const char *stack[] = { "parts", "first" };
    esker_names *listing;
    esker_name batch[2];
    char id[ESKER_ID_BYTES];
    int64_t count;
    int all = 0;

    OK(esker_repository_resolve(repository, "first", &id));
    OK(esker_name_publish(repository, "first", "second"));
    OK(esker_name_rename(repository, "second", "third"));
    OK(esker_name_delete(repository, "third"));
    FAILS(esker_repository_resolve(repository, "third", &id), ESKER_NOT_FOUND, ENOENT);
    OK(esker_name_undelete(repository, "third"));
    OK(esker_repository_squash(repository, stack, 2, "all", &id));
    CHECK(strlen(id) == 32);
    OK(esker_names_open(repository, &listing));
    while ((count = esker_names_next(listing, batch, 2)) > 0)
        for (int64_t i = 0; i < count; i++, all++)
            CHECK(batch[i].name[0] != '\0' && strlen(batch[i].id) == 32 && batch[i].published_ns);
    CHECK(count == 0 && all == 6);
    OK(esker_names_close(listing));
    gc.without_grace = 1;
    OK(esker_repository_collect_garbage(repository, &gc, &collected));
    CHECK(collected.problems == 0);
    OK(esker_repository_verify(repository, 1, &verified));
    CHECK(verified.errors == 0 && verified.sets > 0);
}

int main(int argc, char **argv)
{
    esker_repository_options options = ESKER_REPOSITORY_OPTIONS_INIT;
    esker_repository *repository;
    esker_session *session;
    esker_dir *root;
    char path[4096];
    FILE *source;

    CHECK(argc == 2);
    versions();
    snprintf(path, sizeof path, "%s/import", argv[1]);
    CHECK(mkdir(path, 0755) == 0);
    snprintf(path, sizeof path, "%s/import/file", argv[1]);
    CHECK((source = fopen(path, "w")) != NULL);
    CHECK(fputs("text", source) >= 0 && fclose(source) == 0);

    snprintf(path, sizeof path, "%s/store", argv[1]);
    FAILS(esker_repository_open(path, NULL, &repository), ESKER_NOT_FOUND, ENOENT);
    CHECK(repository == NULL);
    options.cache_bytes = 16 << 20;
    OK(esker_repository_create(path, &options, &repository));
    OK(esker_repository_close(repository));
    OK(esker_repository_open(path, &options, &repository));
    OK(esker_session_begin(repository, NULL, &session));
    OK(esker_session_root(session, &root));
    paths(root);
    attributes(root);
    listings(root);
    many_files(root);
    open_files(root);
    indexed(repository, session, root);
    OK(esker_session_publish(session, "first", 0, NULL));
    FAILS(esker_create(root, "/late"), ESKER_CLOSED, EIO);
    OK(esker_dir_close(root));
    OK(esker_session_close(session));
    shared(repository);
    sessions(repository, argv[1]);
    names(repository);
    OK(esker_repository_close(repository));
    puts("every function does what its header says");
    return 0;
}
