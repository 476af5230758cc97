// SPDX-License-Identifier: Apache-2.0
//! Region reader: the bytes of a region of a Darshan log, decompressed as they are read.
//!
//! Each process has compressed its own part, so a region is any number of streams. Records are read
//! one after the other and never lie in memory together; a region may decompress to at most
//! [`REGION_BYTES_MAX`].

use std::io::Read;

use esker_base::{Error, Result};
use flate2::bufread::ZlibDecoder;

use super::header::{DarshanCompression, LogRegion};

/// Most bytes of a region: 24 million files.
const REGION_BYTES_MAX: u64 = 16 << 30;

/// Reads one region.
pub struct RegionReader<'a> {
    object: &'a str,
    name: &'static str,
    region: LogRegion,
    /// The rest of a region that is stored as it is, or between two streams.
    rest: &'a [u8],
    stream: Option<ZlibDecoder<&'a [u8]>>,
    is_compressed: bool,
    /// Bytes so far.
    position: u64,
}

impl<'a> RegionReader<'a> {
    /// Reads `region` of `log`, which lies inside; errors call it `name`.
    pub fn new(
        log: &'a [u8],
        object: &'a str,
        name: &'static str,
        region: LogRegion,
        compression: DarshanCompression,
    ) -> Self {
        let from = usize::try_from(region.at).expect("checked with the header");
        let bytes = usize::try_from(region.bytes).expect("checked with the header");
        let rest = &log[from..from + bytes];
        let is_compressed = compression == DarshanCompression::Zlib;
        Self { object, name, region, rest, stream: None, is_compressed, position: 0 }
    }

    /// The error for bytes that were just read.
    pub fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        let what = format!("{} data, byte {} once decompressed: {what}", self.name, self.position);
        Error::corrupt(self.object, self.region.at, what)
    }

    /// Fills `record`; false at the end of the region.
    ///
    /// # Errors
    /// `Corrupt` if the region ends within the record or does not decompress.
    pub fn read(&mut self, record: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < record.len() {
            let count = self.read_some(&mut record[filled..])?;
            if count == 0 {
                return match filled {
                    0 => Ok(false),
                    _ => {
                        Err(self
                            .corrupt(format!("expected {} bytes and found {filled}", record.len())))
                    }
                };
            }
            filled += count;
            self.position += count as u64;
            if self.position > REGION_BYTES_MAX {
                return Err(self.corrupt("more than a log can have"));
            }
        }
        Ok(true)
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if !self.is_compressed {
            let count = buffer.len().min(self.rest.len());
            let (found, rest) = self.rest.split_at(count);
            buffer[..count].copy_from_slice(found);
            self.rest = rest;
            return Ok(count);
        }
        loop {
            if self.stream.is_none() {
                if self.rest.is_empty() {
                    return Ok(0);
                }
                self.stream = Some(ZlibDecoder::new(std::mem::take(&mut self.rest)));
            }
            let stream = self.stream.as_mut().expect("made above");
            let before = stream.total_in();
            match stream.read(buffer) {
                Ok(0) => {
                    let used = stream.total_in();
                    let stream = self.stream.take().expect("made above");
                    self.rest = stream.into_inner();
                    if used == 0 && before == 0 {
                        return Err(self.corrupt("an empty stream of zlib"));
                    }
                }
                Ok(count) => return Ok(count),
                Err(error) => return Err(self.corrupt("no stream of zlib").with_source(error)),
            }
        }
    }
}
