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

}  // namespace samovar
