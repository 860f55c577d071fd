// Which events are not in the partition of their key: murmur2 of a column's values, as Kafka's default partitioner has
// it, over the texts that changelog/partitioner.py makes of values.
#include <charconv>
#include <cmath>
#include <cstring>

#include "decode/batch.h"
#include "util/boundary.h"

using namespace samovar;

namespace {
uint32_t murmur2(const char* data, size_t size) {
  constexpr uint32_t mix = 0x5bd1e995;
  uint32_t code = 0x9747b28c ^ (uint32_t)size;
  size_t at = 0;
  for (; at + 4 <= size; at += 4) {
    uint32_t word;
    memcpy(&word, data + at, 4);
    word *= mix;
    word ^= word >> 24;
    code = code * mix ^ word * mix;
  }
  if (at < size) {
    uint32_t tail = 0;
    memcpy(&tail, data + at, size - at);
    code = (code ^ tail) * mix;
  }
  code = (code ^ code >> 13) * mix;
  return code ^ code >> 15;
}

enum Verdict : uint8_t { IN_PLACE, ELSEWHERE, UNDECIDED };

struct Text {
  char digits[24];
  const char* data;
  size_t size;
  // False where only Python knows how it writes the value: fractions, huge numbers, objects and arrays.
  bool read(const Value& v) {
    if (v.tag == TEXT) { data = v.s; size = v.len; return true; }
    if (v.tag == BOOL) { data = v.i ? "true" : "false"; size = v.i ? 4 : 5; return true; }
    int64_t whole = v.i;
    if (v.tag == FLOAT) {
      if (!(std::fabs(v.d) < 9.2e18) || v.d != std::floor(v.d)) return false;
      whole = (int64_t)v.d;
    } else if (v.tag != INT) {
      return false;
    }
    data = digits;
    size = (size_t)(std::to_chars(digits, digits + sizeof digits, whole).ptr - digits);
    return true;
  }
};
}  // namespace

// One verdict per row; null is in place everywhere. Returns how many are not.
SAMOVAR_EXPORT size_t samovar_batch_misplaced(const Batch* batch, size_t column, uint32_t partitions, uint32_t partition,
                                              uint8_t* verdicts) {
  const Value* values = batch->columns[column].data();
  size_t found = 0;
  Text text;
  for (size_t row = 0; row < batch->rows; row++) {
    Verdict verdict = IN_PLACE;
    if (values[row].tag != NIL) {
      if (!text.read(values[row])) verdict = UNDECIDED;
      else if ((murmur2(text.data, text.size) & 0x7fffffff) % partitions != partition) verdict = ELSEWHERE;
    }
    verdicts[row] = verdict;
    found += verdict != IN_PLACE;
  }
  return found;
}
