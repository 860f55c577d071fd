// The C interface of the engine, for ctypes. Objects are handles; what is returned as text stays until the next call.
#include "util/boundary.h"
#include "match/engine.h"

using namespace samovar;

namespace {
struct Handle {
  Engine engine;
  std::string lines, buffer, keys;
  std::vector<int64_t> ends, key_ends;
  RowList rows;
  Handle(const Program& p, PythonCall call, Limits limits) : engine(p, call, limits) {}
};

// A key as people and other programs write it: one text as it is, anything else as a JSON array.
void write_key(std::string& out, const std::string& key) {
  std::vector<Value> values = decode_key(key);
  if (values.size() == 1 && values[0].tag == TEXT) { out.append(values[0].view()); return; }
  out.push_back('[');
  for (size_t k = 0; k < values.size(); k++) {
    if (k) out.push_back(',');
    write_value(out, values[k]);
  }
  out.push_back(']');
}


// In place of a count: see samovar_verdict and samovar_failure; or the batch has other columns than the program reads.
constexpr int64_t OVER_BUDGET = -1, FUNCTION_FAILED = -2, OTHER_BATCH = -3;

// Runs what takes memory for states. Where there is none, that is a verdict on the rule and the key at work.
template <class F>
int64_t within_memory(Handle* h, F f) {
  hold_reserve();
  try {
    return (int64_t)f();
  } catch (...) {
    h->engine.run_out_of_memory();
    return OVER_BUDGET;
  }
}
int64_t rows_in(const RowList& list) { return (int64_t)list.ends.size() / 2; }
}  // namespace

// Null with a `fault` where the words are not a program.
SAMOVAR_EXPORT Program* samovar_program_new(const int64_t* words, size_t n, const char* blob, size_t size, const char** fault) {
  *fault = nullptr;
  return make_object([&] {
    auto program = std::make_unique<Program>();
    *fault = program->read(words, n, blob, size);
    return *fault ? nullptr : program.release();
  });
}
SAMOVAR_EXPORT void samovar_program_free(Program* p) { delete p; }

SAMOVAR_EXPORT Handle* samovar_states_new(const Program* p, PythonCall call, int64_t max_partials, int64_t max_events, int64_t max_matches) {
  return make_object([&] { return new Handle(*p, call, Limits{max_partials, max_events, max_matches}); });
}
// Matches of a rule that no alert will tell of: see Mute.
SAMOVAR_EXPORT void samovar_mute(Handle* h, int rule, int shadow, int64_t before_at, int64_t after_start) {
  h->engine.runners[(size_t)rule]->mute = Mute{shadow != 0, before_at, after_start};
}
// What a step may take (see Budget), from the next one on; and where to leave a mark.
SAMOVAR_EXPORT int64_t samovar_budget(Handle* h, int64_t event_bytes, int64_t event_work, int64_t step_bytes, const char* mark, size_t size) {
  Budget& b = h->engine.budget;
  b.event_bytes_most = event_bytes;
  b.event_work_most = event_work;
  b.step_bytes_most = step_bytes;
  return done([&] { b.mark.assign(mark, size); });
}
// Whether a mark was written since this was asked for the last time.
SAMOVAR_EXPORT int samovar_marked(Handle* h) {
  bool passed = h->engine.budget.passed_soft;
  h->engine.budget.passed_soft = false;
  return passed;
}
// Why the last step was abandoned: the verdict (0: it was not), the rule or -1, and the key's bytes.
SAMOVAR_EXPORT int samovar_verdict(Handle* h, int* rule, const char** key, size_t* size) {
  const Budget& b = h->engine.budget;
  *rule = b.rule;
  h->buffer.clear();
  if (b.over() && b.rule >= 0) done([&] { h->buffer = h->engine.key_bytes(b.key); });
  *key = h->buffer.data();
  *size = h->buffer.size();
  return b.verdict;
}
SAMOVAR_EXPORT int64_t samovar_topic(Handle* h, const char* name, size_t size) {
  return done([&] { h->engine.topics.emplace_back(name, size); });
}
SAMOVAR_EXPORT void samovar_sizes(Handle* h, int64_t chunk, int64_t few, int64_t part_bytes, int64_t slice, int64_t cold, int64_t memo) {
  h->engine.sizes = Sizes{chunk, few, part_bytes, slice, cold};
  h->engine.remember(memo);
}
SAMOVAR_EXPORT void samovar_hold(Handle* h, int hold) { h->engine.hold = hold != 0; }
SAMOVAR_EXPORT void samovar_show_suppressed(Handle* h, int show) {
  for (auto& r : h->engine.runners) r->show_suppressed = show != 0;
}
// Only keys whose hash is in a part of all hashes, from the first up to and with the last; see KeyShare.
SAMOVAR_EXPORT void samovar_share(Handle* h, uint64_t first, uint64_t last) { h->engine.share = KeyShare{first, last}; }
// The hash of each row's key, by one of the program's keys; 0 where it has none.
SAMOVAR_EXPORT int64_t samovar_hash_keys(Handle* h, Batch* batch, int64_t keyspec, uint64_t* out) {
  if (!h->engine.takes(*batch)) return OTHER_BATCH;
  return within_memory(h, [&] { h->engine.hash_keys(*batch, (int)keyspec, out); return (int64_t)batch->rows; });
}
SAMOVAR_EXPORT void samovar_states_free(Handle* h) { delete h; }

// Rows [from, to) of the batch. How many matches there are, or why the step was abandoned. Then samovar_found and
// samovar_render, before the next step; with `defers` that makes the messages.
SAMOVAR_EXPORT int64_t samovar_step(Handle* h, Batch* batch, size_t from, size_t to, int64_t watermark, int defers) {
  if (!h->engine.takes(*batch)) return OTHER_BATCH;
  h->engine.defers = defers != 0;
  return within_memory(h, [&] {
    bool good = !h->engine.budget.over() && h->engine.step(*batch, from, to, watermark);
    if (h->engine.budget.over()) return OVER_BUDGET;
    return good ? (int64_t)h->engine.order.size() : FUNCTION_FAILED;
  });
}
// What filters read of the matches, in order: rule, start, time of detection, and whether it is muted; and their ids,
// end to end. Null where there is no memory for it.
SAMOVAR_EXPORT const char* samovar_found(Handle* h, int64_t* out) {
  h->buffer.clear();
  int64_t made = done([&] {
    for (uint32_t k : h->engine.order) {
      const Match& m = h->engine.matches[k];
      *out++ = m.rule; *out++ = m.start; *out++ = m.at; *out++ = m.muted;
      h->buffer += m.id();
    }
  });
  return made == NO_MEMORY ? nullptr : h->buffer.data();
}

// Of matches: beyond it a line is freed as soon as it was given out, though one by one costs time.
constexpr int64_t MUCH_BYTES = 128 << 20;

namespace {
// Lines and keys of matches, by their numbers in order. False where that is more than the step may take.
bool render(Handle* h, const int64_t* which, size_t n) {
  Engine& engine = h->engine;
  h->lines.clear();
  h->ends.clear();
  h->keys.clear();
  h->key_ends.clear();
  size_t bytes = 0;
  bool much = engine.budget.step_bytes > MUCH_BYTES;
  auto match = [&](size_t k) -> Match& { return engine.matches[engine.order[which ? (size_t)which[k] : k]]; };
  for (size_t k = 0; k < n; k++) bytes += match(k).line.size() + std::min(match(k).quoted_bytes, TEXT_MOST) + 64;
  if (h->lines.capacity() > 4 * bytes + (1 << 20)) std::string().swap(h->lines);  // it was much, once
  h->lines.reserve(bytes);
  for (size_t k = 0; k < n && !engine.budget.over(); k++) {
    Match& m = match(k);
    write_key(h->keys, m.key);
    h->key_ends.push_back((int64_t)h->keys.size());
    size_t before = h->lines.size();
    engine.runners[(size_t)m.rule]->render(m, h->lines);
    engine.budget.rendered(h->lines.size() - before - m.line.size());
    h->lines.push_back('\n');
    h->ends.push_back((int64_t)h->lines.size());
    if (much) std::string().swap(m.line);
  }
  return !engine.budget.over();
}
}  // namespace

// Lines and keys of n matches, by their numbers in order; all of them without `which`. How many, as with samovar_step.
SAMOVAR_EXPORT int64_t samovar_render(Handle* h, const int64_t* which, size_t n) {
  return within_memory(h, [&] { return render(h, which, n) ? (int64_t)n : OVER_BUDGET; });
}
// The rule, whether there is an event, its stream, partition and offset; returns the key's bytes.
SAMOVAR_EXPORT const char* samovar_failure(Handle* h, int64_t* out, size_t* size) {
  h->buffer.clear();
  std::fill(out, out + 5, 0);
  done([&] {
    Engine::Failure f = h->engine.failure();
    out[0] = f.rule; out[1] = f.has_event; out[2] = f.event.source >> 32; out[3] = f.event.source & 0xFFFFFFFF; out[4] = f.event.offset;
    h->buffer = std::move(f.key);
  });
  *size = h->buffer.size();
  return h->buffer.data();
}
SAMOVAR_EXPORT const char* samovar_lines(Handle* h) { return h->lines.data(); }
SAMOVAR_EXPORT const int64_t* samovar_line_ends(Handle* h) { return h->ends.data(); }
SAMOVAR_EXPORT const char* samovar_line_keys(Handle* h) { return h->keys.data(); }
SAMOVAR_EXPORT const int64_t* samovar_line_key_ends(Handle* h) { return h->key_ends.data(); }

// matches, suppressed, dropped partials, dropped events, dropped matches, events without a key, live partials; rule -1:
// histories
SAMOVAR_EXPORT void samovar_counters(Handle* h, int rule, int64_t* out) {
  const Counters& c = rule < 0 ? h->engine.history_counters : h->engine.runners[(size_t)rule]->counters;
  out[0] = c.matches; out[1] = c.suppressed; out[2] = c.dropped_partials; out[3] = c.dropped_events; out[4] = c.dropped_matches; out[5] = c.no_key;
  out[6] = rule < 0 ? 0 : h->engine.partials(rule);
}
// The first six of these, and nanoseconds spent on the rule: no walk over its states.
SAMOVAR_EXPORT void samovar_tallies(Handle* h, int rule, int64_t* out) {
  const Counters& c = h->engine.runners[(size_t)rule]->counters;
  out[0] = c.matches; out[1] = c.suppressed; out[2] = c.dropped_partials; out[3] = c.dropped_events; out[4] = c.dropped_matches; out[5] = c.no_key;
  out[6] = c.ns;
}
// Partials, events and matches that limits let go of, of all rules and histories.
SAMOVAR_EXPORT int64_t samovar_dropped(Handle* h) {
  int64_t n = h->engine.history_counters.dropped_events;
  for (auto& r : h->engine.runners) n += r->counters.dropped_partials + r->counters.dropped_events + r->counters.dropped_matches;
  return n;
}
SAMOVAR_EXPORT size_t samovar_live(Handle* h) { return h->engine.live(); }

// Rows as a list (residency.h): how many, and then the list with samovar_row_data and samovar_row_ends.
SAMOVAR_EXPORT int64_t samovar_dump(Handle* h, int which, int64_t watermark) {
  h->rows.clear();
  return within_memory(h, [&] {
    h->engine.dump((Engine::Rows)which, watermark, h->rows);
    return rows_in(h->rows);
  });
}
// Deadlines that are new since the changes before: time as 8 bytes (big end first, sign flipped), and the key's bytes.
SAMOVAR_EXPORT size_t samovar_deadlines(Handle* h) {
  std::swap(h->rows, h->engine.deadlines);
  return h->rows.ends.size() / 2;
}
// The same for stored rows, given as a list: time and key of every header that has a deadline.
SAMOVAR_EXPORT int64_t samovar_deadlines_of(Handle* h, const char* data, const int64_t* ends, size_t rows) {
  h->rows.clear();
  return or_failed(NO_MEMORY, [&] {
    const char* at = data;
    for (size_t k = 0; k < rows; k++) {
      Unpacker row{at, data + ends[2 * k]};
      const char *value = data + ends[2 * k], *end = data + ends[2 * k + 1];
      at = end;
      std::string key(row.text());
      row.text();
      bool header = !row.bad && row.end - row.at == 1 && *row.at == HEADER_ROW && end - value >= 9;
      if (header && get_big(value + 1, 8) != ~0ull) h->rows.add(std::string_view(value + 1, 8), &key);
    }
    return rows_in(h->rows);
  });
}
SAMOVAR_EXPORT int64_t samovar_cold(Handle* h, Batch* batch) {
  h->rows.clear();
  if (!h->engine.takes(*batch)) return OTHER_BATCH;
  return within_memory(h, [&] { return h->engine.find_cold(*batch, h->rows) ? rows_in(h->rows) : FUNCTION_FAILED; });
}
// Of these keys (a list with no values), those that were never looked for.
SAMOVAR_EXPORT int64_t samovar_unknown(Handle* h, const char* data, const int64_t* ends, size_t n) {
  h->rows.clear();
  return or_failed(NO_MEMORY, [&] {
    for (size_t k = 0; k < n; k++) {
      size_t from = k ? (size_t)ends[k - 1] : 0;
      std::string_view key(data + from, (size_t)ends[k] - from);
      if (h->engine.known.add(key)) h->rows.add(key, nullptr);
    }
    return rows_in(h->rows);
  });
}
// When the first state must be looked at, at the earliest.
SAMOVAR_EXPORT int64_t samovar_next_deadline(Handle* h) { return h->engine.next_deadline(); }
SAMOVAR_EXPORT const char* samovar_row_data(Handle* h) { return h->rows.data.data(); }
SAMOVAR_EXPORT const int64_t* samovar_row_ends(Handle* h) { return h->rows.ends.data(); }
SAMOVAR_EXPORT size_t samovar_bytes(Handle* h) { return h->engine.bytes(); }
// 1; 0 where the rows are damaged.
SAMOVAR_EXPORT int64_t samovar_load(Handle* h, const char* data, const int64_t* ends, size_t rows) {
  return within_memory(h, [&] { return h->engine.load(data, ends, rows); });
}

SAMOVAR_EXPORT const char* samovar_describe(Handle* h, int rule, const char* key, size_t key_size, size_t* size) {
  h->buffer.clear();
  *size = 0;
  return make_object([&] {
    h->engine.describe(rule, std::string(key, key_size), h->buffer);
    *size = h->buffer.size();
    return h->buffer.data();
  });
}
SAMOVAR_EXPORT int64_t samovar_trace(Handle* h, const char* key, size_t size) {
  h->engine.tracing = key != nullptr;
  return done([&] { h->engine.traced_key = key ? std::string(key, size) : std::string(); });
}
SAMOVAR_EXPORT const char* samovar_trace_notes(Handle* h, size_t* size) {
  h->buffer.swap(h->engine.trace.notes);
  h->engine.trace.notes.clear();
  *size = h->buffer.size();
  return h->buffer.data();
}

// ---------------------------------------------------------------- batches made from other batches and from arrays

// The named rows of one batch, appended to another that then owns their text.
SAMOVAR_EXPORT int64_t samovar_batch_append(Batch* to, const Batch* from, const int64_t* rows, size_t n) {
  return change_batch(to, to->rows, [&] {
    for (size_t k = 0; k < n; k++) {
      size_t r = (size_t)rows[k];
      to->time.push_back(from->time[r]);
      to->stream.push_back(from->stream[r]);
      to->partition.push_back(from->partition[r]);
      to->offset.push_back(from->offset[r]);
      to->type.push_back(to->keep(from->type[r]));
    }
    for (size_t c = 0; c < to->columns.size(); c++)
      for (size_t k = 0; k < n; k++) to->columns[c].push_back(to->keep(from->columns[c][(size_t)rows[k]]));
    to->rows += n;
  });
}
// Rows in another order, in place: what was row rows[k] becomes row k; rows not named are gone.
SAMOVAR_EXPORT int64_t samovar_batch_select(Batch* b, const int64_t* rows, size_t n) {
  auto pick = [&](auto& column) {
    std::decay_t<decltype(column)> out(n);
    for (size_t k = 0; k < n; k++) out[k] = column[(size_t)rows[k]];
    column.swap(out);
  };
  return change_batch(b, 0, [&] {
    pick(b->time); pick(b->stream); pick(b->partition); pick(b->offset); pick(b->type);
    for (auto& c : b->columns) pick(c);
    b->rows = n;
  });
}
SAMOVAR_EXPORT int64_t samovar_batch_rows_set(Batch* b, size_t n, const int64_t* time, const int32_t* stream, const int32_t* partition, const int64_t* offset) {
  return change_batch(b, 0, [&] {
    b->time.assign(time, time + n);
    b->stream.assign(stream, stream + n);
    b->partition.assign(partition, partition + n);
    b->offset.assign(offset, offset + n);
    b->type.assign(n, Value::nil());
    for (auto& c : b->columns) c.assign(n, Value::nil());
    b->rows = n;
  });
}
namespace {
Value value_at(Batch* b, int kind, const void* data, const int64_t* offsets, size_t r) {
  switch (kind) {
    case INT: return Value::integer(((const int64_t*)data)[r]);
    case FLOAT: return or_null(((const double*)data)[r]);
    case BOOL: return Value::boolean(((const uint8_t*)data)[r]);
  }
  Value v = Value::text((const char*)data + offsets[r], (size_t)(offsets[r + 1] - offsets[r]));
  v.tag = (uint32_t)kind;
  return b->keep(v);
}
}  // namespace
// One column from an array (column -1: the event types). kind: INT, FLOAT (8 bytes each), BOOL (1 byte each) or TEXT
// (with n + 1 offsets); `valid` has a byte per row, or is null. Text is copied.
SAMOVAR_EXPORT int64_t samovar_batch_fill(Batch* b, int64_t column, int kind, const void* data, const int64_t* offsets, const uint8_t* valid) {
  auto& out = column < 0 ? b->type : b->columns[(size_t)column];
  return done([&] {
    for (size_t r = 0; r < b->rows; r++) out[r] = valid && !valid[r] ? Value::nil() : value_at(b, kind, data, offsets, r);
  });
}
