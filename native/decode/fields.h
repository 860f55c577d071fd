// The fields that rules read, as a trie that the decoder walks while it reads a message.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "decode/scan.h"

namespace samovar {

constexpr size_t MAX_PATH_NAMES = 64;

// The fields to take from each message, as a trie over the names of their paths.
//
// `a.b` is read nested first ({"a": {"b": 1}}), then flat ({"a.b": 1}); a value that is absent or null leaves the
// word to the next way. With more names the shortest first name is tried first at every level, so for a.b.c:
// a > b > c, a > b.c, a.b > c, a.b.c.
class Fields {
 public:
  // `type_field` empty: every event has the type `fixed_type`. Paths of more than MAX_PATH_NAMES names are found
  // nowhere; the caller refuses them.
  Fields(const std::vector<std::string>& paths, const std::string& time_field, const std::string& type_field,
         const std::string& fixed_type);

  size_t columns() const { return slot_of_column_.size(); }

 private:
  friend class Gathered;
  friend class JsonReader;
  friend class AvroReader;
  template <class Reader>
  friend class Decoding;
  // A key of an object at some node, and the node that it leads to. The key may join several names: `a.b`.
  struct Key {
    uint64_t word = 0;  // its first eight bytes
    uint32_t node = 0;  // 0: an empty place
    std::string name;
    uint64_t joined = 0;  // one bit a boundary of the path, the first on top: 1 where the key has a dot there
  };
  struct Node {
    int slot = -1;       // of the path that ends here
    uint32_t end = 0;    // nodes [this, end) are this one and all below
    unsigned depth = 0;  // names on the way here
    bool plain = false;  // a path of one name, with none below: a value goes straight to its slot
    std::vector<Key> keys;  // a hash table, size a power of two; empty at leaves
    unsigned shift = 0;

    bool leaf() const { return keys.empty(); }
    const Key* find(const char* name, size_t size, uint64_t word) const;
  };
  static uint64_t first_word(const char* name, size_t size);
  static size_t hash(uint64_t word, size_t size, unsigned shift) {
    return (size_t)((word ^ size * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u >> shift);
  }
  void index(uint32_t node, const std::vector<std::string>& names);

  std::vector<Node> nodes_;  // in preorder; 0 is the root
  size_t slots_ = 0;
  std::vector<size_t> slot_of_column_;
  size_t time_slot_ = 0;
  int type_slot_ = -1;
  std::string fixed_type_;
};

inline uint64_t Fields::first_word(const char* name, size_t size) {
  char bytes[8] = {};
  memcpy(bytes, name, size < 8 ? size : 8);
  return scan::load8(bytes);
}

inline const Fields::Key* Fields::Node::find(const char* name, size_t size, uint64_t word) const {
  for (size_t place = hash(word, size, shift); keys[place].node; place = (place + 1) & (keys.size() - 1)) {
    const Key& key = keys[place];
    if (key.word != word || key.name.size() != size) continue;
    if (size <= 8 || memcmp(key.name.data() + 8, name + 8, size - 8) == 0) return &key;
  }
  return nullptr;
}

}  // namespace samovar
