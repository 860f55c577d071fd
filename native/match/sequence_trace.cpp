#include "match/sequence.h"

namespace samovar {
namespace {

constexpr size_t SHOWN_MOST = 20;  // partials that are noted after an event, the most advanced ones

}  // namespace

// For every run and every step that it could take next: did this event stop short of it, and at which condition?
void Sequence::observe(Keyed& s, const Event& e) {
  int type = eval.type_of(e.row);
  auto note = [&](const char* what, int at, int bracket, int target, const char* name, int64_t value) {
    trace->begin(what, e.place.offset);
    trace->part("step", at);
    trace->part("bracket", bracket);
    trace->part("target", target);
    trace->part(name, value);
  };
  auto refused = [&](const Run* r, int k, View& v, int at) {
    for (int b : step(k).brackets) {
      const BracketDef& d = rule.brackets[b];
      if (d.type >= 0 && d.type != type) { note("type", at, b, k, "index", 0); trace->end(); continue; }
      bool fine = true;
      auto check = [&](const std::vector<int>& parts, const char* what) {
        for (size_t c = 0; fine && c < parts.size(); c++) {
          if (eval.of_run(parts[c], v, rule, (int64_t)e.row).is_true()) continue;
          fine = false;
          note(what, at, b, k, "index", (int64_t)c);
          note_reads(parts[c], v, (int64_t)e.row);
          trace->end();
        }
      };
      check(d.columns, "condition");
      check(d.conditions, "across");
      if (!fine) continue;
      int64_t since = r ? e.time - r->last.time : 0;
      const char* what = "fits";
      if (r && step(k).within >= 0 && since > step(k).within) what = "within";
      else if (r && step(k).after >= 0 && since < step(k).after) what = "after";
      else if (r && step(k).next && s.number != r->last_number + 1) what = "next";
      else if (!r && !may_start(s, e)) what = "absence";
      note(what, at, b, k, "since", since);
      trace->end();
    }
  };
  View none(*this, s, nullptr, 0, 0), bag = has_bag_ ? bag_view(s, e.time) : none;
  for (int k = 0; k <= first_required_; k++) refused(nullptr, k, k == 0 ? bag : none, -1);
  auto later = [&](const Run& r, View& v) {
    if (!complete(r)) refused(&r, r.step, v, r.step);
    else for (int k = r.step + 1; k < size_; k++) { refused(&r, k, v, r.step); if (!step(k).optional) break; }
  };
  size_t shown = 0;
  for (size_t k = s.runs.size(); k-- > 0 && shown < SHOWN_MOST; shown++) {
    View v = view(s, s.runs[k], e.time);
    later(s.runs[k], v);
  }
  if (has_bag_ && bag.to - bag.from >= step(0).nmin) {
    Run r = from_bag(s, bag.from, bag.to);
    later(r, bag);
  }
}

// The partials as they stand after an event, each with its events by step name.
void Sequence::stand(Keyed& s, const Event& e) {
  auto write = [&](const Run& r, int64_t count, const View& v) {
    trace->begin("partial", e.place.offset);
    trace->part("step", r.step);
    trace->part("count", count);
    trace->part("waits", waiting(r));
    std::string& out = trace->raw_part("events");
    out += "[";
    bool first = true;
    auto event = [&](int name, int64_t offset) {
      out += first ? "[" : ", [";
      first = false;
      out += std::to_string(name) + ", " + std::to_string(offset) + "]";
    };
    for (int64_t n = v.from; n < v.to; n++) event(step(0).names[0], s.bag.place(n).offset);
    for (auto& t : r.taken) event(t.name, t.place.offset);
    out += "]";
    trace->end();
  };
  if (has_bag_) {
    View bag = bag_view(s, e.time);
    Run none;
    if (bag.to > bag.from) write(none, bag.to - bag.from, bag);
  }
  std::vector<const Run*> order;
  for (auto& r : s.runs) order.push_back(&r);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return advance_of(*a) > advance_of(*b); });
  for (size_t k = 0; k < order.size() && k < SHOWN_MOST; k++) write(*order[k], order[k]->count, view(s, *order[k], e.time));
}

}  // namespace samovar
