// What happened to one key, for the person who asks why a rule did or did not fire. Each note is a line of JSON.
#pragma once
#include <string>

#include "output.h"

namespace samovar {

struct Trace {
  std::string notes;
  void note(const char* what, int rule, int64_t event, int64_t a, int64_t b, int64_t c, int64_t d = 0) {
    char line[240];
    int n = snprintf(line, sizeof line, "{\"what\": \"%s\", \"rule\": %d, \"event\": %lld, \"step\": %lld, \"bracket\": %lld, \"index\": %lld, \"value\": %lld}\n",
                     what, rule, (long long)event, (long long)a, (long long)b, (long long)c, (long long)d);
    notes.append(line, (size_t)n);
  }
  int rule = 0;
  void killed(int64_t event, int step, int bracket) { note("killed", rule, event, step, bracket, 0); }
};

}  // namespace samovar
