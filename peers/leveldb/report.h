// SPDX-License-Identifier: Apache-2.0
// Report: what one operation cost, as the line of JSON that Esker's bench prints too.
// Sources: getrusage for CPU, /proc/self/status VmHWM for the peak of memory (it counts mapped
// table pages, which LevelDB reads through), /proc/self/io wchar for bytes handed to the kernel.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

// Time, CPU and bytes written at one moment.
struct Reading {
  std::chrono::steady_clock::time_point time;
  double cpu_seconds;
  uint64_t bytes_written;
};

// The number after `label` in a /proc file; 0 if it isn't there.
inline uint64_t ProcNumber(const char* path, const std::string& label) {
  std::ifstream in(path);
  std::string word;
  uint64_t value = 0;
  while (in >> word)
    if (word == label && in >> value) return value;
  return 0;
}

inline Reading ReadNow() {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec / 1e6; };
  return {std::chrono::steady_clock::now(), seconds(usage.ru_utime) + seconds(usage.ru_stime),
          ProcNumber("/proc/self/io", "wchar:")};
}

inline double SecondsBetween(const Reading& from, const Reading& to) {
  return std::chrono::duration<double>(to.time - from.time).count();
}

struct Report {
  std::string operation, options, durability;
  uint64_t threads = 1, operations = 0, records = 0;
  double seconds = 0, cpu_seconds = 0;
  double settled_seconds = -1;  // negative: not measured by this operation
  double index_bits_per_key = -1;  // the same
  uint64_t store_bytes_written = 0, log_bytes = 0, table_reads = 0;
  uint64_t data_reads = 0;  // of table_reads, those that did not open a table
  bool reads_apply = false;

  uint64_t tables = 0, table_bytes = 0;
  std::vector<std::pair<const char*, double>> more;  // figures that only one operation has

  void Add(const char* name, double value) { more.emplace_back(name, value); }

  void Print(bool json) const {
    double rate = operations / seconds;
    double per_record = records ? double(table_bytes) / records : 0;
    double log_per_record = records ? double(log_bytes) / records : 0;
    double reads = operations ? double(table_reads) / operations : 0;
    double tables_read = operations ? double(data_reads) / operations : 0;
    uint64_t peak = ProcNumber("/proc/self/status", "VmHWM:") << 10;
    if (!json) {
      printf("leveldb %s %s: %.3f M/s, %lu in %.2f s, %.2f s CPU, %.0f MiB peak, %.1f B/record, "
             "%lu tables", options.c_str(), operation.c_str(), rate / 1e6, operations, seconds,
             cpu_seconds, peak / 1048576.0, per_record, tables);
      if (settled_seconds >= 0) printf(", settled after %.2f s", settled_seconds);
      if (reads_apply) printf(", %.3f reads/operation", reads);
      if (index_bits_per_key >= 0) printf(", %.2f index bits/key", index_bits_per_key);
      for (const auto& [name, value] : more) printf(", %s %.2f", name, value);
      printf("\n");
      return;
    }
    printf("{\"engine\":\"leveldb\",\"options\":\"%s\",\"operation\":\"%s\",\"threads\":%lu,"
           "\"durability\":\"%s\",\"operations\":%lu,\"seconds\":%.6f,"
           "\"operations_per_second\":%.1f,\"cpu_seconds\":%.3f,\"peak_rss_bytes\":%lu,"
           "\"store_bytes_written\":%lu,\"table_bytes_per_record\":%.2f,"
           "\"wal_bytes_per_record\":%.2f,\"tables\":%lu", options.c_str(), operation.c_str(),
           threads, durability.c_str(), operations, seconds, rate, cpu_seconds, peak,
           store_bytes_written, per_record, log_per_record, tables);
    if (settled_seconds >= 0) printf(",\"settled_seconds\":%.6f", settled_seconds);
    if (reads_apply) printf(",\"store_reads_per_operation\":%.4f", reads);
    if (index_bits_per_key >= 0) {
      printf(",\"index_bits_per_key\":%.3f", index_bits_per_key);
      if (reads_apply) printf(",\"table_reads_per_operation\":%.4f", tables_read);
    }
    for (const auto& [name, value] : more) printf(",\"%s\":%.3f", name, value);
    printf("}\n");
  }
};
