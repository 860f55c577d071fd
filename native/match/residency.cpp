// Where a store holds more than fits in memory: which keys of a batch must be brought in before `step` sees it.
#include "match/engine.h"

namespace samovar {
namespace {
constexpr size_t STATE_BYTES = 320;  // a state with its places in tables and heaps, roughly
}  // namespace

// Keys that were not asked for before, as rows with no value; from now on they count as known.
bool Engine::find_cold(Batch& batch, RowList& out) {
  std::string key;
  auto visit = [&](int keyspec, size_t row, bool with_type) {
    if (keyspec < 0) return;
    key.clear();
    for (int node : program_.keyspecs[(size_t)keyspec]) if (!encode_key(key, eval_.at_row(node, row))) return;
    if (with_type) encode_key(key, eval_.type_text(row));
    if (known.add(key)) out.add(key, nullptr);
  };
  std::vector<char> typed(program_.keyspecs.size());
  for (auto& h : program_.histories) if (h.keyspec >= 0 && h.type < 0) typed[(size_t)h.keyspec] = 1;
  size_t slice = (size_t)std::min(sizes.cold, sizes.slice);
  for (size_t base = 0; base < batch.rows; base += slice) {
    size_t count = std::min(slice, batch.rows - base);
    eval_.begin(&batch, base, count);
    for (size_t spec = 0; spec < program_.keyspecs.size(); spec++)
      for (size_t row = 0; row < count; row++) {
        visit((int)spec, row, false);
        if (typed[spec]) visit((int)spec, row, true);
      }
    if (eval_.failed()) return false;
  }
  return true;
}

int64_t Engine::next_deadline() const {
  int64_t least = NEVER;
  for (auto& store : stores_) if (!store.heap.empty()) least = std::min(least, store.heap.front().first);
  return least;
}

// Memory that the states take, roughly: what a cache's limit is held against.
size_t Engine::bytes() const {
  size_t n = known.bytes();
  for (auto& store : stores_) store.states.each([&](uint32_t, State* s) {
    n += STATE_BYTES;
    if (EventLog* log = store.keeper->log(*s)) n += log->bytes();
    for (uint64_t part : s->stored_parts) n += sizeof part;
  });
  return n;
}

}  // namespace samovar
