// History functions: what a key's earlier events of one type were, within a span. They give a column, like a field.
#pragma once
#include <algorithm>

#include "match/runner.h"

namespace samovar {

class HistoryKeeper final : public Keeper {
  struct Keyed : State {
    EventLog log_;
    Running running;
    CountedValues values;  // of `seen` and `distinct`
  };
  const History& def_;
  const Limits& limits_;
  Counters& counters_;
  Layouts layouts_{1, false, 0, 0};

  bool counts() const { return def_.function == A_SEEN || def_.function == A_DISTINCT; }
  bool sums() const { return def_.function == A_SUM || def_.function == A_AVG; }
  static auto value_of(const Keyed& s) { return [&s](int64_t event) { return s.log_.value(event, 0); }; }
  void drop_before(Keyed& s, int64_t n) const {
    if (sums()) for (int64_t k = s.log_.begin(); k < n; k++) s.running.add(s.log_.value(k, 0), -1, false);
    if (counts()) for (int64_t k = s.log_.begin(); k < n; k++) s.values.remove(s.log_.value(k, 0), value_of(s));
    s.log_.drop_before(n);
  }

 public:
  HistoryKeeper(const History& d, const Limits& l, Counters& c) : def_(d), limits_(l), counters_(c) {}
  State* fresh() override {
    Keyed* s = made<Keyed>();
    s->log_.use(layouts_);
    return s;
  }
  // What the function says of the events so far, for an event with this value at this time.
  Value ask(State& state, const Value& v, int64_t time, Batch& scratch) const {
    Keyed& s = (Keyed&)state;
    drop_before(s, s.log_.since(time - def_.span, s.log_.begin()));
    EventLog& log = s.log_;
    switch (def_.function) {
      case A_COUNT: return Value::integer(log.size());
      case A_SUM: case A_AVG: return s.running.result(def_.function);
      case A_PREV: return log.size() ? scratch.keep(log.value(log.end() - 1, 0)) : Value::nil();
      case A_SEEN: return Value::boolean(s.values.has(v, value_of(s)));
      case A_DISTINCT: return Value::integer(s.values.size());
    }
    Fold fold{def_.function};
    for (int64_t n = log.begin(); n < log.end(); n++) fold.add(log.value(n, 0));
    return scratch.keep(fold.result(scratch));
  }
  void add(State& state, Value v, const Place& place) {
    Keyed& s = (Keyed&)state;
    if (v.tag == OTHER) v = Value::nil();  // a list or an object is not a value
    // `prev` reads one event, nulls included, so that prev(lat), prev(lon) and prev(@time) are of the same one.
    if (def_.function == A_PREV) s.log_.drop_before(s.log_.end());
    else if (def_.function != A_COUNT && v.is_null()) return;  // nulls are left out of everything but a plain count
    s.log_.push({place, 0, 0}, &v);
    if (sums()) s.running.add(v, 1, false);
    if (counts()) s.values.add(s.log_.value(s.log_.end() - 1, 0), s.log_.end() - 1, value_of(s));
    if (s.log_.size() > limits_.max_events) { drop_before(s, s.log_.begin() + 1); counters_.dropped_events++; }
  }
  void on_time(State& state, int64_t now) override {
    Keyed& s = (Keyed&)state;
    drop_before(s, s.log_.since(now - def_.span, s.log_.begin()));
  }
  int64_t deadline(const State& state) const override {
    const EventLog& log = ((const Keyed&)state).log_;
    return log.size() ? log.newest() + def_.span : LONG_AGO;
  }
  bool empty(const State& state, int64_t) const override { return ((const Keyed&)state).log_.size() == 0; }
  void pack(const State&, Packer&) const override {}
  void unpack(State&, Unpacker&) const override {}
  EventLog* log(State& s) const override { return &((Keyed&)s).log_; }
  void loaded(State& state) const override {
    Keyed& s = (Keyed&)state;
    for (int64_t n = s.log_.begin(); n < s.log_.end(); n++) {
      if (sums()) s.running.add(s.log_.value(n, 0), 1, false);
      if (counts()) s.values.add(s.log_.value(n, 0), n, value_of(s));
    }
  }
};

}  // namespace samovar
