// SPDX-License-Identifier: Apache-2.0
//! Segments: RocksDB as the index of a shared file, as MDHIM would drive it.
//! `segment-put` writes the batches of a dump, `segment-get` finds every segment of it again by
//! MultiGet, `segment-range` reads the whole file as a list of extents. The database is in `db/`.
//! peers/README.md describes flags and fields.
//! Source: MetaKV §II-B and §IV.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, ReadOptions, WaitForCompactOptions, WriteBatch,
    WriteOptions,
};

use crate::dump::{self, Dump, KEY_BYTES, Segment, VALUE_BYTES};
use crate::process::{ReadCounter, die, drop_pages, parallel, require};
use crate::report::{Reading, Report};
use crate::settings::Settings;
use crate::{LOG_BUFFER_BYTES_MAX, LOG_DELAY_MAX};

const EXTENTS_MAX: usize = 64 << 10;
/// A put in a batch: its type, two lengths, key and value; and a little for the batch's header.
const ENTRY_BYTES: usize = 3 + KEY_BYTES + VALUE_BYTES + 12;

pub struct SegmentDriver {
    settings: Settings,
    write: WriteOptions,
    dump: Dump,
    report: Report,
}

impl SegmentDriver {
    pub fn run(settings: Settings) {
        let mut write = WriteOptions::default();
        write.disable_wal(settings.durability == "none");
        write.set_sync(settings.durability == "always");
        let dump = Dump::read(Path::new(&settings.dump));
        let report = Report {
            operation: settings.operation.clone(),
            options: settings.options.clone(),
            durability: settings.durability.clone(),
            threads: settings.threads,
            records: dump.segments.len() as u64,
            ..Report::default()
        };
        let mut driver = SegmentDriver { settings, write, dump, report };
        match driver.settings.operation.as_str() {
            "segment-put" => driver.put(),
            "segment-get" => driver.get(),
            "segment-range" => driver.range(),
            other => die(format!("no operation {other}: segment-put, segment-get, segment-range")),
        }
        driver.report.print(driver.settings.json);
    }

    fn path(&self) -> PathBuf {
        Path::new(&self.settings.store).join("db")
    }

    fn open(&self, create: bool) -> DB {
        if create {
            require(std::fs::create_dir_all(&self.settings.store));
        } else {
            drop_pages(&self.path());
        }
        let mut options = require(self.settings.engine());
        options.create_if_missing(create);
        options.set_error_if_exists(create);
        // MultiGet takes a column family by its handle.
        let family = ColumnFamilyDescriptor::new("default", options.clone());
        require(DB::open_cf_descriptors(&options, self.path(), [family]))
    }

    /// Ends the timed part; `name` is the field of its rate.
    fn stop(&mut self, db: &DB, start: &Reading, operations: u64, name: &'static str) {
        let now = Reading::now();
        let report = &mut self.report;
        report.operations = operations;
        report.seconds = now.seconds_since(start);
        report.cpu_seconds = now.cpu_seconds_since(start);
        report.store_bytes_written = now.bytes_written_since(start);
        report.more.push((name, operations as f64 / report.seconds));
        let tables = require(db.live_files());
        report.tables = tables.len() as u64;
        report.table_bytes = tables.iter().map(|table| table.size as u64).sum();
    }

    fn put(&mut self) {
        let db = self.open(true);
        let start = Reading::now();
        let (worst, log_bytes) = self.put_all(&db);
        let acknowledged = Reading::now();
        require(db.flush());
        require(db.wait_for_compact(&WaitForCompactOptions::default()));
        let records = self.report.records as f64;
        self.stop(&db, &start, self.report.records, "puts_per_second");
        if self.settings.durability != "none" {
            self.report.wal_bytes_per_record = log_bytes as f64 / records;
        }
        let per_segment = self.report.table_bytes as f64 / records;
        self.report.more.extend([
            ("acknowledged_per_second", records / acknowledged.seconds_since(&start)),
            ("worst_batch_ms", worst.as_secs_f64() * 1e3),
            ("store_bytes_per_segment", per_segment),
        ]);
    }

    /// Puts all batches; the log is written through as the durability level promises. Returns the
    /// slowest batch's time and the bytes logged.
    fn put_all(&self, db: &DB) -> (Duration, u64) {
        let batches = self.dump.batches(self.settings.batch);
        let buffered = self.settings.log_buffered();
        let worst = Mutex::new(Duration::ZERO);
        let (done, finished) = channel::<()>();
        let log_bytes = std::thread::scope(|scope| {
            if buffered {
                scope.spawn(move || {
                    while finished.recv_timeout(LOG_DELAY_MAX) == Err(RecvTimeoutError::Timeout) {
                        require(db.flush_wal(false));
                    }
                });
            }
            let log_bytes = parallel(self.settings.threads, |thread| {
                let (slowest, log_bytes) = self.put_batches(db, &batches, thread);
                let mut worst = worst.lock().expect("no thread panics");
                *worst = slowest.max(*worst);
                log_bytes
            });
            drop(done);
            log_bytes
        });
        (worst.into_inner().expect("no thread panics"), log_bytes)
    }

    /// The batches of one thread.
    fn put_batches(&self, db: &DB, batches: &[&[Segment]], thread: u64) -> (Duration, u64) {
        let threads = self.settings.threads;
        let buffered = self.settings.log_buffered();
        let (mut worst, mut total, mut held) = (Duration::ZERO, 0, 0);
        let mut begin = Instant::now();
        for batch in batches.iter().skip(thread as usize).step_by(threads as usize) {
            let mut write = WriteBatch::with_capacity_bytes(batch.len() * ENTRY_BYTES);
            for segment in *batch {
                write.put(segment.key(), segment.value());
            }
            let bytes = write.size_in_bytes() as u64;
            require(db.write_opt(write, &self.write));
            total += bytes;
            held += bytes;
            if buffered && held * threads >= LOG_BUFFER_BYTES_MAX {
                require(db.flush_wal(false));
                held = 0;
            }
            let end = Instant::now();
            worst = worst.max(end - begin);
            begin = end;
        }
        (worst, total)
    }

    fn get(&mut self) {
        let random = self.settings.order == "random";
        if random {
            self.dump.shuffle();
        }
        let mut batches = self.dump.batches(self.settings.batch);
        if self.settings.operations > 0 {
            let mut left = self.settings.operations;
            let wanted = batches.iter().position(|batch| {
                let done = left == 0;
                left = left.saturating_sub(batch.len() as u64);
                done
            });
            batches.truncate(wanted.unwrap_or(batches.len()));
        }
        let found = batches.iter().map(|batch| batch.len() as u64).sum();
        let db = self.open(false);
        let read = self.settings.read_options();
        let start = Reading::now();
        let reads = parallel(self.settings.threads, |thread| {
            let counter = ReadCounter::new();
            let family = db.cf_handle("default").expect("it is opened by name");
            let mine = batches.iter().skip(thread as usize);
            for batch in mine.step_by(self.settings.threads as usize) {
                self.get_batch(&db, family, &read, batch);
            }
            counter.reads()
        });
        drop(batches);
        let name = if random { "random_gets_per_second" } else { "gets_per_second" };
        self.stop(&db, &start, found, name);
        self.report.table_reads = Some(reads);
    }

    fn get_batch(&self, db: &DB, family: &ColumnFamily, read: &ReadOptions, batch: &[Segment]) {
        let mut wanted = batch.to_vec();
        let mut sorted = wanted.is_sorted_by_key(|segment| segment.offset);
        // Cheaper here, by integers, than in MultiGet, by its comparator.
        if !sorted && self.settings.sort_gets() {
            wanted.sort_unstable_by_key(|segment| segment.offset);
            sorted = true;
        }
        let keys: Vec<[u8; KEY_BYTES]> = wanted.iter().map(Segment::key).collect();
        let rows = db.batched_multi_get_cf_opt(family, &keys, sorted, read);
        for ((segment, key), row) in wanted.iter().zip(&keys).zip(rows) {
            let row = require(row);
            let found = row.as_deref().and_then(|value| Segment::decode(key, value));
            if found.as_ref() != Some(segment) {
                die(format!("segment-get: a wrong value at offset {}", segment.offset));
            }
        }
    }

    /// The whole file as extents, handed on in pieces to a consumer that the compiler can't drop.
    fn range(&mut self) {
        let mut expected = Sum::default();
        expected.add(&self.dump.segments);
        let db = self.open(false);
        let mut read = self.settings.read_options();
        self.settings.scan_options(&mut read);
        let mut extents = Vec::with_capacity(EXTENTS_MAX);
        let mut sum = Sum::default();
        let counter = ReadCounter::new();
        let start = Reading::now();
        let mut it = db.raw_iterator_opt(read);
        it.seek(dump::key(dump::FILE, 0));
        while let Some((key, value)) = it.item() {
            if !key.starts_with(&dump::FILE.to_be_bytes()) {
                break;
            }
            let extent = Segment::decode(key, value);
            extents.push(extent.unwrap_or_else(|| die("segment-range: a row is no segment's")));
            if extents.len() == EXTENTS_MAX {
                sum.add(std::hint::black_box(&extents));
                extents.clear();
            }
            it.next();
        }
        require(it.status());
        sum.add(std::hint::black_box(&extents));
        drop(it);
        self.stop(&db, &start, sum.segments, "range_entries_per_second");
        self.report.table_reads = Some(counter.reads());
        if sum != expected {
            die(format!("segment-range: {} segments are not those of the dump", sum.segments));
        }
    }
}

/// Sums of all fields, by which two sets of segments are compared.
#[derive(Default, PartialEq, Eq)]
struct Sum {
    segments: u64,
    offsets: u64,
    lengths: u64,
    log_offsets: u64,
    clients: u64,
}

impl Sum {
    fn add(&mut self, segments: &[Segment]) {
        self.segments += segments.len() as u64;
        for segment in segments {
            self.offsets = self.offsets.wrapping_add(segment.offset);
            self.lengths = self.lengths.wrapping_add(segment.length);
            self.log_offsets = self.log_offsets.wrapping_add(segment.log_offset);
            self.clients += u64::from(segment.client);
        }
    }
}
