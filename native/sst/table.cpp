#include "sst/table.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace samovar {

namespace {
constexpr size_t BLOCK_BYTES = 4096, OUT_BYTES = 1 << 20, LINE_BYTES = 64;
constexpr int RESTARTS_EVERY = 16, BITS_A_KEY = 10, PROBES = 6;
constexpr uint64_t MAGIC = 0x88e241b785f4cff7;
constexpr uint32_t FORMAT = 5, EXTERNAL = 2;
constexpr char UNCOMPRESSED = 0, CRC32C = 1;
constexpr char DELETION = 0, VALUE = 1;  // of a row, next to its sequence number, which is 0 in such a file

size_t varint(char* to, uint64_t number) {
  size_t size = 0;
  for (; number >= 128; number >>= 7) to[size++] = (char)(number | 128);
  to[size++] = (char)number;
  return size;
}
std::string varint(uint64_t number) {
  char made[10];
  return {made, varint(made, number)};
}
std::string fixed(uint64_t number, size_t bytes) { return {(const char*)&number, bytes}; }  // little-endian, as we are

// How many bytes two keys begin with in common.
size_t common(std::string_view a, std::string_view b) {
  size_t most = std::min(a.size(), b.size()), k = 0;
  for (uint64_t x, y; k + 8 <= most; k += 8) {
    memcpy(&x, a.data() + k, 8);
    memcpy(&y, b.data() + k, 8);
    if (x != y) return k + (size_t)__builtin_ctzll(x ^ y) / 8;
  }
  while (k < most && a[k] == b[k]) k++;
  return k;
}

// The hash of RocksDB's first Bloom filter, which every version reads. Its last bytes are signed.
uint32_t bloom_hash(std::string_view key) {
  constexpr uint32_t m = 0xc6a4a793;
  uint32_t h = 0xbc9f1d34 ^ (uint32_t)key.size() * m;
  size_t k = 0;
  for (; k + 4 <= key.size(); k += 4) {
    uint32_t word;
    memcpy(&word, key.data() + k, 4);
    h = (h + word) * m;
    h ^= h >> 16;
  }
  if (size_t left = key.size() - k) {
    for (size_t j = left; j-- > 0;) h += (uint32_t)(int8_t)key[k + j] << 8 * j;
    h *= m;
    h ^= h >> 24;
  }
  return h;
}
}  // namespace

#if defined(__x86_64__)
uint32_t crc32c(const char* data, size_t size) {
  uint64_t crc = 0xffffffff;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  for (; size; data++, size--) crc = _mm_crc32_u8((uint32_t)crc, (uint8_t)*data);
  return ~(uint32_t)crc;
}
#else
uint32_t crc32c(const char* data, size_t size) {
  static const struct Bytes {
    uint32_t of[256];
    Bytes() {
      for (uint32_t k = 0; k < 256; k++) {
        of[k] = k;
        for (int bit = 0; bit < 8; bit++) of[k] = of[k] >> 1 ^ (of[k] & 1 ? 0x82f63b78u : 0);
      }
    }
  } bytes;
  uint32_t crc = 0xffffffff;
  for (; size; data++, size--) crc = crc >> 8 ^ bytes.of[(crc ^ (uint8_t)*data) & 255];
  return ~crc;
}
#endif

// ---------------------------------------------------------------- blocks

void Table::Block::add(std::string_view key, std::string_view end, size_t shared, std::string_view value, int interval) {
  if (restarts.empty() || since == interval) {
    restarts.push_back((uint32_t)bytes.size());
    shared = since = 0;
  }
  since++;
  char sizes[30];
  size_t size = varint(sizes, shared);
  size += varint(sizes + size, key.size() + end.size() - shared);
  size += varint(sizes + size, value.size());
  bytes.append(sizes, size).append(key.substr(shared)).append(end).append(value);
}

std::string_view Table::Block::finish() {
  if (restarts.empty()) restarts.push_back(0);
  bytes.append((const char*)restarts.data(), restarts.size() * 4);
  return bytes += fixed(restarts.size(), 4);
}

void Table::Block::clear() {
  bytes.clear();
  restarts.clear();
  since = 0;
}

// ---------------------------------------------------------------- rows

Table::Result Table::add(std::string_view key, const char* value, size_t size) {
  size_t shared = common(key, last_);
  if (rows_ && (shared == key.size() || (shared < last_.size() && (uint8_t)key[shared] < (uint8_t)last_[shared])))
    return UNORDERED;
  last_end_[0] = value ? VALUE : DELETION;
  block_.add(key, {last_end_, 8}, shared, value ? std::string_view(value, size) : std::string_view(), RESTARTS_EVERY);
  last_.assign(key);
  hashes_.push_back(bloom_hash(key));
  rows_++;
  deleted_ += !value;
  key_bytes_ += key.size() + 8;
  value_bytes_ += value ? size : 0;
  if (block_.bytes.size() >= BLOCK_BYTES) end_block();
  return error_ ? FAILED : ADDED;
}

void Table::end_block() {
  Place at = put(block_.finish());
  index_.add(last_, {last_end_, 8}, 0, varint(at.offset) + varint(at.size), 1);
  blocks_++;
  block_.clear();
}

Table::Place Table::put(std::string_view block) {
  Place at{offset_, block.size()};
  size_t begin = out_.size();
  out_.append(block);
  out_.push_back(UNCOMPRESSED);
  uint32_t crc = crc32c(out_.data() + begin, block.size() + 1);
  out_ += fixed((uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8), 4);  // a CRC of bytes that hold their CRC says little
  offset_ += block.size() + 5;
  if (out_.size() >= OUT_BYTES) flush();
  return at;
}

void Table::flush() {
  for (size_t done = 0; done < out_.size() && !error_;) {
    ssize_t some = write(file_, out_.data() + done, out_.size() - done);
    if (some >= 0) done += (size_t)some;
    else if (errno != EINTR) error_ = errno;
  }
  out_.clear();
}

// ---------------------------------------------------------------- the end of the file

std::string Table::filter() const {
  uint64_t lines = (hashes_.size() * BITS_A_KEY + LINE_BYTES * 8 - 1) / (LINE_BYTES * 8);
  lines |= 1;
  std::string bits(lines * LINE_BYTES, 0);
  for (uint32_t h : hashes_) {
    char* line = bits.data() + h % lines * LINE_BYTES;
    uint32_t step = h >> 17 | h << 15;
    for (int k = 0; k < PROBES; k++, h += step) line[h % 512 / 8] |= (char)(1 << h % 8);
  }
  bits.push_back(PROBES);
  return bits += fixed(lines, 4);
}

std::string Table::properties(uint64_t filter_size, uint64_t index_size) {
  uint64_t data_size = offset_ - filter_size - 5 - index_size - 5;
  const std::pair<const char*, std::string> found[] = {
      {"rocksdb.block.based.table.index.type", fixed(0, 4)},
      {"rocksdb.block.based.table.prefix.filtering", "0"},
      {"rocksdb.block.based.table.whole.key.filtering", "1"},
      {"rocksdb.comparator", "leveldb.BytewiseComparator"},
      {"rocksdb.compression", "NoCompression"},
      {"rocksdb.data.size", varint(data_size)},
      {"rocksdb.deleted.keys", varint(deleted_)},
      {"rocksdb.external_sst_file.global_seqno", fixed(0, 8)},
      {"rocksdb.external_sst_file.version", fixed(EXTERNAL, 4)},
      {"rocksdb.filter.policy", "rocksdb.BuiltinBloomFilter"},
      {"rocksdb.filter.size", varint(filter_size)},
      {"rocksdb.format.version", varint(FORMAT)},
      {"rocksdb.index.size", varint(index_size)},
      {"rocksdb.num.data.blocks", varint(blocks_)},
      {"rocksdb.num.entries", varint(rows_)},
      {"rocksdb.num.filter_entries", varint(hashes_.size())},
      {"rocksdb.raw.key.size", varint(key_bytes_)},
      {"rocksdb.raw.value.size", varint(value_bytes_)},
  };
  Block block;
  for (const auto& [name, value] : found) block.add(name, {}, 0, value, 1);
  block.finish();
  return block.bytes;
}

int Table::finish() {
  if (block_.since) end_block();
  std::string bits = filter(), handles;
  Place filtered = put(bits), index = put(index_.finish()), facts = put(properties(filtered.size, index.size));
  Block meta;
  meta.add("fullfilter.rocksdb.BuiltinBloomFilter", {}, 0, varint(filtered.offset) + varint(filtered.size), 1);
  meta.add("rocksdb.properties", {}, 0, varint(facts.offset) + varint(facts.size), 1);
  Place about = put(meta.finish());
  for (const Place& at : {about, index}) handles += varint(at.offset) + varint(at.size);
  handles.resize(40);
  out_.push_back(CRC32C);
  out_ += handles;
  out_ += fixed(FORMAT, 4) + fixed(MAGIC, 8);
  flush();
  return error_;
}

}  // namespace samovar
