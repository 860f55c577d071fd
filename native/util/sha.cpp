// SHA-256 (FIPS 180-4), for the ids of matches: with the processor's own instructions for it, where it has them.
#include <cstring>

#include "match/output.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace samovar {

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

void plain_block(uint32_t* h, const unsigned char* p, const Constants& c) {
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

using Block = void (*)(uint32_t* h, const unsigned char* p, const Constants& c);

#if defined(__x86_64__)
// The instructions want the eight words as (a b e f) and (c d g h), and take four rounds' words at a time.
__attribute__((target("sha,ssse3,sse4.1"))) void quick_block(uint32_t* h, const unsigned char* p, const Constants& c) {
  const __m128i big_end = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
  __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)h), 0xB1);
  __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)(h + 4)), 0x1B);
  __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xF0);
  const __m128i abef_before = abef, cdgh_before = cdgh;
  __m128i w[4];
  for (int four = 0; four < 16; four++) {
    __m128i& now = w[four & 3];
    if (four < 4) {
      now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(p + 16 * four)), big_end);
    } else {
      const __m128i &w1 = w[(four + 1) & 3], &w2 = w[(four + 2) & 3], &w3 = w[(four + 3) & 3];
      now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, w1), _mm_alignr_epi8(w3, w2, 4)), w3);
    }
    __m128i words = _mm_add_epi32(now, _mm_loadu_si128((const __m128i*)(c.k + 4 * four)));
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
  }
  low = _mm_shuffle_epi32(_mm_add_epi32(abef, abef_before), 0x1B);
  high = _mm_shuffle_epi32(_mm_add_epi32(cdgh, cdgh_before), 0xB1);
  _mm_storeu_si128((__m128i*)h, _mm_blend_epi16(low, high, 0xF0));
  _mm_storeu_si128((__m128i*)(h + 4), _mm_alignr_epi8(high, low, 8));
}

Block fastest() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  bool quick = __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
  return quick ? quick_block : plain_block;
}
#else
Block fastest() { return plain_block; }
#endif
}  // namespace

std::string digest(const std::string& bytes) {
  static const Constants constants;
  static const Block block = fastest();
  uint32_t h[8];
  memcpy(h, constants.h, sizeof h);
  size_t whole = bytes.size() / 64 * 64, left = bytes.size() - whole;
  for (size_t at = 0; at < whole; at += 64) block(h, (const unsigned char*)bytes.data() + at, constants);
  unsigned char last[128] = {};
  memcpy(last, bytes.data() + whole, left);
  last[left] = 0x80;
  size_t size = left < 56 ? 64 : 128;
  for (int k = 0; k < 8; k++) last[size - 1 - k] = (unsigned char)((uint64_t)bytes.size() * 8 >> (8 * k));
  for (size_t at = 0; at < size; at += 64) block(h, last + at, constants);
  static const char hex[] = "0123456789abcdef";
  std::string out(32, '0');
  for (int i = 0; i < 32; i++) out[(size_t)i] = hex[h[i / 8] >> (28 - 4 * (i % 8)) & 15];
  return out;
}

}  // namespace samovar
