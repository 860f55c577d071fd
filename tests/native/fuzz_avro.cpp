// A schema's program and a message: flags, words, text, message.
#include "fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const char* const PATHS[] = {"id", "amount", "name", "inner", "inner.x", "items", "place.lat", "kind", "when", "raw"};
  static Fields* const FIELDS = samovar_fields_new(PATHS, 10, "ts", "type", "");
  Input in{data, data + size};
  uint64_t flags = in.number(1);
  std::vector<int64_t> words = in.words();
  std::string blob = in.sized(4), message = in.bytes(in.left());
  bool framed = flags & 1, copied = flags & 2;
  Schemas* schemas = samovar_avro_new(FIELDS, framed);
  if (samovar_avro_add(schemas, framed ? 7 : 0, words.data(), words.size(), blob.data(), blob.size()) == 1) {
    if (framed) message = std::string("\0\0\0\0\7", 5) + message;
    int64_t start = 0, end = (int64_t)message.size();
    Verdict verdict;
    Batch* batch = samovar_batch_new(10);
    size_t length;
    const char* json = samovar_avro_json(schemas, message.data(), message.size(), &length, &verdict);
    for (size_t k = 0, sum = 0; json && k < length; k++) sum += (unsigned char)json[k];
    samovar_decode_avro(schemas, batch, message.data(), &start, &end, 1, 0, nullptr, nullptr, copied, &verdict);
    if (copied) std::string().swap(message);
    size_t rows = samovar_batch_rows(batch);
    for (size_t k = 0; k < 10; k++) touch(samovar_batch_column(batch, k), rows);
    samovar_batch_free(batch);
  }
  samovar_avro_free(schemas);
  return 0;
}
