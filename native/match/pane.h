// What a session or a window knows of its events: running aggregates, and the newest coordinates. Its size is bounded
// however many events come: by the listed coordinates and, for `distinct` and `values`, by the different values.
#pragma once
#include <algorithm>

#include "match/runner.h"

namespace samovar {

struct Accumulator {
  Running running;
  Owned best, first, last;
  ValueSet set;
};

struct Pane {
  int64_t start = 0, end = 0;      // times of the first and the last event
  int64_t count = 0;
  Place last;
  std::vector<Place> places;       // a ring of the newest, once it is full
  std::vector<Accumulator> accumulators;
  std::vector<Owned> last_values;  // of the last event, for plain fields in `emit`

  // Empty, but with the room it had.
  void reuse() {
    count = 0;
    places.clear();
    accumulators.clear();
    last_values.clear();
  }
  void add(const RuleDef& rule, Evaluator& eval, const Event& e, const Limits& limits, Counters& counters) {
    if (count == 0) { start = e.time; accumulators.resize(rule.aggregates.size()); }
    end = e.time;
    last = e.place;
    if (places.size() < LISTED_MOST) places.push_back(e.place);
    else places[(size_t)count % LISTED_MOST] = e.place;
    count++;
    last_values.clear();
    for (int k = 0; k < rule.last_captures; k++) last_values.emplace_back(eval.at_row(rule.values[rule.values.size() - rule.last_captures + k], e.row));
    for (size_t k = 0; k < rule.aggregates.size(); k++) {
      const AggRef& ref = rule.aggregates[k];
      if (ref.target >= 0 && !(e.brackets >> ref.target & 1)) continue;
      Accumulator& a = accumulators[k];
      a.running.events++;
      if (ref.slot < 0) continue;
      Value v = eval.at_row(rule.values[ref.slot], e.row);
      if (!v.is_null()) accumulate(a, ref.function, v, limits, counters);
    }
  }
  static void accumulate(Accumulator& a, int function, const Value& v, const Limits& limits, Counters& counters) {
    switch (function) {
      case A_SUM: case A_AVG: case A_STDDEV: a.running.add(v, 1, function == A_STDDEV); break;
      case A_MIN: case A_MAX:
        if (better(function, v, a.best.get())) a.best = v;
        break;
      case A_FIRST: if (a.first.get().is_null()) a.first = v; break;
      case A_LAST: a.last = v; break;
      default: {
        int64_t most = function == A_VALUES ? (int64_t)VALUES_MOST : limits.max_events;
        if ((int64_t)a.set.list().size() < most) a.set.add(v);
        else if (function == A_DISTINCT && !a.set.has(v)) counters.dropped_events++;
      }
    }
  }
  Listed listed(int name) const {
    Listed out{name, places, count};
    if (count > (int64_t)LISTED_MOST) std::rotate(out.places.begin(), out.places.begin() + (long)((size_t)count % LISTED_MOST), out.places.end());
    return out;
  }

  struct View final : Reader {
    const Pane& pane;
    const RuleDef& rule;
    Batch& scratch;
    View(const Pane& p, const RuleDef& r, Batch& b) : pane(p), rule(r), scratch(b) {}
    Value last(int, int) override { return Value::nil(); }
    Value last_event(int slot) override { return pane.last_values[(size_t)slot].get(); }
    Value aggregate(const AggRef& ref) override {
      const Accumulator& a = pane.accumulators[(size_t)(&ref - rule.aggregates.data())];
      switch (ref.function) {
        case A_COUNT: return Value::integer(a.running.events);
        case A_MIN: case A_MAX: return a.best.get();
        case A_FIRST: return a.first.get();
        case A_LAST: return a.last.get();
        case A_DISTINCT: return Value::integer((int64_t)a.set.list().size());
        case A_VALUES: return list_value(a.set, scratch);
        default: return a.running.result(ref.function);
      }
    }
  };

  bool sound(const RuleDef& rule) const {
    if (count == 0) return places.empty();
    return count > 0 && (int64_t)places.size() == std::min<int64_t>(count, LISTED_MOST) &&
           accumulators.size() == rule.aggregates.size() && (int)last_values.size() == rule.last_captures;
  }

  // Packed: start, end, count, last place, places oldest first, values of the last event, then each accumulator:
  // events, numbers, the sum (whole part in two halves, two doubles, how many were not whole), squares, best, first,
  // last, and the values of the set.
  void pack(Packer& p) const {
    p.num(start); p.num(end); p.num(count); p.place(last);
    Listed l = listed(0);
    p.raw(l.places.size());
    for (auto& place : l.places) p.place(place);
    p.raw(last_values.size());
    for (auto& v : last_values) p.value(v.get());
    p.raw(accumulators.size());
    for (auto& a : accumulators) {
      const Running& r = a.running;
      p.num(r.events); p.num(r.numbers);
      p.num((int64_t)(r.sum.whole >> 64)); p.num((int64_t)r.sum.whole);
      p.real(r.sum.high); p.real(r.sum.low); p.num(r.sum.floats);
      p.real(r.square_high); p.real(r.square_low);
      p.value(a.best.get()); p.value(a.first.get()); p.value(a.last.get());
      p.raw(a.set.list().size());
      for (auto& v : a.set.list()) p.value(v.get());
    }
  }
  void unpack(Unpacker& u) {
    start = u.sane(); end = u.sane(); count = u.sane_count(); last = u.place();
    size_t n = u.count();
    for (size_t k = 0; k < n && !u.bad; k++) places.push_back(u.place());
    if (count > (int64_t)LISTED_MOST && places.size() == LISTED_MOST)
      std::rotate(places.begin(), places.end() - (long)((size_t)count % LISTED_MOST), places.end());
    n = u.count();
    for (size_t k = 0; k < n && !u.bad; k++) last_values.emplace_back(u.value());
    n = u.count();
    for (size_t k = 0; k < n && !u.bad; k++) {
      Accumulator& a = accumulators.emplace_back();
      Running& r = a.running;
      r.events = u.sane_count(); r.numbers = u.sane_count();
      int64_t high = u.sane(), low = u.num();
      r.sum.whole = (__int128)high << 64 | (unsigned __int128)(uint64_t)low;
      r.sum.high = u.real(); r.sum.low = u.real(); r.sum.floats = u.sane_count();
      r.square_high = u.real(); r.square_low = u.real();
      a.best = u.value(); a.first = u.value(); a.last = u.value();
      size_t values = u.count();
      for (size_t v = 0; v < values && !u.bad; v++) a.set.add(u.value());
    }
  }
};

}  // namespace samovar
