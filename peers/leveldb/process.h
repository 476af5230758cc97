// SPDX-License-Identifier: Apache-2.0
// Process: the operating-system services that every operation of this driver needs.
#pragma once

#include <fcntl.h>
#include <leveldb/status.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "settings.h"

inline leveldb::Slice Slice(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

inline void Require(const leveldb::Status& status) {
  if (!status.ok()) Die(status.ToString());
}

// Runs work(thread) on each of `threads` threads.
inline void Parallel(uint64_t threads, const std::function<void(uint64_t)>& work) {
  std::vector<std::thread> others;
  for (uint64_t t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (auto& thread : others) thread.join();
}

// Asks the kernel to forget the store's pages; only root can drop all of them.
inline void DropPages(const std::string& store) {
  sync();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store)) {
    int file = open(entry.path().c_str(), O_RDONLY);
    if (file < 0) continue;
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
  std::ofstream("/proc/sys/vm/drop_caches") << 3;
}
