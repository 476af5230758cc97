// SPDX-License-Identifier: Apache-2.0
//! One file that all ranks of a job write: a matrix; each rank computes some of its columns.
//!
//! Each rank appends its bytes to a log of its own, so that ranks never wait for each other's
//! locks, for any pattern of writes. The published file is like any other.

use esker::{Job, JobId, Repository, Transport, threads};

const RANKS: u32 = 4;
const ROWS: u64 = 64;
const COLUMNS: u64 = 64;
const ELEMENT_BYTES: u64 = 8;

fn element(row: u64, column: u64) -> f64 {
    row as f64 / (column + 1) as f64
}

/// One rank: here a thread. For processes, `tcp::run` or MPI gives the transport.
fn rank(job: &Job, transport: impl Transport) -> esker::Result<u64> {
    let job = job.share_files().begin(transport)?;
    let (rank, columns) = (u64::from(job.rank().0), COLUMNS / u64::from(RANKS));
    let mut matrix = job.create("/matrix")?;
    // Many small writes, far apart: the worst case for a parallel file system.
    for row in 0..ROWS {
        for column in rank * columns..(rank + 1) * columns {
            let offset = (row * COLUMNS + column) * ELEMENT_BYTES;
            matrix.write_at(&element(row, column).to_le_bytes(), offset)?;
        }
    }
    // From here on all ranks can read them, and they survive power loss.
    matrix.sync()?;
    job.barrier()?;
    // A row has columns of every rank.
    let row = matrix.read_at(rank * COLUMNS * ELEMENT_BYTES, (COLUMNS * ELEMENT_BYTES) as usize)?;
    for (column, bytes) in (0..).zip(row.as_chunks().0) {
        assert_eq!(f64::from_le_bytes(*bytes), element(rank, column));
    }
    let size = matrix.close()?.size;
    job.publish("matrix")?;
    Ok(size)
}

pub(crate) fn main() -> esker::Result<()> {
    let repository = Repository::create("memory:shared_file")?;
    let job = repository.job(JobId::random());
    // Two ranks share a node; one of them keeps the index of the node.
    let sizes = threads::run(RANKS, 2, |transport| rank(&job, transport))?;
    println!("all ranks agree on the size: {sizes:?}");

    let matrix = repository.snapshot("matrix")?.open("/matrix")?;
    let last = matrix.read_bytes_at((ROWS * COLUMNS - 1) * ELEMENT_BYTES, 8)?;
    let last = f64::from_le_bytes(last.as_ref().try_into().expect("eight bytes"));
    println!("{} bytes; the last element is {last}", matrix.len()?);
    assert_eq!(last, element(ROWS - 1, COLUMNS - 1));
    Ok(())
}
