// What the forms of a rule have in common: a state per key, events in, matches out, timers between.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "match/budget.h"
#include "match/evaluate.h"
#include "match/fold.h"
#include "match/held.h"
#include "match/output.h"
#include "match/pack.h"
#include "util/pool.h"

namespace samovar {

constexpr int64_t NEVER = INT64_MAX;
constexpr int64_t LONG_AGO = INT64_MIN;
constexpr size_t LISTED_MOST = 1000;  // coordinates that an alert lists of one step

struct Limits {
  int64_t max_partials = 1000, max_events = 10000, max_matches = 1000;
};

struct Counters {
  int64_t dropped_partials = 0, dropped_events = 0, no_key = 0, matches = 0, suppressed = 0;
  int64_t dropped_matches = 0;
  int64_t ns = 0;  // spent on the rule alone
};

// Matches of a rule that no alert will tell of: of one in shadow, of one that is not to alert yet, of one that only ends
// what it began. They are counted; nothing is quoted for their messages.
struct Mute {
  bool shadow = false;
  int64_t before_at = INT64_MIN, after_start = INT64_MAX;
  bool covers(int64_t start, int64_t at) const { return shadow || at < before_at || start > after_start; }
};

// One event, as one rule and key see it.
struct Event {
  int64_t time;
  Place place;
  uint64_t brackets;  // those of the rule that it fits as far as it alone decides
  size_t row;
};

// What a step needs stands behind what only stores need, from the second line of memory on.
struct State {
  std::vector<uint64_t> stored_parts;   // hashes of its header's rows as they are in the store
  int64_t stored_from = 0, stored_to = 0;
  int64_t indexed = NEVER;              // `scheduled`, as the store's index of deadlines has it
  bool chunked = false;                 // its queue is stored in chunks, not in the header
  bool stored = false;                  // a row of it is in a store, with queue events [stored_from, stored_to)
  int64_t scheduled = NEVER;            // when the timer heap will look at this state
  int64_t alerted = LONG_AGO;           // the last alert, for `suppress`
  uint32_t key = 0;
  bool dirty = false;                   // it changed since it was stored
  virtual ~State() {}
};

// A step's events as a match shows them. `total` counts also those that are not listed.
struct Listed {
  int name;  // index of constant text
  std::vector<Place> places;
  int64_t total = 0;
};

struct Trace;

// Who keeps states: a rule, or a history function. States are made, looked at when their time comes, and stored.
class Keeper {
  Pool memory_;

 protected:
  size_t state_bytes_ = 0;
  template <class Keyed>
  Keyed* made(size_t more = 0) {
    state_bytes_ = sizeof(Keyed) + more;
    return new (memory_.take(state_bytes_)) Keyed;
  }

 public:
  virtual ~Keeper() {}
  virtual State* fresh() = 0;
  // Bring a state near that will be worked with soon; then `prefetch`, what else the next event will touch. Only hints.
  void near(const State* s) const {
    size_t end = state_bytes_ < 512 ? state_bytes_ : 512;
    for (size_t at = 64; at < end; at += 64) __builtin_prefetch((const char*)s + at, 1);
  }
  void discard(State* s) {
    s->~State();
    memory_.give(s, state_bytes_);
  }
  // Fire and forget what event time `now` has passed. Called before an event later than the state's deadline.
  virtual void on_time(State& s, int64_t now) = 0;
  // When on_time must be called next, at the latest: NEVER where there is no need, LONG_AGO where nothing is held.
  virtual int64_t deadline(const State& s) const = 0;
  // Nothing is held that could matter at `now` or later.
  virtual bool empty(const State& s, int64_t now) const = 0;
  virtual void pack(const State& s, Packer& p) const = 0;
  virtual void unpack(State& s, Unpacker& u) const = 0;
  // Events held in a queue of their own, which is stored in chunks; null where there is none.
  virtual EventLog* log(State&) const { return nullptr; }
  virtual void prefetch(State& s) const { if (EventLog* l = log(s)) l->prefetch(); }
  virtual int64_t suppress() const { return -1; }  // how long State::alerted matters
  virtual int64_t number(const State&) const { return 0; }  // what Held::number counts up to
  // Whether what was unpacked can be worked with: stored bytes may be damaged.
  virtual bool sound(const State&) const { return true; }
  virtual void loaded(State&) const {}  // after unpack, when the queue is back: work out what is not stored
  virtual int64_t partials(const State&) const { return 0; }
  virtual void describe(const State&, std::string&) const {}
};

// Events that a partial match has bound, the newest of them, as JSON: what as, time, stream, partition and offset.
constexpr size_t DESCRIBED_MOST = 20;
class Described {
  std::string& out_;
  bool first_ = true;

 public:
  explicit Described(std::string& out) : out_(out) { out_ += ", \"bound\": ["; }
  void end() { out_ += "]"; }
  void add(const Value& name, const Place& p) {
    if (!first_) out_ += ", ";
    first_ = false;
    out_ += "{\"as\": ";
    write_value(out_, name);
    out_ += ", \"time\": " + std::to_string(p.time) + ", \"stream\": " + std::to_string(p.source >> 32) +
            ", \"partition\": " + std::to_string(p.source & 0xFFFFFFFF) + ", \"offset\": " + std::to_string(p.offset) + "}";
  }
};

class Runner : public Keeper {
 public:
  const RuleDef& rule;
  Evaluator& eval;
  const KeyTable& keys;
  const Limits& limits;
  Counters counters;
  std::vector<Match>* out = nullptr;
  bool show_suppressed = false;
  Mute mute;
  Budget* budget = nullptr;
  QuotedTexts* texts = nullptr;
  const bool* defers = nullptr;  // messages are made by `render`, if at all
  const std::vector<std::string>* topics = nullptr;  // with any, coordinates are (topic, partition, offset), not line numbers
  Trace* trace = nullptr;

  Runner(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) : rule(r), eval(e), keys(k), limits(l) {}
  virtual void event(State& s, const Event& e) = 0;
  int64_t suppress() const override { return rule.suppress; }
  void note_event(const Event& e);  // for a trace
  // The whole line of a match, its message included.
  void render(const Match& m, std::string& out);

 protected:
  bool fits(int bracket, const Event& e, Reader& reader) {
    if (!(e.brackets >> bracket & 1)) return false;
    for (int c : rule.brackets[bracket].conditions)
      if (!eval.of_run(c, reader, rule, (int64_t)e.row).is_true()) return false;
    return true;
  }
  // Notes for a trace, in trace.cpp: what a condition read, leaf by leaf; and how `having` stands, part by part.
  void note_reads(int node, Reader& reader, int64_t row);
  void note_having(const char* what, int64_t event, Reader& reader, int64_t row, int64_t start, int64_t count, bool armed = true);
  bool is_suppressed(const State& s, int64_t at) const {
    return rule.suppress >= 0 && s.alerted != LONG_AGO && at - s.alerted <= rule.suppress;
  }
  // A match that nobody will see: counted, and not worked out.
  bool passed_in_silence(State& s, int64_t at) {
    if (show_suppressed || !is_suppressed(s, at)) return false;
    counters.suppressed++;
    return true;
  }
  void write(State& s, const Place& last, int64_t start, int64_t end, int64_t at, const std::vector<Listed>& steps,
             Reader& reader, int64_t row, const int64_t* count = nullptr);

 private:
  std::vector<Value> told_;  // by the message at hand
  void read_message(Reader& reader, int64_t row);
  size_t quote(Match& m);
  template <class Told>
  void write_message(std::string& line, Told told);
};

std::unique_ptr<Runner> sequence_runner(const RuleDef&, Evaluator&, const KeyTable&, const Limits&);
std::unique_ptr<Runner> aggregate_runner(const RuleDef&, Evaluator&, const KeyTable&, const Limits&);
std::unique_ptr<Runner> session_runner(const RuleDef&, Evaluator&, const KeyTable&, const Limits&);
std::unique_ptr<Runner> window_runner(const RuleDef&, Evaluator&, const KeyTable&, const Limits&);

}  // namespace samovar
