// SPDX-License-Identifier: Apache-2.0
// CountingEnv: LevelDB's environment with counters, an exact notion of quiet, and the log's
// write-through policy.
// LevelDB's log writer hands every record to the kernel at once. `Log::kBuffered` keeps records
// back until 64 KiB or 100 ms, the promise of Esker's level `async`; `Log::kNone` drops them,
// since LevelDB has no option for it. Tables, manifest and CURRENT pass through untouched.
// Each environment has its own background thread, as LevelDB has one a process: instances that
// stand for ranks compact side by side.
// Concurrency: counters are atomic; a buffered log is guarded by its own mutex, because the
// timer flushes it beside the writer.
#pragma once

#include <leveldb/env.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

enum class Log { kThrough, kBuffered, kNone };

constexpr size_t kLogBufferBytesMax = 64 << 10;
constexpr auto kLogDelayMax = std::chrono::milliseconds(100);

class CountingEnv : public leveldb::EnvWrapper {
 public:
  explicit CountingEnv(Log log) : EnvWrapper(leveldb::Env::Default()), log_(log) {
    if (log_ == Log::kBuffered) timer_ = std::thread([this] { FlushByTime(); });
  }
  ~CountingEnv() override {
    { std::lock_guard<std::mutex> lock(mutex_); stopping_ = true; }
    { std::lock_guard<std::mutex> lock(worker_mutex_); worker_stopping_ = true; }
    wake_.notify_all();
    worker_wake_.notify_all();
    if (timer_.joinable()) timer_.join();
    if (worker_.joinable()) worker_.join();
  }

  uint64_t log_bytes() const { return log_bytes_; }
  uint64_t table_reads() const { return table_reads_; }
  // Reads of tables but for those that open one.
  uint64_t data_reads() const { return data_reads_; }
  // No flush or compaction runs or waits: LevelDB schedules the next before it leaves the last.
  bool quiet() const { return background_ == 0; }

  leveldb::Status NewWritableFile(const std::string& name, leveldb::WritableFile** file) override;
  leveldb::Status NewRandomAccessFile(const std::string& name,
                                      leveldb::RandomAccessFile** file) override;
  void Schedule(void (*work)(void*), void* argument) override;

 private:
  class LogFile;
  class TableFile;
  struct Task { void (*work)(void*); void* argument; };

  void FlushByTime();
  void RunTasks();

  const Log log_;
  std::atomic<uint64_t> log_bytes_{0}, table_reads_{0}, data_reads_{0}, background_{0};
  std::thread timer_;
  std::mutex mutex_;  // guards logs_ and stopping_; taken before a LogFile's
  std::condition_variable wake_;
  std::vector<LogFile*> logs_;
  bool stopping_ = false;

  std::mutex worker_mutex_;  // guards what follows; taken alone
  std::condition_variable worker_wake_;
  std::deque<Task> tasks_;
  std::thread worker_;
  bool worker_stopping_ = false;
};

class CountingEnv::LogFile : public leveldb::WritableFile {
 public:
  LogFile(leveldb::WritableFile* file, CountingEnv* env) : file_(file), env_(env) {
    std::lock_guard<std::mutex> lock(env_->mutex_);
    env_->logs_.push_back(this);
  }
  ~LogFile() override {
    std::lock_guard<std::mutex> lock(env_->mutex_);
    auto& logs = env_->logs_;
    logs.erase(std::remove(logs.begin(), logs.end(), this), logs.end());
    delete file_;
  }
  leveldb::Status Append(const leveldb::Slice& data) override {
    if (env_->log_ == Log::kNone) return leveldb::Status::OK();
    env_->log_bytes_.fetch_add(data.size(), std::memory_order_relaxed);
    if (env_->log_ == Log::kThrough) return file_->Append(data);
    std::lock_guard<std::mutex> lock(mutex_);
    held_bytes_ += data.size();
    return file_->Append(data);
  }
  leveldb::Status Flush() override {
    if (env_->log_ == Log::kThrough) return file_->Flush();
    std::lock_guard<std::mutex> lock(mutex_);
    return held_bytes_ < kLogBufferBytesMax ? leveldb::Status::OK() : Drain();
  }
  leveldb::Status Sync() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return file_->Sync();
  }
  leveldb::Status Close() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return file_->Close();
  }
  void FlushNow() {
    std::lock_guard<std::mutex> lock(mutex_);
    Drain();
  }

 private:
  leveldb::Status Drain() {
    held_bytes_ = 0;
    return file_->Flush();
  }
  leveldb::WritableFile* const file_;
  CountingEnv* const env_;
  std::mutex mutex_;  // guards file_ and held_bytes_ unless the log writes through
  size_t held_bytes_ = 0;
};

class CountingEnv::TableFile : public leveldb::RandomAccessFile {
 public:
  TableFile(leveldb::RandomAccessFile* file, CountingEnv* env) : file_(file), env_(env) {}
  ~TableFile() override { delete file_; }
  leveldb::Status Read(uint64_t offset, size_t n, leveldb::Slice* result,
                       char* scratch) const override {
    env_->table_reads_.fetch_add(1, std::memory_order_relaxed);
    if (reads_.fetch_add(1, std::memory_order_relaxed) >= kOpeningReads)
      env_->data_reads_.fetch_add(1, std::memory_order_relaxed);
    return file_->Read(offset, n, result, scratch);
  }

 private:
  // Footer, index, names of blocks, filter: Table::Open.
  static constexpr uint64_t kOpeningReads = 4;

  leveldb::RandomAccessFile* const file_;
  CountingEnv* const env_;
  mutable std::atomic<uint64_t> reads_{0};
};

inline leveldb::Status CountingEnv::NewWritableFile(const std::string& name,
                                                    leveldb::WritableFile** file) {
  leveldb::Status status = target()->NewWritableFile(name, file);
  bool is_log = name.size() > 4 && name.compare(name.size() - 4, 4, ".log") == 0;
  if (status.ok() && is_log) *file = new LogFile(*file, this);
  return status;
}

inline leveldb::Status CountingEnv::NewRandomAccessFile(const std::string& name,
                                                        leveldb::RandomAccessFile** file) {
  leveldb::Status status = target()->NewRandomAccessFile(name, file);
  if (status.ok()) *file = new TableFile(*file, this);
  return status;
}

inline void CountingEnv::Schedule(void (*work)(void*), void* argument) {
  ++background_;
  std::lock_guard<std::mutex> lock(worker_mutex_);
  tasks_.push_back({work, argument});
  if (!worker_.joinable()) worker_ = std::thread([this] { RunTasks(); });
  worker_wake_.notify_one();
}

inline void CountingEnv::RunTasks() {
  std::unique_lock<std::mutex> lock(worker_mutex_);
  for (;;) {
    worker_wake_.wait(lock, [this] { return worker_stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = tasks_.front();
    tasks_.pop_front();
    lock.unlock();
    task.work(task.argument);
    --background_;
    lock.lock();
  }
}

inline void CountingEnv::FlushByTime() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, kLogDelayMax, [this] { return stopping_; }))
    for (LogFile* file : logs_) file->FlushNow();
}
