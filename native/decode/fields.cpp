#include "decode/fields.h"

#include <bit>
#include <map>

namespace samovar {

namespace {

std::vector<std::string> names_of(const std::string& path) {
  std::vector<std::string> names;
  size_t from = 0;
  for (size_t dot; (dot = path.find('.', from)) != std::string::npos; from = dot + 1) {
    names.push_back(path.substr(from, dot - from));
  }
  names.push_back(path.substr(from));
  return names;
}

struct Branch {
  int slot = -1;
  std::map<std::string, Branch> below;
};

}  // namespace

Fields::Fields(const std::vector<std::string>& paths, const std::string& time_field, const std::string& type_field,
               const std::string& fixed_type)
    : fixed_type_(fixed_type) {
  Branch root;
  auto slot_of = [&](const std::string& path) {
    std::vector<std::string> names = names_of(path);
    if (names.size() > MAX_PATH_NAMES) return slots_++;
    Branch* at = &root;
    for (const std::string& name : names) at = &at->below[name];
    if (at->slot < 0) at->slot = (int)slots_++;
    return (size_t)at->slot;
  };
  for (const std::string& path : paths) slot_of_column_.push_back(slot_of(path));
  time_slot_ = slot_of(time_field);
  if (!type_field.empty()) type_slot_ = (int)slot_of(type_field);

  std::vector<std::string> names;  // of each node: the one that leads to it from its parent
  auto flatten = [&](auto& self, const Branch& branch, const std::string& name, unsigned depth) -> void {
    size_t place = nodes_.size();
    nodes_.emplace_back();
    names.push_back(name);
    for (auto& [below, child] : branch.below) self(self, child, below, depth + 1);
    Node& node = nodes_[place];
    node.slot = branch.slot;
    node.depth = depth;
    node.end = (uint32_t)nodes_.size();
    node.plain = depth == 1 && branch.below.empty();
  };
  flatten(flatten, root, "", 0);
  for (uint32_t i = 0; i < nodes_.size(); ++i) index(i, names);
}

// Every node below is reached from here by one key: its names joined by dots.
void Fields::index(uint32_t top, const std::vector<std::string>& names) {
  Node& node = nodes_[top];
  size_t below = node.end - top - 1;
  if (below == 0) return;
  size_t size = std::bit_ceil(below * 2);
  node.keys.resize(size);
  node.shift = 64 - (unsigned)std::countr_zero(size);
  std::vector<Key> way;  // of the nodes from here down to the one at hand
  for (uint32_t i = top + 1; i < node.end; ++i) {
    size_t steps = nodes_[i].depth - node.depth - 1;
    way.resize(steps);
    Key key;
    key.node = i;
    key.name = steps ? way.back().name + "." + names[i] : names[i];
    if (steps) key.joined = way.back().joined | uint64_t{1} << (63 - (nodes_[i].depth - 2));
    key.word = first_word(key.name.data(), key.name.size());
    way.push_back(key);
    size_t place = hash(key.word, key.name.size(), node.shift);
    while (node.keys[place].node) place = (place + 1) & (size - 1);
    node.keys[place] = key;
  }
}

}  // namespace samovar
