// SPDX-License-Identifier: Apache-2.0
//! peer-rocksdb: the workloads of `esker bench` on RocksDB: create|stat|list|remove|compact of files here,
//! imd-write|imd-get of records in `imd`, segment-put|-get|-range of segments in `segment`.
//! Every operation runs in its own process on what `create` left in the store. The store holds
//! the database in `db/` and its shape in `shape`. peers/README.md describes flags and fields.

mod dump;
mod imd;
mod particles;
mod process;
mod report;
mod segment;
mod settings;
mod workload;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use process::{ReadCounter, die, drop_pages, parallel, require};
use report::{Reading, Report};
use rocksdb::{DB, ReadOptions, WaitForCompactOptions, WriteOptions};
use settings::Settings;
use workload::{Files, Permutation, Row, SEED_REMOVE, SEED_STAT, SEED_WARM, Shape, decode_value};

/// Serves RocksDB's own allocations too: the symbols of malloc are replaced.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LOG_BUFFER_BYTES_MAX: u64 = 64 << 10;
const LOG_DELAY_MAX: Duration = Duration::from_millis(100);
/// What RocksDB's log adds to key and value: a batch header of 12 bytes, a type byte, the two
/// lengths (1 and 2 bytes), and the log's own record header of 7.
const LOG_OVERHEAD_BYTES: u64 = 12 + 1 + 1 + 2 + 7;

struct Driver {
    settings: Settings,
    write: WriteOptions,
    report: Report,
    log_bytes: AtomicU64,
}

impl Driver {
    fn new(settings: Settings) -> Self {
        let mut write = WriteOptions::default();
        write.disable_wal(settings.durability == "none");
        write.set_sync(settings.durability == "always");
        let report = Report {
            operation: settings.operation.clone(),
            options: settings.options.clone(),
            durability: settings.durability.clone(),
            threads: settings.threads,
            ..Report::default()
        };
        Driver { settings, write, report, log_bytes: AtomicU64::new(0) }
    }

    fn run(mut self) {
        match self.settings.operation.as_str() {
            "create" => self.create(),
            "stat" => self.stat(),
            "list" => self.list(),
            "remove" => self.remove(),
            "compact" => self.compact(),
            other => die(format!(
                "no operation {other}: create, stat, list, remove, compact, imd-write, imd-get, \
                 segment-put, segment-get or segment-range"
            )),
        }
        self.report.print(self.settings.json);
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(&self.settings.store).join("db")
    }

    fn shape_path(&self) -> PathBuf {
        PathBuf::from(&self.settings.store).join("shape")
    }

    fn load_shape(&self) -> Shape {
        let text = std::fs::read_to_string(self.shape_path()).unwrap_or_default();
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [files, directories, ranks] = numbers[..] else {
            let store = &self.settings.store;
            die(format!(
                "no files in {store}: run `peer-rocksdb create --store {store} --files N` first"
            ));
        };
        Shape { files, directories, ranks }
    }

    fn open(&self, create: bool) -> DB {
        if self.settings.cold {
            drop_pages(&self.path());
        }
        let mut options = require(self.settings.engine());
        options.create_if_missing(create);
        options.set_error_if_exists(create);
        require(DB::open(&options, self.path()))
    }

    fn stop(&mut self, db: &DB, start: &Reading, operations: u64) {
        let now = Reading::now();
        self.report.operations = operations;
        self.report.seconds = now.seconds_since(start);
        self.report.cpu_seconds = now.cpu_seconds_since(start);
        self.count_tables(db);
    }

    /// The live tables, which the directory's files may outnumber for a while.
    fn count_tables(&mut self, db: &DB) {
        let tables = require(db.live_files());
        self.report.tables = tables.len() as u64;
        self.report.table_bytes = tables.iter().map(|table| table.size as u64).sum();
    }

    /// Ends a run of writes: the timed part once the memtable is in tables, the rest once
    /// compaction is idle.
    fn stop_writes(&mut self, db: &DB, start: &Reading, operations: u64) {
        require(db.flush());
        self.stop(db, start, operations);
        require(db.wait_for_compact(&WaitForCompactOptions::default()));
        let settled = Reading::now();
        self.report.settled_seconds = Some(settled.seconds_since(start));
        self.report.store_bytes_written = settled.bytes_written_since(start);
        self.report.records = operations;
        self.count_tables(db);
        if self.settings.durability != "none" {
            let log_bytes = self.log_bytes.load(Ordering::Relaxed) as f64;
            self.report.wal_bytes_per_record = log_bytes / operations as f64;
        }
    }

    fn create(&mut self) {
        let Settings { files: count, directories, threads, .. } = self.settings;
        if count == 0 {
            die("create needs --files");
        }
        let shape = Shape { files: count, directories, ranks: threads };
        require(std::fs::create_dir_all(&self.settings.store));
        let db = self.open(true);
        let files = Files::new(shape);
        let start = Reading::now();
        self.write_all(&db, count, |i, row| {
            files.existing(i, row);
            if require(db.get_pinned(row.key())).is_some() {
                die(format!("create: exists: {}", String::from_utf8_lossy(row.name())));
            }
            row.stamp();
            require(db.put_opt(row.key(), row.value(), &self.write));
            row.value().len() as u64
        });
        self.stop_writes(&db, &start, count);
        let Shape { files, directories, ranks } = shape;
        require(std::fs::write(self.shape_path(), format!("{files} {directories} {ranks}\n")));
    }

    fn remove(&mut self) {
        let shape = self.load_shape();
        let db = self.open(false);
        let (files, order) = (Files::new(shape), Permutation::new(shape.files, SEED_REMOVE));
        let start = Reading::now();
        self.write_all(&db, shape.files, |k, row| {
            files.existing(order.at(k), row);
            if require(db.get_pinned(row.key())).is_none() {
                die(format!("remove: not found: {}", String::from_utf8_lossy(row.name())));
            }
            require(db.delete_opt(row.key(), &self.write));
            0
        });
        self.stop_writes(&db, &start, shape.files);
        require(std::fs::remove_file(self.shape_path()));
    }

    /// Merges all tables into one sorted run.
    fn compact(&mut self) {
        let shape = self.load_shape();
        let db = self.open(false);
        let start = Reading::now();
        db.compact_range(None::<&[u8]>, None::<&[u8]>);
        self.stop_writes(&db, &start, shape.files);
    }

    /// Runs `write` for every operation, thread t taking t, t + threads, ..., and writes the log
    /// through as the durability level promises. `write` returns the bytes of the value logged.
    fn write_all(&self, db: &DB, count: u64, write: impl Fn(u64, &mut Row) -> u64 + Sync) {
        let threads = self.settings.threads;
        let buffered = self.settings.log_buffered();
        let (done, finished) = channel::<()>();
        std::thread::scope(|scope| {
            if buffered {
                scope.spawn(move || {
                    while finished.recv_timeout(LOG_DELAY_MAX) == Err(RecvTimeoutError::Timeout) {
                        require(db.flush_wal(false));
                    }
                });
            }
            let total = parallel(threads, |thread| {
                let mut row = Row::new();
                let (mut total, mut held) = (0, 0);
                for i in (thread..count).step_by(threads as usize) {
                    let bytes = row_log_bytes(write(i, &mut row));
                    total += bytes;
                    held += bytes;
                    if buffered && held * threads >= LOG_BUFFER_BYTES_MAX {
                        require(db.flush_wal(false));
                        held = 0;
                    }
                }
                total
            });
            self.log_bytes.store(total, Ordering::Relaxed);
            drop(done);
        });
    }

    fn stat(&mut self) {
        let shape = self.load_shape();
        let Settings { threads, absent, .. } = self.settings;
        let operations =
            if self.settings.operations == 0 { shape.files } else { self.settings.operations };
        let db = self.open(false);
        if !self.settings.cold {
            self.warm(&db, shape);
        }
        let (files, order) = (Files::new(shape), Permutation::new(shape.files, SEED_STAT));
        let read = self.settings.read_options();
        let start = Reading::now();
        let reads = parallel(threads, |thread| {
            let counter = ReadCounter::new();
            let mut row = Row::new();
            for k in (thread..operations).step_by(threads as usize) {
                let insertion = order.at(k % shape.files);
                if absent {
                    expect_absent(&db, &read, &files, insertion, &mut row);
                } else {
                    expect_present(&db, &read, &files, insertion, &mut row);
                }
            }
            counter.reads()
        });
        self.stop(&db, &start, operations);
        self.report.records = shape.files;
        self.report.table_reads = Some(reads);
    }

    /// Reads everything once in order, then a sample of the names at random.
    fn warm(&self, db: &DB, shape: Shape) {
        let mut read = self.settings.read_options();
        read.set_total_order_seek(true);
        let mut it = db.raw_iterator_opt(read);
        it.seek_to_first();
        while it.valid() {
            it.next();
        }
        let (files, order) = (Files::new(shape), Permutation::new(shape.files, SEED_WARM));
        let read = self.settings.read_options();
        let mut row = Row::new();
        for k in 0..self.settings.warm_sample.min(shape.files / 16) {
            expect_present(db, &read, &files, order.at(k), &mut row);
        }
    }

    fn list(&mut self) {
        let shape = self.load_shape();
        let threads = self.settings.threads;
        let db = self.open(false);
        if !self.settings.cold {
            self.warm(&db, shape);
        }
        let reads = AtomicU64::new(0);
        let start = Reading::now();
        let entries = parallel(threads, |thread| {
            let counter = ReadCounter::new();
            let mut read = self.settings.read_options();
            read.set_total_order_seek(true);
            let mut it = db.raw_iterator_opt(read);
            let directories = (thread..shape.directories).step_by(threads as usize);
            let entries = directories.map(|d| list_directory(&mut it, 1 + d)).sum();
            reads.fetch_add(counter.reads(), Ordering::Relaxed);
            entries
        });
        if entries != shape.files {
            die(format!("list: {entries} entries of {}", shape.files));
        }
        self.stop(&db, &start, entries);
        self.report.records = shape.files;
        self.report.table_reads = Some(reads.into_inner());
    }
}

fn row_log_bytes(value_bytes: u64) -> u64 {
    match value_bytes {
        0 => LOG_OVERHEAD_BYTES - 2 + workload::KEY_BYTES as u64,
        _ => LOG_OVERHEAD_BYTES + workload::KEY_BYTES as u64 + value_bytes,
    }
}

fn expect_present(db: &DB, read: &ReadOptions, files: &Files, insertion: u64, row: &mut Row) {
    files.existing(insertion, row);
    let value = require(db.get_pinned_opt(row.key(), read));
    let decoded = value.as_deref().and_then(decode_value);
    let right = decoded.is_some_and(|(attributes, name)| {
        name == row.name() && attributes.st_mode & libc::S_IFMT == libc::S_IFREG
    });
    if !right {
        die(format!("stat: wrong row for {}", String::from_utf8_lossy(row.name())));
    }
}

fn expect_absent(db: &DB, read: &ReadOptions, files: &Files, insertion: u64, row: &mut Row) {
    files.absent(insertion, row);
    if require(db.get_pinned_opt(row.key(), read)).is_some() {
        die(format!("stat: found what was never made: {}", String::from_utf8_lossy(row.name())));
    }
}

/// Hands every (name, stat) of a directory to a consumer that the compiler can't drop.
fn list_directory(it: &mut rocksdb::DBRawIterator, directory: u64) -> u64 {
    let prefix = directory.to_be_bytes();
    let mut count = 0;
    it.seek(prefix);
    while let Some((key, value)) = it.item() {
        if !key.starts_with(&prefix) {
            break;
        }
        let decoded = decode_value(value);
        std::hint::black_box(decoded.unwrap_or_else(|| die("list: a value is too short")));
        count += 1;
        it.next();
    }
    require(it.status());
    count
}

fn main() {
    let mut words = std::env::args().skip(1).peekable();
    if words.peek().is_some_and(|word| word == "workload") {
        workload::print();
        particles::print();
        return dump::print();
    }
    let settings = require(Settings::parse(words));
    if settings.is_imd() {
        imd::ImdDriver::run(settings)
    } else if settings.is_segment() {
        segment::SegmentDriver::run(settings)
    } else {
        Driver::new(settings).run()
    }
}
