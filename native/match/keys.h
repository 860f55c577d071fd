// Keys: which key an event belongs to, as a small whole number that is reused when the key's last state goes.
//
// A key's bytes, one value after the other; they order and compare the same on every machine:
//   number that is whole   'i', 8 bytes, big end first, sign flipped
//   other number           'f', the 8 bytes of the double, big end first
//   boolean                'b', 0 or 1
//   text                   't', 4 bytes of length, big end first, UTF-8
#pragma once
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "util/value.h"

namespace samovar {

inline void put_big(std::string& out, uint64_t n, int bytes) {
  for (int k = bytes - 1; k >= 0; k--) out.push_back((char)(n >> (8 * k)));
}
inline uint64_t get_big(const char* p, int bytes) {
  uint64_t n = 0;
  for (int k = 0; k < bytes; k++) n = n << 8 | (unsigned char)p[k];
  return n;
}

// False where the value cannot be a key (null, an object): the event then belongs to no key.
inline bool encode_key(std::string& out, const Value& v) {
  switch (v.tag) {
    case BOOL: out.push_back('b'); out.push_back((char)v.i); return true;
    case INT: out.push_back('i'); put_big(out, (uint64_t)v.i ^ (1ull << 63), 8); return true;
    case FLOAT: {
      if (v.d >= -9.2e18 && v.d <= 9.2e18 && v.d == (double)(int64_t)v.d) return encode_key(out, Value::integer((int64_t)v.d));
      uint64_t bits;
      memcpy(&bits, &v.d, 8);
      out.push_back('f'); put_big(out, bits, 8);
      return true;
    }
    case TEXT: {
      char head[5] = {'t', (char)(v.len >> 24), (char)(v.len >> 16), (char)(v.len >> 8), (char)v.len};
      out.append(head, 5);
      out.append(v.s, v.len);
      return true;
    }
    default: return false;
  }
}

// The values of a key; views into its bytes.
inline std::vector<Value> decode_key(const std::string& key) {
  std::vector<Value> out;
  const char *p = key.data(), *end = p + key.size();
  while (p < end) switch (*p++) {
    case 'b': out.push_back(Value::boolean(*p++)); break;
    case 'i': out.push_back(Value::integer((int64_t)(get_big(p, 8) ^ (1ull << 63)))); p += 8; break;
    case 'f': { uint64_t bits = get_big(p, 8); double d; memcpy(&d, &bits, 8); out.push_back(Value::number(d)); p += 8; break; }
    default: { uint32_t n = (uint32_t)get_big(p, 4); out.push_back(Value::text(p + 4, n)); p += 4 + n; }
  }
  return out;
}

// Whether bytes are those of a key: stored ones may be damaged.
inline bool is_key(std::string_view key) {
  while (!key.empty()) {
    size_t size = key[0] == 'b' ? 2 : key[0] == 'i' || key[0] == 'f' ? 9 : 5;
    if (key.size() < size || (size == 5 && key[0] != 't')) return false;
    if (size == 5) size += get_big(key.data() + 1, 4);
    if (key.size() < size) return false;
    key.remove_prefix(size);
  }
  return true;
}

inline uint64_t mix(uint64_t a, uint64_t b) {
  unsigned __int128 m = (unsigned __int128)a * b;
  return (uint64_t)m ^ (uint64_t)(m >> 64);
}
inline uint64_t hash_bytes(const char* p, size_t n) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ n;
  while (n >= 8) {
    uint64_t w;
    memcpy(&w, p, 8);
    h = mix(h ^ w, 0xD6E8FEB86659FD93ull);
    p += 8; n -= 8;
  }
  uint64_t tail = 0;
  memcpy(&tail, p, n);
  return mix(h ^ tail, 0xA0761D6478BD642Full);
}

class KeyTable {
  struct Entry {
    uint64_t hash = 0;
    std::string bytes;
    uint32_t uses = 0;
    bool live = false;
  };
  struct Slot {
    uint32_t id = 0;   // id + 1, 0 is free
    uint32_t tag = 0;  // the hash's upper half: most strangers are told by it without a look at their entry
  };
  std::vector<Entry> entries_;
  std::vector<Slot> slots_ = std::vector<Slot>(64);
  std::vector<uint32_t> free_, touched_;
  size_t live_ = 0;

  size_t home(uint64_t hash) const { return hash & (slots_.size() - 1); }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (Slot s : old) if (s.id) {
      size_t at = home(entries_[s.id - 1].hash);
      while (slots_[at].id) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = s;
    }
  }
  void erase(uint32_t id) {
    size_t mask = slots_.size() - 1, at = home(entries_[id].hash);
    while (slots_[at].id != id + 1) at = (at + 1) & mask;
    slots_[at] = {};
    for (size_t k = (at + 1) & mask; slots_[k].id; k = (k + 1) & mask) {  // close the gap, so that no search stops short
      size_t want = home(entries_[slots_[k].id - 1].hash);
      if (((k - want) & mask) >= ((k - at) & mask)) { slots_[at] = slots_[k]; slots_[k] = {}; at = k; }
    }
    entries_[id].live = false;
    std::string().swap(entries_[id].bytes);
    free_.push_back(id);
    live_--;
  }

 public:
  // A key that is one text hashes as that text, so that it can be looked up without writing its bytes.
  static uint64_t hash(std::string_view key) {
    bool one_text = key.size() >= 5 && key[0] == 't' && get_big(key.data() + 1, 4) == key.size() - 5;
    return one_text ? hash_bytes(key.data() + 5, key.size() - 5) : ~hash_bytes(key.data(), key.size());
  }
  static uint64_t hash_text(const Value& v) { return hash_bytes(v.s, v.len); }
  // The id of a key that is one text; -1 where it is not there.
  int64_t find_text(const Value& v, uint64_t h) const {
    size_t mask = slots_.size() - 1;
    for (size_t at = home(h); slots_[at].id; at = (at + 1) & mask) {
      if (slots_[at].tag != (uint32_t)(h >> 32)) continue;
      const Entry& e = entries_[slots_[at].id - 1];
      if (e.hash == h && e.bytes.size() == v.len + 5 && e.bytes[0] == 't' && memcmp(e.bytes.data() + 5, v.s, v.len) == 0)
        return slots_[at].id - 1;
    }
    return -1;
  }
  void prefetch_slot(uint64_t h) const { __builtin_prefetch(&slots_[home(h)]); }
  void prefetch_entry(uint64_t h) const {
    uint32_t id = slots_[home(h)].id;
    if (id) __builtin_prefetch(&entries_[id - 1]);
  }
  uint32_t find_or_add(std::string_view key) { return find_or_add(key, hash(key)); }
  uint32_t find_or_add(std::string_view key, uint64_t h) {
    size_t mask = slots_.size() - 1, at = home(h);
    for (; slots_[at].id; at = (at + 1) & mask) {
      if (slots_[at].tag != (uint32_t)(h >> 32)) continue;
      Entry& e = entries_[slots_[at].id - 1];
      if (e.hash == h && e.bytes == key) return slots_[at].id - 1;
    }
    uint32_t id;
    if (free_.empty()) { id = (uint32_t)entries_.size(); entries_.emplace_back(); }
    else { id = free_.back(); free_.pop_back(); }
    Entry& e = entries_[id];
    e.hash = h; e.bytes = key; e.uses = 0; e.live = true;
    slots_[at] = {id + 1, (uint32_t)(h >> 32)};
    touched_.push_back(id);
    if (++live_ * 2 > slots_.size()) grow();
    return id;
  }
  const std::string& bytes(uint32_t id) const { return entries_[id].bytes; }
  void use(uint32_t id) { entries_[id].uses++; }
  void release(uint32_t id) { if (--entries_[id].uses == 0) touched_.push_back(id); }
  // Forget keys that no state uses; ids handed out before are good until then.
  void sweep() {
    for (uint32_t id : touched_) if (entries_[id].live && entries_[id].uses == 0) erase(id);
    touched_.clear();
  }
  size_t size() const { return live_; }
};

// A map from key ids to something, for the states of one rule. Ids are small and dense, so a page of 64 of them is one
// word that says which are there and a list of those, by id: going through keys in the order of their ids stays near.
template <class T>
class IdMap {
  struct Page {
    uint64_t present = 0;
    T** values = nullptr;
    uint32_t room = 0;
  };
  std::vector<Page> pages_;
  size_t size_ = 0;
  static uint64_t bit(uint32_t id) { return 1ull << (id & 63); }
  static size_t place(const Page& p, uint32_t id) { return (size_t)__builtin_popcountll(p.present & (bit(id) - 1)); }
  static bool resize(Page& p, uint32_t room) {
    T** values = (T**)realloc(p.values, room * sizeof(T*));
    if (!values) return false;
    p.values = values;
    p.room = room;
    return true;
  }

 public:
  IdMap() {}
  IdMap(IdMap&& o) noexcept : pages_(std::move(o.pages_)), size_(o.size_) { o.pages_.clear(); o.size_ = 0; }
  IdMap(const IdMap&) = delete;
  IdMap& operator=(const IdMap&) = delete;
  ~IdMap() { for (Page& p : pages_) free(p.values); }

  size_t size() const { return size_; }
  bool has(uint32_t id) const { return id >> 6 < pages_.size() && (pages_[id >> 6].present & bit(id)); }
  void prefetch(uint32_t id) const {
    if (has(id)) __builtin_prefetch(pages_[id >> 6].values + place(pages_[id >> 6], id));
  }
  T* find(uint32_t id) const { return has(id) ? pages_[id >> 6].values[place(pages_[id >> 6], id)] : nullptr; }
  void add(uint32_t id, T* value) {
    if (id >> 6 >= pages_.size()) pages_.resize((id >> 6) + 1);
    Page& p = pages_[id >> 6];
    uint32_t count = (uint32_t)__builtin_popcountll(p.present);
    if (count == p.room && !resize(p, p.room ? p.room * 2 : 4)) throw std::bad_alloc();
    size_t at = place(p, id);
    memmove(p.values + at + 1, p.values + at, (count - at) * sizeof(T*));
    p.values[at] = value;
    p.present |= bit(id);
    size_++;
  }
  void remove(uint32_t id) {
    Page& p = pages_[id >> 6];
    size_t at = place(p, id), count = (size_t)__builtin_popcountll(p.present);
    memmove(p.values + at, p.values + at + 1, (count - at - 1) * sizeof(T*));
    p.present &= ~bit(id);
    size_--;
    if (!p.present) { free(p.values); p.values = nullptr; p.room = 0; }
    else if (count * 4 < p.room) resize(p, p.room / 2);  // or it stays as large as it is
  }
  template <class F>
  void each(F f) const {
    for (size_t k = 0; k < pages_.size(); k++) {
      size_t n = 0;
      for (uint64_t left = pages_[k].present; left; left &= left - 1)
        f((uint32_t)(k * 64 + (size_t)__builtin_ctzll(left)), pages_[k].values[n++]);
    }
  }
};

}  // namespace samovar
