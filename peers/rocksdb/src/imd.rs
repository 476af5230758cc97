// SPDX-License-Identifier: Apache-2.0
//! Imd: the work of an indexed directory with one RocksDB for each rank's partition.
//! `imd-write` makes them, `imd-get` reads from them. The store holds partition P in `db-P/` and
//! the records' shape in `particles`. peers/README.md describes flags and fields.
//!
//! Ranks are threads. A rank collects 32 KiB for each partition and then writes that into the
//! partition's database, as the thesis' benchmark sends messages of 32 KiB to the owner.
//! Source: DeltaFS thesis §5.3.1.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rocksdb::{DB, ReadOptions, WaitForCompactOptions, WriteBatch, WriteOptions};

use crate::particles::{Particle, Particles, SEED_GET, SEED_WARM_GETS};
use crate::process::{ReadCounter, die, drop_pages, parallel, require};
use crate::report::{Reading, Report};
use crate::settings::Settings;
use crate::workload::Permutation;

const MESSAGE_BYTES: usize = 32 << 10;

pub struct ImdDriver {
    settings: Settings,
    write: WriteOptions,
    particles: Particles,
    partitions: Vec<DB>,
    report: Report,
}

impl ImdDriver {
    pub fn run(settings: Settings) {
        let Settings { keys, ranks, epochs, value_bytes, .. } = settings;
        let mut write = WriteOptions::default();
        write.disable_wal(settings.durability == "none");
        write.set_sync(settings.durability == "always");
        let report = Report {
            operation: settings.operation.clone(),
            options: settings.options.clone(),
            durability: settings.durability.clone(),
            ..Report::default()
        };
        let particles = Particles { keys, ranks, epochs, value_bytes };
        let mut driver = ImdDriver { settings, write, particles, partitions: Vec::new(), report };
        if driver.settings.operation == "imd-write" {
            driver.write()
        } else {
            driver.get()
        }
        driver.count_tables();
        driver.report.print(driver.settings.json);
    }

    fn open(&mut self, create: bool) {
        for number in 0..self.particles.ranks {
            let path = Path::new(&self.settings.store).join(format!("db-{number}"));
            if self.settings.cold {
                drop_pages(&path);
            }
            let mut options = require(self.settings.engine());
            options.create_if_missing(create);
            options.set_error_if_exists(create);
            self.partitions.push(require(DB::open(&options, path)));
        }
    }

    fn shape_path(&self) -> PathBuf {
        Path::new(&self.settings.store).join("particles")
    }

    fn write(&mut self) {
        let Particles { keys, ranks, epochs, value_bytes } = self.particles;
        if keys == 0 {
            die("imd-write needs --keys");
        }
        require(std::fs::create_dir_all(&self.settings.store));
        self.open(true);
        let log_bytes = AtomicU64::new(0);
        let start = Reading::now();
        for epoch in 0..epochs {
            parallel(ranks, |rank| {
                log_bytes.fetch_add(self.write_rank(rank, epoch), Ordering::Relaxed);
                0
            });
            parallel(ranks, |rank| {
                require(self.partitions[rank as usize].flush());
                0
            });
        }
        let done = Reading::now();
        for partition in &self.partitions {
            require(partition.wait_for_compact(&WaitForCompactOptions::default()));
        }
        let settled = Reading::now();
        let report = &mut self.report;
        report.threads = ranks;
        report.operations = keys * epochs;
        report.records = keys * epochs;
        report.seconds = done.seconds_since(&start);
        report.settled_seconds = Some(settled.seconds_since(&start));
        report.cpu_seconds = settled.cpu_seconds_since(&start);
        report.store_bytes_written = settled.bytes_written_since(&start);
        if self.settings.durability != "none" {
            report.wal_bytes_per_record = log_bytes.into_inner() as f64 / report.records as f64;
        }
        let shape = format!("{keys} {ranks} {epochs} {value_bytes}\n");
        require(std::fs::write(self.shape_path(), shape));
    }

    /// Writes one rank's records of an epoch; returns the bytes of its messages.
    fn write_rank(&self, rank: u64, epoch: u64) -> u64 {
        let mut messages: Vec<WriteBatch> = Vec::new();
        messages.resize_with(self.partitions.len(), WriteBatch::default);
        let mut particle = Particle::new(self.particles);
        let mut bytes = 0;
        let mut send = |message: &mut WriteBatch, to: usize| {
            bytes += message.size_in_bytes() as u64;
            require(self.partitions[to].write_opt(std::mem::take(message), &self.write));
        };
        for number in self.particles.of_rank(rank, epoch) {
            particle.set(number, epoch);
            let to = particle.partition();
            messages[to].put(particle.row_key(), particle.value());
            if messages[to].size_in_bytes() >= MESSAGE_BYTES {
                send(&mut messages[to], to);
            }
        }
        messages.iter_mut().enumerate().for_each(|(to, message)| send(message, to));
        bytes
    }

    fn get(&mut self) {
        let text = std::fs::read_to_string(self.shape_path()).unwrap_or_default();
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [keys, ranks, epochs, value_bytes] = numbers[..] else {
            let store = &self.settings.store;
            die(format!(
                "no records in {store}: run `peer-rocksdb imd-write --store {store} --keys N` first"
            ));
        };
        self.particles = Particles { keys, ranks, epochs, value_bytes };
        let Settings { threads, operations, cold, .. } = self.settings;
        let operations = if operations == 0 { keys } else { operations };
        self.open(false);
        let read = self.settings.read_options();
        if !cold {
            self.warm(&read);
        }
        let order = Permutation::new(keys, SEED_GET);
        let start = Reading::now();
        let reads = parallel(threads, |thread| {
            let counter = ReadCounter::new();
            let mut particle = Particle::new(self.particles);
            for k in (thread..operations).step_by(threads as usize) {
                self.expect(&read, order.at(k % keys), k % epochs, &mut particle);
            }
            counter.reads()
        });
        let done = Reading::now();
        let report = &mut self.report;
        report.threads = threads;
        report.operations = operations;
        report.records = keys * epochs;
        report.seconds = done.seconds_since(&start);
        report.cpu_seconds = done.cpu_seconds_since(&start);
        report.table_reads = Some(reads);
    }

    /// Reads everything once in order, then a sample of the keys at random.
    fn warm(&self, read: &ReadOptions) {
        for partition in &self.partitions {
            let mut it = partition.raw_iterator_opt(self.settings.read_options());
            it.seek_to_first();
            while it.valid() {
                it.next();
            }
        }
        let order = Permutation::new(self.particles.keys, SEED_WARM_GETS);
        let mut particle = Particle::new(self.particles);
        for k in 0..self.particles.keys / 16 {
            self.expect(read, order.at(k), k % self.particles.epochs, &mut particle);
        }
    }

    fn expect(&self, read: &ReadOptions, number: u64, epoch: u64, particle: &mut Particle) {
        particle.set(number, epoch);
        let partition = &self.partitions[particle.partition()];
        let value = require(partition.get_pinned_opt(particle.row_key(), read));
        if value.as_deref() != Some(particle.value()) {
            die(format!("imd-get: no value, or a wrong one, of key {number}"));
        }
    }

    /// The live tables, and the parts of them that are not records.
    fn count_tables(&mut self) {
        let mut index_bytes = 0;
        for partition in &self.partitions {
            let tables = require(partition.live_files());
            self.report.tables += tables.len() as u64;
            self.report.table_bytes += tables.iter().map(|table| table.size as u64).sum::<u64>();
            let properties = rocksdb::properties::AGGREGATED_TABLE_PROPERTIES;
            let text = require(partition.property_value(properties)).unwrap_or_default();
            index_bytes +=
                property(&text, "index block size") + property(&text, "filter block size");
        }
        let bits = index_bytes as f64 * 8.0 / self.report.records.max(1) as f64;
        self.report.index_bits_per_key = Some(bits);
    }
}

/// The number that follows `name`, something in brackets perhaps, and `=`.
fn property(text: &str, name: &str) -> u64 {
    let item = text.split(';').find(|item| item.trim_start().starts_with(name));
    let number = item.and_then(|item| item.rsplit_once('=')?.1.trim().parse().ok());
    number.unwrap_or_else(|| die(format!("no `{name}` in the properties of tables")))
}
