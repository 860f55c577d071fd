// A value as the kernel sees it, 16 bytes: null, bool, int, float, text, or something else (an object, an array).
//
// Text is a view: it points into the batch that it came from, or into a Text that the state owns (see OwnedValue).
// There is one Value for columns, for the expression machine and for matches, so each operator exists once.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>

namespace samovar {

enum Tag : uint32_t { NIL = 0, BOOL = 1, INT = 2, FLOAT = 3, TEXT = 4, OTHER = 5 };

struct Value {
  uint32_t tag = NIL;
  uint32_t len = 0;  // of text, in bytes
  union {
    int64_t i;      // BOOL (0, 1) and INT
    double d;       // FLOAT
    const char* s;  // TEXT (UTF-8), OTHER (its JSON text)
  };
  Value() : i(0) {}
  static Value nil() { return Value(); }
  static Value boolean(bool b) { Value v; v.tag = BOOL; v.i = b; return v; }
  static Value integer(int64_t n) { Value v; v.tag = INT; v.i = n; return v; }
  static Value number(double x) { Value v; v.tag = FLOAT; v.d = x; return v; }
  static Value text(const char* s, size_t n) { Value v; v.tag = TEXT; v.len = (uint32_t)n; v.s = s; return v; }
  static Value text(std::string_view t) { return text(t.data(), t.size()); }
  static Value other(const char* s, size_t n) { Value v = text(s, n); v.tag = OTHER; return v; }
  std::string_view view() const { return {s, len}; }
  bool is_null() const { return tag == NIL; }
  bool is_true() const { return tag == BOOL && i; }
  bool is_number() const { return tag == INT || tag == FLOAT; }
  double as_double() const { return tag == INT ? (double)i : d; }
};
static_assert(sizeof(Value) == 16);

// Up to 16 bytes as two words, zeros behind; without a call and without a look beyond the end.
struct ShortText {
  uint64_t words[2] = {0, 0};
  ShortText(const char* s, size_t n) {
    if (n > 8) { words[0] = eight(s); words[1] = eight(s + n - 8) >> (8 * (16 - n)); }
    else words[0] = up_to_eight(s, n);
  }
  static uint64_t eight(const char* s) { uint64_t w; memcpy(&w, s, 8); return w; }
  static uint64_t four(const char* s) { uint32_t w; memcpy(&w, s, 4); return w; }
  static uint64_t up_to_eight(const char* s, size_t n) {
    if (n >= 4) return four(s) | four(s + n - 4) << (8 * (n - 4));
    uint64_t w = 0;
    for (size_t k = 0; k < n; k++) w |= (uint64_t)(unsigned char)s[k] << (8 * k);
    return w;
  }
};
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "short texts stand in words, first byte lowest");

}  // namespace samovar
