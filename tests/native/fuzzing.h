// What the fuzz targets share: the kernel's C interface as far as they use it, and how their inputs are read.
//
// The seeds are made by seeds.py, which writes the same formats. Whatever the bytes are, they mean something: what is
// missing at the end reads as zeros.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct Batch;
struct Fields;
struct Schemas;
struct Program;
struct Handle;
struct Verdict { uint32_t code, at; };
struct Value { uint32_t tag, len; const char* s; };
using PythonCall = void (*)(int64_t function, const Value* args, int64_t n, Value* out);

extern "C" {
Batch* samovar_batch_new(size_t columns);
void samovar_batch_free(Batch*);
size_t samovar_batch_rows(const Batch*);
const Value* samovar_batch_column(const Batch*, size_t);
const Value* samovar_batch_type(const Batch*);
int64_t samovar_batch_rows_set(Batch*, size_t n, const int64_t* time, const int32_t* stream, const int32_t* partition, const int64_t* offset);
int64_t samovar_batch_fill(Batch*, int64_t column, int kind, const void* data, const int64_t* offsets, const uint8_t* valid);
Fields* samovar_fields_new(const char* const* paths, size_t n, const char* time_field, const char* type_field, const char* fixed_type);
void samovar_fields_free(Fields*);
int64_t samovar_decode_json(const Fields*, Batch*, const char* buffer, const int64_t* starts, const int64_t* ends, size_t n, int32_t stream,
                            const int32_t* partitions, const int64_t* offsets, int copy, Verdict*);
Schemas* samovar_avro_new(const Fields*, int framed);
void samovar_avro_free(Schemas*);
int64_t samovar_avro_add(Schemas*, uint32_t number, const int64_t* words, size_t n, const char* blob, size_t size);
int64_t samovar_decode_avro(Schemas*, Batch*, const char* buffer, const int64_t* starts, const int64_t* ends, size_t n, int32_t stream,
                            const int32_t* partitions, const int64_t* offsets, int copy, Verdict*);
const char* samovar_avro_json(Schemas*, const char* message, size_t n, size_t* size, Verdict*);
size_t samovar_count_lines(const char* buffer, size_t size);
void samovar_split_lines(const char* buffer, size_t size, int64_t* starts, int64_t* ends);
Program* samovar_program_new(const int64_t* words, size_t n, const char* blob, size_t size, const char** fault);
void samovar_program_free(Program*);
Handle* samovar_states_new(const Program*, PythonCall, int64_t max_partials, int64_t max_events, int64_t max_matches);
void samovar_states_free(Handle*);
int64_t samovar_budget(Handle*, int64_t event_bytes, int64_t event_work, int64_t step_bytes, const char* mark, size_t size);
void samovar_sizes(Handle*, int64_t chunk, int64_t few, int64_t part_bytes, int64_t slice, int64_t cold, int64_t memo);
int64_t samovar_step(Handle*, Batch*, size_t from, size_t to, int64_t watermark);
int64_t samovar_dump(Handle*, int which, int64_t watermark);
int64_t samovar_load(Handle*, const char* data, const int64_t* ends, size_t rows);
int64_t samovar_cold(Handle*, Batch*);
int64_t samovar_deadlines_of(Handle*, const char* data, const int64_t* ends, size_t rows);
const char* samovar_row_data(Handle*);
const int64_t* samovar_row_ends(Handle*);
const char* samovar_describe(Handle*, int rule, const char* key, size_t key_size, size_t* size);
}

// Bytes of an input, from the front. Numbers have the little end first.
struct Input {
  const uint8_t *at, *end;
  size_t left() const { return (size_t)(end - at); }
  uint64_t number(size_t bytes) {
    uint64_t n = 0;
    size_t some = bytes < left() ? bytes : left();
    if (some) memcpy(&n, at, some);
    at += some;
    return n;
  }
  std::string bytes(size_t size) {
    size_t some = size < left() ? size : left();
    std::string out((const char*)at, some);
    at += some;
    return out;
  }
  std::string sized(size_t bytes_of_size) { return bytes(number(bytes_of_size)); }
  std::vector<int64_t> words() {
    std::string data = sized(4);
    std::vector<int64_t> out(data.size() / 8);
    if (!out.empty()) memcpy(out.data(), data.data(), out.size() * 8);
    return out;
  }
};

// Reads every value, so that a sanitizer sees one that points nowhere.
inline size_t touch(const Value* values, size_t n) {
  size_t sum = 0;
  for (size_t k = 0; k < n; k++)
    if (values[k].tag >= 4) for (uint32_t b = 0; b < values[k].len; b++) sum += (unsigned char)values[k].s[b];
  return sum;
}

constexpr size_t COLUMNS = 12, EVENTS_MOST = 40;

// Events for any rule: a byte for the type, one for the time that passed, one for each field.
inline Batch* read_events(Input& in, const std::vector<std::string>& types) {
  static const char* const TEXTS[] = {"c1", "c2", "card", "DE", "a longer text than fits", "10.0.0.1", "", "\xc3\xa9"};
  static const int64_t WHOLE[] = {0, 1, -1, 5, 100, 1000, INT64_MAX, INT64_MIN};
  static const double REAL[] = {0.5, -0.5, 1e300, -1e300, 9.3e18, 100.0, 1e-300, 12.25};
  size_t n = in.left() / (2 + COLUMNS) + 1;
  if (n > EVENTS_MOST) n = EVENTS_MOST;
  std::vector<int64_t> time(n), offset(n);
  std::vector<int32_t> zero(n);
  std::vector<uint8_t> choice(n * COLUMNS);
  std::string names;
  std::vector<int64_t> ends{0};
  int64_t now = 1700000000000;
  for (size_t r = 0; r < n; r++) {
    uint64_t kind = in.number(1), gap = in.number(1);
    if (!types.empty()) names += types[kind % types.size()];
    ends.push_back((int64_t)names.size());
    now += gap < 128 ? (int64_t)gap * 1000 : (int64_t)(gap - 127) * 600000;
    time[r] = now;
    offset[r] = (int64_t)r;
    for (size_t c = 0; c < COLUMNS; c++) choice[r * COLUMNS + c] = (uint8_t)in.number(1);
  }
  Batch* batch = samovar_batch_new(COLUMNS);
  samovar_batch_rows_set(batch, n, time.data(), zero.data(), zero.data(), offset.data());
  samovar_batch_fill(batch, -1, 4, names.data(), ends.data(), nullptr);
  for (size_t c = 0; c < COLUMNS; c++) {
    // A column is of one kind, as the first row says; the others say which value, and which have none.
    int kind = choice[c] % 4 + 1;
    std::vector<int64_t> whole(n), bounds{0};
    std::vector<double> real(n);
    std::vector<uint8_t> truth(n), valid(n);
    std::string text;
    for (size_t r = 0; r < n; r++) {
      uint8_t b = choice[r * COLUMNS + c] / 4;
      whole[r] = WHOLE[b % 8];
      real[r] = REAL[b % 8];
      truth[r] = b & 1;
      text += TEXTS[b % 8];
      bounds.push_back((int64_t)text.size());
      valid[r] = b < 60;
    }
    const void* data = kind == 1 ? (const void*)truth.data() : kind == 2 ? (const void*)whole.data() : kind == 3 ? (const void*)real.data() : text.data();
    samovar_batch_fill(batch, (int64_t)c, kind, data, bounds.data(), valid.data());
  }
  return batch;
}

struct Rows {
  std::string data;
  std::vector<int64_t> ends;
  void read(Input& in) {
    for (uint64_t n = in.number(1); n > 0; n--) {
      data += in.sized(2);
      ends.push_back((int64_t)data.size());
      data += in.sized(3);
      ends.push_back((int64_t)data.size());
    }
  }
};

inline void answer_null(int64_t, const Value*, int64_t, Value* out) { out->tag = 0; }

// Stored rows into new states, then events, then the rows again: all that is done with states.
inline void run(const Program* program, Input& in, const std::vector<std::string>& types) {
  Handle* states = samovar_states_new(program, answer_null, 20, 30, 20);
  samovar_budget(states, 8 << 20, 20000000, 8 << 20, "", 0);
  samovar_sizes(states, 4, 2, 256, 16, 16, 100);
  Rows rows;
  rows.read(in);
  samovar_deadlines_of(states, rows.data.data(), rows.ends.data(), rows.ends.size() / 2);
  samovar_load(states, rows.data.data(), rows.ends.data(), rows.ends.size() / 2);
  Batch* batch = read_events(in, types);
  size_t count = samovar_batch_rows(batch);
  samovar_cold(states, batch);
  int64_t found = samovar_step(states, batch, 0, count / 2, 1700000000000);
  if (found >= 0) found = samovar_step(states, batch, count / 2, count, 1700000000000 + 100000000);
  size_t size;
  if (found >= 0) {
    samovar_describe(states, 0, "t\0\0\0\2c1", 7, &size);
    for (int which : {1, 0}) {
      int64_t dumped = samovar_dump(states, which, 0);
      if (which || dumped <= 0) continue;
      const int64_t* ends = samovar_row_ends(states);
      Handle* others = samovar_states_new(program, answer_null, 20, 30, 20);
      std::string data(samovar_row_data(states), (size_t)ends[2 * dumped - 1]);
      if (samovar_load(others, data.data(), ends, (size_t)dumped) != 1) {
        fprintf(stderr, "rows that were written are not read\n");
        abort();
      }
      samovar_dump(others, 2, 1700000000000);
      samovar_step(others, batch, 0, 0, 1ll << 62);
      samovar_states_free(others);
    }
    samovar_step(states, batch, 0, 0, 1ll << 62);
  }
  samovar_batch_free(batch);
  samovar_states_free(states);
}
