// The `session` form: events of a key with no gap longer than `gap`; emitted once, when event time passes its end.
#include "match/pane.h"

namespace samovar {
namespace {

struct Keyed : State {
  Pane pane;  // open while count > 0
};

class Session final : public Runner {
  int64_t closes_at(const Keyed& s) const {
    int64_t at = s.pane.end + rule.gap;
    return rule.max < 0 ? at : std::min(at, s.pane.start + rule.max);
  }
  void close(Keyed& s) {
    Pane::View v(s.pane, rule, eval.scratch);
    if (trace) note_having("closed", s.pane.last.offset, v, -1, s.pane.start, s.pane.count);
    bool told = rule.having < 0 || eval.of_run(rule.having, v, rule, -1).is_true();
    if (told && !passed_in_silence(s, closes_at(s)))
      write(s, s.pane.last, s.pane.start, s.pane.end, closes_at(s), {s.pane.listed(rule.names[0].text)}, v, -1, &s.pane.count);
    s.pane.reuse();
  }

 public:
  using Runner::Runner;
  State* fresh() override { return made<Keyed>(); }
  void event(State& state, const Event& e) override {
    if (!e.brackets) return;
    Keyed& s = (Keyed&)state;
    if (s.pane.count && e.time > closes_at(s)) close(s);
    s.pane.add(rule, eval, e, limits, counters);
    if (trace) {
      Pane::View v(s.pane, rule, eval.scratch);
      note_having("window", e.place.offset, v, -1, s.pane.start, s.pane.count);
    }
  }
  void on_time(State& state, int64_t now) override {
    Keyed& s = (Keyed&)state;
    if (s.pane.count && now > closes_at(s)) close(s);
  }
  int64_t deadline(const State& state) const override {
    const Keyed& s = (const Keyed&)state;
    if (s.pane.count) return closes_at(s);
    return s.alerted != LONG_AGO && rule.suppress >= 0 ? s.alerted + rule.suppress : LONG_AGO;
  }
  bool empty(const State& state, int64_t now) const override {
    const Keyed& s = (const Keyed&)state;
    return !s.pane.count && (s.alerted == LONG_AGO || rule.suppress < 0 || now - s.alerted > rule.suppress);
  }
  void pack(const State& s, Packer& p) const override { ((const Keyed&)s).pane.pack(p); }
  void unpack(State& s, Unpacker& u) const override { ((Keyed&)s).pane.unpack(u); }
  bool sound(const State& s) const override { return ((const Keyed&)s).pane.sound(rule); }
  int64_t partials(const State& s) const override { return ((const Keyed&)s).pane.count > 0; }
  void describe(const State& state, std::string& out) const override {
    const Pane& p = ((const Keyed&)state).pane;
    out += "[{\"step\": \"session\", \"events\": " + std::to_string(p.count) + ", \"since\": " + std::to_string(p.start) +
           ", \"fires_at\": " + std::to_string(closes_at((const Keyed&)state)) + ", \"waits_for\": []}]";
  }
};

}  // namespace

std::unique_ptr<Runner> session_runner(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) {
  return std::make_unique<Session>(r, e, k, l);
}

}  // namespace samovar
