// Avro messages to the rows of a batch: one verdict a message, never an exception, nothing skipped in silence.
//
// patterns/engine/avro/program.py resolves a writer's schema against the reader's and writes what is left to do as words, here
// a program: nodes, one after the other, each an operation and its operands. A node is named by the place of its first
// word. Word 0 is the root, word 1 the number of records; `blob` holds the texts.
//
//   NOTHING BOOLEAN FLOAT DOUBLE
//   INT, LONG        form, factor              form: as it is, a double, divided or multiplied by the factor
//   STRING           form                      text, or bytes
//   BYTES            form, scale               bytes, text, or a decimal
//   FIXED            form, scale, size         bytes, a decimal, or a uuid
//   ENUM             n, then n x (text, size)  size -1: the reader does not know the symbol
//   ARRAY, MAP       node
//   UNION            n, then n x node
//   RECORD           ordinal, n, then n x (name, size, node, number)   size -1: the reader has no such field
//   CONSTANT         tag, bits or text, size   takes no bytes: a default
//   MISMATCH         number                    can be written and not be read
//
// A message is checked from the first byte to the last, also what no rule reads. Time and memory are bounded by its
// size: lengths are held against what is left, depth against MAX_DEPTH, and what takes no bytes against an allowance.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "decode/fields.h"

namespace samovar {

namespace avro {
enum Op : int64_t {
#define AVRO_OP(name, word, operands) name,
#include "match/opcodes.def"
};
enum Form : int64_t {
#define AVRO_FORM(name, word) name,
#include "match/opcodes.def"
};
// Why bytes are not Avro; the order is that of REASONS in patterns/engine/avro/codec.py.
enum class Reason : uint32_t {
  NONE,
  ENDS_EARLY,
  LEFT_OVER,
  BAD_LENGTH,
  BAD_NUMBER,
  BAD_BOOLEAN,
  BAD_BRANCH,
  BAD_SYMBOL,
  BAD_BLOCK,
  TOO_MANY,
  LONG_DECIMAL,
  UNKNOWN_SYMBOL,
};

constexpr int64_t ALLOWANCE = 65536;           // of nulls, empty records and other things that take no bytes
constexpr size_t MAX_JSON_BYTES = 64u << 20;   // of an object or a list as a value
constexpr size_t MAX_DECIMAL_BYTES = 128;

// A schema, and where the fields of its records go: a plan for each record at each node of the trie, made when needed.
struct Program {
  struct Field {
    size_t node;
    uint32_t number;
    uint32_t wanted = 0;  // a node of the trie; 0 is none
    uint64_t joined = 0;
  };
  using Plan = std::vector<Field>;

  std::vector<int64_t> words;
  std::string blob;
  std::vector<std::unique_ptr<Plan>> plans;

  // Whether every node that can be reached lies inside `words`, refers to what is there, and has texts inside `blob`.
  bool is_sound() const;
  std::string_view text(size_t at) const { return {blob.data() + words[at], (size_t)words[at + 1]}; }
};

// The schemas of a stream. Framed messages have the number of theirs in front: 0, and then four bytes.
struct Schemas {
  const Fields& fields;
  bool framed;
  std::map<uint32_t, std::unique_ptr<Program>> by_number;
  std::string json;  // of the message shown last

  Program* find(uint32_t number) const {
    auto found = by_number.find(number);
    return found == by_number.end() ? nullptr : found->second.get();
  }
};

constexpr size_t FRAME_BYTES = 5;
}  // namespace avro

}  // namespace samovar
