// SPDX-License-Identifier: Apache-2.0
//! Settings: the command line, and the RocksDB options that `--options` names.
//! `tuned` was the fastest here of the settings listed in peers/README.md; `--set
//! name=value;...` tries others on top of either: RocksDB's own option names, and `block.*` for
//! those of the block-based table.

use rocksdb::{
    BlockBasedOptions, Cache, DBCompactionStyle, DBCompressionType, DataBlockIndexType,
    MemtableFactory, Options, ReadOptions, SliceTransform,
};

pub const CACHE_BYTES_TUNED: usize = 1 << 30;
/// A block's size before compression, for the clock cache's own bookkeeping.
const CACHE_ENTRY_BYTES: usize = 4 << 10;
/// The keys of a batch ascend, so the memtable's search begins where the previous one ended. The
/// crate has no method for it.
const INSERT_NEAR_THE_LAST: &str =
    "memtable_insert_with_hint_prefix_extractor=rocksdb.FixedPrefix.8";
pub const WRITE_BUFFER_BYTES_TUNED: usize = 32 << 20;
pub const WRITE_BUFFERS_TUNED: i32 = 8;
pub const FILTER_BITS: f64 = 10.0;
const READAHEAD_BYTES_TUNED: usize = 2 << 20;

pub struct Settings {
    pub operation: String,
    pub store: String,
    pub options: String,
    pub durability: String,
    pub set: String,
    pub dump: String,
    pub order: String,
    pub files: u64,
    pub directories: u64,
    pub threads: u64,
    pub operations: u64,
    pub keys: u64,
    pub ranks: u64,
    pub epochs: u64,
    pub value_bytes: u64,
    pub batch: usize,
    pub warm_sample: u64,
    pub compaction: bool,
    pub cold: bool,
    pub absent: bool,
    pub json: bool,
}

impl Settings {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut s = Settings {
            operation: words.next().ok_or(
                "usage: peer-rocksdb OPERATION --store DIR [flags], \
                 see peers/README.md",
            )?,
            store: String::new(),
            options: "default".into(),
            durability: "async".into(),
            set: String::new(),
            dump: String::new(),
            order: "pattern".into(),
            files: 0,
            directories: 1000,
            threads: 1,
            operations: 0,
            keys: 0,
            ranks: 1,
            epochs: 1,
            value_bytes: 40,
            batch: 1024,
            compaction: true,
            warm_sample: u64::MAX, // all but named: a sixteenth of the files
            cold: false,
            absent: false,
            json: false,
        };
        while let Some(flag) = words.next() {
            match flag.as_str() {
                "--cold" => s.cold = true,
                "--no-compaction" => s.compaction = false,
                "--absent" => s.absent = true,
                "--json" => s.json = true,
                _ => {
                    let word = words.next();
                    let word = word.ok_or(format!("{flag} needs a value, or isn't a flag"))?;
                    s.take(&flag, word)?;
                }
            }
        }
        if s.store.is_empty() {
            return Err("--store DIR is missing".into());
        }
        if !["default", "tuned"].contains(&s.options.as_str()) {
            return Err("--options is default or tuned".into());
        }
        if !["none", "async", "always"].contains(&s.durability.as_str()) {
            return Err("--durability is none, async or always".into());
        }
        if s.threads == 0 || s.directories == 0 {
            return Err("--threads and --directories start at 1".into());
        }
        if s.ranks == 0 || s.epochs == 0 {
            return Err("--ranks and --epochs start at 1".into());
        }
        if s.ranks > 1000 || s.value_bytes > 65_536 {
            return Err("at most 1000 ranks and 64 KiB a value".into());
        }
        if s.is_segment() && s.dump.is_empty() {
            return Err("--dump FILE is missing".into());
        }
        if !["pattern", "random"].contains(&s.order.as_str()) {
            return Err("--order is pattern or random".into());
        }
        if s.batch == 0 {
            return Err("--batch starts at 1".into());
        }
        Ok(s)
    }

    /// Segments of a shared file rather than files.
    pub fn is_segment(&self) -> bool {
        self.operation.starts_with("segment-")
    }

    /// Records of an indexed directory rather than files.
    pub fn is_imd(&self) -> bool {
        self.operation.starts_with("imd-")
    }

    /// Options of gets and scans.
    pub fn read_options(&self) -> ReadOptions {
        let mut read = ReadOptions::default();
        if self.tuned() {
            read.set_verify_checksums(false);
        }
        read
    }

    /// Options of a scan of a whole file, on top of `read_options`.
    pub fn scan_options(&self, read: &mut ReadOptions) {
        read.set_total_order_seek(true);
        if self.tuned() {
            read.set_readahead_size(READAHEAD_BYTES_TUNED);
        }
    }

    /// Batches of gets are sorted by key before MultiGet.
    pub fn sort_gets(&self) -> bool {
        self.tuned()
    }

    fn take(&mut self, flag: &str, word: String) -> Result<(), String> {
        let number = || {
            let number = word.parse::<u64>();
            number.map_err(|_| format!("{flag} takes a whole number, not {word}"))
        };
        match flag {
            "--store" => self.store = word,
            "--options" => self.options = word,
            "--durability" => self.durability = word,
            "--set" => self.set = word,
            "--dump" => self.dump = word,
            "--order" => self.order = word,
            "--batch" => self.batch = usize::try_from(number()?).map_err(|e| e.to_string())?,
            "--files" => self.files = number()?,
            "--directories" => self.directories = number()?,
            "--threads" => self.threads = number()?,
            "--operations" => self.operations = number()?,
            "--keys" => self.keys = number()?,
            "--ranks" => self.ranks = number()?,
            "--epochs" => self.epochs = number()?,
            "--value-bytes" => self.value_bytes = number()?,
            "--warm-sample" => self.warm_sample = number()?,
            _ => return Err(format!("no flag {flag}")),
        }
        Ok(())
    }

    pub fn tuned(&self) -> bool {
        self.options == "tuned"
    }

    /// The log is held back until 64 KiB or 100 ms, the promise of Esker's level `async`.
    pub fn log_buffered(&self) -> bool {
        self.tuned() && self.durability == "async"
    }

    /// The engine's options.
    pub fn engine(&self) -> Result<Options, String> {
        let mut table = BlockBasedOptions::default();
        table.set_bloom_filter(FILTER_BITS, false);
        let mut engine = Options::default();
        if self.tuned() {
            self.tune(&mut engine, &mut table);
        }
        engine.set_manual_wal_flush(self.log_buffered() && !self.is_imd());
        if !self.compaction {
            engine.set_disable_auto_compactions(true);
            engine.set_level_zero_slowdown_writes_trigger(i32::MAX);
            engine.set_level_zero_stop_writes_trigger(i32::MAX);
        }
        let mut names = Vec::new();
        if self.tuned() && self.is_segment() {
            names.push(INSERT_NEAR_THE_LAST);
        }
        for item in self.set.split(';').filter(|item| !item.is_empty()) {
            match item.strip_prefix("block.") {
                Some(item) => set_table_option(&mut table, item)?,
                None => names.push(item),
            }
        }
        if self.cold {
            table.disable_cache();
        }
        engine.set_block_based_table_factory(&table);
        if names.is_empty() {
            return Ok(engine);
        }
        let changed = engine.get_options_from_string(names.join(";"));
        changed.map_err(|error| format!("--set: {error}"))
    }

    fn tune(&self, engine: &mut Options, table: &mut BlockBasedOptions) {
        engine.set_max_background_jobs(2);
        engine.set_write_buffer_size(WRITE_BUFFER_BYTES_TUNED);
        engine.set_max_write_buffer_number(WRITE_BUFFERS_TUNED);
        engine.set_level_zero_file_num_compaction_trigger(8);
        engine.set_level_zero_slowdown_writes_trigger(40);
        engine.set_level_zero_stop_writes_trigger(60);
        engine.set_max_bytes_for_level_base(512 << 20);
        engine.set_target_file_size_base(64 << 20);
        engine.set_compression_type(DBCompressionType::Lz4);
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        engine.set_stats_dump_period_sec(0);
        if self.is_imd() {
            return self.tune_imd(engine, table);
        }
        if self.is_segment() {
            return self.tune_segment(engine, table);
        }
        engine.set_allow_concurrent_memtable_write(self.threads > 1);
        if self.threads == 1 {
            // A short skip list for each directory: faster, but only for a single writer.
            engine.set_memtable_factory(MemtableFactory::HashSkipList {
                bucket_count: 4096,
                height: 4,
                branching_factor: 4,
            });
        }
        // The collision check mostly asks the memtable for keys it doesn't have.
        engine.set_memtable_whole_key_filtering(true);
        engine.set_memtable_prefix_bloom_ratio(0.05);
        engine.set_prefix_extractor(SliceTransform::create_fixed_prefix(8));
        table.set_block_cache(&Cache::new_hyper_clock_cache(CACHE_BYTES_TUNED, CACHE_ENTRY_BYTES));
    }

    /// Records come in random order of keys and are not read before the end of an epoch: a memtable
    /// that only appends, sorted when flushed. Their values do not compress.
    fn tune_imd(&self, engine: &mut Options, table: &mut BlockBasedOptions) {
        engine.set_allow_concurrent_memtable_write(false);
        engine.set_memtable_factory(MemtableFactory::Vector);
        engine.set_compression_type(DBCompressionType::None);
        let share = CACHE_BYTES_TUNED / self.ranks as usize;
        table.set_block_cache(&Cache::new_hyper_clock_cache(share, CACHE_ENTRY_BYTES));
    }

    /// Every get finds its key, so filters would only cost; blocks are larger because a batch asks
    /// for neighbours.
    fn tune_segment(&self, engine: &mut Options, table: &mut BlockBasedOptions) {
        engine.set_allow_concurrent_memtable_write(self.threads > 1);
        engine.set_compaction_style(DBCompactionStyle::Universal);
        table.set_bloom_filter(0.0, false);
        table.set_data_block_index_type(DataBlockIndexType::BinarySearch);
        table.set_block_size(8 << 10);
        table.set_block_cache(&Cache::new_hyper_clock_cache(CACHE_BYTES_TUNED, CACHE_ENTRY_BYTES));
    }
}

fn set_table_option(table: &mut BlockBasedOptions, item: &str) -> Result<(), String> {
    let (name, value) = item.split_once('=').ok_or("--set takes name=value;...")?;
    let number: f64 = value.parse().map_err(|_| format!("--set: {item} is no number"))?;
    match name {
        "bloom" => table.set_bloom_filter(number, false),
        "ribbon" => table.set_ribbon_filter(number),
        "block_size" => table.set_block_size(number as usize),
        "restart_interval" => table.set_block_restart_interval(number as i32),
        "lru_bytes" => table.set_block_cache(&Cache::new_lru_cache(number as usize)),
        "clock_bytes" => {
            let cache = Cache::new_hyper_clock_cache(number as usize, CACHE_ENTRY_BYTES);
            table.set_block_cache(&cache);
        }
        "no_cache" => table.disable_cache(),
        "hash_index" => table.set_data_block_index_type(match number {
            0.0 => DataBlockIndexType::BinarySearch,
            _ => DataBlockIndexType::BinaryAndHash,
        }),
        _ => return Err(format!("--set knows no block.{name}")),
    }
    Ok(())
}
