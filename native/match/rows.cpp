// States as rows of bytes: what a store keeps and a changelog carries. Format 1.
//
//   row key     the key's bytes (length, bytes), store name (length, text), then 0 for the header, or 0 and the number
//               (4 bytes big end first) of a further part of it, or 1 and the chunk's number (8 bytes). So all rows of
//               a key stand together, store by store, header first.
//   header      format (1), in the first part 8 bytes: when it must be looked at (big end first, sign flipped; all ones:
//               never) and the number of parts; then in all parts end to end: last alert, first and end number of the
//               queue's events, whether they follow, what the form packs, and the events themselves where they are few
//   chunk c     format (1), first number, how many, then events c * Sizes::chunk .. : place, number in its key, brackets, values
//
// Few events are in the header, many in chunks. Chunks are only ever appended to. Events before the header's first number are gone, whether or not a chunk has them.
// For a digest a state is one row: its header without deadline and parts, then the events of its queue.
#include "match/engine.h"

namespace samovar {
namespace {

constexpr uint64_t FORMAT = 1;
constexpr uint64_t SIGN = 1ull << 63;

void pack_events(const EventLog& log, int64_t from, int64_t to, int64_t base, Packer& p) {
  p.raw((uint64_t)(to - from));
  for (int64_t n = from; n < to; n++) {
    const Held& h = log.at(n);
    p.place(h.place);
    p.num(base - h.number);
    p.raw(h.brackets);
    for (int k = 0; k < log.width(); k++) p.value(log.value(n, k));
  }
}

}  // namespace

void Engine::row_key(const Store& store, uint32_t key, char kind, int64_t number, std::string& out) const {
  Packer p;
  p.text(keys_.bytes(key));
  p.text(store.name);
  p.bytes.push_back(kind);
  if (kind == CHUNK_ROW) put_big(p.bytes, (uint64_t)number, 8);
  else if (number > 0) put_big(p.bytes, (uint64_t)number, 4);
  out = p.bytes;
}

// A state's header, in as many rows as it needs. Of those, only what changed since the last time goes out.
void Engine::pack_header(Store& store, State& s, const std::string& bytes, Rows which, RowList& out) {
  size_t part_bytes = (size_t)sizes.part_bytes;
  size_t parts = std::max<size_t>(1, (bytes.size() + part_bytes - 1) / part_bytes), before = s.stored_parts.size();
  std::vector<uint64_t> hashes;
  std::string key;
  for (size_t k = 0; k < parts; k++) {
    Packer p;
    p.raw(FORMAT);
    if (k == 0) { put_big(p.bytes, (uint64_t)s.scheduled ^ SIGN, 8); p.raw(parts); }
    p.bytes.append(bytes, k * part_bytes, part_bytes);
    hashes.push_back(hash_bytes(p.bytes.data(), p.bytes.size()));
    bool same = which == Rows::CHANGED && s.stored && k < before && s.stored_parts[k] == hashes[k];
    if (same) continue;
    row_key(store, s.key, HEADER_ROW, (int64_t)k, key);
    out.add(key, &p.bytes);
  }
  if (which != Rows::CHANGED) return;
  if (s.stored) for (size_t k = parts; k < before; k++) {
    row_key(store, s.key, HEADER_ROW, (int64_t)k, key);
    out.add(key, nullptr);
  }
  s.stored_parts = std::move(hashes);
}

void Engine::note_at_work(const Store& store, uint32_t key) {
  size_t place = (size_t)(&store - stores_.data());
  budget.rule = place < runners.size() ? (int)place : -1;
  budget.key = key;
}

void Engine::pack_state(Store& store, State& s, Rows which, RowList& out) {
  note_at_work(store, s.key);
  bool canonical = which == Rows::CANONICAL;
  EventLog* log = store.keeper->log(s);
  Packer p;
  p.canonical = canonical;
  bool quiet = s.alerted == LONG_AGO;
  p.num(quiet ? -1 : s.alerted);
  p.num(quiet);
  bool in_header = log && log->size() <= (s.chunked ? sizes.few / 4 : sizes.few);
  if (log) { p.num(canonical ? 0 : log->begin()); p.num(canonical ? log->size() : log->end()); }
  if (log && !canonical) p.raw(in_header);
  store.keeper->pack(s, p);
  std::string key;
  if (canonical) {
    if (log) pack_events(*log, log->begin(), log->end(), store.keeper->number(s), p);
    row_key(store, s.key, HEADER_ROW, 0, key);
    out.add(key, &p.bytes);
    return;
  }
  if (in_header) pack_events(*log, log->begin(), log->end(), 0, p);
  pack_header(store, s, p.bytes, which, out);
  if (log) pack_chunks(store, s, *log, in_header, which, out);
  if (which != Rows::CHANGED) return;
  if (s.scheduled != NEVER && !(s.stored && s.indexed == s.scheduled)) {
    key.clear();
    put_big(key, (uint64_t)s.scheduled ^ SIGN, 8);
    deadlines.add(key, &keys_.bytes(s.key));
  }
  s.indexed = s.scheduled;
  s.stored = true;
  s.dirty = false;
  s.chunked = log && !in_header;
  s.stored_from = s.chunked ? log->begin() : 0;
  s.stored_to = s.chunked ? log->end() : 0;
}

void Engine::pack_chunks(Store& store, State& s, const EventLog& log, bool in_header, Rows which, RowList& out) {
  std::string key;
  int64_t size = sizes.chunk;
  int64_t from = which == Rows::ALL || !s.chunked ? log.begin() : std::max(log.begin(), s.stored_to);
  for (int64_t c = from / size; !in_header && c * size < log.end() && from < log.end(); c++) {
    Packer chunk;
    chunk.raw(FORMAT);
    int64_t first = std::max(log.begin(), c * size), end = std::min(log.end(), (c + 1) * size);
    chunk.num(first);
    pack_events(log, first, end, 0, chunk);
    row_key(store, s.key, CHUNK_ROW, c, key);
    out.add(key, &chunk.bytes);
  }
  if (which == Rows::CHANGED && s.chunked)
    for (int64_t c = s.stored_from / size; (in_header || (c + 1) * size <= log.begin()) && c * size < s.stored_to; c++) {
      row_key(store, s.key, CHUNK_ROW, c, key);
      out.add(key, nullptr);
    }
}

void Engine::dump(Rows which, int64_t watermark, RowList& out) {
  if (which == Rows::CHANGED) { dump_changes(out); return; }
  for (auto& store : stores_) store.states.each([&](uint32_t, State* s) {
    if (which == Rows::CANONICAL) {  // what no rule can see any more is not part of it
      int64_t quiet = store.keeper->suppress();
      if (s->alerted != LONG_AGO && (quiet < 0 || watermark - s->alerted > quiet)) s->alerted = LONG_AGO;
      store.keeper->on_time(*s, watermark);
      if (store.keeper->empty(*s, watermark)) return;
    }
    pack_state(store, *s, which, out);
  });
}

void Engine::dump_changes(RowList& out) {
  deadlines.clear();
  for (auto& row : gone_) out.add(row, nullptr);
  gone_.clear();
  for (auto& store : stores_) {
    // In the order of rows: a store takes what is sorted much faster.
    std::sort(store.dirty.begin(), store.dirty.end(), [&](uint32_t a, uint32_t b) {
      const std::string &x = keys_.bytes(a), &y = keys_.bytes(b);
      return x.size() != y.size() ? x.size() < y.size() : x < y;
    });
    for (uint32_t key : store.dirty) {
      State* s = store.states.find(key);
      if (s && s->dirty) pack_state(store, *s, Rows::CHANGED, out);
    }
    store.dirty.clear();
  }
}

// A state being read back: header parts first, then chunks.
struct Engine::Loading {
  Store* store = nullptr;
  State* state = nullptr;
  std::string header;
  uint64_t parts_left = 0;
  int64_t begin = 0, end = 0, scheduled = NEVER;
  std::vector<uint64_t> hashes;
  std::vector<std::string> chunks;  // rows
  bool other_chunks = false;        // they were cut otherwise than they would be now
};

bool Engine::load_header(Loading& l) {
  Unpacker u{l.header.data(), l.header.data() + l.header.size()};
  int64_t alerted = u.sane();
  l.state->alerted = u.num() ? LONG_AGO : alerted;
  if (EventLog* log = l.store->keeper->log(*l.state)) {
    l.begin = u.num();
    l.end = u.num();
    l.state->chunked = !u.raw();
    if (u.bad || l.begin < 0 || l.end < l.begin || l.end > INT64_MAX / 2) return false;
    log->restart(l.begin);
  }
  l.store->keeper->unpack(*l.state, u);
  if (EventLog* log = l.store->keeper->log(*l.state)) if (!l.state->chunked && !load_events(l, *log, l.begin, u)) return false;
  return !u.bad && u.at == u.end;
}

bool Engine::load_events(Loading& l, EventLog& log, int64_t first, Unpacker& u) {
  size_t count = u.count();
  std::vector<Value> values;
  for (size_t n = 0; n < count && !u.bad; n++, first++) {
    Held h;
    h.place = u.place();
    h.number = -u.sane();
    h.brackets = u.raw();
    bool keep = first >= l.begin && first < l.end;
    if (keep && first != log.end()) return false;
    values.clear();
    for (int w = 0; w < log.width(); w++) values.push_back(u.value());
    if (keep) log.push(h, values.data());
  }
  return !u.bad;
}

bool Engine::load_chunk(Loading& l, std::string_view row, int64_t number, Unpacker& value) {
  EventLog* log = l.store->keeper->log(*l.state);
  if (!log || l.parts_left) return false;
  if (!l.state->chunked) return false;
  int64_t first = value.num();
  if (value.bad || first < 0 || first > INT64_MAX / 2) return false;
  Unpacker rest = value;
  int64_t end = first + (int64_t)rest.count();
  l.chunks.emplace_back(row);
  l.other_chunks = l.other_chunks || first / sizes.chunk != number || (end - 1) / sizes.chunk != number;
  return load_events(l, *log, first, value);
}

// All rows of the state are read: it can go to work, or was damaged and goes.
bool Engine::finish_loading(Loading& l) {
  State* s = l.state;
  l.state = nullptr;
  if (!s) return true;
  EventLog* log = l.store->keeper->log(*s);
  bool good = !l.parts_left && (!log || (log->begin() == l.begin && log->end() == l.end)) && l.store->keeper->sound(*s);
  if (!good) { remove(*l.store, s); return false; }
  l.store->keeper->loaded(*s);
  s->stored = true;
  s->stored_from = s->chunked ? l.begin : 0;
  s->stored_to = s->chunked ? l.end : 0;
  s->stored_parts = std::move(l.hashes);
  if (l.other_chunks) {  // all of them are written again
    for (auto& row : l.chunks) gone_.push_back(row);
    s->chunked = false;
    s->stored_from = s->stored_to = 0;
    mark(*l.store, *s);
  }
  // The hour that was stored is the one that an index of deadlines has, and never later than the state's own.
  s->scheduled = s->indexed = l.scheduled;
  known.add(keys_.bytes(s->key));
  if (s->scheduled == NEVER) return true;
  l.store->heap.push_back({s->scheduled, s->key});
  std::push_heap(l.store->heap.begin(), l.store->heap.end(), std::greater<>());
  return true;
}

bool Engine::load_row(Loading& l, std::string_view row, std::string_view bytes) {
  Unpacker k{row.data(), row.data() + row.size()}, value{bytes.data(), bytes.data() + bytes.size()};
  std::string_view key = k.text(), name = k.text();
  if (k.bad || k.at >= k.end || value.raw() != FORMAT || !is_key(key)) return false;
  char kind = *k.at++;
  if (kind == HEADER_ROW && k.at == k.end) {
    if (!finish_loading(l)) return false;
    l = Loading();
    for (auto& candidate : stores_) if (candidate.name == name) l.store = &candidate;
    if (value.end - value.at < 8) return false;
    l.scheduled = (int64_t)(get_big(value.at, 8) ^ SIGN);
    value.at += 8;
    l.parts_left = value.raw();
    if (!l.store) return true;  // of a rule that is not here
    uint32_t id = keys_.find_or_add(key);
    note_at_work(*l.store, id);
    if (State* old = l.store->states.find(id)) { old->stored = false; remove(*l.store, old); }
    l.state = find_or_add(*l.store, id);
  }
  if (!l.state) return true;
  if (kind == CHUNK_ROW) return k.end - k.at == 8 && load_chunk(l, row, (int64_t)get_big(k.at, 8), value);
  if (l.parts_left == 0) return false;
  l.header.append(value.at, (size_t)(value.end - value.at));
  l.hashes.push_back(hash_bytes(bytes.data(), bytes.size()));
  return --l.parts_left > 0 || load_header(l);
}

bool Engine::load(const char* data, const int64_t* ends, size_t rows) {
  Loading l;
  bool good = true;
  const char* at = data;
  for (size_t k = 0; good && k < rows; k++) {
    std::string_view row(at, (size_t)(data + ends[2 * k] - at)), value(data + ends[2 * k], (size_t)(ends[2 * k + 1] - ends[2 * k]));
    good = load_row(l, row, value);
    at = data + ends[2 * k + 1];
  }
  if (!good && l.state) { remove(*l.store, l.state); l.state = nullptr; }
  good = finish_loading(l) && good;
  keys_.sweep();
  return good;
}

size_t Engine::live() const {
  size_t n = 0;
  for (auto& s : stores_) n += s.states.size();
  return n;
}

int64_t Engine::partials(int rule) const {
  int64_t n = 0;
  stores_[(size_t)rule].states.each([&](uint32_t, State* s) { n += stores_[(size_t)rule].keeper->partials(*s); });
  return n;
}

bool Engine::describe(int rule, const std::string& key, std::string& out) {
  uint32_t id = keys_.find_or_add(key);
  State* s = stores_[(size_t)rule].states.find(id);
  if (s) stores_[(size_t)rule].keeper->describe(*s, out);
  keys_.sweep();
  return s != nullptr;
}

}  // namespace samovar
