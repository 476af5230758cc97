// SPDX-License-Identifier: Apache-2.0
// Segments: LevelDB as the index of a shared file, as MDHIM would drive it.
// `segment-put` writes the batches of a dump, `segment-get` finds every segment of it again in
// batches, `segment-range` reads the whole file as a list of extents. The database is in `db/`.
// peers/README.md describes flags and fields.
// Source: MetaKV, sections II-B and IV.
#pragma once

#include <leveldb/db.h>
#include <leveldb/write_batch.h>

#include <memory>
#include <mutex>

#include "dump.h"
#include "process.h"
#include "report.h"

class SegmentDriver {
 public:
  explicit SegmentDriver(const Settings& settings)
      : settings_(settings), engine_(settings, 1), dump_(settings.dump) {
    report_.operation = settings.operation;
    report_.options = settings.options;
    report_.durability = settings.durability;
    report_.threads = settings.threads;
    write_.sync = settings.durability == "always";
  }

  void Run() {
    report_.records = dump_.segments().size();
    if (settings_.operation == "segment-put") Put();
    else if (settings_.operation == "segment-get") Get();
    else if (settings_.operation == "segment-range") Range();
    else Die("no operation " + settings_.operation + ": segment-put, segment-get, segment-range");
    CountTables();
    db_.reset();
    report_.Print(settings_.json);
  }

 private:
  static constexpr size_t kExtentsMax = 64 << 10;

  void Open(bool create) {
    if (create) std::filesystem::create_directories(settings_.store);
    else DropPages(settings_.store);
    engine_.options.create_if_missing = engine_.options.error_if_exists = create;
    leveldb::DB* db;
    Require(leveldb::DB::Open(engine_.options, settings_.store + "/db", &db));
    db_.reset(db);
  }

  // Ends the timed part; `name` is the field of its rate.
  void Stop(const Reading& start, uint64_t operations, const char* name) {
    Reading now = ReadNow();
    report_.operations = operations;
    report_.seconds = SecondsBetween(start, now);
    report_.cpu_seconds = now.cpu_seconds - start.cpu_seconds;
    report_.store_bytes_written = now.bytes_written - start.bytes_written;
    report_.Add(name, operations / report_.seconds);
  }

  void Put() {
    Open(true);
    const std::vector<Dump::Batch> batches = dump_.Batches(settings_.batch);
    std::mutex mutex;  // guards worst_seconds
    double worst_seconds = 0;
    Reading start = ReadNow();
    Parallel(settings_.threads, [&](uint64_t thread) {
      double worst = PutBatches(batches, thread);
      std::lock_guard<std::mutex> lock(mutex);
      worst_seconds = std::max(worst_seconds, worst);
    });
    double acknowledged_seconds = SecondsBetween(start, ReadNow());
    // A range below every key: CompactRange flushes the memtable, then finds nothing to do.
    leveldb::Slice nothing("", 0);
    db_->CompactRange(&nothing, &nothing);
    while (!engine_.env.quiet()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    Stop(start, report_.records, "puts_per_second");
    report_.log_bytes = engine_.env.log_bytes();
    report_.Add("acknowledged_per_second", report_.records / acknowledged_seconds);
    report_.Add("worst_batch_ms", worst_seconds * 1e3);
  }

  // Puts the batches of one thread; returns the seconds that the slowest took.
  double PutBatches(const std::vector<Dump::Batch>& batches, uint64_t thread) {
    leveldb::WriteBatch write;
    char key[kSegmentKeyBytes], value[kSegmentValueBytes];
    double worst = 0;
    auto begin = std::chrono::steady_clock::now();
    for (size_t number = thread; number < batches.size(); number += settings_.threads) {
      write.Clear();
      for (size_t i = batches[number].begin; i < batches[number].end; ++i) {
        const Segment& segment = dump_.segments()[i];
        EncodeSegmentKey(kSegmentFile, segment.offset, key);
        EncodeSegmentValue(segment, value);
        write.Put({key, sizeof key}, {value, sizeof value});
      }
      Require(db_->Write(write_, &write));
      auto end = std::chrono::steady_clock::now();
      worst = std::max(worst, std::chrono::duration<double>(end - begin).count());
      begin = end;
    }
    return worst;
  }

  void Get() {
    bool random = settings_.order == "random";
    if (random) dump_.Shuffle();
    const std::vector<Dump::Batch> batches = dump_.Batches(settings_.batch);
    std::atomic<uint64_t> found{0};
    Open(false);
    uint64_t reads = engine_.env.table_reads();
    Reading start = ReadNow();
    Parallel(settings_.threads, [&](uint64_t thread) { found += GetBatches(batches, thread); });
    Stop(start, found, random ? "random_gets_per_second" : "gets_per_second");
    report_.table_reads = engine_.env.table_reads() - reads;
    report_.reads_apply = true;
  }

  // Gets the batches of one thread among the first `--operations` segments; returns how many were
  // found.
  uint64_t GetBatches(const std::vector<Dump::Batch>& batches, uint64_t thread) {
    std::vector<Segment> wanted;
    std::string value;
    uint64_t found = 0;
    auto before = [](const Segment& a, const Segment& b) { return a.offset < b.offset; };
    for (size_t number = thread; number < batches.size(); number += settings_.threads) {
      Dump::Batch batch = batches[number];
      if (settings_.operations && batch.begin >= settings_.operations) break;
      wanted.assign(&dump_.segments()[batch.begin], &dump_.segments()[batch.begin] + batch.end -
                                                        batch.begin);
      // Neighbours share blocks; LevelDB itself takes one key at a time.
      if (settings_.sort_gets() && !std::is_sorted(wanted.begin(), wanted.end(), before))
        std::sort(wanted.begin(), wanted.end(), before);
      for (const Segment& segment : wanted) Expect(segment, &value);
      found += wanted.size();
    }
    return found;
  }

  void Expect(const Segment& segment, std::string* value) const {
    char key[kSegmentKeyBytes];
    EncodeSegmentKey(kSegmentFile, segment.offset, key);
    Require(db_->Get({}, {key, sizeof key}, value));
    Segment read;
    if (!DecodeSegment({key, sizeof key}, *value, &read) || !(read == segment))
      Die("segment-get: a wrong value at offset " + std::to_string(segment.offset));
  }

  // The whole file as extents, handed on in pieces to a consumer that the compiler can't drop.
  void Range() {
    Segment expected = Sum(dump_.segments());
    Open(false);
    char prefix[kSegmentKeyBytes];
    EncodeSegmentKey(kSegmentFile, 0, prefix);
    std::vector<Segment> extents;
    extents.reserve(kExtentsMax);
    Segment sum{};
    uint64_t count = 0;
    auto hand_on = [&] {
      asm volatile("" : : "r"(extents.data()) : "memory");
      Segment piece = Sum(extents);
      sum = Sum({sum, piece});
      count += extents.size();
      extents.clear();
    };
    Reading start = ReadNow();
    std::unique_ptr<leveldb::Iterator> it(db_->NewIterator({}));
    for (it->Seek({prefix, sizeof prefix}); it->Valid(); it->Next()) {
      if (memcmp(it->key().data(), prefix, 8) != 0) break;
      Segment extent;
      if (!DecodeSegment({it->key().data(), it->key().size()},
                         {it->value().data(), it->value().size()}, &extent))
        Die("segment-range: a row is not a segment's");
      extents.push_back(extent);
      if (extents.size() == kExtentsMax) hand_on();
    }
    Require(it->status());
    hand_on();
    Stop(start, count, "range_entries_per_second");
    if (count != report_.records || !(sum == expected))
      Die("segment-range: " + std::to_string(count) + " segments are not those of the dump");
  }

  // Sums of all fields, by which two sets of segments are compared.
  static Segment Sum(const std::vector<Segment>& segments) {
    Segment sum{};
    for (const Segment& segment : segments) {
      sum.offset += segment.offset;
      sum.length += segment.length;
      sum.log_offset += segment.log_offset;
      sum.client += segment.client;
    }
    return sum;
  }

  // The live tables, listed as " number:bytes[first key .. last key]".
  void CountTables() {
    std::string listing, line;
    db_->GetProperty("leveldb.sstables", &listing);
    std::istringstream lines(listing);
    while (std::getline(lines, line)) {
      unsigned long number, bytes;
      if (sscanf(line.c_str(), " %lu:%lu[", &number, &bytes) != 2) continue;
      ++report_.tables;
      report_.table_bytes += bytes;
    }
    if (settings_.operation == "segment-put")
      report_.Add("store_bytes_per_segment", double(report_.table_bytes) / report_.records);
  }

  const Settings settings_;
  Engine engine_;
  Dump dump_;
  leveldb::WriteOptions write_;
  std::unique_ptr<leveldb::DB> db_;
  Report report_;
};
