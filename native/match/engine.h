// The engine: all states of a program, and `step`, which takes a batch of events in order through all rules.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "match/history.h"
#include "match/residency.h"
#include "match/runner.h"
#include "match/trace.h"

namespace samovar {

constexpr char HEADER_ROW = 0, CHUNK_ROW = 1;

// How much goes into one row, and how many events are evaluated together (common/tunables.py). No result depends on them,
// and a store may have been written with others.
struct Sizes {
  int64_t chunk = 128;  // events in one row
  int64_t few = 24;     // events that a header holds itself; once they were in chunks, a quarter of it
  int64_t part_bytes = 128 << 10;  // of a header in one row
  int64_t slice = 131072;          // rows of a batch
  int64_t cold = 16384;            // rows of a batch, while the keys of its events are looked for
};

// Which keys are worked on: those whose hash is in a part of all hashes. Two shares that do not overlap have no key in
// common, and what happens to a key is the same in all of them, so rules can be run by several engines, or over some of
// their keys. Events without a key belong to the first share. Stored samples name it: hashes never change.
struct KeyShare {
  uint64_t first = 0, last = ~0ull;
  bool is_whole() const { return first == 0 && last == ~0ull; }
  bool has(uint64_t hash) const { return hash >= first && hash <= last; }
};

// The states of one keeper, and the heap of times at which one of them must be looked at.
struct Store {
  Keeper* keeper;
  std::string name;
  IdMap<State> states;
  std::vector<std::pair<int64_t, uint32_t>> heap;  // least time on top
  std::vector<uint32_t> dirty;                     // keys of states that changed since they were stored
};

class Engine final : public HistoryHook {
 public:
  Engine(const Program& program, PythonCall call, Limits limits);
  ~Engine();
  // Takes rows [from, to) of the batch. False where a function failed or it went over its budget: it ends at once, and
  // these states are half way through the batch, and must be thrown away.
  bool step(Batch& batch, size_t from, size_t to, int64_t watermark);
  bool takes(const Batch& batch) const { return batch.columns.size() >= (size_t)program_.fields; }
  bool gave_up() const { return budget.over() || eval_.failed(); }
  Budget budget;
  void run_out_of_memory();
  const std::string& key_bytes(uint32_t key) const { return keys_.bytes(key); }
  // Of a function that failed: the rule, the key's bytes where it is known, and the event where there is one.
  struct Failure {
    int rule = -1;
    std::string key;
    bool has_event = false;
    Place event;
  };
  Failure failure();
  std::vector<std::string> topics;  // of the streams, by number; none: there is one input, and lines are numbered
  std::vector<Match> matches;
  QuotedTexts texts;  // of their messages
  bool defers = false;  // see Runner
  std::vector<uint32_t> order;  // of the matches, as they are to be given out
  bool hold = false;  // keep matches at the watermark back: a later batch may have one that comes before them
  std::vector<std::unique_ptr<Runner>> runners;
  Counters history_counters;
  Sizes sizes;
  KeyShare share;
  void hash_keys(Batch& batch, int keyspec, uint64_t* out);  // of every row; 0 where it has none
  void remember(int64_t results) { eval_.memo_most = (size_t)results; }

  // rows.cpp
  enum class Rows { ALL, CHANGED, CANONICAL };
  void dump(Rows which, int64_t watermark, RowList& out);
  bool load(const char* data, const int64_t* ends, size_t rows);
  RowList deadlines;  // of the last dump of changes: when a stored state must be looked at, where that is new
  size_t live() const;
  int64_t partials(int rule) const;
  bool describe(int rule, const std::string& key, std::string& out);

  // residency.cpp: where a store holds more than is in memory
  KnownKeys known;
  bool find_cold(Batch& batch, RowList& out);  // false: as with `step`
  int64_t next_deadline() const;
  size_t bytes() const;

  Trace trace;
  std::string traced_key;
  bool tracing = false;

  void fill(int history, const std::vector<uint32_t>& rows, std::vector<Value>& out) override;

 private:
  const Program& program_;
  Limits limits_;
  KeyTable keys_;
  Evaluator eval_;
  std::vector<std::unique_ptr<HistoryKeeper>> histories_;
  std::vector<Store> stores_;  // rules, then histories
  std::vector<std::vector<int64_t>> key_cache_;
  // Rules whose brackets all have one key, by that key; and the rest, with keyspec -1. Their rows are put in order once.
  struct Together {
    int keyspec;
    std::vector<size_t> rules;
  };
  std::vector<Together> together_;
  std::vector<std::vector<int>> reads_;     // what each rule reads of the events that it keeps or compares
  std::vector<size_t> times_read_;          // of each node, by the rules together at hand, about
  size_t columns_ = 0;  // how many may be held for a slice
  using Mask = std::vector<uint64_t>;       // one bit per row
  std::vector<const uint64_t*> fits_;       // a bracket of the rule at hand each: rows that fit it, as far as they alone decide
  std::vector<Mask> joined_;                // room for fits_
  Mask share_rows_;                         // of the rules together at hand, rows with a key of the share
  Mask relevant_, wanted_;                  // rows that the rule at hand must see; that any of those together must see
  std::vector<uint32_t> rows_;              // wanted_, as a list
  std::vector<uint64_t> by_key_, spare_;    // keys and rows of wanted_, by key
  std::vector<uint32_t> rank_;              // where a row stands in by_key_
  std::vector<Place> places_;               // as by_key_
  Mask ranks_, starting_keys_;
  std::vector<uint32_t> picked_;            // what the rule at hand must see, as places in by_key_
  std::vector<std::pair<uint32_t, uint32_t>> keys_at_;  // each key in it (and 1; 0: none), and where it begins
  std::vector<Event> group_;
  std::vector<std::pair<int64_t, uint32_t>> due_;  // timers of the store at hand
  std::vector<std::string> gone_;  // rows of states that are no more
  std::string scratch_key_;
  std::vector<Match> held_;
  std::string mark_text_;

  void blame();
  static const char* describe_mark(void* self, int rule, uint32_t key, size_t* size);
  void sort_matches();
  void step_slice(Batch& batch, size_t base, size_t count);
  void find_relevant(const RuleDef& rule);
  bool in_share(int keyspec, size_t row);
  void run(const Together& t);
  void arrange();
  void run_one_key(Store& store, Runner& runner, uint64_t starting);
  void run_many_keys(Store& store, Runner& runner, uint64_t starting);
  void pick(const Store& store, const RuleDef& rule, int keyspec, uint64_t starting);
  void leave_out_idle(const Store& store, int keyspec, uint64_t starting);
  void touch(Store& store, Runner& runner, int64_t key, const Event* events, size_t n, uint64_t starting);
  void group_by_key(int keyspec);
  int64_t key_of(int keyspec, size_t row);
  void resolve_keys(int keyspec);  // of rows_
  void resolve_texts(int node, std::vector<int64_t>& cache, const uint32_t* rows, size_t n);
  uint64_t brackets_of(size_t row) const {
    uint64_t bits = 0;
    for (size_t b = 0; b < fits_.size(); b++) bits |= (fits_[b][row >> 6] >> (row & 63) & 1) << b;
    return bits;
  }
  bool is_traced(int64_t key) const;
  bool concerns_traced(const RuleDef& rule, size_t row);
  Runner* runner_of(const Store& store) const;
  State* find_or_add(Store& store, uint32_t key);
  void mark(Store& store, State& s) {
    if (!s.dirty) store.dirty.push_back(s.key);
    s.dirty = true;
  }
  void reschedule(Store& store, State& s, int64_t deadline, int64_t now);
  void take_due(Store& store, int64_t now);
  void advance(Store& store, int64_t now);
  static void near(const Store& store, uint32_t key) {
    if (const State* s = store.states.find(key)) store.keeper->near(s);
  }
  void remove(Store& store, State* s);
  void note_at_work(const Store& store, uint32_t key);  // for an error
  struct Loading;
  bool load_row(Loading& l, std::string_view row, std::string_view bytes);
  bool load_header(Loading& l);
  bool load_chunk(Loading& l, std::string_view row, int64_t number, Unpacker& value);
  bool load_events(Loading& l, EventLog& log, int64_t first, Unpacker& u);
  bool finish_loading(Loading& l);
  void row_key(const Store& store, uint32_t key, char kind, int64_t number, std::string& out) const;
  void pack_header(Store& store, State& s, const std::string& bytes, Rows which, RowList& out);
  void pack_chunks(Store& store, State& s, const EventLog& log, bool in_header, Rows which, RowList& out);
  void pack_state(Store& store, State& s, Rows which, RowList& out);
  void dump_changes(RowList& out);
};

}  // namespace samovar
