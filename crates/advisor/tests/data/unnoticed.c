// SPDX-License-Identifier: Apache-2.0
// Calls that fail, on small stacks, and on descriptors that the C library closes by itself.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>
static void show(const char *what, long result) {
    printf("%s %ld %s\n", what, result, result < 0 ? strerror(errno) : "");
    errno = 0;
}
static int other = -1;
static void write_shortly(void) { write(other, "signal", 6); }
static int each(const char *path, const struct stat *at, int kind, struct FTW *walk) {
    if (kind == FTW_F) close(open(path + walk->base, O_RDONLY));
    return 0;
}
// Functions of the C library that a program may have as its own.
int fileno(FILE *stream) { return 1000; }
int getpagesize(void) { return 3; }
long syscall(long number, ...) { abort(); }
int main(void) {
    char *nowhere = (char *)8;
    struct stat attributes;
    fcntl(open(".", O_RDONLY), F_DUPFD, 200);
    show("closedir", closedir(0));
    show("open", open(nowhere, O_RDONLY));
    show("stat", stat(nowhere, &attributes));
    show("rename", rename(nowhere, "x"));
    // Refused before the kernel reads the name.
    show("access", access(nowhere, 0xff));
    show("truncate", truncate(nowhere, -1));
    show("unlinkat", unlinkat(AT_FDCWD, nowhere, 0x7777));
    show("readlink", readlink(nowhere, nowhere, 0));
    int file = open("data", O_RDWR | O_CREAT, 0600);
    show("writev", writev(file, (struct iovec *)nowhere, 2));
    show("writev", writev(file, (struct iovec *)&attributes, 2000000));
    show("sendfile", sendfile(file, file, (off_t *)nowhere, 10));
    show("read", read(-1, nowhere, 1));
    dlopen("/absent.so", RTLD_NOW);
    access("data", R_OK);
    puts(dlerror() ? "an error" : "none");
    // A small stack, below which nothing may be written.
    char *stack = mmap(0, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack, 8192, PROT_NONE);
    ucontext_t here, there;
    getcontext(&there);
    there.uc_stack.ss_sp = stack + 8192;
    there.uc_stack.ss_size = 4096;
    there.uc_link = &here;
    other = fcntl(file, F_DUPFD, 100);
    makecontext(&there, write_shortly, 0);
    show("swapcontext", swapcontext(&here, &there));
    // Descriptors that the C library closes by itself.
    FILE *pipe = popen("echo", "r");
    int number = fileno_unlocked(pipe);
    char byte;
    show("pipe", read(number, &byte, 1));
    show("pclose", pclose(pipe));
    show("number", fcntl(file, F_DUPFD, number) - number);
    show("write", write(number, "again", 5));
    int unnamed = open(".", O_TMPFILE | O_RDWR, 0600);
    show("unnamed", write(unnamed, "unnamed", 7));
    mkdir("tree", 0700);
    close(open("tree/leaf", O_RDONLY | O_CREAT, 0600));
    show("nftw", nftw("tree", each, 8, FTW_CHDIR));
    off_t from = 3;
    // A working directory without a name.
    mkdir("gone", 0700);
    chdir("gone");
    rmdir("../gone");
    for (int time = 0; time < 100; time++) access("name", R_OK);
    chdir("/proc/self/fd/200");
    show("sent", sendfile(open("sent", O_WRONLY | O_CREAT, 0600), file, &from, 4));
    struct iovec parts[2] = {{"one", 3}, {"three", 5}};
    show("writev", writev(file, parts, 2));
    return 0;
}
