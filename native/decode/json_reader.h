// One JSON message: checked from the first byte to the last, with the wanted values put into slots on the way.
#pragma once
#include <cstdint>
#include <vector>

#include "decode/batch.h"
#include "decode/fields.h"
#include "decode/gathered.h"
#include "decode/json.h"
#include "decode/scan.h"

namespace samovar {

// Reads a message into slots. The `past_` functions take a place in the message and return the place after what they
// read, or nullptr when it is not there; `verdict()` then says why.
class JsonReader : public Gathered {
 public:
  JsonReader(const Fields& fields, Batch& batch, bool copy) : Gathered(fields), batch_(batch), copy_(copy) {}

  Verdict read(const char* begin, const char* end) {
    begin_ = begin;
    end_ = end;
    hard_ = soft_ = Code::OK;
    if (end - begin > MAX_MESSAGE_BYTES) return {Code::TOO_LONG, 0};
    const char* p = scan::past_space(begin, end);
    if (p == end) return {begin == end ? Code::EMPTY : Code::BLANK, 0};
    Gathered::begin();
    const char* top = p;
    p = *p == '{' ? past_object(p + 1, &nodes_[0], 0, 1) : past_value<false>(p, 1, nullptr);
    if (p == nullptr || (p = scan::past_space(p, end)) != end) return fault(p);
    if (*top != '{') return verdict(Code::NOT_AN_OBJECT, top);
    if (soft_ != Code::OK) return verdict(soft_, soft_at_);
    if (!finds_.empty()) settle();
    return {};
  }

  Verdict verdict(Code code, const char* at) const { return {code, (uint32_t)(at - begin_)}; }

 private:
  const char* fail(const char* at, Code code = Code::NOT_JSON) {
    hard_ = code;
    hard_at_ = at;
    return nullptr;
  }

  // Faults that leave the structure whole: one of structure that comes later goes before them.
  void note(Code code, const char* at) {
    if (soft_ != Code::OK) return;
    soft_ = code;
    soft_at_ = at;
  }

  Verdict fault(const char* rest) const {
    const char* bad = scan::past_utf8(begin_, end_);
    if (bad != end_) return verdict(Code::NOT_UTF8, bad);
    return rest ? verdict(Code::NOT_JSON, rest) : verdict(hard_, hard_at_);
  }

  const char* past_object(const char* p, const Fields::Node* node, uint64_t joined, unsigned depth) {
    if (depth > MAX_DEPTH) return fail(p - 1, Code::TOO_DEEP);
    p = scan::past_space(p, end_);
    if (p != end_ && *p == '}') return p + 1;
    for (;;) {
      if (p == end_ || *p != '"') return fail(p);
      bool escaped = false;
      const char* name = p + 1;
      p = past_string(name, escaped);
      if (p == nullptr) return nullptr;
      const Fields::Key* key = node && !node->leaf() ? find(*node, name, (size_t)(p - 1 - name), escaped) : nullptr;
      p = past_colon(p);
      if (p == nullptr) return nullptr;
      p = key ? past_wanted(p, *key, joined | key->joined, depth) : past_value<false>(p, depth + 1, nullptr);
      if (p == nullptr) return nullptr;
      p = scan::past_space(p, end_);
      if (p == end_) return fail(p);
      if (*p == '}') return p + 1;
      if (*p != ',') return fail(p);
      p = scan::past_space(p + 1, end_);
    }
  }

  const char* past_array(const char* p, unsigned depth) {
    if (depth > MAX_DEPTH) return fail(p - 1, Code::TOO_DEEP);
    p = scan::past_space(p, end_);
    if (p != end_ && *p == ']') return p + 1;
    for (;;) {
      p = past_value<false>(p, depth + 1, nullptr);
      if (p == nullptr) return nullptr;
      p = scan::past_space(p, end_);
      if (p == end_) return fail(p);
      if (*p == ']') return p + 1;
      if (*p != ',') return fail(p);
      p = scan::past_space(p + 1, end_);
    }
  }

  const char* past_colon(const char* p) {
    p = scan::past_space(p, end_);
    if (p == end_ || *p != ':') return fail(p);
    return scan::past_space(p + 1, end_);
  }

  const Fields::Key* find(const Fields::Node& node, const char* name, size_t size, bool escaped) {
    if (escaped) {
      unescaped_.resize(size);
      size = (size_t)(scan::unescape(name, name + size, unescaped_.data()) - unescaped_.data());
      return node.find(unescaped_.data(), size, Fields::first_word(unescaped_.data(), size));
    }
    if (end_ - name < 8) return node.find(name, size, Fields::first_word(name, size));
    uint64_t word = scan::load8(name);
    if (size < 8) word &= (uint64_t{1} << size * 8) - 1;
    return node.find(name, size, word);
  }

  const char* past_wanted(const char* p, const Fields::Key& key, uint64_t joined, unsigned depth) {
    const Fields::Node& node = nodes_[key.node];
    if (node.plain) {
      Slot& slot = slots[(size_t)node.slot];
      slot.at = p;
      return past_value<true>(p, depth + 1, &slot.value);
    }
    forget(key.node, joined);
    size_t place = finds_.size();
    finds_.push_back({key.node, joined, {}});
    const char* from = p;
    Value value;
    if (!node.leaf() && p != end_ && *p == '{') {
      p = past_object(p + 1, &node, joined, depth + 1);
      if (p) value = Value::other(from, (size_t)(p - from));
    } else {
      p = past_value<true>(p, depth + 1, &value);
    }
    finds_[place].slot = {value, from, joined};  // what was found below stands after it and leaves its place alone
    return p;
  }

  template <bool WANTED>
  const char* past_value(const char* p, unsigned depth, Value* out) {
    if (p == end_) return fail(p);
    const char* from = p;
    switch (*p) {
      case '"': {
        bool escaped = false;
        p = past_string(p + 1, escaped);
        if (WANTED && p) *out = text(from + 1, (size_t)(p - from - 2), escaped);
        return p;
      }
      case '{':
      case '[':
        p = *p == '{' ? past_object(p + 1, nullptr, 0, depth) : past_array(p + 1, depth);
        if (WANTED && p) *out = Value::other(from, (size_t)(p - from));
        return p;
      case 't':
        if (WANTED) *out = Value::boolean(true);
        return past_literal(p, "true", 4);
      case 'f':
        if (WANTED) *out = Value::boolean(false);
        return past_literal(p, "false", 5);
      case 'n':
        if (WANTED) *out = Value();
        return past_literal(p, "null", 4);
      default:
        return past_number<WANTED>(p, out);
    }
  }

  template <bool WANTED>
  const char* past_number(const char* from, Value* out) {
    scan::Number number;
    const char* wrong;
    const char* p = scan::past_number(from, end_, number, wrong);
    if (p == nullptr) return fail(wrong);
    if (scan::too_large(number, from, p)) note(Code::NUMBER_TOO_LARGE, from);
    if (WANTED) *out = scan::number_value(number, from, p);
    return p;
  }

  const char* past_literal(const char* p, const char* word, size_t size) {
    for (size_t i = 0; i < size; ++i, ++p) {
      if (p == end_ || *p != word[i]) return fail(p);
    }
    return p;
  }

  // p is after the opening quote; returns the place after the closing one.
  const char* past_string(const char* p, bool& escaped) {
    for (;;) {
      p = scan::past_plain(p, end_);
      if (p == end_) return fail(p);
      if (*p == '"') return p + 1;
      if (*p == '\\') {
        escaped = true;
        p = past_escape(p);
        if (p == nullptr) return nullptr;
      } else {
        int length = (unsigned char)*p < 0x20 ? 0 : scan::utf8_length(p, end_);
        if (length == 0) return fail(p);
        p += length;
      }
    }
  }

  const char* past_escape(const char* p) {
    const char* from = p++;
    if (p == end_) return fail(p);
    if (*p != 'u') return memchr("\"\\/bfnrt", *p, 8) ? p + 1 : fail(p);
    p = past_hex(p + 1);
    if (p == nullptr) return nullptr;
    uint32_t unit = scan::hex4(from + 2);
    if (unit >> 11 != 0x1B) return p;
    bool high = unit >> 10 == 0x36;
    if (!high || end_ - p < 2 || p[0] != '\\' || p[1] != 'u') return note(Code::LONE_SURROGATE, from), p;
    const char* after = past_hex(p + 2);
    if (after == nullptr) return nullptr;
    if (scan::hex4(p + 2) >> 10 == 0x37) return after;
    return note(Code::LONE_SURROGATE, from), p;  // the second escape is looked at on its own
  }

  const char* past_hex(const char* p) {
    for (int i = 0; i < 4; ++i, ++p) {
      if (p == end_ || scan::hex_digit(*p) < 0) return fail(p);
    }
    return p;
  }

  Value text(const char* from, size_t size, bool escaped) {
    if (!escaped) return Value::text(from, size);
    char* to = batch_.room(size);
    return Value::text(to, (size_t)(scan::unescape(from, from + size, to) - to));
  }

 public:
  // A value that outlives the message's buffer where that was asked for.
  Value kept(const Value& value) const {
    bool inside = copy_ && value.tag >= TEXT && value.s >= begin_ && value.s <= end_;
    return inside ? batch_.keep(value) : value;
  }

 private:
  Batch& batch_;
  bool copy_;
  const char* begin_ = nullptr;
  const char* end_ = nullptr;
  Code hard_ = Code::OK, soft_ = Code::OK;
  const char* hard_at_ = nullptr;
  const char* soft_at_ = nullptr;
  std::vector<char> unescaped_;
};

}  // namespace samovar
