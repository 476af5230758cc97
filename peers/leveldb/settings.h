// SPDX-License-Identifier: Apache-2.0
// Settings: the command line, and the LevelDB options that `--options` names.
// `tuned` was the fastest here of the settings listed in peers/README.md; `--set name=value,...`
// tries others on top of either.
#pragma once

#include <leveldb/cache.h>
#include <leveldb/filter_policy.h>
#include <leveldb/options.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "counting_env.h"

[[noreturn]] inline void Die(const std::string& message) {
  fprintf(stderr, "peer-leveldb: %s\n", message.c_str());
  exit(1);
}

struct Settings {
  std::string operation, store, options = "default", durability = "async", set;
  std::string dump, order = "pattern";
  uint64_t files = 0, directories = 1000, threads = 1, operations = 0;
  uint64_t keys = 0, ranks = 1, epochs = 1, value_bytes = 40;
  uint64_t batch = 1024;
  uint64_t warm_sample = UINT64_MAX;  // all but named: a sixteenth of the files
  bool cold = false, absent = false, json = false;

  static Settings Parse(int count, char** words) {
    if (count < 2) Die("usage: peer-leveldb OPERATION --store DIR [flags], see peers/README.md");
    Settings s;
    s.operation = words[1];
    for (int i = 2; i < count; ++i) {
      std::string flag = words[i];
      if (flag == "--cold") { s.cold = true; continue; }
      if (flag == "--absent") { s.absent = true; continue; }
      if (flag == "--json") { s.json = true; continue; }
      if (++i == count) Die(flag + " needs a value, or isn't a flag");
      if (flag == "--store") s.store = words[i];
      else if (flag == "--options") s.options = words[i];
      else if (flag == "--durability") s.durability = words[i];
      else if (flag == "--set") s.set = words[i];
      else if (flag == "--dump") s.dump = words[i];
      else if (flag == "--order") s.order = words[i];
      else if (flag == "--batch") s.batch = Number(flag, words[i]);
      else if (flag == "--files") s.files = Number(flag, words[i]);
      else if (flag == "--directories") s.directories = Number(flag, words[i]);
      else if (flag == "--threads") s.threads = Number(flag, words[i]);
      else if (flag == "--keys") s.keys = Number(flag, words[i]);
      else if (flag == "--ranks") s.ranks = Number(flag, words[i]);
      else if (flag == "--epochs") s.epochs = Number(flag, words[i]);
      else if (flag == "--value-bytes") s.value_bytes = Number(flag, words[i]);
      else if (flag == "--operations") s.operations = Number(flag, words[i]);
      else if (flag == "--warm-sample") s.warm_sample = Number(flag, words[i]);
      else Die("no flag " + flag);
    }
    if (s.options != "default" && s.options != "tuned") Die("--options is default or tuned");
    if (s.durability != "none" && s.durability != "async" && s.durability != "always")
      Die("--durability is none, async or always");
    if (s.threads == 0 || s.directories == 0) Die("--threads and --directories start at 1");
    if (s.ranks == 0 || s.epochs == 0) Die("--ranks and --epochs start at 1");
    if (s.ranks > 1000 || s.value_bytes > 65536) Die("at most 1000 ranks and 64 KiB a value");
    if (s.is_segment() && s.dump.empty()) Die("--dump FILE is missing");
    if (s.order != "pattern" && s.order != "random") Die("--order is pattern or random");
    if (s.batch == 0) Die("--batch starts at 1");
    return s;
  }

  // Segments of a shared file rather than files.
  bool is_segment() const { return operation.rfind("segment-", 0) == 0; }

  // Records of an indexed directory rather than files.
  bool is_imd() const { return operation.rfind("imd-", 0) == 0; }

  bool tuned() const { return options == "tuned"; }

  // Batches of gets are sorted by key, so that neighbours are adjacent.
  bool sort_gets() const { return tuned(); }

  Log log() const {
    if (durability == "none") return Log::kNone;
    return tuned() && durability == "async" ? Log::kBuffered : Log::kThrough;
  }

 private:
  static uint64_t Number(const std::string& flag, const char* word) {
    char* end;
    uint64_t value = strtoull(word, &end, 10);
    if (*word < '0' || *word > '9' || *end) Die(flag + " takes a whole number, not " + word);
    return value;
  }
};

// The engine's options with what they own, of one of `instances`, which share the cache. Outlives
// the database.
struct Engine {
  CountingEnv env;
  std::unique_ptr<leveldb::Cache> cache;
  std::unique_ptr<const leveldb::FilterPolicy> filter;
  leveldb::Options options;
  size_t cache_bytes = size_t{8} << 20;  // the library's default
  int filter_bits = 10;

  Engine(const Settings& s, uint64_t instances) : env(s.log()) {
    if (s.tuned()) {
      // Records come in random order of keys, for which a small memtable stays in the cache.
      options.write_buffer_size = s.is_imd() ? 16 << 20 : 128 << 20;
      options.max_file_size = s.is_imd() ? 8 << 20 : 64 << 20;
      options.max_open_files = 20000;
      options.block_size = 16 << 10;
      if (s.is_segment()) {
        options.write_buffer_size = 32 << 20;
        options.block_size = 8 << 10;
        filter_bits = 0;  // every get finds its key
      }
      options.compression = leveldb::kNoCompression;
      cache_bytes = (size_t{1} << 30) / instances;
    }
    std::istringstream sets(s.set);
    std::string item;
    while (std::getline(sets, item, ',')) {
      size_t equals = item.find('=');
      if (equals == std::string::npos) Die("--set takes name=value,...");
      std::string name = item.substr(0, equals);
      uint64_t value = strtoull(item.c_str() + equals + 1, nullptr, 10);
      if (name == "write_buffer_size") options.write_buffer_size = value;
      else if (name == "max_file_size") options.max_file_size = value;
      else if (name == "max_open_files") options.max_open_files = int(value);
      else if (name == "block_size") options.block_size = value;
      else if (name == "block_restart_interval") options.block_restart_interval = int(value);
      else if (name == "compression") options.compression = leveldb::CompressionType(value);
      else if (name == "cache_bytes") cache_bytes = value;
      else if (name == "filter_bits") filter_bits = int(value);
      else Die("--set knows no " + name);
    }
    if (s.cold) cache_bytes = 0;
    cache.reset(leveldb::NewLRUCache(cache_bytes));
    if (filter_bits) filter.reset(leveldb::NewBloomFilterPolicy(filter_bits));
    options.env = &env;
    options.block_cache = cache.get();
    options.filter_policy = filter.get();
  }
};
