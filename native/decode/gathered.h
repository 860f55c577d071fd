// The wanted values of one message, gathered while it is read: a slot a path.
#pragma once
#include <cstdint>
#include <vector>

#include "decode/fields.h"
#include "util/value.h"

namespace samovar {

class Gathered {
 public:
  struct Slot {
    Value value;
    const char* at = nullptr;  // where the value stands in the message
    uint64_t joined = 0;
  };
  std::vector<Slot> slots;

 protected:
  // A value of a path that can be written in several ways, or an object on the way to such values.
  struct Find {
    uint32_t node;
    uint64_t joined;  // which way: the least that is not null counts
    Slot slot;
  };

  explicit Gathered(const Fields& fields) : slots(fields.slots_), nodes_(fields.nodes_.data()) {}

  void begin() {
    for (Slot& slot : slots) slot.value = Value();
    finds_.clear();
  }

  // A name that comes again in its object: what its former value gave no longer counts.
  void forget(uint32_t top, uint64_t joined) {
    const Fields::Node& node = nodes_[top];
    uint64_t mask = ~uint64_t{0} << (64 - node.depth);  // the way here, and nested from here on
    std::erase_if(finds_, [&](const Find& f) {
      return f.node >= top && f.node < node.end && ((f.joined ^ joined) & mask) == 0;
    });
  }

  void settle() {
    for (const Find& find : finds_) {
      int place = nodes_[find.node].slot;
      if (place < 0 || find.slot.value.is_null()) continue;
      Slot& slot = slots[(size_t)place];
      if (slot.value.is_null() || find.joined < slot.joined) slot = find.slot;
    }
  }

  const Fields::Node* nodes_;
  std::vector<Find> finds_;
};

}  // namespace samovar
