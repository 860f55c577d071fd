// Sorted table files as RocksDB reads them ("block-based table", version 5 of its format): for rows that come in order
// of keys and are taken into a store whole. Blocks are not compressed (RocksDB does that when it merges them), each has
// a CRC-32C, and a Bloom filter over whole keys (10 bits a key, in lines of 64 bytes) stands next to them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace samovar {

uint32_t crc32c(const char* data, size_t size);

class Table {
 public:
  enum Result { ADDED, UNORDERED, FAILED };

  explicit Table(int file) : file_(file) {}
  // A value that is null deletes the key in what was there before.
  Result add(std::string_view key, const char* value, size_t size);
  // 0, or the error's number. Nothing can be added any more. Without rows RocksDB will not take the file.
  int finish();
  uint64_t rows() const { return rows_; }
  int error() const { return error_; }

 private:
  struct Block {
    std::string bytes;
    std::vector<uint32_t> restarts;
    int since = 0;
    // A key is its own bytes and an end; `shared` of its own are as in the one before.
    void add(std::string_view key, std::string_view end, size_t shared, std::string_view value, int interval);
    std::string_view finish();
    void clear();
  };
  struct Place { uint64_t offset, size; };

  void end_block();
  Place put(std::string_view block);
  void flush();
  std::string filter() const;
  std::string properties(uint64_t filter_size, uint64_t index_size);

  int file_, error_ = 0;
  uint64_t offset_ = 0, rows_ = 0, deleted_ = 0, blocks_ = 0, key_bytes_ = 0, value_bytes_ = 0;
  std::string out_, last_;
  char last_end_[8] = {};
  Block block_, index_;
  std::vector<uint32_t> hashes_;
};

}  // namespace samovar
