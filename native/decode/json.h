// JSON messages to the rows of a batch: one verdict a message, never an exception, nothing skipped in silence.
//
// The whole message is checked against RFC 8259, also the fields that no rule reads; on top of it: an object at the
// top, at most 64 levels, no lone surrogates, no numbers beyond double. Of equal names in an object the last counts.
// tests/support/strict_decoder.py is the same in plain Python; tests hold the two equal.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "decode/batch.h"
#include "decode/fields.h"

namespace samovar {

// The order is that of CODES in patterns/engine/decode.py. Where a message has several faults: bad UTF-8 comes first, then
// the first fault of structure, then the rest as listed.
enum class Code : uint32_t {
  OK,
  EMPTY,
  BLANK,  // only white space
  TOO_LONG,
  NOT_UTF8,
  NOT_JSON,
  TOO_DEEP,
  NOT_AN_OBJECT,
  LONE_SURROGATE,
  NUMBER_TOO_LARGE,
  MISSING_TIME,  // or null
  TIME_NOT_A_TIME,  // a boolean, an object, an array
  QUOTED_DIGITS,
  BAD_TIME,
  TIME_OUT_OF_RANGE,
  MISSING_TYPE,  // or null
  TYPE_NOT_TEXT,
  NOT_AVRO,  // bytes that are no value of their schema
  NOT_FRAMED,  // no schema's number in front
  UNKNOWN_SCHEMA,
  SCHEMA_MISMATCH,  // what was written cannot be read as the schema of the stream
};

struct Verdict {
  Code code = Code::OK;
  uint32_t at = 0;  // byte of the message where the fault is; 0 where it has no place
};
static_assert(sizeof(Verdict) == 8);

constexpr unsigned MAX_DEPTH = 64;
constexpr int64_t MAX_MESSAGE_BYTES = INT32_MAX;

// Lines end with \n or \r\n; the last one may lack it. `each(start, end)` gets them in order, without their ends.
template <class Each>
void split_lines(const char* buffer, size_t size, Each each) {
  for (size_t at = 0; at < size;) {
    const void* found = memchr(buffer + at, '\n', size - at);
    size_t stop = found ? (size_t)((const char*)found - buffer) : size;
    size_t end = found && stop > at && buffer[stop - 1] == '\r' ? stop - 1 : stop;
    each((int64_t)at, (int64_t)end);
    at = stop + 1;
  }
}

}  // namespace samovar
