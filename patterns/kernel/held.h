// Events that a state holds: their coordinates, and the values that conditions, `having` and `emit` read of them.
#pragma once
#include <vector>

#include "owned.h"

namespace samovar {

// An event's place in the order of events. `source` is stream and partition in one number.
struct Place {
  int64_t time = 0, source = 0, offset = 0;
  bool operator==(const Place& o) const { return time == o.time && source == o.source && offset == o.offset; }
  bool operator<(const Place& o) const {
    if (time != o.time) return time < o.time;
    return source != o.source ? source < o.source : offset < o.offset;
  }
};

struct Held {
  Place place;
  int64_t number = 0;     // the how manyth event of its key it is; kept for `next`
  uint64_t brackets = 0;  // which brackets it fits
};

// A queue with a number for each event that never changes: new ones come at the end, old ones go at the front.
constexpr int64_t CHUNK = 128;  // events stored in one row

class EventLog {
  std::vector<Held> items_;
  std::vector<Owned> values_;
  size_t head_ = 0;
  int64_t first_ = 0;

 public:
  int width = 0;  // values an event
  int64_t begin() const { return first_; }
  int64_t end() const { return first_ + (int64_t)(items_.size() - head_); }
  int64_t size() const { return end() - first_; }
  const Held& at(int64_t n) const { return items_[head_ + (size_t)(n - first_)]; }
  Value value(int64_t n, int slot) const { return values_[(head_ + (size_t)(n - first_)) * width + slot].get(); }
  void push(const Held& h) { items_.push_back(h); }
  void push_value(Owned v) { values_.push_back(std::move(v)); }
  void drop_before(int64_t n) {
    if (n <= first_) return;
    head_ += (size_t)(n - first_);
    first_ = n;
    if (head_ == items_.size()) { items_.clear(); values_.clear(); head_ = 0; }
    else if (head_ > 16 && head_ * 2 > items_.size()) {
      items_.erase(items_.begin(), items_.begin() + head_);
      values_.erase(values_.begin(), values_.begin() + head_ * width);
      head_ = 0;
    }
  }
  void prefetch() const {
    __builtin_prefetch(items_.data() + items_.size(), 1);
    __builtin_prefetch(items_.data() + head_);
    if (width) __builtin_prefetch(values_.data() + values_.size(), 1);
  }
  void restart(int64_t first) { items_.clear(); values_.clear(); head_ = 0; first_ = first; }
  // The first number whose event is not older than `time`; events are in time order.
  int64_t since(int64_t time, int64_t from) const {
    int64_t lo = from < first_ ? first_ : from, hi = end();
    if (lo < hi && at(lo).place.time >= time) return lo;
    while (lo < hi) {
      int64_t mid = lo + (hi - lo) / 2;
      if (at(mid).place.time < time) lo = mid + 1; else hi = mid;
    }
    return lo;
  }
};

}  // namespace samovar
