# SPDX-License-Identifier: Apache-2.0
# The C library of Esker, for find_package(Esker [COMPONENTS MPI Fortran]).
#
# Targets: Esker::esker (shared), Esker::static, Esker::mpi (esker_mpi.h, with the project's MPI),
# and Esker::fortran (the module `esker`, compiled by the project's own compiler).
get_filename_component(_esker_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET Esker::esker)
    add_library(Esker::esker SHARED IMPORTED)
    set_target_properties(Esker::esker PROPERTIES
        IMPORTED_LOCATION "${_esker_prefix}/lib/libesker.so"
        INTERFACE_INCLUDE_DIRECTORIES "${_esker_prefix}/include")
    add_library(Esker::static STATIC IMPORTED)
    set_target_properties(Esker::static PROPERTIES
        IMPORTED_LOCATION "${_esker_prefix}/lib/libesker.a"
        INTERFACE_INCLUDE_DIRECTORIES "${_esker_prefix}/include"
        INTERFACE_LINK_LIBRARIES "@STATIC_LIBS@")
endif()

set(Esker_FOUND TRUE)
foreach(_esker_component IN LISTS Esker_FIND_COMPONENTS)
    if(_esker_component STREQUAL "MPI")
        find_package(MPI COMPONENTS C)
        set(Esker_MPI_FOUND ${MPI_C_FOUND})
        if(MPI_C_FOUND AND NOT TARGET Esker::mpi)
            add_library(Esker::mpi INTERFACE IMPORTED)
            set_target_properties(Esker::mpi PROPERTIES
                INTERFACE_LINK_LIBRARIES "Esker::esker;MPI::MPI_C")
        endif()
    elseif(_esker_component STREQUAL "Fortran")
        enable_language(Fortran)
        set(Esker_Fortran_FOUND TRUE)
        if(NOT TARGET esker_fortran)
            add_library(esker_fortran STATIC "${_esker_prefix}/share/esker/esker.f90")
            set_target_properties(esker_fortran PROPERTIES
                Fortran_MODULE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/esker_fortran")
            target_include_directories(esker_fortran PUBLIC
                "${CMAKE_CURRENT_BINARY_DIR}/esker_fortran")
            target_link_libraries(esker_fortran PUBLIC Esker::esker)
            add_library(Esker::fortran ALIAS esker_fortran)
        endif()
    else()
        set(Esker_${_esker_component}_FOUND FALSE)
    endif()
    if(Esker_FIND_REQUIRED_${_esker_component} AND NOT Esker_${_esker_component}_FOUND)
        set(Esker_FOUND FALSE)
        set(Esker_NOT_FOUND_MESSAGE "Esker has no component ${_esker_component} here")
    endif()
endforeach()
unset(_esker_prefix)
unset(_esker_component)
