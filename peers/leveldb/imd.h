// SPDX-License-Identifier: Apache-2.0
// Imd: the work of an indexed directory with one LevelDB for each rank's partition.
// `imd-write` makes them, `imd-get` reads from them. The store holds partition P in `db-P/` and the
// records' shape in `particles`. peers/README.md describes flags and fields.
// Ranks are threads. A rank collects 32 KiB for each partition and then writes that into the
// partition's database, as the thesis' benchmark sends messages of 32 KiB to the owner.
// Source: DeltaFS thesis, section 5.3.1.
#pragma once

#include <leveldb/db.h>
#include <leveldb/write_batch.h>

#include <atomic>
#include <memory>
#include <optional>

#include "particles.h"
#include "process.h"
#include "report.h"

class ImdDriver {
 public:
  explicit ImdDriver(const Settings& settings) : settings_(settings) {
    report_.operation = settings.operation;
    report_.options = settings.options;
    report_.durability = settings.durability;
    write_.sync = settings.durability == "always";
  }

  void Run() {
    if (settings_.operation == "imd-write") Write();
    else Get();
    CountTables();
    partitions_.clear();
    report_.Print(settings_.json);
  }

 private:
  static constexpr size_t kMessageBytes = 32 << 10;

  struct Partition {
    std::unique_ptr<Engine> engine;  // outlives the database
    std::unique_ptr<leveldb::DB> db;
  };

  void Open(bool create) {
    if (settings_.cold) DropPages(settings_.store);
    for (uint64_t number = 0; number < particles_.ranks; ++number) {
      Partition partition{std::make_unique<Engine>(settings_, particles_.ranks), nullptr};
      leveldb::Options& options = partition.engine->options;
      options.create_if_missing = options.error_if_exists = create;
      leveldb::DB* db;
      Require(leveldb::DB::Open(options, settings_.store + "/db-" + std::to_string(number), &db));
      partition.db.reset(db);
      partitions_.push_back(std::move(partition));
    }
  }

  void Write() {
    particles_ = {settings_.keys, settings_.ranks, settings_.epochs, settings_.value_bytes};
    if (particles_.keys == 0) Die("imd-write needs --keys");
    std::filesystem::create_directories(settings_.store);
    Open(true);
    Reading start = ReadNow();
    for (uint64_t epoch = 0; epoch < particles_.epochs; ++epoch) {
      Parallel(particles_.ranks, [&](uint64_t rank) { WriteRank(rank, epoch); });
      Parallel(particles_.ranks, [&](uint64_t rank) { FlushMemtable(rank); });
    }
    Reading done = ReadNow();
    while (!Quiet()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    Reading settled = ReadNow();
    report_.operations = report_.records = particles_.keys * particles_.epochs;
    report_.seconds = SecondsBetween(start, done);
    report_.settled_seconds = SecondsBetween(start, settled);
    report_.cpu_seconds = settled.cpu_seconds - start.cpu_seconds;
    report_.store_bytes_written = settled.bytes_written - start.bytes_written;
    for (const auto& partition : partitions_) report_.log_bytes += partition.engine->env.log_bytes();
    report_.threads = particles_.ranks;
    std::ofstream(settings_.store + "/particles")
        << particles_.keys << ' ' << particles_.ranks << ' ' << particles_.epochs << ' '
        << particles_.value_bytes << '\n';
  }

  // Writes one rank's records of an epoch.
  void WriteRank(uint64_t rank, uint64_t epoch) {
    std::vector<leveldb::WriteBatch> messages(particles_.ranks);
    Particle particle(particles_);
    for (uint64_t i = particles_.First(rank, epoch); i < particles_.keys; i += particles_.ranks) {
      particle.Set(i, epoch);
      uint64_t to = particle.partition();
      messages[to].Put(Slice(particle.row_key()), Slice(particle.value()));
      if (messages[to].ApproximateSize() >= kMessageBytes) Send(&messages[to], to);
    }
    for (uint64_t to = 0; to < particles_.ranks; ++to) Send(&messages[to], to);
  }

  void Send(leveldb::WriteBatch* message, uint64_t to) {
    Require(partitions_[to].db->Write(write_, message));
    message->Clear();
  }

  // A range below every key: CompactRange flushes the memtable, then finds nothing to do.
  void FlushMemtable(uint64_t number) {
    leveldb::Slice nothing("", 0);
    partitions_[number].db->CompactRange(&nothing, &nothing);
  }

  bool Quiet() const {
    for (const auto& partition : partitions_)
      if (!partition.engine->env.quiet()) return false;
    return true;
  }

  void Get() {
    std::ifstream in(settings_.store + "/particles");
    if (!(in >> particles_.keys >> particles_.ranks >> particles_.epochs >> particles_.value_bytes))
      Die("no records in " + settings_.store + ": run `peer-leveldb imd-write --store " +
          settings_.store + " --keys N` first");
    uint64_t operations = settings_.operations ? settings_.operations : particles_.keys;
    Open(false);
    if (!settings_.cold) Warm();
    Permutation order(particles_.keys, kSeedGet);
    uint64_t reads = TableReads(), data_reads = DataReads();
    Reading start = ReadNow();
    Parallel(settings_.threads, [&](uint64_t thread) {
      Particle particle(particles_);
      std::string found;
      for (uint64_t k = thread; k < operations; k += settings_.threads)
        Expect(order(k % particles_.keys), k % particles_.epochs, &particle, &found);
    });
    Reading done = ReadNow();
    report_.operations = operations;
    report_.records = particles_.keys * particles_.epochs;
    report_.seconds = SecondsBetween(start, done);
    report_.cpu_seconds = done.cpu_seconds - start.cpu_seconds;
    report_.table_reads = TableReads() - reads;
    report_.data_reads = DataReads() - data_reads;
    report_.reads_apply = true;
    report_.threads = settings_.threads;
  }

  // Reads everything once in order, then a sample of the keys at random.
  void Warm() {
    for (const auto& partition : partitions_) {
      std::unique_ptr<leveldb::Iterator> it(partition.db->NewIterator({}));
      for (it->SeekToFirst(); it->Valid(); it->Next()) {}
    }
    Permutation order(particles_.keys, kSeedWarmGets);
    Particle particle(particles_);
    std::string found;
    for (uint64_t k = 0; k < particles_.keys / 16; ++k)
      Expect(order(k), k % particles_.epochs, &particle, &found);
  }

  void Expect(uint64_t number, uint64_t epoch, Particle* particle, std::string* found) const {
    particle->Set(number, epoch);
    Require(partitions_[particle->partition()].db->Get({}, Slice(particle->row_key()), found));
    if (*found != particle->value()) Die("imd-get: a wrong value of key " + std::to_string(number));
  }

  uint64_t TableReads() const {
    uint64_t sum = 0;
    for (const auto& partition : partitions_) sum += partition.engine->env.table_reads();
    return sum;
  }
  uint64_t DataReads() const {
    uint64_t sum = 0;
    for (const auto& partition : partitions_) sum += partition.engine->env.data_reads();
    return sum;
  }

  // The live tables, listed as " number:bytes[first key .. last key]", and their indexes.
  void CountTables() {
    uint64_t index_bytes = 0;
    for (uint64_t number = 0; number < partitions_.size(); ++number) {
      std::string listing, line;
      partitions_[number].db->GetProperty("leveldb.sstables", &listing);
      std::istringstream lines(listing);
      while (std::getline(lines, line)) {
        unsigned long table, bytes;
        if (sscanf(line.c_str(), " %lu:%lu[", &table, &bytes) != 2) continue;
        ++report_.tables;
        report_.table_bytes += bytes;
        char name[32];
        snprintf(name, sizeof name, "/%06lu.ldb", table);
        index_bytes += bytes - DataBytes(settings_.store + "/db-" + std::to_string(number) + name);
      }
    }
    if (report_.records) report_.index_bits_per_key = index_bytes * 8.0 / report_.records;
  }

  // The start of the filter block, before which everything is data: found from the footer through
  // the block of block names, whose only entry is the filter's.
  static uint64_t DataBytes(const std::string& path) {
    constexpr size_t kFooterBytes = 48;
    std::ifstream in(path, std::ios::binary);
    std::string bytes(kFooterBytes, 0);
    in.seekg(-int(kFooterBytes), std::ios::end);
    in.read(bytes.data(), kFooterBytes);
    const char* at = bytes.data();
    uint64_t offset = Varint(&at), size = Varint(&at);
    if (!in || size > 4096) Die(path + ": not a table");
    bytes.assign(size + 1, 0);
    in.seekg(offset);
    in.read(bytes.data(), bytes.size());
    if (!in || bytes[size] != 0) Die(path + ": a compressed block of block names");
    at = bytes.data();
    Varint(&at);  // bytes shared with the key before: none
    uint64_t key_bytes = Varint(&at), value_bytes = Varint(&at);
    if (value_bytes == 0 || key_bytes + value_bytes > size) return offset;  // no filter
    at += key_bytes;
    return Varint(&at);
  }

  static uint64_t Varint(const char** at) {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      uint64_t byte = uint8_t(*(*at)++);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80 || shift > 56) return value;
    }
  }

  const Settings settings_;
  leveldb::WriteOptions write_;
  Particles particles_;
  std::vector<Partition> partitions_;
  Report report_;
};
