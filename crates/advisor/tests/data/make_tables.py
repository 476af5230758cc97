# SPDX-License-Identifier: Apache-2.0
"""Makes rows.parquet and recorder-3.parquet: tables as pyarrow writes them.

usage: python3 make_tables.py      (in this directory, with pyarrow 26)
"""

import pyarrow
import pyarrow.parquet

rows = {
    "workload": ["hpio", "tile"],
    "case": ["hpio-32", "tile-4"],
    "system": ["orangefs", "hyperdex"],
    "kind": [1, 2],
    "repetition": [0, 1],
    "servers": [4, 4],
    "metadata_servers": [4, 4],
    "clients": [8, 8],
    "access_pattern": [1, 2],
    "gap_bytes": [0, 4096],
    "request_bytes": [262144, 65536],
    "processes": [32, 4],
    "input_bytes": [67108864, 1048576],
    "device": [2, 1],
    "unaligned_bytes": [0, 512],
    "metadata_operations": [768, 48],
    "time_us": [16520531.0, 1234.5],
    "emulated": [None, "device+time"],
    "comment": ["of Table 1", None],
}
pyarrow.parquet.write_table(pyarrow.table(rows), "rows.parquet")

calls = [
    (0.25, 0.5, "open", ["/s/a b", "66", "438"]),
    (1.0, 1.5, "write", ["/s/a b", "0x7f", "100"]),
    (2.0, 2.5, "pwrite64", ["/s/a b", "0x7f", "10", "4096"]),
    (3.0, 3.5, "MPI_Barrier", ["MPI_COMM_WORLD"]),
    (4.0, 4.5, "close", ["/s/a b"]),
]
table = {
    "rank": pyarrow.array([0] * len(calls), pyarrow.int32()),
    "thread_id": pyarrow.array([7] * len(calls), pyarrow.int32()),
    "tstart": pyarrow.array([call[0] for call in calls], pyarrow.float32()),
    "tend": pyarrow.array([call[1] for call in calls], pyarrow.float32()),
    "func_id": [call[2] for call in calls],
    "arg_count": pyarrow.array([len(call[3]) for call in calls], pyarrow.int32()),
}
for number in range(10):
    table[f"args_{number + 1}"] = pyarrow.array(
        [call[3][number] if number < len(call[3]) else None for call in calls], pyarrow.string()
    )
pyarrow.parquet.write_table(pyarrow.table(table), "recorder-3.parquet", row_group_size=3)
