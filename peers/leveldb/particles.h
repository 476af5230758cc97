// SPDX-License-Identifier: Apache-2.0
// Particles: the records of indexed directories, as Esker's bench defines them
// (crates/bench/src/particles.rs); peers/README.md states the definition.
// Source: the benchmark of DeltaFS thesis, section 5.3.1.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "workload.h"

constexpr size_t kParticleKeyBytes = 8, kEpochBytes = 4;
constexpr uint64_t kSeedGet = 5, kSeedWarmGets = 6;

struct Particles {
  uint64_t keys = 0, ranks = 1, epochs = 1, value_bytes = 40;

  // The number of the first key that `rank` writes in `epoch`; the others follow in steps of ranks.
  uint64_t First(uint64_t rank, uint64_t epoch) const {
    return (rank + ranks - epoch % ranks) % ranks;
  }
};

// One record. With several epochs a row's key ends in the epoch, big endian: rows are unique.
class Particle {
 public:
  explicit Particle(const Particles& all) : all_(all), value_((all.value_bytes + 7) / 8 * 8, 0) {}

  void Set(uint64_t number, uint64_t epoch) {
    uint64_t z = number + 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    PutBigEndian(key_, z);
    uint32_t big_endian = __builtin_bswap32(uint32_t(epoch));
    memcpy(key_ + kParticleKeyBytes, &big_endian, kEpochBytes);
    z += epoch * 0xD6E8FEB86659FD93;
    for (size_t at = 0; at < value_.size(); at += 8) {
      uint64_t word = z * 0xFF51AFD7ED558CCD;
      word ^= word >> 32;
      memcpy(&value_[at], &word, 8);
      z += 0x9E3779B97F4A7C15;
    }
  }

  // The rank that indexes the key: equal ranges of its hash.
  uint64_t partition() const {
    return uint64_t((__uint128_t(XXH3_64bits(key_, kParticleKeyBytes)) * all_.ranks) >> 64);
  }
  std::string_view row_key() const {
    return {key_, kParticleKeyBytes + (all_.epochs > 1 ? kEpochBytes : 0)};
  }
  std::string_view value() const { return {value_.data(), all_.value_bytes}; }

 private:
  const Particles& all_;
  char key_[kParticleKeyBytes + kEpochBytes];
  std::string value_;
};
