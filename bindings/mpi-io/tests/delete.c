/* SPDX-License-Identifier: Apache-2.0 */
/* One rank deletes a file, and MPI ends.
 *
 * usage: delete FILE */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1 && (argc != 2 || MPI_File_delete(argv[1], MPI_INFO_NULL) != MPI_SUCCESS)) {
        fprintf(stderr, "delete: failed\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
