! SPDX-License-Identifier: Apache-2.0
!
! Esker for programs in Fortran: the module `esker` over the C library.
!
! A program opens a repository by the URL of its store, begins a session on top of snapshots that
! others have published, writes files and indexed directories, and publishes the result:
!
!     use esker
!     type(esker_repository) :: repository
!     type(esker_session) :: session
!     type(esker_dir) :: root
!
!     call esker_create("/scratch/store", repository)
!     call esker_begin(repository, session)
!     call esker_root(session, root)
!     call esker_write(root, "/temperature", u, esker_bytes(u))
!     call esker_publish(session, "run")
!
! Every procedure has an optional last argument `ierr`: 0, or minus an errno. Without it a failure
! ends the program with its message. `esker_message()` is the text of the last failure, and
! `esker_kind()` its kind, one of the constants below. esker.h says what each call does, costs and
! promises.
!
! Buffers are of any type and rank, contiguous, and come with their number of bytes, which
! `esker_bytes` returns for the usual types.
module esker
    use, intrinsic :: iso_c_binding
    implicit none
    private

    public :: esker_repository, esker_session, esker_dir, esker_comm, esker_imd_writer, esker_imd
    public :: esker_open, esker_create, esker_begin, esker_root, esker_open_snapshot, esker_close
    public :: esker_write, esker_read, esker_size, esker_mkdir, esker_remove, esker_path_exists
    public :: esker_sync, esker_publish, esker_snapshot, esker_complete
    public :: esker_comm_self, esker_comm_from_environment, esker_comm_rank, esker_barrier
    public :: esker_broadcast, esker_job_id, esker_job_publish
    public :: esker_imd_create, esker_imd_append, esker_imd_append_many, esker_imd_flush
    public :: esker_imd_finish, esker_imd_open, esker_imd_get, esker_imd_steps
    public :: esker_kind, esker_message, esker_bytes

    integer, parameter, public :: ESKER_ID_LENGTH = 32

    ! What a session promises for each change.
    integer(c_int), parameter, public :: ESKER_PRIVATE = 0, ESKER_NONE = 1, ESKER_ASYNC = 2, &
        ESKER_ALWAYS = 3
    ! Formats of indexed directories.
    integer(c_int), parameter, public :: ESKER_IMD_BASE = 0, ESKER_IMD_POINTER = 1, &
        ESKER_IMD_LOSSY = 2, ESKER_IMD_STATIC = 3, ESKER_IMD_ORDERED = 4
    ! Kinds of failures that programs ask for; esker.h lists all.
    integer(c_int), parameter, public :: ESKER_NOT_FOUND = 3, ESKER_EXISTS = 4, ESKER_CONFLICT = 9, &
        ESKER_FENCED = 10, ESKER_UNAVAILABLE = 11, ESKER_CORRUPT = 12, ESKER_INVALID = 13, &
        ESKER_CLOSED = 15, ESKER_NO_SPACE = 16, ESKER_READ_ONLY = 17

    ! Handles; those that were not opened, or were closed, are refused by every call.
    type :: esker_repository
        type(c_ptr) :: handle = c_null_ptr
    end type
    type :: esker_session
        type(c_ptr) :: handle = c_null_ptr
    end type
    type :: esker_dir
        type(c_ptr) :: handle = c_null_ptr
    end type
    type :: esker_comm
        type(c_ptr) :: handle = c_null_ptr
    end type
    type :: esker_imd_writer
        type(c_ptr) :: handle = c_null_ptr
    end type
    type :: esker_imd
        type(c_ptr) :: handle = c_null_ptr
    end type

    interface esker_close
        module procedure close_repository, close_session, close_dir, close_comm, close_imd
    end interface

    interface esker_bytes
        module procedure bytes_r4_1, bytes_r4_2, bytes_r4_3, bytes_r8_1, bytes_r8_2, bytes_r8_3
        module procedure bytes_i4_1, bytes_i4_2, bytes_i8_1, bytes_i8_2
    end interface

    ! The structs of options in esker.h.
    type, bind(C) :: session_options
        integer(c_size_t) :: struct_size
        type(c_ptr) :: bases
        integer(c_size_t) :: bases_count
        integer(c_int32_t) :: durability
        integer(c_int32_t) :: take_over
        integer(c_int64_t) :: memory_bytes
        type(c_ptr) :: job
        integer(c_int32_t) :: rank
        integer(c_int32_t) :: properties_count
        type(c_ptr) :: properties
    end type

    type, bind(C) :: imd_options
        integer(c_size_t) :: struct_size
        integer(c_int32_t) :: format
        integer(c_int32_t) :: key_bytes
        integer(c_int32_t) :: value_bytes
        integer(c_int32_t) :: routes_by_node
        integer(c_int64_t) :: memory_bytes
    end type

    type, bind(C) :: imd_value
        type(c_ptr) :: bytes
        integer(c_size_t) :: bytes_count
        integer(c_int32_t) :: epoch
        integer(c_int32_t) :: reserved
    end type

    type, bind(C) :: stat_t
        integer(c_int8_t) :: file_id(16)
        integer(c_int64_t) :: size
        integer(c_int64_t) :: times(3)
        integer(c_int32_t) :: mode, uid, gid, nlink, is_indexed, reserved(7)
    end type

    interface
        function c_kind() bind(C, name="esker_error_kind")
            import :: c_int
            integer(c_int) :: c_kind
        end function
        function c_message() bind(C, name="esker_error_message")
            import :: c_ptr
            type(c_ptr) :: c_message
        end function
        function c_strlen(text) bind(C, name="strlen")
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
            integer(c_size_t) :: c_strlen
        end function
        function c_repository_open(url, options, repository) bind(C, name="esker_repository_open")
            import :: c_char, c_ptr, c_int
            character(kind=c_char), intent(in) :: url(*)
            type(c_ptr), value :: options
            type(c_ptr), intent(out) :: repository
            integer(c_int) :: c_repository_open
        end function
        function c_repository_create(url, options, repository) &
            bind(C, name="esker_repository_create")
            import :: c_char, c_ptr, c_int
            character(kind=c_char), intent(in) :: url(*)
            type(c_ptr), value :: options
            type(c_ptr), intent(out) :: repository
            integer(c_int) :: c_repository_create
        end function
        function c_repository_close(repository) bind(C, name="esker_repository_close")
            import :: c_ptr, c_int
            type(c_ptr), value :: repository
            integer(c_int) :: c_repository_close
        end function
        function c_session_begin(repository, options, session) bind(C, name="esker_session_begin")
            import :: c_ptr, c_int, session_options
            type(c_ptr), value :: repository
            type(session_options), intent(in) :: options
            type(c_ptr), intent(out) :: session
            integer(c_int) :: c_session_begin
        end function
        function c_session_root(session, root) bind(C, name="esker_session_root")
            import :: c_ptr, c_int
            type(c_ptr), value :: session
            type(c_ptr), intent(out) :: root
            integer(c_int) :: c_session_root
        end function
        function c_session_sync(session) bind(C, name="esker_session_sync")
            import :: c_ptr, c_int
            type(c_ptr), value :: session
            integer(c_int) :: c_session_sync
        end function
        function c_session_publish(session, name, flags, id) bind(C, name="esker_session_publish")
            import :: c_char, c_ptr, c_int
            type(c_ptr), value :: session
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: flags
            type(c_ptr), value :: id
            integer(c_int) :: c_session_publish
        end function
        function c_session_snapshot(session, name, id) bind(C, name="esker_session_snapshot")
            import :: c_char, c_ptr, c_int
            type(c_ptr), value :: session
            character(kind=c_char), intent(in) :: name(*)
            type(c_ptr), value :: id
            integer(c_int) :: c_session_snapshot
        end function
        function c_session_complete(session, id) bind(C, name="esker_session_complete")
            import :: c_ptr, c_int
            type(c_ptr), value :: session
            type(c_ptr), value :: id
            integer(c_int) :: c_session_complete
        end function
        function c_session_close(session) bind(C, name="esker_session_close")
            import :: c_ptr, c_int
            type(c_ptr), value :: session
            integer(c_int) :: c_session_close
        end function
        function c_namespace_open(repository, snapshots, snapshots_count, namespace) &
            bind(C, name="esker_namespace_open")
            import :: c_ptr, c_int, c_size_t
            type(c_ptr), value :: repository
            type(c_ptr), intent(in) :: snapshots(*)
            integer(c_size_t), value :: snapshots_count
            type(c_ptr), intent(out) :: namespace
            integer(c_int) :: c_namespace_open
        end function
        function c_namespace_root(namespace, root) bind(C, name="esker_namespace_root")
            import :: c_ptr, c_int
            type(c_ptr), value :: namespace
            type(c_ptr), intent(out) :: root
            integer(c_int) :: c_namespace_root
        end function
        function c_namespace_close(namespace) bind(C, name="esker_namespace_close")
            import :: c_ptr, c_int
            type(c_ptr), value :: namespace
            integer(c_int) :: c_namespace_close
        end function
        function c_dir_close(dir) bind(C, name="esker_dir_close")
            import :: c_ptr, c_int
            type(c_ptr), value :: dir
            integer(c_int) :: c_dir_close
        end function
        function c_write_file(at, path, content, content_bytes) bind(C, name="esker_write_file")
            import :: c_char, c_ptr, c_int, c_size_t
            type(c_ptr), value :: at
            character(kind=c_char), intent(in) :: path(*)
            type(*), intent(in) :: content(*)
            integer(c_size_t), value :: content_bytes
            integer(c_int) :: c_write_file
        end function
        function c_read_file(at, path, buffer, buffer_bytes) bind(C, name="esker_read_file")
            import :: c_char, c_ptr, c_int64_t, c_size_t
            type(c_ptr), value :: at
            character(kind=c_char), intent(in) :: path(*)
            type(*), intent(inout) :: buffer(*)
            integer(c_size_t), value :: buffer_bytes
            integer(c_int64_t) :: c_read_file
        end function
        function c_stat(at, path, flags, stat) bind(C, name="esker_stat")
            import :: c_char, c_ptr, c_int, stat_t
            type(c_ptr), value :: at
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int), value :: flags
            type(stat_t), intent(out) :: stat
            integer(c_int) :: c_stat
        end function
        function c_mkdir_all(at, path) bind(C, name="esker_mkdir_all")
            import :: c_char, c_ptr, c_int
            type(c_ptr), value :: at
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int) :: c_mkdir_all
        end function
        function c_unlink(at, path) bind(C, name="esker_unlink")
            import :: c_char, c_ptr, c_int
            type(c_ptr), value :: at
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int) :: c_unlink
        end function
        function c_comm_self(comm) bind(C, name="esker_comm_self")
            import :: c_ptr, c_int
            type(c_ptr), intent(out) :: comm
            integer(c_int) :: c_comm_self
        end function
        function c_comm_from_environment(meet, comm) bind(C, name="esker_comm_from_environment")
            import :: c_char, c_ptr, c_int
            character(kind=c_char), intent(in) :: meet(*)
            type(c_ptr), intent(out) :: comm
            integer(c_int) :: c_comm_from_environment
        end function
        function c_comm_rank(comm, rank, size) bind(C, name="esker_comm_rank")
            import :: c_ptr, c_int, c_int32_t
            type(c_ptr), value :: comm
            integer(c_int32_t), intent(out) :: rank, size
            integer(c_int) :: c_comm_rank
        end function
        function c_comm_barrier(comm) bind(C, name="esker_comm_barrier")
            import :: c_ptr, c_int
            type(c_ptr), value :: comm
            integer(c_int) :: c_comm_barrier
        end function
        function c_comm_broadcast(comm, buffer, buffer_bytes) bind(C, name="esker_comm_broadcast")
            import :: c_ptr, c_int64_t, c_size_t
            type(c_ptr), value :: comm
            type(*), intent(inout) :: buffer(*)
            integer(c_size_t), value :: buffer_bytes
            integer(c_int64_t) :: c_comm_broadcast
        end function
        function c_comm_close(comm) bind(C, name="esker_comm_close")
            import :: c_ptr, c_int
            type(c_ptr), value :: comm
            integer(c_int) :: c_comm_close
        end function
        function c_job_id(id) bind(C, name="esker_job_id")
            import :: c_char, c_int
            character(kind=c_char), intent(out) :: id(*)
            integer(c_int) :: c_job_id
        end function
        function c_job_publish(repository, job, name, report) bind(C, name="esker_job_publish")
            import :: c_char, c_ptr, c_int
            type(c_ptr), value :: repository
            character(kind=c_char), intent(in) :: job(*), name(*)
            type(c_ptr), value :: report
            integer(c_int) :: c_job_publish
        end function
        function c_imd_create(comm, repository, session, path, options, writer) &
            bind(C, name="esker_imd_create")
            import :: c_char, c_ptr, c_int, imd_options
            type(c_ptr), value :: comm, repository, session
            character(kind=c_char), intent(in) :: path(*)
            type(imd_options), intent(in) :: options
            type(c_ptr), intent(out) :: writer
            integer(c_int) :: c_imd_create
        end function
        function c_imd_append(writer, key, key_bytes, content, content_bytes) &
            bind(C, name="esker_imd_append")
            import :: c_ptr, c_int, c_size_t
            type(c_ptr), value :: writer
            type(*), intent(in) :: key(*), content(*)
            integer(c_size_t), value :: key_bytes, content_bytes
            integer(c_int) :: c_imd_append
        end function
        function c_imd_append_many(writer, keys, values, records) &
            bind(C, name="esker_imd_append_many")
            import :: c_ptr, c_int, c_size_t
            type(c_ptr), value :: writer
            type(*), intent(in) :: keys(*), values(*)
            integer(c_size_t), value :: records
            integer(c_int) :: c_imd_append_many
        end function
        function c_imd_epoch_flush(writer) bind(C, name="esker_imd_epoch_flush")
            import :: c_ptr, c_int
            type(c_ptr), value :: writer
            integer(c_int) :: c_imd_epoch_flush
        end function
        function c_imd_epoch_flush_at(writer, step) bind(C, name="esker_imd_epoch_flush_at")
            import :: c_ptr, c_int, c_int64_t
            type(c_ptr), value :: writer
            integer(c_int64_t), value :: step
            integer(c_int) :: c_imd_epoch_flush_at
        end function
        function c_imd_finish(writer, summary) bind(C, name="esker_imd_finish")
            import :: c_ptr, c_int
            type(c_ptr), value :: writer, summary
            integer(c_int) :: c_imd_finish
        end function
        function c_imd_open(at, path, cache_bytes, reader) bind(C, name="esker_imd_open")
            import :: c_char, c_ptr, c_int, c_int64_t
            type(c_ptr), value :: at
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int64_t), value :: cache_bytes
            type(c_ptr), intent(out) :: reader
            integer(c_int) :: c_imd_open
        end function
        function c_imd_get(reader, key, key_bytes, answers) bind(C, name="esker_imd_get")
            import :: c_ptr, c_int, c_size_t
            type(c_ptr), value :: reader
            type(*), intent(in) :: key(*)
            integer(c_size_t), value :: key_bytes
            type(c_ptr), intent(out) :: answers
            integer(c_int) :: c_imd_get
        end function
        function c_imd_values(answers, key_index, values, values_count) &
            bind(C, name="esker_imd_values")
            import :: c_ptr, c_int, c_size_t
            type(c_ptr), value :: answers
            integer(c_size_t), value :: key_index
            type(c_ptr), intent(out) :: values
            integer(c_size_t), intent(out) :: values_count
            integer(c_int) :: c_imd_values
        end function
        function c_imd_answers_close(answers) bind(C, name="esker_imd_answers_close")
            import :: c_ptr, c_int
            type(c_ptr), value :: answers
            integer(c_int) :: c_imd_answers_close
        end function
        function c_imd_steps(reader, steps, steps_count) bind(C, name="esker_imd_steps")
            import :: c_ptr, c_int64_t, c_size_t
            type(c_ptr), value :: reader
            integer(c_int64_t), intent(inout) :: steps(*)
            integer(c_size_t), value :: steps_count
            integer(c_int64_t) :: c_imd_steps
        end function
        function c_imd_close(reader) bind(C, name="esker_imd_close")
            import :: c_ptr, c_int
            type(c_ptr), value :: reader
            integer(c_int) :: c_imd_close
        end function
    end interface

contains

    ! --- Failures -------------------------------------------------------------------------------

    ! The kind of the last failure.
    function esker_kind() result(kind)
        integer(c_int) :: kind
        kind = c_kind()
    end function

    ! The text of the last failure: object, place, what to do next.
    function esker_message() result(message)
        character(:), allocatable :: message
        type(c_ptr) :: text
        character(kind=c_char), pointer :: characters(:)
        integer :: i

        text = c_message()
        call c_f_pointer(text, characters, [c_strlen(text)])
        allocate(character(size(characters)) :: message)
        do i = 1, size(characters)
            message(i:i) = characters(i)
        end do
    end function

    ! Hands a result to the caller, or ends the program if it does not ask.
    subroutine hand_out(code, ierr)
        integer(c_int), intent(in) :: code
        integer, intent(out), optional :: ierr

        if (present(ierr)) then
            ierr = code
        else if (code < 0) then
            print '(2a)', "esker: ", esker_message()
            error stop 1
        end if
    end subroutine

    ! A text as C has it. Blanks at its end do not count.
    pure function c_text(text) result(characters)
        character(*), intent(in) :: text
        character(kind=c_char) :: characters(len_trim(text) + 1)
        integer :: i

        do i = 1, len_trim(text)
            characters(i) = text(i:i)
        end do
        characters(len_trim(text) + 1) = c_null_char
    end function

    ! --- Repositories and trees -----------------------------------------------------------------

    subroutine esker_open(url, repository, ierr)
        character(*), intent(in) :: url
        type(esker_repository), intent(out) :: repository
        integer, intent(out), optional :: ierr
        call hand_out(c_repository_open(c_text(url), c_null_ptr, repository%handle), ierr)
    end subroutine

    subroutine esker_create(url, repository, ierr)
        character(*), intent(in) :: url
        type(esker_repository), intent(out) :: repository
        integer, intent(out), optional :: ierr
        call hand_out(c_repository_create(c_text(url), c_null_ptr, repository%handle), ierr)
    end subroutine

    ! Begins a session on top of the snapshot `base`, if it is given; as the part of `rank` of a
    ! job, if that is.
    subroutine esker_begin(repository, session, base, durability, job, rank, ierr)
        type(esker_repository), intent(in) :: repository
        type(esker_session), intent(out) :: session
        character(*), intent(in), optional :: base, job
        integer(c_int), intent(in), optional :: durability
        integer, intent(in), optional :: rank
        integer, intent(out), optional :: ierr
        type(session_options) :: options
        character(kind=c_char), allocatable, target :: base_text(:), job_text(:)
        type(c_ptr), target :: bases(1)

        options = session_options(0, c_null_ptr, 0, 0, 0, 0, c_null_ptr, 0, 0, c_null_ptr)
        options%struct_size = c_sizeof(options)
        if (present(base)) then
            base_text = c_text(base)
            bases(1) = c_loc(base_text)
            options%bases = c_loc(bases)
            options%bases_count = 1
        end if
        if (present(durability)) options%durability = durability
        if (present(job)) then
            job_text = c_text(job)
            options%job = c_loc(job_text)
        end if
        if (present(rank)) options%rank = int(rank, c_int32_t)
        call hand_out(c_session_begin(repository%handle, options, session%handle), ierr)
    end subroutine

    ! Opens the root directory of a session.
    subroutine esker_root(session, root, ierr)
        type(esker_session), intent(in) :: session
        type(esker_dir), intent(out) :: root
        integer, intent(out), optional :: ierr
        call hand_out(c_session_root(session%handle, root%handle), ierr)
    end subroutine

    ! Opens the root directory of a published snapshot.
    subroutine esker_open_snapshot(repository, name, root, ierr)
        type(esker_repository), intent(in) :: repository
        character(*), intent(in) :: name
        type(esker_dir), intent(out) :: root
        integer, intent(out), optional :: ierr
        character(kind=c_char), allocatable, target :: text(:)
        type(c_ptr) :: namespace, snapshots(1)
        integer(c_int) :: code

        text = c_text(name)
        snapshots(1) = c_loc(text)
        code = c_namespace_open(repository%handle, snapshots, 1_c_size_t, namespace)
        if (code >= 0) then
            code = c_namespace_root(namespace, root%handle)
            ! The directory keeps the snapshot open.
            if (c_namespace_close(namespace) < 0) continue
        end if
        call hand_out(code, ierr)
    end subroutine

    ! Makes all changes so far durable, in a session that is not ESKER_PRIVATE.
    subroutine esker_sync(session, ierr)
        type(esker_session), intent(in) :: session
        integer, intent(out), optional :: ierr
        call hand_out(c_session_sync(session%handle), ierr)
    end subroutine

    ! Ends the session and publishes it; with `replace` the name moves from what it stands for.
    subroutine esker_publish(session, name, replace, ierr)
        type(esker_session), intent(in) :: session
        character(*), intent(in) :: name
        logical, intent(in), optional :: replace
        integer, intent(out), optional :: ierr
        integer(c_int) :: flags

        flags = 0
        if (present(replace)) flags = merge(1, 0, replace)
        call hand_out(c_session_publish(session%handle, c_text(name), flags, c_null_ptr), ierr)
    end subroutine

    ! Publishes the state so far, and goes on.
    subroutine esker_snapshot(session, name, ierr)
        type(esker_session), intent(in) :: session
        character(*), intent(in) :: name
        integer, intent(out), optional :: ierr
        call hand_out(c_session_snapshot(session%handle, c_text(name), c_null_ptr), ierr)
    end subroutine

    ! Ends the part of a job.
    subroutine esker_complete(session, ierr)
        type(esker_session), intent(in) :: session
        integer, intent(out), optional :: ierr
        call hand_out(c_session_complete(session%handle, c_null_ptr), ierr)
    end subroutine

    ! --- Files ----------------------------------------------------------------------------------

    ! Writes a whole file: creates it, or replaces its content in one step.
    subroutine esker_write(at, path, content, content_bytes, ierr)
        type(esker_dir), intent(in) :: at
        character(*), intent(in) :: path
        type(*), intent(in) :: content(*)
        integer(c_size_t), intent(in) :: content_bytes
        integer, intent(out), optional :: ierr
        call hand_out(c_write_file(at%handle, c_text(path), content, content_bytes), ierr)
    end subroutine

    ! Reads a whole file of exactly `content_bytes`.
    subroutine esker_read(at, path, content, content_bytes, ierr)
        type(esker_dir), intent(in) :: at
        character(*), intent(in) :: path
        type(*), intent(inout) :: content(*)
        integer(c_size_t), intent(in) :: content_bytes
        integer, intent(out), optional :: ierr
        integer(c_int64_t) :: found

        found = c_read_file(at%handle, c_text(path), content, content_bytes)
        if (found >= 0 .and. found /= content_bytes) then
            if (present(ierr)) then
                ierr = -75 ! EOVERFLOW: the buffer has another size than the file
                return
            end if
            print '(3a,i0,a,i0)', "esker: ", trim(path), " has ", found, " bytes, not ", content_bytes
            error stop 1
        end if
        call hand_out(int(min(found, 0_c_int64_t), c_int), ierr)
    end subroutine

    ! The number of bytes of a file.
    subroutine esker_size(at, path, bytes, ierr)
        type(esker_dir), intent(in) :: at
        character(*), intent(in) :: path
        integer(c_int64_t), intent(out) :: bytes
        integer, intent(out), optional :: ierr
        type(stat_t) :: stat
        integer(c_int) :: code

        bytes = 0
        code = c_stat(at%handle, c_text(path), 0_c_int, stat)
        if (code >= 0) bytes = stat%size
        call hand_out(code, ierr)
    end subroutine

    ! True if there is something at a path.
    function esker_path_exists(at, path) result(exists)
        type(esker_dir), intent(in) :: at
        character(*), intent(in) :: path
        logical :: exists
        type(stat_t) :: stat

        exists = c_stat(at%handle, c_text(path), 0_c_int, stat) >= 0
        if (exists) return
        ! Ends the program for any other failure, since a caller would go on as if nothing were
        ! there.
        if (c_kind() /= ESKER_NOT_FOUND) call hand_out(-1_c_int)
    end function

    ! Makes a directory and those above it, as far as they are missing.
    subroutine esker_mkdir(at, path, ierr)
        type(esker_dir), intent(in) :: at
        character(*), intent(in) :: path
        integer, intent(out), optional :: ierr
        call hand_out(c_mkdir_all(at%handle, c_text(path)), ierr)
    end subroutine

    ! Removes a file.
    subroutine esker_remove(at, path, ierr)
        type(esker_dir), intent(in) :: at
        character(*), intent(in) :: path
        integer, intent(out), optional :: ierr
        call hand_out(c_unlink(at%handle, c_text(path)), ierr)
    end subroutine

    ! --- Ranks ----------------------------------------------------------------------------------

    ! A job of this process alone.
    subroutine esker_comm_self(comm, ierr)
        type(esker_comm), intent(out) :: comm
        integer, intent(out), optional :: ierr
        call hand_out(c_comm_self(comm%handle), ierr)
    end subroutine

    ! The job that `esker run`, srun or mpirun started, whose ranks meet in the store at `meet`.
    subroutine esker_comm_from_environment(meet, comm, ierr)
        character(*), intent(in) :: meet
        type(esker_comm), intent(out) :: comm
        integer, intent(out), optional :: ierr
        call hand_out(c_comm_from_environment(c_text(meet), comm%handle), ierr)
    end subroutine

    subroutine esker_comm_rank(comm, rank, size, ierr)
        type(esker_comm), intent(in) :: comm
        integer, intent(out) :: rank, size
        integer, intent(out), optional :: ierr
        integer(c_int32_t) :: own, all
        integer(c_int) :: code

        own = 0
        all = 0
        code = c_comm_rank(comm%handle, own, all)
        rank = own
        size = all
        call hand_out(code, ierr)
    end subroutine

    subroutine esker_barrier(comm, ierr)
        type(esker_comm), intent(in) :: comm
        integer, intent(out), optional :: ierr
        call hand_out(c_comm_barrier(comm%handle), ierr)
    end subroutine

    ! Copies the bytes of rank 0 to all ranks.
    subroutine esker_broadcast(comm, content, content_bytes, ierr)
        type(esker_comm), intent(in) :: comm
        type(*), intent(inout) :: content(*)
        integer(c_size_t), intent(in) :: content_bytes
        integer, intent(out), optional :: ierr
        integer(c_int64_t) :: code

        code = c_comm_broadcast(comm%handle, content, content_bytes)
        call hand_out(int(min(code, 0_c_int64_t), c_int), ierr)
    end subroutine

    ! Makes the id of a job at rank 0 and sends it to all ranks. Collective.
    subroutine esker_job_id(comm, id, ierr)
        type(esker_comm), intent(in) :: comm
        character(ESKER_ID_LENGTH), intent(out) :: id
        integer, intent(out), optional :: ierr
        character(kind=c_char) :: text(ESKER_ID_LENGTH + 1)
        integer(c_int32_t) :: rank, all
        integer(c_int) :: code
        integer :: i

        id = " "
        rank = -1
        text = c_null_char
        code = c_comm_rank(comm%handle, rank, all)
        if (code >= 0 .and. rank == 0) code = c_job_id(text)
        ! Also after a failure at rank 0, so that the others do not wait.
        if (code >= 0 .or. rank == 0) then
            code = int(min(c_comm_broadcast(comm%handle, text, size(text, kind=c_size_t)), &
                0_c_int64_t), c_int)
        end if
        if (code >= 0) then
            do i = 1, ESKER_ID_LENGTH
                id(i:i) = text(i)
            end do
        end if
        call hand_out(code, ierr)
    end subroutine

    ! Publishes what all parts of a job show.
    subroutine esker_job_publish(repository, job, name, ierr)
        type(esker_repository), intent(in) :: repository
        character(*), intent(in) :: job, name
        integer, intent(out), optional :: ierr
        call hand_out(c_job_publish(repository%handle, c_text(job), c_text(name), c_null_ptr), ierr)
    end subroutine

    ! --- Indexed directories --------------------------------------------------------------------

    ! Begins an indexed directory that all ranks of `comm` write. Collective; rank 0 gives the
    ! session in which it will stand at `path`.
    subroutine esker_imd_create(comm, repository, session, path, key_bytes, value_bytes, writer, &
        format, memory_bytes, ierr)
        type(esker_comm), intent(in) :: comm
        type(esker_repository), intent(in) :: repository
        type(esker_session), intent(in) :: session
        character(*), intent(in) :: path
        integer, intent(in) :: key_bytes, value_bytes
        type(esker_imd_writer), intent(out) :: writer
        integer(c_int), intent(in), optional :: format
        integer(c_int64_t), intent(in), optional :: memory_bytes
        integer, intent(out), optional :: ierr
        type(imd_options) :: options

        options = imd_options(0, 0, int(key_bytes, c_int32_t), int(value_bytes, c_int32_t), 0, 0)
        options%struct_size = c_sizeof(options)
        if (present(format)) options%format = format
        if (present(memory_bytes)) options%memory_bytes = memory_bytes
        call hand_out(c_imd_create(comm%handle, repository%handle, session%handle, c_text(path), &
            options, writer%handle), ierr)
    end subroutine

    ! Appends a record.
    subroutine esker_imd_append(writer, key, key_bytes, content, content_bytes, ierr)
        type(esker_imd_writer), intent(in) :: writer
        type(*), intent(in) :: key(*), content(*)
        integer(c_size_t), intent(in) :: key_bytes, content_bytes
        integer, intent(out), optional :: ierr
        call hand_out(c_imd_append(writer%handle, key, key_bytes, content, content_bytes), ierr)
    end subroutine

    ! Appends records of fixed sizes: keys one after the other, and values likewise.
    subroutine esker_imd_append_many(writer, keys, values, records, ierr)
        type(esker_imd_writer), intent(in) :: writer
        type(*), intent(in) :: keys(*), values(*)
        integer, intent(in) :: records
        integer, intent(out), optional :: ierr
        call hand_out(c_imd_append_many(writer%handle, keys, values, &
            int(records, c_size_t)), ierr)
    end subroutine

    ! Ends an epoch, with the step of the simulation if it is given. Collective.
    subroutine esker_imd_flush(writer, step, ierr)
        type(esker_imd_writer), intent(in) :: writer
        integer, intent(in), optional :: step
        integer, intent(out), optional :: ierr

        if (present(step)) then
            call hand_out(c_imd_epoch_flush_at(writer%handle, int(step, c_int64_t)), ierr)
        else
            call hand_out(c_imd_epoch_flush(writer%handle), ierr)
        end if
    end subroutine

    ! Finishes the directory, and closes the writer. Collective.
    subroutine esker_imd_finish(writer, ierr)
        type(esker_imd_writer), intent(inout) :: writer
        integer, intent(out), optional :: ierr
        integer(c_int) :: code

        code = c_imd_finish(writer%handle, c_null_ptr)
        writer%handle = c_null_ptr
        call hand_out(code, ierr)
    end subroutine

    subroutine esker_imd_open(at, path, reader, cache_bytes, ierr)
        type(esker_dir), intent(in) :: at
        character(*), intent(in) :: path
        type(esker_imd), intent(out) :: reader
        integer(c_int64_t), intent(in), optional :: cache_bytes
        integer, intent(out), optional :: ierr
        integer(c_int64_t) :: cache

        cache = 0
        if (present(cache_bytes)) cache = cache_bytes
        call hand_out(c_imd_open(at%handle, c_text(path), cache, reader%handle), ierr)
    end subroutine

    ! Finds all values of a key: one after the other in `content`, with the epoch of each.
    subroutine esker_imd_get(reader, key, key_bytes, content, epochs, ierr)
        type(esker_imd), intent(in) :: reader
        type(*), intent(in) :: key(*)
        integer(c_size_t), intent(in) :: key_bytes
        character(kind=c_char), allocatable, intent(out) :: content(:)
        integer, allocatable, intent(out) :: epochs(:)
        integer, intent(out), optional :: ierr
        type(c_ptr) :: answers, found
        type(imd_value), pointer :: values(:)
        character(kind=c_char), pointer :: bytes(:)
        integer(c_size_t) :: count, start
        integer(c_int) :: code
        integer :: i

        allocate(content(0), epochs(0))
        code = c_imd_get(reader%handle, key, key_bytes, answers)
        if (code >= 0) then
            code = c_imd_values(answers, 0_c_size_t, found, count)
            if (code >= 0 .and. count > 0) then
                call c_f_pointer(found, values, [count])
                deallocate(content, epochs)
                allocate(content(sum(values%bytes_count)), epochs(count))
                start = 0
                do i = 1, size(values)
                    epochs(i) = values(i)%epoch
                    if (values(i)%bytes_count == 0) cycle
                    call c_f_pointer(values(i)%bytes, bytes, [values(i)%bytes_count])
                    content(start + 1:start + size(bytes)) = bytes
                    start = start + size(bytes)
                end do
            end if
            if (c_imd_answers_close(answers) < 0) continue
        end if
        call hand_out(code, ierr)
    end subroutine

    ! The steps of the epochs.
    subroutine esker_imd_steps(reader, steps, ierr)
        type(esker_imd), intent(in) :: reader
        integer(c_int64_t), allocatable, intent(out) :: steps(:)
        integer, intent(out), optional :: ierr
        integer(c_int64_t) :: count

        allocate(steps(0))
        count = c_imd_steps(reader%handle, steps, 0_c_size_t)
        if (count > 0) then
            deallocate(steps)
            allocate(steps(count))
            count = c_imd_steps(reader%handle, steps, int(count, c_size_t))
        end if
        call hand_out(int(min(count, 0_c_int64_t), c_int), ierr)
    end subroutine

    ! --- Closing --------------------------------------------------------------------------------

    subroutine close_repository(repository, ierr)
        type(esker_repository), intent(inout) :: repository
        integer, intent(out), optional :: ierr
        call hand_out(c_repository_close(repository%handle), ierr)
        repository%handle = c_null_ptr
    end subroutine

    subroutine close_session(session, ierr)
        type(esker_session), intent(inout) :: session
        integer, intent(out), optional :: ierr
        call hand_out(c_session_close(session%handle), ierr)
        session%handle = c_null_ptr
    end subroutine

    subroutine close_dir(dir, ierr)
        type(esker_dir), intent(inout) :: dir
        integer, intent(out), optional :: ierr
        call hand_out(c_dir_close(dir%handle), ierr)
        dir%handle = c_null_ptr
    end subroutine

    subroutine close_comm(comm, ierr)
        type(esker_comm), intent(inout) :: comm
        integer, intent(out), optional :: ierr
        call hand_out(c_comm_close(comm%handle), ierr)
        comm%handle = c_null_ptr
    end subroutine

    subroutine close_imd(reader, ierr)
        type(esker_imd), intent(inout) :: reader
        integer, intent(out), optional :: ierr
        call hand_out(c_imd_close(reader%handle), ierr)
        reader%handle = c_null_ptr
    end subroutine

    ! --- Sizes of buffers -----------------------------------------------------------------------

    pure function bytes_r4_1(content) result(bytes)
        real(c_float), intent(in) :: content(:)
        integer(c_size_t) :: bytes
        bytes = 4 * size(content, kind=c_size_t)
    end function

    pure function bytes_r4_2(content) result(bytes)
        real(c_float), intent(in) :: content(:, :)
        integer(c_size_t) :: bytes
        bytes = 4 * size(content, kind=c_size_t)
    end function

    pure function bytes_r4_3(content) result(bytes)
        real(c_float), intent(in) :: content(:, :, :)
        integer(c_size_t) :: bytes
        bytes = 4 * size(content, kind=c_size_t)
    end function

    pure function bytes_r8_1(content) result(bytes)
        real(c_double), intent(in) :: content(:)
        integer(c_size_t) :: bytes
        bytes = 8 * size(content, kind=c_size_t)
    end function

    pure function bytes_r8_2(content) result(bytes)
        real(c_double), intent(in) :: content(:, :)
        integer(c_size_t) :: bytes
        bytes = 8 * size(content, kind=c_size_t)
    end function

    pure function bytes_r8_3(content) result(bytes)
        real(c_double), intent(in) :: content(:, :, :)
        integer(c_size_t) :: bytes
        bytes = 8 * size(content, kind=c_size_t)
    end function

    pure function bytes_i4_1(content) result(bytes)
        integer(c_int32_t), intent(in) :: content(:)
        integer(c_size_t) :: bytes
        bytes = 4 * size(content, kind=c_size_t)
    end function

    pure function bytes_i4_2(content) result(bytes)
        integer(c_int32_t), intent(in) :: content(:, :)
        integer(c_size_t) :: bytes
        bytes = 4 * size(content, kind=c_size_t)
    end function

    pure function bytes_i8_1(content) result(bytes)
        integer(c_int64_t), intent(in) :: content(:)
        integer(c_size_t) :: bytes
        bytes = 8 * size(content, kind=c_size_t)
    end function

    pure function bytes_i8_2(content) result(bytes)
        integer(c_int64_t), intent(in) :: content(:, :)
        integer(c_size_t) :: bytes
        bytes = 8 * size(content, kind=c_size_t)
    end function
end module esker
