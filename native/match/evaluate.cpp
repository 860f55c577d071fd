#include "match/evaluate.h"

#include <algorithm>

namespace samovar {
namespace {
constexpr size_t SHORT_TEXT = 16;  // what is arranged with its value
constexpr size_t AHEAD = 32;

void set_bit(std::vector<uint64_t>& mask, size_t row) { mask[row >> 6] |= 1ull << (row & 63); }

// The rows for which the test holds, 64 at a time where the rows are all there are.
template <class Test>
void mark(std::vector<uint64_t>& out, const std::vector<uint32_t>& rows, size_t count, Test test) {
  if (rows.size() < count) {
    for (uint32_t r : rows) out[r >> 6] |= (uint64_t)test(r) << (r & 63);
    return;
  }
  for (size_t from = 0; from < count; from += 64) {
    uint64_t word = 0;
    size_t n = std::min<size_t>(64, count - from);
    for (size_t k = 0; k < n; k++) word |= (uint64_t)test(from + k) << k;
    out[from >> 6] = word;
  }
}

// A column against a literal. Numbers against a number are the usual case, then text.
void mark_compared(std::vector<uint64_t>& out, const std::vector<uint32_t>& rows, size_t count, int op, const Value* a, const Value& c) {
  auto numbers = [&](auto holds) {
    double x = c.as_double();
    mark(out, rows, count, [&](size_t r) { return a[r].tag == FLOAT ? holds(a[r].d, x) : compare(op, a[r], c).i != 0; });
  };
  if (c.is_number()) switch (op) {
    case LT: return numbers([](double v, double x) { return v < x; });
    case LE: return numbers([](double v, double x) { return v <= x; });
    case GT: return numbers([](double v, double x) { return v > x; });
    case GE: return numbers([](double v, double x) { return v >= x; });
  }
  mark(out, rows, count, [&](size_t r) { return compare(op, a[r], c).i != 0; });
}
}  // namespace

void Evaluator::begin(Batch* batch, size_t base, size_t count) {
  batch_ = batch;
  base_ = base;
  rows_ = count;
  scratch.text.clear();
  scratch.free_bytes = 0;
  size_t types = program.types.size();
  for (auto& d : done_) d.assign(types + 1, 0);
  for (auto& of_node : masks_) for (auto& m : of_node) m.clear();
  type_masks_.resize(types + 1);
  for (auto& m : type_masks_) m.assign(mask_words(), 0);
  ready_.assign(program.nodes.size(), nullptr);
  as_they_came();
  for (size_t n = 0; n < program.nodes.size(); n++) {
    if (program.nodes[n].op == FIELD) ready_[n] = batch->columns[(size_t)program.nodes[n].x].data() + base;
    if (program.nodes[n].op == TYPE) ready_[n] = batch->type.data() + base;
  }
  by_type_.resize(types);
  for (auto& rows : by_type_) rows.clear();
  all_.resize(count);
  type_of_.assign(count, -1);
  int previous = -1;
  for (size_t r = 0; r < count; r++) {
    all_[r] = (uint32_t)r;
    set_bit(type_masks_[types], r);
    if (previous < 0 || !same(type_text(r), program.text(program.types[previous]))) {
      previous = -1;
      for (size_t t = 0; t < types && previous < 0; t++) if (same(type_text(r), program.text(program.types[t]))) previous = (int)t;
      if (previous < 0) continue;
    }
    by_type_[previous].push_back((uint32_t)r);
    set_bit(type_masks_[(size_t)previous], r);
    type_of_[r] = previous;
  }
}

void Evaluator::as_they_came() {
  order_ = nullptr;
  near_.assign(program.nodes.size(), nullptr);
}

void Evaluator::arrange(const std::vector<uint64_t>& order, const std::vector<int>& nodes) {
  order_ = order.data();
  size_t n = order.size(), used = 0;
  arranged_.resize(std::max(arranged_.size(), nodes.size()));
  for (int node : nodes) {
    const Value* column = ready_[(size_t)node];
    if (!column) continue;
    auto& [values, text] = arranged_[used++];
    values.resize(n);
    for (size_t k = 0; k < n; k++) values[k] = column[(uint32_t)order[k]];
    for (size_t k = 0; k < n; k++) {
      if (k + AHEAD < n && values[k + AHEAD].tag >= TEXT) __builtin_prefetch(values[k + AHEAD].s);
      Value& v = values[k];
      if (v.tag < TEXT || v.len > SHORT_TEXT) continue;
      if (text.size() < n * SHORT_TEXT) text.resize(n * SHORT_TEXT);
      ShortText t(v.s, v.len);
      memcpy(&text[k * SHORT_TEXT], t.words, SHORT_TEXT);
      v.s = &text[k * SHORT_TEXT];
    }
    near_[(size_t)node] = values.data();
  }
}

const Value* Evaluator::column(int node, int type) {
  if (ready_[(size_t)node]) return ready_[(size_t)node];
  const Node& n = program.nodes[node];
  // A history is state: it moves on once a slice, over its own rows, anyone who asks.
  if (n.op == HISTORY) type = program.histories[n.x].type;
  auto& done = done_[node];
  auto& mark = done[type < 0 ? done.size() - 1 : (size_t)type];
  if (!done.back() && !mark) {
    if (n.op == HISTORY) columns_[node].assign(rows_, Value::nil());
    if (columns_[node].size() < rows_) columns_[node].resize(rows_);
    fill(node, type);
    mark = 1;
    if (rows_of(type).size() == rows_) ready_[(size_t)node] = columns_[node].data();
  }
  return columns_[node].data();
}

Evaluator::Argument Evaluator::argument(int node, int type) {
  const Node& n = program.nodes[(size_t)node];
  return n.op == CONST ? Argument{&program.constants[(size_t)n.x], 0} : Argument{column(node, type), 1};
}

// Which rows have a value that is in the set.
template <class Give>
void Evaluator::look_up(const LiteralSet& set, const Argument& values, const std::vector<uint32_t>& rows, Give give) {
  uint64_t hashes[64];
  for (size_t from = 0; from < rows.size(); from += 64) {
    size_t n = std::min<size_t>(64, rows.size() - from);
    const uint32_t* at = rows.data() + from;
    for (size_t k = 0; k < n; k++) { hashes[k] = hash_value(values[at[k]]); set.prefetch_slot(hashes[k]); }
    for (size_t k = 0; k < n; k++) set.prefetch_value(hashes[k]);
    for (size_t k = 0; k < n; k++) give(at[k], set.has(values[at[k]], hashes[k]));
  }
}

void Evaluator::fill(int node, int type) {
  const Node& n = program.nodes[node];
  auto& out = columns_[node];
  auto& rows = rows_of(type);
  if (n.op == CONST) { for (uint32_t r : rows) out[r] = program.constants[n.x]; return; }
  if (n.op == TIME) { for (uint32_t r : rows) out[r] = Value::integer(time_of(r)); return; }
  if (n.op == HISTORY) { histories->fill(n.x, rows, out); return; }
  std::vector<Argument> args;
  for (int a : n.args) args.push_back(argument(a, type));
  size_t count = args.size();
  if (n.op >= EQ && n.op <= GE) { for (uint32_t r : rows) out[r] = compare(n.op, args[0][r], args[1][r]); return; }
  if (n.op >= ADD && n.op <= MOD) { for (uint32_t r : rows) out[r] = arithmetic(n.op, args[0][r], args[1][r]); return; }
  if (n.op == IN && count == 1) {
    look_up(program.sets[(size_t)n.x], args[0], rows, [&](size_t r, bool found) { out[r] = Value::boolean(found); });
    return;
  }
  std::vector<Value> values(count);
  for (uint32_t r : rows) {
    row_ = r;
    for (size_t k = 0; k < count; k++) values[k] = args[k][r];
    out[r] = apply(n, values.data(), (int)count);
  }
}

const uint64_t* Evaluator::mask(int node, int type) {
  auto& of_node = masks_[(size_t)node];
  if (of_node.empty()) of_node.resize(program.types.size() + 1);
  Mask& out = of_node[type < 0 ? of_node.size() - 1 : (size_t)type];
  if (out.empty()) {
    out.assign(mask_words(), 0);
    fill_mask(node, type, out);
  }
  return out.data();
}

void Evaluator::fill_mask(int node, int type, Mask& out) {
  const Node& n = program.nodes[(size_t)node];
  if (n.op == AND || n.op == OR || n.op == NOT) {
    const uint64_t* rows = mask_of(type);
    for (size_t w = 0; n.op == AND && w < out.size(); w++) out[w] = rows[w];
    for (int a : n.args) {
      const uint64_t* part = mask(a, type);
      for (size_t w = 0; w < out.size(); w++) out[w] = n.op == AND ? out[w] & part[w] : n.op == OR ? out[w] | part[w] : rows[w] & ~part[w];
    }
    return;
  }
  auto& rows = rows_of(type);
  if (n.op >= EQ && n.op <= GE && program.nodes[(size_t)n.args[1]].op == CONST && program.nodes[(size_t)n.args[0]].op != CONST) {
    mark_compared(out, rows, rows_, n.op, column(n.args[0], type), program.constants[(size_t)program.nodes[(size_t)n.args[1]].x]);
    return;
  }
  if (n.op == IN && n.args.size() == 1) {
    look_up(program.sets[(size_t)n.x], argument(n.args[0], type), rows, [&](size_t r, bool found) { out[r >> 6] |= (uint64_t)found << (r & 63); });
    return;
  }
  const Value* values = column(node, type);
  mark(out, rows, rows_, [&](size_t r) { return values[r].is_true(); });
}

Value Evaluator::of_run(int node, Reader& reader, const RuleDef& rule, int64_t row) {
  const Node& n = program.nodes[node];
  switch (n.op) {
    case CONST: return program.constants[n.x];
    case LAST: return reader.last(n.x, n.y);
    case AGG: return reader.aggregate(rule.aggregates[n.x]);
    case LASTEVENT: return reader.last_event(n.y);
    case AND: for (int a : n.args) if (!of_run(a, reader, rule, row).is_true()) return Value::boolean(false); return Value::boolean(true);
    case OR: for (int a : n.args) if (of_run(a, reader, rule, row).is_true()) return Value::boolean(true); return Value::boolean(false);
  }
  if (n.columnar) return row < 0 ? Value::nil() : at_row(node, (size_t)row);
  size_t count = n.args.size();
  if (count == 2 && n.op >= EQ && n.op <= MOD) {
    Value a = of_run(n.args[0], reader, rule, row), b = of_run(n.args[1], reader, rule, row);
    return n.op <= GE ? compare(n.op, a, b) : arithmetic(n.op, a, b);
  }
  if (count == 1) {
    Value a = of_run(n.args[0], reader, rule, row);
    row_ = came_as(row);
    return apply(n, &a, 1);
  }
  std::vector<Value> values(count);
  for (size_t k = 0; k < count; k++) values[k] = of_run(n.args[k], reader, rule, row);
  row_ = came_as(row);
  return apply(n, values.data(), (int)count);
}

Value Evaluator::apply(const Node& n, const Value* a, int count) {
  switch (n.op) {
    case AND: for (int k = 0; k < count; k++) if (!a[k].is_true()) return Value::boolean(false); return Value::boolean(true);
    case OR: for (int k = 0; k < count; k++) if (a[k].is_true()) return Value::boolean(true); return Value::boolean(false);
    case NOT: return Value::boolean(!a[0].is_true());
    case NEG: return negate(a[0]);
    case EQ: case NE: case LT: case LE: case GT: case GE: return compare(n.op, a[0], a[1]);
    case ISNULL: return Value::boolean(a[0].is_null());
    case NOTNULL: return Value::boolean(!a[0].is_null());
    case ADD: case SUB: case MUL: case DIV: case MOD: return arithmetic(n.op, a[0], a[1]);
    case IN:
      if (n.x >= 0 && program.sets[(size_t)n.x].has(a[0])) return Value::boolean(true);
      for (int k = 1; k < count; k++) if (same(a[0], a[k])) return Value::boolean(true);
      return Value::boolean(false);
    case LIKE: return Value::boolean(a[0].tag == TEXT && program.patterns[(size_t)n.x].fits(a[0].view()));
    case CALL: return python(n, a, count);
    case COALESCE: for (int k = 0; k < count; k++) if (!a[k].is_null()) return a[k]; return Value::nil();
    case LENGTH: return a[0].tag == TEXT ? Value::integer((int64_t)characters(a[0].view())) : Value::nil();
    case STARTS: case ENDS: case CONTAINS: {
      if (a[0].tag != TEXT || a[1].tag != TEXT) return Value::nil();
      std::string_view t = a[0].view(), p = a[1].view();
      if (n.op == CONTAINS) return Value::boolean(t.find(p) != std::string_view::npos);
      if (p.size() > t.size()) return Value::boolean(false);
      return Value::boolean(n.op == STARTS ? t.substr(0, p.size()) == p : t.substr(t.size() - p.size()) == p);
    }
    case SUBSTRING: return substring(a, count);
    case CONCAT: return concat(a, count, scratch);
    case INDEX_OF: return index_of(a, count);
    case BETWEEN: return between(a, count);
    case ABS: return !a[0].is_number() ? Value::nil() : order(a[0], Value::integer(0)) < 0 ? negate(a[0]) : a[0];
    case ROUND: return rounded(a, count);
    case FLOOR: return !a[0].is_number() ? Value::nil() : a[0].tag == INT ? a[0] : whole(std::floor(a[0].d));
    case CEIL: return !a[0].is_number() ? Value::nil() : a[0].tag == INT ? a[0] : whole(std::ceil(a[0].d));
    case HOUR: return count < 2 ? hour_utc(a[0]) : python(n, a, count);
    case DAY_OF_WEEK: return count < 2 ? weekday_utc(a[0]) : python(n, a, count);
    case DISTANCE: return distance_km(a);
    case LOWER: case UPPER:
      if (a[0].tag != TEXT) return Value::nil();
      return is_ascii(a[0].view()) ? changed_case(a[0], n.op == UPPER, scratch) : python(n, a, count);
    case FOLD:
      if (a[0].tag != TEXT) return a[0];
      return is_ascii(a[0].view()) ? changed_case(a[0], false, scratch) : python(n, a, count);
  }
  return Value::nil();
}

Value Evaluator::python(const Node& n, const Value* args, int count) {
  if (failed()) return Value::nil();
  std::string key;
  put_big(key, (uint64_t)n.x, 4);
  for (int k = 0; k < count; k++) {
    key.push_back((char)args[k].tag);  // 1 and 1.0 are one key, but not one text
    encode_key(key, args[k]);
  }
  auto found = memo_.find(key);
  if (found == memo_.end()) {
    if (memo_.size() >= memo_most) memo_.clear();
    Value out;
    out.tag = UNANSWERED;
    call_(n.x, args, count, &out);
    if (out.tag == UNANSWERED) {  // not remembered: another time it may work
      failure = {(int)(&n - program.nodes.data()), rule_at_hand, key_at_hand, row_};
      return Value::nil();
    }
    found = memo_.emplace(key, Owned(out)).first;
  }
  return scratch.keep(found->second.get());
}

}  // namespace samovar
