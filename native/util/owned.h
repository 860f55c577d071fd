// A value that outlives its batch. Short text stands in the value itself; longer text in a counted block that copies
// share. 16 bytes either way.
#pragma once
#include <cstddef>
#include <new>
#include <utility>

#include "util/value.h"

namespace samovar {

class Owned {
  static constexpr size_t INSIDE = 14;
  static constexpr uint8_t SHORT = 0x80;  // in the tag's first byte: the text is here, behind its length
  struct Block {
    uint32_t uses;
    char bytes[4];
  };
  union {
    Value value_;
    struct {
      uint8_t tag, size;
      char text[INSIDE];
    } short_;
    uint64_t words_[2];
  };

  bool is_short() const { return short_.tag & SHORT; }
  Block* block() const { return (Block*)(value_.s - offsetof(Block, bytes)); }
  bool counted() const { return !is_short() && value_.tag >= TEXT && value_.len > 0; }

 public:
  Owned() : value_() {}
  Owned(const Value& v) : value_(v) {
    if (v.tag < TEXT || v.len == 0) return;
    if (v.len <= INSIDE) {
      ShortText t(v.s, v.len);
      words_[0] = t.words[0] << 16 | (uint64_t)v.len << 8 | v.tag | SHORT;
      words_[1] = t.words[1] << 16 | t.words[0] >> 48;
      return;
    }
    Block* b = (Block*)::operator new(sizeof(Block) + v.len);
    b->uses = 1;
    memcpy(b->bytes, v.s, v.len);
    value_.s = b->bytes;
  }
  Owned(const Owned& o) : value_(o.value_) {
    if (counted()) block()->uses++;
  }
  Owned(Owned&& o) noexcept : value_(o.value_) { o.value_ = Value(); }
  Owned& operator=(Owned o) noexcept {
    std::swap(words_[0], o.words_[0]);
    std::swap(words_[1], o.words_[1]);
    return *this;
  }
  ~Owned() {
    if (counted() && --block()->uses == 0) ::operator delete(block());
  }
  // Its text, if it has any, is good as long as this Owned stays where it is.
  Value get() const {
    if (!is_short()) return value_;
    Value v = Value::text(short_.text, short_.size);
    v.tag = short_.tag & ~SHORT;
    return v;
  }
};
static_assert(sizeof(Owned) == 16);

}  // namespace samovar
