// Of many records with keys, the newest of each key, in order of keys: what a restore writes. The records' bytes are not
// copied before the end: they must stay where they are.
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "keys.h"
#include "table.h"

#define SAMOVAR_EXPORT extern "C" __attribute__((visibility("default")))

namespace {
constexpr size_t AHEAD = 8;  // rows whose bytes are asked for before they are needed

struct Entry {
  const char *key, *value;
  uint32_t key_size, value_size;
  uint64_t order;  // the first bytes in which keys differ, as a number
  bool null;
  std::string_view view() const { return {key, key_size}; }
};

struct Newest {
  std::vector<Entry> entries;
  std::vector<uint32_t> table;  // places of entries, plus one; 0 is free
  size_t mask = 0;
  std::string keys, values;
  std::vector<int64_t> key_bounds, value_bounds;
  std::vector<uint8_t> null;

  void grow() {
    size_t size = std::max<size_t>(1024, table.size() * 2);
    table.assign(size, 0);
    mask = size - 1;
    for (size_t k = 0; k < entries.size(); k++) {
      size_t at = samovar::hash_bytes(entries[k].key, entries[k].key_size) & mask;
      while (table[at]) at = (at + 1) & mask;
      table[at] = (uint32_t)k + 1;
    }
  }
  void add(const char* key, uint32_t key_size, const char* value, uint32_t value_size, bool gone) {
    if ((entries.size() + 1) * 2 > table.size()) grow();
    size_t at = samovar::hash_bytes(key, key_size) & mask;
    for (; table[at]; at = (at + 1) & mask) {
      Entry& e = entries[table[at] - 1];
      if (e.key_size == key_size && memcmp(e.key, key, key_size) == 0) {
        e.value = value;
        e.value_size = value_size;
        e.null = gone;
        return;
      }
    }
    table[at] = (uint32_t)entries.size() + 1;
    entries.push_back(Entry{key, value, key_size, value_size, 0, gone});
  }
  size_t common() const {
    std::string_view first = entries[0].view();
    size_t size = first.size();
    for (const Entry& e : entries) {
      size = std::min<size_t>(size, e.key_size);
      size_t k = 0;
      while (k < size && e.key[k] == first[k]) k++;
      size = k;
    }
    return size;
  }
  void sort() {
    if (entries.empty()) return;
    size_t skip = common();
    for (Entry& e : entries) {
      e.order = 0;
      for (size_t k = 0; k < 8; k++) e.order = e.order << 8 | (skip + k < e.key_size ? (uint8_t)e.key[skip + k] : 0);
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.order != b.order ? a.order < b.order : a.view() < b.view();
    });
  }
  void pack() {
    key_bounds.assign(1, 0);
    value_bounds.assign(1, 0);
    for (const Entry& e : entries) {
      keys.append(e.key, e.key_size);
      if (!e.null) values.append(e.value, e.value_size);
      key_bounds.push_back((int64_t)keys.size());
      value_bounds.push_back((int64_t)values.size());
      null.push_back(e.null);
    }
  }
};
}  // namespace

SAMOVAR_EXPORT Newest* samovar_newest_new() { return new Newest; }
SAMOVAR_EXPORT void samovar_newest_free(Newest* n) { delete n; }
SAMOVAR_EXPORT size_t samovar_newest_size(const Newest* n) { return n->entries.size(); }
SAMOVAR_EXPORT void samovar_newest_add(Newest* n, size_t count, const char* keys, const int64_t* key_starts,
                                       const int64_t* key_ends, const char* values, const int64_t* value_starts,
                                       const int64_t* value_ends, const uint8_t* null) {
  for (size_t k = 0; k < count; k++)
    n->add(keys + key_starts[k], (uint32_t)(key_ends[k] - key_starts[k]), values + value_starts[k],
           (uint32_t)(value_ends[k] - value_starts[k]), null[k] != 0);
}
// Puts them in order of keys. Nothing can be added any more.
SAMOVAR_EXPORT void samovar_newest_sort(Newest* n) { n->sort(); }
// The first of them, once sorted: where its key and value are, and their sizes. There must be one.
SAMOVAR_EXPORT void samovar_newest_first(const Newest* n, const char** places, int64_t* sizes) {
  const Entry& e = n->entries[0];
  places[0] = e.key;
  places[1] = e.value;
  sizes[0] = e.key_size;
  sizes[1] = e.null ? -1 : (int64_t)e.value_size;
}
// Copies them into five columns, which are read then.
SAMOVAR_EXPORT void samovar_newest_pack(Newest* n, const void** out) {
  n->pack();
  out[0] = n->keys.data();
  out[1] = n->key_bounds.data();
  out[2] = n->values.data();
  out[3] = n->value_bounds.data();
  out[4] = n->null.data();
}
// Writes them as a table file, after one row whose key is before all of theirs; those without a value only where
// `deletes` says so. How many rows, or less than 0: the error's number, negated.
SAMOVAR_EXPORT int64_t samovar_newest_write(const Newest* n, const char* path, const char* key, size_t key_size,
                                            const char* value, size_t value_size, int deletes) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return -errno;
  samovar::Table table(file);
  bool added = table.add({key, key_size}, value, value_size) == samovar::Table::ADDED;
  for (size_t k = 0; added && k < n->entries.size(); k++) {
    if (k + AHEAD < n->entries.size()) {
      __builtin_prefetch(n->entries[k + AHEAD].key);
      __builtin_prefetch(n->entries[k + AHEAD].value);
    }
    const Entry& e = n->entries[k];
    if (!e.null || deletes) added = table.add(e.view(), e.null ? nullptr : e.value, e.value_size) == samovar::Table::ADDED;
  }
  int error = added ? table.finish() : table.error() ? table.error() : EINVAL;
  if (close(file) != 0 && !error) error = errno;
  return error ? -(int64_t)error : (int64_t)table.rows();
}
