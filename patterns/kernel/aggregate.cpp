// The `aggregate` form: a sliding window of events a key; fires when `having` turns true.
//
// Sums, counts and distinct counts go on from event to event. For `distinct`, an event counts while no later one in
// the window has the same value: adding looks back for the one it covers, dropping needs no look at all.
#include <algorithm>

#include "runner.h"

namespace samovar {
namespace {

struct Keyed : State {
  EventLog window;
  bool armed = true;
  int64_t fired = LONG_AGO;
  std::vector<Running> sums;              // one an aggregate
  std::vector<std::vector<char>> covered;  // of `distinct`: a later event has the same value; a flag an event held
  std::vector<int64_t> distinct;
  int64_t flags_from = 0;                 // the event that covered[..][0] is of
};

class Aggregate final : public Runner {
  struct View final : Reader {
    Aggregate& form;
    const Keyed& s;
    View(Aggregate& f, const Keyed& k) : form(f), s(k) {}
    Value last(int, int) override { return Value::nil(); }
    Value last_event(int slot) override { return s.window.size() ? s.window.value(s.window.end() - 1, s.window.width - form.rule.last_captures + slot) : Value::nil(); }
    Value aggregate(const AggRef& ref) override {
      size_t k = (size_t)(&ref - form.rule.aggregates.data());
      switch (ref.function) {
        case A_COUNT: return Value::integer(s.sums[k].events);
        case A_SUM: case A_AVG: case A_STDDEV: return s.sums[k].result(ref.function);
        case A_DISTINCT: return Value::integer(s.distinct[k]);
      }
      Fold fold{ref.function};
      for (int64_t n = s.window.begin(); n < s.window.end(); n++)
        if (form.in(ref, s.window.at(n))) fold.add(s.window.value(n, ref.slot));
      return fold.result(form.eval.scratch);
    }
  };
  bool in(const AggRef& ref, const Held& h) const { return ref.target < 0 || h.brackets >> ref.target & 1; }

  char& flag(Keyed& s, size_t k, int64_t n) const { return s.covered[k][(size_t)(n - s.flags_from)]; }

  void count_in(Keyed& s, int64_t n) const {
    for (size_t k = 0; k < rule.aggregates.size(); k++) {
      const AggRef& ref = rule.aggregates[k];
      if (ref.function == A_DISTINCT) s.covered[k].push_back(0);
      if (!in(ref, s.window.at(n))) continue;
      s.sums[k].events++;
      if (ref.slot < 0) continue;
      const Value& v = s.window.value(n, ref.slot);
      if (ref.function == A_DISTINCT) cover(s, k, n, v);
      else if (ref.function <= A_AVG || ref.function == A_STDDEV) s.sums[k].add(v, 1);
    }
  }
  void cover(Keyed& s, size_t k, int64_t n, const Value& v) const {
    if (v.is_null() || v.tag == OTHER) return;
    const AggRef& ref = rule.aggregates[k];
    for (int64_t m = n - 1; m >= s.window.begin(); m--)
      if (!flag(s, k, m) && in(ref, s.window.at(m)) && same(s.window.value(m, ref.slot), v)) { flag(s, k, m) = 1; return; }
    s.distinct[k]++;
  }
  void count_out(Keyed& s, int64_t n) const {
    for (size_t k = 0; k < rule.aggregates.size(); k++) {
      const AggRef& ref = rule.aggregates[k];
      if (!in(ref, s.window.at(n))) continue;
      s.sums[k].events--;
      if (ref.slot < 0) continue;
      const Value& v = s.window.value(n, ref.slot);
      if (ref.function == A_DISTINCT) { if (!v.is_null() && v.tag != OTHER && !flag(s, k, n)) s.distinct[k]--; }
      else if (ref.function <= A_AVG || ref.function == A_STDDEV) s.sums[k].add(v, -1);
    }
  }
  void drop_before(Keyed& s, int64_t n) const {
    for (int64_t k = s.window.begin(); k < n; k++) count_out(s, k);
    s.window.drop_before(n);
    int64_t stale = s.window.begin() - s.flags_from;
    if (stale < 64 && s.window.size()) return;  // flags go in bulk
    for (auto& c : s.covered) if (!c.empty()) c.erase(c.begin(), c.begin() + (long)std::min<int64_t>(stale, (int64_t)c.size()));
    s.flags_from = s.window.begin();
  }
  void trim(Keyed& s, int64_t now) const { drop_before(s, s.window.since(now - rule.over, s.window.begin())); }
  bool holds(Keyed& s) {
    View v(*this, s);
    return eval.of_run(rule.having, v, rule, -1).is_true();
  }

  void report(Keyed& s, const Event& e) {
    s.fired = e.time;
    Listed listed{events_name_, {}, s.window.size()};
    int64_t from = std::max(s.window.begin(), s.window.end() - (int64_t)LISTED_MOST);
    for (int64_t n = from; n < s.window.end(); n++) listed.places.push_back(s.window.at(n).place);
    View v(*this, s);
    write(s, e.place, s.window.at(s.window.begin()).place.time, e.time, e.time, {listed}, v, (int64_t)e.row);
  }

  int events_name_;

 public:
  Aggregate(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) : Runner(r, e, k, l), events_name_(r.names[0].text) {}

  State* fresh() const override {
    Keyed* s = new Keyed;
    s->window.width = (int)rule.values.size();
    s->sums.resize(rule.aggregates.size());
    s->covered.resize(rule.aggregates.size());
    s->distinct.resize(rule.aggregates.size());
    return s;
  }
  void event(State& state, const Event& e) override {
    if (!e.brackets) return;
    Keyed& s = (Keyed&)state;
    trim(s, e.time);
    if (!holds(s)) s.armed = true;
    s.window.push({e.place, 0, e.brackets});
    for (int node : rule.values) s.window.push_value(eval.at_row(node, e.row));
    count_in(s, s.window.end() - 1);
    if (s.window.size() > limits.max_events) { drop_before(s, s.window.begin() + 1); counters.dropped_events++; }
    if (!holds(s)) return;
    bool again = rule.repeat >= 0 && e.time - s.fired >= rule.repeat;
    if (s.armed || again) report(s, e);
    s.armed = false;
  }
  void on_time(State& state, int64_t now) override {
    Keyed& s = (Keyed&)state;
    trim(s, now);
    if (!s.armed && s.window.size() == 0 && !holds(s)) s.armed = true;
  }
  int64_t deadline(const State& state) const override {
    const Keyed& s = (const Keyed&)state;
    int64_t ends = s.window.size() ? s.window.at(s.window.end() - 1).place.time + rule.over : LONG_AGO;
    if (s.alerted != LONG_AGO && rule.suppress >= 0) ends = std::max(ends, s.alerted + rule.suppress);
    return ends == LONG_AGO && !s.armed ? NEVER : ends;
  }
  bool empty(const State& state, int64_t now) const override {
    const Keyed& s = (const Keyed&)state;
    return s.armed && s.window.size() == 0 && (s.alerted == LONG_AGO || rule.suppress < 0 || now - s.alerted > rule.suppress);
  }
  EventLog* log(State& state) const override { return &((Keyed&)state).window; }

  // Packed: armed, fired. The rest follows from the events, which are chunks of their own.
  void pack(const State& state, Packer& p) const override {
    const Keyed& s = (const Keyed&)state;
    p.num(s.armed);
    p.num(rule.repeat >= 0 || !p.canonical ? s.fired : LONG_AGO);
  }
  void unpack(State& state, Unpacker& u) const override {
    Keyed& s = (Keyed&)state;
    s.armed = u.num();
    s.fired = u.num();
  }
  void loaded(State& state) const override {
    Keyed& s = (Keyed&)state;
    s.flags_from = s.window.begin();
    for (int64_t n = s.window.begin(); n < s.window.end(); n++) count_in(s, n);
  }
};

}  // namespace

std::unique_ptr<Runner> aggregate_runner(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) {
  return std::make_unique<Aggregate>(r, e, k, l);
}

}  // namespace samovar
