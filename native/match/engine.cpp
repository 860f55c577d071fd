#include "match/engine.h"

#include <time.h>

#include <tuple>

#include "util/boundary.h"

namespace samovar {
namespace {

// Read once a rule and slice, not once an event: some 25 ns each.
struct Stopwatch {
  int64_t then = now();
  static int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
  }
  void lap(int64_t& sum) {
    int64_t at = now();
    sum += at - then;
    then = at;
  }
};

constexpr int64_t UNKNOWN = -2, NO_KEY = -1;
constexpr size_t AHEAD = 24;    // how far looking for keys and states goes before using them
constexpr size_t SLICE_BYTES = 128 << 20, SLICE_LEAST = 4096;

uint64_t starting_brackets(const RuleDef& r) {
  if (r.form != SEQUENCE) return ~0ull;
  uint64_t bits = 0;
  for (auto& a : r.gaps[0]) bits |= 1ull << a.bracket;
  for (auto& s : r.steps) {
    for (int b : s.brackets) bits |= 1ull << b;
    if (!s.optional) break;
  }
  return bits;
}

// The key of all brackets, or -1 where they have different ones.
int only_keyspec(const RuleDef& r) {
  int keyspec = r.brackets[0].keyspec;
  bool one = !r.uses_next || r.next_keyspec == keyspec;
  for (auto& d : r.brackets) one = one && d.keyspec == keyspec;
  return one ? keyspec : -1;
}

template <class F>
void each_bit(const std::vector<uint64_t>& mask, F f) {
  for (size_t w = 0; w < mask.size(); w++)
    for (uint64_t left = mask[w]; left; left &= left - 1) f(w * 64 + (size_t)__builtin_ctzll(left));
}
void set_bit(std::vector<uint64_t>& mask, size_t k) { mask[k >> 6] |= 1ull << (k & 63); }
bool has_bit(const std::vector<uint64_t>& mask, size_t k) { return mask[k >> 6] >> (k & 63) & 1; }

// Nodes that a column of values may be made for: not what is there already, nor what is a mask.
size_t most_columns(const Program& program) {
  size_t count = 0;
  for (auto& n : program.nodes) {
    bool there = n.op == CONST || n.op == FIELD || n.op == TYPE;
    bool is_mask = (n.op >= AND && n.op <= NOT) || (n.op == IN && n.args.size() == 1) || (n.op >= EQ && n.op <= GE && program.nodes[(size_t)n.args[1]].op == CONST);
    count += n.columnar && !there && !is_mask;
  }
  return count;
}

// Columns that a rule keeps of events or compares with what it kept.
std::vector<int> reads_of(const Program& program, const RuleDef& r) {
  std::vector<int> out;
  auto add = [&](int node) {
    if (program.nodes[(size_t)node].op != CONST && std::find(out.begin(), out.end(), node) == out.end()) out.push_back(node);
  };
  std::vector<int> left;
  for (auto& b : r.brackets) left.insert(left.end(), b.conditions.begin(), b.conditions.end());
  while (!left.empty()) {
    const Node& n = program.nodes[(size_t)left.back()];
    if (n.columnar) add(left.back());
    left.pop_back();
    if (!n.columnar) left.insert(left.end(), n.args.begin(), n.args.end());
  }
  for (int node : r.values) add(node);
  for (auto& name : r.names) for (int node : name.captures) add(node);
  return out;
}

std::unique_ptr<Runner> make_runner(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) {
  switch (r.form) {
    case SEQUENCE: return sequence_runner(r, e, k, l);
    case AGGREGATE: return aggregate_runner(r, e, k, l);
    case SESSION: return session_runner(r, e, k, l);
    default: return window_runner(r, e, k, l);
  }
}

}  // namespace

Engine::Engine(const Program& program, PythonCall call, Limits limits)
    : program_(program), limits_(limits), eval_(program, call), key_cache_(program.keyspecs.size()) {
  eval_.histories = this;
  budget.describe = describe_mark;
  budget.describes = this;
  mark_text_.reserve(4096);
  for (auto& r : program.rules) {
    runners.push_back(make_runner(r, eval_, keys_, limits_));
    runners.back()->out = &matches;
    runners.back()->topics = &topics;
    runners.back()->budget = &budget;
    runners.back()->texts = &texts;
    runners.back()->defers = &defers;
    std::string name = std::string(program.text(r.id).view()) + "@" + std::string(program.text(r.version).view());
    stores_.push_back({runners.back().get(), name, {}, {}});
    int keyspec = only_keyspec(r);
    auto same = std::find_if(together_.begin(), together_.end(), [&](auto& t) { return t.keyspec == keyspec; });
    if (same == together_.end()) same = together_.insert(same, {keyspec, {}});
    same->rules.push_back((size_t)r.index);
    reads_.push_back(reads_of(program, r));
  }
  columns_ = most_columns(program) + 2 * (size_t)program.fields;
  for (auto& h : program.histories) {
    histories_.push_back(std::make_unique<HistoryKeeper>(h, limits_, history_counters));
    stores_.push_back({histories_.back().get(), std::string(program.text(h.name).view()), {}, {}});
  }
}

Engine::~Engine() {
  for (auto& s : stores_) s.states.each([&](uint32_t, State* state) { s.keeper->discard(state); });
}

// For the mark, with no memory to be had: the rule's id, a line end, and the key's bytes.
const char* Engine::describe_mark(void* self, int rule, uint32_t key, size_t* size) {
  Engine& e = *(Engine*)self;
  std::string_view id = e.program_.text(e.program_.rules[(size_t)rule].id).view();
  const std::string& bytes = e.keys_.bytes(key);
  size_t room = e.mark_text_.capacity() - 1;
  e.mark_text_.assign(id.substr(0, room));
  if (e.mark_text_.size() + 1 + bytes.size() <= room) e.mark_text_.append("\n").append(bytes);
  *size = e.mark_text_.size();
  return e.mark_text_.data();
}

// Nothing is worked on any more. These states may be half way through a change: they can only be thrown away.
void Engine::run_out_of_memory() {
  release_reserve();
  budget.verdict = Budget::NO_MEMORY;
  done([&] { blame(); });
  budget.write_mark();
}

// Memory that ran out while no rule was at work: the one with most to tell took it.
void Engine::blame() {
  if (budget.rule >= 0 || matches.empty()) return;
  std::vector<size_t> bytes(runners.size());
  const Match* largest = nullptr;
  for (auto& m : matches) {
    size_t& sum = bytes[(size_t)m.rule];
    sum += m.line.size();
    if (!largest || sum > bytes[(size_t)largest->rule]) largest = &m;
  }
  budget.rule = largest->rule;
  budget.key = keys_.find_or_add(largest->key);
}

bool Engine::step(Batch& batch, size_t from, size_t to, int64_t watermark) {
  budget.begin_step();
  texts.clear();
  matches = std::move(held_);
  held_.clear();
  // Long slices give a key more events at a time; but all columns of a slice are held at once.
  size_t fitting = std::max(SLICE_BYTES / (sizeof(Value) * (columns_ + 1)), SLICE_LEAST), base = from;
  size_t slice = std::min(fitting, (size_t)sizes.slice);
  do {
    size_t count = std::min(slice, to - base);
    step_slice(batch, base, count);
    base += count;
  } while (base < to && !gave_up());
  Stopwatch watch;
  for (size_t k = 0; k < stores_.size() && !gave_up(); k++) {
    eval_.rule_at_hand = k < runners.size() ? (int)k : -1;
    advance(stores_[k], watermark);
    if (k < runners.size()) watch.lap(runners[k]->counters.ns);
  }
  eval_.rule_at_hand = -1;
  if (!gave_up()) {
    budget.rule = -1;
    keys_.sweep();
    sort_matches();
  }
  if (gave_up()) return false;
  if (!hold) return true;
  while (!order.empty() && matches[order.back()].at >= watermark) {
    held_.push_back(std::move(matches[order.back()]));
    order.pop_back();
  }
  std::reverse(held_.begin(), held_.end());  // ties stay in the order in which they were found
  return true;
}

Engine::Failure Engine::failure() {
  const Evaluator::Failure& f = eval_.failure;
  Failure out;
  out.rule = f.rule >= 0 ? f.rule : program_.rule_reading(f.node);
  out.has_event = f.row >= 0;
  if (out.has_event) out.event = eval_.place_of((size_t)f.row);
  if (f.key >= 0) out.key = keys_.bytes((uint32_t)f.key);
  else if (out.has_event && out.rule >= 0) {
    eval_.as_they_came();
    for (auto& b : program_.rules[(size_t)out.rule].brackets) {
      if (b.keyspec < 0 || (b.type >= 0 && b.type != eval_.type_of((size_t)f.row))) continue;
      bool good = true;
      out.key.clear();
      for (int node : program_.keyspecs[(size_t)b.keyspec]) good = good && encode_key(out.key, eval_.at_row(node, (size_t)f.row));
      if (good) break;
      out.key.clear();
    }
  }
  return out;
}

void Engine::sort_matches() {
  order.resize(matches.size());
  for (uint32_t k = 0; k < order.size(); k++) order[k] = k;
  std::sort(order.begin(), order.end(), [&](uint32_t x, uint32_t y) {
    const Match &a = matches[x], &b = matches[y];
    if (a.at != b.at) return a.at < b.at;
    // Place as in the input: of matches made by timers at one moment, the one whose last event was read first.
    if (a.last.source != b.last.source) return a.last.source < b.last.source;
    if (a.last.offset != b.last.offset) return a.last.offset < b.last.offset;
    if (a.rule != b.rule) return a.rule < b.rule;
    if (events_first(a.events, b.events)) return true;
    if (events_first(b.events, a.events)) return false;
    // The same events in other steps: they were found in their order, step by step.
    return a.key != b.key ? a.key < b.key : x < y;
  });
}

void Engine::step_slice(Batch& batch, size_t base, size_t count) {
  eval_.begin(&batch, base, count);
  for (auto& cache : key_cache_) cache.assign(count, UNKNOWN);
  for (size_t n = 0; n < program_.nodes.size(); n++) if (program_.nodes[n].op == HISTORY) eval_.column((int)n, -1);
  if (!count) return;
  if (tracing) {  // a person reads the notes: rule by rule, as they were given
    for (size_t k = 0; k < runners.size(); k++) run({only_keyspec(runners[k]->rule), {k}});
    return;
  }
  for (auto& t : together_) if (!budget.over()) run(t);
}

int64_t Engine::key_of(int keyspec, size_t row) {
  if (keyspec < 0) return NO_KEY;
  int64_t& cached = key_cache_[(size_t)keyspec][row];
  if (cached != UNKNOWN) return cached;
  scratch_key_.clear();
  for (int node : program_.keyspecs[(size_t)keyspec])
    if (!encode_key(scratch_key_, eval_.at_row(node, row))) return cached = NO_KEY;
  return cached = keys_.find_or_add(scratch_key_);
}

void Engine::resolve_keys(int keyspec) {
  auto& nodes = program_.keyspecs[(size_t)keyspec];
  auto& cache = key_cache_[(size_t)keyspec];
  if (nodes.size() != 1) { for (uint32_t row : rows_) key_of(keyspec, row); return; }
  for (size_t from = 0; from < rows_.size(); from += AHEAD)
    resolve_texts(nodes[0], cache, rows_.data() + from, std::min(AHEAD, rows_.size() - from));
}

// Keys of one field; almost all of them are text. Memory is slow, so what will be needed is asked for before it is used.
void Engine::resolve_texts(int node, std::vector<int64_t>& cache, const uint32_t* rows, size_t n) {
  Value values[AHEAD];
  uint64_t hashes[AHEAD];
  for (size_t k = 0; k < n; k++) {
    if (cache[rows[k]] != UNKNOWN) continue;
    values[k] = eval_.at_row(node, rows[k]);
    if (values[k].tag != TEXT) continue;
    hashes[k] = KeyTable::hash_text(values[k]);
    keys_.prefetch_slot(hashes[k]);
  }
  for (size_t k = 0; k < n; k++) if (cache[rows[k]] == UNKNOWN && values[k].tag == TEXT) keys_.prefetch_entry(hashes[k]);
  for (size_t k = 0; k < n; k++) {
    int64_t& cached = cache[rows[k]];
    if (cached != UNKNOWN) continue;
    if (values[k].tag == TEXT) cached = keys_.find_text(values[k], hashes[k]);
    if (cached >= 0) continue;
    scratch_key_.clear();
    cached = encode_key(scratch_key_, values[k]) ? (int64_t)keys_.find_or_add(scratch_key_) : NO_KEY;
  }
}

// Which brackets of the rule each row fits, as far as the event alone decides, and which rows the rule must see.
void Engine::find_relevant(const RuleDef& rule) {
  size_t words = eval_.mask_words();
  fits_.clear();
  joined_.resize(std::max(joined_.size(), rule.brackets.size()));
  relevant_.assign(words, 0);
  for (size_t b = 0; b < rule.brackets.size(); b++) {
    const BracketDef& d = rule.brackets[b];
    const uint64_t* fits = d.columns.empty() ? eval_.mask_of(d.type) : eval_.mask(d.columns[0], d.type);
    if (d.columns.size() > 1) {
      joined_[b].assign(fits, fits + words);
      for (size_t k = 1; k < d.columns.size(); k++) {
        const uint64_t* more = eval_.mask(d.columns[k], d.type);
        for (size_t w = 0; w < words; w++) joined_[b][w] &= more[w];
      }
      fits = joined_[b].data();
    }
    fits_.push_back(fits);
    for (size_t w = 0; w < words; w++) relevant_[w] |= fits[w];
  }
  if (rule.uses_next) relevant_.assign(eval_.mask_of(-1), eval_.mask_of(-1) + words);
  for (size_t w = 0; w < share_rows_.size(); w++) relevant_[w] &= share_rows_[w];
  if (tracing) for (size_t r = 0; r < eval_.rows(); r++) if (concerns_traced(rule, r)) set_bit(relevant_, r);
}

// Whether a row has a key of the share; one without a key is of the first.
bool Engine::in_share(int keyspec, size_t row) {
  auto& nodes = program_.keyspecs[(size_t)keyspec];
  if (nodes.size() == 1)
    if (const Value& v = eval_.at_row(nodes[0], row); v.tag == TEXT) return share.has(KeyTable::hash_text(v));
  scratch_key_.clear();
  for (int node : nodes) if (!encode_key(scratch_key_, eval_.at_row(node, row))) return share.first == 0;
  return share.has(KeyTable::hash(scratch_key_));
}

void Engine::hash_keys(Batch& batch, int keyspec, uint64_t* out) {
  size_t slice = (size_t)std::min(sizes.cold, sizes.slice);
  std::string key;
  for (size_t base = 0; base < batch.rows; base += slice) {
    size_t count = std::min(slice, batch.rows - base);
    eval_.begin(&batch, base, count);
    for (size_t row = 0; row < count; row++) {
      key.clear();
      bool good = true;
      for (int node : program_.keyspecs[(size_t)keyspec]) good = good && encode_key(key, eval_.at_row(node, row));
      out[base + row] = good ? std::max<uint64_t>(KeyTable::hash(key), 1) : 0;
    }
  }
}

void Engine::run(const Together& t) {
  share_rows_.clear();
  if (t.keyspec >= 0) {
    wanted_.assign(eval_.mask_words(), 0);
    times_read_.assign(program_.nodes.size(), 0);
    for (size_t k : t.rules) {
      eval_.rule_at_hand = (int)k;
      find_relevant(runners[k]->rule);
      size_t rows = 0;
      for (size_t w = 0; w < wanted_.size(); w++) {
        wanted_[w] |= relevant_[w];
        rows += (size_t)__builtin_popcountll(relevant_[w]);
      }
      for (int node : reads_[k]) times_read_[(size_t)node] += rows;
    }
    eval_.rule_at_hand = -1;
    if (!share.is_whole()) {
      share_rows_.assign(wanted_.size(), 0);
      each_bit(wanted_, [&](size_t row) { if (in_share(t.keyspec, row)) set_bit(share_rows_, row); });
      wanted_ = share_rows_;
    }
    rows_.clear();
    each_bit(wanted_, [&](size_t row) { rows_.push_back((uint32_t)row); });
    if (rows_.empty()) return;
    resolve_keys(t.keyspec);
    group_by_key(t.keyspec);
  }
  Stopwatch watch;
  for (size_t k : t.rules) {
    if (gave_up()) break;
    Runner& runner = *runners[k];
    eval_.rule_at_hand = (int)k;
    uint64_t starting = starting_brackets(runner.rule);
    find_relevant(runner.rule);
    if (t.keyspec < 0) { run_many_keys(stores_[k], runner, starting); watch.lap(runner.counters.ns); continue; }
    pick(stores_[k], runner.rule, t.keyspec, starting);
    if (k == t.rules[0] && !tracing) arrange();
    run_one_key(stores_[k], runner, starting);
    watch.lap(runner.counters.ns);
  }
  eval_.rule_at_hand = -1;
  eval_.as_they_came();
}

// Columns that are read often are put in the order of keys. What `having` and `emit` read of few events is not.
void Engine::arrange() {
  std::vector<int> nodes;
  for (size_t n = 0; n < times_read_.size(); n++) if (times_read_[n] > by_key_.size() / 4) nodes.push_back((int)n);
  eval_.arrange(by_key_, nodes);
}

// Rows by key, rows of a key in order: a state is then looked up and brought near once, however many events it gets.
// A radix sort over as many bits as there are keys.
void Engine::group_by_key(int keyspec) {
  auto& keys = key_cache_[(size_t)keyspec];
  by_key_.clear();
  uint64_t most = 0;
  for (uint32_t row : rows_) {
    uint64_t key = (uint64_t)(keys[row] + 1);
    most = std::max(most, key);
    by_key_.push_back(key << 32 | row);
  }
  constexpr int BITS = 11;
  spare_.resize(by_key_.size());
  for (int shift = 0; most >> shift; shift += BITS) {
    uint32_t counts[(1 << BITS) + 1] = {};
    for (uint64_t g : by_key_) counts[((g >> 32 >> shift) & ((1 << BITS) - 1)) + 1]++;
    for (int k = 0; k < 1 << BITS; k++) counts[k + 1] += counts[k];
    for (uint64_t g : by_key_) spare_[counts[(g >> 32 >> shift) & ((1 << BITS) - 1)]++] = g;
    by_key_.swap(spare_);
  }
  rank_.resize(eval_.rows());
  places_.resize(by_key_.size());
  for (uint32_t k = 0; k < by_key_.size(); k++) {
    if (k + AHEAD < by_key_.size()) eval_.prefetch_place((uint32_t)by_key_[k + AHEAD]);
    uint32_t row = (uint32_t)by_key_[k];
    rank_[row] = k;
    places_[k] = eval_.place_of(row);
  }
  ranks_.assign((by_key_.size() + 63) / 64, 0);
}

// Of the relevant rows, those that cannot start anything are of no use to a key that has nothing.
void Engine::leave_out_idle(const Store& store, int keyspec, uint64_t starting) {
  auto& keys = key_cache_[(size_t)keyspec];
  Mask& starts = wanted_;  // done with
  starts.assign(relevant_.size(), 0);
  for (size_t b = 0; b < fits_.size(); b++)
    for (size_t w = 0; (starting >> b & 1) && w < starts.size(); w++) starts[w] |= fits_[b][w] & relevant_[w];
  starting_keys_.resize(std::max(starting_keys_.size(), ((by_key_.back() >> 32) >> 6) + 1));
  each_bit(starts, [&](size_t row) { set_bit(starting_keys_, (size_t)(keys[row] + 1)); });
  set_bit(starting_keys_, 0);  // events without a key are counted
  for (size_t w = 0; w < relevant_.size(); w++) {
    for (uint64_t left = relevant_[w] & ~starts[w]; left; left &= left - 1) {
      int64_t key = keys[w * 64 + (size_t)__builtin_ctzll(left)];
      if (!has_bit(starting_keys_, (size_t)(key + 1)) && !store.states.has((uint32_t)key)) relevant_[w] &= ~(left & -left);
    }
  }
  each_bit(starts, [&](size_t row) { starting_keys_[(size_t)(keys[row] + 1) >> 6] = 0; });
  starting_keys_[0] = 0;
}

// The rows for a rule in the order of by_key_: each marks its place there, and the marks are read off.
void Engine::pick(const Store& store, const RuleDef& rule, int keyspec, uint64_t starting) {
  uint64_t all = rule.brackets.size() >= 64 ? ~0ull : (1ull << rule.brackets.size()) - 1;
  if ((starting & all) != all && !rule.uses_next && !tracing) leave_out_idle(store, keyspec, starting);
  picked_.clear();
  each_bit(relevant_, [&](size_t row) { set_bit(ranks_, rank_[row]); });
  keys_at_.clear();
  each_bit(ranks_, [&](size_t at) {
    uint32_t key = (uint32_t)(by_key_[at] >> 32);
    if (keys_at_.empty() || keys_at_.back().first != key) keys_at_.push_back({key, (uint32_t)picked_.size()});
    picked_.push_back((uint32_t)at);
  });
  std::fill(ranks_.begin(), ranks_.end(), 0);
}

// Memory is slow: what a key will need is asked for some keys before. First the state's place in its table, then the
// state, then the events that it holds.
void Engine::run_one_key(Store& store, Runner& runner, uint64_t starting) {
  size_t n = keys_at_.size();
  keys_at_.push_back({0, (uint32_t)picked_.size()});
  auto state_at = [&](size_t at) { return keys_at_[at].first ? store.states.find(keys_at_[at].first - 1) : nullptr; };
  for (size_t k = 0; k < n + AHEAD; k++) {
    if (k < n && keys_at_[k].first) store.states.prefetch(keys_at_[k].first - 1);
    if (size_t at = k - AHEAD / 3; at < n) if (State* s = state_at(at)) runner.near(s);
    if (size_t at = k - AHEAD * 2 / 3; at < n) if (State* s = state_at(at)) runner.prefetch(*s);
    if (k < AHEAD) continue;
    auto [key, from] = keys_at_[k - AHEAD];
    uint32_t to = keys_at_[k - AHEAD + 1].second;
    group_.clear();
    for (uint32_t at = from; at < to; at++) {
      const Place& place = places_[picked_[at]];
      size_t row = (uint32_t)by_key_[picked_[at]];
      group_.push_back({place.time, place, brackets_of(row), tracing ? row : picked_[at]});
    }
    touch(store, runner, (int64_t)key - 1, group_.data(), group_.size(), starting);
  }
}

// Brackets with keys of their own: an event is seen once by each key, with the brackets that have that key.
void Engine::run_many_keys(Store& store, Runner& runner, uint64_t starting) {
  const RuleDef& rule = runner.rule;
  each_bit(relevant_, [&](size_t r) {
    Place place = eval_.place_of(r);
    Event e{place.time, place, brackets_of(r), r};
    int64_t seen[66];
    int keys = 0;
    auto visit = [&](int64_t key) {
      if (!share.is_whole() && !(key < 0 ? share.first == 0 : share.has(KeyTable::hash(keys_.bytes((uint32_t)key))))) return;
      for (int k = 0; k < keys; k++) if (seen[k] == key) return;
      seen[keys++] = key;
      Event own = e;
      own.brackets = 0;
      for (size_t b = 0; b < rule.brackets.size(); b++)
        if ((e.brackets >> b & 1) && key_of(rule.brackets[b].keyspec, r) == key) own.brackets |= 1ull << b;
      touch(store, runner, key, &own, 1, starting);
    };
    int type = eval_.type_of(r);
    bool named = false;
    for (size_t b = 0; b < rule.brackets.size(); b++) {
      const BracketDef& d = rule.brackets[b];
      bool takes = d.type < 0 || d.type == type;
      named = named || takes;
      if ((e.brackets >> b & 1) || ((rule.uses_next || tracing) && takes)) visit(key_of(d.keyspec, r));
    }
    if (rule.uses_next && !named) visit(key_of(rule.next_keyspec, r));
  });
}

// Some events of one key, in order.
void Engine::touch(Store& store, Runner& runner, int64_t key, const Event* events, size_t n, uint64_t starting) {
  if (key < 0) { for (size_t k = 0; k < n; k++) runner.counters.no_key += events[k].brackets != 0; return; }
  if (gave_up()) return;
  eval_.key_at_hand = key;
  bool traced = is_traced(key);
  State* s = store.states.find((uint32_t)key);
  budget.rule = runner.rule.index;
  budget.key = (uint32_t)key;
  int64_t due = s ? s->scheduled : NEVER;
  if (traced) { trace.rule = runner.rule.index; runner.trace = &trace; }
  for (const Event* e = events; e < events + n; e++) {
    if (!e->brackets && !runner.rule.uses_next && !traced) continue;
    if (!s) {
      if (!(e->brackets & starting) && !traced) continue;
      s = find_or_add(store, (uint32_t)key);
    }
    budget.begin_event();
    if (due < e->time) runner.on_time(*s, e->time);
    if (traced) runner.note_event(*e);
    runner.event(*s, *e);
    if (gave_up()) return;
    due = runner.deadline(*s);
  }
  runner.trace = nullptr;
  eval_.key_at_hand = -1;
  if (!s) return;
  mark(store, *s);
  reschedule(store, *s, due, events[n - 1].time);
}

bool Engine::is_traced(int64_t key) const { return tracing && key >= 0 && keys_.bytes((uint32_t)key) == traced_key; }

// An event that fits no bracket is of no use to a rule, but a person wants to know why it did not fit.
bool Engine::concerns_traced(const RuleDef& rule, size_t row) {
  int type = eval_.type_of(row);
  for (auto& d : rule.brackets)
    if ((d.type < 0 || d.type == type) && is_traced(key_of(d.keyspec, row))) return true;
  return false;
}

State* Engine::find_or_add(Store& store, uint32_t key) {
  State* s = store.states.find(key);
  if (s) return s;
  s = store.keeper->fresh();
  s->key = key;
  store.states.add(key, s);
  keys_.use(key);
  return s;
}

// `d` is when the state must be looked at next.
void Engine::reschedule(Store& store, State& s, int64_t d, int64_t now) {
  if (d == LONG_AGO || d < now) {
    if (store.keeper->empty(s, now)) { remove(store, &s); return; }
    d = now;
  }
  if (s.scheduled >= now && d >= s.scheduled) return;
  s.scheduled = d;
  if (d == NEVER) return;
  store.heap.push_back({d, s.key});
  std::push_heap(store.heap.begin(), store.heap.end(), std::greater<>());
}

void Engine::remove(Store& store, State* s) {
  if (s->stored) {
    std::string row;
    auto gone = [&](char kind, int64_t number) {
      row_key(store, s->key, kind, number, row);
      gone_.push_back(row);
    };
    for (size_t k = 0; k < s->stored_parts.size(); k++) gone(HEADER_ROW, (int64_t)k);
    if (store.keeper->log(*s)) for (int64_t c = s->stored_from / sizes.chunk; c * sizes.chunk < s->stored_to; c++) gone(CHUNK_ROW, c);
  }
  store.states.remove(s->key);
  keys_.release(s->key);
  store.keeper->discard(s);
}

Runner* Engine::runner_of(const Store& store) const {
  for (auto& r : runners) if (r.get() == store.keeper) return r.get();
  return nullptr;
}

// Takes the entries before `now` off the heap. Where they are many, the rest is made a heap again.
void Engine::take_due(Store& store, int64_t now) {
  auto& heap = store.heap;
  due_.clear();
  while (!heap.empty() && heap.front().first < now && due_.size() < 32) {
    due_.push_back(heap.front());
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
  }
  if (heap.empty() || heap.front().first >= now) return;
  auto later = std::partition(heap.begin(), heap.end(), [&](auto& entry) { return entry.first < now; });
  due_.insert(due_.end(), heap.begin(), later);
  heap.erase(heap.begin(), later);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
}

void Engine::advance(Store& store, int64_t now) {
  note_at_work(store, 0);
  take_due(store, now);
  // One state knows nothing of another: in the order of keys they are near each other. A person reads notes by time.
  std::sort(due_.begin(), due_.end(), [&](auto& a, auto& b) { return tracing ? a < b : std::tie(a.second, a.first) < std::tie(b.second, b.first); });
  for (size_t k = 0; k < due_.size(); k++) {
    if (k + AHEAD < due_.size()) store.states.prefetch(due_[k + AHEAD].second);
    if (k + AHEAD / 2 < due_.size()) near(store, due_[k + AHEAD / 2].second);
    auto [time, key] = due_[k];
    State* s = store.states.find(key);
    if (!s || s->scheduled != time) continue;  // the state went, or is looked at another time
    Runner* traced = is_traced(key) ? runner_of(store) : nullptr;
    if (traced) { trace.rule = traced->rule.index; traced->trace = &trace; }
    budget.key = key;
    budget.begin_event();
    eval_.key_at_hand = key;
    store.keeper->on_time(*s, now);
    eval_.key_at_hand = -1;
    if (traced) traced->trace = nullptr;
    if (gave_up()) return;
    mark(store, *s);
    s->scheduled = NEVER;
    reschedule(store, *s, store.keeper->deadline(*s), now);
  }
}

void Engine::fill(int history, const std::vector<uint32_t>& rows, std::vector<Value>& out) {
  const History& def = program_.histories[(size_t)history];
  HistoryKeeper& keeper = *histories_[(size_t)history];
  Store& store = stores_[runners.size() + (size_t)history];
  const Value* values = def.value < 0 ? nullptr : eval_.column(def.value, def.type);
  const Value* where = def.where < 0 ? nullptr : eval_.column(def.where, def.type);
  std::string key;
  for (uint32_t r : rows) {
    key.clear();
    // A history has the key of the bracket that asks it, so that nobody asks for keys outside of the share.
    bool good = def.keyspec >= 0 && (share.is_whole() || in_share(def.keyspec, r));
    if (good) for (int node : program_.keyspecs[(size_t)def.keyspec]) good = good && encode_key(key, eval_.at_row(node, r));
    if (!good) { out[r] = Value::nil(); continue; }
    if (def.type < 0) encode_key(key, eval_.type_text(r));
    State* s = find_or_add(store, keys_.find_or_add(key));
    int64_t t = eval_.time_of(r);
    if (s->scheduled < t) keeper.on_time(*s, t);
    Value v = values ? values[r] : Value::nil();
    out[r] = keeper.ask(*s, v, t, eval_.scratch);
    if (!where || where[r].is_true())
      keeper.add(*s, v, eval_.place_of(r));
    mark(store, *s);
    reschedule(store, *s, keeper.deadline(*s), t);
  }
}

}  // namespace samovar
