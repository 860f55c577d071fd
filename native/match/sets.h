// Lists of literals in a rule: `in $list` and `like $list` look a value up, however many there are.
#pragma once
#include <algorithm>
#include <bit>
#include <string_view>
#include <vector>

#include "match/keys.h"
#include "match/ops.h"
#include "util/owned.h"

namespace samovar {

// Equal for values that are `same`: a whole number is one value, whichever way it was written.
inline uint64_t hash_value(Value v) {
  if (v.tag == TEXT) return hash_bytes(v.s, v.len);
  bool is_whole = v.tag == FLOAT && v.d >= -0x1p63 && v.d < 0x1p63 && v.d == (double)(int64_t)v.d;
  if (is_whole) v = Value::integer((int64_t)v.d);
  return mix((uint64_t)v.i ^ 0x9E3779B97F4A7C15ull, 0xD6E8FEB86659FD93ull + v.tag);
}

// A hash set of values. What is equal is what `same` says it is: 1 and 1.0 are one value, and nothing equals null or NaN.
// It is kept small, because what is not near costs most: a slot is 4 bytes, and short texts stand with their values.
class LiteralSet {
  std::vector<uint32_t> slots_;  // place in values_ + 1, above it the hash's upper bits: almost no stranger is compared
  std::vector<Owned> values_;
  int bits_ = 0;  // of a slot, for the place; 0 in all of them: it is free

  size_t home(uint64_t h) const { return h & (slots_.size() - 1); }
  bool is_like(uint32_t slot, uint64_t h) const { return slot >> bits_ == (uint32_t)(h >> (32 + bits_)); }
  const Owned& value(uint32_t slot) const { return values_[(slot & ((1u << bits_) - 1)) - 1]; }

 public:
  explicit LiteralSet(const std::vector<Value>& values = {})
      : slots_(std::bit_ceil(2 * values.size() + 1)), bits_(std::bit_width(values.size())) {
    for (const Value& v : values) {
      uint64_t h = hash_value(v);
      if (!same(v, v) || has(v, h)) continue;
      values_.emplace_back(v);
      size_t at = home(h);
      while (slots_[at]) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = (uint32_t)(h >> (32 + bits_)) << bits_ | (uint32_t)values_.size();
    }
  }
  bool has(const Value& v, uint64_t h) const {
    size_t mask = slots_.size() - 1;
    for (size_t at = home(h); slots_[at]; at = (at + 1) & mask)
      if (is_like(slots_[at], h) && same(value(slots_[at]).get(), v)) return true;
    return false;
  }
  bool has(const Value& v) const { return !values_.empty() && has(v, hash_value(v)); }
  bool has(std::string_view text) const { return has(Value::text(text)); }

  // What a look-up needs is asked for in steps, each some rows before the next.
  void prefetch_slot(uint64_t h) const { __builtin_prefetch(&slots_[home(h)]); }
  void prefetch_value(uint64_t h) const {
    uint32_t slot = slots_[home(h)];
    if (slot && is_like(slot, h)) __builtin_prefetch(&value(slot));
  }
};

// Patterns of `like`: a text fits when any of them does. Those without a sign in them, and those with nothing but a star
// at one end, are looked up; only the rest is tried one by one.
class Patterns {
  struct Affixes {
    std::vector<size_t> sizes;  // how long they are, each once
    LiteralSet texts;
  };
  LiteralSet whole_;
  Affixes before_, behind_;  // `text*` and `*text`
  std::vector<Value> rest_;

  static Affixes affixes(const std::vector<Value>& texts) {
    Affixes out;
    for (auto& t : texts) out.sizes.push_back(t.len);
    std::sort(out.sizes.begin(), out.sizes.end());
    out.sizes.erase(std::unique(out.sizes.begin(), out.sizes.end()), out.sizes.end());
    out.texts = LiteralSet(texts);
    return out;
  }

 public:
  explicit Patterns(const std::vector<Value>& patterns) {
    std::vector<Value> whole, before, behind;
    for (const Value& p : patterns) {
      std::string_view text = p.view();
      size_t sign = text.find_first_of("*?"), last = text.find_last_of("*?");
      if (sign == std::string_view::npos) whole.push_back(p);
      else if (sign != last || text[sign] == '?') rest_.push_back(p);
      else if (sign + 1 == text.size()) before.push_back(Value::text(text.substr(0, sign)));
      else if (sign == 0) behind.push_back(Value::text(text.substr(1)));
      else rest_.push_back(p);
    }
    whole_ = LiteralSet(whole);
    before_ = affixes(before);
    behind_ = affixes(behind);
  }
  bool fits(std::string_view text) const {
    if (whole_.has(text)) return true;
    for (size_t n : before_.sizes) if (n <= text.size() && before_.texts.has(text.substr(0, n))) return true;
    for (size_t n : behind_.sizes) if (n <= text.size() && behind_.texts.has(text.substr(text.size() - n))) return true;
    for (const Value& p : rest_) if (glob(text, p.view())) return true;
    return false;
  }
};

}  // namespace samovar
