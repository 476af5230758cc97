/* SPDX-License-Identifier: Apache-2.0 */
/* Parallel HDF5: ranks write rows of a matrix, collectively and independently, a chunked dataset
 * and attributes, close the file, open it again and read each other's rows.
 *
 * usage: hdf5 FILE */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS 20
#define COLUMNS 1000

static int rank, size;

#define CHECK(truth)                                                                               \
    do {                                                                                           \
        if (!(truth)) {                                                                            \
            fprintf(stderr, "hdf5.c:%d: rank %d: %s\n", __LINE__, rank, #truth);                   \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

static double value(int row, int column)
{
    return row * 1e4 + column;
}

static void transfer(hid_t file, const char *name, int whose, int writes, int collective)
{
    static double rows[ROWS][COLUMNS];
    hsize_t start[2] = { (hsize_t)whose, 0 }, stride[2] = { (hsize_t)size, 1 },
            count[2] = { ROWS, COLUMNS };
    hid_t data = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(data),
          memory = H5Screate_simple(2, count, NULL), list = H5Pcreate(H5P_DATASET_XFER);

    /* Every size-th row. */
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL);
    H5Pset_dxpl_mpio(list, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
    for (int r = 0; writes && r < ROWS; r++) {
        for (int c = 0; c < COLUMNS; c++)
            rows[r][c] = value(r * size + whose, c);
    }
    CHECK((writes ? H5Dwrite(data, H5T_NATIVE_DOUBLE, memory, space, list, rows)
                  : H5Dread(data, H5T_NATIVE_DOUBLE, memory, space, list, rows))
          >= 0);
    for (int r = 0; !writes && r < ROWS; r++) {
        for (int c = 0; c < COLUMNS; c++)
            CHECK(rows[r][c] == value(r * size + whose, c));
    }
    H5Pclose(list);
    H5Sclose(memory);
    H5Sclose(space);
    H5Dclose(data);
}

static void create(hid_t file, const char *name, int is_chunked)
{
    hsize_t all[2] = { (hsize_t)(ROWS * size), COLUMNS }, chunk[2] = { 7, 300 };
    hid_t space = H5Screate_simple(2, all, NULL), list = H5Pcreate(H5P_DATASET_CREATE), data;

    if (is_chunked)
        H5Pset_chunk(list, 2, chunk);
    data = H5Dcreate2(file, name, H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    CHECK(data >= 0);
    H5Dclose(data);
    H5Pclose(list);
    H5Sclose(space);
}

int main(int argc, char **argv)
{
    hid_t access, file, space, attribute;
    int step = 42, found = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc == 2);
    access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
    for (int round = 0; round < 2; round++) {
        /* The second round cuts what the first wrote. */
        file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, access);
        CHECK(file >= 0);
        create(file, "rows", 0);
        create(file, "alone", 0);
        create(file, "chunked", 1);
        space = H5Screate(H5S_SCALAR);
        attribute = H5Acreate2(file, "step", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT);
        CHECK(H5Awrite(attribute, H5T_NATIVE_INT, &step) >= 0);
        H5Aclose(attribute);
        H5Sclose(space);
        transfer(file, "rows", rank, 1, 1);
        transfer(file, "alone", rank, 1, 0);
        transfer(file, "chunked", rank, 1, 1);
        CHECK(H5Fclose(file) >= 0);
    }
    file = H5Fopen(argv[1], H5F_ACC_RDONLY, access);
    CHECK(file >= 0);
    for (int collective = 0; collective < 2; collective++) {
        transfer(file, "rows", (rank + 1) % size, 0, collective);
        transfer(file, "alone", (rank + 1) % size, 0, collective);
        transfer(file, "chunked", (rank + 1) % size, 0, collective);
    }
    attribute = H5Aopen(file, "step", H5P_DEFAULT);
    CHECK(H5Aread(attribute, H5T_NATIVE_INT, &found) >= 0 && found == 42);
    H5Aclose(attribute);
    CHECK(H5Fclose(file) >= 0);
    H5Pclose(access);
    MPI_Finalize();
    if (rank == 0)
        printf("hdf5 ok\n");
    return 0;
}
