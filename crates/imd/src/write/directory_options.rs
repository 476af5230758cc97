// SPDX-License-Identifier: Apache-2.0
//! Directory options: parameters of a new indexed directory, and the division of its memory.

use esker_base::{Error, Kind, Result};
use esker_comm::{Routing, Transport, router};

use crate::auxiliary::cuckoo;
use crate::partition::MEMORY_BYTES_MIN;
use crate::record_layout::{RecordLayout, ValueFormat};
use crate::schema::DirectorySchema;

/// Minimum size of a batch of records.
const BATCH_BYTES_MIN: u64 = 1 << 10;

/// Parameters of a new directory, equal on all ranks.
#[derive(Clone, Debug)]
pub struct DirectoryOptions {
    /// The directory's id, which no other directory has.
    pub directory: u128,
    /// The way in which readers reach values.
    pub format: ValueFormat,
    /// The layout of the records.
    pub layout: RecordLayout,
    /// Routing of records between ranks.
    pub routing: Routing,
    /// Memory that each rank may allocate in all: for records that wait, tables that are written,
    /// the index of the current epoch, and batches in flight. One record may take a twentieth of
    /// it. Some 200 kB of fixed overhead come on top, and the transport's own buffers, which its
    /// counters show.
    pub memory_bytes: u64,
    /// Bits of a fingerprint, for format lossy.
    pub fingerprint_bits: u32,
    /// Description of keys and values, for readers.
    pub schema: DirectorySchema,
}

impl DirectoryOptions {
    /// Options for records of `layout` in `format`: direct routing, 256 MiB a rank, no schema.
    #[must_use]
    pub fn new(directory: u128, format: ValueFormat, layout: RecordLayout) -> Self {
        let fingerprint_bits = cuckoo::FINGERPRINT_BITS;
        let (routing, memory_bytes) = (Routing::Direct, 256 << 20);
        let schema = DirectorySchema::default();
        Self { directory, format, layout, routing, memory_bytes, fingerprint_bits, schema }
    }
}

/// Bytes of each batch, and of all batches that a rank may have open at once.
pub(super) fn batch_share<T: Transport>(
    transport: &T,
    options: &DirectoryOptions,
) -> Result<(usize, u64)> {
    let nodes = transport.nodes();
    let hops = match options.routing {
        Routing::Direct => u64::from(nodes.size()) - 1,
        // Peers on its own node, as local representatives and as destinations, and remote peers.
        Routing::ThreeHop => {
            let local = nodes.members(nodes.node(transport.rank())).len() as u64;
            2 * (local - 1) + u64::from(nodes.nodes() - 1).div_ceil(local)
        }
    };
    if hops == 0 {
        return check_memory(options, 0).map(|()| (router::BATCH_BYTES, 0));
    }
    let share = options.memory_bytes / 4 / hops;
    let batch = share.clamp(BATCH_BYTES_MIN, router::BATCH_BYTES as u64);
    check_memory(options, batch * hops)?;
    Ok((batch as usize, batch * hops))
}

fn check_memory(options: &DirectoryOptions, batches: u64) -> Result<()> {
    let least = batches + 2 * MEMORY_BYTES_MIN;
    if options.memory_bytes >= least {
        return Ok(());
    }
    let what = format!(
        "{} bytes of memory a rank: {least} at least, {batches} of them for batches; 3-hop \
         routing needs fewer",
        options.memory_bytes
    );
    Err(Error::new(Kind::Invalid, what))
}
