# SPDX-License-Identifier: Apache-2.0
"""Writes golden.json: what pydarshan reads from the logs in this directory.

    pip install darshan==3.5.0 && python golden.py

With --convert it first writes ior_hdf5 again in the newest version of the format (3.41), through
the library that pydarshan contains.
"""
import ctypes, json, pathlib, sys
from darshan.backend import cffi_backend as backend

HERE = pathlib.Path(__file__).parent
RECORDS = 8
COUNTERS = {"POSIX": "struct darshan_posix_file **", "STDIO": "struct darshan_stdio_file **",
            "MPI-IO": "struct darshan_mpiio_file **"}
ZLIB = 0


def convert(source, target, compression):
    ffi, library = backend.ffi, backend.libdutil
    out = ctypes.CDLL(ffi_path())
    for name in ["darshan_log_create"]:
        getattr(out, name).restype = ctypes.c_void_p
    log = backend.log_open(str(source))
    target.unlink(missing_ok=True)
    handle = ctypes.c_void_p(out.darshan_log_create(str(target).encode(), compression, 0))
    pointer = lambda value: ctypes.c_void_p(int(ffi.cast("uintptr_t", value)))
    job = ffi.new("struct darshan_job *")
    library.darshan_log_get_job(log["handle"], job)
    assert out.darshan_log_put_job(handle, pointer(job)) == 0
    assert out.darshan_log_put_exe(handle, backend.log_get_exe(log).encode()) == 0
    mounts, count = ffi.new("struct darshan_mnt_info **"), ffi.new("int *")
    library.darshan_log_get_mounts(log["handle"], mounts, count)
    assert out.darshan_log_put_mounts(handle, pointer(mounts[0]), count[0]) == 0
    names = ctypes.c_void_p(0)
    out.darshan_log_get_namehash(pointer(log["handle"]), ctypes.byref(names))
    assert out.darshan_log_put_namehash(handle, names) == 0
    for module, kind in [("POSIX", "struct darshan_posix_file"),
                         ("MPI-IO", "struct darshan_mpiio_file"),
                         ("STDIO", "struct darshan_stdio_file"),
                         ("DXT_POSIX", None), ("DXT_MPIIO", None)]:
        info = backend.log_get_modules(log)[module]
        while True:
            buffer = ffi.new("void **")
            if library.darshan_log_get_record(log["handle"], info["idx"], buffer) < 1:
                break
            if kind:
                size = ffi.sizeof(kind)
            else:
                record = ffi.cast("struct dxt_file_record *", buffer[0])
                size = ffi.sizeof("struct dxt_file_record")
                size += 32 * (record.write_count + record.read_count)
            assert out.darshan_log_put_mod(handle, info["idx"], pointer(buffer[0]), size, info["ver"]) == 0
    out.darshan_log_close(handle)
    target.chmod(0o644)
    backend.log_close(log)


def ffi_path():
    libraries = pathlib.Path(backend.__file__).parents[2] / "darshan.libs"
    return str(next(libraries.glob("libdarshan-util*")))


def counters(log, module):
    ffi, library = backend.ffi, backend.libdutil
    info = backend.log_get_modules(log).get(module)
    records = []
    while info:
        buffer = ffi.new("void **")
        if library.darshan_log_get_record(log["handle"], info["idx"], buffer) < 1:
            break
        record = ffi.cast(COUNTERS[module], buffer)[0]
        records.append([record.base_rec.id, record.base_rec.rank, list(record.counters),
                        list(record.fcounters)])
        library.darshan_free(buffer[0])
    # As 64 bits, with wrapping: identities are among the counters.
    total = lambda columns: [sum(column) % 2**64 for column in zip(*columns)]
    return {"count": len(records), "first": records[:RECORDS],
            "sums": total([record[2] for record in records]),
            "seconds": [sum(column) for column in zip(*[record[3] for record in records])]}


def accesses(log, module):
    ffi, library = backend.ffi, backend.libdutil
    info = backend.log_get_modules(log).get(module)
    found = []
    while info:
        buffer = ffi.new("void **")
        if library.darshan_log_get_record(log["handle"], info["idx"], buffer) < 1:
            break
        record = ffi.cast("struct dxt_file_record **", buffer)[0]
        first = ffi.cast("struct segment_info *", buffer[0] + ffi.sizeof("struct dxt_file_record"))
        for index in range(record.write_count + record.read_count):
            kind = "write" if index < record.write_count else "read"
            segment = first[index]
            found.append([record.base_rec.id, record.base_rec.rank, kind, segment.offset,
                          segment.length, segment.start_time, segment.end_time])
        library.darshan_free(buffer[0])
    return {"count": len(found), "first": found[:RECORDS],
            "bytes": sum(access[4] for access in found),
            "offsets": sum(access[3] for access in found),
            "seconds": sum(access[6] - access[5] for access in found)}


def golden(path):
    log = backend.log_open(str(path))
    job = backend.log_get_job(log)
    names = backend.log_get_name_records(log)
    result = {"version": job["log_ver"], "processes": job["nprocs"], "begin": job["start_time_sec"],
              "program": backend.log_get_exe(log), "names": len(names),
              "some_names": {str(key): names[key] for key in sorted(names)[:RECORDS]}}
    result["counters"] = {module: counters(log, module) for module in COUNTERS}
    result["accesses"] = {module: accesses(log, module) for module in ["DXT_POSIX", "DXT_MPIIO"]}
    backend.log_close(log)
    return result


if "--convert" in sys.argv:
    convert(HERE / "ior_hdf5.darshan", HERE / "newest.darshan", ZLIB)
found = {path.stem: golden(path) for path in sorted(HERE.glob("*.darshan"))}
(HERE / "golden.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
