! SPDX-License-Identifier: Apache-2.0
! Fortran: each rank writes its columns of an array through a file view, and reads those of the next
! rank.
!
! usage: array FILE
program array
    use mpi
    implicit none
    integer, parameter :: rows = 100, columns = 10
    integer :: file, view, rank, ranks, error, r, c
    integer(kind=MPI_OFFSET_KIND) :: displacement, bytes
    double precision :: part(rows, columns)
    character(len=200) :: name

    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    call get_command_argument(1, name)

    do c = 1, columns
        do r = 1, rows
            part(r, c) = value(r, c, rank)
        end do
    end do
    call MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, error)
    call check(error, 'open')
    ! Column c of the array is of rank mod(c, ranks).
    call MPI_Type_vector(columns, rows, rows * ranks, MPI_DOUBLE_PRECISION, view, error)
    call MPI_Type_commit(view, error)
    displacement = int(rank, MPI_OFFSET_KIND) * rows * 8
    call MPI_File_set_view(file, displacement, MPI_DOUBLE_PRECISION, view, 'native', MPI_INFO_NULL, error)
    call check(error, 'set_view')
    call MPI_File_write_all(file, part, rows * columns, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, error)
    call check(error, 'write_all')
    call MPI_File_sync(file, error)
    call check(error, 'sync')
    call MPI_File_get_size(file, bytes, error)
    if (bytes /= int(rows, MPI_OFFSET_KIND) * columns * ranks * 8) call stop_with('size')
    displacement = int(mod(rank + 1, ranks), MPI_OFFSET_KIND) * rows * 8
    call MPI_File_set_view(file, displacement, MPI_DOUBLE_PRECISION, view, 'native', MPI_INFO_NULL, error)
    call MPI_File_read_all(file, part, rows * columns, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, error)
    call check(error, 'read_all')
    do c = 1, columns
        do r = 1, rows
            if (part(r, c) /= value(r, c, mod(rank + 1, ranks))) call stop_with('wrong value')
        end do
    end do
    call MPI_File_close(file, error)
    call check(error, 'close')
    call MPI_Finalize(error)
    if (rank == 0) print '(a)', 'array ok'

contains

    double precision function value(row, column, of)
        integer, intent(in) :: row, column, of
        value = row + 1.0d3 * column + 1.0d6 * of
    end function

    subroutine check(code, call)
        integer, intent(in) :: code
        character(len=*), intent(in) :: call
        if (code /= MPI_SUCCESS) call stop_with(call)
    end subroutine

    subroutine stop_with(what)
        character(len=*), intent(in) :: what
        integer :: ignored
        print '(a)', 'array: ' // what
        call MPI_Abort(MPI_COMM_WORLD, 1, ignored)
    end subroutine
end program
