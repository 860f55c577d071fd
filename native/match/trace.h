// What happened to one key, for the person who asks why a rule did or did not fire. Each note is a line of JSON, and
// patterns/explain/why.py reads them. A run without tracing never comes here.
#pragma once
#include <string>

#include "match/output.h"

namespace samovar {

struct Trace {
  std::string notes;
  int rule = 0;

  // A note is begun, may get parts, and is ended.
  void begin(const char* what, int64_t event);
  void part(const char* name, int64_t value);
  std::string& raw_part(const char* name);  // the caller writes the value
  void end() { notes += "}\n"; }

  void plain(const char* what, int64_t event) { begin(what, event); end(); }
  void killed(int64_t event, int step, int bracket) {
    begin("killed", event);
    part("step", step);
    part("bracket", bracket);
    end();
  }
  void matched(int64_t event, int64_t at, bool suppressed) {
    begin("match", event);
    part("at", at);
    part("suppressed", suppressed);
    end();
  }
};

}  // namespace samovar
