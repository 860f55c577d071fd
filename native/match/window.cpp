// The `window` form: panes [k * every, k * every + size) from the epoch, each emitted once when event time passes its end.
#include <deque>

#include "match/pane.h"

namespace samovar {
namespace {

struct Open {
  int64_t start;
  Pane pane;
};

struct Keyed : State {
  std::deque<Open> open;  // by start
};

class Window final : public Runner {
  void close(Keyed& s) {
    Open w = std::move(s.open.front());
    s.open.pop_front();
    Pane::View v(w.pane, rule, eval.scratch);
    if (trace) note_having("closed", w.pane.last.offset, v, -1, w.start, w.pane.count);
    if (rule.having >= 0 && !eval.of_run(rule.having, v, rule, -1).is_true()) return;
    int64_t end = w.start + rule.size;
    if (!passed_in_silence(s, end)) write(s, w.pane.last, w.start, end, end, {w.pane.listed(rule.names[0].text)}, v, -1);
  }

 public:
  using Runner::Runner;
  State* fresh() override { return made<Keyed>(); }
  void event(State& state, const Event& e) override {
    if (!e.brackets) return;
    Keyed& s = (Keyed&)state;
    on_time(s, e.time);
    int64_t newest = floor_div(e.time, rule.every) * rule.every;
    int64_t oldest = (floor_div(e.time - rule.size, rule.every) + 1) * rule.every;
    size_t at = 0;
    for (int64_t start = oldest; start <= newest; start += rule.every) {
      while (at < s.open.size() && s.open[at].start < start) at++;
      budget->worked(1);
      if (at == s.open.size() || s.open[at].start != start) {
        budget->held(sizeof(Open));
        s.open.insert(s.open.begin() + (long)at, Open{start, Pane()});
      }
      if (budget->over()) return;
      Pane& pane = s.open[at].pane;
      pane.add(rule, eval, e, limits, counters);
      if (!trace) continue;
      Pane::View v(pane, rule, eval.scratch);
      note_having("window", e.place.offset, v, -1, start, pane.count);
    }
  }
  void on_time(State& state, int64_t now) override {
    Keyed& s = (Keyed&)state;
    while (!s.open.empty() && now > s.open.front().start + rule.size) close(s);
  }
  int64_t deadline(const State& state) const override {
    const Keyed& s = (const Keyed&)state;
    if (!s.open.empty()) return s.open.front().start + rule.size;
    return s.alerted != LONG_AGO && rule.suppress >= 0 ? s.alerted + rule.suppress : LONG_AGO;
  }
  bool empty(const State& state, int64_t now) const override {
    const Keyed& s = (const Keyed&)state;
    return s.open.empty() && (s.alerted == LONG_AGO || rule.suppress < 0 || now - s.alerted > rule.suppress);
  }
  // Packed: how many are open; of each its start and its pane.
  void pack(const State& state, Packer& p) const override {
    const Keyed& s = (const Keyed&)state;
    p.raw(s.open.size());
    for (auto& w : s.open) { p.num(w.start); w.pane.pack(p); }
  }
  void unpack(State& state, Unpacker& u) const override {
    Keyed& s = (Keyed&)state;
    size_t n = u.count();
    for (size_t k = 0; k < n && !u.bad; k++) {
      s.open.push_back(Open{u.sane(), Pane()});
      s.open.back().pane.unpack(u);
    }
  }
  bool sound(const State& s) const override {
    for (auto& w : ((const Keyed&)s).open) if (!w.pane.sound(rule) || w.pane.count == 0) return false;
    return true;
  }
  int64_t partials(const State& s) const override { return (int64_t)((const Keyed&)s).open.size(); }
  void describe(const State& state, std::string& out) const override {
    out += "[";
    bool first = true;
    for (auto& w : ((const Keyed&)state).open) {
      if (!first) out += ", ";
      first = false;
      out += "{\"step\": \"window\", \"events\": " + std::to_string(w.pane.count) + ", \"since\": " + std::to_string(w.start) +
             ", \"fires_at\": " + std::to_string(w.start + rule.size) + ", \"waits_for\": []}";
    }
    out += "]";
  }
};

}  // namespace

std::unique_ptr<Runner> window_runner(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) {
  return std::make_unique<Window>(r, e, k, l);
}

}  // namespace samovar
