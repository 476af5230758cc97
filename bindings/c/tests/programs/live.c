/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every function of live namespaces, as two clients of a server that another process runs:
 * usage: live STORE create|use */
#include <errno.h>
#include <sys/stat.h>

#include "check.h"

#define FILES 3000

static esker_repository *repository;

/* A name in static memory. */
static const char *name_of(int number)
{
    static char names[FILES + 1][16];
    snprintf(names[number], sizeof names[number], "f%d", number);
    return names[number];
}

static void many_files(esker_live *live, esker_live *other)
{
    static const char *names[FILES + 1];
    static int results[FILES + 1];
    static esker_stat_t stats[FILES + 1];

    for (int i = 0; i <= FILES; i++)
        names[i] = name_of(i);
    CHECK(esker_live_create_many(live, "/run/many", names, FILES, results) == FILES);
    CHECK(results[0] == 0 && results[FILES - 1] == 0);
    CHECK(esker_live_create_many(other, "/run/many", names + FILES - 1, 2, results) == 1);
    CHECK(results[0] == -EEXIST && results[1] == 0 && esker_error_kind() == ESKER_EXISTS);
    CHECK(esker_live_stat_many(other, "/run/many", names, FILES, stats, results) == FILES);
    CHECK(stats[7].mode == (S_IFREG | 0644) && stats[7].size == 0);
    names[0] = "absent";
    CHECK(esker_live_stat_many(other, "/run/many", names, 1, stats, results) == 0);
    CHECK(results[0] == -ENOENT);
    CHECK(esker_live_create_many(live, "/run/many", NULL, 0, NULL) == 0);
}

static void count_entries(esker_live *live, const char *path, int expected)
{
    static esker_entry buffer[512];
    esker_entries *entries;
    int64_t found, total = 0;

    OK(esker_live_entries_open(live, path, &entries));
    while ((found = esker_entries_next(entries, buffer, 512)) > 0)
        total += found;
    CHECK(found == 0 && total == expected);
    OK(esker_entries_close(entries));
}

static void insertion(esker_live *live, esker_live *other)
{
    esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
    esker_session *session, *ordinary;
    esker_stat_t stat;
    esker_dir *root;
    char content[8];

    options.insertable = 1;
    OK(esker_session_begin(repository, &options, &session));
    OK(esker_session_root(session, &root));
    OK(esker_mkdir(root, "/filled"));
    for (int i = 0; i < FILES; i++) {
        char path[32];
        snprintf(path, sizeof path, "/filled/%s", name_of(i));
        OK(esker_write_file(root, path, "written", 7));
    }
    FAILS(esker_live_insert(live, session, "/filled/f0", "/run/inserted"), ESKER_INVALID, EINVAL);
    FAILS(esker_live_insert(live, session, "/filled", "/run/many"), ESKER_EXISTS, EEXIST);
    FAILS(esker_live_stat(other, "/run/inserted", 0, &stat), ESKER_NOT_FOUND, ENOENT);
    OK(esker_live_insert(live, session, "/filled", "/run/inserted"));
    count_entries(other, "/run/inserted", FILES);
    CHECK(esker_live_read_file(other, "/run/inserted/f42", content, sizeof content) == 7);
    CHECK(memcmp(content, "written", 7) == 0);
    CHECK(esker_live_insert(live, session, "/filled", "/run/again") < 0);
    OK(esker_dir_close(root));
    OK(esker_session_close(session));
    OK(esker_session_begin(repository, NULL, &ordinary));
    OK(esker_session_root(ordinary, &root));
    OK(esker_mkdir(root, "/filled"));
    FAILS(esker_live_insert(live, ordinary, "/filled", "/run/ordinary"), ESKER_INVALID, EINVAL);
    OK(esker_dir_close(root));
    OK(esker_session_close(ordinary));
}

/* Two ranks that each write a part of one directory. */
static void insertion_of_a_job(esker_live *live)
{
    esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
    esker_session *part;
    esker_dir *root;
    char job[ESKER_ID_BYTES], path[32];

    OK(esker_job_id(&job));
    options.insertable = 1;
    options.job = job;
    for (options.rank = 0; options.rank < 2; options.rank++) {
        OK(esker_session_begin(repository, &options, &part));
        OK(esker_session_root(part, &root));
        OK(esker_mkdir(root, "/step"));
        snprintf(path, sizeof path, "/step/rank-%u", (unsigned)options.rank);
        OK(esker_write_file(root, path, "done", 4));
        OK(esker_session_complete(part, NULL));
        OK(esker_dir_close(root));
        OK(esker_session_close(part));
    }
    OK(esker_job_publish(repository, job, "step", NULL));
    FAILS(esker_live_insert_snapshot(live, "none", "/step", "/run/step"), ESKER_NOT_FOUND, ENOENT);
    OK(esker_live_insert_snapshot(live, "step", "/step", "/run/step"));
    count_entries(live, "/run/step", 2);
    CHECK(esker_live_read_file(live, "/run/step/rank-1", path, sizeof path) == 4);
    FAILS(esker_live_insert_snapshot(live, "step", "/step", "/run/again"), ESKER_EXISTS, EEXIST);
}

static void use(void)
{
    esker_live *live, *other, *closed, *wrong[3];
    esker_stat_t stat;
    char id[ESKER_ID_BYTES], content[16];

    OK(esker_live_open(repository, "run", &live));
    OK(esker_live_open(repository, "run", &other));
    FAILS(esker_live_open(repository, "absent", &closed), ESKER_NOT_FOUND, ENOENT);
    CHECK(closed == NULL);
    /* Nobody serves it. */
    OK(esker_live_create(repository, "unserved", NULL, 0));
    FAILS(esker_live_open_within(repository, "unserved", 0, &closed), ESKER_UNAVAILABLE, EIO);
    CHECK(strstr(esker_error_message(), "esker live serve unserved") != NULL);
    OK(esker_live_open_within(repository, "run", 10000, &closed));
    OK(esker_live_close(closed));
    OK(esker_live_mkdir(live, "/run"));
    FAILS(esker_live_mkdir(other, "/run"), ESKER_EXISTS, EEXIST);
    OK(esker_live_mkdir_all(other, "run//many"));
    OK(esker_live_mkdir_all(live, "/run/many/"));
    many_files(live, other);
    count_entries(live, "/run/many", FILES + 1);
    OK(esker_live_write_file(live, "/run/file", "some content", 12));
    OK(esker_live_write_file(other, "/run/file", "less", 4));
    FAILS(esker_live_mkdir_all(live, "/run/file"), ESKER_NOT_A_DIRECTORY, ENOTDIR);
    CHECK(esker_live_read_file(live, "/run/file", content, 2) == 4);
    CHECK(memcmp(content, "le", 2) == 0);
    OK(esker_live_rename(live, "/run/file", "/run/moved"));
    OK(esker_live_stat(other, "/run/moved", ESKER_NOFOLLOW, &stat));
    CHECK(stat.size == 4 && stat.nlink == 1);
    FAILS(esker_live_rmdir(other, "/run/many"), ESKER_NOT_EMPTY, ENOTEMPTY);
    OK(esker_live_mkdir(live, "/run/empty"));
    OK(esker_live_rmdir(other, "/run/empty"));
    insertion(live, other);
    insertion_of_a_job(live);
    OK(esker_live_sync(live));
    OK(esker_live_unlink(other, "/run/moved"));
    OK(esker_live_snapshot(other, "monday", &id));
    FAILS(esker_live_snapshot(other, "monday", NULL), ESKER_EXISTS, EEXIST);
    FAILS(esker_live_read_file(live, "/run/moved", NULL, 0), ESKER_NOT_FOUND, ENOENT);

    /* Wrong handles. */
    closed = other;
    OK(esker_live_close(other));
    wrong[0] = NULL, wrong[1] = closed, wrong[2] = (esker_live *)repository;
    for (int i = 0; i < 3; i++) {
        esker_live *x = wrong[i];
        esker_entries *entries;

        FAILS(esker_live_close(x), ESKER_INVALID, EINVAL);
        FAILS(esker_live_mkdir(x, "/a"), ESKER_INVALID, EINVAL);
        FAILS(esker_live_mkdir_all(x, "/a"), ESKER_INVALID, EINVAL);
        FAILS(esker_live_create_many(x, "/", NULL, 0, NULL), ESKER_INVALID, EINVAL);
        FAILS(esker_live_stat(x, "/", 0, &stat), ESKER_INVALID, EINVAL);
        FAILS(esker_live_stat_many(x, "/", NULL, 0, NULL, NULL), ESKER_INVALID, EINVAL);
        FAILS(esker_live_read_file(x, "/a", NULL, 0), ESKER_INVALID, EINVAL);
        FAILS(esker_live_write_file(x, "/a", NULL, 0), ESKER_INVALID, EINVAL);
        FAILS(esker_live_entries_open(x, "/", &entries), ESKER_INVALID, EINVAL);
        FAILS(esker_live_rename(x, "/a", "/b"), ESKER_INVALID, EINVAL);
        FAILS(esker_live_unlink(x, "/a"), ESKER_INVALID, EINVAL);
        FAILS(esker_live_rmdir(x, "/a"), ESKER_INVALID, EINVAL);
        FAILS(esker_live_sync(x), ESKER_INVALID, EINVAL);
        FAILS(esker_live_snapshot(x, "a", NULL), ESKER_INVALID, EINVAL);
        FAILS(esker_live_insert(x, NULL, "/a", "/b"), ESKER_INVALID, EINVAL);
        FAILS(esker_live_insert_snapshot(x, "a", "/a", "/b"), ESKER_INVALID, EINVAL);
    }
    FAILS(esker_live_mkdir(live, NULL), ESKER_INVALID, EINVAL);
    FAILS(esker_live_stat(live, "/", 0, NULL), ESKER_INVALID, EINVAL);
    FAILS(esker_live_stat(live, "/", 64, &stat), ESKER_INVALID, EINVAL);
    FAILS(esker_live_create_many(live, "/", NULL, 1, NULL), ESKER_INVALID, EINVAL);
    FAILS(esker_live_insert(live, NULL, "/a", "/b"), ESKER_INVALID, EINVAL);
    FAILS(esker_live_open(repository, "run", NULL), ESKER_INVALID, EINVAL);
    OK(esker_live_close(live));
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    OK(esker_repository_open(arguments[1], NULL, &repository));
    if (strcmp(arguments[2], "create") == 0) {
        OK(esker_live_create(repository, "run", NULL, 0));
        FAILS(esker_live_create(repository, "run", NULL, 0), ESKER_EXISTS, EEXIST);
        FAILS(esker_live_create(repository, NULL, NULL, 0), ESKER_INVALID, EINVAL);
        FAILS(esker_live_create(NULL, "other", NULL, 0), ESKER_INVALID, EINVAL);
    } else {
        use();
        puts("live namespaces: ok");
    }
    OK(esker_repository_close(repository));
    return 0;
}
