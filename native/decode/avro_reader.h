// One Avro message: checked from the first byte to the last, with the wanted values put into slots on the way.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>

#include "decode/avro.h"
#include "decode/batch.h"
#include "decode/gathered.h"
#include "decode/json.h"
#include "match/output.h"
#include "decode/scan.h"

namespace samovar {

// The number that a decimal's bytes mean (big end first, two's complement), rounded once.
Value decimal_value(const unsigned char* bytes, size_t size, int64_t scale);

// Reads a message into slots. Functions return false when the bytes are no value; `fault_` then says why.
class AvroReader : public Gathered {
 public:
  AvroReader(const Fields& fields, Batch& batch, bool copy, avro::Schemas& schemas)
      : Gathered(fields), trie_nodes_(fields.nodes_.size()), batch_(batch), copy_(copy), schemas_(schemas) {}

  Verdict read(const char* begin, const char* end) {
    if (!open(begin, end)) return fault_;
    Gathered::begin();
    bool object = false;
    if (!root(object)) return begin == end ? Verdict{Code::EMPTY, 0} : fault_;
    if (!closed()) return fault_;
    if (!object) return verdict(Code::NOT_AN_OBJECT, begin + head());
    if (!finds_.empty()) settle();
    return {};
  }

  // The whole message as JSON text.
  Verdict text(const char* begin, const char* end, std::string& out) {
    if (!open(begin, end)) return fault_;
    json_.clear();
    if (!json((size_t)program_->words[0], 1) || !closed()) return fault_;
    out.swap(json_);
    return {};
  }

  Verdict verdict(Code code, const char* at) const { return {code, (uint32_t)(at - begin_)}; }

  Value kept(const Value& value) const {
    bool inside = copy_ && value.tag >= TEXT && value.s >= begin_ && value.s <= end_;
    return inside ? batch_.keep(value) : value;
  }

 private:
  using Reason = avro::Reason;

  bool fail(Code code, Reason reason = Reason::NONE, uint32_t where = 0) {
    uint32_t word = (uint32_t)code | (uint32_t)reason << 8 | (where < 65536 ? where : 0) << 16;
    fault_ = {(Code)word, (uint32_t)(p_ - begin_)};
    return false;
  }
  bool fail(Reason reason) { return fail(Code::NOT_AVRO, reason, field_); }

  size_t head() const { return schemas_.framed ? avro::FRAME_BYTES : 0; }
  int64_t word(size_t at) const { return program_->words[at]; }

  bool open(const char* begin, const char* end) {
    begin_ = p_ = begin;
    end_ = end;
    field_ = 0;
    if (end - begin > MAX_MESSAGE_BYTES) return fail(Code::TOO_LONG);
    budget_ = (end - begin) * MAX_DEPTH + avro::ALLOWANCE;
    uint32_t number = 0;
    if (schemas_.framed) {
      if (begin == end) return fail(Code::EMPTY);
      if (end - begin < (ptrdiff_t)avro::FRAME_BYTES || *begin != 0) return fail(Code::NOT_FRAMED);
      for (size_t k = 1; k < avro::FRAME_BYTES; k++) number = number << 8 | (unsigned char)begin[k];
      p_ += avro::FRAME_BYTES;
    }
    if (!program_ || number != number_) program_ = schemas_.find(number_ = number);
    return program_ ? true : fail(Code::UNKNOWN_SCHEMA);
  }

  bool closed() {
    field_ = 0;
    return p_ == end_ ? true : fail(Reason::LEFT_OVER);
  }

  bool root(bool& object) {
    size_t node = (size_t)word(0);
    if (!chosen(node)) return false;
    object = is_object(node);
    return object ? members(node, 0, 0, 1) : skip(node, 1);
  }

  bool is_object(size_t node) const { return word(node) == avro::RECORD || word(node) == avro::MAP; }

  // Of a union, the branch that is there.
  bool chosen(size_t& node) {
    while (word(node) == avro::UNION) {
      const char* from = p_;
      int64_t branch;
      if (!number(branch)) return false;
      if (branch < 0 || branch >= word(node + 1)) { p_ = from; return fail(Reason::BAD_BRANCH); }
      node = (size_t)word(node + 2 + (size_t)branch);
    }
    return word(node) == avro::MISMATCH ? fail(Code::SCHEMA_MISMATCH, Reason::NONE, (uint32_t)word(node + 1)) : true;
  }

  // ------------------------------------------------------------ objects whose members are wanted

  bool members(size_t node, uint32_t top, uint64_t joined, unsigned depth) {
    if (depth > MAX_DEPTH) return fail(Code::TOO_DEEP);
    if (word(node) == avro::MAP) return map_members(node, top, joined, depth);
    if (!spend()) return false;
    for (const avro::Program::Field& field : plan(node, top)) {
      field_ = field.number;
      bool good = field.wanted ? wanted(field.node, field.wanted, joined | field.joined, depth) : skip(field.node, depth + 1);
      if (!good) return false;
    }
    return true;
  }

  bool map_members(size_t node, uint32_t top, uint64_t joined, unsigned depth) {
    size_t values = (size_t)word(node + 1);
    return blocks([&] {
      Value name;
      if (!text(name)) return false;
      const Fields::Node& trie = nodes_[top];
      const Fields::Key* key = trie.leaf() ? nullptr : trie.find(name.s, name.len, Fields::first_word(name.s, name.len));
      if (!key) return skip(values, depth + 1);
      forget(key->node, joined | key->joined);
      return wanted(values, key->node, joined | key->joined, depth);
    });
  }

  bool wanted(size_t node, uint32_t place, uint64_t joined, unsigned depth) {
    const Fields::Node& trie = nodes_[place];
    const char* from = p_;
    if (trie.plain) {
      Slot& slot = slots[(size_t)trie.slot];
      slot.at = from;
      return value(node, slot.value, depth + 1);
    }
    size_t find = finds_.size();
    finds_.push_back({place, joined, {}});
    if (!chosen(node)) return false;
    Value found;
    if (trie.leaf() || !is_object(node)) {
      if (!value(node, found, depth + 1)) return false;
    } else {
      // An object that is wanted itself, and members of it too, is read twice.
      const char* inside = p_;
      if (trie.slot >= 0 && !value(node, found, depth + 1)) return false;
      p_ = inside;
      if (!members(node, place, joined, depth + 1)) return false;
    }
    finds_[find].slot = {found, from, joined};
    return true;
  }

  const avro::Program::Plan& plan(size_t node, uint32_t top) {
    auto& plans = program_->plans;
    if (plans.empty()) plans.resize((size_t)word(1) * trie_nodes_);
    auto& found = plans[(size_t)word(node + 1) * trie_nodes_ + top];
    if (!found) found = std::make_unique<avro::Program::Plan>(planned(node, nodes_[top]));
    return *found;
  }

  avro::Program::Plan planned(size_t node, const Fields::Node& trie) const {
    avro::Program::Plan out;
    for (int64_t k = 0; k < word(node + 2); k++) {
      size_t at = node + 3 + 4 * (size_t)k;
      avro::Program::Field field{(size_t)word(at + 2), (uint32_t)word(at + 3)};
      if (word(at + 1) >= 0 && !trie.leaf()) {
        std::string_view name = program_->text(at);
        const Fields::Key* key = trie.find(name.data(), name.size(), Fields::first_word(name.data(), name.size()));
        if (key) { field.wanted = key->node; field.joined = key->joined; }
      }
      out.push_back(field);
    }
    return out;
  }

  // ------------------------------------------------------------ values that are passed over, or taken whole

  bool skip(size_t node, unsigned depth) {
    if (!chosen(node)) return false;
    switch (word(node)) {
      case avro::RECORD:
        if (depth > MAX_DEPTH) return fail(Code::TOO_DEEP);
        if (!spend()) return false;
        for (size_t at = node + 3, stop = at + 4 * (size_t)word(node + 2); at < stop; at += 4) {
          field_ = (uint32_t)word(at + 3);
          if (!skip((size_t)word(at + 2), depth + 1)) return false;
        }
        return true;
      case avro::ARRAY:
        if (depth > MAX_DEPTH) return fail(Code::TOO_DEEP);
        return blocks([&] { return skip((size_t)word(node + 1), depth + 1); });
      case avro::MAP:
        if (depth > MAX_DEPTH) return fail(Code::TOO_DEEP);
        return blocks([&] {
          Value name;
          return text(name) && skip((size_t)word(node + 1), depth + 1);
        });
      default: {
        Value unused;
        return scalar<false>(node, unused);
      }
    }
  }

  bool value(size_t node, Value& out, unsigned depth) {
    if (!chosen(node)) return false;
    if (!is_object(node) && word(node) != avro::ARRAY) return scalar<true>(node, out);
    json_.clear();
    if (!json(node, depth)) return false;
    char* to = batch_.room(json_.size());
    memcpy(to, json_.data(), json_.size());
    out = Value::other(to, json_.size());
    return true;
  }

  bool json(size_t node, unsigned depth) {
    if (!chosen(node)) return false;
    if (json_.size() > avro::MAX_JSON_BYTES) return fail(Code::TOO_LONG);
    bool first = true;
    auto comma = [&] { if (!first) json_.push_back(','); first = false; };
    switch (word(node)) {
      case avro::RECORD:
        if (depth > MAX_DEPTH) return fail(Code::TOO_DEEP);
        if (!spend()) return false;
        json_.push_back('{');
        for (size_t at = node + 3, stop = at + 4 * (size_t)word(node + 2); at < stop; at += 4) {
          field_ = (uint32_t)word(at + 3);
          bool shown = word(at + 1) >= 0;
          if (shown) { comma(); write_text(json_, program_->text(at)); json_.push_back(':'); }
          if (!(shown ? json((size_t)word(at + 2), depth + 1) : skip((size_t)word(at + 2), depth + 1))) return false;
        }
        json_.push_back('}');
        return true;
      case avro::ARRAY:
        if (depth > MAX_DEPTH) return fail(Code::TOO_DEEP);
        json_.push_back('[');
        if (!blocks([&] { return comma(), json((size_t)word(node + 1), depth + 1); })) return false;
        json_.push_back(']');
        return true;
      case avro::MAP:
        if (depth > MAX_DEPTH) return fail(Code::TOO_DEEP);
        json_.push_back('{');
        if (!blocks([&] {
              Value name;
              if (!text(name)) return false;
              comma();
              write_text(json_, name.view());
              json_.push_back(':');
              return json((size_t)word(node + 1), depth + 1);
            })) return false;
        json_.push_back('}');
        return true;
      default: {
        Value found;
        if (!scalar<true>(node, found)) return false;
        write_value(json_, found);
        return true;
      }
    }
  }

  // ------------------------------------------------------------ single values

  template <bool WANTED>
  bool scalar(size_t node, Value& out) {
    switch (word(node)) {
      case avro::NOTHING:
        out = Value();
        return spend();
      case avro::BOOLEAN:
        if (p_ == end_) return fail(Reason::ENDS_EARLY);
        if ((unsigned char)*p_ > 1) return fail(Reason::BAD_BOOLEAN);
        out = Value::boolean(*p_++ == 1);
        return true;
      case avro::INT:
      case avro::LONG: return whole(node, out);
      case avro::FLOAT: return floating<float>(out);
      case avro::DOUBLE: return floating<double>(out);
      case avro::STRING:
        if (!text(out)) return false;
        if (WANTED && word(node + 1) == avro::AS_BYTES) out = latin(out.s, out.len);
        return true;
      case avro::BYTES: {
        const char* from;
        size_t size;
        return length(size) && taken(size, from) && formed<WANTED>(node, from, size, out);
      }
      case avro::FIXED: {
        const char* from;
        size_t size = (size_t)word(node + 3);
        return (size || spend()) && taken(size, from) && formed<WANTED>(node, from, size, out);
      }
      case avro::ENUM: return symbol(node, out);
      default: return constant(node, out);
    }
  }

  bool whole(size_t node, Value& out) {
    const char* from = p_;
    int64_t n;
    if (!number(n)) return false;
    if (word(node) == avro::INT && n != (int32_t)n) { p_ = from; return fail(Reason::BAD_NUMBER); }
    int64_t factor = word(node + 2);
    switch (word(node + 1)) {
      case avro::AS_DOUBLE: out = Value::number((double)n); break;
      case avro::DIVIDED: out = n % factor ? Value::number((double)n / (double)factor) : Value::integer(n / factor); break;
      case avro::MULTIPLIED: out = Value::integer(n * factor); break;
      default: out = Value::integer(n);
    }
    return true;
  }

  // What is not a number (infinite, or none at all) is null, as elsewhere.
  template <class Float>
  bool floating(Value& out) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    const char* from;
    if (!taken(sizeof(Float), from)) return false;
    Float x;
    memcpy(&x, from, sizeof x);
    out = std::isfinite(x) ? Value::number((double)x) : Value();
    return true;
  }

  template <bool WANTED>
  bool formed(size_t node, const char* from, size_t size, Value& out) {
    switch (word(node + 1)) {
      case avro::AS_TEXT: return utf8(from, size, out);
      case avro::DECIMAL:
        if (size > avro::MAX_DECIMAL_BYTES) { p_ = from; return fail(Reason::LONG_DECIMAL); }
        if (WANTED) out = decimal_value((const unsigned char*)from, size, word(node + 2));
        return true;
      case avro::UUID:
        if (WANTED) out = uuid((const unsigned char*)from);
        return true;
      default:
        if (WANTED) out = latin(from, size);
        return true;
    }
  }

  bool symbol(size_t node, Value& out) {
    const char* from = p_;
    int64_t place;
    if (!number(place)) return false;
    if (place < 0 || place >= word(node + 1)) { p_ = from; return fail(Reason::BAD_SYMBOL); }
    size_t at = node + 2 + 2 * (size_t)place;
    if (word(at + 1) < 0) { p_ = from; return fail(Code::SCHEMA_MISMATCH, Reason::UNKNOWN_SYMBOL, field_); }
    out = batch_.keep(Value::text(program_->text(at)));
    return true;
  }

  bool constant(size_t node, Value& out) {
    out = Value();
    out.tag = (uint32_t)word(node + 1);
    out.i = word(node + 2);
    if (out.tag < TEXT) return true;
    out.s = program_->blob.data() + word(node + 2);
    out.len = (uint32_t)word(node + 3);
    out = batch_.keep(out);
    return true;
  }

  // ------------------------------------------------------------ bytes

  bool spend() { return --budget_ >= 0 ? true : fail(Reason::TOO_MANY); }

  bool number(int64_t& out) {
    uint64_t bits = 0;
    const char* q = p_;
    for (unsigned shift = 0;; shift += 7) {
      if (q == end_) return fail(Reason::ENDS_EARLY);
      unsigned char c = (unsigned char)*q++;
      if (shift == 63 && c > 1) return fail(Reason::BAD_NUMBER);
      bits |= (uint64_t)(c & 0x7F) << shift;
      if (c < 0x80) break;
    }
    p_ = q;
    out = (int64_t)(bits >> 1 ^ (0 - (bits & 1)));
    return true;
  }

  bool length(size_t& size) {
    const char* from = p_;
    int64_t n;
    if (!number(n)) return false;
    if (n < 0 || n > end_ - p_) { p_ = from; return fail(Reason::BAD_LENGTH); }
    size = (size_t)n;
    return true;
  }

  bool taken(size_t size, const char*& from) {
    if ((size_t)(end_ - p_) < size) return fail(Reason::ENDS_EARLY);
    from = p_;
    p_ += size;
    return true;
  }

  bool text(Value& out) {
    const char* from;
    size_t size;
    return length(size) && taken(size, from) && utf8(from, size, out);
  }

  bool utf8(const char* from, size_t size, Value& out) {
    const char *at = from, *end = from + size;
    while (end - at >= 8 && !(scan::load8(at) & scan::each(0x80))) at += 8;
    at = scan::past_utf8(at, end);
    if (at != end) { p_ = at; return fail(Code::NOT_UTF8, Reason::NONE, field_); }
    out = Value::text(from, size);
    return true;
  }

  // A count of items, the items, and so on until a count of 0. A negative one is followed by the size of its items.
  template <class Each>
  bool blocks(Each each) {
    for (;;) {
      const char* from = p_;
      int64_t count, size;
      if (!number(count)) return false;
      if (count == 0) return true;
      const char* stop = nullptr;
      if (count < 0) {
        if (!number(size)) return false;
        if (count == INT64_MIN || size < 0 || size > end_ - p_) { p_ = from; return fail(Reason::BAD_BLOCK); }
        count = -count;
        stop = p_ + size;
      }
      for (; count; --count) {
        if (!spend() || !each()) return false;
      }
      if (stop && p_ != stop) { p_ = from; return fail(Reason::BAD_BLOCK); }
    }
  }

  // Bytes as text: each byte is the character of its number, as in Avro's own JSON.
  Value latin(const char* from, size_t size) {
    char* to = batch_.room(2 * size);
    char* at = to;
    for (size_t k = 0; k < size; k++) at = scan::put_utf8((unsigned char)from[k], at);
    return Value::text(to, (size_t)(at - to));
  }

  Value uuid(const unsigned char* bytes) {
    static const char hex[] = "0123456789abcdef";
    char* to = batch_.room(36);
    char* at = to;
    for (int k = 0; k < 16; k++) {
      if (k == 4 || k == 6 || k == 8 || k == 10) *at++ = '-';
      *at++ = hex[bytes[k] >> 4];
      *at++ = hex[bytes[k] & 15];
    }
    return Value::text(to, 36);
  }

  size_t trie_nodes_;
  Batch& batch_;
  bool copy_;
  avro::Schemas& schemas_;
  avro::Program* program_ = nullptr;
  uint32_t number_ = 0;
  const char* begin_ = nullptr;
  const char* p_ = nullptr;
  const char* end_ = nullptr;
  int64_t budget_ = 0;
  uint32_t field_ = 0;  // the number of the field that is being read
  Verdict fault_;
  std::string json_;
};

}  // namespace samovar
