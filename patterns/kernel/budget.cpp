#include "budget.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace samovar {
namespace {
constexpr size_t RESERVE_BYTES = 32 << 20;  // never touched, so it takes addresses and no memory
std::atomic<void*> reserve{nullptr};
std::atomic<bool> handles{false};
thread_local Budget* current = nullptr;

// Returns whether it is worth another try.
bool give_up_reserve() {
  void* had = reserve.exchange(nullptr);
  if (Budget* b = current; b && b->verdict != Budget::NO_MEMORY) {
    b->verdict = Budget::NO_MEMORY;
    b->write_mark();
  }
  free(had);
  return had != nullptr;
}
void on_failed_new() {
  if (!give_up_reserve()) abort();
}
}  // namespace

MemoryWatch::MemoryWatch(Budget* b) : before_(current) {
  current = b;
  if (!handles.exchange(true)) std::set_new_handler(on_failed_new);
  if (!reserve.load(std::memory_order_relaxed)) {
    void *none = nullptr, *room = malloc(RESERVE_BYTES);
    if (room && !reserve.compare_exchange_strong(none, room)) free(room);
  }
}
MemoryWatch::~MemoryWatch() { current = before_; }

void* watched_malloc(size_t size) {
  void* p = malloc(size);
  while (!p && give_up_reserve()) p = malloc(size);
  if (!p) abort();
  return p;
}

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
