// SPDX-License-Identifier: Apache-2.0
// peer-leveldb: the workloads of `esker bench` on LevelDB: create|stat|list|remove|compact of files here,
// imd-write|imd-get of records in imd.h, segment-put|-get|-range of segments in segment.h.
// Every operation runs in its own process on what `create` left in the store. The store holds
// the database in `db/` and its shape in `shape`. peers/README.md describes flags and fields.
#include <leveldb/db.h>

#include "imd.h"
#include "process.h"
#include "report.h"
#include "segment.h"
#include "settings.h"
#include "workload.h"

namespace fs = std::filesystem;

namespace {

Shape LoadShape(const std::string& store) {
  Shape shape;
  std::ifstream in(store + "/shape");
  if (!(in >> shape.files >> shape.directories >> shape.ranks))
    Die("no files in " + store + ": run `peer-leveldb create --store " + store + " --files N` first");
  return shape;
}

class Driver {
 public:
  explicit Driver(const Settings& settings) : settings_(settings), engine_(settings, 1) {
    report_.operation = settings.operation;
    report_.options = settings.options;
    report_.durability = settings.durability;
    report_.threads = settings.threads;
    write_.sync = settings.durability == "always";
  }

  void Run() {
    const std::string& op = settings_.operation;
    if (op == "create") Create();
    else if (op == "stat") Stat();
    else if (op == "list") List();
    else if (op == "remove") Remove();
    else if (op == "compact") Compact();
    else Die("no operation " + op + ": create, stat, list, remove, compact, imd-write, imd-get, segment-put, "
             "segment-get or segment-range");
    CountTables();
    db_.reset();
    report_.Print(settings_.json);
  }

 private:
  std::string path() const { return settings_.store + "/db"; }

  void Open(bool create) {
    if (settings_.cold) DropPages(settings_.store);
    engine_.options.create_if_missing = engine_.options.error_if_exists = create;
    leveldb::DB* db;
    Require(leveldb::DB::Open(engine_.options, path(), &db));
    db_.reset(db);
  }

  // The live tables, which the directory's files may outnumber until the next open.
  // LevelDB lists each as " number:bytes[first key .. last key]".
  void CountTables() {
    std::string listing;
    db_->GetProperty("leveldb.sstables", &listing);
    std::istringstream lines(listing);
    std::string line;
    while (std::getline(lines, line)) {
      unsigned long number, bytes;
      if (sscanf(line.c_str(), " %lu:%lu[", &number, &bytes) != 2) continue;
      ++report_.tables;
      report_.table_bytes += bytes;
    }
  }

  void Start() {
    start_ = ReadNow();
    reads_start_ = engine_.env.table_reads();
  }

  void Stop(uint64_t operations) {
    Reading now = ReadNow();
    report_.operations = operations;
    report_.seconds = SecondsBetween(start_, now);
    report_.cpu_seconds = now.cpu_seconds - start_.cpu_seconds;
    report_.table_reads = engine_.env.table_reads() - reads_start_;
  }

  // Ends a run of writes: the timed part when the memtable is in tables, the rest when quiet.
  void StopWrites(uint64_t operations) {
    // A range below every key: CompactRange flushes the memtable, then finds nothing to do.
    leveldb::Slice nothing("", 0);
    db_->CompactRange(&nothing, &nothing);
    Stop(operations);
    while (!engine_.env.quiet()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    Reading settled = ReadNow();
    report_.settled_seconds = SecondsBetween(start_, settled);
    report_.store_bytes_written = settled.bytes_written - start_.bytes_written;
    report_.log_bytes = engine_.env.log_bytes();
  }

  void Create() {
    if (settings_.files == 0) Die("create needs --files");
    Shape shape{settings_.files, settings_.directories, settings_.threads};
    fs::create_directories(settings_.store);
    Open(true);
    Files files(shape);
    Start();
    Parallel(shape.ranks, [&](uint64_t rank) {
      Row row;
      std::string found;
      for (uint64_t i = rank; i < shape.files; i += shape.ranks) {
        files.Existing(i, &row);
        leveldb::Status status = db_->Get({}, Slice(row.key()), &found);
        if (!status.IsNotFound()) Die("create: exists: " + std::string(row.name()));
        row.Stamp();
        Require(db_->Put(write_, Slice(row.key()), Slice(row.value())));
      }
    });
    StopWrites(shape.files);
    report_.records = shape.files;
    std::ofstream(settings_.store + "/shape")
        << shape.files << ' ' << shape.directories << ' ' << shape.ranks << '\n';
  }

  void Stat() {
    Shape shape = LoadShape(settings_.store);
    uint64_t operations = settings_.operations ? settings_.operations : shape.files;
    Open(false);
    if (!settings_.cold) Warm(shape);
    Files files(shape);
    Permutation order(shape.files, kSeedStat);
    Start();
    Parallel(settings_.threads, [&](uint64_t thread) {
      for (uint64_t k = thread; k < operations; k += settings_.threads) {
        if (settings_.absent) ExpectAbsent(files, order(k % shape.files));
        else ExpectPresent(files, order(k % shape.files));
      }
    });
    Stop(operations);
    report_.records = shape.files;
    report_.reads_apply = true;
  }

  // Reads everything once in order, then a sample of the names at random.
  void Warm(const Shape& shape) {
    std::unique_ptr<leveldb::Iterator> it(db_->NewIterator({}));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {}
    Files files(shape);
    Permutation order(shape.files, kSeedWarm);
    uint64_t sample = std::min(shape.files / 16, settings_.warm_sample);
    for (uint64_t k = 0; k < sample; ++k) ExpectPresent(files, order(k));
  }

  void ExpectPresent(const Files& files, uint64_t insertion) {
    thread_local Row row;
    thread_local std::string value;
    files.Existing(insertion, &row);
    Require(db_->Get({}, Slice(row.key()), &value));
    struct stat attributes;
    std::string_view name;
    if (!DecodeValue(value, &attributes, &name) || name != row.name() ||
        !S_ISREG(attributes.st_mode))
      Die("stat: wrong row for " + std::string(row.name()));
  }

  void ExpectAbsent(const Files& files, uint64_t insertion) {
    thread_local Row row;
    thread_local std::string value;
    files.Absent(insertion, &row);
    if (!db_->Get({}, Slice(row.key()), &value).IsNotFound())
      Die("stat: found what was never made: " + std::string(row.name()));
  }

  void List() {
    Shape shape = LoadShape(settings_.store);
    Open(false);
    if (!settings_.cold) Warm(shape);
    std::atomic<uint64_t> entries{0};
    Start();
    Parallel(settings_.threads, [&](uint64_t thread) {
      std::unique_ptr<leveldb::Iterator> it(db_->NewIterator({}));
      uint64_t count = 0;
      for (uint64_t d = thread; d < shape.directories; d += settings_.threads)
        count += ListDirectory(it.get(), 1 + d);
      entries += count;
    });
    if (entries != shape.files)
      Die("list: " + std::to_string(entries) + " entries of " + std::to_string(shape.files));
    Stop(entries);
    report_.records = shape.files;
    report_.reads_apply = true;
  }

  // Hands every (name, stat) of a directory to a consumer that the compiler can't drop.
  static uint64_t ListDirectory(leveldb::Iterator* it, uint64_t directory) {
    char prefix[8];
    PutBigEndian(prefix, directory);
    uint64_t count = 0;
    for (it->Seek({prefix, 8}); it->Valid(); it->Next(), ++count) {
      if (memcmp(it->key().data(), prefix, 8) != 0) break;
      struct stat attributes;
      std::string_view name;
      if (!DecodeValue({it->value().data(), it->value().size()}, &attributes, &name))
        Die("list: a value is too short");
      asm volatile("" : : "r"(&attributes), "r"(name.data()), "r"(name.size()) : "memory");
    }
    Require(it->status());
    return count;
  }

  void Remove() {
    Shape shape = LoadShape(settings_.store);
    Open(false);
    Files files(shape);
    Permutation order(shape.files, kSeedRemove);
    Start();
    Parallel(settings_.threads, [&](uint64_t thread) {
      Row row;
      std::string value;
      for (uint64_t k = thread; k < shape.files; k += settings_.threads) {
        files.Existing(order(k), &row);
        Require(db_->Get({}, Slice(row.key()), &value));
        Require(db_->Delete(write_, Slice(row.key())));
      }
    });
    StopWrites(shape.files);
    report_.records = shape.files;
    fs::remove(settings_.store + "/shape");
  }

  // Merges all tables into one sorted run.
  void Compact() {
    Shape shape = LoadShape(settings_.store);
    Open(false);
    Start();
    db_->CompactRange(nullptr, nullptr);
    StopWrites(shape.files);
    report_.records = shape.files;
  }

  const Settings settings_;
  Engine engine_;
  leveldb::WriteOptions write_;
  std::unique_ptr<leveldb::DB> db_;
  Report report_;
  Reading start_{};
  uint64_t reads_start_ = 0;
};

// Prints what the other driver must print too: permutations, one row, some records, and segments.
void PrintWorkload() {
  for (uint64_t n : {1, 2, 10, 1000, 1000003})
    for (uint64_t seed : {kSeedCreate, kSeedStat}) {
      Permutation permute(n, seed);
      printf("%lu %lu:", n, seed);
      for (uint64_t i = 0; i < std::min<uint64_t>(n, 10); ++i) printf(" %lu", permute(i));
      printf("\n");
    }
  Row row;
  row.Set(3, 12345678, 1000);
  printf("%s ", std::string(row.name()).c_str());
  for (unsigned char byte : row.key()) printf("%02x", byte);
  printf("\n");
  Particles particles{1000, 7, 5, 44};
  Particle particle(particles);
  for (uint64_t number : {0, 1, 999}) {
    particle.Set(number, 3);
    for (unsigned char byte : particle.row_key()) printf("%02x", byte);
    printf(" %lu ", particle.partition());
    for (unsigned char byte : particle.value()) printf("%02x", byte);
    printf("\n");
  }
  for (uint64_t rank : {0, 6}) printf("%lu ", particles.First(rank, 12));
  printf("\n");
  std::vector<Segment> segments;
  for (uint32_t i = 0; i < 10; ++i) segments.push_back({i * 4096, 4096, i * 8192, i});
  char key[kSegmentKeyBytes], value[kSegmentValueBytes];
  EncodeSegmentKey(kSegmentFile, segments[9].offset, key);
  EncodeSegmentValue(segments[9], value);
  for (unsigned char byte : key) printf("%02x", byte);
  printf(" ");
  for (unsigned char byte : value) printf("%02x", byte);
  ShuffleSegments(&segments);
  for (const Segment& segment : segments) printf(" %u", segment.client);
  printf("\n");
}

}  // namespace

int main(int count, char** words) {
  if (count == 2 && std::string(words[1]) == "workload") {
    PrintWorkload();
    return 0;
  }
  Settings settings = Settings::Parse(count, words);
  if (settings.store.empty()) Die("--store DIR is missing");
  if (settings.is_imd()) ImdDriver(settings).Run();
  else if (settings.is_segment()) SegmentDriver(settings).Run();
  else Driver(settings).Run();
}
