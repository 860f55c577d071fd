#include "output.h"

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

// ---------------------------------------------------------------- SHA-256 (FIPS 180-4)

namespace {
uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes, worked out once.
struct Constants {
  uint32_t k[64], h[8];
  Constants() {
    int found = 0;
    for (int n = 2; found < 64; n++) {
      bool prime = true;
      for (int d = 2; d * d <= n; d++) if (n % d == 0) { prime = false; break; }
      if (!prime) continue;
      if (found < 8) h[found] = fraction(n, 2);
      k[found++] = fraction(n, 3);
    }
  }
  // floor((n^(1/r) mod 1) * 2^32), by whole numbers only: the largest x with x^r <= n * 2^(32 r).
  static uint32_t fraction(int n, int r) {
    unsigned __int128 lo = 0, hi = (unsigned __int128)1 << 37;
    while (lo + 1 < hi) {
      unsigned __int128 mid = (lo + hi) / 2;
      if (r == 2 ? mid * mid <= (unsigned __int128)n << 64 : mid * mid * mid <= (unsigned __int128)n << 96) lo = mid; else hi = mid;
    }
    return (uint32_t)lo;
  }
};

void block(uint32_t* h, const unsigned char* p, const Constants& c) {
  uint32_t w[64];
  for (int i = 0; i < 16; i++) w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
  }
  uint32_t v[8];
  for (int i = 0; i < 8; i++) v[i] = h[i];
  for (int i = 0; i < 64; i++) {
    uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25), ch = (v[4] & v[5]) ^ (~v[4] & v[6]);
    uint32_t t1 = v[7] + s1 + ch + c.k[i] + w[i];
    uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22), maj = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    for (int k = 7; k > 0; k--) v[k] = v[k - 1];
    v[4] += t1;
    v[0] = t1 + s0 + maj;
  }
  for (int i = 0; i < 8; i++) h[i] += v[i];
}
}  // namespace

std::string digest(const std::string& bytes) {
  static const Constants constants;
  std::string m = bytes;
  m.push_back((char)0x80);
  while (m.size() % 64 != 56) m.push_back(0);
  for (int k = 7; k >= 0; k--) m.push_back((char)((uint64_t)bytes.size() * 8 >> (8 * k)));
  uint32_t h[8];
  for (int i = 0; i < 8; i++) h[i] = constants.h[i];
  for (size_t at = 0; at < m.size(); at += 64) block(h, (const unsigned char*)m.data() + at, constants);
  static const char hex[] = "0123456789abcdef";
  std::string out;
  for (int i = 0; i < 4; i++) for (int k = 28; k >= 0; k -= 4) out.push_back(hex[h[i] >> k & 15]);
  return out;
}

}  // namespace samovar
