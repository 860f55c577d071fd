// The operators of the language on values, each once: columns, conditions across steps and `emit` all use these.
//
// Null and types: an order or equality with null is false; two types are never equal, so `!=` between them is true;
// arithmetic on what is not a number is null; a condition that is not a boolean counts as false.
#pragma once
#include <algorithm>
#include <cmath>

#include "decode/batch.h"
#include "util/value.h"

namespace samovar {

enum Op : int {
#define OP(name, word, least) name,
#include "match/opcodes.def"
};

inline bool same(const Value& a, const Value& b) {
  if (a.tag == b.tag) switch (a.tag) {
    case BOOL: case INT: return a.i == b.i;
    case FLOAT: return a.d == b.d;
    case TEXT: return a.len == b.len && memcmp(a.s, b.s, a.len) == 0;
    default: return false;
  }
  if (a.tag == INT && b.tag == FLOAT) return (double)a.i == b.d && b.d < 0x1p63 && (int64_t)b.d == a.i;
  if (a.tag == FLOAT && b.tag == INT) return same(b, a);
  return false;
}

// -1, 0, 1, or 2 where there is no order between the two.
inline int order(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.tag == INT && b.tag == INT) return a.i < b.i ? -1 : a.i > b.i;
    double x = a.as_double(), y = b.as_double();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  if (a.tag == TEXT && b.tag == TEXT) {
    int c = a.view().compare(b.view());
    return c < 0 ? -1 : c > 0;
  }
  return 2;
}

inline Value compare(int op, const Value& a, const Value& b) {
  if (a.is_null() || b.is_null()) return Value::boolean(false);
  if (op == EQ) return Value::boolean(same(a, b));
  if (op == NE) return Value::boolean(!same(a, b));
  int c = order(a, b);
  if (c == 2) return Value::boolean(false);
  switch (op) {
    case LT: return Value::boolean(c < 0);
    case LE: return Value::boolean(c <= 0);
    case GT: return Value::boolean(c > 0);
    default: return Value::boolean(c >= 0);
  }
}

inline Value or_null(double x) { return std::isfinite(x) ? Value::number(x) : Value::nil(); }

inline Value arithmetic(int op, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) return Value::nil();
  if (a.tag == INT && b.tag == INT) {
    int64_t r;
    switch (op) {
      case ADD: if (!__builtin_add_overflow(a.i, b.i, &r)) return Value::integer(r); break;
      case SUB: if (!__builtin_sub_overflow(a.i, b.i, &r)) return Value::integer(r); break;
      case MUL: if (!__builtin_mul_overflow(a.i, b.i, &r)) return Value::integer(r); break;
      case MOD: return b.i == 0 ? Value::nil() : Value::integer(b.i == -1 ? 0 : a.i % b.i);
    }
  }
  double x = a.as_double(), y = b.as_double();
  switch (op) {
    case ADD: return or_null(x + y);
    case SUB: return or_null(x - y);
    case MUL: return or_null(x * y);
    case DIV: return y == 0 ? Value::nil() : or_null(x / y);
    default: return y == 0 ? Value::nil() : or_null(std::fmod(x, y));
  }
}

inline Value negate(const Value& a) {
  if (a.tag == INT && a.i != INT64_MIN) return Value::integer(-a.i);
  return a.is_number() ? Value::number(-a.as_double()) : Value::nil();
}

// ---------------------------------------------------------------- text, counted in characters

inline size_t characters(std::string_view t) {
  size_t n = 0;
  for (char c : t) n += ((unsigned char)c & 0xC0) != 0x80;
  return n;
}
// Byte offset of character k (k may be the length).
inline size_t byte_at(std::string_view t, int64_t k) {
  size_t i = 0;
  while (i < t.size() && k > 0) {
    i++;
    while (i < t.size() && ((unsigned char)t[i] & 0xC0) == 0x80) i++;
    k--;
  }
  return i;
}
inline bool is_ascii(std::string_view t) {
  for (char c : t) if ((unsigned char)c & 0x80) return false;
  return true;
}

inline size_t next_character(std::string_view t, size_t i) {
  i++;
  while (i < t.size() && ((unsigned char)t[i] & 0xC0) == 0x80) i++;
  return i;
}

// Whole text against a pattern of `*` and `?`; everything else stands for itself.
// Linear in practice: only the last star is ever gone back to.
inline bool glob(std::string_view t, std::string_view p) {
  size_t i = 0, j = 0, star = std::string_view::npos, mark = 0;
  while (i < t.size()) {
    if (j < p.size() && p[j] == '*') { star = j++; mark = i; }
    else if (j < p.size() && p[j] == '?') { i = next_character(t, i); j++; }
    else if (j < p.size() && p[j] == t[i]) { i++; j++; }
    else if (star != std::string_view::npos) { j = star + 1; mark = next_character(t, mark); i = mark; }
    else return false;
  }
  while (j < p.size() && p[j] == '*') j++;
  return j == p.size();
}

inline Value concat(const Value* a, int n, Batch& out) {
  size_t size = 0;
  for (int k = 0; k < n; k++) {
    if (a[k].tag != TEXT) return Value::nil();
    size += a[k].len;
  }
  char* at = out.room(size + 1);
  size_t used = 0;
  for (int k = 0; k < n; k++) { memcpy(at + used, a[k].s, a[k].len); used += a[k].len; }
  return Value::text(at, size);
}

// Places as in Python: negative ones count from the end, the end is left out.
inline Value substring(const Value* a, int n) {
  if (a[0].tag != TEXT || !a[1].is_number() || (n > 2 && !a[2].is_number())) return Value::nil();
  std::string_view t = a[0].view();
  int64_t size = (int64_t)characters(t);
  auto place = [&](double x) {
    int64_t k = x < -9e15 ? INT64_MIN / 2 : x > 9e15 ? INT64_MAX / 2 : (int64_t)x;
    if (k < 0) k += size;
    return k < 0 ? 0 : k > size ? size : k;
  };
  int64_t from = place(a[1].as_double()), to = n > 2 ? place(a[2].as_double()) : size;
  if (to <= from) return Value::text("", 0);
  size_t begin = byte_at(t, from);
  size_t end = begin + byte_at(t.substr(begin), to - from);
  return Value::text(t.substr(begin, end - begin));
}

inline Value index_of(const Value* a, int n) {
  if (a[0].tag != TEXT || a[1].tag != TEXT) return Value::nil();
  std::string_view t = a[0].view();
  size_t from = 0;
  if (n > 2) {
    if (!a[2].is_number()) return Value::nil();
    double k = a[2].as_double();
    from = byte_at(t, k < 0 ? 0 : k > 4e9 ? (int64_t)4e9 : (int64_t)k);
  }
  size_t at = t.find(a[1].view(), from);
  return at == std::string_view::npos ? Value::nil() : Value::integer((int64_t)characters(t.substr(0, at)));
}

// Numbers: lo <= x <= hi. Text, as EQL has it: what stands between `left` and the first `right` after it.
inline Value between(const Value* a, int n) {
  if (n < 3) return Value::nil();
  if (a[0].tag != TEXT) {
    for (int k = 0; k < 3; k++) if (!a[k].is_number()) return Value::boolean(false);
    return Value::boolean(order(a[1], a[0]) <= 0 && order(a[0], a[2]) <= 0);
  }
  if (a[1].tag != TEXT || a[2].tag != TEXT) return Value::nil();
  std::string_view t = a[0].view(), left = a[1].view(), right = a[2].view();
  size_t from = t.find(left);
  if (from == std::string_view::npos) return Value::text("", 0);
  from += left.size();
  size_t to = n > 3 && a[3].is_true() ? t.rfind(right) : t.find(right, from);
  if (to == std::string_view::npos || to < from) return Value::text("", 0);
  return Value::text(t.substr(from, to - from));
}

// ---------------------------------------------------------------- numbers and time

inline Value whole(double x) {
  return std::fabs(x) < 9.2e18 ? Value::integer((int64_t)x) : Value::number(x);
}
inline Value rounded(const Value* a, int n) {
  if (!a[0].is_number()) return Value::nil();
  if (n < 2) return a[0].tag == INT ? a[0] : whole(std::round(a[0].d));  // std::round: half away from zero
  if (!a[1].is_number()) return Value::nil();
  int digits = (int)std::clamp(a[1].as_double(), -400.0, 400.0);
  if (digits < -300) return Value::integer(0);
  if (digits > 15 || (a[0].tag == INT && digits >= 0)) return a[0];
  double x = a[0].as_double();
  // Where x is not near the middle between two results, scaling cannot mislead; a division rounds once, as reading does.
  if (digits > 0) {
    static const double TENS[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    double scaled = std::fabs(x) * TENS[digits], below = std::floor(scaled), part = scaled - below;
    if (scaled < 1e12 && std::fabs(part - 0.5) > 0.01) {
      double r = (part < 0.5 ? below : below + 1) / TENS[digits];
      return Value::number(r == 0 ? 0.0 : std::copysign(r, x));
    }
  }
  // The shortest decimal that reads as x decides what "half" is, so 2.675 rounds to 2.68.
  char text[40];
  for (int p = 15; p <= 17; p++) {
    snprintf(text, sizeof text, "%.*e", p - 1, x);
    if (strtod(text, nullptr) == x) break;
  }
  char* e = strchr(text, 'e');
  int exponent = atoi(e + 1);
  std::string digits10;
  for (char* c = text; c < e; c++) if (*c >= '0' && *c <= '9') digits10 += *c;
  int keep = exponent + 1 + digits;  // of these digits
  if (keep >= (int)digits10.size()) return a[0];
  bool up = keep >= 0 && digits10[keep] >= '5';
  std::string kept = keep > 0 ? digits10.substr(0, keep) : "0";
  if (up) {
    int k = (int)kept.size() - 1;
    while (k >= 0 && kept[k] == '9') kept[k--] = '0';
    if (k < 0) kept = "1" + kept; else kept[k]++;
  }
  std::string out = (x < 0 ? "-" : "") + kept + "e" + std::to_string(-digits);
  double r = strtod(out.c_str(), nullptr);
  return !std::isfinite(r) ? Value::nil() : digits <= 0 ? whole(r) : Value::number(r == 0 ? 0.0 : r);
}

inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
inline int64_t floored(const Value& a) { return a.tag == INT ? a.i : (int64_t)std::floor(std::clamp(a.d, -0x1p62, 0x1p62)); }
inline Value hour_utc(const Value& a) {
  if (!a.is_number()) return Value::nil();
  int64_t h = floor_div(floored(a), 3600000);
  return Value::integer(h - floor_div(h, 24) * 24);
}
inline Value weekday_utc(const Value& a) {
  if (!a.is_number()) return Value::nil();
  int64_t d = floor_div(floored(a), 86400000) + 3;  // 1970-01-01 was a Thursday
  return Value::integer(d - floor_div(d, 7) * 7 + 1);
}
inline Value distance_km(const Value* a) {
  for (int k = 0; k < 4; k++) if (!a[k].is_number()) return Value::nil();
  const double rad = 3.14159265358979323846 / 180;
  double la1 = a[0].as_double() * rad, lo1 = a[1].as_double() * rad;
  double la2 = a[2].as_double() * rad, lo2 = a[3].as_double() * rad;
  double s1 = std::sin((la2 - la1) / 2), s2 = std::sin((lo2 - lo1) / 2);
  double h = s1 * s1 + std::cos(la1) * std::cos(la2) * s2 * s2;
  return Value::number(2 * 6371.0088 * std::asin(std::sqrt(h > 1 ? 1 : h)));
}

inline Value changed_case(const Value& a, bool up, Batch& out) {  // of ASCII text
  char* at = out.room(a.len + 1);
  for (uint32_t k = 0; k < a.len; k++) {
    char c = a.s[k];
    at[k] = up ? (c >= 'a' && c <= 'z' ? c - 32 : c) : (c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  return Value::text(at, a.len);
}

}  // namespace samovar
