// A program of rules and what it is run with: words, text, event types, stored rows, events.
#include "fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in{data, data + size};
  std::vector<int64_t> words = in.words();
  std::string text = in.sized(4);
  std::vector<std::string> types;
  for (uint64_t n = in.number(1); n > 0; n--) types.push_back(in.sized(1));
  const char* fault;
  Program* program = samovar_program_new(words.data(), words.size(), text.data(), text.size(), &fault);
  if (!program) return 0;
  run(program, in, types);
  samovar_program_free(program);
  return 0;
}
