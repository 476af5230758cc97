/* SPDX-License-Identifier: Apache-2.0 */
/* A job of which a rank dies after a sync; the next run, with any number of ranks, finds what was
 * synced.
 *
 * usage: resume write|check FILE RANKS      RANKS: of the run that wrote
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS 10000

static int items[ITEMS];

static void fail(const char *what)
{
    fprintf(stderr, "resume: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void fill(int rank)
{
    for (int i = 0; i < ITEMS; i++)
        items[i] = rank * ITEMS + i;
}

int main(int argc, char **argv)
{
    int rank, ranks, writes;
    MPI_File file;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 4)
        fail("see its head for the usage");
    writes = strcmp(argv[1], "write") == 0;
    ranks = atoi(argv[3]);
    if (MPI_File_open(MPI_COMM_WORLD, argv[2], writes ? MPI_MODE_CREATE | MPI_MODE_RDWR : MPI_MODE_RDONLY,
                      MPI_INFO_NULL, &file)
        != MPI_SUCCESS)
        fail("open");
    if (writes) {
        fill(rank);
        if (MPI_File_write_at(file, (MPI_Offset)rank * ITEMS * 4, items, ITEMS, MPI_INT, MPI_STATUS_IGNORE)
                != MPI_SUCCESS
            || MPI_File_sync(file) != MPI_SUCCESS)
            fail("write");
        if (rank == ranks - 1)
            raise(SIGKILL);
        MPI_Barrier(MPI_COMM_WORLD);
        fail("a barrier without a dead rank");
    }
    for (int from = 0; from < ranks; from++) {
        static int found[ITEMS];

        fill(from);
        if (MPI_File_read_at(file, (MPI_Offset)from * ITEMS * 4, found, ITEMS, MPI_INT, MPI_STATUS_IGNORE)
                != MPI_SUCCESS
            || memcmp(found, items, sizeof items) != 0)
            fail("what was synced is not there");
    }
    if (MPI_File_close(&file) != MPI_SUCCESS)
        fail("close");
    MPI_Finalize();
    return 0;
}
