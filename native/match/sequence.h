// The `sequence` form: partial matches of one key under overlap latest, all and any.
//
// Positive steps are numbered from 0; gap g holds the absences between step g-1 and step g: gap 0 the first ones (with
// for=D), the gap behind the last step the last ones (which fire by timer). A run is a partial match. Under `latest` a
// repeated first step has no runs of its own: its events are a bag, and runs that have left it remember which part of
// the bag is theirs.
#pragma once
#include <algorithm>
#include <climits>

#include "match/runner.h"
#include "match/trace.h"

namespace samovar {

constexpr int OPEN = INT_MAX;  // no gap is blocked

struct Taken {
  int name;
  uint32_t captured;  // where its values begin
  Place place;
};

struct Run {
  int step = 0;
  int64_t count = 0;      // events of a repeated step
  uint64_t mask = 0;      // filled members of a group
  int blocked = OPEN;     // an absence beyond an optional step was broken: no step from this gap on can be taken
  int steps_taken = 0;
  Place start, last;
  int64_t last_number = 0;
  int64_t bag_from = 0, bag_to = 0;
  bool fixed_bag = false;
  bool missed = false;    // another event came where a step wants strictly the next one
  std::vector<Taken> taken;
  std::vector<Owned> values;
  // Events of the step at hand that max_events has pushed out; they are cleared away many at a time.
  size_t gone_from = 0, gone = 0;
  bool is_gone(size_t k) const { return k - gone_from < gone; }
  std::shared_ptr<Run> before;  // under `all`: the run as it was before an optional repeated step that lacks events
};

struct Keyed : State {
  std::vector<Run> runs;
  EventLog bag;
  int64_t bag_floor = 0;  // events before it were used up or killed
  int bag_blocked = OPEN;
  int64_t number = 0;     // events of the key so far, for `next`
  std::vector<int64_t> absent;  // last time of each first absence's event
};

class Sequence final : public Runner {
  const int size_;
  const bool has_bag_;
  const bool may_merge_;
  const int first_required_;
  Layouts layouts_;  // of bags
  std::vector<Value> values_;

  const StepDef& step(int k) const { return rule.steps[k]; }
  const std::vector<Absence>& last_absences() const { return rule.gaps[size_]; }

  // ---------------------------------------------------------------- what a run can read

  struct View final : Reader {
    Sequence& form;
    const Keyed& s;
    const Run* run;
    int64_t from, to;  // part of the bag
    View(Sequence& f, const Keyed& k, const Run* r, int64_t a, int64_t b) : form(f), s(k), run(r), from(a), to(b) {}
    bool in_bag(int name) const { return form.has_bag_ && form.step(0).names[0] == name && from < to; }
    Value last(int name, int slot) override {
      if (in_bag(name)) return s.bag.value(to - 1, slot);
      if (run) for (size_t k = run->taken.size(); k-- > 0;)
        if (run->taken[k].name == name) return run->values[run->taken[k].captured + slot].get();
      return Value::nil();
    }
    Value last_event(int slot) override {
      int behind = slot - form.rule.last_captures;  // they stand behind the captures of each name
      if (run && !run->taken.empty()) {
        const Taken& t = run->taken.back();
        return run->values[t.captured + form.rule.names[t.name].captures.size() + behind].get();
      }
      return from < to ? s.bag.value(to - 1, s.bag.width() + behind) : Value::nil();
    }
    Value aggregate(const AggRef& ref) override {
      Fold fold{ref.function};
      form.budget->worked(run ? run->taken.size() : 0);
      if (in_bag(ref.target)) {
        if (ref.slot < 0) return Value::integer(to - from);
        form.budget->worked((size_t)(to - from));
        for (int64_t n = from; n < to; n++) fold.add(s.bag.value(n, ref.slot));
      } else if (run) {
        for (size_t k = 0; k < run->taken.size(); k++) if (const Taken& t = run->taken[k]; t.name == ref.target && !run->is_gone(k))
          fold.add(ref.slot < 0 ? Value::nil() : run->values[t.captured + ref.slot].get());
      }
      return fold.result(form.eval.scratch);
    }
  };

  int64_t bag_from(const Keyed& s, int64_t from, int64_t to, int64_t now) const {
    int64_t lo = s.bag.since(now - rule.maxspan, from);
    int64_t most = step(0).nmax;
    return most < to - lo ? to - most : std::min(lo, to);
  }
  View view(const Keyed& s, const Run& r, int64_t now) {
    if (r.bag_from == r.bag_to) return View(*this, s, &r, 0, 0);
    return View(*this, s, &r, r.fixed_bag ? r.bag_from : bag_from(s, r.bag_from, r.bag_to, now), r.bag_to);
  }
  View bag_view(const Keyed& s, int64_t now) {
    return View(*this, s, nullptr, bag_from(s, s.bag_floor, s.bag.end(), now), s.bag.end());
  }

  // ---------------------------------------------------------------- where a run stands

  bool complete(const Run& r) const {
    const StepDef& d = step(r.step);
    return d.unordered ? r.mask == d.full() : r.count >= d.nmin;
  }
  bool all_taken(const Run& r) const {
    if (!complete(r)) return false;
    for (int k = r.step + 1; k < size_; k++) if (!step(k).optional) return false;
    return true;
  }
  // Only absences are left: the run takes nothing more, and fires by timer.
  bool waiting(const Run& r) const { return !last_absences().empty() && all_taken(r); }
  template <class F>
  void each_absence(const Run& r, F f) const {  // those that a waiting run waits for, skipped steps or not
    for (int g = r.step + 1; g <= size_; g++) for (auto& a : rule.gaps[g]) f(a);
  }
  int64_t limit(const Run& r, const Absence& a) const {
    int64_t by_span = r.start.time + rule.maxspan;
    return a.within < 0 ? by_span : std::min(by_span, r.last.time + a.within);
  }
  int64_t fires_at(const Run& r) const {
    int64_t at = LONG_AGO;
    each_absence(r, [&](const Absence& a) { at = std::max(at, limit(r, a)); });
    return at;
  }
  // Which of two runs with different histories stands at the same place of the sequence.
  bool same_position(const Run& a, const Run& b) const {
    bool wa = waiting(a), wb = waiting(b);
    if (wa || wb) return wa && wb;
    // Cut off from some of its next steps, a run waits for fewer: that is another position.
    if (a.step != b.step || a.blocked != b.blocked || a.missed != b.missed) return false;
    const StepDef& d = step(a.step);
    return d.unordered ? a.mask == b.mask : std::min(a.count, d.nmin) == std::min(b.count, d.nmin);
  }
  bool next_has_within(const Run& r) const {
    if (!complete(r)) return false;
    for (int k = r.step + 1; k < size_; k++) {
      if (step(k).within >= 0) return true;
      if (!step(k).optional) return false;
    }
    return false;
  }
  // What the choice between runs with one first event goes by: their events step by step, each step closed by a place
  // behind all others, so that of two that agree the longer comes first.
  std::vector<Place> places(const Keyed& s, const Run& r, int64_t now) {
    std::vector<Place> out;
    View v = view(s, r, now);
    for (int name = 0; name < (int)rule.names.size(); name++) {
      if (v.in_bag(name)) for (int64_t n = v.from; n < v.to; n++) out.push_back(s.bag.place(n));
      for (size_t k = 0; k < r.taken.size(); k++) if (r.taken[k].name == name && !r.is_gone(k)) out.push_back(r.taken[k].place);
      out.push_back({INT64_MAX, INT64_MAX, INT64_MAX});
    }
    return out;
  }

  // ---------------------------------------------------------------- taking an event

  void capture(Run& r, int name, const Event& e) {
    r.taken.push_back({name, (uint32_t)r.values.size(), e.place});
    for (int node : rule.names[name].captures) r.values.emplace_back(captured(node, e));
  }
  Value captured(int node, const Event& e) { return eval.at_row(node, e.row); }

  void took(Keyed& s, Run& r, const Event& e) {
    r.last = e.place;
    r.last_number = s.number;
    r.blocked = OPEN;
    r.missed = false;
  }
  // Go on to step k with this event, as its member m.
  Run moved(Keyed& s, const Run& from, int k, int m, const Event& e) {
    Run r = from;
    clear_gone(r);
    r.before = nullptr;
    r.step = k;
    r.count = 1;
    r.mask = step(k).unordered ? 1ull << m : 0;
    r.steps_taken++;
    capture(r, step(k).unordered ? step(k).names[m] : step(k).names[0], e);
    took(s, r, e);
    return r;
  }
  void repeat(Keyed& s, Run& r, const Event& e) {
    int name = step(r.step).names[0];
    r.count++;
    capture(r, name, e);
    took(s, r, e);
    if (r.count > limits.max_events && r.count > step(r.step).nmin) forget_oldest(r, name);
  }
  void forget_oldest(Run& r, int name) {
    if (!r.gone) while (r.taken[r.gone_from].name != name) r.gone_from++;
    if ((int64_t)(r.taken.size() - r.gone_from - r.gone) <= limits.max_events) return;
    r.gone++;
    counters.dropped_events++;
    if (!r.gone_from && r.bag_from == r.bag_to) r.start = r.taken[r.gone].place;  // or two runs would list the same
    if ((int64_t)r.gone >= limits.max_events) clear_gone(r);
  }
  void clear_gone(Run& r) const {
    if (r.gone) {
      uint32_t from = r.taken[r.gone_from].captured, to = r.taken[r.gone_from + r.gone].captured;  // the newest stays
      r.values.erase(r.values.begin() + from, r.values.begin() + to);
      r.taken.erase(r.taken.begin() + (long)r.gone_from, r.taken.begin() + (long)(r.gone_from + r.gone));
      for (size_t k = r.gone_from; k < r.taken.size(); k++) r.taken[k].captured -= to - from;
    }
    r.gone_from = r.gone = 0;
  }
  void fill(Keyed& s, Run& r, int m, const Event& e) {
    r.mask |= 1ull << m;
    r.count++;
    capture(r, step(r.step).names[m], e);
    took(s, r, e);
  }

  bool any_fits(const StepDef& d, const Event& e, Reader& v) {
    for (int b : d.brackets) if (fits(b, e, v)) return true;
    return false;
  }
  // May a run that now stands complete take e as the first event of step k?
  bool in_time(const Keyed& s, const Run& r, int k, const Event& e) const {
    const StepDef& d = step(k);
    int64_t since = e.time - r.last.time;
    if (d.within >= 0 && since > d.within) return false;
    if (d.after >= 0 && since < d.after) return false;
    if (d.next && s.number != r.last_number + 1) return false;
    return r.blocked > k;
  }
  bool may_repeat(const Run& r) const {
    const StepDef& d = step(r.step);
    return !d.unordered && r.count < d.nmax;
  }
  // The members of group k that e can fill in r (none filled yet where `mask` is 0).
  template <class F>
  void members(const StepDef& d, uint64_t mask, const Event& e, Reader& v, bool each, F f) {
    for (size_t m = 0; m < d.brackets.size(); m++)
      if (!(mask >> m & 1) && fits(d.brackets[m], e, v)) { f((int)m); if (!each) return; }
  }

  // Every way in which r can take e as the first event of a later step. With `each`, of a group every member.
  template <class F>
  void onward(Keyed& s, const Run& r, const Event& e, bool each, F f) {
    if (!complete(r)) return;
    View v = view(s, r, e.time);
    for (int k = r.step + 1; k < size_; k++) {
      if (in_time(s, r, k, e)) {
        if (step(k).unordered) members(step(k), 0, e, v, each, [&](int m) { f(moved(s, r, k, m, e)); });
        else if (any_fits(step(k), e, v)) f(moved(s, r, k, 0, e));
      }
      if (!step(k).optional) break;
    }
  }

  // ---------------------------------------------------------------- absences, spans

  void clear(Keyed& s) {
    s.runs.clear();
    s.bag_floor = s.bag.end();
    s.bag.drop_before(s.bag_floor);
    s.bag_blocked = OPEN;
  }

  void trim(Keyed& s, int64_t now) const {
    std::erase_if(s.runs, [&](const Run& r) { return !waiting(r) && now - r.start.time > rule.maxspan; });
    for (size_t k = 0; k < s.absent.size(); k++)
      if (s.absent[k] != LONG_AGO && now - s.absent[k] > rule.gaps[0][k].span) s.absent[k] = LONG_AGO;
    if (!has_bag_ || s.bag.size() == 0) return;
    int64_t keep = bag_from(s, s.bag_floor, s.bag.end(), now);
    for (auto& r : s.runs)
      if (r.bag_from < r.bag_to && !r.fixed_bag) r.bag_from = std::min(std::max(r.bag_from, s.bag_floor - limits.max_events), r.bag_to - step(0).nmin);
    for (auto& r : s.runs) if (r.bag_from < r.bag_to)
      keep = std::min(keep, r.fixed_bag ? r.bag_from : bag_from(s, r.bag_from, r.bag_to, now));
    s.bag.drop_before(keep);
    if (s.bag.size() == 0) s.bag_blocked = OPEN;
  }

  // Returns whether the run lives on.
  bool survives(Keyed& s, Run& r, const Event& e) {
    if (r.before && !survives(s, *r.before, e)) r.before = nullptr;
    if (!complete(r)) return true;
    View v = view(s, r, e.time);
    if (waiting(r)) {
      bool lives = true;
      each_absence(r, [&](const Absence& a) { if (e.time <= limit(r, a) && fits(a.bracket, e, v)) lives = false; });
      if (!lives && trace) trace->killed(e.place.offset, r.step, -1);
      return lives;
    }
    for (int g = r.step + 1; g < size_; g++) {
      for (auto& a : rule.gaps[g]) {
        if (!fits(a.bracket, e, v)) continue;
        if (g == r.step + 1) {
          if (trace) trace->killed(e.place.offset, r.step, a.bracket);
          return false;
        }
        r.blocked = std::min(r.blocked, g);
      }
      if (!step(g).optional) break;
    }
    return true;
  }

  // `next` wants strictly the next event of the key. Returns whether a run that did not take e can still go on.
  bool passed_over(Run& r, const Event& e) const {
    if (r.before && !passed_over(*r.before, e)) r.before = nullptr;
    if (r.last == e.place || !complete(r) || waiting(r)) return true;
    bool strict = false, hope = may_repeat(r);
    for (int k = r.step + 1; k < size_; k++) {
      if (step(k).next) strict = true;
      else if (r.blocked > k) hope = true;
      if (!step(k).optional) break;
    }
    if (strict) r.missed = true;
    return !strict || hope;
  }
  void pass_over(Keyed& s, const Event& e) const {
    if (rule.uses_next) std::erase_if(s.runs, [&](Run& r) { return !passed_over(r, e); });
  }

  void absences(Keyed& s, const Event& e) {
    std::erase_if(s.runs, [&](Run& r) { return !survives(s, r, e); });
    if (!has_bag_) return;
    View v = bag_view(s, e.time);
    if (v.to - v.from < step(0).nmin) return;
    for (int g = 1; g <= size_; g++) {
      for (auto& a : rule.gaps[g]) {
        if ((g == size_ && g > 1) || !fits(a.bracket, e, v)) continue;
        if (g == 1) {
          if (trace) trace->killed(e.place.offset, 0, a.bracket);
          s.bag_floor = s.bag.end();
          return;
        }
        s.bag_blocked = std::min(s.bag_blocked, g);
      }
      if (g < size_ && !step(g).optional) break;
    }
  }

  bool may_start(const Keyed& s, const Event& e) const {
    for (size_t k = 0; k < s.absent.size(); k++)
      if (s.absent[k] != LONG_AGO && e.time - s.absent[k] <= rule.gaps[0][k].span) return false;
    return true;
  }

  // ---------------------------------------------------------------- matches

  // All positive steps are taken and nothing is left to wait for.
  bool finished(const Run& r) const { return last_absences().empty() && all_taken(r); }
  bool holds(Keyed& s, const Run& r, int64_t now, int64_t row) {
    if (rule.having < 0) return true;
    View v = view(s, r, now);
    if (trace) note_having("having", r.last.offset, v, row, r.start.time, r.steps_taken);
    return eval.of_run(rule.having, v, rule, row).is_true();
  }
  void report(Keyed& s, const Run& r, int64_t at, int64_t row) {
    if (passed_in_silence(s, at)) return;
    View v = view(s, r, at);
    std::vector<Listed> steps(rule.names.size());
    for (size_t k = 0; k < steps.size(); k++) steps[k].name = rule.names[k].text;
    Place start = r.start;
    auto list = [&](int name, const Place& p) { steps[name].places.push_back(p); steps[name].total++; };
    if (v.from < v.to) start = s.bag.place(v.from);
    for (int64_t n = v.from; n < v.to; n++) list(step(0).names[0], s.bag.place(n));
    for (size_t k = 0; k < r.taken.size(); k++) if (!r.is_gone(k)) list(r.taken[k].name, r.taken[k].place);
    if (!topics->empty()) for (auto& l : steps) if (l.places.size() > LISTED_MOST) l.places.erase(l.places.begin(), l.places.end() - LISTED_MOST);
    write(s, r.last, start.time, r.last.time, at, steps, v, row);
  }

  // ---------------------------------------------------------------- overlap = latest

  Run from_bag(const Keyed& s, int64_t from, int64_t to) const {
    Run r;
    r.step = 0;
    r.count = to - from;
    r.steps_taken = 1;
    r.start = s.bag.place(to - step(0).nmin);
    r.last = s.bag.place(to - 1);
    r.last_number = s.bag.at(to - 1).number;
    r.bag_from = from;
    r.bag_to = to;
    r.blocked = s.bag_blocked;
    return r;
  }
  // While it waits, a bag gives nothing up and takes nothing in.
  void fix_bag(Keyed& s, Run& r, int64_t now) {
    if (r.bag_from == r.bag_to || r.fixed_bag) return;
    r.bag_from = std::min(bag_from(s, r.bag_from, r.bag_to, now), r.bag_to - 1);
    r.start = s.bag.place(r.bag_from);
    r.fixed_bag = true;
  }
  void enter_bag(Keyed& s, const Event& e) {
    values_.clear();
    for (int node : rule.names[step(0).names[0]].captures) values_.push_back(captured(node, e));
    s.bag.push({e.place, s.number, 0}, values_.data());
    s.bag_blocked = OPEN;
    int64_t most = std::max(limits.max_events, step(0).nmin);  // fewer would never be enough
    if (s.bag.end() - std::max(s.bag_floor, s.bag.begin()) > most) {
      counters.dropped_events++;
      s.bag_floor = s.bag.end() - most;  // `trim` lets them go; runs of this event may still list them
    }
  }

  // Of runs that stand at one place on one event.
  static bool newer(const Run& a, const Run& b) {
    if (b.start < a.start) return true;
    return a.start == b.start && a.steps_taken > b.steps_taken;
  }

  void latest(Keyed& s, const Event& e) {
    std::vector<Run> made, done;
    auto put = [&](Run r) {
      if (all_taken(r) && !holds(s, r, e.time, (int64_t)e.row)) return;
      (finished(r) ? done : made).push_back(std::move(r));
    };
    for (size_t k = 0; k < s.runs.size(); k++) {
      if (waiting(s.runs[k])) continue;
      onward(s, s.runs[k], e, false, put);
      grow_latest(s, s.runs[k], e, put);
    }
    if (has_bag_) {
      View v = bag_view(s, e.time);
      if (v.to - v.from >= step(0).nmin) onward(s, from_bag(s, v.from, v.to), e, false, put);
    }
    start_latest(s, e, put);
    if (!done.empty()) {
      const Run* best = &done[0];
      for (auto& r : done) if (earlier(s, r, *best, e.time)) best = &r;
      report(s, *best, e.time, (int64_t)e.row);
      clear(s);
      return;
    }
    pass_over(s, e);
    if (may_merge_) merge(s, e);
    std::vector<Run*> winners;
    for (auto& r : made) if (wins(r, made)) winners.push_back(&r);
    for (Run* r : winners) {
      if (waiting(*r)) fix_bag(s, *r, e.time);
      place_run(s.runs, *r, e);
    }
  }
  // Of runs that complete on one event: the earliest start, more steps, events that come first.
  bool earlier(const Keyed& s, const Run& a, const Run& b, int64_t now) {
    if (!(a.start == b.start)) return a.start < b.start;
    if (a.steps_taken != b.steps_taken) return a.steps_taken > b.steps_taken;
    return events_first(places(s, a, now), places(s, b, now));
  }
  template <class F>
  void grow_latest(Keyed& s, Run& r, const Event& e, F put) {
    const StepDef& d = step(r.step);
    View v = view(s, r, e.time);
    if (d.unordered && !complete(r)) {
      members(d, r.mask, e, v, false, [&](int m) { Run c = r; fill(s, c, m, e); put(std::move(c)); });
    } else if (may_repeat(r) && any_fits(d, e, v)) {
      if (r.count < d.nmin) { Run c = r; repeat(s, c, e); put(std::move(c)); }
      else repeat(s, r, e);
    }
  }
  template <class F>
  void start_latest(Keyed& s, const Event& e, F put) {
    if (!may_start(s, e)) return;
    for (int k = 0; k <= first_required_; k++) {
      if (k == 0 && has_bag_) {
        View v = bag_view(s, e.time);
        if (!any_fits(step(0), e, v)) continue;
        enter_bag(s, e);
        View with_it = bag_view(s, e.time);
        if (with_it.to - with_it.from < step(0).nmin) continue;
        Run r = from_bag(s, with_it.from, with_it.to);
        if (finished(r) || waiting(r)) put(std::move(r));
        continue;
      }
      begin(s, k, e, false, put);
    }
  }
  template <class F>
  void begin(Keyed& s, int k, const Event& e, bool each, F put) {
    Run none;
    View v(*this, s, nullptr, 0, 0);
    none.start = e.place;
    if (step(k).unordered) members(step(k), 0, e, v, each, [&](int m) { put(moved(s, none, k, m, e)); });
    else if (any_fits(step(k), e, v)) put(moved(s, none, k, 0, e));
  }
  // Of those that reach a position on one event: the newest start, more steps, the older by its events.
  bool wins(const Run& r, const std::vector<Run>& made) const {
    for (auto& other : made) {
      if (&other == &r || !same_position(other, r)) continue;
      if (newer(other, r)) return false;
      if (!newer(r, other) && (older(other, r) || (!older(r, other) && &other < &r))) return false;
    }
    return true;
  }
  static bool older(const Run& a, const Run& b) {
    if (a.bag_to != b.bag_to) return a.bag_to < b.bag_to;
    for (size_t k = 0; k < a.taken.size() && k < b.taken.size(); k++)
      if (!(a.taken[k].place == b.taken[k].place)) return a.taken[k].place < b.taken[k].place;
    if (a.taken.size() != b.taken.size()) return a.taken.size() < b.taken.size();
    for (size_t k = 0; k < a.taken.size(); k++) if (a.taken[k].name != b.taken[k].name) return a.taken[k].name < b.taken[k].name;
    return false;
  }
  // One run a position. Between equal starts the older stays, unless the next step has `within`: then the newer one
  // has more time left, if the older did not just take this event in as well.
  void place_run(std::vector<Run>& runs, const Run& r, const Event& e) {
    for (auto& held : runs) {
      if (!same_position(held, r)) continue;
      if (waiting(held)) return;
      if (held.start < r.start || (held.start == r.start && !(held.last == e.place) && next_has_within(r))) held = r;
      return;
    }
    runs.push_back(r);
  }
  // What cut runs off from their next steps may have brought two of them to one position.
  void merge(Keyed& s, const Event& e) {
    if (s.runs.size() < 2) return;
    std::vector<Run> runs;
    runs.swap(s.runs);
    std::stable_sort(runs.begin(), runs.end(), older);
    for (auto& r : runs) place_run(s.runs, r, e);
  }

  // ---------------------------------------------------------------- overlap = all, any

  static size_t bytes_of(const Run& r) {
    return sizeof(Run) + r.taken.size() * sizeof(Taken) + r.values.size() * sizeof(Owned);
  }

  void many(Keyed& s, const Event& e) {
    bool any = rule.overlap == ANY;
    std::vector<Run> done, made;
    auto put = [&](Run r) {
      if (all_taken(r) && !holds(s, r, e.time, (int64_t)e.row)) return;
      budget->held(bytes_of(r));
      (finished(r) ? done : made).push_back(std::move(r));
    };
    budget->worked(s.runs.size());
    if (any) for (auto& r : s.runs) {
      if (budget->over()) return;
      ways(s, r, e, put);
    }
    else advance_all(s, e, done);
    if (may_start(s, e)) start_many(s, e, any, put);
    if (budget->over()) return;
    pass_over(s, e);
    if (!done.empty() && complete_many(s, made, done, e)) return;
    for (auto& r : made) s.runs.push_back(std::move(r));
    bound(s);
  }

  template <class F>
  void ways(Keyed& s, const Run& r, const Event& e, F put) {
    if (waiting(r)) return;
    const StepDef& d = step(r.step);
    View v = view(s, r, e.time);
    if (d.unordered && !complete(r)) {
      members(d, r.mask, e, v, true, [&](int m) { Run c = r; fill(s, c, m, e); put(std::move(c)); });
      return;
    }
    if (may_repeat(r) && any_fits(d, e, v)) { Run c = r; repeat(s, c, e); put(std::move(c)); }
    if (complete(r)) onward(s, r, e, true, put);
  }

  template <class F>
  void start_many(Keyed& s, const Event& e, bool any, F put) {
    if (any) {
      for (int k = 0; k <= first_required_; k++) begin(s, k, e, true, put);
      return;
    }
    // One run an event: the one that completes, else at the first step as written that it fits.
    std::vector<Run> ways;
    for (int k = 0; k <= first_required_; k++) begin(s, k, e, false, [&](Run r) { ways.push_back(std::move(r)); });
    choose(s, ways, e, put);
  }
  // A match that can complete completes; else the first way. What `having` refuses at its end is no way.
  template <class F>
  void choose(Keyed& s, std::vector<Run>& ways, const Event& e, F put) {
    std::erase_if(ways, [&](const Run& r) { return all_taken(r) && !holds(s, r, e.time, (int64_t)e.row); });
    for (auto& r : ways) if (finished(r)) { put(std::move(r)); return; }
    if (!ways.empty()) put(std::move(ways[0]));
  }

  // Every run takes e where it can, in place; what completes moves to `done`.
  void advance_all(Keyed& s, const Event& e, std::vector<Run>& done) {
    std::erase_if(s.runs, [&](Run& r) {
      budget->worked(r.taken.size());
      if (budget->over() || !take_all(s, r, e)) return false;
      done.push_back(std::move(r));
      return true;
    });
  }
  // Returns whether r is now a match. It prefers to complete, then the nearest later step, then its own repeated step.
  bool take_all(Keyed& s, Run& r, const Event& e) {
    if (waiting(r)) return false;
    std::vector<Run> ways;
    auto onward_of = [&](const Run& from, int beyond) {
      onward(s, from, e, false, [&](Run c) {
        if (c.step <= beyond) return;
        if (step(c.step).optional && !complete(c)) c.before = std::make_shared<Run>(from);
        ways.push_back(std::move(c));
      });
    };
    onward_of(r, -1);
    const StepDef& d = step(r.step);
    View v = view(s, r, e.time);
    if (d.unordered && !complete(r)) members(d, r.mask, e, v, false, [&](int m) { Run c = r; fill(s, c, m, e); ways.push_back(std::move(c)); });
    if (may_repeat(r) && any_fits(d, e, v)) {
      ways.push_back(r);
      repeat(s, ways.back(), e);
      if (complete(ways.back())) ways.back().before = nullptr;
    }
    if (r.before) onward_of(*r.before, r.step);
    bool done = false;
    choose(s, ways, e, [&](Run c) { r = std::move(c); done = finished(r); });
    return done;
  }

  // Returns whether all partials are gone.
  bool complete_many(Keyed& s, std::vector<Run>& made, std::vector<Run>& done, const Event& e) {
    std::vector<std::pair<std::vector<Place>, Run*>> order;
    for (auto& r : done) {
      order.push_back({places(s, r, e.time), &r});
      budget->held(order.back().first.size() * sizeof(Place));
      if (budget->over()) return true;
    }
    std::stable_sort(order.begin(), order.end(), [](auto& a, auto& b) {
      if (!(a.second->start == b.second->start)) return a.second->start < b.second->start;
      return events_first(a.first, b.first);
    });
    if (rule.skip == PAST_LAST) {
      report(s, *order[0].second, e.time, (int64_t)e.row);
      clear(s);
      return true;
    }
    const Run* previous = nullptr;
    int64_t reported = 0;
    for (auto& entry : order) {
      const Run* r = entry.second;
      if (budget->over()) return true;
      if (rule.skip == TO_NEXT) {
        if (previous && previous->start == r->start) continue;
        previous = r;
        auto same_first = [&](const Run& o) { return o.start == r->start; };
        std::erase_if(s.runs, same_first);
        std::erase_if(made, same_first);
      }
      if (reported++ < limits.max_matches) report(s, *r, e.time, (int64_t)e.row);
      else counters.dropped_matches++;
    }
    return false;
  }

  int64_t advance_of(const Run& r) const { return (int64_t)r.step << 40 | (int64_t)r.taken.size(); }
  // At most so many runs: the oldest start goes, of equal starts the least advanced, then the older.
  void bound(Keyed& s) {
    int64_t extra = (int64_t)s.runs.size() - limits.max_partials;
    if (extra <= 0) return;
    std::stable_sort(s.runs.begin(), s.runs.end(), [&](const Run& a, const Run& b) {
      if (!(a.start == b.start)) return a.start < b.start;
      return advance_of(a) != advance_of(b) ? advance_of(a) < advance_of(b) : older(a, b);
    });
    s.runs.erase(s.runs.begin(), s.runs.begin() + (long)extra);
    counters.dropped_partials += extra;
  }

 public:
  Sequence(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l)
      : Runner(r, e, k, l),
        size_((int)r.steps.size()),
        has_bag_(r.overlap == LATEST && !r.steps[0].unordered && r.steps[0].repeated()),
        may_merge_(r.uses_next || std::any_of(r.steps.begin(), r.steps.end(), [](const StepDef& d) { return d.optional; })),
        first_required_([&] { int n = 0; while (r.steps[n].optional) n++; return n; }()),
        layouts_(has_bag_ ? (int)r.names[r.steps[0].names[0]].captures.size() : 0, true, 0, 0) {}

  State* fresh() override {
    Keyed* s = made<Keyed>();
    s->absent.assign(rule.gaps[0].size(), LONG_AGO);
    s->bag.use(layouts_);
    return s;
  }

  void event(State& state, const Event& e) override {
    Keyed& s = (Keyed&)state;
    s.number++;
    View none(*this, s, nullptr, 0, 0);
    if (rule.until >= 0 && fits(rule.until, e, none)) {
      if (trace) trace->plain("until", e.place.offset);
      clear(s);
      return;
    }
    trim(s, e.time);
    if (trace) observe(s, e);
    absences(s, e);
    if (rule.overlap == LATEST) latest(s, e); else many(s, e);
    for (size_t k = 0; k < s.absent.size(); k++) if (fits(rule.gaps[0][k].bracket, e, none)) s.absent[k] = e.time;
    if (trace) stand(s, e);
  }

  void on_time(State& state, int64_t now) override {
    Keyed& s = (Keyed&)state;
    int64_t moment = LONG_AGO, reported = 0;  // all that fire at one moment do so here, however the input is cut
    while (!last_absences().empty() && !budget->over()) {
      Run* due = nullptr;
      budget->worked(s.runs.size());
      for (auto& r : s.runs) {
        if (!waiting(r) || fires_at(r) >= now) continue;
        if (!due || fires_at(r) < fires_at(*due) ||
            (fires_at(r) == fires_at(*due) && (r.start < due->start || (r.start == due->start && events_first(places(s, r, now), places(s, *due, now)))))) due = &r;
      }
      if (!due) break;
      if (int64_t at = fires_at(*due); at != moment) { moment = at; reported = 0; budget->begin_event(); }
      fire(s, due, reported++ < limits.max_matches);
    }
    trim(s, now);
  }
  void fire(Keyed& s, Run* due, bool told) {
    Run r = std::move(*due);
    s.runs.erase(s.runs.begin() + (due - s.runs.data()));
    if (told) report(s, r, fires_at(r), -1);
    else counters.dropped_matches++;
    if (rule.skip == PAST_LAST) clear(s);
    else if (rule.skip == TO_NEXT) std::erase_if(s.runs, [&](const Run& o) { return o.start == r.start; });
  }

  int64_t deadline(const State& state) const override {
    const Keyed& s = (const Keyed&)state;
    int64_t fires = NEVER, ends = LONG_AGO;
    for (auto& r : s.runs) {
      if (waiting(r)) fires = std::min(fires, fires_at(r));
      ends = std::max(ends, r.start.time + rule.maxspan);
    }
    if (fires != NEVER) return fires;
    if (s.bag.size()) ends = std::max(ends, s.bag.newest() + rule.maxspan);
    for (size_t k = 0; k < s.absent.size(); k++)
      if (s.absent[k] != LONG_AGO) ends = std::max(ends, s.absent[k] + rule.gaps[0][k].span);
    if (s.alerted != LONG_AGO && rule.suppress >= 0) ends = std::max(ends, s.alerted + rule.suppress);
    return ends == LONG_AGO ? LONG_AGO : ends;
  }
  bool empty(const State& state, int64_t now) const override {
    const Keyed& s = (const Keyed&)state;
    if (!s.runs.empty() || s.bag.end() > std::max(s.bag.begin(), s.bag_floor)) return false;
    for (size_t k = 0; k < s.absent.size(); k++)
      if (s.absent[k] != LONG_AGO && now - s.absent[k] <= rule.gaps[0][k].span) return false;
    return s.alerted == LONG_AGO || rule.suppress < 0 || now - s.alerted > rule.suppress;
  }
  int64_t partials(const State& state) const override {
    const Keyed& s = (const Keyed&)state;
    return (int64_t)s.runs.size() + (s.bag.size() > 0);
  }
  int64_t number(const State& s) const override { return ((const Keyed&)s).number; }
  EventLog* log(State& state) const override { return has_bag_ ? &((Keyed&)state).bag : nullptr; }

  bool sound(const Keyed& s, const Run& r) const {
    const StepDef& d = step(r.step);
    bool bag = r.bag_from < r.bag_to;
    if (r.count < 0 || r.bag_from > r.bag_to || (r.taken.empty() && !bag)) return false;
    if (bag && (!has_bag_ || r.bag_from < s.bag.begin() || r.bag_to > s.bag.end() || r.bag_to - r.bag_from < step(0).nmin)) return false;
    if (d.unordered && (r.mask & ~d.full())) return false;
    return !r.before || sound(s, *r.before);
  }
  bool sound(const State& state) const override {
    const Keyed& s = (const Keyed&)state;
    for (auto& r : s.runs) if (!sound(s, r)) return false;
    return s.bag_floor >= 0 && s.bag_floor <= s.bag.end();
  }
  void pack(const State& s, Packer& p) const override;      // sequence_pack.cpp
  void unpack(State& s, Unpacker& u) const override;
  void describe(const State& s, std::string& out) const override;
  void observe(Keyed& s, const Event& e);                   // sequence_trace.cpp
  void stand(Keyed& s, const Event& e);
};

}  // namespace samovar
