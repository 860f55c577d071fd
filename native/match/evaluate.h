// Evaluation of expressions: whole columns for what reads one event, one value at a time for what reads a run.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "decode/batch.h"
#include "match/held.h"
#include "match/keys.h"
#include "util/owned.h"
#include "match/program.h"

namespace samovar {

// A function that is written in Python: it fills *out; text it gives is copied at once. The tag comes last: where it is
// still UNANSWERED, the function failed.
constexpr uint32_t UNANSWERED = ~0u;
using PythonCall = void (*)(int64_t function, const Value* args, int64_t n, Value* out);

// What a run knows: the leaves LAST, AGG and LASTEVENT of conditions across steps, `having` and `emit`.
struct Reader {
  virtual ~Reader() {}
  virtual Value last(int name, int slot) = 0;
  virtual Value aggregate(const AggRef& ref) = 0;
  virtual Value last_event(int slot) = 0;
};

struct HistoryHook {
  virtual ~HistoryHook() {}
  virtual void fill(int history, const std::vector<uint32_t>& rows, std::vector<Value>& out) = 0;
};

class Evaluator {
 public:
  const Program& program;
  size_t memo_most = 200000;  // results of Python functions that are remembered; beyond it all of them are forgotten
  Batch scratch;  // text made by functions; lives as long as one step
  HistoryHook* histories = nullptr;

  // What is worked on, as far as it is known: a rule, and the number of a key.
  int rule_at_hand = -1;
  int64_t key_at_hand = -1;
  // A function failed. From then on every function gives null, and the step is good for nothing.
  struct Failure {
    int node = -1, rule = -1;
    int64_t key = -1, row = -1;
  } failure;
  bool failed() const { return failure.node >= 0; }

  Evaluator(const Program& p, PythonCall call) : program(p), call_(call), columns_(p.nodes.size()), done_(p.nodes.size()), masks_(p.nodes.size()) {}

  // From here on, rows are those of a slice of the batch: `count` of them, the first is row `base`.
  void begin(Batch* batch, size_t base, size_t count);
  const std::vector<uint32_t>& rows_of(int type) const { return type < 0 ? all_ : by_type_[type]; }
  const Value* column(int node, int type);  // evaluated for the rows of that type
  Value at_row(int node, size_t row) {
    if (const Value* near = near_[(size_t)node]) return near[row];
    if (order_) row = (uint32_t)order_[row];
    if (const Value* all = ready_[(size_t)node]) return all[row];
    return column(node, type_of_[row])[row];
  }
  // From here on, the rows of `at_row` and `of_run` are places in an order of rows (the lower halves of its numbers).
  // What stands ready of these nodes is put in that order with its short texts, for all rules that go through it.
  void arrange(const std::vector<uint64_t>& order, const std::vector<int>& nodes);
  int64_t came_as(int64_t row) const { return order_ && row >= 0 ? (int64_t)(uint32_t)order_[row] : row; }
  void as_they_came();
  // One bit per row: which rows of the type there are, and for which of them the node is true.
  const uint64_t* mask_of(int type) const { return type_masks_[type < 0 ? type_masks_.size() - 1 : (size_t)type].data(); }
  const uint64_t* mask(int node, int type);
  size_t mask_words() const { return (rows_ + 63) / 64; }
  const Value* ready(int node) const { return ready_[(size_t)node]; }
  int type_of(size_t row) const { return type_of_[row]; }
  Value of_run(int node, Reader& reader, const RuleDef& rule, int64_t row);  // row -1: no event at hand
  Value apply(const Node& n, const Value* args, int count);
  size_t rows() const { return rows_; }
  int64_t time_of(size_t row) const { return batch_->time[base_ + row]; }
  const Value& type_text(size_t row) const { return batch_->type[base_ + row]; }
  Place place_of(size_t row) const {
    size_t r = base_ + row;
    return {batch_->time[r], (int64_t)batch_->stream[r] << 32 | (uint32_t)batch_->partition[r], batch_->offset[r]};
  }
  void prefetch_place(size_t row) const {
    __builtin_prefetch(&batch_->time[base_ + row]);
    __builtin_prefetch(&batch_->offset[base_ + row]);
  }

 private:
  PythonCall call_;
  Batch* batch_ = nullptr;
  size_t base_ = 0, rows_ = 0;
  std::vector<std::vector<Value>> columns_;
  std::vector<std::vector<char>> done_;
  std::vector<const Value*> ready_;  // columns that are there for every row of the slice
  std::vector<std::vector<uint32_t>> by_type_;
  std::vector<uint32_t> all_;
  std::vector<int> type_of_;  // -1: a type that no rule names
  std::unordered_map<std::string, Owned> memo_;
  struct Arranged {
    std::vector<Value> values;
    std::vector<char> text;
  };
  std::vector<Arranged> arranged_;
  std::vector<const Value*> near_;   // of a node: its values as arranged, or null
  const uint64_t* order_ = nullptr;  // null: rows are as they came
  using Mask = std::vector<uint64_t>;
  std::vector<Mask> type_masks_;           // a type each; the last one is of all rows
  std::vector<std::vector<Mask>> masks_;   // of a node, by type as in done_; empty where it was not asked for yet

  // A column, or a literal, which is the same on every row and needs none.
  struct Argument {
    const Value* at;
    size_t step;
    const Value& operator[](size_t row) const { return at[row * step]; }
  };
  int64_t row_ = -1;  // that `apply` works on; -1 where there is no event at hand

  Argument argument(int node, int type);
  template <class Give>
  void look_up(const LiteralSet& set, const Argument& values, const std::vector<uint32_t>& rows, Give give);
  void fill(int node, int type);
  void fill_mask(int node, int type, Mask& out);
  Value python(const Node& n, const Value* args, int count);
};

}  // namespace samovar
