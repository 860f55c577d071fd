// Events that a state holds: their coordinates, and the values that conditions, `having` and `emit` read of them.
#pragma once
#include <cstdlib>
#include <cstring>

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

constexpr int64_t CHUNK = 128;  // events stored in one row

// A queue with a number for each event that never changes: new ones come at the end, old ones go at the front.
// A ring of records, an event and its values side by side; records may be moved as plain bytes.
class EventLog {
  char* data_ = nullptr;
  uint32_t capacity_ = 0, head_ = 0;  // capacity: a power of two
  int64_t first_ = 0, end_ = 0;

  size_t stride() const { return sizeof(Held) + sizeof(Owned) * (size_t)width; }
  char* record(int64_t n) const { return data_ + ((head_ + (uint32_t)(n - first_)) & (capacity_ - 1)) * stride(); }
  Owned* values(int64_t n) const { return (Owned*)(record(n) + sizeof(Held)); }
  void grow() {
    uint32_t capacity = capacity_ ? capacity_ * 2 : 4;
    char* data = (char*)malloc(capacity * stride());
    if (!data) abort();
    for (int64_t n = first_; n < end_; n++) memcpy(data + (size_t)(n - first_) * stride(), record(n), stride());
    free(data_);
    data_ = data;
    capacity_ = capacity;
    head_ = 0;
  }
  void forget(int64_t n) { for (int k = 0; k < width; k++) values(n)[k].~Owned(); }

 public:
  int width = 0;  // values an event
  EventLog() {}
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;
  ~EventLog() { restart(0); free(data_); }

  int64_t begin() const { return first_; }
  int64_t end() const { return end_; }
  int64_t size() const { return end_ - first_; }
  const Held& at(int64_t n) const { return *(const Held*)record(n); }
  Value value(int64_t n, int slot) const { return values(n)[slot].get(); }
  // A new event at the end; its values are null until `set`.
  void push(const Held& h) {
    if ((uint32_t)size() == capacity_) grow();
    int64_t n = end_++;
    memcpy(record(n), &h, sizeof(Held));
    for (int k = 0; k < width; k++) new (&values(n)[k]) Owned();
  }
  void set(int slot, const Value& v) { values(end_ - 1)[slot] = Owned(v); }
  void drop_before(int64_t n) {
    if (n <= first_) return;
    if (n > end_) n = end_;
    for (int64_t k = first_; k < n; k++) forget(k);
    head_ = (head_ + (uint32_t)(n - first_)) & (capacity_ ? capacity_ - 1 : 0);
    first_ = n;
  }
  void prefetch() const {
    if (!capacity_) return;
    __builtin_prefetch(record(first_));
    __builtin_prefetch(record(end_), 1);
    __builtin_prefetch(record(end_) + 64, 1);
  }
  void restart(int64_t first) {
    drop_before(end_);
    head_ = 0;
    first_ = end_ = first;
  }
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
