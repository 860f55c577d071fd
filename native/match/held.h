// Events that a state holds: their coordinates, and the values that conditions, `having` and `emit` read of them.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "util/owned.h"
#include "util/pool.h"

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

// Where things stand in a record of a queue. Most queues have events of one source, times within weeks of each other and
// small values, and there are many of them, so a record begins small; what does not fit makes the queue move to a wider
// layout. Nothing but memory depends on it.
//   place     near: 4 bytes of time and 4 of offset, from the queue's base; far: 24 bytes, as it is
//   values    16 bytes (Owned), or 8 (Boxed)
//   number    8 bytes, or none where all are 0
//   brackets  8 bytes, 1, or none where all are `same`
struct Layout {
  bool far = false, numbered = false, any_wide = false;
  int bracket_bytes = 0;
  uint64_t same = 0;
  std::vector<char> wide;      // a value each: whether it is an Owned
  std::vector<uint32_t> at;    // where each stands
  uint32_t number_at = 0, brackets_at = 0, stride = 0;
  class Layouts* all = nullptr;

  void arrange() {
    at.resize(wide.size());
    any_wide = std::find(wide.begin(), wide.end(), 1) != wide.end();
    stride = far ? 24 : 8;
    for (size_t k = 0; k < wide.size(); k++) if (wide[k]) { at[k] = stride; stride += 16; }
    for (size_t k = 0; k < wide.size(); k++) if (!wide[k]) { at[k] = stride; stride += 8; }
    number_at = stride;
    if (numbered) stride += 8;
    brackets_at = stride;
    stride = (stride + (uint32_t)bracket_bytes + 7) / 8 * 8;
  }
  bool equals(const Layout& o) const {
    return far == o.far && numbered == o.numbered && bracket_bytes == o.bracket_bytes && same == o.same && wide == o.wide;
  }
  bool takes(const Held& h) const {
    return (numbered || h.number == 0) && (bracket_bytes == 8 || (bracket_bytes == 1 ? h.brackets < 256 : h.brackets == same));
  }
};

// The layouts of one keeper's queues, from the usual one to wider ones.
class Layouts {
  static constexpr size_t MOST = 64;
  std::vector<std::unique_ptr<Layout>> list_;
  Layout* add(Layout l) {
    if (list_.size() >= MOST) {  // they are of all kinds: the one that takes anything
      l.far = l.numbered = true;
      l.bracket_bytes = 8;
      l.same = 0;
      l.wide.assign(l.wide.size(), 1);
    }
    for (auto& known : list_) if (known->equals(l)) return known.get();
    l.all = this;
    l.arrange();
    list_.push_back(std::make_unique<Layout>(std::move(l)));
    return list_.back().get();
  }

 public:
  Pool memory;
  const Layout* usual;  // what a new queue begins with: it learns from those that had to widen
  Layouts(int values, bool numbered, int bracket_bytes, uint64_t same) {
    Layout l;
    l.numbered = numbered;
    l.bracket_bytes = bracket_bytes;
    l.same = bracket_bytes ? 0 : same;
    l.wide.assign((size_t)values, 0);
    usual = add(l);
  }
  Layouts(const Layouts&) = delete;
  const Layout* far(const Layout& from) { Layout l = from; l.far = true; return add(l); }
  const Layout* taking(const Layout& from, const Held& h) {
    auto widened = [&](Layout l) {
      l.numbered = l.numbered || h.number != 0;
      if (!l.takes(h)) { l.bracket_bytes = !l.bracket_bytes && h.brackets < 256 && l.same < 256 ? 1 : 8; l.same = 0; }
      return add(l);
    };
    usual = widened(*usual);
    return widened(from);
  }
  const Layout* with_wide(const Layout& from, int slot) {
    auto widened = [&](Layout l) { l.wide[(size_t)slot] = 1; return add(l); };
    usual = widened(*usual);
    return widened(from);
  }
};

// A value in 8 bytes: any number but NaN, a whole number of 48 bits, true, false, null, or a text of up to 6 bytes.
// What is not a double has the upper bits of a NaN, then a tag of 16 bits in all, then its 48 bits.
struct Boxed {
  static constexpr uint64_t TAGS = 0xFFF7, NIL_TAG = 0xFFF8, BOOL_TAG = 0xFFF9, INT_TAG = 0xFFFA, TEXT_TAG = 0x7FF9;
  static constexpr int64_t INT_LIMIT = 1ll << 47;
  static constexpr uint64_t nil() { return NIL_TAG << 48; }
  static bool fits(const Value& v) {
    switch (v.tag) {
      case NIL: case BOOL: return true;
      case INT: return v.i >= -INT_LIMIT && v.i < INT_LIMIT;
      case FLOAT: return v.d == v.d;
      case TEXT: return v.len <= 6;
      default: return false;
    }
  }
  static void put(char* at, const Value& v) {
    uint64_t bits = 0;
    switch (v.tag) {
      case NIL: bits = nil(); break;
      case BOOL: bits = BOOL_TAG << 48 | (uint64_t)v.i; break;
      case INT: bits = INT_TAG << 48 | ((uint64_t)v.i & 0xFFFFFFFFFFFFull); break;
      case FLOAT: memcpy(&bits, &v.d, 8); break;
      default: bits = ShortText::up_to_eight(v.s, v.len) | (TEXT_TAG + v.len) << 48;
    }
    memcpy(at, &bits, 8);
  }
  static Value get(const char* at) {
    uint64_t bits;
    memcpy(&bits, at, 8);
    uint64_t tag = bits >> 48;
    if (tag >= TEXT_TAG && tag <= TEXT_TAG + 6) return Value::text(at, (size_t)(tag - TEXT_TAG));
    switch (tag) {
      case NIL_TAG: return Value::nil();
      case BOOL_TAG: return Value::boolean(bits & 1);
      case INT_TAG: return Value::integer((int64_t)(bits << 16) >> 16);
      default: { Value v; v.tag = FLOAT; v.i = (int64_t)bits; return v; }
    }
  }
};
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the text of a Boxed stands in its first bytes");

// A queue with a number for each event that never changes: new ones come at the end, old ones go at the front.
// A ring of records, an event and its values side by side; records may be moved as plain bytes.
class EventLog {
  char* data_ = nullptr;
  const Layout* layout_ = nullptr;
  int64_t first_ = 0;
  uint32_t size_ = 0, head_ = 0, capacity_ = 0;  // capacity: what a block of a power of two bytes holds
  uint32_t oldest_ = 0;                          // near: time of the first event, from the base
  int64_t time_ = 0, offset_ = 0, source_ = 0;   // near: the base; far: time_ is the time of the first event

  char* record(int64_t n) const {
    size_t at = (size_t)head_ + (size_t)(n - first_);
    return data_ + (at < capacity_ ? at : at - capacity_) * layout_->stride;
  }
  char* slot(int64_t n, int k) const { return record(n) + layout_->at[(size_t)k]; }
  static int64_t minus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }  // of far ones, anything far
  static bool is_near(int64_t time, int64_t offset, uint64_t time_reach, int64_t offset_reach) {
    return (uint64_t)time < time_reach && offset >= -offset_reach && offset < offset_reach;
  }
  bool near(const Place& p) const {
    return p.source == source_ && is_near(minus(p.time, time_), minus(p.offset, offset_), 1ull << 32, 1ll << 31);
  }
  void put_head(char* to, const Held& h) const {
    if (layout_->far) memcpy(to, &h.place, 24);
    else {
      uint32_t near[2] = {(uint32_t)(h.place.time - time_), (uint32_t)(h.place.offset - offset_)};
      memcpy(to, near, 8);
    }
    if (layout_->numbered) memcpy(to + layout_->number_at, &h.number, 8);
    if (layout_->bracket_bytes == 1) to[layout_->brackets_at] = (char)h.brackets;
    else if (layout_->bracket_bytes) memcpy(to + layout_->brackets_at, &h.brackets, 8);
  }
  void note_oldest(int64_t time) {
    if (layout_->far) time_ = time;
    else oldest_ = (uint32_t)(time - time_);
  }
  static size_t block(size_t bytes) { return bytes <= 64 ? 64 : std::bit_ceil(bytes); }
  // Takes a block of at least so many bytes, and says how many records it holds.
  char* room(size_t bytes, uint32_t& capacity) const {
    capacity = (uint32_t)(block(bytes) / layout_->stride);
    return (char*)layout_->all->memory.take(block(bytes));
  }
  void release() { if (data_) layout_->all->memory.give(data_, block(bytes())); }
  void grow() {
    // The first ones fill a line of memory.
    uint32_t capacity, until_end = capacity_ - head_;
    char* data = room(capacity_ ? block(bytes()) * 2 : 2 * (size_t)layout_->stride, capacity);
    if (capacity_) {
      memcpy(data, data_ + (size_t)head_ * layout_->stride, (size_t)until_end * layout_->stride);
      memcpy(data + (size_t)until_end * layout_->stride, data_, (size_t)head_ * layout_->stride);
    }
    release();
    data_ = data;
    capacity_ = capacity;
    head_ = 0;
  }
  // The same events in another layout, or from another base.
  void move_to(const Layout* layout, const Place& base) {
    EventLog old(std::move(*this));
    layout_ = layout;
    first_ = old.first_;
    time_ = base.time;
    offset_ = base.offset;
    source_ = base.source;
    if (old.capacity_) data_ = room((size_t)old.capacity_ * layout_->stride, capacity_);
    // No text is copied that would take memory: what is not wide is short. So both queues are whole when memory ends.
    size_ = old.size_;
    for (int64_t n = first_; n < end(); n++) {
      put_head(record(n), old.at(n));
      for (int k = 0; k < width(); k++) {
        if (!layout_->wide[(size_t)k]) Boxed::put(slot(n, k), old.value(n, k));
        else if (old.layout_->wide[(size_t)k]) new (slot(n, k)) Owned(std::move(*(Owned*)old.slot(n, k)));
        else new (slot(n, k)) Owned(old.value(n, k));
      }
    }
    if (size_) note_oldest(old.oldest());
  }
  EventLog(EventLog&& o) noexcept
      : data_(o.data_), layout_(o.layout_), first_(o.first_), size_(o.size_), head_(o.head_), capacity_(o.capacity_), oldest_(o.oldest_),
        time_(o.time_), offset_(o.offset_), source_(o.source_) {
    o.data_ = nullptr;
    o.size_ = o.head_ = o.capacity_ = o.oldest_ = 0;
  }
  // From the oldest event all others may be near, and a good part of the reach is left; or else far.
  void bring_near(const Place& p) {
    Place base = at(first_).place;
    bool can = p.source == base.source && is_near(minus(p.time, base.time), minus(p.offset, base.offset), 1ull << 31, 1ll << 30);
    for (int64_t n = first_; can && n < end(); n++) {
      Place q = at(n).place;
      can = is_near(minus(q.time, base.time), minus(q.offset, base.offset), 1ull << 31, 1ll << 30);
    }
    move_to(can ? layout_ : layout_->all->far(*layout_), base);
  }
  void forget(int64_t n) {
    for (int k = 0; k < width(); k++) if (layout_->wide[(size_t)k]) ((Owned*)slot(n, k))->~Owned();
  }

 public:
  EventLog() {}
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;
  ~EventLog() { drop_before(end()); release(); }
  void use(const Layouts& layouts) { layout_ = layouts.usual; }

  int width() const { return (int)layout_->at.size(); }  // values per event
  int64_t begin() const { return first_; }
  int64_t end() const { return first_ + size_; }
  int64_t size() const { return size_; }
  size_t bytes() const { return (size_t)capacity_ * (layout_ ? layout_->stride : 0); }
  int64_t time(int64_t n) const {
    if (layout_->far) return ((const Place*)record(n))->time;
    uint32_t near;
    memcpy(&near, record(n), 4);
    return time_ + near;
  }
  int64_t oldest() const { return layout_->far ? time_ : time_ + oldest_; }  // time of the first event
  int64_t newest() const { return time(end() - 1); }
  uint64_t brackets(int64_t n) const {
    if (!layout_->bracket_bytes) return layout_->same;
    const char* at = record(n) + layout_->brackets_at;
    if (layout_->bracket_bytes == 1) return (unsigned char)*at;
    uint64_t bits;
    memcpy(&bits, at, 8);
    return bits;
  }
  Place place(int64_t n) const {
    if (layout_->far) return *(const Place*)record(n);
    uint32_t near[2];
    memcpy(near, record(n), 8);
    return {time_ + near[0], source_, offset_ + (int32_t)near[1]};
  }
  Held at(int64_t n) const {
    Held h{place(n), 0, brackets(n)};
    if (layout_->numbered) memcpy(&h.number, record(n) + layout_->number_at, 8);
    return h;
  }
  Value value(int64_t n, int k) const { return layout_->wide[(size_t)k] ? ((const Owned*)slot(n, k))->get() : Boxed::get(slot(n, k)); }
  // A new event at the end.
  void push(const Held& h, const Value* values) {
    if (!size_) {
      time_ = h.place.time;
      offset_ = h.place.offset;
      source_ = h.place.source;
    }
    if (!layout_->far && !near(h.place)) bring_near(h.place);
    if (!layout_->takes(h)) move_to(layout_->all->taking(*layout_, h), {time_, source_, offset_});
    int width = this->width();
    for (int k = 0; k < width; k++)
      if (!layout_->wide[(size_t)k] && !Boxed::fits(values[k])) move_to(layout_->all->with_wide(*layout_, k), {time_, source_, offset_});
    if (size_ == capacity_) grow();
    char* to = record(first_ + size_);
    put_head(to, h);
    for (int k = 0; k < width; k++) {
      char* at = to + layout_->at[(size_t)k];
      if (layout_->wide[(size_t)k]) new (at) Owned(values[k]);
      else Boxed::put(at, values[k]);
    }
    if (++size_ == 1) note_oldest(h.place.time);  // last: where memory ends on the way, the event is not there
  }
  void drop_before(int64_t n) {
    if (n <= first_) return;
    if (n > end()) n = end();
    for (int64_t k = first_; k < n && layout_->any_wide; k++) forget(k);
    head_ += (uint32_t)(n - first_);
    if (head_ >= capacity_) head_ -= capacity_;
    size_ -= (uint32_t)(n - first_);
    first_ = n;
    if (size_) note_oldest(time(first_));
  }
  void prefetch() const {
    if (!capacity_) return;
    const char* at = record(end());
    __builtin_prefetch(at, 1);
    __builtin_prefetch(at + 64, 1);
  }
  void prefetch_oldest() const { __builtin_prefetch(record(first_)); }
  void restart(int64_t first) {
    drop_before(end());
    head_ = 0;
    first_ = first;
  }
  // The first number whose event is not older than `time`; events are in time order.
  int64_t since(int64_t time, int64_t from) const {
    int64_t lo = from < first_ ? first_ : from, hi = end();
    if (lo < hi && (lo == first_ ? oldest() : this->time(lo)) >= time) return lo;
    while (lo < hi) {
      int64_t mid = lo + (hi - lo) / 2;
      if (this->time(mid) < time) lo = mid + 1; else hi = mid;
    }
    return lo;
  }
};

}  // namespace samovar
