/* SPDX-License-Identifier: Apache-2.0 */
/* The same calls under their Fortran names, since not all Fortran functions of MPI libraries call
 * the C functions, which a library in front could replace. There are those of `use mpi` and
 * `mpif.h`, with a trailing underscore; those of `use mpi_f08`, where callers may leave out
 * `error`; and the functions that Open MPI's version of the latter calls. Handles are integers in
 * all of them. */
#include <stdlib.h>
#include <string.h>

#include "esker_mpiio.h"

/* A Fortran text without the blanks around it; the caller frees it. */
static char *c_text(const char *text, size_t length)
{
    while (length > 0 && text[length - 1] == ' ')
        length--;
    while (length > 0 && *text == ' ') {
        text++;
        length--;
    }
    return strndup(text, length);
}

#define FORTRAN(name, parameters, arguments)                                                       \
    void mpi_##name##_ parameters;                                                                 \
    void mpi_##name##_f08_ parameters;                                                             \
    void ompi_##name##_f parameters;                                                               \
    void mpi_##name##_f08_ parameters                                                              \
    {                                                                                              \
        mpi_##name##_ arguments;                                                                   \
    }                                                                                              \
    void ompi_##name##_f parameters                                                                \
    {                                                                                              \
        mpi_##name##_ arguments;                                                                   \
    }                                                                                              \
    void mpi_##name##_ parameters

static int put_error(MPI_Fint *error, int code)
{
    if (error != NULL)
        *error = code;
    return code;
}

FORTRAN(init, (MPI_Fint * error), (error))
{
    put_error(error, MPI_Init(NULL, NULL));
}

FORTRAN(init_thread, (MPI_Fint * required, MPI_Fint *provided, MPI_Fint *error),
        (required, provided, error))
{
    int level = 0;

    put_error(error, MPI_Init_thread(NULL, NULL, *required, &level));
    *provided = level;
}

FORTRAN(barrier, (MPI_Fint * comm, MPI_Fint *error), (comm, error))
{
    put_error(error, MPI_Barrier(MPI_Comm_f2c(*comm)));
}

FORTRAN(file_open,
        (MPI_Fint * comm, const char *name, MPI_Fint *amode, MPI_Fint *info, MPI_Fint *file,
         MPI_Fint *error, int name_length),
        (comm, name, amode, info, file, error, name_length))
{
    char *text = c_text(name, (size_t)name_length);
    MPI_File opened = MPI_FILE_NULL;

    int code = MPI_ERR_NO_MEM;

    if (text != NULL)
        code = MPI_File_open(MPI_Comm_f2c(*comm), text, *amode, MPI_Info_f2c(*info), &opened);
    free(text);
    if (put_error(error, code) == MPI_SUCCESS)
        *file = MPI_File_c2f(opened);
}

FORTRAN(file_close, (MPI_Fint * file, MPI_Fint *error), (file, error))
{
    MPI_File closed = MPI_File_f2c(*file);

    if (put_error(error, MPI_File_close(&closed)) == MPI_SUCCESS)
        *file = MPI_File_c2f(closed);
}

FORTRAN(file_delete, (const char *name, MPI_Fint *info, MPI_Fint *error, int name_length),
        (name, info, error, name_length))
{
    char *text = c_text(name, (size_t)name_length);

    put_error(error, text == NULL ? MPI_ERR_NO_MEM : MPI_File_delete(text, MPI_Info_f2c(*info)));
    free(text);
}

FORTRAN(file_sync, (MPI_Fint * file, MPI_Fint *error), (file, error))
{
    put_error(error, MPI_File_sync(MPI_File_f2c(*file)));
}

FORTRAN(file_set_size, (MPI_Fint * file, MPI_Offset *size, MPI_Fint *error), (file, size, error))
{
    put_error(error, MPI_File_set_size(MPI_File_f2c(*file), *size));
}

FORTRAN(file_preallocate, (MPI_Fint * file, MPI_Offset *size, MPI_Fint *error), (file, size, error))
{
    put_error(error, MPI_File_preallocate(MPI_File_f2c(*file), *size));
}

FORTRAN(file_set_view,
        (MPI_Fint * file, MPI_Offset *displacement, MPI_Fint *element, MPI_Fint *view,
         const char *representation, MPI_Fint *info, MPI_Fint *error, int representation_length),
        (file, displacement, element, view, representation, info, error, representation_length))
{
    char *text = c_text(representation, (size_t)representation_length);

    int code = MPI_ERR_NO_MEM;

    if (text != NULL)
        code = MPI_File_set_view(MPI_File_f2c(*file), *displacement, MPI_Type_f2c(*element),
                                 MPI_Type_f2c(*view), text, MPI_Info_f2c(*info));
    free(text);
    put_error(error, code);
}

FORTRAN(file_set_info, (MPI_Fint * file, MPI_Fint *info, MPI_Fint *error), (file, info, error))
{
    put_error(error, MPI_File_set_info(MPI_File_f2c(*file), MPI_Info_f2c(*info)));
}

FORTRAN(file_get_amode, (MPI_Fint * file, MPI_Fint *amode, MPI_Fint *error), (file, amode, error))
{
    int found = 0;

    put_error(error, MPI_File_get_amode(MPI_File_f2c(*file), &found));
    *amode = found;
}

FORTRAN(file_set_atomicity, (MPI_Fint * file, MPI_Fint *flag, MPI_Fint *error), (file, flag, error))
{
    put_error(error, MPI_File_set_atomicity(MPI_File_f2c(*file), *flag != 0));
}
