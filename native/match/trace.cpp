#include "match/trace.h"

#include "match/runner.h"

namespace samovar {
namespace {

void write_leaves(std::string& out, int node, Evaluator& eval, Reader& reader, const RuleDef& rule, int64_t row, bool& first) {
  const Node& n = eval.program.nodes[(size_t)node];
  switch (n.op) {
    case FIELD: case TIME: case TYPE: case HISTORY: case LAST: case AGG: case LASTEVENT:
      if (!first) out += ", ";
      first = false;
      write_value(out, eval.of_run(node, reader, rule, row));
      return;
  }
  for (int a : n.args) write_leaves(out, a, eval, reader, rule, row, first);
}

}  // namespace

void Trace::begin(const char* what, int64_t event) {
  notes += "{\"what\": \"";
  notes += what;
  notes += "\", \"rule\": " + std::to_string(rule) + ", \"event\": " + std::to_string(event);
}
void Trace::part(const char* name, int64_t value) { raw_part(name) += std::to_string(value); }
std::string& Trace::raw_part(const char* name) {
  notes += ", \"";
  notes += name;
  notes += "\": ";
  return notes;
}

void Runner::note_reads(int node, Reader& reader, int64_t row) {
  std::string& out = trace->raw_part("read");
  bool first = true;
  out += "[";
  write_leaves(out, node, eval, reader, rule, row, first);
  out += "]";
}

// An event of the traced key; where the form is not a sequence, also which condition kept it out of a bracket.
void Runner::note_event(const Event& e) {
  trace->plain("event", e.place.offset);
  if (rule.form == SEQUENCE) return;
  struct Nothing final : Reader {
    Value last(int, int) override { return Value::nil(); }
    Value aggregate(const AggRef&) override { return Value::nil(); }
    Value last_event(int) override { return Value::nil(); }
  } nothing;
  for (size_t b = 0; b < rule.brackets.size(); b++) {
    const BracketDef& d = rule.brackets[b];
    if ((e.brackets >> b & 1) || (d.type >= 0 && d.type != eval.type_of(e.row))) continue;
    for (size_t c = 0; c < d.columns.size(); c++) {
      if (eval.at_row(d.columns[c], e.row).is_true()) continue;
      trace->begin("condition", e.place.offset);
      trace->part("step", -1);
      trace->part("bracket", (int64_t)b);
      trace->part("target", (int64_t)b);
      trace->part("index", (int64_t)c);
      note_reads(d.columns[c], nothing, (int64_t)e.row);
      trace->end();
      break;
    }
  }
}

void Runner::note_having(const char* what, int64_t event, Reader& reader, int64_t row, int64_t start, int64_t count, bool armed) {
  trace->begin(what, event);
  trace->part("start", start);
  trace->part("count", count);
  trace->part("armed", armed);
  trace->raw_part("conjuncts") += "[";
  std::vector<int> parts;
  if (rule.having >= 0) {
    const Node& n = eval.program.nodes[(size_t)rule.having];
    if (n.op == AND) parts = n.args; else parts = {rule.having};
  }
  for (size_t k = 0; k < parts.size(); k++) {
    trace->notes += k ? ", {\"holds\": " : "{\"holds\": ";
    trace->notes += eval.of_run(parts[k], reader, rule, row).is_true() ? "true" : "false";
    note_reads(parts[k], reader, row);
    trace->notes += "}";
  }
  trace->notes += "]";
  trace->end();
}

}  // namespace samovar
