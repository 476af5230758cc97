/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of MPI that write one file and read it back, by POSIX or MPI-IO: a load for comparisons and a
 * test of MPI-IO libraries, with the options that IOR has.
 *
 * usage: mpi-io-load -o FILE [-a POSIX|MPIIO] [-b BYTES] [-t BYTES] [-s SEGMENTS] [-c] [-V] [-w] [-r]
 *                    [-C] [-e] [-i REPETITIONS] [-p ior|tile|bt] [-n SIDE] [-k]
 *
 *   -a  interface: MPIIO (the default) or POSIX
 *   -b  bytes of each rank in a segment, -t bytes of a transfer, -s segments; suffixes k, m, g
 *   -c  collective calls          -V  a file view, so that each rank writes all its transfers in one call
 *   -w  write only                -r  read only           (both unless one is given)
 *   -C  each rank reads what the next one wrote
 *   -e  sync at the end of writing, within its time
 *   -i  repetitions               -k  keep the file
 *   -p  pattern: IOR's; tile: a square of SIDE elements of 16 bytes per rank, with a ghost row; bt: cells
 *       of a cube of SIDE³ elements of 40 bytes, on the diagonals as in NAS BT
 *
 * Bytes derive from their offset in the file; each that is read is compared. Prints one JSON object with the
 * best rates in MB/s, and seconds of all ranks together.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum pattern { IOR, TILE, BT };

static struct {
    const char *file;
    int is_posix, collective, view, writes, reads, shift, sync, keep, repetitions;
    long block, transfer, segments, side;
    enum pattern pattern;
} options = { .repetitions = 1, .block = 1 << 20, .transfer = 1 << 18, .segments = 1, .side = 64 };

static int rank, size;

static void fail(const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;

    if (code > 0)
        MPI_Error_string(code, text, &length);
    else if (code < 0)
        snprintf(text, sizeof text, "%s", strerror(errno));
    fprintf(stderr, "mpi-io-load: rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ != MPI_SUCCESS)                                                                  \
            fail(#call, code_);                                                                    \
    } while (0)

static uint64_t word_at(uint64_t offset)
{
    uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15u;

    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9u;
}

static void fill(unsigned char *bytes, long count, uint64_t offset)
{
    for (long i = 0; i < count; i += 8) {
        uint64_t word = word_at(offset + (uint64_t)i);

        memcpy(bytes + i, &word, 8);
    }
}

static void check(const unsigned char *bytes, long count, uint64_t offset)
{
    for (long i = 0; i < count; i += 8) {
        uint64_t word = word_at(offset + (uint64_t)i);

        if (memcmp(bytes + i, &word, 8) != 0) {
            fprintf(stderr, "mpi-io-load: rank %d: wrong bytes at %llu\n", rank,
                    (unsigned long long)(offset + (uint64_t)i));
            MPI_Abort(MPI_COMM_WORLD, 12);
        }
    }
}

/* ---- Subarrays: the elements of a rank in an array of up to three dimensions ------------------------ */

#define CELLS_MAX 64

struct cells {
    int dimensions, count;
    int whole[3], part[3], start[CELLS_MAX][3];
    long element;
};

static struct cells cells_of(int whose)
{
    struct cells cells = { 0 };
    int across = 1, side = (int)options.side;

    while (across * across < size)
        across++;
    if (across * across != size || across > CELLS_MAX)
        fail("tile and bt need a square number of ranks", 0);
    if (options.pattern == TILE) {
        cells.dimensions = 2;
        cells.count = 1;
        cells.element = 16;
        for (int d = 0; d < 2; d++) {
            cells.whole[d] = across * side;
            cells.part[d] = side;
        }
        cells.start[0][0] = whose / across * side;
        cells.start[0][1] = whose % across * side;
        return cells;
    }
    cells.dimensions = 3;
    cells.count = across;
    cells.element = 40;
    for (int d = 0; d < 3; d++) {
        cells.part[d] = side / across;
        cells.whole[d] = cells.part[d] * across;
    }
    for (int c = 0; c < across; c++) {
        cells.start[c][0] = c * cells.part[0];
        cells.start[c][1] = (whose / across + c) % across * cells.part[1];
        cells.start[c][2] = (whose % across + c) % across * cells.part[2];
    }
    return cells;
}

static long cell_elements(const struct cells *cells)
{
    long count = 1;

    for (int d = 0; d < cells->dimensions; d++)
        count *= cells->part[d];
    return count;
}

/* Passes each row of a cell: its place in the file and in the buffer. */
static void each_row(const struct cells *cells, int cell, unsigned char *buffer,
                     void (*visit)(unsigned char *, long, uint64_t))
{
    int last = cells->dimensions - 1;
    long row = cells->part[last] * cells->element, rows = cell_elements(cells) / cells->part[last];

    for (long i = 0; i < rows; i++) {
        uint64_t at = 0;
        long rest = i, index[3] = { 0 };

        for (int d = last - 1; d >= 0; d--) {
            index[d] = rest % cells->part[d];
            rest /= cells->part[d];
        }
        for (int d = 0; d <= last; d++)
            at = at * (uint64_t)cells->whole[d] + (uint64_t)(index[d] + cells->start[cell][d]);
        visit(buffer + i * row, row, at * (uint64_t)cells->element);
    }
}

static void check_row(unsigned char *bytes, long count, uint64_t offset)
{
    check(bytes, count, offset);
}

/* Writes or reads all cells of a rank, each through a view of its own. */
static void move_cells(MPI_File file, int whose, int writes)
{
    struct cells cells = cells_of(whose);
    long bytes = cell_elements(&cells) * cells.element;
    unsigned char *buffer = malloc((size_t)bytes);
    MPI_Datatype element, view;

    MPI_Type_contiguous((int)cells.element, MPI_BYTE, &element);
    MPI_Type_commit(&element);
    for (int c = 0; c < cells.count; c++) {
        MPI_Type_create_subarray(cells.dimensions, cells.whole, cells.part, cells.start[c], MPI_ORDER_C,
                                 element, &view);
        MPI_Type_commit(&view);
        OK(MPI_File_set_view(file, 0, element, view, "native", MPI_INFO_NULL));
        if (writes) {
            each_row(&cells, c, buffer, fill);
            OK(options.collective
                   ? MPI_File_write_all(file, buffer, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE)
                   : MPI_File_write(file, buffer, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        } else {
            OK(options.collective
                   ? MPI_File_read_all(file, buffer, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE)
                   : MPI_File_read(file, buffer, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
            each_row(&cells, c, buffer, check_row);
        }
        MPI_Type_free(&view);
    }
    MPI_Type_free(&element);
    free(buffer);
}

static double cells_bytes(void)
{
    struct cells cells = cells_of(0);

    return (double)cell_elements(&cells) * (double)cells.element * cells.count * size;
}

/* ---- IOR's pattern ------------------------------------------------------------------------------------ */

static long transfers(void)
{
    return options.block / options.transfer;
}

static uint64_t place(int whose, long segment, long transfer)
{
    return (uint64_t)segment * (uint64_t)size * (uint64_t)options.block
           + (uint64_t)whose * (uint64_t)options.block + (uint64_t)transfer * (uint64_t)options.transfer;
}

static void move_at(MPI_File file, int descriptor, unsigned char *buffer, uint64_t offset, int writes)
{
    MPI_Offset at = (MPI_Offset)offset;
    int count = (int)options.transfer;
    MPI_Status status;
    int moved = count;

    if (writes)
        fill(buffer, options.transfer, offset);
    if (options.is_posix) {
        ssize_t done = writes ? pwrite(descriptor, buffer, (size_t)count, at)
                              : pread(descriptor, buffer, (size_t)count, at);
        moved = (int)done;
        if (done < 0)
            fail(writes ? "pwrite" : "pread", -1);
    } else if (writes) {
        OK(options.collective ? MPI_File_write_at_all(file, at, buffer, count, MPI_BYTE, &status)
                              : MPI_File_write_at(file, at, buffer, count, MPI_BYTE, &status));
    } else {
        OK(options.collective ? MPI_File_read_at_all(file, at, buffer, count, MPI_BYTE, &status)
                              : MPI_File_read_at(file, at, buffer, count, MPI_BYTE, &status));
        MPI_Get_count(&status, MPI_BYTE, &moved);
    }
    if (moved != count)
        fail("a short transfer", 0);
    if (!writes)
        check(buffer, options.transfer, offset);
}

/* All transfers of a rank in one call, through a view of blocks at equal distances. */
static void move_by_view(MPI_File file, int whose, int writes)
{
    long bytes = options.block * options.segments;
    unsigned char *buffer = malloc((size_t)bytes);
    MPI_Datatype block, view;

    MPI_Type_contiguous((int)options.block, MPI_BYTE, &block);
    MPI_Type_create_resized(block, 0, (MPI_Aint)options.block * size, &view);
    MPI_Type_commit(&view);
    OK(MPI_File_set_view(file, (MPI_Offset)whose * options.block, MPI_BYTE, view, "native",
                         MPI_INFO_NULL));
    for (long s = 0; writes && s < options.segments; s++)
        fill(buffer + s * options.block, options.block, place(whose, s, 0));
    if (writes)
        OK(options.collective
               ? MPI_File_write_all(file, buffer, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE)
               : MPI_File_write(file, buffer, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    else
        OK(options.collective
               ? MPI_File_read_all(file, buffer, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE)
               : MPI_File_read(file, buffer, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    for (long s = 0; !writes && s < options.segments; s++)
        check(buffer + s * options.block, options.block, place(whose, s, 0));
    MPI_Type_free(&block);
    MPI_Type_free(&view);
    free(buffer);
}

static void move_transfers(MPI_File file, int descriptor, int whose, int writes)
{
    unsigned char *buffer = malloc((size_t)options.transfer);

    for (long s = 0; s < options.segments; s++) {
        for (long t = 0; t < transfers(); t++)
            move_at(file, descriptor, buffer, place(whose, s, t), writes);
    }
    free(buffer);
}

/* ---- A phase -------------------------------------------------------------------------------------------- */

/* Opens the file, moves all bytes, and closes it; returns the seconds of the slowest rank. */
static double phase(int writes)
{
    int whose = !writes && options.shift ? (rank + 1) % size : rank, descriptor = -1;
    double start, seconds, slowest;
    MPI_File file = MPI_FILE_NULL;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    if (options.is_posix) {
        descriptor = open(options.file, writes ? O_CREAT | O_WRONLY : O_RDONLY, 0644);
        if (descriptor < 0)
            fail(options.file, -1);
    } else {
        OK(MPI_File_open(MPI_COMM_WORLD, options.file,
                         writes ? MPI_MODE_CREATE | MPI_MODE_WRONLY : MPI_MODE_RDONLY, MPI_INFO_NULL,
                         &file));
    }
    if (options.pattern != IOR)
        move_cells(file, whose, writes);
    else if (options.view)
        move_by_view(file, whose, writes);
    else
        move_transfers(file, descriptor, whose, writes);
    if (options.is_posix) {
        if (writes && options.sync && fsync(descriptor) < 0)
            fail("fsync", -1);
        close(descriptor);
    } else {
        if (writes && options.sync)
            OK(MPI_File_sync(file));
        OK(MPI_File_close(&file));
    }
    seconds = MPI_Wtime() - start;
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static long bytes_of(const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);

    switch (*end) {
    case 'g':
        number <<= 10; /* fall through */
    case 'm':
        number <<= 10; /* fall through */
    case 'k':
        number <<= 10;
    }
    return number;
}

static void parse(int argc, char **argv)
{
    int option;

    while ((option = getopt(argc, argv, "o:a:b:t:s:i:p:n:cVwrCek")) != -1) {
        switch (option) {
        case 'o': options.file = optarg; break;
        case 'a': options.is_posix = strcmp(optarg, "POSIX") == 0; break;
        case 'b': options.block = bytes_of(optarg); break;
        case 't': options.transfer = bytes_of(optarg); break;
        case 's': options.segments = bytes_of(optarg); break;
        case 'i': options.repetitions = (int)bytes_of(optarg); break;
        case 'n': options.side = bytes_of(optarg); break;
        case 'p':
            options.pattern = strcmp(optarg, "tile") == 0 ? TILE : strcmp(optarg, "bt") == 0 ? BT : IOR;
            break;
        case 'c': options.collective = 1; break;
        case 'V': options.view = 1; break;
        case 'w': options.writes = 1; break;
        case 'r': options.reads = 1; break;
        case 'C': options.shift = 1; break;
        case 'e': options.sync = 1; break;
        case 'k': options.keep = 1; break;
        default: fail("see the head of mpi-io-load.c for its options", 0);
        }
    }
    if (!options.writes && !options.reads)
        options.writes = options.reads = 1;
    if (options.file == NULL || options.block <= 0 || options.transfer <= 0 || options.segments <= 0
        || options.block % options.transfer != 0 || options.transfer % 8 != 0)
        fail("-o is needed, and a block of whole transfers of 8 bytes", 0);
    if (options.is_posix && (options.view || options.collective || options.pattern != IOR))
        fail("views and collective calls are MPI's", 0);
}

int main(int argc, char **argv)
{
    double bytes, write_rate = 0, read_rate = 0, seconds = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    parse(argc, argv);
    bytes = options.pattern == IOR
                ? (double)options.block * (double)options.segments * (double)size
                : cells_bytes();
    for (int i = 0; i < options.repetitions; i++) {
        if (options.writes) {
            double took = phase(1);

            seconds += took;
            write_rate = bytes / took / 1e6 > write_rate ? bytes / took / 1e6 : write_rate;
        }
        if (options.reads) {
            double took = phase(0);

            seconds += took;
            read_rate = bytes / took / 1e6 > read_rate ? bytes / took / 1e6 : read_rate;
        }
    }
    if (!options.keep && rank == 0) {
        if (options.is_posix)
            unlink(options.file);
        else
            OK(MPI_File_delete(options.file, MPI_INFO_NULL));
    }
    if (rank == 0)
        printf("{\"bytes\": %.0f, \"write_mb_s\": %.1f, \"read_mb_s\": %.1f, \"seconds\": %.3f}\n", bytes,
               write_rate, read_rate, seconds);
    MPI_Finalize();
    return 0;
}
