/* SPDX-License-Identifier: Apache-2.0 */
/* Calls all 74 functions of DeltaFS's interface as its own programs do: files, an indexed directory
 * that is written through files as VPIC's particles are, and the partitions of two ranks.
 *
 * usage: deltafs write|read, in an environment with ESKER_STORE; `read` builds on what `write`
 * published. */
#include "check.h"
#include "esker/deltafs_api.h"

#define POSIX(call, number) CHECK(((errno = 0), (call) == -1) && errno == (number))

static int count_names(const char *name, void *count)
{
    CHECK(name[0] != '\0');
    ++*(int *)count;
    return 0;
}

static int errors;

static void print_error(const char *error, void *argument)
{
    CHECK(error[0] != '\0' && argument == &errors);
    errors++;
}

static void files(void)
{
    struct stat stat;
    char text[PATH_MAX] = "";
    int fd, dir, count = 0;

    deltafs_print_sysinfo();
    CHECK(deltafs_version_major() == 0 && deltafs_version_minor() == 1);
    CHECK(deltafs_version_patch() == 0);
    CHECK(deltafs_nonop() == 0);
    CHECK(deltafs_umask(027) == 022);
    CHECK(deltafs_mkdir("/a", 0777) == 0);
    CHECK(deltafs_stat("/a", &stat) == 0 && S_ISDIR(stat.st_mode) && (stat.st_mode & 0777) == 0750);
    CHECK(deltafs_mkdirs("/a/b/c", 0700) == 0);
    CHECK(deltafs_chdir("/a/b") == 0);
    CHECK(deltafs_getcwd(text, sizeof text) == text && strcmp(text, "/a/b") == 0);
    CHECK(deltafs_getcwd(text, 4) == NULL && errno == ERANGE);
    CHECK((fd = deltafs_creat("file", 0666)) >= 0);
    CHECK(deltafs_write(fd, "hello ", 6) == 6 && deltafs_write(fd, "world", 5) == 5);
    CHECK(deltafs_pwrite(fd, "H", 1, 0) == 1);
    CHECK(deltafs_fdatasync(fd) == 0);
    CHECK(deltafs_close(fd) == 0);
    POSIX(deltafs_close(fd), EBADF);
    CHECK((fd = deltafs_open("/a/b/file", O_RDONLY, 0)) >= 0);
    CHECK(deltafs_read(fd, text, 5) == 5 && memcmp(text, "Hello", 5) == 0);
    CHECK(deltafs_read(fd, text, 100) == 6 && memcmp(text, " world", 6) == 0);
    CHECK(deltafs_read(fd, text, 100) == 0);
    CHECK(deltafs_pread(fd, text, 2, 6) == 2 && memcmp(text, "wo", 2) == 0);
    CHECK(deltafs_fstat(fd, &stat) == 0 && stat.st_size == 11 && (stat.st_mode & 0777) == 0640);
    CHECK(deltafs_close(fd) == 0);
    CHECK((dir = deltafs_open("/a", O_RDONLY | O_DIRECTORY, 0)) >= 0);
    CHECK((fd = deltafs_openat(dir, "b/log", O_WRONLY | O_CREAT | O_APPEND, 0666)) >= 0);
    CHECK(deltafs_write(fd, "one", 3) == 3 && deltafs_ftruncate(fd, 1) == 0);
    CHECK(deltafs_write(fd, "two", 3) == 3 && deltafs_close(fd) == 0);
    CHECK(deltafs_getattr("/a/b/log", &stat) == 0 && stat.st_size == 4);
    POSIX(deltafs_read(dir, text, 1), EISDIR);
    POSIX(deltafs_epoch_flush(dir, NULL), EINVAL);
    CHECK(deltafs_close(dir) == 0);
    CHECK((fd = deltafs_openstat("/a/b/log", O_RDONLY, 0, &stat)) >= 0 && stat.st_size == 4);
    CHECK(deltafs_close(fd) == 0);
    CHECK(deltafs_mkfile("/a/empty", 0600) == 0);
    POSIX(deltafs_mkfile("/a/empty", 0600), EEXIST);
    CHECK(deltafs_chmod("/a/empty", 0444) == 0 && deltafs_chown("/a/empty", -1, getegid()) == 0);
    CHECK(deltafs_access("/a/empty", R_OK) == 0);
    CHECK(deltafs_accessdir("/a", R_OK | X_OK) == 0);
    POSIX(deltafs_accessdir("/a/empty", R_OK), ENOTDIR);
    CHECK(deltafs_truncate("/a/b/log", 2) == 0);
    CHECK(deltafs_listdir("/a/b", count_names, &count) == 0 && count == 3);
    CHECK(deltafs_unlink("/a/empty") == 0);
    POSIX(deltafs_stat("/a/empty", &stat), ENOENT);
    CHECK(deltafs_chroot("/a") == 0);
    CHECK(deltafs_stat("/b/log", &stat) == 0 && stat.st_size == 2);
    CHECK(deltafs_chroot("/..") == 0 && deltafs_chdir("/") == 0);
}

/* As the preloaded library of VPIC does: a file for each particle, appended in each epoch. */
static void write_particles(void)
{
    struct stat stat;
    char name[32];
    int dir, fd;

    CHECK(deltafs_mkdir("/particles", 0755 | DELTAFS_DIR_PLFS_STYLE) == 0);
    POSIX(deltafs_mkdir("/particles", 0755 | DELTAFS_DIR_PLFS_STYLE), EEXIST);
    CHECK(deltafs_stat("/particles", &stat) == 0 && S_ISDIR(stat.st_mode));
    CHECK((dir = deltafs_open("/particles", O_RDONLY, 0)) >= 0);
    for (int epoch = 0; epoch < 3; epoch++) {
        for (int i = 0; i < 50; i++) {
            float energy = (float)(i + epoch * 100);

            snprintf(name, sizeof name, "%08x", i);
            CHECK((fd = deltafs_openat(dir, name, O_WRONLY | O_CREAT | O_APPEND, 0644)) >= 0);
            CHECK(deltafs_write(fd, &energy, sizeof energy) == sizeof energy);
            CHECK(deltafs_close(fd) == 0);
        }
        CHECK(deltafs_epoch_flush(dir, NULL) == 0);
    }
    CHECK((fd = deltafs_open("/particles/00000000", O_RDONLY, 0)) == -1 && errno == EAGAIN);
    POSIX(deltafs_fdatasync(dir), ENOTSUP);
    CHECK(deltafs_fstat(dir, &stat) == 0 && S_ISDIR(stat.st_mode));
    CHECK(deltafs_close(dir) == 0);
}

static void read_particles(void)
{
    float energies[4];
    struct stat stat;
    int dir, fd;

    CHECK((fd = deltafs_open("/particles/0000002a", O_RDONLY, 0)) >= 0);
    CHECK(deltafs_fstat(fd, &stat) == 0 && stat.st_size == 12);
    CHECK(deltafs_read(fd, energies, sizeof energies) == 12);
    CHECK(energies[0] == 42 && energies[1] == 142 && energies[2] == 242);
    POSIX(deltafs_write(fd, energies, 4), EBADF);
    CHECK(deltafs_close(fd) == 0);
    POSIX(deltafs_open("/particles/none", O_RDONLY, 0), ENOENT);
    POSIX(deltafs_open("/particles/new", O_WRONLY | O_CREAT, 0644), EROFS);
    CHECK((dir = deltafs_open("/particles", O_RDONLY, 0)) >= 0);
    CHECK((fd = deltafs_openat(dir, "00000001", O_RDONLY, 0)) >= 0 && deltafs_close(fd) == 0);
    CHECK(deltafs_close(dir) == 0);
}

static deltafs_plfsdir_t *handle(int mode, int rank)
{
    deltafs_plfsdir_t *dir = deltafs_plfsdir_create_handle("key_size=8&rank=7", mode,
                                                           DELTAFS_PLFSDIR_DEFAULT);

    CHECK(dir != NULL);
    CHECK(deltafs_plfsdir_set_err_printer(dir, print_error, &errors) == 0);
    CHECK(deltafs_plfsdir_set_rank(dir, rank) == 0);
    return dir;
}

static void write_partitions(void)
{
    deltafs_env_t *env = deltafs_env_init(0, NULL);
    deltafs_tp_t *pool = deltafs_tp_init(2);

    CHECK(env != NULL && pool != NULL && deltafs_env_is_system(env) == 0);
    POSIX(deltafs_tp_pause(pool), ENOTSUP);
    CHECK(deltafs_tp_rerun(pool) == 0);
    for (int rank = 0; rank < 2; rank++) {
        deltafs_plfsdir_t *dir = handle(O_WRONLY, rank);
        char *property, key[9] = "", value[16];

        CHECK(deltafs_plfsdir_set_env(dir, env) == 0 && deltafs_plfsdir_set_thread_pool(dir, pool) == 0);
        CHECK(deltafs_plfsdir_set_key_size(dir, 8) == 0 && deltafs_plfsdir_set_val_size(dir, 4) == 0);
        POSIX(deltafs_plfsdir_set_key_size(dir, 256), EINVAL);
        CHECK(deltafs_plfsdir_set_unordered(dir, 1) == 0 && deltafs_plfsdir_set_fixed_kv(dir, 1) == 0);
        CHECK(deltafs_plfsdir_force_leveldb_fmt(dir, 0) == 0);
        CHECK(deltafs_plfsdir_enable_io_measurement(dir, 0) == 0);
        CHECK(deltafs_plfsdir_set_non_blocking(dir, 0) == 0);
        POSIX(deltafs_plfsdir_set_non_blocking(dir, 1), ENOTSUP);
        CHECK(deltafs_plfsdir_get_memparts(dir) == 1);
        POSIX(deltafs_plfsdir_put(dir, "k", 1, 0, "v", 1), EBADF);
        CHECK(deltafs_plfsdir_open(dir, "/partitions") == 0);
        POSIX(deltafs_plfsdir_open(dir, "/partitions"), EBUSY);
        for (int epoch = 0; epoch < 2; epoch++) {
            for (int i = 0; i < 100; i++) {
                snprintf(key, sizeof key, "%08d", i * 2 + rank);
                snprintf(value, sizeof value, "%d.%d;", epoch, i);
                CHECK(deltafs_plfsdir_put(dir, key, 8, epoch, value, strlen(value)) > 0);
            }
            CHECK(deltafs_plfsdir_append(dir, "by name", epoch, "x", 1) == 1);
            POSIX(deltafs_plfsdir_put(dir, key, 8, 9, "v", 1), EINVAL);
            POSIX(deltafs_plfsdir_sync(dir), ENOTSUP);
            CHECK(deltafs_plfsdir_flush(dir, epoch) == 0 && deltafs_plfsdir_wait(dir) == 0);
            CHECK(deltafs_plfsdir_epoch_flush(dir, epoch) == 0);
            CHECK(deltafs_plfsdir_sync(dir) == 0);
        }
        CHECK(deltafs_plfsdir_get_integer_property(dir, "num_keys") == 202);
        CHECK((property = deltafs_plfsdir_get_property(dir, "num_keys")) != NULL);
        CHECK(strcmp(property, "202") == 0);
        free(property);
        CHECK(deltafs_plfsdir_io_append(dir, "log", 3) == 3);
        CHECK(deltafs_plfsdir_io_flush(dir) == 0 && deltafs_plfsdir_io_sync(dir) == 0);
        CHECK(deltafs_plfsdir_finish(dir) == 0);
        CHECK(deltafs_plfsdir_free_handle(dir) == 0);
    }
    CHECK(errors > 0);
    CHECK(deltafs_tp_close(pool) == 0 && deltafs_env_close(env) == 0);
}

static int save(void *argument, const char *key, size_t key_bytes, const char *value, size_t size)
{
    CHECK(key != NULL && key_bytes > 0 && value != NULL && size > 0);
    return ++*(int *)argument == 150;
}

static void read_partitions(void)
{
    deltafs_plfsdir_t *dir = handle(O_RDONLY, 1);
    size_t size, tables = 1, seeks = 1;
    char *value;
    int seen = 0;

    CHECK(deltafs_plfsdir_open(dir, "/partitions") == 0);
    CHECK((value = deltafs_plfsdir_get(dir, "00000003", 8, -1, &size, &tables, &seeks)) != NULL);
    CHECK(size == 8 && strcmp(value, "0.1;1.1;") == 0 && tables == 0 && seeks == 0);
    free(value);
    CHECK((value = deltafs_plfsdir_get(dir, "00000003", 8, 1, &size, NULL, NULL)) != NULL);
    CHECK(strcmp(value, "1.1;") == 0);
    free(value);
    CHECK(deltafs_plfsdir_get(dir, "00000002", 8, -1, &size, NULL, NULL) == NULL && errno == ENOENT);
    CHECK((value = (char *)deltafs_plfsdir_read(dir, "by name", -1, &size, NULL, NULL)) != NULL);
    CHECK(strcmp(value, "xx") == 0);
    free(value);
    CHECK(deltafs_plfsdir_set_multimap(dir, 0) == 0);
    CHECK((value = deltafs_plfsdir_get(dir, "00000003", 8, -1, &size, NULL, NULL)) != NULL);
    CHECK(strcmp(value, "1.1;") == 0);
    free(value);
    CHECK(deltafs_plfsdir_count(dir, 0) == 101 && deltafs_plfsdir_count(dir, -1) == 202);
    CHECK(deltafs_plfsdir_scan(dir, -1, save, &seen) == 150 && seen == 150);
    CHECK(deltafs_plfsdir_get_property(dir, "none") == NULL);
    CHECK(deltafs_plfsdir_free_handle(dir) == 0);
    dir = handle(O_WRONLY, 0);
    CHECK(deltafs_plfsdir_destroy(dir, "/partitions") == 0);
    CHECK(deltafs_plfsdir_free_handle(dir) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    if (strcmp(argv[1], "write") == 0) {
        files();
        write_particles();
        write_partitions();
    } else {
        read_particles();
        read_partitions();
    }
    printf("the interface of DeltaFS works: %s\n", argv[1]);
    return 0;
}
