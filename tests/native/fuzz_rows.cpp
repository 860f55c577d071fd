// Stored rows of states, and events after them. The first byte says which of the programs that seeds.py made they are
// for: the file at $SAMOVAR_FUZZ_PROGRAMS, each with its size in front.
#include "fuzzing.h"

namespace {
struct Compiled {
  Program* program;
  std::vector<std::string> types;
};
std::vector<Compiled> programs;

void read_programs() {
  const char* path = getenv("SAMOVAR_FUZZ_PROGRAMS");
  FILE* file = path ? fopen(path, "rb") : nullptr;
  if (!file) {
    fprintf(stderr, "SAMOVAR_FUZZ_PROGRAMS names no file; seeds.py makes it\n");
    exit(2);
  }
  std::string data;
  char some[4096];
  for (size_t n; (n = fread(some, 1, sizeof some, file)) > 0;) data.append(some, n);
  fclose(file);
  Input in{(const uint8_t*)data.data(), (const uint8_t*)data.data() + data.size()};
  while (in.left()) {
    std::string one = in.sized(4);
    Input part{(const uint8_t*)one.data(), (const uint8_t*)one.data() + one.size()};
    std::vector<int64_t> words = part.words();
    std::string text = part.sized(4);
    Compiled c;
    for (uint64_t n = part.number(1); n > 0; n--) c.types.push_back(part.sized(1));
    const char* fault;
    c.program = samovar_program_new(words.data(), words.size(), text.data(), text.size(), &fault);
    if (!c.program) {
      fprintf(stderr, "a seed is not a program: %s\n", fault);
      exit(2);
    }
    programs.push_back(c);
  }
}
}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  read_programs();
  return 0;
}
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Input in{data + 1, data + size};
  const Compiled& c = programs[data[0] % programs.size()];
  run(c.program, in, c.types);
  return 0;
}
