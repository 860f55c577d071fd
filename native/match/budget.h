// What a step may take before it is abandoned: a backstop behind the limits of the language, which decide what is kept.
//
// Counted and never timed, so that the verdict does not depend on the machine: bytes that one event (or timer) makes one
// rule and key hold, work that it causes there, and bytes of matches that the whole step finds. The first two name a
// rule and a key; the third says only that the batch is too large to be taken at once. A step that is over its budget
// unwinds, and its states are of no more use: the caller throws them away.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace samovar {

struct Budget {
  enum Verdict : int { WITHIN = 0, EVENT_BYTES = 1, EVENT_WORK = 2, STEP_BYTES = 3, NO_MEMORY = 4 };
  static constexpr int64_t UNLIMITED = INT64_MAX;
  int64_t event_bytes_most = UNLIMITED, event_work_most = UNLIMITED, step_bytes_most = UNLIMITED;
  int64_t event_bytes = 0, event_work = 0, step_bytes = 0;
  Verdict verdict = WITHIN;
  int rule = -1;  // at work; -1: none in particular
  uint32_t key = 0;
  bool passed_soft = false;  // an eighth of what an event may take: the mark is written
  const char* (*describe)(void*, int rule, uint32_t key, size_t* size) = nullptr;  // what the mark says
  void* describes = nullptr;
  std::string mark;  // path of a file; empty: none is written

  bool over() const { return verdict != WITHIN; }
  void begin_step() {
    step_bytes = 0;
    rule = -1;
  }
  void begin_event() { event_bytes = event_work = 0; }
  void held(size_t bytes) {
    event_bytes += (int64_t)bytes;
    if (event_bytes > event_bytes_most / 8) pass(event_bytes > event_bytes_most, EVENT_BYTES);
  }
  void worked(size_t units) {
    event_work += (int64_t)units;
    if (event_work > event_work_most / 8) pass(event_work > event_work_most, EVENT_WORK);
  }
  // A match of so many bytes, of which so many are new: which those are depends on what the batch found before, and so
  // the event's verdict does not.
  void found(size_t bytes, size_t added) {
    held(bytes);
    rendered(added);
  }
  void rendered(size_t bytes) {
    step_bytes += (int64_t)bytes;
    if (step_bytes > step_bytes_most && !over()) verdict = STEP_BYTES;
  }
  void pass(bool hard, Verdict v);  // budget.cpp
  void write_mark();
};

// Memory that is kept while states are at work. When memory has run out it is given back, so that there is room to
// report that.
void hold_reserve();
void release_reserve();

}  // namespace samovar
