#include "match/sequence.h"

namespace samovar {

std::unique_ptr<Runner> sequence_runner(const RuleDef& r, Evaluator& e, const KeyTable& k, const Limits& l) {
  return std::make_unique<Sequence>(r, e, k, l);
}

}  // namespace samovar
