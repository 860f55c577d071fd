// Lines of JSON through the decoder. The first byte says whether texts are copied, and whether the type is fixed.
#include "fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const char* const PATHS[] = {"x", "a", "a.b", "a.b.c", "b.c", "a.b.c.d", "a long name", "", "\xc3\xa9", "process.name"};
  static Fields* const FIELDS[] = {samovar_fields_new(PATHS, 10, "ts", "type", ""), samovar_fields_new(PATHS, 10, "ts", nullptr, "fixed")};
  std::string lines((const char*)data + 1, size - 1);
  size_t n = samovar_count_lines(lines.data(), lines.size());
  std::vector<int64_t> starts(n), ends(n);
  std::vector<Verdict> verdicts(n);
  samovar_split_lines(lines.data(), lines.size(), starts.data(), ends.data());
  Batch* batch = samovar_batch_new(10);
  bool copied = data[0] & 1;
  samovar_decode_json(FIELDS[data[0] >> 1 & 1], batch, lines.data(), starts.data(), ends.data(), n, 0, nullptr, nullptr, copied, verdicts.data());
  if (copied) std::string().swap(lines);  // the batch must not need it
  size_t rows = samovar_batch_rows(batch);
  for (size_t k = 0; k < 10; k++) touch(samovar_batch_column(batch, k), rows);
  touch(samovar_batch_type(batch), rows);
  samovar_batch_free(batch);
  return 0;
}
