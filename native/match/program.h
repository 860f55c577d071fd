// The compiled rules as tables: immutable, shared by every run. Made by compile.py, which writes them as a list of whole
// numbers (and one block of text); `Program::read` is the other half of that format and must change together with it.
#pragma once
#include <string>
#include <vector>

#include "match/ops.h"
#include "match/sets.h"
#include "util/value.h"

namespace samovar {

// One node of an expression. Columnar nodes read one event only and are evaluated once a batch, for all rules.
struct Node {
  int op = 0;
  bool columnar = false;
  int x = 0, y = 0;  // CONST, FIELD, HISTORY, AGG: index; LAST: name, slot; LASTEVENT: slot; CALL: function;
                     // IN: the set of its literals, or -1; LIKE: its patterns
  std::vector<int> args;
};

struct History {
  int name, function, keyspec, type, value, where;
  int64_t span;
};

enum AggFunction : int {
#define AGGREGATE(name, word) A_##name,
#include "match/opcodes.def"
};

struct AggRef {
  int function;
  int target;  // sequence: a name; else a bracket, or -1 for all
  int slot;    // which captured value; -1 for count
};

struct BracketDef {
  int type;     // -1: any
  int keyspec;  // -1: belongs to no key
  std::vector<int> columns;     // conjuncts over one event
  std::vector<int> conditions;  // conjuncts that read other steps
};

struct NameDef {
  int text;
  std::vector<int> captures;  // nodes whose values are kept of each event taken
};

struct Absence {
  int bracket;
  int64_t within, span;  // `within` of a last one, `for` of a first one; -1 where not given
};

struct StepDef {
  bool unordered, optional, next;
  int64_t nmin, nmax;
  int64_t within, after;
  std::vector<int> brackets, names;
  bool repeated() const { return nmin != 1 || nmax != 1; }
  uint64_t full() const { return brackets.size() >= 64 ? ~0ull : (1ull << brackets.size()) - 1; }
};

enum Form : int { SEQUENCE, AGGREGATE, SESSION, WINDOW };
enum Overlap : int { LATEST, ALL, ANY };
enum Skip : int { PAST_LAST, TO_NEXT, SKIP_NONE };

struct RuleDef {
  int index = 0;
  int form, id, version;
  int64_t suppress;
  std::vector<int> key_names;
  std::vector<BracketDef> brackets;
  std::vector<NameDef> names;
  int last_captures;               // the last so many captures of each name are what `emit` reads of the last event
  std::vector<AggRef> aggregates;
  std::vector<int> values;         // forms other than sequence: nodes whose values are kept of each event taken
  std::vector<std::pair<int, int>> emit;
  std::vector<std::pair<int, int>> message;  // (0, text) or (1, node)
  int having;
  // sequence
  int64_t maxspan = 0;
  int overlap = 0, skip = 0;
  bool uses_next = false;
  int next_keyspec = -1;           // whose events all count for `next`
  int until = -1;
  std::vector<StepDef> steps;
  std::vector<std::vector<Absence>> gaps;  // gaps[g]: absences between step g-1 and step g
  // other forms
  int64_t over = 0, repeat = -1, gap = 0, max = -1, every = 0, size = 0;
};

struct Program {
  std::string blob;
  std::vector<Value> constants;
  std::vector<LiteralSet> sets;
  std::vector<Patterns> patterns;
  int fields = 0, functions = 0;
  std::vector<int> types;
  std::vector<Node> nodes;
  std::vector<std::vector<int>> keyspecs;
  std::vector<History> histories;
  std::vector<RuleDef> rules;

  Value text(int constant) const { return constants[constant]; }
  // Null, or why these `n` words and `size` bytes of text are not a program; it is then of no use.
  const char* read(const int64_t* words, size_t n, const char* bytes, size_t size);
  const char* fault() const;         // program_check.cpp: whether all that is named in it is there
  int rule_reading(int node) const;  // the first of them; -1: none
};

}  // namespace samovar
