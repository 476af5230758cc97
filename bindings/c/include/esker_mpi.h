/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of Esker over an MPI communicator.
 *
 * The functions are compiled into the program, with its own mpicc, so that one library of Esker
 * serves every MPI. Include this header in one or more files; it needs MPI 3.
 *
 *     MPI_Init(&argc, &argv);
 *     esker_comm *comm;
 *     if (esker_comm_from_mpi(MPI_COMM_WORLD, &comm) < 0)
 *         fprintf(stderr, "%s\n", esker_error_message());
 *     ...
 *     esker_comm_close(comm);
 *     MPI_Finalize();
 *
 * Messages go through a duplicate of the communicator, so they never meet those of the program. MPI
 * is asked for MPI_THREAD_SINGLE only if one thread makes all calls of MPI and of Esker with this
 * communicator. Errors of MPI follow its error handler, which by default ends the job.
 */
#ifndef ESKER_MPI_H
#define ESKER_MPI_H

#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "esker.h"

typedef struct esker_mpi_context {
    MPI_Comm comm;
    MPI_Message matched; /* found by a probe, and received next */
    uint32_t *nodes;
} esker_mpi_context;

static int esker_mpi_start_send(void *context, uint32_t to, uint32_t tag, const void *bytes,
                                size_t bytes_count, void **request)
{
    esker_mpi_context *mpi = (esker_mpi_context *)context;
    MPI_Request *started;
    int code;

    if (bytes_count > INT_MAX)
        return MPI_ERR_COUNT;
    started = (MPI_Request *)malloc(sizeof *started);
    if (started == NULL)
        return MPI_ERR_OTHER;
    /* Synchronous: complete when the receiver has taken it. */
    code = MPI_Issend(bytes, (int)bytes_count, MPI_BYTE, (int)to, (int)tag, mpi->comm, started);
    if (code != MPI_SUCCESS) {
        free(started);
        return code;
    }
    *request = started;
    return 0;
}

static int esker_mpi_test_send(void *context, void *request, int *done)
{
    int code = MPI_Test((MPI_Request *)request, done, MPI_STATUS_IGNORE);

    (void)context;
    if (code == MPI_SUCCESS && *done)
        free(request);
    return code;
}

static int esker_mpi_probe(void *context, uint32_t tag, int *found, uint32_t *from,
                           size_t *bytes_count, void **message)
{
    esker_mpi_context *mpi = (esker_mpi_context *)context;
    MPI_Status status;
    int count, code;

    code = MPI_Improbe(MPI_ANY_SOURCE, (int)tag, mpi->comm, found, &mpi->matched, &status);
    if (code != MPI_SUCCESS || !*found)
        return code;
    code = MPI_Get_count(&status, MPI_BYTE, &count);
    if (code != MPI_SUCCESS)
        return code;
    *message = &mpi->matched;
    *from = (uint32_t)status.MPI_SOURCE;
    *bytes_count = (size_t)count;
    return 0;
}

static int esker_mpi_receive(void *context, void *message, void *bytes, size_t bytes_count)
{
    (void)context;
    return MPI_Mrecv(bytes, (int)bytes_count, MPI_BYTE, (MPI_Message *)message, MPI_STATUS_IGNORE);
}

static void esker_mpi_release(void *context)
{
    esker_mpi_context *mpi = (esker_mpi_context *)context;
    int finalized = 0;

    if (MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized)
        MPI_Comm_free(&mpi->comm);
    free(mpi->nodes);
    free(mpi);
}

/* Makes a communicator of Esker from one of MPI. Collective, as is esker_comm_close for it; close
 * it before MPI_Finalize. Fails with -ENOMEM or -EIO, and no message of Esker, if MPI or memory
 * does. */
static inline int esker_comm_from_mpi(MPI_Comm comm, esker_comm **result)
{
    esker_mpi_context *mpi = (esker_mpi_context *)calloc(1, sizeof *mpi);
    esker_message_functions functions;
    int rank, size, label, has_all, all_have;
    MPI_Comm node;

    if (result != NULL)
        *result = NULL;
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &size) != MPI_SUCCESS) {
        free(mpi);
        return -EIO;
    }
    if (mpi != NULL)
        mpi->nodes = (uint32_t *)calloc((size_t)size, sizeof *mpi->nodes);
    /* Either all ranks go on or none, since the others would wait for one that does not. */
    has_all = mpi != NULL && mpi->nodes != NULL && result != NULL;
    if (MPI_Allreduce(&has_all, &all_have, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS || !all_have) {
        if (mpi != NULL)
            free(mpi->nodes);
        free(mpi);
        return result == NULL ? -EINVAL : -ENOMEM;
    }
    if (MPI_Comm_dup(comm, &mpi->comm) != MPI_SUCCESS) {
        free(mpi->nodes);
        free(mpi);
        return -EIO;
    }
    /* Ranks of a node learn the number of its first one. */
    label = rank;
    if (MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node)
            != MPI_SUCCESS
        || MPI_Bcast(&label, 1, MPI_INT, 0, node) != MPI_SUCCESS
        || MPI_Comm_free(&node) != MPI_SUCCESS
        || MPI_Allgather(&label, 1, MPI_INT, mpi->nodes, 1, MPI_INT, mpi->comm) != MPI_SUCCESS) {
        esker_mpi_release(mpi);
        return -EIO;
    }
    memset(&functions, 0, sizeof functions);
    functions.struct_size = sizeof functions;
    functions.context = mpi;
    functions.rank = (uint32_t)rank;
    functions.size = (uint32_t)size;
    functions.nodes = mpi->nodes;
    functions.start_send = esker_mpi_start_send;
    functions.test_send = esker_mpi_test_send;
    functions.probe = esker_mpi_probe;
    functions.receive = esker_mpi_receive;
    functions.release = esker_mpi_release;
    return esker_comm_from_functions(&functions, result);
}

#endif
