// SPDX-License-Identifier: Apache-2.0
// Dump: the batches of segments that `esker bench segment --dump` wrote, and the row of a segment.
// All engines read the same file, so that all of them get the same batches in the same order.
//
//   dump    "ESKERSEG" | version = 1, u32 | clients, u32 | segments, u64 | batches, u64
//           then for each batch, in order of arrival:
//           client, u32 | segments, u32 | for each: offset, u64 | length, u64 | log offset, u64
//   key     file, u64 | offset, u64                             big endian
//   value   client, u32 | log offset, u64 | length, u64         little endian
//
// Numbers of a dump are little endian; all its segments are of file 1, no two at one offset.
// Source: MetaKV, section II-B: a segment's key is its file and offset, its value names the log.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "process.h"
#include "workload.h"

constexpr uint64_t kSegmentFile = 1, kSeedShuffle = 42;
constexpr size_t kSegmentKeyBytes = 16, kSegmentValueBytes = 20;

struct Segment {
  uint64_t offset, length, log_offset;
  uint32_t client;
};

inline bool operator==(const Segment& a, const Segment& b) {
  return a.offset == b.offset && a.length == b.length && a.log_offset == b.log_offset &&
         a.client == b.client;
}

inline void EncodeSegmentKey(uint64_t file, uint64_t offset, char* key) {
  PutBigEndian(key, file);
  PutBigEndian(key + 8, offset);
}

inline void EncodeSegmentValue(const Segment& segment, char* value) {
  memcpy(value, &segment.client, 4);
  memcpy(value + 4, &segment.log_offset, 8);
  memcpy(value + 12, &segment.length, 8);
}

// False if the row isn't as long as a segment's.
inline bool DecodeSegment(std::string_view key, std::string_view value, Segment* segment) {
  if (key.size() != kSegmentKeyBytes || value.size() != kSegmentValueBytes) return false;
  uint64_t offset;
  memcpy(&offset, key.data() + 8, 8);
  segment->offset = __builtin_bswap64(offset);
  memcpy(&segment->client, value.data(), 4);
  memcpy(&segment->log_offset, value.data() + 4, 8);
  memcpy(&segment->length, value.data() + 12, 8);
  return true;
}

// A random order, the same every time: Fisher and Yates, by xorshift64*.
inline void ShuffleSegments(std::vector<Segment>* segments) {
  uint64_t state = kSeedShuffle;
  for (size_t i = segments->size(); i > 1; --i) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    std::swap((*segments)[i - 1], (*segments)[state * 0x2545F4914F6CDD1D % i]);
  }
}

class Dump {
 public:
  struct Batch { size_t begin, end; };

  explicit Dump(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    char magic[8];
    uint32_t version = 0, clients = 0;
    uint64_t segments = 0, batches = 0;
    if (!in.read(magic, 8) || memcmp(magic, "ESKERSEG", 8) != 0 || !Take(&in, &version) ||
        version != 1 || !Take(&in, &clients) || !Take(&in, &segments) || !Take(&in, &batches))
      Die(path + " is no dump of segments: make one by `esker bench segment --dump " + path + "`");
    for (uint64_t number = 0; number < batches; ++number) ReadBatch(&in, path);
    if (segments_.size() != segments || in.peek() != EOF)
      Die(path + ": it doesn't hold the segments that it says");
  }

  const std::vector<Segment>& segments() const { return segments_; }

  // All batches in order of arrival, cut into pieces of at most `most` segments.
  std::vector<Batch> Batches(size_t most) const {
    std::vector<Batch> cut;
    size_t begin = 0;
    for (size_t end : ends_)
      for (; begin < end; begin = cut.back().end) cut.push_back({begin, std::min(begin + most, end)});
    return cut;
  }

  // Puts the segments into a random order and drops the batches.
  void Shuffle() {
    ShuffleSegments(&segments_);
    ends_.assign(1, segments_.size());
  }

 private:
  template <typename Number>
  static bool Take(std::ifstream* in, Number* number) {
    return bool(in->read(reinterpret_cast<char*>(number), sizeof *number));
  }

  void ReadBatch(std::ifstream* in, const std::string& path) {
    constexpr uint32_t kSegmentsMax = 1 << 20;
    uint32_t client = 0, count = 0;
    if (!Take(in, &client) || !Take(in, &count) || count > kSegmentsMax)
      Die(path + ": a batch is cut off or too large");
    words_.resize(size_t{3} * count);
    if (!in->read(reinterpret_cast<char*>(words_.data()), words_.size() * 8))
      Die(path + ": a batch is cut off");
    for (size_t i = 0; i < words_.size(); i += 3)
      segments_.push_back({words_[i], words_[i + 1], words_[i + 2], client});
    ends_.push_back(segments_.size());
  }

  std::vector<Segment> segments_;
  std::vector<size_t> ends_;
  std::vector<uint64_t> words_;
};
