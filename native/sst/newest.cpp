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

#include "util/boundary.h"
#include "match/keys.h"
#include "match/pack.h"
#include "sst/table.h"

namespace {
constexpr size_t AHEAD = 8;  // rows whose bytes are asked for before they are needed

struct Entry {
  const char *key, *value;
  uint32_t key_size, value_size;
  uint32_t hash;
  bool null;
  std::string_view view() const { return {key, key_size}; }
};

// An entry of the index of deadlines, as changelog/formats/record.py has it: b"t", 8 bytes of time, the key's bytes.
struct Due {
  uint64_t time;
  std::string_view key;
  bool operator<(const Due& o) const { return time != o.time ? time < o.time : key < o.key; }
  bool operator==(const Due& o) const { return time == o.time && key == o.key; }
};
constexpr char ROW = 'r', DUE = 't', HEADER = 0;
constexpr uint64_t NEVER = ~0ull;

// Of a row that is the header of a state with a deadline: that, and its key.
bool due_of(const Entry& e, Due& out) {
  if (e.null || !e.key_size || e.key[0] != ROW || e.value_size < 9) return false;
  samovar::Unpacker row{e.key + 1, e.key + e.key_size};
  out.key = row.text();
  row.text();
  if (row.bad || row.end - row.at != 1 || *row.at != HEADER) return false;
  out.time = samovar::get_big(e.value + 1, 8);
  return out.time != NEVER;
}

struct Newest {
  std::vector<Entry> entries;
  std::vector<uint32_t> table;  // places of entries, plus one; 0 is free
  size_t mask = 0;
  size_t common = SIZE_MAX;  // so many bytes are the same in all keys
  struct Sorted {
    uint64_t order;  // the first bytes in which keys differ, as a number
    uint32_t place;
  };
  std::vector<Sorted> sorted;
  std::string keys, values;
  std::vector<int64_t> key_bounds, value_bounds;
  std::vector<uint8_t> null;

  void reserve(size_t more) {
    size_t size = std::max<size_t>(1024, table.size());
    while (size < (entries.size() + more) * 2) size *= 2;
    if (size == table.size()) return;
    table.assign(size, 0);
    mask = size - 1;
    for (size_t k = 0; k < entries.size(); k++) {
      size_t at = entries[k].hash & mask;
      while (table[at]) at = (at + 1) & mask;
      table[at] = (uint32_t)k + 1;
    }
  }
  static uint32_t hash(const char* key, size_t size) { return (uint32_t)samovar::hash_bytes(key, size); }
  void add(const Entry& one) {
    size_t at = one.hash & mask;
    for (; table[at]; at = (at + 1) & mask) {
      Entry& e = entries[table[at] - 1];
      if (e.hash == one.hash && e.view() == one.view()) {
        e.value = one.value;
        e.value_size = one.value_size;
        e.null = one.null;
        return;
      }
    }
    table[at] = (uint32_t)entries.size() + 1;
    entries.push_back(one);
    std::string_view first = entries[0].view();
    size_t k = 0, most = std::min<size_t>(std::min<size_t>(common, one.key_size), first.size());
    while (k < most && one.key[k] == first[k]) k++;
    common = k;
  }
  void sort() {
    std::vector<uint32_t>().swap(table);
    sorted.reserve(entries.size());
    for (const Entry& e : entries) {
      uint64_t order = 0;
      for (size_t k = 0; k < 8; k++) order = order << 8 | (common + k < e.key_size ? (uint8_t)e.key[common + k] : 0);
      sorted.push_back({order, (uint32_t)sorted.size()});
    }
    std::sort(sorted.begin(), sorted.end(), [this](const Sorted& a, const Sorted& b) {
      return a.order != b.order ? a.order < b.order : entries[a.place].view() < entries[b.place].view();
    });
  }
  const Entry& at(size_t k) const { return entries[sorted[k].place]; }
  // Asks for the bytes of rows that come later: they lie anywhere.
  void ahead(size_t k) const {
    if (k + 2 * AHEAD < sorted.size()) __builtin_prefetch(&at(k + 2 * AHEAD));
    if (k + AHEAD >= sorted.size()) return;
    __builtin_prefetch(at(k + AHEAD).key);
    __builtin_prefetch(at(k + AHEAD).value);
  }
  void pack() {
    key_bounds.assign(1, 0);
    value_bounds.assign(1, 0);
    for (size_t k = 0; k < sorted.size(); k++) {
      const Entry& e = at(k);
      keys.append(e.key, e.key_size);
      if (!e.null) values.append(e.value, e.value_size);
      key_bounds.push_back((int64_t)keys.size());
      value_bounds.push_back((int64_t)values.size());
      null.push_back(e.null);
    }
  }
};
}  // namespace

SAMOVAR_EXPORT Newest* samovar_newest_new() { return samovar::make_object([] { return new Newest; }); }
SAMOVAR_EXPORT void samovar_newest_free(Newest* n) { delete n; }
SAMOVAR_EXPORT size_t samovar_newest_size(const Newest* n) { return n->entries.size(); }
SAMOVAR_EXPORT int64_t samovar_newest_add(Newest* n, size_t count, const char* keys, const int64_t* key_starts,
                                          const int64_t* key_ends, const char* values, const int64_t* value_starts,
                                          const int64_t* value_ends, const uint8_t* null) {
  int64_t result = samovar::done([&] {
    n->reserve(count);
    size_t wanted = n->entries.size() + count;
    if (wanted > n->entries.capacity()) n->entries.reserve(std::max(wanted, n->entries.capacity() * 2));
  });
  if (result != 0) return result;
  Entry some[2 * AHEAD];
  for (size_t begin = 0; begin < count; begin += 2 * AHEAD) {
    size_t end = std::min(count, begin + 2 * AHEAD);
    for (size_t k = begin; k < end; k++) {
      uint32_t key_size = (uint32_t)(key_ends[k] - key_starts[k]), value_size = (uint32_t)(value_ends[k] - value_starts[k]);
      const char* key = keys + key_starts[k];
      some[k - begin] = {key, values + value_starts[k], key_size, value_size, Newest::hash(key, key_size), null[k] != 0};
      __builtin_prefetch(&n->table[some[k - begin].hash & n->mask]);
    }
    for (size_t k = begin; k < end; k++) n->add(some[k - begin]);
  }
  return 0;
}
// Puts them in order of keys. Nothing can be added any more.
SAMOVAR_EXPORT int64_t samovar_newest_sort(Newest* n) { return samovar::done([&] { n->sort(); }); }
// The first of them, once sorted: where its key and value are, and their sizes. There must be one.
SAMOVAR_EXPORT void samovar_newest_first(const Newest* n, const char** places, int64_t* sizes) {
  const Entry& e = n->at(0);
  places[0] = e.key;
  places[1] = e.value;
  sizes[0] = e.key_size;
  sizes[1] = e.null ? -1 : (int64_t)e.value_size;
}
// Copies them into five columns, which are read then.
SAMOVAR_EXPORT int64_t samovar_newest_pack(Newest* n, const void** out) {
  if (int64_t failed = samovar::done([&] { n->pack(); })) return failed;
  out[0] = n->keys.data();
  out[1] = n->key_bounds.data();
  out[2] = n->values.data();
  out[3] = n->value_bounds.data();
  out[4] = n->null.data();
  return 0;
}
namespace {
int64_t write_table(const Newest* n, int file, std::string_view first, std::string_view value, bool deletes, bool index) {
  std::vector<Due> dues;
  Due due;
  for (size_t k = 0; index && k < n->sorted.size(); k++) {
    n->ahead(k);
    if (due_of(n->at(k), due)) dues.push_back(due);
  }
  std::sort(dues.begin(), dues.end());
  dues.erase(std::unique(dues.begin(), dues.end()), dues.end());
  samovar::Table table(file);
  bool added = table.add(first, value.data(), value.size()) == samovar::Table::ADDED;
  std::string entry;
  auto add_dues = [&] {
    for (const Due& one : dues) {
      if (!added) return;
      entry.assign(1, DUE);
      samovar::put_big(entry, one.time, 8);
      added = table.add(entry.append(one.key), "", 0) == samovar::Table::ADDED;
    }
    dues.clear();
  };
  for (size_t k = 0; added && k < n->sorted.size(); k++) {
    n->ahead(k);
    const Entry& e = n->at(k);
    if (!dues.empty() && (uint8_t)e.key[0] > (uint8_t)DUE) add_dues();
    if (added && (!e.null || deletes)) added = table.add(e.view(), e.null ? nullptr : e.value, e.value_size) == samovar::Table::ADDED;
  }
  add_dues();
  int error = added ? table.finish() : table.error() ? table.error() : EINVAL;
  return error ? -(int64_t)error : (int64_t)table.rows();
}
}  // namespace

// Writes them as a table file, after one row whose key is before all of theirs; those without a value only where
// `deletes` says so, and with an index of their deadlines where `index` does. How many rows, or less than 0: the error's
// number, negated.
SAMOVAR_EXPORT int64_t samovar_newest_write(const Newest* n, const char* path, const char* key, size_t key_size,
                                            const char* value, size_t value_size, int deletes, int index) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return -errno;
  int64_t rows = samovar::or_failed((int64_t)-ENOMEM, [&] {
    return write_table(n, file, {key, key_size}, {value, value_size}, deletes, index);
  });
  if (close(file) != 0 && rows >= 0) return -errno;
  return rows;
}
