// Memory for many things of few sizes: states, and the events that they hold. Taken in large pieces, given out in the
// order in which it is asked for, so that what is made together stands together; kept for the next one of that size.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace samovar {

class Pool {
  static constexpr size_t GRAIN = 64, LARGEST = 4096, LEAST = 1 << 12, MOST = 1 << 20;
  struct Free { Free* next; };
  std::vector<Free*> free_ = std::vector<Free*>(LARGEST / GRAIN + 1);
  std::vector<void*> pieces_;
  char *at_ = nullptr, *end_ = nullptr;
  size_t size_ = LEAST;  // of the next piece
  size_t used_ = 0;      // how much is given out of the pieces

  static size_t rounded(size_t n) { return (n + GRAIN - 1) / GRAIN * GRAIN; }
  static void* checked(void* p) {
    if (!p) abort();
    return p;
  }
  void next_piece() {
    // What is left of the old one is still good for something smaller.
    for (size_t left = (size_t)(end_ - at_); left >= GRAIN; left = (size_t)(end_ - at_)) {
      size_t n = left < LARGEST ? left / GRAIN * GRAIN : LARGEST;
      keep(at_, n);
      at_ += n;
    }
    at_ = (char*)checked(aligned_alloc(GRAIN, size_));
    end_ = at_ + size_;
    pieces_.push_back(at_);
    if (size_ < MOST) size_ *= 2;
  }
  void keep(void* p, size_t n) {
    Free* f = (Free*)p;
    f->next = free_[n / GRAIN];
    free_[n / GRAIN] = f;
  }
  void clear() {
    for (void* p : pieces_) free(p);
    pieces_.clear();
    for (auto& f : free_) f = nullptr;
    at_ = end_ = nullptr;
    size_ = LEAST;
  }

 public:
  Pool() {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { clear(); }

  void* take(size_t n) {
    if (n > LARGEST) return checked(malloc(n));
    n = rounded(n);
    used_ += n;
    if (Free* f = free_[n / GRAIN]) {
      free_[n / GRAIN] = f->next;
      return f;
    }
    if (n > (size_t)(end_ - at_)) next_piece();
    void* p = at_;
    at_ += n;
    return p;
  }
  void give(void* p, size_t n) {
    if (!p) return;
    if (n > LARGEST) { free(p); return; }
    n = rounded(n);
    used_ -= n;
    keep(p, n);
    if (!used_ && pieces_.size() > 1) clear();
  }
};

}  // namespace samovar
