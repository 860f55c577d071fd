#include "avro.h"

#include "avro_reader.h"
#include "decoding.h"

namespace samovar {

namespace {

// The decimal digits of a number's magnitude, given as its bytes.
std::string digits_of(const unsigned char* bytes, size_t size, bool minus) {
  std::vector<uint32_t> limbs;  // the lowest first
  for (size_t k = 0; k < size; k++) {
    unsigned char byte = bytes[size - 1 - k];
    if (k % 4 == 0) limbs.push_back(0);
    limbs.back() |= (uint32_t)(minus ? (unsigned char)~byte : byte) << (8 * (k % 4));
  }
  // The magnitude of a negative number is its bits turned over, and one more.
  for (size_t k = 0; minus && k < limbs.size() && ++limbs[k] == 0; k++) {}
  std::string digits;
  while (!limbs.empty()) {
    uint64_t rest = 0;
    for (size_t k = limbs.size(); k-- > 0;) {
      rest = rest << 32 | limbs[k];
      limbs[k] = (uint32_t)(rest / 10);
      rest %= 10;
    }
    digits.insert(digits.begin(), (char)('0' + rest));
    while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
  }
  return digits;
}

}  // namespace

Value decimal_value(const unsigned char* bytes, size_t size, int64_t scale) {
  bool minus = size && bytes[0] & 0x80;
  if (size <= 8) {
    uint64_t bits = minus ? ~uint64_t{0} : 0;
    for (size_t k = 0; k < size; k++) bits = bits << 8 | bytes[k];
    int64_t n = (int64_t)bits;
    if (scale == 0) return Value::integer(n);
    bool exact = n >= -(int64_t{1} << 53) && n <= int64_t{1} << 53 && scale <= 22;
    if (exact) return Value::number((double)n / scan::POWERS[scale]);
  }
  std::string written = (minus ? "-" : "") + digits_of(bytes, size, minus) + "e-" + std::to_string(scale);
  return Value::number(scan::slow_double(written.data(), written.data() + written.size()));
}

}  // namespace samovar

// ---------------------------------------------------------------- for ctypes (patterns/native.py)

#define SAMOVAR_EXPORT extern "C" __attribute__((visibility("default")))

using samovar::Batch;
using samovar::Fields;
using samovar::Verdict;
using samovar::avro::Program;
using samovar::avro::Schemas;

// The fields must live as long.
SAMOVAR_EXPORT Schemas* samovar_avro_new(const Fields* fields, int framed) { return new Schemas{*fields, framed != 0}; }
SAMOVAR_EXPORT void samovar_avro_free(Schemas* schemas) { delete schemas; }

// A schema by its number; where messages are not framed, 0.
SAMOVAR_EXPORT void samovar_avro_add(Schemas* schemas, uint32_t number, const int64_t* words, size_t n, const char* blob,
                                     size_t size) {
  auto program = std::make_unique<Program>();
  program->words.assign(words, words + n);
  program->blob.assign(blob, size);
  schemas->by_number[number] = std::move(program);
}

SAMOVAR_EXPORT void samovar_avro_drop(Schemas* schemas, uint32_t number) { schemas->by_number.erase(number); }

SAMOVAR_EXPORT size_t samovar_decode_avro(Schemas* schemas, Batch* batch, const char* buffer, const int64_t* starts,
                                          const int64_t* ends, size_t n, int32_t stream, const int32_t* partitions,
                                          const int64_t* offsets, int copy, Verdict* verdicts) {
  samovar::Decoding<samovar::AvroReader> decoding(schemas->fields, *batch, n, copy != 0, *schemas);
  return decode_all(decoding, {buffer, starts, ends, n, stream, partitions, offsets}, *batch, verdicts);
}

// One message as JSON text, which stays until the next call; nothing where the verdict is not OK.
SAMOVAR_EXPORT const char* samovar_avro_json(Schemas* schemas, const char* message, size_t n, size_t* size,
                                             Verdict* verdict) {
  Batch batch;
  samovar::AvroReader reader(schemas->fields, batch, false, *schemas);
  schemas->json.clear();
  *verdict = reader.text(message, message + n, schemas->json);
  *size = schemas->json.size();
  return schemas->json.data();
}
