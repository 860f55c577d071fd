// The bytes of JSON: white space, strings eight bytes at a time, UTF-8, escapes, numbers. Nothing here reads at or
// beyond `end`.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#if defined(__APPLE__)
#include <xlocale.h>
#else
#include <locale.h>
#endif

#include "util/value.h"

namespace samovar::scan {

constexpr uint64_t each(unsigned char byte) { return 0x0101010101010101u * byte; }

// Eight bytes, the first in the lowest place.
inline uint64_t load8(const char* p) {
  uint64_t word;
  memcpy(&word, p, 8);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

inline bool is_digit(char c) { return (unsigned char)(c - '0') < 10; }

inline const char* past_space(const char* p, const char* end) {
  while (p != end && (unsigned char)*p <= ' ' && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) ++p;
  return p;
}

// The high bit of every byte that ends a plain run: quote, backslash, control character, or not ASCII. A false
// positive can only stand above a true one, so the lowest bit is exact.
inline uint64_t special(uint64_t w) {
  uint64_t quote = w ^ each('"'), slash = w ^ each('\\');
  return (((quote - each(1)) & ~quote) | ((slash - each(1)) & ~slash) | (w - each(0x20)) | w) & each(0x80);
}

inline bool is_special(char c) { return c == '"' || c == '\\' || (unsigned char)c < 0x20 || (unsigned char)c >= 0x80; }

inline const char* past_plain(const char* p, const char* end) {
  while (end - p >= 8) {
    if (uint64_t found = special(load8(p))) return p + (std::countr_zero(found) >> 3);
    p += 8;
  }
  while (p != end && !is_special(*p)) ++p;
  return p;
}

// Length of the UTF-8 sequence at p, which does not start with ASCII; 0 when it is not valid.
inline int utf8_length(const char* p, const char* end) {
  auto byte = [p](int i) { return (unsigned char)p[i]; };
  auto tail = [&](int i) { return (byte(i) & 0xC0) == 0x80; };
  unsigned char lead = byte(0);
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return end - p >= 2 && tail(1) ? 2 : 0;
  if (lead < 0xF0) {
    if (end - p < 3 || !tail(1) || !tail(2)) return 0;
    if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;  // too long, a surrogate
    return 3;
  }
  if (lead > 0xF4 || end - p < 4 || !tail(1) || !tail(2) || !tail(3)) return 0;
  if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;  // too long, above U+10FFFF
  return 4;
}

// Where valid UTF-8 ends: `end` when all of it is.
inline const char* past_utf8(const char* p, const char* end) {
  while (p != end) {
    if ((unsigned char)*p < 0x80) {
      ++p;
    } else if (int length = utf8_length(p, end)) {
      p += length;
    } else {
      break;
    }
  }
  return p;
}

inline int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Four hex digits that are known to be there.
inline uint32_t hex4(const char* p) {
  return hex_digit(p[0]) << 12 | hex_digit(p[1]) << 8 | hex_digit(p[2]) << 4 | hex_digit(p[3]);
}

inline char* put_utf8(uint32_t c, char* to) {
  if (c < 0x80) {
    *to++ = (char)c;
  } else if (c < 0x800) {
    *to++ = (char)(0xC0 | c >> 6);
    *to++ = (char)(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    *to++ = (char)(0xE0 | c >> 12);
    *to++ = (char)(0x80 | (c >> 6 & 0x3F));
    *to++ = (char)(0x80 | (c & 0x3F));
  } else {
    *to++ = (char)(0xF0 | c >> 18);
    *to++ = (char)(0x80 | (c >> 12 & 0x3F));
    *to++ = (char)(0x80 | (c >> 6 & 0x3F));
    *to++ = (char)(0x80 | (c & 0x3F));
  }
  return to;
}

// Writes the text of a string that has been checked, and returns where it ends. It is never longer than its source.
// A lone surrogate (its message is refused later) is written as U+FFFD.
inline char* unescape(const char* p, const char* end, char* to) {
  while (p != end) {
    if (*p != '\\') {
      *to++ = *p++;
      continue;
    }
    char c = p[1];
    p += 2;
    if (c != 'u') {
      *to++ = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c;
      continue;
    }
    uint32_t unit = hex4(p);
    p += 4;
    if (unit >> 10 == 0x36 && end - p >= 6 && p[0] == '\\' && p[1] == 'u' && hex4(p + 2) >> 10 == 0x37) {
      unit = 0x10000 + ((unit & 0x3FF) << 10) + (hex4(p + 2) & 0x3FF);
      p += 6;
    }
    to = put_utf8(unit >> 11 == 0x1B ? 0xFFFD : unit, to);
  }
  return to;
}

// Correctly rounded, whatever the process's locale: for numbers that the exact fast path cannot do.
inline double slow_double(const char* p, const char* end) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  char brief[64];
  size_t size = (size_t)(end - p);
  if (size >= sizeof brief) return strtod_l(std::string(p, end).c_str(), nullptr, plain);
  memcpy(brief, p, size);
  brief[size] = 0;
  return strtod_l(brief, nullptr, plain);
}

constexpr double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                             1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// A number's parts as written: mantissa (exact up to 19 digits) times ten to the power of exponent.
struct Number {
  uint64_t mantissa = 0;
  int64_t digits = 0;
  int64_t exponent = 0;
  bool minus = false;
  bool whole = true;
};

// Past the number at p, or nullptr with `wrong` at the byte that does not fit.
inline const char* past_number(const char* p, const char* end, Number& n, const char*& wrong) {
  auto run = [&] {
    const char* from = p;
    for (; p != end && is_digit(*p); ++p) n.mantissa = n.mantissa * 10 + (unsigned char)(*p - '0');
    n.digits += p - from;
    return p - from;
  };
  if ((n.minus = *p == '-')) ++p;
  if (p != end && *p == '0') {
    ++p;
    n.digits = 1;
  } else if (run() == 0) {
    return wrong = p, nullptr;
  }
  if (p != end && *p == '.') {
    ++p;
    n.whole = false;
    n.exponent = -run();
    if (n.exponent == 0) return wrong = p, nullptr;
  }
  if (p != end && (*p == 'e' || *p == 'E')) {
    ++p;
    n.whole = false;
    bool down = p != end && *p == '-';
    if (p != end && (*p == '-' || *p == '+')) ++p;
    if (p == end || !is_digit(*p)) return wrong = p, nullptr;
    int64_t power = 0;
    for (; p != end && is_digit(*p); ++p) power = power < 100000000000 ? power * 10 + (*p - '0') : power;
    n.exponent += down ? -power : power;
  }
  return p;
}

// The value of a number; a FLOAT that is infinite when it is too large.
inline Value number_value(const Number& n, const char* start, const char* end) {
  if (n.whole && n.digits <= 19 && n.mantissa <= (uint64_t)INT64_MAX + n.minus) {
    return Value::integer((int64_t)(n.minus ? 0 - n.mantissa : n.mantissa));
  }
  if (n.digits <= 19 && n.mantissa <= uint64_t{1} << 53 && n.exponent >= -22 && n.exponent <= 22) {
    double x = (double)n.mantissa;  // both factors are exact, so the one operation rounds correctly
    x = n.exponent < 0 ? x / POWERS[-n.exponent] : x * POWERS[n.exponent];
    return Value::number(n.minus ? -x : x);
  }
  return Value::number(slow_double(start, end));
}

inline bool too_large(const Number& n, const char* start, const char* end) {
  return n.digits + n.exponent > 300 && std::isinf(slow_double(start, end));
}

}  // namespace samovar::scan
