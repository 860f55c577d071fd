// ISO 8601 text to epoch milliseconds.
//
// Taken: 2023-11-14, 2023-11-14T22:13, 2023-11-14 22:13:30.123456, and the basic form 20231114T221330, each date-time
// with Z, +hh, +hhmm, +hh:mm or nothing (UTC). A fraction (`.` or `,`) of any length is cut to milliseconds.
// Refused: 24:00, second 60, a zone on a bare date, week and ordinal dates, and what lies outside the years 1 to 9999.
#pragma once
#include <cstddef>
#include <cstdint>

namespace samovar {

constexpr int64_t LEAST_TIME_MS = -62135596800000;    // 0001-01-01T00:00:00.000Z
constexpr int64_t GREATEST_TIME_MS = 253402300799999;  // 9999-12-31T23:59:59.999Z

enum class TimeText { GOOD, BAD, OUT_OF_RANGE };

// Days from 1970-01-01 in the proleptic Gregorian calendar; years start in March, so that leap days come last.
inline int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2;
  int64_t era = (year >= 0 ? year : year - 399) / 400;
  int64_t of_era = year - era * 400;
  int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

inline int days_in_month(int year, int month) {
  if (month == 2) return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0 ? 29 : 28;
  return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

// A cursor over the text; every step says whether it fitted.
class IsoReader {
 public:
  IsoReader(const char* at, size_t size) : at_(at), end_(at + size) {}

  TimeText read(int64_t& ms) {
    int year, month, day;
    if (!number(4, year)) return TimeText::BAD;
    bool extended = take('-');
    if (!number(2, month) || (extended && !take('-')) || !number(2, day)) return TimeText::BAD;
    if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month)) return TimeText::BAD;
    int64_t of_day = 0, zone = 0;
    if (at_ == end_) {
      if (!extended) return TimeText::BAD;  // eight digits in quotes
    } else if (!clock(extended, of_day) || !offset(zone) || at_ != end_) {
      return TimeText::BAD;
    }
    ms = days_from_civil(year, month, day) * 86400000 + of_day - zone;
    return ms < LEAST_TIME_MS || ms > GREATEST_TIME_MS ? TimeText::OUT_OF_RANGE : TimeText::GOOD;
  }

 private:
  static bool is_digit(char c) { return (unsigned char)(c - '0') < 10; }

  bool take(char c) {
    bool fits = at_ != end_ && *at_ == c;
    at_ += fits;
    return fits;
  }

  bool number(int digits, int& out) {
    if (end_ - at_ < digits) return false;
    out = 0;
    for (; digits; --digits, ++at_) {
      if (!is_digit(*at_)) return false;
      out = out * 10 + (*at_ - '0');
    }
    return true;
  }

  bool clock(bool extended, int64_t& of_day) {
    int hour, minute, second = 0, ms = 0;
    if (!take('T') && !take('t') && !take(' ')) return false;
    if (!number(2, hour) || (extended && !take(':')) || !number(2, minute)) return false;
    bool seconds = extended ? take(':') : at_ != end_ && is_digit(*at_);
    if (seconds && (!number(2, second) || !fraction(ms))) return false;
    if (hour > 23 || minute > 59 || second > 59) return false;
    of_day = ((hour * 60 + minute) * 60 + second) * int64_t{1000} + ms;
    return true;
  }

  bool fraction(int& ms) {
    if (!take('.') && !take(',')) return true;
    if (at_ == end_ || !is_digit(*at_)) return false;
    for (int scale = 100; at_ != end_ && is_digit(*at_); ++at_, scale /= 10) ms += (*at_ - '0') * scale;
    return true;
  }

  bool offset(int64_t& zone) {
    if (at_ == end_ || take('Z') || take('z')) return true;
    int hours, minutes = 0;
    bool west = take('-');
    if ((!west && !take('+')) || !number(2, hours)) return false;
    if (at_ != end_ && (take(':'), !number(2, minutes))) return false;
    if (hours > 23 || minutes > 59) return false;
    zone = (hours * 60 + minutes) * int64_t{60000} * (west ? -1 : 1);
    return true;
  }

  const char* at_;
  const char* end_;
};

inline TimeText parse_iso(const char* text, size_t size, int64_t& ms) { return IsoReader(text, size).read(ms); }

}  // namespace samovar
