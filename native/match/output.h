// A match as a line of JSON, and its id.
#pragma once
#include <string>
#include <vector>

#include "match/held.h"
#include "util/owned.h"
#include "util/value.h"

namespace samovar {

void write_text(std::string& out, std::string_view text);
void write_number(std::string& out, double x);
void write_value(std::string& out, const Value& v);
// The first 16 bytes of SHA-256, in hex.
std::string digest(const std::string& bytes);

constexpr size_t ID_BYTES = 32;

// Text that nobody bounds may come in any size; in a match it is cut.
constexpr size_t TEXT_MOST = 8192;      // bytes of a message, and of one text in `emit`
constexpr size_t OTHER_MOST = 1 << 20;  // bytes of a list or an object in `emit`
constexpr std::string_view CUT = "\u2026";  // ends what was cut
// Where to cut text so that `most` bytes are left at the most, and no character is divided.
inline size_t cut_at(std::string_view text, size_t most) {
  size_t end = most;
  while (end && ((unsigned char)text[end] & 0xC0) == 0x80) end--;
  return end;
}

// What sorts the matches of a step: detection time, place of the last event, rule, and then event by event. Where
// filters come after the step, the message is but values until it is known that an alert will tell it.
struct Match {
  int64_t start = 0, at = 0;
  Place last;
  int rule = 0;
  std::vector<Place> events;
  std::string key;
  std::string line;  // up to the message, or to its end
  uint32_t id_at = 0;  // in the line
  std::vector<Owned> quoted;  // what the message is to tell
  size_t quoted_bytes = 0;    // of their texts
  bool suppressed = false, muted = false;
  std::string_view id() const { return std::string_view(line).substr(id_at, ID_BYTES); }
};

// Text that matches quote, each held once: those of one event quote the same fields over and over.
class QuotedTexts {
  static constexpr size_t SLOTS = 256;
  std::vector<Owned> slots_;

 public:
  // `copied` grows by the bytes that were not held yet.
  Owned share(const Value& v, size_t& copied) {
    if (v.tag != TEXT || v.len <= 16) return Owned(v);
    if (slots_.empty()) slots_.resize(SLOTS);
    uint64_t hash = (ShortText::eight(v.s) ^ ShortText::eight(v.s + v.len - 8) * 31 ^ v.len) * 0x9E3779B97F4A7C15ull;
    Owned& slot = slots_[hash >> 56];
    if (Value held = slot.get(); held.tag != TEXT || held.view() != v.view()) {
      slot = Owned(v);
      copied += v.len;
    }
    return slot;
  }
  void clear() { slots_.clear(); }
};

// Earlier in the order of output. Of two that agree event by event, the longer is the first.
inline bool events_first(const std::vector<Place>& a, const std::vector<Place>& b) {
  for (size_t k = 0; k < a.size() && k < b.size(); k++) {
    if (a[k] < b[k]) return true;
    if (b[k] < a[k]) return false;
  }
  return a.size() > b.size();
}

}  // namespace samovar
