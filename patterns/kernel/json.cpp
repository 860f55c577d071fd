#include "json.h"

#include <algorithm>
#include <cmath>

#include "json_reader.h"
#include "times.h"

namespace samovar {

namespace {

// Room for `more` items; at least doubled, so that many small appends stay cheap.
template <class Item>
void grow(std::vector<Item>& items, size_t more) {
  size_t wanted = items.size() + more;
  if (wanted > items.capacity()) items.reserve(std::max(wanted, items.capacity() * 2));
}

bool is_quoted_number(std::string_view text) {
  size_t at = !text.empty() && (text[0] == '-' || text[0] == '+');
  size_t from = at;
  while (at < text.size() && scan::is_digit(text[at])) ++at;
  if (at == from) return false;
  if (at < text.size() && text[at] == '.') ++at;
  while (at < text.size() && scan::is_digit(text[at])) ++at;
  return at == text.size();
}

Code within_range(int64_t ms) {
  return ms < LEAST_TIME_MS || ms > GREATEST_TIME_MS ? Code::TIME_OUT_OF_RANGE : Code::OK;
}

Code time_of_text(const Value& value, int64_t& ms) {
  switch (parse_iso(value.s, value.len, ms)) {
    case TimeText::GOOD: return Code::OK;
    case TimeText::OUT_OF_RANGE: return Code::TIME_OUT_OF_RANGE;
    case TimeText::BAD: break;
  }
  return is_quoted_number(value.view()) ? Code::QUOTED_DIGITS : Code::BAD_TIME;
}

// A fraction of a millisecond is cut downwards, before 1970 too, as the digits of ISO text are.
Code time_of(const Value& value, int64_t& ms) {
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

}  // namespace

class JsonDecoding {
 public:
  JsonDecoding(const Fields& fields, Batch& batch, size_t messages, bool copy)
      : fields_(fields), batch_(batch), reader_(fields, batch, copy) {
    batch.columns.resize(fields.columns());
    grow(batch.time, messages);
    grow(batch.type, messages);
    for (std::vector<Value>& column : batch.columns) grow(column, messages);
    if (fields.type_slot_ < 0) fixed_type_ = batch.keep(Value::text(fields.fixed_type_));
  }

  Verdict add(const char* begin, const char* end) {
    Verdict verdict = reader_.read(begin, end);
    if (verdict.code != Code::OK) return verdict;
    const JsonReader::Slot& time = reader_.slots[fields_.time_slot_];
    int64_t ms;
    Code code = time_of(time.value, ms);
    if (code != Code::OK) return placed(code, time);
    Value type = fixed_type_;
    if (fields_.type_slot_ >= 0) {
      const JsonReader::Slot& slot = reader_.slots[(size_t)fields_.type_slot_];
      if (slot.value.tag != TEXT) return placed(slot.value.is_null() ? Code::MISSING_TYPE : Code::TYPE_NOT_TEXT, slot);
      type = reader_.kept(slot.value);
    }
    append(ms, type);
    return verdict;
  }

 private:
  Verdict placed(Code code, const JsonReader::Slot& slot) const {
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
  JsonReader reader_;
  Value fixed_type_;
};

size_t decode_json(const char* buffer, const int64_t* starts, const int64_t* ends, size_t n, const Fields& fields,
                   Batch& batch, Verdict* verdicts, std::vector<int64_t>& row_message, bool copy) {
  size_t before = batch.rows;
  JsonDecoding decoding(fields, batch, n, copy);
  for (size_t i = 0; i < n; ++i) {
    verdicts[i] = decoding.add(buffer + starts[i], buffer + ends[i]);
    if (verdicts[i].code == Code::OK) row_message.push_back((int64_t)i);
  }
  return batch.rows - before;
}

}  // namespace samovar

// ---------------------------------------------------------------- for ctypes (patterns/native.py)

#define SAMOVAR_EXPORT extern "C" __attribute__((visibility("default")))

using samovar::Batch;
using samovar::Fields;
using samovar::Value;
using samovar::Verdict;

SAMOVAR_EXPORT Batch* samovar_batch_new(size_t columns) {
  auto* batch = new Batch;
  batch->columns.resize(columns);
  return batch;
}
SAMOVAR_EXPORT void samovar_batch_free(Batch* batch) { delete batch; }
SAMOVAR_EXPORT size_t samovar_batch_rows(const Batch* batch) { return batch->rows; }
SAMOVAR_EXPORT size_t samovar_batch_columns(const Batch* batch) { return batch->columns.size(); }
SAMOVAR_EXPORT const int64_t* samovar_batch_time(const Batch* batch) { return batch->time.data(); }
SAMOVAR_EXPORT const int32_t* samovar_batch_stream(const Batch* batch) { return batch->stream.data(); }
SAMOVAR_EXPORT const int32_t* samovar_batch_partition(const Batch* batch) { return batch->partition.data(); }
SAMOVAR_EXPORT const int64_t* samovar_batch_offset(const Batch* batch) { return batch->offset.data(); }
SAMOVAR_EXPORT const Value* samovar_batch_type(const Batch* batch) { return batch->type.data(); }
SAMOVAR_EXPORT const Value* samovar_batch_column(const Batch* batch, size_t k) { return batch->columns[k].data(); }

// `type_field` NULL: all events are of `fixed_type`.
SAMOVAR_EXPORT Fields* samovar_fields_new(const char* const* paths, size_t n, const char* time_field,
                                          const char* type_field, const char* fixed_type) {
  return new Fields({paths, paths + n}, time_field, type_field ? type_field : "", fixed_type ? fixed_type : "");
}
SAMOVAR_EXPORT void samovar_fields_free(Fields* fields) { delete fields; }

// `partitions` and `offsets` are one a message; without them 0 and the message's number.
SAMOVAR_EXPORT size_t samovar_decode_json(const Fields* fields, Batch* batch, const char* buffer, const int64_t* starts,
                                          const int64_t* ends, size_t n, int32_t stream, const int32_t* partitions,
                                          const int64_t* offsets, int copy, Verdict* verdicts) {
  std::vector<int64_t> row_message;
  row_message.reserve(n);
  size_t rows = samovar::decode_json(buffer, starts, ends, n, *fields, *batch, verdicts, row_message, copy != 0);
  batch->stream.resize(batch->rows, stream);
  samovar::grow(batch->partition, rows);
  samovar::grow(batch->offset, rows);
  for (int64_t i : row_message) {
    batch->partition.push_back(partitions ? partitions[i] : 0);
    batch->offset.push_back(offsets ? offsets[i] : i);
  }
  return rows;
}

SAMOVAR_EXPORT size_t samovar_count_lines(const char* buffer, size_t size) {
  size_t lines = 0;
  samovar::split_lines(buffer, size, [&](int64_t, int64_t) { ++lines; });
  return lines;
}
SAMOVAR_EXPORT void samovar_split_lines(const char* buffer, size_t size, int64_t* starts, int64_t* ends) {
  samovar::split_lines(buffer, size, [&](int64_t start, int64_t end) { *starts++ = start, *ends++ = end; });
}
