#include "match/budget.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

namespace samovar {
namespace {
constexpr size_t RESERVE_BYTES = 32 << 20;  // never touched, so it takes addresses and no memory
std::atomic<void*> reserve{nullptr};
}  // namespace

void hold_reserve() {
  if (reserve.load(std::memory_order_relaxed)) return;
  void *none = nullptr, *room = malloc(RESERVE_BYTES);
  if (room && !reserve.compare_exchange_strong(none, room)) free(room);
}
void release_reserve() { free(reserve.exchange(nullptr)); }

void Budget::pass(bool hard, Verdict v) {
  if (!passed_soft) {
    passed_soft = true;
    write_mark();
  }
  if (hard && !over()) verdict = v;
}

void Budget::write_mark() {
  if (mark.empty() || rule < 0 || !describe) return;
  size_t size = 0;
  const char* text = describe(describes, rule, key, &size);
  int file = open(mark.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  while (size) {
    ssize_t n = ::write(file, text, size);
    if (n <= 0) break;
    text += n;
    size -= (size_t)n;
  }
  close(file);
}

}  // namespace samovar
