/* SPDX-License-Identifier: Apache-2.0 */
/* What MPI-IO promises of a file, and what this library refuses: sizes, truncation, modes,
 * deletion, visibility after a sync, nonblocking calls, views with holes between unsynced writes,
 * many open files.
 *
 * usage: rules DIRECTORY      any directory, of Esker or of a file system that MPI-IO works on
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

#define CHECK(truth)                                                                               \
    do {                                                                                           \
        if (!(truth)) {                                                                            \
            fprintf(stderr, "rules.c:%d: rank %d: %s\n", __LINE__, rank, #truth);                  \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static int class_of(int code)
{
    int class_ = MPI_SUCCESS;

    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class_);
    return class_;
}

static const char *in(const char *directory, const char *name)
{
    static char path[4096];

    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static int opened(const char *path, int mode, MPI_File *file)
{
    return MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, file);
}

static void modes(const char *directory)
{
    const char *path = in(directory, "modes");
    MPI_File file;

    CHECK(class_of(opened(path, MPI_MODE_RDONLY, &file)) == MPI_ERR_NO_SUCH_FILE);
    OK(opened(path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, &file));
    OK(MPI_File_close(&file));
    CHECK(file == MPI_FILE_NULL);
    CHECK(class_of(opened(path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, &file))
          == MPI_ERR_FILE_EXISTS);
    /* It goes as it is closed. */
    OK(opened(path, MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, &file));
    OK(MPI_File_close(&file));
    CHECK(class_of(opened(path, MPI_MODE_RDONLY, &file)) == MPI_ERR_NO_SUCH_FILE);
    /* One rank deletes. */
    OK(opened(path, MPI_MODE_CREATE | MPI_MODE_WRONLY, &file));
    OK(MPI_File_close(&file));
    if (rank == size - 1)
        OK(MPI_File_delete(path, MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(class_of(opened(path, MPI_MODE_RDONLY, &file)) == MPI_ERR_NO_SUCH_FILE);
}

static void sizes(const char *directory)
{
    char byte = (char)('a' + rank), got[8];
    MPI_Status status;
    MPI_Offset bytes;
    MPI_File file;
    int count;

    OK(opened(in(directory, "sizes"), MPI_MODE_CREATE | MPI_MODE_RDWR, &file));
    OK(MPI_File_get_size(file, &bytes));
    CHECK(bytes == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_write_at(file, 100 + rank, &byte, 1, MPI_CHAR, MPI_STATUS_IGNORE));
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_size(file, &bytes));
    CHECK(bytes == 100 + size);
    /* A hole, and the end. */
    OK(MPI_File_read_at(file, 98, got, 8, MPI_CHAR, &status));
    MPI_Get_count(&status, MPI_CHAR, &count);
    CHECK(count == (size < 6 ? size + 2 : 8) && got[0] == 0 && got[1] == 0 && got[2] == 'a');
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_size(file, 50));
    OK(MPI_File_get_size(file, &bytes));
    CHECK(bytes == 50);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_size(file, 200));
    OK(MPI_File_read_at(file, 100, got, 8, MPI_CHAR, &status));
    MPI_Get_count(&status, MPI_CHAR, &count);
    CHECK(count == 8 && memcmp(got, "\0\0\0\0\0\0\0\0", 8) == 0);
    OK(MPI_File_preallocate(file, 150));
    OK(MPI_File_get_size(file, &bytes));
    CHECK(bytes == 200);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_preallocate(file, 300));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_size(file, &bytes));
    CHECK(bytes == 300);
    OK(MPI_File_seek(file, 0, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &bytes));
    CHECK(bytes == 300);
    OK(MPI_File_close(&file));
    OK(opened(in(directory, "sizes"), MPI_MODE_WRONLY | MPI_MODE_APPEND, &file));
    OK(MPI_File_get_amode(file, &count));
    CHECK(count == (MPI_MODE_WRONLY | MPI_MODE_APPEND));
    OK(MPI_File_get_position(file, &bytes));
    CHECK(bytes == 300);
    OK(MPI_File_close(&file));
}

/* Each round every rank overwrites another part; all see it after the sync. */
static void visibility(const char *directory)
{
    int *part = malloc(4096 * sizeof *part);
    MPI_File file;

    OK(opened(in(directory, "rounds"), MPI_MODE_CREATE | MPI_MODE_RDWR, &file));
    for (int round = 0; round < 5; round++) {
        int mine = (rank + round) % size;

        for (int i = 0; i < 4096; i++)
            part[i] = round * 1000000 + mine * 10000 + i;
        OK(MPI_File_write_at(file, (MPI_Offset)mine * 4096 * 4, part, 4096, MPI_INT, MPI_STATUS_IGNORE));
        /* What this rank wrote it reads at once. */
        part[7] = 0;
        OK(MPI_File_read_at(file, (MPI_Offset)mine * 4096 * 4 + 28, part, 1, MPI_INT, MPI_STATUS_IGNORE));
        CHECK(part[0] == round * 1000000 + mine * 10000 + 7);
        OK(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        for (int other = 0; other < size; other++) {
            OK(MPI_File_read_at(file, (MPI_Offset)other * 4096 * 4, part, 4096, MPI_INT,
                                MPI_STATUS_IGNORE));
            for (int i = 0; i < 4096; i++)
                CHECK(part[i] == round * 1000000 + other * 10000 + i);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    free(part);
}

/* Collective writes with holes, in which other ranks wrote before without a sync between: nothing
 * of them may come back. */
static void holes(const char *directory)
{
    enum { WORDS = 1000 };
    int *words = malloc(WORDS * sizeof *words), found[3];
    MPI_Datatype view, sparse;
    MPI_File file;

    OK(opened(in(directory, "holes"), MPI_MODE_CREATE | MPI_MODE_RDWR, &file));
    for (int turn = 0; turn < 3; turn++) {
        /* Every third word of a rank's stretch, another one in each turn; ranks take others'
         * stretches. */
        int stretch = (rank + turn) % size;

        MPI_Type_create_resized(MPI_INT, 0, 3 * sizeof(int), &sparse);
        MPI_Type_contiguous(1, sparse, &view);
        MPI_Type_commit(&view);
        for (int i = 0; i < WORDS; i++)
            words[i] = turn * 1000000 + stretch * 10000 + i;
        OK(MPI_File_set_view(file, ((MPI_Offset)stretch * WORDS * 3 + turn) * (MPI_Offset)sizeof(int),
                             MPI_INT, view, "native", MPI_INFO_NULL));
        OK(MPI_File_write_all(file, words, WORDS, MPI_INT, MPI_STATUS_IGNORE));
        MPI_Type_free(&view);
        MPI_Type_free(&sparse);
    }
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    for (int i = 0; i < WORDS * size - 1; i++) {
        OK(MPI_File_read_at(file, (MPI_Offset)i * 3, found, 3, MPI_INT, MPI_STATUS_IGNORE));
        for (int turn = 0; turn < 3; turn++)
            CHECK(found[turn] == turn * 1000000 + i / WORDS * 10000 + i % WORDS);
    }
    OK(MPI_File_close(&file));
    free(words);
}

/* Ranks take turns in writing the same bytes, with barriers between and no sync. */
static void turns(const char *directory)
{
    int written[500], found[500];
    MPI_File file;

    OK(opened(in(directory, "turns"), MPI_MODE_CREATE | MPI_MODE_RDWR, &file));
    for (int turn = 0; turn < 6; turn++) {
        for (int i = 0; i < 500; i++)
            written[i] = turn * 1000 + i;
        if (rank == (turn * 7 + 2) % size)
            OK(MPI_File_write_at(file, turn * 100, written, 500, MPI_INT, MPI_STATUS_IGNORE));
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_read_at(file, turn * 100, found, 500, MPI_INT, MPI_STATUS_IGNORE));
        CHECK(memcmp(found, written, sizeof found) == 0);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    OK(opened(in(directory, "turns"), MPI_MODE_RDONLY, &file));
    OK(MPI_File_read_at(file, 500, found, 500, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(memcmp(found, written, sizeof found) == 0);
    OK(MPI_File_read_at(file, 0, found, 100, MPI_INT, MPI_STATUS_IGNORE));
    for (int i = 0; i < 100; i++)
        CHECK(found[i] == i / 25 * 1000 + i % 25);
    OK(MPI_File_close(&file));
}

static void nonblocking(const char *directory)
{
    MPI_Request requests[10];
    double values[10][100];
    MPI_File file;

    OK(opened(in(directory, "nonblocking"), MPI_MODE_CREATE | MPI_MODE_RDWR, &file));
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < 100; j++)
            values[i][j] = rank * 1e6 + i * 1e3 + j;
        OK(MPI_File_iwrite_at(file, (MPI_Offset)(i * size + rank) * 800, values[i], 100, MPI_DOUBLE,
                              &requests[i]));
    }
    OK(MPI_Waitall(10, requests, MPI_STATUSES_IGNORE));
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 10; i++)
        OK(MPI_File_iread_at(file, (MPI_Offset)(i * size + (rank + 1) % size) * 800, values[i], 100,
                             MPI_DOUBLE, &requests[i]));
    OK(MPI_Waitall(10, requests, MPI_STATUSES_IGNORE));
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < 100; j++)
            CHECK(values[i][j] == (rank + 1) % size * 1e6 + i * 1e3 + j);
    }
    OK(MPI_File_write_at_all_begin(file, (MPI_Offset)rank * 800, values[0], 100, MPI_DOUBLE));
    OK(MPI_File_write_at_all_end(file, values[0], MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));
}

static void expect(MPI_File file, MPI_Offset bytes_wanted, const char *wanted)
{
    MPI_Offset bytes;
    char found[64] = "";

    OK(MPI_File_get_size(file, &bytes));
    CHECK(bytes == bytes_wanted);
    OK(MPI_File_read_at(file, 0, found, sizeof found - 1, MPI_CHAR, MPI_STATUS_IGNORE));
    CHECK(strcmp(found, wanted) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Two handles are of one file, also under another spelling of its name. */
static void handles(const char *directory)
{
    MPI_File one, two;

    OK(opened(in(directory, "handles"), MPI_MODE_CREATE | MPI_MODE_RDWR, &one));
    OK(opened(in(directory, ".//handles"), MPI_MODE_RDWR, &two));
    if (rank == 0)
        OK(MPI_File_write_at(one, 0, "first", 5, MPI_CHAR, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    expect(two, 5, "first");
    if (rank == size - 1)
        OK(MPI_File_write_at(two, 2, "second", 6, MPI_CHAR, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(two));
    OK(MPI_File_close(&one));
    expect(two, 8, "fisecond");
    OK(MPI_File_close(&two));
    OK(opened(in(directory, "many/../handles"), MPI_MODE_RDONLY, &one));
    expect(one, 8, "fisecond");
    CHECK(class_of(MPI_File_set_size(one, 3)) != MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    expect(one, 8, "fisecond");
    OK(MPI_File_close(&one));
}

/* A file that is deleted while it is open is gone once it is closed, and its name is free. */
static void deletions(const char *directory)
{
    MPI_File open_file, other;

    OK(opened(in(directory, "gone"), MPI_MODE_CREATE | MPI_MODE_RDWR, &open_file));
    OK(MPI_File_write_at(open_file, 0, "old", 3, MPI_CHAR, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        OK(MPI_File_delete(in(directory, "gone"), MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(opened(in(directory, "other"), MPI_MODE_CREATE | MPI_MODE_RDWR, &other));
    expect(open_file, 3, "old");
    OK(MPI_File_close(&open_file));
    OK(MPI_File_close(&other));
    CHECK(class_of(opened(in(directory, "gone"), MPI_MODE_RDONLY, &open_file)) == MPI_ERR_NO_SUCH_FILE);
    OK(opened(in(directory, "gone"), MPI_MODE_CREATE | MPI_MODE_RDWR, &open_file));
    expect(open_file, 0, "");
    if (rank == 0)
        OK(MPI_File_write_at(open_file, 0, "new", 3, MPI_CHAR, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&open_file));
    OK(opened(in(directory, "gone"), MPI_MODE_RDONLY, &open_file));
    expect(open_file, 3, "new");
    OK(MPI_File_close(&open_file));
    /* Modes that exclude each other make nothing. */
    CHECK(opened(in(directory, "nothing"), MPI_MODE_CREATE | MPI_MODE_RDONLY, &open_file) != MPI_SUCCESS);
    CHECK(opened(in(directory, "nothing"), MPI_MODE_RDONLY, &open_file) != MPI_SUCCESS);
}

/* Two handles of one file, and many files; descriptors do not leak. */
static void many(const char *directory)
{
    MPI_File files[20], twice;
    int first = dup(0), last;

    close(first);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 20; i++) {
            char name[32];

            snprintf(name, sizeof name, "many/%d", i);
            OK(opened(in(directory, name), MPI_MODE_CREATE | MPI_MODE_RDWR, &files[i]));
            OK(MPI_File_write_at(files[i], (MPI_Offset)rank * 4, &i, 1, MPI_INT, MPI_STATUS_IGNORE));
        }
        for (int i = 0; i < 20; i++) {
            int found = -1;

            OK(MPI_File_read_at(files[i], (MPI_Offset)rank * 4, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
            CHECK(found == i);
            OK(MPI_File_close(&files[i]));
        }
    }
    OK(opened(in(directory, "many/0"), MPI_MODE_RDWR, &files[0]));
    OK(opened(in(directory, "many/0"), MPI_MODE_RDWR, &twice));
    OK(MPI_File_close(&twice));
    OK(MPI_File_close(&files[0]));
    last = dup(0);
    close(last);
    CHECK(last <= first + 8);
}

/* Calls that work on a file system, and not here. */
static void refusals(const char *directory)
{
    MPI_File file;
    int value = 1;

    if (size > 1)
        CHECK(class_of(MPI_File_open(MPI_COMM_SELF, in(directory, "self"),
                                     MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file))
              == MPI_ERR_UNSUPPORTED_OPERATION);
    OK(opened(in(directory, "refusals"), MPI_MODE_CREATE | MPI_MODE_RDWR, &file));
    CHECK(class_of(MPI_File_set_atomicity(file, 1)) == MPI_ERR_UNSUPPORTED_OPERATION);
    OK(MPI_File_set_atomicity(file, 0));
    CHECK(class_of(MPI_File_write_shared(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE))
          == MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK(class_of(MPI_File_write_ordered(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE))
          == MPI_ERR_UNSUPPORTED_OPERATION);
    OK(MPI_File_close(&file));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc > 1);
    modes(argv[1]);
    sizes(argv[1]);
    visibility(argv[1]);
    holes(argv[1]);
    turns(argv[1]);
    nonblocking(argv[1]);
    handles(argv[1]);
    deletions(argv[1]);
    many(argv[1]);
    if (getenv("ESKER_MPIIO_AT") != NULL)
        refusals(argv[1]);
    MPI_Finalize();
    if (rank == 0)
        printf("rules ok\n");
    return 0;
}
