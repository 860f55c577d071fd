// The engine: all states of a program, and `step`, which takes a batch of events in order through all rules.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "history.h"
#include "residency.h"
#include "runner.h"
#include "trace.h"

namespace samovar {

constexpr char HEADER_ROW = 0, CHUNK_ROW = 1;

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
  Engine(const Program& program, PythonCall call, Limits limits, bool coordinates);
  ~Engine();
  void step(Batch& batch, int64_t watermark);
  std::vector<Match> matches;
  std::vector<uint32_t> order;  // of the matches, as they are to be given out
  bool hold = false;  // keep matches at the watermark back: a later batch may have one that comes before them
  std::vector<std::unique_ptr<Runner>> runners;
  Counters history_counters;

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
  void find_cold(Batch& batch, RowList& out);
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
  std::vector<uint64_t> bits_;
  std::vector<Place> meta_;                // of every row
  std::vector<uint32_t> relevant_;         // rows that the rule at hand must see
  std::vector<uint64_t> grouped_, spare_;  // their keys and rows, by key
  std::vector<Event> group_;
  std::vector<std::string> gone_;  // rows of states that are no more
  std::string scratch_key_;
  std::vector<Match> held_;

  void sort_matches();
  void step_slice(Batch& batch, size_t base, size_t count);
  void find_relevant(const RuleDef& rule);
  void run(Store& store, Runner& runner);
  void run_one_key(Store& store, Runner& runner, int keyspec, uint64_t starting);
  void run_many_keys(Store& store, Runner& runner, uint64_t starting);
  void touch(Store& store, Runner& runner, int64_t key, const Event* events, size_t n, uint64_t starting);
  void group_by_key(int keyspec);
  std::vector<const Value*> columns_read(const RuleDef& rule) const;
  int64_t key_of(int keyspec, size_t row);
  void resolve_keys(int keyspec);
  void resolve_texts(int node, std::vector<int64_t>& cache, const uint32_t* rows, size_t n);
  Event event_at(size_t row) const { return {meta_[row].time, meta_[row], bits_[row], row}; }
  bool is_traced(int64_t key) const;
  bool concerns_traced(const RuleDef& rule, size_t row);
  Runner* runner_of(const Store& store) const;
  State* find_or_add(Store& store, uint32_t key);
  void mark(Store& store, State& s) {
    if (!s.dirty) store.dirty.push_back(s.key);
    s.dirty = true;
  }
  void reschedule(Store& store, State& s, int64_t deadline, int64_t now);
  void advance(Store& store, int64_t now);
  void remove(Store& store, State* s);
  struct Loading;
  bool load_row(Loading& l, std::string_view row, std::string_view bytes);
  bool load_header(Loading& l);
  bool load_chunk(Loading& l, Unpacker& value);
  bool finish_loading(Loading& l);
  void row_key(const Store& store, uint32_t key, char kind, int64_t number, std::string& out) const;
  void pack_header(Store& store, State& s, const std::string& bytes, Rows which, RowList& out);
  void pack_chunks(Store& store, State& s, const EventLog& log, Rows which, RowList& out);
  void pack_state(Store& store, State& s, Rows which, RowList& out);
  void dump_changes(RowList& out);
};

}  // namespace samovar
