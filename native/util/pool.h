// Memory for many things of few sizes: states, and the events that they hold. Taken in large pieces, given out in the
// order in which it is asked for, so that what is made together stands together; kept for the next one of that size.
//
// Sizes that are powers of two are blocks with a neighbour, their buddy. Two free buddies become one block of twice the
// size: queues that grow at one pace would else leave all their smaller selves behind, as much again as they hold, and
// memory that is touched for the first time is the dearest there is.
//
//   region, 64 KB   256 bytes of marks, a bit a block of each size: whether it is free; then the blocks
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace samovar {

class Pool {
  static constexpr size_t GRAIN = 64, LARGEST = 4096, REGION = 1 << 16, LEAST = 1 << 12, MOST = 1 << 20;
  static constexpr int TOP = 6;             // GRAIN << TOP is LARGEST
  static constexpr size_t MARKS = 256;      // bytes at the beginning of a region
  struct Free { Free* next; };
  std::vector<Free*> free_ = std::vector<Free*>(LARGEST / GRAIN + 1);
  std::vector<char*> blocks_[TOP + 1];      // free ones; one that is no longer marked has been joined with its buddy
  std::vector<void*> pieces_;
  char *at_ = nullptr, *end_ = nullptr;     // of a piece for other sizes
  char *region_ = nullptr, *regions_end_ = nullptr, *top_ = nullptr;  // the region at hand, and its next block
  size_t size_ = LEAST, regions_ = REGION;  // of the next pieces
  size_t used_ = 0;                         // how much is given out of the pieces

  static size_t rounded(size_t n) { return (n + GRAIN - 1) / GRAIN * GRAIN; }
  static void* checked(void* p) {
    if (!p) throw std::bad_alloc();
    return p;
  }
  char* piece(size_t alignment, size_t& size) {
    pieces_.emplace_back();  // first, so that the new piece always has an owner
    pieces_.back() = checked(aligned_alloc(alignment, size));
    if (size < MOST) size *= 2;
    return (char*)pieces_.back();
  }

  // ---- blocks and their buddies
  struct Mark {
    uint64_t* word;
    uint64_t bit;
    Mark(char* block, int order) {
      uintptr_t at = (uintptr_t)block & (REGION - 1);
      // Marks of an order begin where those of all smaller ones end: 1024, 512, 256 and so on of them.
      size_t n = (REGION / GRAIN * 2 - (REGION / GRAIN * 2 >> order)) + (at / GRAIN >> order);
      word = (uint64_t*)(block - at) + n / 64;
      bit = 1ull << n % 64;
    }
    bool set() const { return *word & bit; }
    void flip() const { *word ^= bit; }
  };
  // Destructors come here too, so it never fails: a block that cannot be listed is found again by its buddy.
  void keep_block(char* p, int order) noexcept {
    Mark(p, order).flip();
    try {
      blocks_[order].push_back(p);
    } catch (const std::bad_alloc&) {
    }
  }
  void next_region() {
    if (region_ == regions_end_) {
      size_t size = regions_;
      region_ = piece(REGION, regions_);
      regions_end_ = region_ + size;
    }
    memset(region_, 0, MARKS);
    for (int order = TOP - 1; GRAIN << order >= MARKS; order--) keep_block(region_ + (GRAIN << order), order);
    top_ = region_ + LARGEST;
    region_ += REGION;
  }
  char* block(int order) {
    for (auto& list = blocks_[order]; !list.empty();) {
      char* p = list.back();
      list.pop_back();
      Mark mark(p, order);
      if (!mark.set()) continue;
      mark.flip();
      return p;
    }
    if (order == TOP) {
      if (top_ == region_) next_region();
      char* p = top_;
      top_ += LARGEST;
      return p;
    }
    char* p = block(order + 1);
    keep_block(p + (GRAIN << order), order);
    return p;
  }
  void give_block(char* p, int order) {
    for (; order < TOP; order++) {
      char* buddy = (char*)((uintptr_t)p ^ (GRAIN << order));
      Mark mark(buddy, order);
      if (!mark.set()) break;
      mark.flip();
      if (buddy < p) p = buddy;
    }
    keep_block(p, order);
  }
  static int order_of(size_t n) { return std::countr_zero(n / GRAIN); }

  // ---- other sizes
  void next_piece() {
    // What is left of the old one is still good for something smaller.
    for (size_t left = (size_t)(end_ - at_); left >= GRAIN; left = (size_t)(end_ - at_)) {
      size_t n = left < LARGEST ? left / GRAIN * GRAIN : LARGEST;
      keep(at_, n);
      at_ += n;
    }
    size_t size = size_;
    at_ = piece(GRAIN, size_);
    end_ = at_ + size;
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
    for (auto& list : blocks_) list.clear();
    at_ = end_ = region_ = regions_end_ = top_ = nullptr;
    size_ = LEAST;
    regions_ = REGION;
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
    if (std::has_single_bit(n)) return block(order_of(n));
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
    if (std::has_single_bit(n)) give_block((char*)p, order_of(n));
    else keep(p, n);
    if (!used_ && pieces_.size() > 1) clear();
  }
};

}  // namespace samovar
