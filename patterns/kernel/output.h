// A match as a line of JSON, and its id.
#pragma once
#include <string>
#include <vector>

#include "held.h"
#include "value.h"

namespace samovar {

void write_text(std::string& out, std::string_view text);
void write_number(std::string& out, double x);
void write_value(std::string& out, const Value& v);
// The first 16 bytes of SHA-256, in hex.
std::string digest(const std::string& bytes);

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

// What sorts the matches of a step: detection time, place of the last event, rule, and then event by event.
struct Match {
  int64_t at = 0;
  Place last;
  int rule = 0;
  std::vector<Place> events;
  std::string key;
  std::string line;
  bool suppressed = false;
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
