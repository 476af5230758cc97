/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every function that takes a handle with NULL, with a closed handle and with a handle of
 * another kind, and most with null pointers for the rest: each fails, and nothing crashes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define REFUSED(call) FAILS(call, ESKER_INVALID, EINVAL)

/* Makes each call three times: with `type` *x NULL, closed and foreign. */
#define REFUSE_ALL(type, closed, foreign, call)                                                   \
    do {                                                                                          \
        type *const wrong[3] = { NULL, closed, (type *)(foreign) };                               \
        for (int i = 0; i < 3; i++) {                                                             \
            type *x = wrong[i];                                                                   \
            REFUSED(call);                                                                        \
        }                                                                                         \
    } while (0)

static int visit(void *argument, const void *key, size_t key_bytes, const void *value,
                 size_t value_bytes)
{
    (void)argument, (void)key, (void)key_bytes, (void)value, (void)value_bytes;
    return 0;
}

static esker_repository *repository;
static esker_session *session;
static esker_dir *root;
static char id[ESKER_ID_BYTES];

static void repositories(void)
{
    esker_repository *closed;
    esker_names *names, *closed_names;
    esker_namespace *space, *closed_space;
    esker_name name;
    esker_verify_report report;
    const char *snapshots[1] = { "base" };

    OK(esker_repository_create("memory:", NULL, &closed));
    OK(esker_repository_close(closed));
    REFUSE_ALL(esker_repository, closed, session, esker_repository_close(x));
    REFUSE_ALL(esker_repository, closed, session, esker_repository_resolve(x, "a", &id));
    REFUSE_ALL(esker_repository, closed, session, esker_repository_squash(x, snapshots, 1, "b", NULL));
    REFUSE_ALL(esker_repository, closed, session, esker_repository_collect_garbage(x, NULL, NULL));
    REFUSE_ALL(esker_repository, closed, session, esker_repository_verify(x, 0, &report));
    REFUSE_ALL(esker_repository, closed, session, esker_names_open(x, &names));
    REFUSE_ALL(esker_repository, closed, session, esker_name_publish(x, "a", "b"));
    REFUSE_ALL(esker_repository, closed, session, esker_name_rename(x, "a", "b"));
    REFUSE_ALL(esker_repository, closed, session, esker_name_delete(x, "a"));
    REFUSE_ALL(esker_repository, closed, session, esker_name_undelete(x, "a"));
    REFUSE_ALL(esker_repository, closed, session, esker_namespace_open(x, snapshots, 1, &space));
    REFUSE_ALL(esker_repository, closed, session, esker_session_begin(x, NULL, &(esker_session *){ NULL }));
    REFUSE_ALL(esker_repository, closed, session, esker_session_resume(x, id, NULL, &(esker_session *){ NULL }));
    REFUSE_ALL(esker_repository, closed, session, esker_job_publish(x, id, "a", NULL));
    REFUSE_ALL(esker_repository, closed, session, esker_job_abandon(x, id));
    REFUSED(esker_repository_open(NULL, NULL, &closed));
    REFUSED(esker_repository_open("memory:", NULL, NULL));
    REFUSED(esker_repository_create(NULL, NULL, &closed));
    REFUSED(esker_repository_resolve(repository, NULL, &id));
    REFUSED(esker_repository_resolve(repository, "\xff", &id));
    REFUSED(esker_repository_squash(repository, NULL, 1, "b", NULL));
    REFUSED(esker_repository_verify(repository, 0, NULL));
    REFUSED(esker_name_publish(repository, "base", NULL));
    REFUSED(esker_job_id(NULL));
    REFUSED(esker_job_publish(repository, "no id", "a", NULL));

    OK(esker_names_open(repository, &closed_names));
    REFUSED(esker_names_next(closed_names, NULL, 1));
    CHECK(esker_names_next(closed_names, NULL, 0) == 0);
    OK(esker_names_close(closed_names));
    REFUSE_ALL(esker_names, closed_names, session, esker_names_next(x, &name, 1));
    REFUSE_ALL(esker_names, closed_names, session, esker_names_close(x));

    OK(esker_namespace_open(repository, snapshots, 1, &closed_space));
    REFUSED(esker_namespace_export(closed_space, NULL, "/tmp/none", NULL));
    OK(esker_namespace_close(closed_space));
    REFUSE_ALL(esker_namespace, closed_space, session, esker_namespace_root(x, &(esker_dir *){ NULL }));
    REFUSE_ALL(esker_namespace, closed_space, session, esker_namespace_export(x, "/", "/tmp/none", NULL));
    REFUSE_ALL(esker_namespace, closed_space, session, esker_namespace_check_lease(x));
    REFUSE_ALL(esker_namespace, closed_space, session, esker_namespace_close(x));
}

static void sessions(void)
{
    esker_session *closed;
    esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
    struct {
        esker_session_options known;
        uint64_t newer;
    } newer = { ESKER_SESSION_OPTIONS_INIT, 0 };

    OK(esker_session_begin(repository, NULL, &closed));
    OK(esker_session_close(closed));
    REFUSE_ALL(esker_session, closed, root, esker_session_id(x, &id));
    REFUSE_ALL(esker_session, closed, root, esker_session_root(x, &(esker_dir *){ NULL }));
    REFUSE_ALL(esker_session, closed, root, esker_session_import(x, "/", "/", NULL));
    REFUSE_ALL(esker_session, closed, root, esker_session_sync(x));
    REFUSE_ALL(esker_session, closed, root, esker_session_flush(x));
    REFUSE_ALL(esker_session, closed, root, esker_session_snapshot(x, "a", NULL));
    REFUSE_ALL(esker_session, closed, root, esker_session_publish(x, "a", 0, NULL));
    REFUSE_ALL(esker_session, closed, root, esker_session_complete(x, NULL));
    REFUSE_ALL(esker_session, closed, root, esker_session_suspend(x, NULL));
    REFUSE_ALL(esker_session, closed, root, esker_session_abandon(x));
    REFUSE_ALL(esker_session, closed, root, esker_session_close(x));
    REFUSED(esker_session_publish(session, NULL, 0, NULL));
    REFUSED(esker_session_publish(session, "a", 64, NULL));
    REFUSED(esker_session_id(session, NULL));
    REFUSED(esker_session_suspend(session, NULL)); /* a private one */

    options.struct_size = 1;
    REFUSED(esker_session_begin(repository, &options, &closed));
    options.struct_size = sizeof options;
    options.durability = 9;
    REFUSED(esker_session_begin(repository, &options, &closed));
    options.durability = 0;
    options.bases_count = 3;
    REFUSED(esker_session_begin(repository, &options, &closed));
    /* A shorter struct is one of an older header, whose options are all that count. */
    options.struct_size = sizeof(size_t);
    OK(esker_session_begin(repository, &options, &closed));
    OK(esker_session_abandon(closed));
    newer.known.struct_size = sizeof newer;
    OK(esker_session_begin(repository, &newer.known, &closed));
    OK(esker_session_abandon(closed));
    newer.newer = 1;
    REFUSED(esker_session_begin(repository, &newer.known, &closed));
}

static void trees(void)
{
    esker_dir *closed;
    esker_entries *entries;
    esker_file *file;
    esker_stat_t stat;
    esker_attributes changes = { 0 };
    esker_entry entry;
    esker_file_content content = { "a", NULL, 0, 0 };
    const char *names[1] = { "a" };
    int result;

    OK(esker_dir_open(root, "/", &closed));
    OK(esker_dir_close(closed));
    REFUSE_ALL(esker_dir, closed, session, esker_dir_open(x, "/", &(esker_dir *){ NULL }));
    REFUSE_ALL(esker_dir, closed, session, esker_dir_path(x, NULL, 0));
    REFUSE_ALL(esker_dir, closed, session, esker_dir_close(x));
    REFUSE_ALL(esker_dir, closed, session, esker_mkdir(x, "a"));
    REFUSE_ALL(esker_dir, closed, session, esker_mkdir_all(x, "a"));
    REFUSE_ALL(esker_dir, closed, session, esker_create(x, "a"));
    REFUSE_ALL(esker_dir, closed, session, esker_unlink(x, "a"));
    REFUSE_ALL(esker_dir, closed, session, esker_rmdir(x, "a"));
    REFUSE_ALL(esker_dir, closed, session, esker_remove_all(x, "a"));
    REFUSE_ALL(esker_dir, closed, session, esker_rename(x, "a", "b", 0));
    REFUSE_ALL(esker_dir, closed, session, esker_link(x, "a", "b"));
    REFUSE_ALL(esker_dir, closed, session, esker_symlink(x, "a", "b"));
    REFUSE_ALL(esker_dir, closed, session, esker_readlink(x, "a", NULL, 0));
    REFUSE_ALL(esker_dir, closed, session, esker_read_file(x, "a", NULL, 0));
    REFUSE_ALL(esker_dir, closed, session, esker_write_file(x, "a", NULL, 0));
    REFUSE_ALL(esker_dir, closed, session, esker_stat(x, "a", 0, &stat));
    REFUSE_ALL(esker_dir, closed, session, esker_setattr(x, "a", &changes));
    REFUSE_ALL(esker_dir, closed, session, esker_getxattr(x, "a", "user.a", NULL, 0));
    REFUSE_ALL(esker_dir, closed, session, esker_listxattr(x, "a", NULL, 0));
    REFUSE_ALL(esker_dir, closed, session, esker_setxattr(x, "a", "user.a", NULL, 0, 0));
    REFUSE_ALL(esker_dir, closed, session, esker_removexattr(x, "a", "user.a"));
    REFUSE_ALL(esker_dir, closed, session, esker_entries_open(x, "/", NULL, &entries));
    REFUSE_ALL(esker_dir, closed, session, esker_create_many(x, names, 1, &result));
    REFUSE_ALL(esker_dir, closed, session, esker_stat_many(x, names, 1, &stat, &result));
    REFUSE_ALL(esker_dir, closed, session, esker_read_many(x, &content, 1));
    REFUSE_ALL(esker_dir, closed, session, esker_write_many(x, &content, 1));
    REFUSE_ALL(esker_dir, closed, session, esker_file_open(x, "a", O_RDONLY, 0, &file));
    REFUSED(esker_mkdir(root, NULL));
    REFUSED(esker_rename(root, "a", "b", 77));
    REFUSED(esker_stat(root, "/", 0, NULL));
    REFUSED(esker_stat(root, "/", 2, &stat));
    REFUSED(esker_setattr(root, "/", NULL));
    REFUSED(esker_write_file(root, "a", NULL, 3));
    REFUSED(esker_create_many(root, NULL, 1, &result));
    REFUSED(esker_read_many(root, NULL, (size_t)-1));
    REFUSED(esker_file_open(root, "a", O_RDONLY, 0, NULL));

    OK(esker_entries_open(root, "/", NULL, &entries));
    REFUSED(esker_entries_next(entries, NULL, 1));
    OK(esker_entries_close(entries));
    REFUSE_ALL(esker_entries, entries, session, esker_entries_next(x, &entry, 1));
    REFUSE_ALL(esker_entries, entries, session, esker_entries_close(x));

    OK(esker_file_open(root, "/file", O_RDWR | O_CREAT, 0644, &file));
    REFUSED(esker_file_pread(file, NULL, 1, 0));
    REFUSED(esker_file_pwrite(file, NULL, 1, 0));
    REFUSED(esker_file_stat(file, NULL));
    OK(esker_file_close(file));
    REFUSE_ALL(esker_file, file, session, esker_file_pread(x, NULL, 0, 0));
    REFUSE_ALL(esker_file, file, session, esker_file_pwrite(x, NULL, 0, 0));
    REFUSE_ALL(esker_file, file, session, esker_file_append(x, NULL, 0));
    REFUSE_ALL(esker_file, file, session, esker_file_size(x));
    REFUSE_ALL(esker_file, file, session, esker_file_stat(x, &stat));
    REFUSE_ALL(esker_file, file, session, esker_file_truncate(x, 0));
    REFUSE_ALL(esker_file, file, session, esker_file_setattr(x, &changes));
    REFUSE_ALL(esker_file, file, session, esker_file_sync(x));
    REFUSE_ALL(esker_file, file, session, esker_file_close(x));
}

static void ranks(void)
{
    esker_comm *comm, *closed;
    esker_imd_writer *writer;
    esker_imd_options options = ESKER_IMD_OPTIONS_INIT;
    esker_message_functions functions;
    uint32_t rank, size;

    OK(esker_comm_self(&closed));
    OK(esker_comm_close(closed));
    REFUSE_ALL(esker_comm, closed, session, esker_comm_rank(x, &rank, &size));
    REFUSE_ALL(esker_comm, closed, session, esker_comm_barrier(x));
    REFUSE_ALL(esker_comm, closed, session, esker_comm_broadcast(x, NULL, 0));
    REFUSE_ALL(esker_comm, closed, session, esker_comm_close(x));
    REFUSE_ALL(esker_comm, closed, session, esker_imd_create(x, repository, session, "/i", NULL, &writer));
    REFUSE_ALL(esker_comm, closed, session,
               esker_shared_begin(x, repository, id, NULL, &(esker_shared_job *){ NULL }));
    REFUSED(esker_comm_self(NULL));
    REFUSED(esker_comm_threads(0, 1, &comm));
    REFUSED(esker_comm_threads(1, 1, NULL));
    REFUSED(esker_comm_threads((size_t)-1, 1, &comm));
    REFUSED(esker_comm_from_functions(NULL, &comm));
    memset(&functions, 0, sizeof functions);
    REFUSED(esker_comm_from_functions(&functions, &comm));
    functions.struct_size = sizeof functions;
    REFUSED(esker_comm_from_functions(&functions, &comm));
    functions.size = 1;
    REFUSED(esker_comm_from_functions(&functions, &comm));
    CHECK(comm == NULL);

    OK(esker_comm_self(&comm));
    options.format = 99;
    REFUSED(esker_imd_create(comm, repository, session, "/i", &options, &writer));
    options.format = ESKER_IMD_BASE;
    options.key_bytes = 256;
    REFUSED(esker_imd_create(comm, repository, session, "/i", &options, &writer));
    options.key_bytes = 8;
    REFUSED(esker_imd_create(comm, repository, NULL, "/i", &options, &writer));
    REFUSED(esker_imd_create(comm, NULL, session, "/i", &options, &writer));
    REFUSED(esker_imd_create(comm, repository, session, NULL, &options, &writer));
    OK(esker_imd_create(comm, repository, session, "/i", &options, &writer));
    REFUSED(esker_comm_barrier(comm)); /* the writer has it */
    REFUSED(esker_imd_append(writer, NULL, 8, NULL, 0));
    REFUSED(esker_imd_append_many(writer, NULL, NULL, 1));
    REFUSED(esker_imd_append_many(writer, &size, NULL, (size_t)-1));
    OK(esker_imd_finish(writer, NULL));
    REFUSE_ALL(esker_imd_writer, writer, session, esker_imd_append(x, NULL, 0, NULL, 0));
    REFUSE_ALL(esker_imd_writer, writer, session, esker_imd_append_many(x, NULL, NULL, 0));
    REFUSE_ALL(esker_imd_writer, writer, session, esker_imd_poll(x));
    REFUSE_ALL(esker_imd_writer, writer, session, esker_imd_epoch_flush(x));
    REFUSE_ALL(esker_imd_writer, writer, session, esker_imd_epoch_flush_at(x, 0));
    REFUSE_ALL(esker_imd_writer, writer, session, esker_imd_finish(x, NULL));
    REFUSE_ALL(esker_imd_writer, writer, session, esker_imd_discard(x));
    OK(esker_comm_close(comm));
}

static void indexed(void)
{
    esker_imd *reader;
    esker_imd_answers *answers;
    esker_imd_info info;
    const esker_imd_value *values;
    size_t count;

    FAILS(esker_imd_open(root, "/file", 0, &reader), ESKER_NOT_A_DIRECTORY, ENOTDIR);
    OK(esker_imd_open(root, "/i", 0, &reader));
    REFUSED(esker_imd_scan(reader, 0, NULL, NULL));
    REFUSED(esker_imd_get_many(reader, "12345678", 0, 1, 0, 0, 1, &answers));
    OK(esker_imd_get_many(reader, "12345678", 8, 1, 7, 99, 0, &answers));
    REFUSED(esker_imd_values(answers, 0, &values, NULL));
    OK(esker_imd_values(answers, 0, NULL, &count));
    CHECK(count == 0);
    OK(esker_imd_answers_close(answers));
    REFUSE_ALL(esker_imd_answers, answers, session, esker_imd_values(x, 0, &values, &count));
    REFUSE_ALL(esker_imd_answers, answers, session, esker_imd_answers_close(x));
    OK(esker_imd_close(reader));
    REFUSE_ALL(esker_imd, reader, session, esker_imd_info_of(x, &info));
    REFUSE_ALL(esker_imd, reader, session, esker_imd_steps(x, NULL, 0));
    REFUSE_ALL(esker_imd, reader, session, esker_imd_get(x, NULL, 0, &answers));
    REFUSE_ALL(esker_imd, reader, session, esker_imd_get_many(x, "a", 1, 1, 0, 0, 1, &answers));
    REFUSE_ALL(esker_imd, reader, session, esker_imd_scan(x, 0, visit, NULL));
    REFUSE_ALL(esker_imd, reader, session, esker_imd_range(x, 0, "a", 1, "b", 1, visit, NULL));
    REFUSE_ALL(esker_imd, reader, session, esker_imd_close(x));
}

static void shared(void)
{
    esker_comm *comm;
    esker_shared_job *job;
    esker_shared_file *file;
    esker_shared_request request = { 0, 0, UINT64_MAX, 2, 10, 3, NULL, 0 };
    uint64_t size;

    OK(esker_job_id(&id));
    OK(esker_comm_self(&comm));
    REFUSED(esker_shared_begin(comm, repository, "no id", NULL, &job));
    OK(esker_shared_begin(comm, repository, id, NULL, &job));
    OK(esker_shared_open(job, "/s", 1, &file));
    CHECK(esker_shared_io(file, &request, 1) == 0 && request.result == -EINVAL);
    request.offset = 0;
    CHECK(esker_shared_io(file, &request, 1) == 0 && request.result == -EINVAL);
    REFUSED(esker_shared_leave(job));
    OK(esker_shared_close(file));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_pwrite(x, NULL, 0, 0));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_pread(x, NULL, 0, 0));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_io(x, NULL, 0));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_sync(x));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_exchange(x));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_known_size(x));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_truncate(x, 0));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_laminate(x));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_stat(x, &size, NULL));
    REFUSE_ALL(esker_shared_file, file, session, esker_shared_close(x));
    OK(esker_shared_leave(job));
    REFUSE_ALL(esker_shared_job, job, session, esker_shared_root(x, &(esker_dir *){ NULL }));
    REFUSE_ALL(esker_shared_job, job, session, esker_shared_open(x, "/s", 1, &file));
    REFUSE_ALL(esker_shared_job, job, session, esker_shared_unlink(x, "/s"));
    REFUSE_ALL(esker_shared_job, job, session, esker_shared_barrier(x));
    REFUSE_ALL(esker_shared_job, job, session, esker_shared_serve(x, 1));
    REFUSE_ALL(esker_shared_job, job, session, esker_shared_publish(x, "s", NULL, NULL));
    REFUSE_ALL(esker_shared_job, job, session, esker_shared_leave(x));
    OK(esker_comm_close(comm));
}

/* Message functions that call back into what they serve, and more ranks than there can be. */
static esker_imd_writer *served;
static int released, called_back;

static int start_send(void *context, uint32_t to, uint32_t tag, const void *bytes,
                      size_t bytes_count, void **request)
{
    (void)context, (void)to, (void)tag, (void)bytes, (void)bytes_count, (void)request;
    return 1;
}

static int test_send(void *context, void *request, int *done)
{
    (void)context, (void)request;
    *done = 1;
    return 0;
}

static int probe(void *context, uint32_t tag, int *found, uint32_t *from, size_t *bytes_count,
                 void **message)
{
    (void)context, (void)tag, (void)from, (void)bytes_count, (void)message;
    *found = 0;
    if (served != NULL) {
        called_back++;
        REFUSED(esker_imd_poll(served));
    }
    return 0;
}

static int receive(void *context, void *message, void *bytes, size_t bytes_count)
{
    (void)context, (void)message, (void)bytes, (void)bytes_count;
    return 1;
}

static void release(void *context)
{
    (void)context;
    released++;
}

static void message_functions(void)
{
    esker_message_functions functions = { sizeof functions, NULL, 0, 1, NULL, start_send, test_send,
                                          probe, receive, release };
    struct {
        esker_message_functions known;
        uint64_t newer;
    } newer = { functions, 1 };
    esker_comm *comm;
    esker_imd_writer *writer;

    functions.size = UINT32_MAX;
    REFUSED(esker_comm_from_functions(&functions, &comm));
    CHECK(released == 1);
    newer.known.struct_size = sizeof newer;
    REFUSED(esker_comm_from_functions(&newer.known, &comm));
    CHECK(released == 2);
    functions.size = 1;
    OK(esker_comm_from_functions(&functions, &comm));
    OK(esker_imd_create(comm, repository, session, "/served", NULL, &writer));
    served = writer;
    OK(esker_imd_poll(writer));
    CHECK(called_back > 0);
    served = NULL;
    OK(esker_imd_discard(writer));
    OK(esker_comm_close(comm));
    CHECK(released == 3);
}

/* A rank that cannot go on fails the others, instead of leaving them waiting. */
static void *create_as_second(void *comm)
{
    esker_imd_writer *writer;

    CHECK(esker_imd_create((esker_comm *)comm, repository, NULL, "/d", NULL, &writer) == -EIO);
    CHECK(esker_error_kind() == ESKER_UNAVAILABLE);
    return NULL;
}

static void failing_ranks(void)
{
    esker_imd_options options = ESKER_IMD_OPTIONS_INIT;
    esker_imd_writer *writer;
    esker_comm *comms[2];
    pthread_t second;

    OK(esker_comm_threads(2, 0, comms));
    CHECK(pthread_create(&second, NULL, create_as_second, comms[1]) == 0);
    options.format = 99;
    REFUSED(esker_imd_create(comms[0], repository, session, "/d", &options, &writer));
    CHECK(pthread_join(second, NULL) == 0);
    OK(esker_comm_close(comms[0]));
    OK(esker_comm_close(comms[1]));
}

/* A writer keeps its session. */
static void closed_sessions(void)
{
    esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
    esker_session *closed;
    esker_imd_writer *writer;
    esker_comm *comm;
    esker_dir *top;
    esker_stat_t stat;

    options.durability = ESKER_NONE;
    OK(esker_comm_self(&comm));
    OK(esker_session_begin(repository, &options, &closed));
    OK(esker_session_root(closed, &top));
    OK(esker_imd_create(comm, repository, closed, "/kept", NULL, &writer));
    OK(esker_imd_append(writer, "k", 1, "v", 1));
    OK(esker_imd_epoch_flush(writer));
    OK(esker_session_close(closed));
    OK(esker_imd_finish(writer, NULL));
    OK(esker_stat(top, "/kept", 0, &stat));
    CHECK(stat.is_indexed);
    OK(esker_dir_close(top));
    OK(esker_comm_close(comm));
}

/* A child may close what its parent has, which changes nothing, and open the store itself. */
static void processes(const char *path)
{
    esker_repository *own;
    esker_namespace *space;
    esker_comm *comm, *other;
    esker_imd_writer *writer;
    const char *snapshots[1] = { "base" };
    int status;
    pid_t child;

    OK(esker_comm_self(&comm));
    OK(esker_comm_self(&other));
    OK(esker_imd_create(other, repository, session, "/of-parent", NULL, &writer));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        REFUSED(esker_session_sync(session));
        CHECK(strstr(esker_error_message(), "forked") != NULL);
        REFUSED(esker_imd_poll(writer));
        OK(esker_imd_discard(writer));
        OK(esker_comm_close(comm));
        OK(esker_comm_close(other));
        OK(esker_dir_close(root));
        OK(esker_session_abandon(session));
        OK(esker_repository_open(path, NULL, &own));
        OK(esker_namespace_open(own, snapshots, 1, &space));
        OK(esker_namespace_close(space));
        OK(esker_repository_close(own));
        _exit(0); /* what belongs to the parent is not freed here */
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(esker_session_sync(session));
    OK(esker_create(root, "after-fork"));
    OK(esker_imd_append(writer, "k", 1, "v", 1));
    OK(esker_imd_epoch_flush(writer));
    OK(esker_imd_finish(writer, NULL));
    OK(esker_comm_close(comm));
    OK(esker_comm_close(other));
}

/* Threads that open and close files of their own, while others use them wrongly. */
static void *open_and_close(void *name)
{
    esker_file *last = NULL, *file;

    for (int i = 0; i < 2000; i++) {
        OK(esker_file_open(root, (const char *)name, O_RDWR | O_CREAT, 0644, &file));
        CHECK(file != last);
        OK(esker_file_append(file, "x", 1));
        OK(esker_file_close(file));
        REFUSED(esker_file_size(file));
        last = file;
    }
    return NULL;
}

static void threads(void)
{
    static const char *const names[4] = { "t0", "t1", "t2", "t3" };
    pthread_t running[4];
    esker_stat_t stat;

    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&running[i], NULL, open_and_close, (void *)names[i]) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(running[i], NULL) == 0);
    for (int i = 0; i < 4; i++) {
        OK(esker_stat(root, names[i], 0, &stat));
        CHECK(stat.size == 2000);
    }
}

int main(int argc, char **argv)
{
    char path[4096];

    CHECK(argc == 2);
    snprintf(path, sizeof path, "%s/store", argv[1]);
    OK(esker_repository_create(path, NULL, &repository));
    OK(esker_session_begin(repository, NULL, &session));
    OK(esker_session_publish(session, "base", 0, NULL));
    OK(esker_session_close(session));
    OK(esker_session_begin(repository, NULL, &session));
    OK(esker_session_root(session, &root));
    repositories();
    sessions();
    trees();
    ranks();
    indexed();
    shared();
    message_functions();
    failing_ranks();
    closed_sessions();
    processes(path);
    threads();
    OK(esker_dir_close(root));
    OK(esker_session_close(session));
    OK(esker_repository_close(repository));
    puts("every wrong handle is refused");
    return 0;
}
