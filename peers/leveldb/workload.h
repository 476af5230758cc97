// SPDX-License-Identifier: Apache-2.0
// Workload: which file each operation touches, and TableFS's row for it.
// The Rust driver's workload.rs and Esker's bench hold the same definitions; peers/README.md
// states them, and `make -C peers check` compares the two drivers' permutations and rows.
//
//   key    directory id, 8 bytes big endian | XXH3-128 of the name, 16 bytes big endian
//   value  struct stat, 144 bytes | name
//
// Source: TableFS, Ren and Gibson, USENIX ATC 2013, section 3.2.
#pragma once

#define XXH_INLINE_ALL
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <string_view>

constexpr size_t kKeyBytes = 24;
constexpr size_t kStatBytes = sizeof(struct stat);
constexpr size_t kNameBytesMax = 64;
static_assert(kStatBytes == 144, "TableFS's row holds the 144-byte struct stat of x86-64 Linux");

// Seeds of the permutations, one for each purpose.
constexpr uint64_t kSeedCreate = 1, kSeedStat = 2, kSeedRemove = 3, kSeedWarm = 4;

// A bijection of [0, n) computed on the fly: a Feistel network of four rounds over
// ceil(log2 n) bits (at least two), walked until it lands below n.
class Permutation {
 public:
  Permutation(uint64_t n, uint64_t seed) : n_(n) {
    unsigned bits = 2;
    while (bits < 64 && (uint64_t{1} << bits) < n) ++bits;
    right_bits_ = bits - bits / 2;
    left_mask_ = (uint64_t{1} << (bits / 2)) - 1;
    right_mask_ = (uint64_t{1} << right_bits_) - 1;
    for (auto& key : keys_) {  // splitmix64
      uint64_t z = (seed += 0x9E3779B97F4A7C15);
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
      key = z ^ (z >> 31);
    }
  }

  uint64_t operator()(uint64_t i) const {
    do {
      uint64_t left = i >> right_bits_, right = i & right_mask_;
      left ^= Mix(right, keys_[0]) & left_mask_;
      right ^= Mix(left, keys_[1]) & right_mask_;
      left ^= Mix(right, keys_[2]) & left_mask_;
      right ^= Mix(left, keys_[3]) & right_mask_;
      i = left << right_bits_ | right;
    } while (i >= n_);
    return i;
  }

 private:
  static uint64_t Mix(uint64_t x, uint64_t key) {
    uint64_t z = (x ^ key) * 0xD6E8FEB86659FD93;
    z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93;
    return z >> 32;
  }

  uint64_t n_, left_mask_, right_mask_, keys_[4];
  unsigned right_bits_;
};

inline void PutBigEndian(char* to, uint64_t value) {
  value = __builtin_bswap64(value);
  memcpy(to, &value, sizeof value);
}

// One row: the name's buffer doubles as the tail of the value.
class Row {
 public:
  // The row of the file numbered `number`, created by `rank`.
  void Set(uint64_t rank, uint64_t number, uint64_t directories) {
    char* at = value_ + kStatBytes;
    memcpy(at, "file.mdtest.", 12);
    at = PutDecimal(at + 12, rank);
    *at++ = '.';
    at = PutDecimal(at, number);
    name_bytes_ = at - value_ - kStatBytes;
    number_ = number;
    XXH128_hash_t hash = XXH3_128bits(value_ + kStatBytes, name_bytes_);
    PutBigEndian(key_, 1 + number % directories);
    PutBigEndian(key_ + 8, hash.high64);
    PutBigEndian(key_ + 16, hash.low64);
  }

  // Stamps the struct stat of a new, empty, regular file.
  void Stamp() {
    struct stat attributes = {};
    attributes.st_ino = number_ + 2;
    attributes.st_nlink = 1;
    attributes.st_mode = S_IFREG | 0644;
    attributes.st_uid = attributes.st_gid = 1000;
    attributes.st_blksize = 4096;
    clock_gettime(CLOCK_REALTIME, &attributes.st_ctim);
    attributes.st_atim = attributes.st_mtim = attributes.st_ctim;
    memcpy(value_, &attributes, kStatBytes);
  }

  std::string_view key() const { return {key_, kKeyBytes}; }
  std::string_view value() const { return {value_, kStatBytes + name_bytes_}; }
  std::string_view name() const { return {value_ + kStatBytes, name_bytes_}; }

 private:
  static char* PutDecimal(char* to, uint64_t value) {
    char digits[20];
    int count = 0;
    do digits[count++] = '0' + value % 10;
    while (value /= 10);
    while (count) *to++ = digits[--count];
    return to;
  }

  char key_[kKeyBytes];
  char value_[kStatBytes + kNameBytesMax];
  size_t name_bytes_ = 0;
  uint64_t number_ = 0;
};

// What create left behind: enough to name any of its files again.
struct Shape {
  uint64_t files = 0, directories = 1, ranks = 1;
};

// Insertion i of the shape made file permute(i), by rank i mod ranks.
class Files {
 public:
  explicit Files(const Shape& shape) : shape_(shape), permute_(shape.files, kSeedCreate) {}

  void Existing(uint64_t insertion, Row* row) const {
    row->Set(insertion % shape_.ranks, permute_(insertion), shape_.directories);
  }
  // A name that was never made, in a directory that was.
  void Absent(uint64_t insertion, Row* row) const {
    row->Set(insertion % shape_.ranks, shape_.files + permute_(insertion), shape_.directories);
  }

 private:
  Shape shape_;
  Permutation permute_;
};

// The attributes and the name in a value; false if it's too short to hold them.
inline bool DecodeValue(std::string_view value, struct stat* attributes, std::string_view* name) {
  if (value.size() < kStatBytes) return false;
  memcpy(attributes, value.data(), kStatBytes);
  *name = value.substr(kStatBytes);
  return true;
}
