// The boundary to Python. No exception passes it: what a function could not do for lack of memory, its result says.
#pragma once
#include <cstdint>

#define SAMOVAR_EXPORT extern "C" __attribute__((visibility("default")))

namespace samovar {

// In place of a count; in place of a new object it is null. native/kernel.py raises an exception for both.
constexpr int64_t NO_MEMORY = INT64_MIN;

// What `f` returns, or `failed` where memory ran out. The only exceptions here are std::bad_alloc and
// std::length_error, which is the same for sizes beyond what any machine has.
template <class Result, class F>
Result or_failed(Result failed, F f) {
  try {
    return f();
  } catch (...) {
    return failed;
  }
}
template <class F>
auto make_object(F f) { return or_failed((decltype(f()))nullptr, f); }
// 0, or NO_MEMORY.
template <class F>
int64_t done(F f) {
  return or_failed(NO_MEMORY, [&]() -> int64_t { f(); return 0; });
}

}  // namespace samovar
