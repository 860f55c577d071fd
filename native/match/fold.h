// Aggregate functions: over a list of values at once (Fold), and one value in, one value out (Running).
//
// A sum is kept as a whole number and a pair of doubles (the second holds what rounding lost), so that it is the exact
// sum, rounded once, whatever came and went before; an order of adding does not show.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "match/keys.h"
#include "match/ops.h"
#include "match/output.h"
#include "util/owned.h"
#include "match/program.h"

namespace samovar {

typedef __int128 Whole __attribute__((aligned(8)));

struct ExactSum {
  Whole whole = 0;
  double high = 0, low = 0;
  int64_t floats = 0;
  void add_double(double x) {
    double s = high + x, b = s - high;
    double lost = (high - (s - b)) + (x - b);
    low += lost;
    high = s + low;
    low = low - (high - s);
  }
  void add(const Value& v, int sign) {
    if (v.tag == INT) whole += sign * (__int128)v.i;
    else { add_double(sign * v.d); floats += sign; if (floats == 0) high = low = 0; }
  }
  double as_double() const {
    if (floats == 0) return (double)whole;
    if (whole == 0) return high + low;
    double first, second;
    pair(first, second);
    return first + second;
  }
  // The sum as two doubles.
  void pair(double& first, double& second) const {
    ExactSum t = *this;
    double w = (double)t.whole;
    t.add_double(w);
    t.add_double((double)(t.whole - (__int128)w));
    first = t.high;
    second = t.low;
  }
  Value value() const {
    if (floats == 0 && whole >= INT64_MIN && whole <= INT64_MAX) return Value::integer((int64_t)whole);
    return or_null(as_double());
  }
};

// count, sum and avg of the numbers that went in and have not gone out again.
struct Counted {
  int64_t events = 0, numbers = 0;
  ExactSum sum;
  void add(const Value& v, int sign) {
    if (!v.is_number()) return;
    numbers += sign;
    sum.add(v, sign);
  }
  Value result(int function) const {
    if (function == A_SUM) return numbers ? sum.value() : Value::integer(0);
    return numbers ? or_null(sum.as_double() / (double)numbers) : Value::nil();
  }
};

// The same, and stddev.
struct Running : Counted {
  double square_high = 0, square_low = 0;
  void add(const Value& v, int sign, bool squares) {
    if (!v.is_number()) return;
    Counted::add(v, sign);
    if (squares) add_square(v, sign);
  }
  void add_square(const Value& v, int sign) {
    double x = v.as_double(), p = x * x, e = std::fma(x, x, -p);
    ExactSum s;
    s.high = square_high; s.low = square_low;
    s.add_double(sign * p);
    s.add_double(sign * e);
    square_high = numbers ? s.high : 0;
    square_low = numbers ? s.low : 0;
  }
  Value result(int function) const {
    switch (function) {
      case A_SUM: case A_AVG: return Counted::result(function);
      default: {
        if (!numbers) return Value::nil();
        // n * (sum of squares) - (sum)^2, in twice the usual digits; what is left of rounding counts as nothing.
        double n = (double)numbers, high, low;
        sum.pair(high, low);
        double p = high * high, e = std::fma(high, high, -p) + 2 * high * low;
        double q = n * square_high, f = std::fma(n, square_high, -q) + n * square_low;
        double spread = (q - p) + (f - e);
        return Value::number(spread > q * 1e-29 ? std::sqrt(spread) / n : 0.0);
      }
    }
  }
};

// Distinct values in the order of their first coming. A list while small, with a table of hashes when it grows.
class ValueSet {
  std::vector<Owned> list_;
  std::vector<uint32_t> table_;
  void place(uint32_t k) {
    size_t mask = table_.size() - 1, at = hash_value(list_[k].get()) & mask;
    while (table_[at]) at = (at + 1) & mask;
    table_[at] = k + 1;
  }

 public:
  const std::vector<Owned>& list() const { return list_; }
  bool has(const Value& v) const {
    if (table_.empty()) {
      for (auto& o : list_) if (same(o.get(), v)) return true;
      return false;
    }
    size_t mask = table_.size() - 1;
    for (size_t at = hash_value(v) & mask; table_[at]; at = (at + 1) & mask) if (same(list_[table_[at] - 1].get(), v)) return true;
    return false;
  }
  bool add(const Value& v) {
    if (v.is_null() || has(v)) return false;
    list_.emplace_back(v);
    if (list_.size() < 16) return true;
    if (list_.size() * 2 > table_.size()) {
      table_.assign(list_.size() * 4 < 64 ? 64 : 1ull << (64 - __builtin_clzll(list_.size() * 4)), 0);
      for (uint32_t k = 0; k < list_.size(); k++) place(k);
    } else place((uint32_t)list_.size() - 1);
    return true;
  }
};

// Whether v is to take the place of `best` under min or max. Numbers go before text; other values do not count.
inline bool better(int function, const Value& v, const Value& best) {
  if (!v.is_number() && v.tag != TEXT) return false;
  if (best.is_null() || (best.tag == TEXT && v.is_number())) return true;
  return order(v, best) == (function == A_MIN ? -1 : 1);
}

// How many different values the events of a queue have, as they come and go.
class CountedValues {
  struct Slot {
    int64_t event = 0;  // one that has the value
    uint32_t count = 0, tag = 0;
  };
  std::vector<Slot> slots_;
  size_t size_ = 0;

  template <class ValueOf>
  size_t find(const Value& v, uint64_t h, ValueOf value_of) const {
    size_t mask = slots_.size() - 1, at = h & mask;
    while (slots_[at].count && !(slots_[at].tag == (uint32_t)(h >> 32) && same(value_of(slots_[at].event), v))) at = (at + 1) & mask;
    return at;
  }
  template <class ValueOf>
  void grow(ValueOf value_of) {
    std::vector<Slot> old(slots_.empty() ? 8 : slots_.size() * 2);
    old.swap(slots_);
    for (auto& s : old) if (s.count) {
      size_t mask = slots_.size() - 1, at = hash_value(value_of(s.event)) & mask;
      while (slots_[at].count) at = (at + 1) & mask;
      slots_[at] = s;
    }
  }

 public:
  int64_t size() const { return (int64_t)size_; }
  template <class ValueOf>
  bool has(const Value& v, ValueOf value_of) const {
    return !slots_.empty() && !v.is_null() && v.tag != OTHER && slots_[find(v, hash_value(v), value_of)].count;
  }
  template <class ValueOf>
  void add(const Value& v, int64_t event, ValueOf value_of) {
    if (v.is_null() || v.tag == OTHER) return;
    if ((size_ + 1) * 2 > slots_.size()) grow(value_of);
    uint64_t h = hash_value(v);
    Slot& s = slots_[find(v, h, value_of)];
    if (!s.count) size_++;
    s = {event, s.count + 1, (uint32_t)(h >> 32)};
  }
  template <class ValueOf>
  void remove(const Value& v, ValueOf value_of) {
    if (v.is_null() || v.tag == OTHER) return;
    size_t mask = slots_.size() - 1, at = find(v, hash_value(v), value_of);
    if (--slots_[at].count) return;
    size_--;
    slots_[at] = {};
    for (size_t k = (at + 1) & mask; slots_[k].count; k = (k + 1) & mask) {
      size_t want = hash_value(value_of(slots_[k].event)) & mask;
      if (((k - want) & mask) >= ((k - at) & mask)) { slots_[at] = slots_[k]; slots_[k] = {}; at = k; }
    }
  }
};

constexpr size_t VALUES_MOST = 100;  // what `values` lists at the most

// A text of at most TEXT_MOST bytes; a longer one is cut between two characters, and ends with an ellipsis.
inline Value cut_text(const Value& v, Batch& out) {
  if (v.tag != TEXT || v.len <= TEXT_MOST) return v;
  size_t end = cut_at(v.view(), TEXT_MOST - CUT.size());
  char* at = out.room(end + CUT.size());
  memcpy(at, v.s, end);
  memcpy(at + end, CUT.data(), CUT.size());
  return Value::text(at, end + CUT.size());
}

inline Value list_value(const ValueSet& set, Batch& out) {
  std::string text = "[";
  for (size_t k = 0; k < set.list().size() && k < VALUES_MOST; k++) {
    if (k) text += ", ";
    write_value(text, cut_text(set.list()[k].get(), out));
  }
  text += "]";
  return out.keep(Value::other(text.data(), text.size()));
}

// Over a list: feed every event's value, then ask.
struct Fold {
  int function;
  int64_t count = 0;
  Running running;
  Value best, first, last;
  ValueSet set;
  void add(const Value& v) {
    count++;
    if (function == A_COUNT || v.is_null()) return;
    if (first.is_null()) first = v;
    last = v;
    if (function == A_MIN || function == A_MAX) {
      if (better(function, v, best)) best = v;
    } else if (function == A_SUM || function == A_AVG || function == A_STDDEV) running.add(v, 1, function == A_STDDEV);
    else if (function == A_DISTINCT || function == A_VALUES) set.add(v);
  }
  Value result(Batch& out) const {
    switch (function) {
      case A_COUNT: return Value::integer(count);
      case A_MIN: case A_MAX: return best;
      case A_DISTINCT: return Value::integer((int64_t)set.list().size());
      case A_FIRST: return first;
      case A_LAST: return last;
      case A_VALUES: return list_value(set, out);
      default: return running.result(function);
    }
  }
};

}  // namespace samovar
