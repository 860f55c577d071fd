// A value that outlives its batch: text is kept in a counted block, shared between copies.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include "value.h"

namespace samovar {

class Owned {
  struct Block {
    uint32_t uses;
    char bytes[4];
  };
  Value value_;
  Block* block() const { return (Block*)(value_.s - offsetof(Block, bytes)); }
  bool counted() const { return value_.tag >= TEXT && value_.len > 0; }

 public:
  Owned() {}
  Owned(const Value& v) : value_(v) {
    if (!counted()) return;
    Block* b = (Block*)malloc(sizeof(Block) + v.len);
    if (!b) abort();
    b->uses = 1;
    memcpy(b->bytes, v.s, v.len);
    value_.s = b->bytes;
  }
  Owned(const Owned& o) : value_(o.value_) {
    if (counted()) block()->uses++;
  }
  Owned(Owned&& o) noexcept : value_(o.value_) { o.value_ = Value(); }
  Owned& operator=(Owned o) noexcept {
    std::swap(value_, o.value_);
    return *this;
  }
  ~Owned() {
    if (counted() && --block()->uses == 0) free(block());
  }
  const Value& get() const { return value_; }
};

}  // namespace samovar
