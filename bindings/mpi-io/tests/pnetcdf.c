/* SPDX-License-Identifier: Apache-2.0 */
/* PnetCDF: ranks write columns of a variable collectively and records independently, and read them
 * in another file handle.
 *
 * usage: pnetcdf FILE */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>

#define ROWS 30
#define COLUMNS 8

static int rank, size;

#define CHECK(truth)                                                                               \
    do {                                                                                           \
        if (!(truth)) {                                                                            \
            fprintf(stderr, "pnetcdf.c:%d: rank %d: %s\n", __LINE__, rank, #truth);                \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == NC_NOERR)

static float part[ROWS][COLUMNS];

static float value(int row, int column)
{
    return (float)row * 100 + (float)column;
}

static void columns_of(int whose, MPI_Offset start[2], MPI_Offset count[2])
{
    start[0] = 0;
    start[1] = (MPI_Offset)whose * COLUMNS;
    count[0] = ROWS;
    count[1] = COLUMNS;
}

int main(int argc, char **argv)
{
    MPI_Offset start[2], count[2];
    int file, dimensions[2], fixed, records, next;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc == 2);
    OK(ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
    OK(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dimensions[0]));
    OK(ncmpi_def_dim(file, "x", (MPI_Offset)size * COLUMNS, &dimensions[1]));
    OK(ncmpi_def_var(file, "records", NC_FLOAT, 2, dimensions, &records));
    OK(ncmpi_def_dim(file, "row", ROWS, &dimensions[0]));
    OK(ncmpi_def_var(file, "fixed", NC_FLOAT, 2, dimensions, &fixed));
    OK(ncmpi_enddef(file));
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < COLUMNS; c++)
            part[r][c] = value(r, rank * COLUMNS + c);
    }
    columns_of(rank, start, count);
    OK(ncmpi_put_vara_float_all(file, fixed, start, count, &part[0][0]));
    OK(ncmpi_put_vara_float_all(file, records, start, count, &part[0][0]));
    OK(ncmpi_close(file));

    next = (rank + 1) % size;
    columns_of(next, start, count);
    OK(ncmpi_open(MPI_COMM_WORLD, argv[1], NC_NOWRITE, MPI_INFO_NULL, &file));
    OK(ncmpi_inq_varid(file, "fixed", &fixed));
    OK(ncmpi_inq_varid(file, "records", &records));
    for (int turn = 0; turn < 2; turn++) {
        OK(ncmpi_get_vara_float_all(file, turn == 0 ? fixed : records, start, count, &part[0][0]));
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++)
                CHECK(part[r][c] == value(r, next * COLUMNS + c));
        }
    }
    OK(ncmpi_close(file));
    MPI_Finalize();
    if (rank == 0)
        printf("pnetcdf ok\n");
    return 0;
}
