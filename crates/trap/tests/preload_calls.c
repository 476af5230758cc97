// SPDX-License-Identifier: Apache-2.0
// Makes each call that the preloaded library has, and some that it leaves alone, on each path of its
// arguments, and prints what it returned. The C library must not inline any.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void print(const char *call, const char *path, int result, const struct stat *stat) {
    printf("%s %.60s: %d", call, path, result < 0 ? -errno : 0);
    if (result >= 0 && stat)
        printf(" %lo %lu %ld %lu %lu", (long)stat->st_mode,
               // Links of /proc have no lasting number.
               S_ISLNK(stat->st_mode) ? 0L : (long)stat->st_ino, (long)stat->st_size,
               (long)stat->st_nlink, (long)stat->st_uid);
    printf("\n");
}

static void print_open(const char *call, const char *path, int descriptor) {
    char bytes[8] = "";
    struct stat found;
    print(call, path, descriptor, NULL);
    if (descriptor < 0)
        return;
    int result = fstat(descriptor, &found);
    // The number of a new file differs each time.
    found.st_ino = 0;
    print("fstat", path, result, &found);
    ssize_t count = read(descriptor, bytes, sizeof bytes);
    printf("read %.60s: %zd %.*s, flags %x, closes %d\n", path, count, count > 0 ? (int)count : 0, bytes,
           fcntl(descriptor, F_GETFL), fcntl(descriptor, F_GETFD));
    close(descriptor);
}

int main(int count, char **paths) {
    int here = open(".", O_RDONLY | O_DIRECTORY), root = open("/", O_RDONLY | O_DIRECTORY);
    int (*old_stat)(int, const char *, struct stat *) =
        (int (*)(int, const char *, struct stat *))dlsym(RTLD_DEFAULT, "__xstat");
    for (int at = 1; at < count; at++) {
        const char *path = paths[at];
        struct stat found;
        struct statx statx_of;
        print("stat", path, stat(path, &found), &found);
        print("lstat", path, lstat(path, &found), &found);
        if (old_stat)
            print("__xstat", path, old_stat(1, path, &found), &found);
        print("fstatat", path, fstatat(here, path, &found, 0), &found);
        print("fstatat root", path, fstatat(root, path, &found, AT_SYMLINK_NOFOLLOW), &found);
        print("fstatat closed", path, fstatat(99, path, &found, 0), NULL);
        print("fstatat flags", path, fstatat(here, path, &found, 1 << 30), NULL);
        int result = statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &statx_of);
        print("statx", path, result, NULL);
        if (!result)
            printf("mode %o, size %llu\n", statx_of.stx_mode, (long long)statx_of.stx_size);
        print("access", path, access(path, R_OK), NULL);
        print("access to write", path, access(path, W_OK | X_OK), NULL);
        print("faccessat", path, faccessat(here, path, R_OK, AT_EACCESS), NULL);
        print("eaccess", path, eaccess(path, F_OK), NULL);
        print_open("open", path, open(path, O_RDONLY | O_CLOEXEC));
        print_open("open to write", path, open(path, O_RDWR | O_APPEND));
        print_open("openat", path, openat(root, path, O_RDONLY | O_NOFOLLOW));
        print_open("open directory", path, open(path, O_RDONLY | O_DIRECTORY));
        int made = open(path, O_RDWR | O_CREAT | O_EXCL, 0640);
        if (made >= 0)
            unlink(path);
        print_open("open exclusively", path, made);
    }
    struct stat found;
    print("stat at NULL", "", fstatat(here, "", &found, AT_EMPTY_PATH), &found);
    print("fstat closed", "", fstat(99, &found), NULL);
    print("fstat input", "", fstat(0, &found), NULL);
    print("stat nothing", "", stat("", &found), NULL);
    return 0;
}
