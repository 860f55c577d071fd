// Whether a program that was read can be run: all that is named in it is there, and the engine's loops come to an end.
//
// The compiler writes no other programs. But these come as bytes, and a fault of theirs must be an error here and not
// one of memory later on.
#include <algorithm>

#include "match/program.h"

namespace samovar {
namespace {

constexpr int64_t SPAN_MOST = 1ll << 60;  // of times in ms, and of counts: two of them can be added
constexpr int DEPTH_MOST = 10000;         // of an expression: evaluation is recursive
constexpr double SIZE_MOST = 1e7;         // of an expression, where each use of a shared part counts
constexpr size_t BRACKETS_MOST = 64;      // they are bits of one word

constexpr int LEAST_ARGUMENTS[] = {
#define OP(name, word, least) least,
#include "match/opcodes.def"
};
constexpr int OPS = (int)std::size(LEAST_ARGUMENTS);

class Checker {
  const Program& p_;
  const char* fault_ = nullptr;

  void need(bool holds, const char* otherwise) {
    if (!holds && !fault_) fault_ = otherwise;
  }
  template <class Items>
  static bool has(const Items& items, int place) { return place >= 0 && (size_t)place < items.size(); }
  template <class Items>
  static bool has_or_none(const Items& items, int place) { return place == -1 || has(items, place); }
  static bool is_span(int64_t n) { return n >= 0 && n <= SPAN_MOST; }
  static bool is_span_or_none(int64_t n) { return n == -1 || is_span(n); }
  bool is_text(int constant) const { return has(p_.constants, constant) && p_.constants[(size_t)constant].tag == TEXT; }
  bool is_column(int node) const { return has(p_.nodes, node) && p_.nodes[(size_t)node].columnar; }
  bool are_columns(const std::vector<int>& nodes) const {
    return std::all_of(nodes.begin(), nodes.end(), [&](int node) { return is_column(node); });
  }

  // ---------------------------------------------------------------- nodes, keys, histories

  // An expression comes behind its parts, so that there are no circles.
  void check_nodes() {
    std::vector<int> depths;
    std::vector<double> sizes;
    for (int place = 0; place < (int)p_.nodes.size(); place++) {
      const Node& n = p_.nodes[(size_t)place];
      need(n.op >= 0 && n.op < OPS, "there is no such operator");
      if (fault_) return;
      need((int)n.args.size() >= LEAST_ARGUMENTS[n.op], "an operator has too few arguments");
      int depth = 1;
      double size = 1;
      bool columns = n.op != LAST && n.op != AGG && n.op != LASTEVENT;
      for (int a : n.args) {
        need(a >= 0 && a < place, "an expression stands before its parts");
        if (fault_) return;
        depth = std::max(depth, depths[(size_t)a] + 1);
        size += sizes[(size_t)a];
        columns = columns && p_.nodes[(size_t)a].columnar;
      }
      need(depth <= DEPTH_MOST && size <= SIZE_MOST, "an expression is too large");
      need(columns || !n.columnar, "a column reads more than one event");
      depths.push_back(depth);
      sizes.push_back(size);
      check_operand(n, place);
    }
  }
  void check_operand(const Node& n, int place) {
    switch (n.op) {
      case CONST: need(has(p_.constants, n.x), "a constant is not there"); break;
      case FIELD: need(n.x >= 0 && n.x < p_.fields, "a field is not there"); break;
      case IN: need(n.args.size() == 1 ? has(p_.sets, n.x) : has_or_none(p_.sets, n.x), "a list is not there"); break;
      case LIKE: need(has(p_.patterns, n.x), "a list is not there"); break;
      case CALL: case HOUR: case DAY_OF_WEEK: case LOWER: case UPPER: case FOLD:
        need(n.x >= 0 && n.x < p_.functions, "a function is not there");
        break;
      case HISTORY: {
        need(has(p_.histories, n.x), "a history is not there");
        if (fault_) return;
        const History& h = p_.histories[(size_t)n.x];
        need(h.value < place && h.where < place, "a history stands before its parts");
        if (has(p_.keyspecs, h.keyspec)) for (int k : p_.keyspecs[(size_t)h.keyspec]) need(k < place, "a history stands before its parts");
      }
    }
  }
  void check_histories() {
    for (auto& h : p_.histories) {
      need(is_text(h.name), "a name is not text");
      need(h.function >= A_COUNT && h.function <= A_PREV, "there is no such aggregate");
      need(has_or_none(p_.keyspecs, h.keyspec), "a key is not there");
      need(has_or_none(p_.types, h.type), "an event type is not there");
      need((h.value == -1 || is_column(h.value)) && (h.where == -1 || is_column(h.where)), "a history reads no column");
      need(is_span(h.span), "a time is out of range");
    }
  }

  // ---------------------------------------------------------------- rules

  void check_rule(const RuleDef& r) {
    need(r.form >= SEQUENCE && r.form <= WINDOW, "there is no such form");
    need(is_text(r.id) && is_text(r.version), "a name is not text");
    need(is_span_or_none(r.suppress), "a time is out of range");
    for (int name : r.key_names) need(is_text(name), "a name is not text");
    need(!r.brackets.empty() && r.brackets.size() <= BRACKETS_MOST, "a rule has no brackets, or too many");
    for (auto& b : r.brackets) {
      need(has_or_none(p_.types, b.type), "an event type is not there");
      need(has_or_none(p_.keyspecs, b.keyspec), "a key is not there");
      need(are_columns(b.columns), "a condition is not a column");
    }
    need(!r.names.empty(), "a rule has no steps");
    need(r.last_captures >= 0, "a value is not there");
    for (auto& n : r.names) {
      need(is_text(n.text), "a name is not text");
      need(are_columns(n.captures), "what is kept is not a column");
      need(r.form != SEQUENCE || (int)n.captures.size() >= r.last_captures, "a value is not there");
    }
    need(are_columns(r.values), "what is kept is not a column");
    need(r.form == SEQUENCE || (int)r.values.size() >= r.last_captures, "a value is not there");
    for (auto& a : r.aggregates) check_aggregate(r, a);
    if (r.form == SEQUENCE) check_sequence(r);
    if (r.form == AGGREGATE) need(is_span(r.over) && is_span_or_none(r.repeat) && r.having >= 0, "a window is out of range");
    if (r.form == SESSION) need(is_span(r.gap) && is_span_or_none(r.max), "a time is out of range");
    if (r.form == WINDOW) need(is_span(r.size) && is_span(r.every) && r.every > 0, "a time is out of range");
    if (!fault_) check_expressions(r);
  }
  void check_aggregate(const RuleDef& r, const AggRef& a) {
    need(a.function >= A_COUNT && a.function <= A_VALUES, "there is no such aggregate");
    need(r.form == SEQUENCE ? has(r.names, a.target) : has_or_none(r.brackets, a.target), "a step is not there");
    if (fault_) return;
    const std::vector<int>& kept = r.form == SEQUENCE ? r.names[(size_t)a.target].captures : r.values;
    need(a.slot == -1 ? a.function == A_COUNT : has(kept, a.slot), "a value is not there");
  }
  void check_sequence(const RuleDef& r) {
    need(is_span(r.maxspan), "a time is out of range");
    need(r.overlap >= LATEST && r.overlap <= ANY && r.skip >= PAST_LAST && r.skip <= SKIP_NONE, "there is no such overlap");
    need(has_or_none(p_.keyspecs, r.next_keyspec), "a key is not there");
    need(has_or_none(r.brackets, r.until), "a bracket is not there");
    need(std::any_of(r.steps.begin(), r.steps.end(), [](const StepDef& s) { return !s.optional; }), "all steps are optional");
    for (auto& s : r.steps) {
      need(s.nmin >= 1 && s.nmax >= s.nmin && s.nmax <= SPAN_MOST, "a count is out of range");
      need(is_span_or_none(s.within) && is_span_or_none(s.after), "a time is out of range");
      need(!s.brackets.empty() && s.brackets.size() <= BRACKETS_MOST, "a step has no brackets, or too many");
      need(s.unordered ? s.names.size() == s.brackets.size() : !s.names.empty(), "a step has no name");
      for (int b : s.brackets) need(has(r.brackets, b), "a bracket is not there");
      for (int n : s.names) need(has(r.names, n), "a step is not there");
    }
    for (auto& gap : r.gaps) for (auto& a : gap)
      need(has(r.brackets, a.bracket) && is_span_or_none(a.within) && is_span_or_none(a.span), "an absence is out of range");
  }

  // What is evaluated over a run: its leaves are the rule's own.
  void check_expressions(const RuleDef& r) {
    std::vector<char> seen(p_.nodes.size());
    std::vector<int> left;
    for (auto& b : r.brackets) left.insert(left.end(), b.conditions.begin(), b.conditions.end());
    for (auto& [name, node] : r.emit) {
      need(is_text(name), "a name is not text");
      left.push_back(node);
    }
    for (auto& [kind, what] : r.message) {
      if (kind) left.push_back(what);
      else need(is_text(what), "a message is not text");
    }
    if (r.having != -1) left.push_back(r.having);
    while (!left.empty() && !fault_) {
      int place = left.back();
      left.pop_back();
      need(has(p_.nodes, place), "an expression is not there");
      if (fault_ || seen[(size_t)place]) continue;
      seen[(size_t)place] = 1;
      const Node& n = p_.nodes[(size_t)place];
      if (n.op == LAST) need(r.form == SEQUENCE && has(r.names, n.x) && has(r.names[(size_t)n.x].captures, n.y), "a value is not there");
      if (n.op == AGG) need(has(r.aggregates, n.x), "an aggregate is not there");
      if (n.op == LASTEVENT) need(n.y >= 0 && n.y < r.last_captures, "a value is not there");
      left.insert(left.end(), n.args.begin(), n.args.end());
    }
  }

 public:
  explicit Checker(const Program& p) : p_(p) {}
  const char* fault() {
    need(p_.fields >= 0 && p_.functions >= 0, "a count is out of range");
    for (int type : p_.types) need(is_text(type), "a name is not text");
    check_nodes();
    for (auto& key : p_.keyspecs) need(are_columns(key), "a key is not a column");
    check_histories();
    for (auto& r : p_.rules) if (!fault_) check_rule(r);
    return fault_;
  }
};

}  // namespace

const char* Program::fault() const { return Checker(*this).fault(); }

}  // namespace samovar
