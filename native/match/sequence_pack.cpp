// A sequence's state as bytes. After the common header (see states.cpp):
//
//   number of the key's events (0 in a digest), first-absence times, bag floor and blocked gap, then the runs:
//   step, count, mask, blocked gap, steps taken, start, last, number of the last event (relative), bag part, flags,
//   taken events (name, place, captured values), and the run before an optional step where there is one.
// The bag's events are chunks of their own.
#include "match/sequence.h"

namespace samovar {
namespace {

void pack_run(const Run& r, const Keyed& s, const RuleDef& rule, Packer& p) {
  int64_t base = p.canonical ? s.bag.begin() : 0;
  p.num(r.step); p.num(r.count); p.raw(r.mask); p.num(r.blocked == OPEN ? -1 : r.blocked); p.num(r.steps_taken);
  p.place(r.start); p.place(r.last);
  p.num(s.number - r.last_number);
  bool bag = r.bag_from < r.bag_to;
  int64_t from = r.bag_from < s.bag.begin() ? s.bag.begin() : r.bag_from;  // older ones are gone for good
  p.num(bag ? from - base : 0); p.num(bag ? r.bag_to - base : 0);
  p.num(r.fixed_bag | r.missed << 1);
  p.raw(r.taken.size() - r.gone);
  for (size_t n = 0; n < r.taken.size(); n++) {
    if (r.is_gone(n)) continue;
    const Taken& t = r.taken[n];
    p.num(t.name);
    p.place(t.place);
    for (size_t k = 0; k < rule.names[t.name].captures.size(); k++) p.value(r.values[t.captured + k].get());
  }
  p.num(r.before ? 1 : 0);
  if (r.before) pack_run(*r.before, s, rule, p);
}

Run unpack_run(const Keyed& s, const RuleDef& rule, Unpacker& u, int depth) {
  Run r;
  r.step = (int)u.sane_count(); r.count = u.sane_count(); r.mask = u.raw();
  int64_t blocked = u.sane();
  r.blocked = blocked < 0 ? OPEN : (int)blocked;
  r.steps_taken = (int)u.sane_count();
  r.start = u.place(); r.last = u.place();
  r.last_number = s.number - u.sane();
  r.bag_from = u.sane_count(); r.bag_to = u.sane_count();
  int64_t flags = u.num();
  r.fixed_bag = flags & 1;
  r.missed = flags & 2;
  if (r.step < 0 || r.step >= (int)rule.steps.size()) u.bad = true;
  for (size_t n = u.count(); n-- > 0 && !u.bad;) {
    Taken t{(int)u.num(), (uint32_t)r.values.size(), u.place()};
    if (t.name < 0 || t.name >= (int)rule.names.size()) { u.bad = true; break; }
    for (size_t k = 0; k < rule.names[t.name].captures.size(); k++) r.values.emplace_back(u.value());
    r.taken.push_back(t);
  }
  if (!u.bad && u.num()) {
    if (depth == (int)rule.steps.size()) u.bad = true;  // the one before stands at an earlier step
    else r.before = std::make_shared<Run>(unpack_run(s, rule, u, depth + 1));
  }
  return r;
}

}  // namespace

void Sequence::pack(const State& state, Packer& p) const {
  const Keyed& s = (const Keyed&)state;
  p.num(p.canonical ? 0 : s.number);
  for (int64_t t : s.absent) p.num(t);
  int64_t floor = std::max(s.bag_floor, s.bag.begin());
  p.num(p.canonical ? floor - s.bag.begin() : floor);
  p.num(s.bag_blocked == OPEN ? -1 : s.bag_blocked);
  p.raw(s.runs.size());
  if (!p.canonical) {
    for (auto& r : s.runs) pack_run(r, s, rule, p);
    return;
  }
  // The order in which runs came to stand in memory means nothing; a digest sorts them.
  std::vector<std::string> packed;
  for (auto& r : s.runs) {
    Packer one;
    one.canonical = true;
    pack_run(r, s, rule, one);
    packed.push_back(one.bytes);
  }
  std::sort(packed.begin(), packed.end());
  for (auto& bytes : packed) p.bytes += bytes;
}

void Sequence::unpack(State& state, Unpacker& u) const {
  Keyed& s = (Keyed&)state;
  s.number = u.sane_count();
  for (int64_t& t : s.absent) t = u.sane_or(LONG_AGO);
  s.bag_floor = u.sane_count();
  int64_t blocked = u.sane();
  s.bag_blocked = blocked < 0 ? OPEN : (int)blocked;
  for (size_t n = u.count(); n-- > 0 && !u.bad;) s.runs.push_back(unpack_run(s, rule, u, 0));
}

// Live partial matches as JSON: what each has taken and which steps may come next.
void Sequence::describe(const State& state, std::string& out) const {
  const Keyed& s = (const Keyed&)state;
  const Program& program = eval.program;
  out += "[";
  bool first = true;
  auto open = [&] { if (!first) out += ", "; first = false; out += "{"; };
  auto bind_bag = [&](Described& bound, int64_t from, int64_t to) {
    for (int64_t n = std::max(from, to - (int64_t)DESCRIBED_MOST); n < to; n++)
      bound.add(program.text(rule.names[step(0).names[0]].text), s.bag.place(n));
  };
  if (s.bag.size()) {
    open();
    out += "\"step\": ";
    write_value(out, program.text(rule.names[step(0).names[0]].text));
    out += ", \"events\": " + std::to_string(s.bag.size()) + ", \"since\": " + std::to_string(s.bag.oldest());
    Described bound(out);
    bind_bag(bound, s.bag.begin(), s.bag.end());
    bound.end();
    out += "}";
  }
  for (auto& r : s.runs) {
    open();
    out += "\"step\": ";
    write_value(out, program.text(rule.names[step(r.step).names[0]].text));
    out += ", \"events\": " + std::to_string(r.taken.size() + (size_t)(r.bag_to - r.bag_from)) + ", \"since\": " + std::to_string(r.start.time);
    if (waiting(r)) out += ", \"fires_at\": " + std::to_string(fires_at(r));
    Described bound(out);
    bind_bag(bound, std::max(r.bag_from, s.bag.begin()), r.bag_to);
    for (size_t n = r.taken.size() > DESCRIBED_MOST ? r.taken.size() - DESCRIBED_MOST : 0; n < r.taken.size(); n++)
      if (!r.is_gone(n)) bound.add(program.text(rule.names[r.taken[n].name].text), r.taken[n].place);
    bound.end();
    out += ", \"waits_for\": [";
    bool one = true;
    auto name = [&](int k) { if (!one) out += ", "; one = false; write_value(out, program.text(rule.names[step(k).names[0]].text)); };
    if (!complete(r)) name(r.step);
    else for (int k = r.step + 1; k < size_; k++) { name(k); if (!step(k).optional) break; }
    out += "]}";
  }
  out += "]";
}

}  // namespace samovar
