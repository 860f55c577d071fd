// What every format shares: a reader's slots become a row of a batch, with its time and its type, or a verdict.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "decode/batch.h"
#include "decode/fields.h"
#include "decode/json.h"
#include "decode/times.h"

namespace samovar {

// Room for `more` items; at least doubled, so that many small appends stay cheap.
template <class Item>
void grow(std::vector<Item>& items, size_t more) {
  size_t wanted = items.size() + more;
  if (wanted > items.capacity()) items.reserve(std::max(wanted, items.capacity() * 2));
}

inline bool is_quoted_number(std::string_view text) {
  size_t at = !text.empty() && (text[0] == '-' || text[0] == '+');
  size_t from = at;
  while (at < text.size() && scan::is_digit(text[at])) ++at;
  if (at == from) return false;
  if (at < text.size() && text[at] == '.') ++at;
  while (at < text.size() && scan::is_digit(text[at])) ++at;
  return at == text.size();
}

inline Code within_range(int64_t ms) {
  return ms < LEAST_TIME_MS || ms > GREATEST_TIME_MS ? Code::TIME_OUT_OF_RANGE : Code::OK;
}

inline Code time_of_text(const Value& value, int64_t& ms) {
  switch (parse_iso(value.s, value.len, ms)) {
    case TimeText::GOOD: return Code::OK;
    case TimeText::OUT_OF_RANGE: return Code::TIME_OUT_OF_RANGE;
    case TimeText::BAD: break;
  }
  return is_quoted_number(value.view()) ? Code::QUOTED_DIGITS : Code::BAD_TIME;
}

// A fraction of a millisecond is cut downwards, before 1970 too, as the digits of ISO text are.
inline Code time_of(const Value& value, int64_t& ms) {
  switch (value.tag) {
    case INT:
      ms = value.i;
      return within_range(ms);
    case FLOAT:
      if (!(value.d >= -1e15 && value.d <= 1e15)) return Code::TIME_OUT_OF_RANGE;
      ms = (int64_t)std::floor(value.d);
      return within_range(ms);
    case TEXT: return time_of_text(value, ms);
    case NIL: return Code::MISSING_TIME;
    default: return Code::TIME_NOT_A_TIME;
  }
}

// A reader has `slots`; `read` fills them from one message, `kept` gives a value that outlives it, and `verdict` tells
// a place in it.
template <class Reader>
class Decoding {
 public:
  template <class... More>
  Decoding(const Fields& fields, Batch& batch, size_t messages, bool copy, More&... more)
      : fields_(fields), batch_(batch), reader_(fields, batch, copy, more...) {
    batch.columns.resize(fields.columns());
    grow(batch.time, messages);
    grow(batch.type, messages);
    for (std::vector<Value>& column : batch.columns) grow(column, messages);
    if (fields.type_slot_ < 0) fixed_type_ = batch.keep(Value::text(fields.fixed_type_));
  }

  Verdict add(const char* begin, const char* end) {
    Verdict verdict = reader_.read(begin, end);
    if (verdict.code != Code::OK) return verdict;
    const auto& time = reader_.slots[fields_.time_slot_];
    int64_t ms;
    Code code = time_of(time.value, ms);
    if (code != Code::OK) return placed(code, time);
    Value type = fixed_type_;
    if (fields_.type_slot_ >= 0) {
      const auto& slot = reader_.slots[(size_t)fields_.type_slot_];
      if (slot.value.tag != TEXT) return placed(slot.value.is_null() ? Code::MISSING_TYPE : Code::TYPE_NOT_TEXT, slot);
      type = reader_.kept(slot.value);
    }
    append(ms, type);
    return verdict;
  }

 private:
  template <class Slot>
  Verdict placed(Code code, const Slot& slot) const {
    return slot.value.is_null() ? Verdict{code, 0} : reader_.verdict(code, slot.at);
  }

  void append(int64_t ms, const Value& type) {
    batch_.time.push_back(ms);
    batch_.type.push_back(type);
    std::vector<Value>* column = batch_.columns.data();
    for (size_t slot : fields_.slot_of_column_) (column++)->push_back(reader_.kept(reader_.slots[slot].value));
    ++batch_.rows;
  }

  const Fields& fields_;
  Batch& batch_;
  Reader reader_;
  Value fixed_type_;
};

// Messages of one stream and where each of them is; without partitions and offsets 0 and the message's number.
struct Incoming {
  const char* buffer;
  const int64_t *starts, *ends;
  size_t n;
  int32_t stream = 0;
  const int32_t* partitions = nullptr;
  const int64_t* offsets = nullptr;
};

// Appends a row for each good message and gives every one its verdict.
template <class Reader>
void decode_all(Decoding<Reader>& decoding, const Incoming& in, Batch& batch, Verdict* verdicts) {
  grow(batch.partition, in.n);
  grow(batch.offset, in.n);
  for (size_t i = 0; i < in.n; ++i) {
    verdicts[i] = decoding.add(in.buffer + in.starts[i], in.buffer + in.ends[i]);
    if (verdicts[i].code != Code::OK) continue;
    batch.partition.push_back(in.partitions ? in.partitions[i] : 0);
    batch.offset.push_back(in.offsets ? in.offsets[i] : (int64_t)i);
  }
  batch.stream.resize(batch.rows, in.stream);
}

}  // namespace samovar
