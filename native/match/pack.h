// Packed bytes of a state: little end first; whole numbers as zigzag varints; values as a tag and what it needs.
#pragma once
#include <string>

#include "match/held.h"
#include "util/owned.h"

namespace samovar {

constexpr int64_t SANE_MOST = 1ll << 60;

struct Packer {
  std::string bytes;
  bool canonical = false;  // for a digest: numbers that only count from an arbitrary start are left out
  void raw(uint64_t n) {
    while (n >= 128) { bytes.push_back((char)(n | 128)); n >>= 7; }
    bytes.push_back((char)n);
  }
  void num(int64_t n) { raw((uint64_t)n << 1 ^ (uint64_t)(n >> 63)); }
  void real(double d) { char b[8]; memcpy(b, &d, 8); bytes.append(b, 8); }
  void text(std::string_view t) { raw(t.size()); bytes.append(t.data(), t.size()); }
  void value(const Value& v) {
    raw(v.tag);
    if (v.tag == BOOL || v.tag == INT) num(v.i);
    else if (v.tag == FLOAT) real(v.d);
    else if (v.tag >= TEXT) text(v.view());
  }
  void place(const Place& p) { num(p.time); num(p.source); num(p.offset); }
};

struct Unpacker {
  const char* at;
  const char* end;
  bool bad = false;
  uint64_t raw() {
    uint64_t n = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at >= end) { bad = true; return 0; }
      unsigned char c = (unsigned char)*at++;
      n |= (uint64_t)(c & 127) << shift;
      if (c < 128) return n;
    }
    bad = true;
    return 0;
  }
  int64_t num() { uint64_t n = raw(); return (int64_t)(n >> 1) ^ -(int64_t)(n & 1); }
  // A number that can be calculated with: a time, or a count of events. A larger one is damage.
  int64_t sane() {
    int64_t n = num();
    if (n >= -SANE_MOST && n <= SANE_MOST) return n;
    bad = true;
    return 0;
  }
  int64_t sane_count() {
    int64_t n = sane();
    if (n < 0) bad = true;
    return n < 0 ? 0 : n;
  }
  int64_t sane_or(int64_t special) {
    const char* before = at;
    if (num() == special) return special;
    at = before;
    return sane();
  }
  // A count of things that take at least one byte each: a larger one is damage, not a reason to allocate.
  size_t count() { uint64_t n = raw(); if (n > (uint64_t)(end - at)) { bad = true; return 0; } return (size_t)n; }
  double real() { double d = 0; if (end - at < 8) { bad = true; return 0; } memcpy(&d, at, 8); at += 8; return d; }
  std::string_view text() { size_t n = count(); std::string_view t(at, n); at += n; return t; }
  Value value() {
    uint64_t tag = raw();
    switch (tag) {
      case NIL: return Value::nil();
      case BOOL: return Value::boolean(num());
      case INT: return Value::integer(num());
      case FLOAT: { double d = real(); bad = bad || d != d; return Value::number(d); }
      case TEXT: case OTHER: { std::string_view t = text(); Value v = Value::text(t); v.tag = (uint32_t)tag; return v; }
    }
    bad = true;
    return Value::nil();
  }
  Place place() { Place p; p.time = sane(); p.source = num(); p.offset = num(); return p; }
};

}  // namespace samovar
