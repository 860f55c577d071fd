#include "match/runner.h"

#include "match/trace.h"

namespace samovar {
namespace {

std::string_view topic_of(const Place& p, const std::vector<std::string>& topics) {
  size_t stream = (size_t)(p.source >> 32);
  return stream < topics.size() ? std::string_view(topics[stream]) : std::string_view();
}

void write_coordinates(std::string& line, const Place& p, const std::vector<std::string>& topics) {
  if (topics.empty()) { write_value(line, Value::integer(p.offset)); return; }
  line += "[";
  write_text(line, topic_of(p, topics));
  line += ", ";
  write_value(line, Value::integer(p.source & 0xFFFFFFFF));
  line += ", ";
  write_value(line, Value::integer(p.offset));
  line += "]";
}

void write_steps(std::string& line, const std::vector<Listed>& steps, const Program& program, const std::vector<std::string>& topics) {
  line += "{";
  bool first = true;
  for (auto& s : steps) {
    if (s.places.empty()) continue;
    if (!first) line += ", ";
    first = false;
    write_value(line, program.text(s.name));
    line += ": [";
    for (size_t k = 0; k < s.places.size(); k++) {
      if (k) line += ", ";
      write_coordinates(line, s.places[k], topics);
    }
    line += "]";
  }
  line += "}";
}

// What the id is made of: rule, version, key, the coordinates by step name, and for a window its start.
std::string match_id(const RuleDef& rule, const Program& program, const std::string& key, const std::vector<Listed>& steps,
                     const std::vector<std::string>& topics, int64_t start) {
  Packer p;
  p.text(program.text(rule.id).view());
  p.text(program.text(rule.version).view());
  p.text(key);
  for (auto& s : steps) {
    if (s.places.empty()) continue;
    p.text(program.text(s.name).view());
    p.num(s.total);
    for (auto& place : s.places) {
      if (!topics.empty()) p.text(topic_of(place, topics));
      p.num(topics.empty() ? place.source : place.source & 0xFFFFFFFF);
      p.num(place.offset);
    }
  }
  if (rule.form == WINDOW) p.num(start);
  return digest(p.bytes);
}

// A list as a person writes it: without brackets, and text without its quotes.
std::string plain_list(std::string_view json) {
  std::string out;
  bool quoted = false;
  for (size_t k = 1; k + 1 < json.size(); k++) {
    if (json[k] == '"') { quoted = !quoted; continue; }
    if (quoted && json[k] == '\\') k++;
    out.push_back(json[k]);
  }
  return out;
}

// Text up to TEXT_MOST bytes. Returns whether more can be added.
bool add_text(std::string& to, std::string_view text) {
  if (to.size() + text.size() <= TEXT_MOST) {
    to.append(text);
    return true;
  }
  size_t most = TEXT_MOST - CUT.size();
  if (to.size() > most) to.resize(cut_at(to, most));
  else to.append(text.data(), cut_at(text, most - to.size()));
  to += CUT;
  return false;
}
// A value of `emit`. What is too large is cut; of a list or an object that leaves its text.
void write_emitted(std::string& line, const Value& v) {
  if (v.tag < TEXT || v.len <= (v.tag == TEXT ? TEXT_MOST : OTHER_MOST)) { write_value(line, v); return; }
  std::string text;
  add_text(text, v.view());
  write_text(line, text);
}

}  // namespace

void Runner::write(State& s, const Place& last, int64_t start, int64_t end, int64_t at, const std::vector<Listed>& steps,
                   Reader& reader, int64_t row, const int64_t* count) {
  const Program& program = eval.program;
  Match m;
  m.suppressed = is_suppressed(s, at);
  if (m.suppressed) counters.suppressed++;
  else { s.alerted = at; counters.matches++; }
  m.start = start;
  m.at = at;
  m.muted = mute.covers(start, at);
  m.last = last;
  m.rule = rule.index;
  m.key = keys.bytes(s.key);
  for (auto& l : steps) m.events.insert(m.events.end(), l.places.begin(), l.places.end());
  std::string& line = m.line;
  const std::string& key = keys.bytes(s.key);
  line += "{\"rule\": ";
  write_value(line, program.text(rule.id));
  line += ", \"version\": ";
  write_value(line, program.text(rule.version));
  line += ", \"id\": \"";
  m.id_at = (uint32_t)line.size();
  line += match_id(rule, program, key, steps, *topics, start) + "\", \"key\": {";
  std::vector<Value> values = decode_key(key);
  for (size_t k = 0; k < rule.key_names.size(); k++) {
    if (k) line += ", ";
    write_value(line, program.text(rule.key_names[k]));
    line += ": ";
    write_value(line, k < values.size() ? values[k] : Value::nil());
  }
  line += "}, \"start\": ";
  write_value(line, Value::integer(start));
  line += ", \"end\": ";
  write_value(line, Value::integer(end));
  line += ", \"at\": ";
  write_value(line, Value::integer(at));
  line += ", \"steps\": ";
  write_steps(line, steps, program, *topics);
  std::string total;
  for (auto& l : steps) if (l.total > (int64_t)l.places.size()) {
    total += total.empty() ? "" : ", ";
    write_value(total, program.text(l.name));
    total += ": ";
    write_value(total, Value::integer(l.total));
  }
  if (!total.empty()) line += ", \"total\": {" + total + "}";
  line += ", \"emit\": {";
  bool first = true;
  for (auto& e : rule.emit) if (program.text(e.first).view() == "count") count = nullptr;  // the rule has its own
  if (count) {
    line += "\"count\": ";
    write_value(line, Value::integer(*count));
    first = false;
  }
  for (auto& [name, node] : rule.emit) {
    if (!first) line += ", ";
    first = false;
    write_value(line, program.text(name));
    line += ": ";
    write_emitted(line, eval.of_run(node, reader, rule, row));
  }
  line += "}";
  size_t copied = 0;
  if (!rule.message.empty() && !m.muted) {
    read_message(reader, row);
    if (*defers) copied = quote(m);
    else write_message(line, [&](size_t k) { return told_[k]; });
  }
  if (trace) trace->matched(last.offset, at, m.suppressed);
  size_t bytes = sizeof(Match) + line.size() + m.events.size() * sizeof(Place) + m.quoted.size() * sizeof(Owned);
  budget->found(bytes + m.quoted_bytes, bytes + copied);
  out->push_back(std::move(m));
}

// The values that a message tells, of numbers as they are and of all else text; none beyond TEXT_MOST bytes.
void Runner::read_message(Reader& reader, int64_t row) {
  told_.clear();
  size_t least = 0;  // bytes that the message will have
  for (auto& [kind, what] : rule.message) {
    if (least > TEXT_MOST) break;
    Value v = kind == 0 ? eval.program.text(what) : eval.of_run(what, reader, rule, row);
    if (v.tag == OTHER && v.len && v.s[0] == '[') v = eval.scratch.keep(Value::text(plain_list(v.view())));
    if (v.tag >= TEXT) {
      v = Value::text(v.view().substr(0, TEXT_MOST + 1));
      least += v.len;
    }
    told_.push_back(v);
  }
}

// The values outlive the step's events: whether anyone is told them is decided later. Returns the bytes copied.
size_t Runner::quote(Match& m) {
  size_t copied = 0;
  m.quoted.reserve(told_.size());
  for (const Value& v : told_) {
    if (v.tag == TEXT) m.quoted_bytes += v.len;
    m.quoted.push_back(texts->share(v, copied));
  }
  return copied;
}

template <class Told>
void Runner::write_message(std::string& line, Told told) {
  std::string text, part;
  for (size_t k = 0; k < rule.message.size(); k++) {
    Value v = told(k);
    part.clear();
    if (v.tag == FLOAT && v.d == std::floor(v.d) && std::fabs(v.d) < 1e15) write_value(part, Value::integer((int64_t)v.d));
    else if (v.tag != TEXT) write_value(part, v);
    if (!add_text(text, v.tag == TEXT ? v.view() : std::string_view(part))) break;
  }
  line.reserve(line.size() + text.size() + text.size() / 16 + 64);
  line += ", \"message\": ";
  write_text(line, text);
}

void Runner::render(const Match& m, std::string& out) {
  out += m.line;
  if (!m.quoted.empty()) write_message(out, [&](size_t k) { return m.quoted[k].get(); });
  if (m.suppressed) out += ", \"suppressed\": true";
  out += "}";
}

}  // namespace samovar
