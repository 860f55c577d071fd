// Events as columns: what the decoder writes and what `order` and `step` read.
//
// A batch is the owner of its text: `text` is a list of buffers that never move, so the views in the columns stay good
// as long as the batch lives. Row r of every column is one event. Coordinates (stream, partition, offset) name per event
// for good; (time, stream, partition, offset) is the order of events.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "util/boundary.h"
#include "util/value.h"

namespace samovar {

struct Batch {
  size_t rows = 0;
  std::vector<int64_t> time;       // epoch ms
  std::vector<int32_t> stream;     // place of the stream in the service's list
  std::vector<int32_t> partition;
  std::vector<int64_t> offset;
  std::vector<Value> type;         // event type, TEXT
  std::vector<std::vector<Value>> columns;  // one a field path, in the order the program lists them
  std::vector<std::unique_ptr<char[]>> text;
  char* free_at = nullptr;
  size_t free_bytes = 0;

  // Room for n bytes of text that stays where it is.
  char* room(size_t n) {
    if (n > free_bytes) {
      size_t size = n > (1 << 16) ? n : (1 << 16);
      text.push_back(std::unique_ptr<char[]>(new char[size]));
      free_at = text.back().get();
      free_bytes = size;
    }
    char* at = free_at;
    free_at += n;
    free_bytes -= n;
    return at;
  }
  // Rows beyond these are gone, also those that are not there in every column.
  void cut(size_t to) {
    auto cut_column = [&](auto& column) { if (column.size() > to) column.resize(to); };
    cut_column(time); cut_column(stream); cut_column(partition); cut_column(offset); cut_column(type);
    for (auto& column : columns) cut_column(column);
    rows = std::min(rows, to);
  }
  Value keep(const Value& v) {
    if (v.tag < TEXT || v.len == 0) return v;
    char* at = room(v.len);
    memcpy(at, v.s, v.len);
    Value copy = v;
    copy.s = at;
    return copy;
  }
};

// Runs a change of a batch. Where memory ends on the way, the batch has so many rows.
template <class F>
int64_t change_batch(Batch* batch, size_t rows_left, F f) {
  int64_t result = done(f);
  if (result == NO_MEMORY) batch->cut(rows_left);
  return result;
}

}  // namespace samovar
