#include "match/output.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace samovar {

void write_text(std::string& out, std::string_view t) {
  static const char hex[] = "0123456789abcdef";
  out.push_back('"');
  size_t from = 0;
  for (size_t k = 0; k < t.size(); k++) {
    unsigned char c = (unsigned char)t[k];
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(t.data() + from, k - from);
    from = k + 1;
    out.push_back('\\');
    switch (c) {
      case '"': out.push_back('"'); break;
      case '\\': out.push_back('\\'); break;
      case '\n': out.push_back('n'); break;
      case '\r': out.push_back('r'); break;
      case '\t': out.push_back('t'); break;
      default: out += "u00"; out.push_back(hex[c >> 4]); out.push_back(hex[c & 15]);
    }
  }
  out.append(t.data() + from, t.size() - from);
  out.push_back('"');
}

static void write_whole(std::string& out, int64_t n) {
  char text[24];
  char* at = text + sizeof text;
  uint64_t u = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
  do { *--at = (char)('0' + u % 10); u /= 10; } while (u);
  if (n < 0) *--at = '-';
  out.append(at, (size_t)(text + sizeof text - at));
}

// n / 10000, with one digit behind the point at least and no zeros at the end.
static void write_decimal(std::string& out, int64_t n) {
  if (n < 0) { out.push_back('-'); n = -n; }
  write_whole(out, n / 10000);
  char digits[5] = {'.', (char)('0' + n / 1000 % 10), (char)('0' + n / 100 % 10), (char)('0' + n / 10 % 10), (char)('0' + n % 10)};
  size_t size = 5;
  while (size > 2 && digits[size - 1] == '0') size--;
  out.append(digits, size);
}

// The shortest decimal that reads as the same double.
void write_number(std::string& out, double x) {
  char text[40];
  if (!std::isfinite(x)) { out += "null"; return; }
  // Money and the like have few digits: then the decimal is found without trying.
  double up = x * 10000;
  if (std::fabs(up) < 9e15) {
    int64_t n = (int64_t)std::round(up);
    if ((double)n / 10000 == x) { write_decimal(out, n); return; }
  }
  for (int digits = 15; digits <= 17; digits++) {
    int n = snprintf(text, sizeof text, "%.*g", digits, x);
    if (digits == 17 || strtod(text, nullptr) == x) { out.append(text, (size_t)n); return; }
  }
}

void write_value(std::string& out, const Value& v) {
  switch (v.tag) {
    case NIL: out += "null"; break;
    case BOOL: out += v.i ? "true" : "false"; break;
    case INT: write_whole(out, v.i); break;
    case FLOAT: write_number(out, v.d); break;
    case TEXT: write_text(out, v.view()); break;
    default: out.append(v.s, v.len);
  }
}

}  // namespace samovar
