#include "decode/json.h"

#include "util/boundary.h"
#include "decode/decoding.h"
#include "decode/json_reader.h"

// ---------------------------------------------------------------- for ctypes (native/kernel.py)

using samovar::Batch;
using samovar::Fields;
using samovar::Value;
using samovar::Verdict;

SAMOVAR_EXPORT Batch* samovar_batch_new(size_t columns) {
  return samovar::make_object([&] {
    auto batch = std::make_unique<Batch>();
    batch->columns.resize(columns);
    return batch.release();
  });
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
  return samovar::make_object([&] {
    return new Fields({paths, paths + n}, time_field, type_field ? type_field : "", fixed_type ? fixed_type : "");
  });
}
SAMOVAR_EXPORT void samovar_fields_free(Fields* fields) { delete fields; }

// `partitions` and `offsets` are one per message; without them 0 and the message's number. Without `copy` texts may point
// into `buffer`, which must then outlive the batch.
SAMOVAR_EXPORT int64_t samovar_decode_json(const Fields* fields, Batch* batch, const char* buffer, const int64_t* starts,
                                           const int64_t* ends, size_t n, int32_t stream, const int32_t* partitions,
                                           const int64_t* offsets, int copy, Verdict* verdicts) {
  return samovar::change_batch(batch, batch->rows, [&] {
    samovar::Decoding<samovar::JsonReader> decoding(*fields, *batch, n, copy != 0);
    decode_all(decoding, {buffer, starts, ends, n, stream, partitions, offsets}, *batch, verdicts);
  });
}

SAMOVAR_EXPORT size_t samovar_count_lines(const char* buffer, size_t size) {
  size_t lines = 0;
  samovar::split_lines(buffer, size, [&](int64_t, int64_t) { ++lines; });
  return lines;
}
SAMOVAR_EXPORT void samovar_split_lines(const char* buffer, size_t size, int64_t* starts, int64_t* ends) {
  samovar::split_lines(buffer, size, [&](int64_t start, int64_t end) { *starts++ = start, *ends++ = end; });
}
