// States as rows of bytes: what a store keeps and a changelog carries. Format 1.
//
//   row key     store name (length, text), the key's bytes (length, bytes), then 0 for the header
//               or 1 and the chunk's number, 8 bytes big end first. So a key's rows stand together, header first.
//   header      format (1), last alert, first and end number of the queue's events, then what the form packs
//   chunk c     format (1), how many, then events c * CHUNK .. : place, number in its key, brackets, values
//
// Chunks are only ever appended to. Events before the header's first number are gone, whether or not a chunk has them.
// The list that goes out and comes in is: key length, key, value length + 1 (0: the row is deleted), value.
#include "engine.h"

namespace samovar {
namespace {

constexpr uint64_t FORMAT = 1;

void add_row(std::string& out, const std::string& key, const std::string* value) {
  Packer p;
  p.text(key);
  p.raw(value ? value->size() + 1 : 0);
  if (value) p.bytes += *value;
  out += p.bytes;
}

void pack_events(const EventLog& log, int64_t from, int64_t to, int64_t base, Packer& p) {
  p.raw((uint64_t)(to - from));
  for (int64_t n = from; n < to; n++) {
    const Held& h = log.at(n);
    p.place(h.place);
    p.num(base - h.number);
    p.raw(h.brackets);
    for (int k = 0; k < log.width; k++) p.value(log.value(n, k));
  }
}

}  // namespace

void Engine::row_key(const Store& store, uint32_t key, int64_t chunk, std::string& out) const {
  Packer p;
  p.text(store.name);
  p.text(keys_.bytes(key));
  p.bytes.push_back(chunk < 0 ? 0 : 1);
  if (chunk >= 0) put_big(p.bytes, (uint64_t)chunk, 8);
  out += p.bytes;
}

void Engine::pack_state(Store& store, State& s, Rows which, std::string& out) {
  bool canonical = which == Rows::CANONICAL;
  EventLog* log = store.keeper->log(s);
  Packer p;
  p.canonical = canonical;
  p.raw(FORMAT);
  bool quiet = s.alerted == LONG_AGO;
  p.num(quiet ? -1 : s.alerted);
  p.num(quiet);
  if (log) { p.num(canonical ? 0 : log->begin()); p.num(canonical ? log->size() : log->end()); }
  store.keeper->pack(s, p);
  std::string key;
  if (canonical) {
    if (log) pack_events(*log, log->begin(), log->end(), store.keeper->number(s), p);
    row_key(store, s.key, -1, key);
    add_row(out, key, &p.bytes);
    return;
  }
  row_key(store, s.key, -1, key);
  add_row(out, key, &p.bytes);
  if (!log) { s.stored = true; s.dirty = false; return; }
  bool fresh = which == Rows::ALL || !s.stored;
  int64_t from = fresh ? log->begin() : std::max(log->begin(), s.stored_to);
  for (int64_t c = from / CHUNK; c * CHUNK < log->end() && from < log->end(); c++) {
    Packer chunk;
    chunk.raw(FORMAT);
    int64_t first = std::max(log->begin(), c * CHUNK), end = std::min(log->end(), (c + 1) * CHUNK);
    chunk.num(first);
    pack_events(*log, first, end, 0, chunk);
    key.clear();
    row_key(store, s.key, c, key);
    add_row(out, key, &chunk.bytes);
  }
  if (s.stored) for (int64_t c = s.stored_from / CHUNK; (c + 1) * CHUNK <= log->begin() && c * CHUNK < s.stored_to; c++) {
    key.clear();
    row_key(store, s.key, c, key);
    add_row(out, key, nullptr);
  }
  if (which == Rows::CHANGED) { s.stored = true; s.stored_from = log->begin(); s.stored_to = log->end(); s.dirty = false; }
}

void Engine::dump(Rows which, int64_t watermark, std::string& out) {
  if (which == Rows::CHANGED) {
    for (auto& row : gone_) add_row(out, row, nullptr);
    gone_.clear();
  }
  for (auto& store : stores_) {
    store.states.each([&](uint32_t, State* s) {
      if (which == Rows::CHANGED && !s->dirty) return;
      if (which == Rows::CANONICAL) {  // what no rule can see any more is not part of it
        store.keeper->on_time(*s, watermark);
        if (store.keeper->empty(*s, watermark)) return;
      }
      pack_state(store, *s, which, out);
    });
  }
}

bool Engine::load(const char* rows, size_t size) {
  Unpacker list{rows, rows + size};
  State* s = nullptr;
  Store* store = nullptr;
  int64_t begin = 0, end = 0;
  auto finish = [&] {
    if (!s) return;
    EventLog* log = store->keeper->log(*s);
    if (log && (log->begin() != begin || log->end() != end)) list.bad = true;
    store->keeper->loaded(*s);
    s->stored = true;
    s->stored_from = begin;
    s->stored_to = end;
    s->scheduled = NEVER;
    int64_t d = store->keeper->deadline(*s);
    s->scheduled = d;
    store->heap.push_back({d, s->key});
    std::push_heap(store->heap.begin(), store->heap.end(), std::greater<>());
    s = nullptr;
  };
  while (list.at < list.end && !list.bad) {
    std::string_view row = list.text();
    uint64_t length = list.raw();
    if (length == 0 || length - 1 > (uint64_t)(list.end - list.at)) return false;
    Unpacker value{list.at, list.at + length - 1};
    list.at += length - 1;
    Unpacker k{row.data(), row.data() + row.size()};
    std::string_view name = k.text(), key = k.text();
    if (k.bad || k.at >= k.end || value.raw() != FORMAT) return false;
    if (*k.at == 0) {
      finish();
      store = nullptr;
      for (auto& candidate : stores_) if (candidate.name == name) store = &candidate;
      if (!store) continue;  // of a rule that is not loaded
      uint32_t id = keys_.find_or_add(std::string(key));
      if (State* old = store->states.find(id)) { old->stored = false; remove(*store, old); id = keys_.find_or_add(std::string(key)); }
      s = find_or_add(*store, id);
      int64_t alerted = value.num();
      s->alerted = value.num() ? LONG_AGO : alerted;
      EventLog* log = store->keeper->log(*s);
      begin = end = 0;
      if (log) { begin = value.num(); end = value.num(); log->restart(begin); }
      store->keeper->unpack(*s, value);
    } else if (s) {
      EventLog* log = store->keeper->log(*s);
      if (!log) return false;
      int64_t first = value.num();
      size_t count = value.count();
      for (size_t n = 0; n < count && !value.bad; n++, first++) {
        Held h;
        h.place = value.place();
        h.number = -value.num();
        h.brackets = value.raw();
        bool keep = first >= begin && first < end;
        if (keep) log->push(h);
        for (int w = 0; w < log->width; w++) { Value v = value.value(); if (keep) log->set(w, v); }
      }
    }
    if (value.bad) return false;
  }
  finish();
  keys_.sweep();
  return !list.bad;
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
