#include "match/program.h"

namespace samovar {
namespace {

// Words up to an end. What is not there, or is not what it must be, reads as 0 and is a fault; the first one counts.
struct Words {
  const int64_t *at, *end;
  const char* fault = nullptr;

  int64_t fail(const char* why) {
    if (!fault) fault = why;
    at = end;
    return 0;
  }
  int64_t next() { return at < end ? *at++ : fail("it is cut short"); }
  int num() {
    int64_t n = next();
    return (int)((int)n == n ? n : fail("a number is too large"));
  }
  // A count of things that take a word each at least.
  size_t count() {
    int64_t n = next();
    return (size_t)(n >= 0 && n <= end - at ? n : fail("a list is longer than the program"));
  }
  std::vector<int> list() {
    std::vector<int> out(count());
    for (int& n : out) n = num();
    return out;
  }
  std::vector<std::pair<int, int>> pairs() {
    std::vector<std::pair<int, int>> out(count());
    for (auto& p : out) { p.first = num(); p.second = num(); }
    return out;
  }
};

StepDef read_step(Words& w) {
  StepDef s;
  s.unordered = w.num(); s.optional = w.num(); s.next = w.num();
  s.nmin = w.next(); s.nmax = w.next(); s.within = w.next(); s.after = w.next();
  s.brackets = w.list(); s.names = w.list();
  return s;
}

void read_sequence(Words& w, RuleDef& r) {
  r.maxspan = w.next(); r.overlap = w.num(); r.skip = w.num();
  r.uses_next = w.num(); r.next_keyspec = w.num(); r.until = w.num();
  r.steps.resize(w.count());
  for (auto& s : r.steps) s = read_step(w);
  r.gaps.resize(r.steps.size() + 1);
  for (auto& gap : r.gaps) {
    gap.resize(w.count());
    for (auto& a : gap) { a.bracket = w.num(); a.within = w.next(); a.span = w.next(); }
  }
}

RuleDef read_rule(Words& w) {
  RuleDef r;
  r.form = w.num(); r.id = w.num(); r.version = w.num(); r.suppress = w.next();
  r.key_names = w.list();
  r.brackets.resize(w.count());
  for (auto& b : r.brackets) { b.type = w.num(); b.keyspec = w.num(); b.columns = w.list(); b.conditions = w.list(); }
  r.names.resize(w.count());
  for (auto& n : r.names) { n.text = w.num(); n.captures = w.list(); }
  r.last_captures = w.num();
  r.aggregates.resize(w.count());
  for (auto& a : r.aggregates) { a.function = w.num(); a.target = w.num(); a.slot = w.num(); }
  r.values = w.list();
  r.emit = w.pairs();
  r.message = w.pairs();
  r.having = w.num();
  if (r.form == SEQUENCE) read_sequence(w, r);
  if (r.form == AGGREGATE) { r.over = w.next(); r.repeat = w.next(); }
  if (r.form == SESSION) { r.gap = w.next(); r.max = w.next(); }
  if (r.form == WINDOW) { r.every = w.next(); r.size = w.next(); }
  return r;
}

}  // namespace

const char* Program::read(const int64_t* words, size_t n, const char* bytes, size_t size) {
  blob.assign(bytes, size);
  Words w{words, words + n};
  constants.resize(w.count());
  for (auto& c : constants) {
    c.tag = (uint32_t)w.num();
    c.i = w.next();
    int64_t length = w.next();
    if (c.tag > TEXT || length < 0 || (c.tag == BOOL && c.i != 0 && c.i != 1)) w.fail("a constant is not a value");
    if (c.tag != TEXT) continue;
    if (c.i < 0 || c.i > (int64_t)size || length > (int64_t)size - c.i) { w.fail("a text lies outside the program"); c = Value(); continue; }
    c.len = (uint32_t)length;
    c.s = blob.data() + c.i;
  }
  auto values = [&](bool texts) {
    std::vector<Value> out;
    for (int c : w.list()) {
      bool good = c >= 0 && (size_t)c < constants.size() && (!texts || constants[(size_t)c].tag == TEXT);
      if (good) out.push_back(constants[(size_t)c]);
      else w.fail("a list names a constant that is not there");
    }
    return out;
  };
  for (size_t left = w.count(); left > 0; left--) sets.emplace_back(values(false));
  for (size_t left = w.count(); left > 0; left--) patterns.emplace_back(values(true));
  fields = w.num();
  functions = w.num();
  types = w.list();
  nodes.resize(w.count());
  for (auto& node : nodes) { node.op = w.num(); node.columnar = w.num(); node.x = w.num(); node.y = w.num(); node.args = w.list(); }
  keyspecs.resize(w.count());
  for (auto& k : keyspecs) k = w.list();
  histories.resize(w.count());
  for (auto& h : histories) {
    h.name = w.num(); h.function = w.num(); h.keyspec = w.num(); h.type = w.num(); h.value = w.num(); h.where = w.num(); h.span = w.next();
  }
  rules.resize(w.count());
  for (size_t k = 0; k < rules.size(); k++) { rules[k] = read_rule(w); rules[k].index = (int)k; }
  if (w.at != w.end) w.fail("there is more behind its end");
  return w.fault ? w.fault : fault();
}

int Program::rule_reading(int node) const {
  for (auto& r : rules) {
    std::vector<char> seen(nodes.size());
    std::vector<int> left;
    auto add = [&](const std::vector<int>& more) { left.insert(left.end(), more.begin(), more.end()); };
    auto add_key = [&](int keyspec) { if (keyspec >= 0) add(keyspecs[(size_t)keyspec]); };
    for (auto& b : r.brackets) { add(b.columns); add(b.conditions); add_key(b.keyspec); }
    for (auto& n : r.names) add(n.captures);
    for (auto& e : r.emit) left.push_back(e.second);
    for (auto& m : r.message) if (m.first) left.push_back(m.second);
    add(r.values);
    left.push_back(r.having);
    while (!left.empty()) {
      int at = left.back();
      left.pop_back();
      if (at == node) return r.index;
      if (at < 0 || seen[(size_t)at]) continue;
      seen[(size_t)at] = 1;
      const Node& n = nodes[(size_t)at];
      add(n.args);
      if (n.op != HISTORY) continue;
      const History& h = histories[(size_t)n.x];
      left.push_back(h.value);
      left.push_back(h.where);
      add_key(h.keyspec);
    }
  }
  return -1;
}

}  // namespace samovar
