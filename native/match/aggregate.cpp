// The `aggregate` form: a sliding window of events per key; fires when `having` turns true.
//
// What `having` reads is kept up to date as events come and go; what only `emit` reads is worked out when it fires.
#include <algorithm>

#include "match/runner.h"

namespace samovar {
namespace {

// The least or the greatest number of a window: those that a later one makes pointless are not kept.
struct Extreme {
  std::vector<int64_t> events;
  size_t head = 0;
  int64_t texts = 0;

  template <class ValueOf>
  void add(const Value& v, int64_t n, int function, ValueOf value_of) {
    if (v.tag == TEXT) texts++;
    if (!v.is_number()) return;
    while (events.size() > head && order(value_of(events.back()), v) != (function == A_MIN ? -1 : 1)) events.pop_back();
    events.push_back(n);
  }
  void remove(const Value& v, int64_t n) {
    if (v.tag == TEXT) texts--;
    if (head < events.size() && events[head] == n) head++;
    if (head > 32 && head * 2 > events.size()) { events.erase(events.begin(), events.begin() + (long)head); head = 0; }
  }
  bool empty() const { return head == events.size(); }
};

// One line of memory, where count, sum or avg is all that is asked for.
struct Kept {
  Counted counted;
  struct More {
    Running running;  // of stddev
    CountedValues values;
    Extreme extreme;
  };
  std::unique_ptr<More> more;  // of the other functions
};
static_assert(sizeof(Kept) == 64);

struct Keyed : State {
  EventLog window;
  bool armed = true;
  uint32_t kept_count = 0;
  int64_t fired = LONG_AGO;
  Kept* kept() { return (Kept*)(this + 1); }  // one for each aggregate that `having` reads, right behind
  const Kept* kept() const { return (const Kept*)(this + 1); }
  ~Keyed() { for (uint32_t k = 0; k < kept_count; k++) kept()[k].~Kept(); }
};

class Aggregate final : public Runner {
  struct View final : Reader {
    Aggregate& form;
    const Keyed& s;
    View(Aggregate& f, const Keyed& k) : form(f), s(k) {}
    Value last(int, int) override { return Value::nil(); }
    Value last_event(int slot) override { return s.window.size() ? s.window.value(s.window.end() - 1, s.window.width() - form.rule.last_captures + slot) : Value::nil(); }
    Value aggregate(const AggRef& ref) final {
      size_t k = (size_t)(&ref - form.rule.aggregates.data());
      if (ref.function == A_COUNT && ref.target < 0) return Value::integer(s.window.size());
      if (form.place_[k] >= 0) {
        const Kept& kept = s.kept()[form.place_[k]];
        switch (ref.function) {
          case A_COUNT: return Value::integer(kept.counted.events);
          case A_SUM: case A_AVG: return kept.counted.result(ref.function);
          case A_STDDEV: return kept.more->running.result(ref.function);
          case A_DISTINCT: return Value::integer(kept.more->values.size());
          case A_MIN: case A_MAX:
            if (const Extreme& e = kept.more->extreme; !e.empty()) return s.window.value(e.events[e.head], ref.slot);
            if (!kept.more->extreme.texts) return Value::nil();
        }
      }
      Fold fold{ref.function};
      form.budget->worked((size_t)s.window.size());
      for (int64_t n = s.window.begin(); n < s.window.end(); n++)
        if (form.in(ref, s.window.brackets(n))) fold.add(ref.slot < 0 ? Value::nil() : s.window.value(n, ref.slot));
      return fold.result(form.eval.scratch);
    }
  };
  bool in(const AggRef& ref, uint64_t brackets) const { return ref.target < 0 || brackets >> ref.target & 1; }

  // sign 1: event n of the window comes; -1: it goes.
  void count(Keyed& s, int64_t n, int sign) const {
    uint64_t brackets = s.window.brackets(n);
    for (size_t k = 0; k < kept_.size(); k++) {
      const AggRef& ref = rule.aggregates[(size_t)kept_[k]];
      if (!in(ref, brackets)) continue;
      Kept& kept = s.kept()[k];
      kept.counted.events += sign;
      if (ref.slot < 0) continue;
      Value v = s.window.value(n, ref.slot);
      auto value_of = [&](int64_t event) { return s.window.value(event, ref.slot); };
      if (ref.function == A_MIN || ref.function == A_MAX) {
        if (sign > 0) kept.more->extreme.add(v, n, ref.function, value_of);
        else kept.more->extreme.remove(v, n);
      } else if (ref.function == A_STDDEV) kept.more->running.add(v, sign, true);
      else if (ref.function != A_DISTINCT) kept.counted.add(v, sign);
      else if (sign > 0) kept.more->values.add(v, n, value_of);
      else kept.more->values.remove(v, value_of);
    }
  }
  void drop_before(Keyed& s, int64_t n) const {
    if (!kept_.empty()) for (int64_t k = s.window.begin(); k < n; k++) count(s, k, -1);
    s.window.drop_before(n);
  }
  void trim(Keyed& s, int64_t now) const { drop_before(s, s.window.since(now - rule.over, s.window.begin())); }
  bool holds(Keyed& s) {
    View v(*this, s);
    for (auto& q : quick_) {
      const AggRef& ref = rule.aggregates[(size_t)q.aggregate];
      bool all = ref.function == A_COUNT && ref.target < 0;
      if (!compare(q.op, all ? Value::integer(s.window.size()) : v.aggregate(ref), q.limit).i) return false;
    }
    for (int part : slow_) if (!eval.of_run(part, v, rule, -1).is_true()) return false;
    return true;
  }

  void note_window(Keyed& s, const Event& e) {
    View v(*this, s);
    bool ready = s.armed || (rule.repeat >= 0 && s.fired != LONG_AGO && e.time - s.fired >= rule.repeat);
    note_having("window", e.place.offset, v, (int64_t)e.row, s.window.oldest(), s.window.size(), ready);
  }
  void report(Keyed& s, const Event& e) {
    s.fired = e.time;
    if (passed_in_silence(s, e.time)) return;
    Listed listed{events_name_, {}, s.window.size()};
    int64_t from = !topics->empty() ? std::max(s.window.begin(), s.window.end() - (int64_t)LISTED_MOST) : s.window.begin();
    for (int64_t n = from; n < s.window.end(); n++) listed.places.push_back(s.window.place(n));
    View v(*this, s);
    write(s, e.place, s.window.oldest(), e.time, e.time, {listed}, v, (int64_t)e.row);
  }

  int events_name_;
  Layouts layouts_;
  std::vector<Value> values_;
  int64_t latest_ = 0;  // time of any event: a window that is older will let go of some
  std::vector<int> kept_;   // aggregates that go on from event to event
  std::vector<int> place_;  // of an aggregate in kept_, or -1

  // The parts of `having` that are joined by `and`: comparisons of an aggregate with a literal, which need no tree and
  // are asked first; and the others.
  struct Quick {
    int op, aggregate;
    Value limit;
  };
  std::vector<Quick> quick_;
  std::vector<int> slow_;

  void split_having(int node) {
    const Node& n = eval.program.nodes[(size_t)node];
    if (n.op == AND) {
      for (int a : n.args) split_having(a);
      return;
    }
    bool compares = n.op >= EQ && n.op <= GE && eval.program.nodes[(size_t)n.args[0]].op == AGG;
    if (!compares || eval.program.nodes[(size_t)n.args[1]].op != CONST) { slow_.push_back(node); return; }
    int aggregate = eval.program.nodes[(size_t)n.args[0]].x, limit = eval.program.nodes[(size_t)n.args[1]].x;
    quick_.push_back({n.op, aggregate, eval.program.constants[(size_t)limit]});
  }

  void keep_what_is_read(int node) {
    const Node& n = eval.program.nodes[(size_t)node];
    if (n.op == AGG && place_[(size_t)n.x] < 0) {
      const AggRef& ref = rule.aggregates[(size_t)n.x];
      bool goes_on = ref.function <= A_DISTINCT;  // count to distinct; first, last and values are looked up
      if (goes_on && !(ref.function == A_COUNT && ref.target < 0)) {
        place_[(size_t)n.x] = (int)kept_.size();
        kept_.push_back(n.x);
      }
    }
    for (int a : n.args) keep_what_is_read(a);
  }

 public:
  Aggregate(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l)
      : Runner(r, e, k, l),
        events_name_(r.names[0].text),
        layouts_((int)r.values.size(), false, r.brackets.size() == 1 ? 0 : r.brackets.size() <= 8 ? 1 : 8, 1),
        place_(r.aggregates.size(), -1) {
    keep_what_is_read(r.having);
    split_having(r.having);
    values_.resize(r.values.size());
  }

  State* fresh() override {
    Keyed* s = made<Keyed>(kept_.size() * sizeof(Kept));
    s->window.use(layouts_);
    for (; s->kept_count < kept_.size(); s->kept_count++) {
      Kept* kept = new (s->kept() + s->kept_count) Kept;
      int function = rule.aggregates[(size_t)kept_[s->kept_count]].function;
      if (function > A_AVG) kept->more = std::make_unique<Kept::More>();
    }
    return s;
  }
  void event(State& state, const Event& e) override {
    if (!e.brackets) return;
    Keyed& s = (Keyed&)state;
    latest_ = std::max(latest_, e.time);
    trim(s, e.time);
    if (!s.armed && !holds(s)) s.armed = true;
    for (size_t k = 0; k < values_.size(); k++) values_[k] = eval.at_row(rule.values[k], e.row);
    s.window.push({e.place, 0, e.brackets}, values_.data());
    if (!kept_.empty()) count(s, s.window.end() - 1, 1);
    if (s.window.size() > limits.max_events) { drop_before(s, s.window.begin() + 1); counters.dropped_events++; }
    if (trace) note_window(s, e);
    if (!holds(s)) return;
    bool again = rule.repeat >= 0 && s.fired != LONG_AGO && e.time - s.fired >= rule.repeat;
    if (s.armed || again) report(s, e);
    s.armed = false;
  }
  void on_time(State& state, int64_t now) override {
    Keyed& s = (Keyed&)state;
    trim(s, now);
    if (!s.armed && s.window.size() == 0 && !holds(s)) s.armed = true;
    // Where `having` holds of nothing the state stays, disarmed: then nothing may be due for ever.
    if (s.alerted != LONG_AGO && rule.suppress >= 0 && now - s.alerted > rule.suppress) s.alerted = LONG_AGO;
  }
  int64_t deadline(const State& state) const override {
    const Keyed& s = (const Keyed&)state;
    int64_t ends = s.window.size() ? s.window.newest() + rule.over : LONG_AGO;
    if (s.alerted != LONG_AGO && rule.suppress >= 0) ends = std::max(ends, s.alerted + rule.suppress);
    return ends == LONG_AGO && !s.armed ? NEVER : ends;
  }
  bool empty(const State& state, int64_t now) const override {
    const Keyed& s = (const Keyed&)state;
    return s.armed && s.window.size() == 0 && (s.alerted == LONG_AGO || rule.suppress < 0 || now - s.alerted > rule.suppress);
  }
  EventLog* log(State& state) const override { return &((Keyed&)state).window; }
  void describe(const State& state, std::string& out) const override {
    const EventLog& w = ((const Keyed&)state).window;
    if (!w.size()) return;
    out += "[{\"step\": \"aggregate\", \"events\": " + std::to_string(w.size()) + ", \"since\": " + std::to_string(w.oldest()) + ", \"waits_for\": []";
    Described bound(out);
    for (int64_t n = std::max(w.begin(), w.end() - (int64_t)DESCRIBED_MOST); n < w.end(); n++) bound.add(Value::text("event", 5), w.place(n));
    bound.end();
    out += "}]";
  }
  void prefetch(State& state) const override {
    Keyed& s = (Keyed&)state;
    s.window.prefetch();
    if (s.window.size() && s.window.oldest() < latest_ - rule.over) s.window.prefetch_oldest();
    for (uint32_t k = 0; k < s.kept_count; k++) if (s.kept()[k].more) __builtin_prefetch(s.kept()[k].more.get());
  }

  // Packed: armed, fired. The rest follows from the events, which are chunks of their own.
  void pack(const State& state, Packer& p) const override {
    const Keyed& s = (const Keyed&)state;
    p.num(s.armed);
    p.num((rule.repeat >= 0 && !s.armed) || !p.canonical ? s.fired : LONG_AGO);
  }
  void unpack(State& state, Unpacker& u) const override {
    Keyed& s = (Keyed&)state;
    s.armed = u.num();
    s.fired = u.sane_or(LONG_AGO);
  }
  void loaded(State& state) const override {
    Keyed& s = (Keyed&)state;
    for (int64_t n = s.window.begin(); n < s.window.end(); n++) count(s, n, 1);
  }
};

}  // namespace

std::unique_ptr<Runner> aggregate_runner(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) {
  return std::make_unique<Aggregate>(r, e, k, l);
}

}  // namespace samovar
