#include "decode/avro.h"

#include "decode/avro_reader.h"
#include "util/boundary.h"
#include "decode/decoding.h"

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

namespace avro {
namespace {
constexpr int64_t OPERANDS[] = {
#define AVRO_OP(name, word, operands) operands,
#include "match/opcodes.def"
};
constexpr int64_t FACTOR_MOST = 1ll << 31;  // an int times it is a long
}  // namespace

bool Program::is_sound() const {
  int64_t size = (int64_t)words.size();
  if (size < 2 || words[1] < 0 || words[1] > size) return false;
  auto is_text = [&](int64_t at, int64_t length) {
    return at >= 0 && length >= 0 && at <= (int64_t)blob.size() && length <= (int64_t)blob.size() - at;
  };
  std::vector<char> seen(words.size());
  std::vector<int64_t> left{words[0]};
  while (!left.empty()) {
    int64_t node = left.back();
    left.pop_back();
    if (node < 2 || node >= size) return false;
    if (seen[(size_t)node]) continue;
    seen[(size_t)node] = 1;
    const int64_t* w = &words[(size_t)node];
    int64_t op = w[0], more = size - node - 1;  // words behind this one
    if (op < 0 || op >= (int64_t)std::size(OPERANDS) || OPERANDS[op] > more) return false;
    // A list begins behind the operands; its length is the last of them.
    int64_t width = op == ENUM ? 2 : op == UNION ? 1 : op == RECORD ? 4 : 0, n = width ? w[OPERANDS[op]] : 0;
    if (n < 0 || n > (more - OPERANDS[op]) / std::max<int64_t>(width, 1)) return false;
    const int64_t* item = w + OPERANDS[op] + 1;
    switch (op) {
      case INT: case LONG:
        if (w[1] == DIVIDED && w[2] < 1) return false;
        if (w[1] == MULTIPLIED && (op == LONG || w[2] < 1 || w[2] > FACTOR_MOST)) return false;
        break;
      case BYTES: case FIXED:
        if (w[1] == DECIMAL && (w[2] < 0 || w[2] > INT32_MAX)) return false;
        if (op == FIXED && (w[3] < 0 || w[3] > INT32_MAX)) return false;
        if (w[1] == UUID && (op == BYTES || w[3] != 16)) return false;
        break;
      case ENUM:
        for (int64_t k = 0; k < n; k++, item += 2) if (item[1] != -1 && !is_text(item[0], item[1])) return false;
        break;
      case ARRAY: case MAP: left.push_back(w[1]); break;
      case UNION: left.insert(left.end(), item, item + n); break;
      case RECORD:
        if (w[1] < 0 || w[1] >= words[1]) return false;
        for (int64_t k = 0; k < n; k++, item += 4) {
          if (item[1] != -1 && !is_text(item[0], item[1])) return false;
          left.push_back(item[2]);
        }
        break;
      case CONSTANT:
        if (w[1] < 0 || w[1] > samovar::OTHER || (w[1] >= samovar::TEXT && !is_text(w[2], w[3]))) return false;
    }
  }
  return true;
}
}  // namespace avro

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

// ---------------------------------------------------------------- for ctypes (native/kernel.py)

using samovar::Batch;
using samovar::Fields;
using samovar::Verdict;
using samovar::avro::Program;
using samovar::avro::Schemas;

// The fields must live as long.
SAMOVAR_EXPORT Schemas* samovar_avro_new(const Fields* fields, int framed) {
  return samovar::make_object([&] { return new Schemas{*fields, framed != 0}; });
}
SAMOVAR_EXPORT void samovar_avro_free(Schemas* schemas) { delete schemas; }

// A schema by its number; where messages are not framed, 0. Returns whether the words are a program.
SAMOVAR_EXPORT int64_t samovar_avro_add(Schemas* schemas, uint32_t number, const int64_t* words, size_t n,
                                        const char* blob, size_t size) {
  return samovar::or_failed(samovar::NO_MEMORY, [&]() -> int64_t {
    auto program = std::make_unique<Program>();
    program->words.assign(words, words + n);
    program->blob.assign(blob, size);
    if (!program->is_sound()) return 0;
    schemas->by_number[number] = std::move(program);
    return 1;
  });
}

SAMOVAR_EXPORT void samovar_avro_drop(Schemas* schemas, uint32_t number) { schemas->by_number.erase(number); }

SAMOVAR_EXPORT int64_t samovar_decode_avro(Schemas* schemas, Batch* batch, const char* buffer, const int64_t* starts,
                                           const int64_t* ends, size_t n, int32_t stream, const int32_t* partitions,
                                           const int64_t* offsets, int copy, Verdict* verdicts) {
  return samovar::change_batch(batch, batch->rows, [&] {
    samovar::Decoding<samovar::AvroReader> decoding(schemas->fields, *batch, n, copy != 0, *schemas);
    decode_all(decoding, {buffer, starts, ends, n, stream, partitions, offsets}, *batch, verdicts);
  });
}

// One message as JSON text, which stays until the next call; nothing where the verdict is not OK.
SAMOVAR_EXPORT const char* samovar_avro_json(Schemas* schemas, const char* message, size_t n, size_t* size,
                                             Verdict* verdict) {
  schemas->json.clear();
  return samovar::make_object([&] {
    Batch batch;
    samovar::AvroReader reader(schemas->fields, batch, false, *schemas);
    *verdict = reader.text(message, message + n, schemas->json);
    *size = schemas->json.size();
    return (const char*)schemas->json.data();
  });
}
