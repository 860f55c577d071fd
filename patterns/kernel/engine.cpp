#include "engine.h"

namespace samovar {
namespace {

constexpr int64_t UNKNOWN = -2, NO_KEY = -1;
constexpr size_t AHEAD = 32;  // events whose keys and states are brought near together

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

std::unique_ptr<Runner> make_runner(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) {
  switch (r.form) {
    case SEQUENCE: return sequence_runner(r, e, k, l);
    case AGGREGATE: return aggregate_runner(r, e, k, l);
    case SESSION: return session_runner(r, e, k, l);
    default: return window_runner(r, e, k, l);
  }
}

}  // namespace

Engine::Engine(const Program& program, PythonCall call, Limits limits, bool coordinates)
    : program_(program), limits_(limits), eval_(program, call), key_cache_(program.keyspecs.size()) {
  eval_.histories = this;
  for (auto& r : program.rules) {
    runners.push_back(make_runner(r, eval_, keys_, limits_));
    runners.back()->out = &matches;
    runners.back()->coordinates = coordinates;
    std::string name = std::string(program.text(r.id).view()) + "@" + std::string(program.text(r.version).view());
    stores_.push_back({runners.back().get(), name, {}, {}});
  }
  for (auto& h : program.histories) {
    histories_.push_back(std::make_unique<HistoryKeeper>(h, limits_, history_counters));
    stores_.push_back({histories_.back().get(), std::string(program.text(h.name).view()), {}, {}});
  }
}

Engine::~Engine() {
  for (auto& s : stores_) s.states.each([](uint32_t, State* state) { delete state; });
}

void Engine::step(Batch& batch, int64_t watermark) {
  matches = std::move(held_);
  held_.clear();
  eval_.begin(&batch);
  for (auto& cache : key_cache_) cache.assign(batch.rows, UNKNOWN);
  meta_.resize(batch.rows);
  for (size_t r = 0; r < batch.rows; r++)
    meta_[r] = {batch.time[r], (int64_t)batch.stream[r] << 32 | (uint32_t)batch.partition[r], batch.offset[r]};
  for (size_t n = 0; n < program_.nodes.size(); n++) if (program_.nodes[n].op == HISTORY) eval_.column((int)n, -1);
  for (size_t k = 0; k < runners.size(); k++) run(stores_[k], *runners[k]);
  for (auto& store : stores_) advance(store, watermark);
  keys_.sweep();
  std::stable_sort(matches.begin(), matches.end(), [](const Match& a, const Match& b) {
    if (a.at != b.at) return a.at < b.at;
    // Place as in the input: of matches made by timers at one moment, the one whose last event was read first.
    if (a.last.source != b.last.source) return a.last.source < b.last.source;
    if (a.last.offset != b.last.offset) return a.last.offset < b.last.offset;
    if (a.rule != b.rule) return a.rule < b.rule;
    return events_first(a.events, b.events);
  });
  if (!hold) return;
  auto late = std::find_if(matches.begin(), matches.end(), [&](const Match& m) { return m.at >= watermark; });
  held_.assign(std::make_move_iterator(late), std::make_move_iterator(matches.end()));
  matches.erase(late, matches.end());
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

// The keys of some rows at once: memory is slow, so what will be needed is asked for before it is used.
void Engine::resolve_keys(int keyspec, const uint32_t* rows, size_t n) {
  auto& cache = key_cache_[(size_t)keyspec];
  auto& nodes = program_.keyspecs[(size_t)keyspec];
  if (nodes.size() == 1) { resolve_texts(nodes[0], cache, rows, n); return; }
  size_t ends[AHEAD];
  uint64_t hashes[AHEAD];
  bool wanted[AHEAD];
  scratch_key_.clear();
  for (size_t k = 0; k < n; k++) {
    wanted[k] = cache[rows[k]] == UNKNOWN;
    size_t from = scratch_key_.size();
    if (wanted[k]) for (int node : program_.keyspecs[(size_t)keyspec])
      if (!encode_key(scratch_key_, eval_.at_row(node, rows[k]))) { cache[rows[k]] = NO_KEY; wanted[k] = false; break; }
    ends[k] = scratch_key_.size();
    if (!wanted[k]) continue;
    hashes[k] = KeyTable::hash(std::string_view(scratch_key_).substr(from));
    keys_.prefetch_slot(hashes[k]);
  }
  for (size_t k = 0; k < n; k++) if (wanted[k]) keys_.prefetch_entry(hashes[k]);
  for (size_t k = 0, from = 0; k < n; from = ends[k++])
    if (wanted[k]) cache[rows[k]] = keys_.find_or_add(std::string_view(scratch_key_).substr(from, ends[k] - from), hashes[k]);
}

// The same for keys of one field; almost all of them are text.
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

// Rows of the rule at hand, with their keys, so that all events of a key come one after the other: a state is then
// looked up and brought near once a batch, however many events it gets.
void Engine::resolve_all(int keyspec) {
  grouped_.clear();
  auto& keys = key_cache_[(size_t)keyspec];
  for (size_t from = 0; from < relevant_.size(); from += AHEAD) {
    size_t n = std::min(AHEAD, relevant_.size() - from);
    resolve_keys(keyspec, relevant_.data() + from, n);
    for (size_t k = from; k < from + n; k++) grouped_.push_back((uint64_t)(uint32_t)(keys[relevant_[k]] + 1) << 32 | relevant_[k]);
  }
}

// By key, rows of a key in order: a radix sort over as many bits as there are keys.
void Engine::sort_by_key() {
  constexpr int BITS = 11;
  uint64_t most = 0;
  for (uint64_t g : grouped_) most = std::max(most, g >> 32);
  spare_.resize(grouped_.size());
  for (int shift = 0; most >> shift; shift += BITS) {
    uint32_t counts[(1 << BITS) + 1] = {};
    for (uint64_t g : grouped_) counts[((g >> 32 >> shift) & ((1 << BITS) - 1)) + 1]++;
    for (int k = 0; k < 1 << BITS; k++) counts[k + 1] += counts[k];
    for (uint64_t g : grouped_) spare_[counts[(g >> 32 >> shift) & ((1 << BITS) - 1)]++] = g;
    grouped_.swap(spare_);
  }
}

// Columns that events of a rule are kept with.
std::vector<const Value*> Engine::columns_read(const RuleDef& rule) const {
  std::vector<const Value*> out;
  auto add = [&](int node) {
    const Value* column = eval_.ready(node);
    if (column && std::find(out.begin(), out.end(), column) == out.end()) out.push_back(column);
  };
  for (int node : rule.values) add(node);
  for (auto& name : rule.names) for (int node : name.captures) add(node);
  return out;
}

void Engine::run_grouped(Store& store, Runner& runner, int keyspec, uint64_t starting) {
  resolve_all(keyspec);
  sort_by_key();
  size_t slot_ahead = 0, state_ahead = 0, log_ahead = 0, row_ahead = 0, text_ahead = 0;
  std::vector<const Value*> read = columns_read(runner.rule);
  // The first row of the group behind the one at `from`.
  auto next = [&](size_t from) {
    size_t to = from + 1;
    while (to < grouped_.size() && grouped_[to] >> 32 == grouped_[from] >> 32) to++;
    return to;
  };
  auto key_at = [&](size_t at) { return (int64_t)(grouped_[at] >> 32) - 1; };
  auto state_at = [&](size_t at) { return key_at(at) < 0 ? nullptr : store.states.find((uint32_t)key_at(at)); };
  for (size_t from = 0, to; from < grouped_.size(); from = to) {
    to = next(from);
    // Some go before: for the event's own values, for the place of the state in its table, for the state, for the
    // events it holds.
    for (; row_ahead < grouped_.size() && row_ahead < to + AHEAD; row_ahead++) {
      size_t row = (uint32_t)grouped_[row_ahead];
      __builtin_prefetch(&meta_[row]);
      __builtin_prefetch(&bits_[row]);
      for (const Value* column : read) __builtin_prefetch(&column[row]);
    }
    for (; text_ahead < grouped_.size() && text_ahead < to + AHEAD / 2; text_ahead++)
      for (const Value* column : read) {
        const Value& v = column[(uint32_t)grouped_[text_ahead]];
        if (v.tag >= TEXT) __builtin_prefetch(v.s);
      }
    while (slot_ahead < grouped_.size() && slot_ahead < from + AHEAD) {
      if (key_at(slot_ahead) >= 0) store.states.prefetch((uint32_t)key_at(slot_ahead));
      slot_ahead = next(slot_ahead);
    }
    while (state_ahead < grouped_.size() && state_ahead < from + AHEAD / 2) {
      State* s = state_at(state_ahead);
      for (int line = 0; s && line < 4; line++) __builtin_prefetch((char*)s + 64 * line);
      state_ahead = next(state_ahead);
    }
    while (log_ahead < grouped_.size() && log_ahead < from + AHEAD / 4) {
      if (State* s = state_at(log_ahead)) runner.prefetch(*s);
      log_ahead = next(log_ahead);
    }
    group_.clear();
    for (size_t k = from; k < to; k++) group_.push_back(event_at((uint32_t)grouped_[k]));
    touch(store, runner, key_at(from), group_.data(), group_.size(), starting);
  }
}

void Engine::run(Store& store, Runner& runner) {
  const RuleDef& rule = runner.rule;
  Batch& batch = *eval_.batch();
  bits_.assign(batch.rows, 0);
  int keyspec = rule.brackets[0].keyspec;
  bool one_key = !rule.uses_next || rule.next_keyspec == keyspec;
  for (size_t b = 0; b < rule.brackets.size(); b++) {
    const BracketDef& d = rule.brackets[b];
    if (d.keyspec != keyspec) one_key = false;
    auto& rows = eval_.rows_of(d.type);
    if (rows.empty()) continue;
    uint64_t bit = 1ull << b;
    if (d.columns.empty()) { for (uint32_t r : rows) bits_[r] |= bit; continue; }
    const Value* first = eval_.column(d.columns[0], d.type).data();
    if (d.columns.size() == 1) { for (uint32_t r : rows) if (first[r].is_true()) bits_[r] |= bit; continue; }
    std::vector<const Value*> more;
    for (size_t k = 1; k < d.columns.size(); k++) more.push_back(eval_.column(d.columns[k], d.type).data());
    for (uint32_t r : rows) {
      bool ok = first[r].is_true();
      for (size_t k = 0; ok && k < more.size(); k++) ok = more[k][r].is_true();
      if (ok) bits_[r] |= bit;
    }
  }
  uint64_t starting = starting_brackets(rule);
  relevant_.clear();
  for (size_t r = 0; r < batch.rows; r++) if (bits_[r] || rule.uses_next || (tracing && concerns_traced(rule, r))) relevant_.push_back((uint32_t)r);
  if (one_key && keyspec >= 0) { run_grouped(store, runner, keyspec, starting); return; }
  for (uint32_t r : relevant_) {
    Event e = event_at(r);
    // Brackets with keys of their own: the event is seen once by each key, with the brackets that have that key.
    int64_t seen[66];
    int keys = 0;
    auto visit = [&](int64_t key) {
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
  }
}

// Some events of one key, in order.
void Engine::touch(Store& store, Runner& runner, int64_t key, const Event* events, size_t n, uint64_t starting) {
  if (key < 0) { for (size_t k = 0; k < n; k++) runner.counters.no_key += events[k].brackets != 0; return; }
  bool traced = is_traced(key);
  State* s = store.states.find((uint32_t)key);
  int64_t due = s ? s->scheduled : NEVER;
  if (traced) { trace.rule = runner.rule.index; runner.trace = &trace; }
  for (const Event* e = events; e < events + n; e++) {
    if (!s) {
      if (!(e->brackets & starting) && !traced) continue;
      s = find_or_add(store, (uint32_t)key);
    }
    if (due < e->time) runner.on_time(*s, e->time);
    if (traced) runner.note_event(*e);
    runner.event(*s, *e);
    due = runner.deadline(*s);
  }
  runner.trace = nullptr;
  if (!s) return;
  s->dirty = true;
  reschedule(store, *s, events[n - 1].time);
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

void Engine::reschedule(Store& store, State& s, int64_t now) {
  int64_t d = store.keeper->deadline(s);
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
    row_key(store, s->key, -1, row);
    gone_.push_back(row);
    if (store.keeper->log(*s)) for (int64_t c = s->stored_from / CHUNK; c * CHUNK < s->stored_to; c++) {
      row.clear();
      row_key(store, s->key, c, row);
      gone_.push_back(row);
    }
  }
  store.states.remove(s->key);
  keys_.release(s->key);
  delete s;
}

Runner* Engine::runner_of(const Store& store) const {
  for (auto& r : runners) if (r.get() == store.keeper) return r.get();
  return nullptr;
}

void Engine::advance(Store& store, int64_t now) {
  while (!store.heap.empty() && store.heap.front().first < now) {
    auto [time, key] = store.heap.front();
    std::pop_heap(store.heap.begin(), store.heap.end(), std::greater<>());
    store.heap.pop_back();
    State* s = store.states.find(key);
    if (!s || s->scheduled != time) continue;  // the state went, or is looked at another time
    Runner* traced = is_traced(key) ? runner_of(store) : nullptr;
    if (traced) { trace.rule = traced->rule.index; traced->trace = &trace; }
    store.keeper->on_time(*s, now);
    if (traced) traced->trace = nullptr;
    s->dirty = true;
    s->scheduled = NEVER;
    reschedule(store, *s, now);
  }
}

void Engine::fill(int history, const std::vector<uint32_t>& rows, std::vector<Value>& out) {
  const History& def = program_.histories[(size_t)history];
  HistoryKeeper& keeper = *histories_[(size_t)history];
  Store& store = stores_[runners.size() + (size_t)history];
  Batch& batch = *eval_.batch();
  const Value* values = def.value < 0 ? nullptr : eval_.column(def.value, def.type).data();
  const Value* where = def.where < 0 ? nullptr : eval_.column(def.where, def.type).data();
  std::string key;
  for (uint32_t r : rows) {
    key.clear();
    bool good = def.keyspec >= 0;
    if (good) for (int node : program_.keyspecs[(size_t)def.keyspec]) good = good && encode_key(key, eval_.at_row(node, r));
    if (!good) { out[r] = Value::nil(); continue; }
    if (def.type < 0) encode_key(key, batch.type[r]);
    State* s = find_or_add(store, keys_.find_or_add(key));
    int64_t t = batch.time[r];
    if (s->scheduled < t) keeper.on_time(*s, t);
    Value v = values ? values[r] : Value::nil();
    out[r] = keeper.ask(*s, v, t, eval_.scratch);
    if (!where || where[r].is_true())
      keeper.add(*s, v, {t, (int64_t)batch.stream[r] << 32 | (uint32_t)batch.partition[r], batch.offset[r]});
    s->dirty = true;
    reschedule(store, *s, t);
  }
}

}  // namespace samovar
