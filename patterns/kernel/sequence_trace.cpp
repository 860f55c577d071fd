#include "sequence.h"

namespace samovar {

// For every run and every step that it could take next: did this event stop short of it, and at which condition?
void Sequence::observe(Keyed& s, const Event& e) {
  int type = eval.type_of(e.row);
  auto refused = [&](const Run* r, int k, View& v, int at) {
    for (int b : step(k).brackets) {
      const BracketDef& d = rule.brackets[b];
      if (d.type >= 0 && d.type != type) continue;
      for (size_t c = 0; c < d.columns.size(); c++)
        if (!eval.at_row(d.columns[c], e.row).is_true()) { trace->note("condition", rule.index, e.place.offset, at, b, (int64_t)c, k); return; }
      for (size_t c = 0; c < d.conditions.size(); c++)
        if (!eval.of_run(d.conditions[c], v, rule, (int64_t)e.row).is_true()) { trace->note("across", rule.index, e.place.offset, at, b, (int64_t)c, k); return; }
      int64_t since = r ? e.time - r->last.time : 0;
      if (r && step(k).within >= 0 && since > step(k).within) trace->note("within", rule.index, e.place.offset, at, b, since, k);
      else if (r && step(k).after >= 0 && since < step(k).after) trace->note("after", rule.index, e.place.offset, at, b, since, k);
      else if (r && step(k).next && s.number != r->last_number + 1) trace->note("next", rule.index, e.place.offset, at, b, 0, k);
      else if (!r && !may_start(s, e)) trace->note("absence", rule.index, e.place.offset, at, b, 0, k);
      else trace->note("fits", rule.index, e.place.offset, at, b, 0, k);
      return;
    }
  };
  View none(*this, s, nullptr, 0, 0), bag = has_bag_ ? bag_view(s, e.time) : none;
  for (int k = 0; k <= first_required_; k++) refused(nullptr, k, k == 0 ? bag : none, -1);
  auto later = [&](const Run& r, View& v) {
    if (!complete(r)) refused(&r, r.step, v, r.step);
    else for (int k = r.step + 1; k < size_; k++) { refused(&r, k, v, r.step); if (!step(k).optional) break; }
  };
  for (auto& r : s.runs) {
    View v = view(s, r, e.time);
    trace->note("partial", rule.index, e.place.offset, r.step, (int64_t)r.taken.size() + (v.to - v.from), r.start.offset, r.count);
    later(r, v);
  }
  if (has_bag_ && bag.to > bag.from) {
    trace->note("partial", rule.index, e.place.offset, 0, bag.to - bag.from, s.bag.at(bag.from).place.offset, bag.to - bag.from);
    if (bag.to - bag.from >= step(0).nmin) { Run r = from_bag(s, bag.from, bag.to); later(r, bag); }
  }
}

}  // namespace samovar
