// What of a store is in memory: rows that go out and come in, and the keys that need not be looked for again.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "match/keys.h"

namespace samovar {

// Rows end to end: key, value, key, value... `ends` holds where each ends; a value that is no more ends at -1 - end.
struct RowList {
  std::string data;
  std::vector<int64_t> ends;
  void clear() { data.clear(); ends.clear(); }
  void add(std::string_view key, const std::string* value) {
    data.append(key);
    ends.push_back((int64_t)data.size());
    if (value) data.append(*value);
    ends.push_back(value ? (int64_t)data.size() : -1 - (int64_t)data.size());
  }
};

// Keys whose rows were looked for in the store, by two independent hashes: 128 bits tell a trillion keys apart.
class KnownKeys {
  struct Slot { uint64_t a = 0, b = 0; };
  std::vector<Slot> slots_ = std::vector<Slot>(64);
  size_t size_ = 0;

 public:
  // False where it was there already.
  bool add(std::string_view key) {
    uint64_t a = KeyTable::hash(key) | 1, b = mix(hash_bytes(key.data(), key.size()) ^ 0x2545F4914F6CDD1Dull, 0x9FB21C651E98DF25ull);
    size_t mask = slots_.size() - 1, at = b & mask;
    for (; slots_[at].a; at = (at + 1) & mask) if (slots_[at].a == a && slots_[at].b == b) return false;
    slots_[at] = {a, b};
    if (++size_ * 2 <= slots_.size()) return true;
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    mask = slots_.size() - 1;
    for (const Slot& s : old) if (s.a) {
      for (at = s.b & mask; slots_[at].a; at = (at + 1) & mask) {}
      slots_[at] = s;
    }
    return true;
  }
  size_t bytes() const { return slots_.size() * sizeof(Slot); }
};

}  // namespace samovar
