! SPDX-License-Identifier: Apache-2.0
!
! A heat equation that writes snapshots and an indexed directory.
!
! A square plate, hot on its left side, cools towards the others. Each rank of the job computes a
! band of rows for itself; its neighbours' edges stay at their start, which keeps the example short.
! Every `WRITES_EACH` steps all ranks write
! - their band as a file of their part of the job, which becomes the snapshot `heat`, and
! - the temperature of every probe as records of the indexed directory /probes of the snapshot
!   `probes`, from which the history of one probe is read at the end.
!
! usage: heat STORE       (alone), or esker run -n 4 -- heat STORE
program heat
    use, intrinsic :: iso_c_binding
    use esker
    implicit none

    integer, parameter :: ROWS = 64, COLUMNS = 64, STEPS = 200, WRITES_EACH = 50, PROBES = 16
    type(esker_repository) :: repository
    type(esker_session) :: band, records
    type(esker_dir) :: files, found
    type(esker_comm) :: comm
    type(esker_imd_writer) :: writer
    type(esker_imd) :: reader
    character(ESKER_ID_LENGTH) :: job
    character(4096) :: store
    character(64) :: path
    real(c_double), allocatable :: u(:, :), next(:, :)
    integer(c_int64_t) :: keys(PROBES), key(1)
    integer(c_int64_t), allocatable :: written(:)
    real(c_double) :: values(PROBES)
    character(kind=c_char), allocatable :: content(:)
    integer, allocatable :: epochs(:)
    real(c_double), allocatable :: history(:)
    integer :: rank, ranks, step, i

    if (command_argument_count() /= 1) error stop "usage: heat STORE"
    call get_command_argument(1, store)
    call esker_open(store, repository)
    call esker_comm_from_environment(store, comm)
    call esker_comm_rank(comm, rank, ranks)
    call esker_job_id(comm, job)
    call esker_begin(repository, band, job=job, rank=rank)
    call esker_root(band, files)
    if (rank == 0) call esker_begin(repository, records)
    call esker_imd_create(comm, repository, records, "/probes", 8, 8, writer, &
        memory_bytes=16_c_int64_t * 1024 * 1024)

    allocate(u(COLUMNS, ROWS), next(COLUMNS, ROWS))
    u = 0
    u(1, :) = 100
    next = u
    do step = 1, STEPS
        next(2:COLUMNS - 1, 2:ROWS - 1) = u(2:COLUMNS - 1, 2:ROWS - 1) + 0.2_c_double * ( &
            u(1:COLUMNS - 2, 2:ROWS - 1) + u(3:COLUMNS, 2:ROWS - 1) + u(2:COLUMNS - 1, 1:ROWS - 2) &
            + u(2:COLUMNS - 1, 3:ROWS) - 4 * u(2:COLUMNS - 1, 2:ROWS - 1))
        u = next
        if (mod(step, WRITES_EACH) /= 0) cycle
        write (path, '("/step-", i0)') step
        call esker_mkdir(files, path)
        write (path, '("/step-", i0, "/band-", i0)') step, rank
        call esker_write(files, path, u, esker_bytes(u))
        do i = 1, PROBES
            keys(i) = int(rank, c_int64_t) * PROBES + i
            values(i) = u(2 * i, ROWS / 2)
        end do
        call esker_imd_append_many(writer, keys, values, PROBES)
        call esker_imd_flush(writer, step)
    end do

    call esker_imd_finish(writer)
    call esker_close(files)
    call esker_complete(band)
    call esker_close(band)
    call esker_barrier(comm)
    if (rank == 0) then
        call esker_job_publish(repository, job, "heat")
        call esker_publish(records, "probes")
        call esker_close(records)

        call esker_open_snapshot(repository, "heat", found)
        next = 0
        write (path, '("/step-", i0, "/band-0")') STEPS
        call esker_read(found, path, next, esker_bytes(next))
        if (maxval(abs(next - u)) > 0) error stop "the band is not what was written"
        call esker_close(found)

        call esker_open_snapshot(repository, "probes", found)
        call esker_imd_open(found, "/probes", reader)
        call esker_imd_steps(reader, written)
        key(1) = 1
        call esker_imd_get(reader, key, esker_bytes(key), content, epochs)
        allocate(history(size(epochs)))
        history = transfer(content, values, size(epochs))
        print '(a, i0, a)', "the first probe of ", ranks, " ranks:"
        do i = 1, size(history)
            print '(a, i4, a, f8.4)', "  step ", written(epochs(i) + 1), ": ", history(i)
        end do
        if (size(history) /= STEPS / WRITES_EACH) error stop "epochs are missing"
        call esker_close(reader)
        call esker_close(found)
    end if
    call esker_close(repository)
    call esker_barrier(comm)
    call esker_close(comm)
end program heat
