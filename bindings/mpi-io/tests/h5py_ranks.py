# SPDX-License-Identifier: Apache-2.0
"""h5py with the driver `mpio`: ranks write rows of a dataset and read it whole.

usage: h5py_ranks.py FILE
"""

import sys

import numpy
from mpi4py import MPI

import h5py

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
wanted = numpy.arange(size * 10 * 50, dtype="f8").reshape(size * 10, 50)
with h5py.File(sys.argv[1], "w", driver="mpio", comm=world) as file:
    rows = file.create_dataset("rows", wanted.shape, dtype="f8")
    rows[rank::size] = wanted[rank::size]
    file.attrs["step"] = 42
with h5py.File(sys.argv[1], "r", driver="mpio", comm=world) as file:
    with file["rows"].collective:
        assert (file["rows"][:] == wanted).all()
    assert file.attrs["step"] == 42
if rank == 0:
    print("h5py ok")
