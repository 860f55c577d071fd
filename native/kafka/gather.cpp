// Messages of a Kafka client written in C, gathered into columns by partition. Nothing here is linked to that client: it
// brings its own functions, and Message is the head of its `rd_kafka_message_t`, which is part of its stable interface.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "util/boundary.h"

namespace {
struct Message {
  int32_t error;
  const void* topic;
  int32_t partition;
  const char* value;
  size_t value_size;
  const char* key;
  size_t key_size;
  int64_t offset;
};

struct Client {
  const char* (*topic_name)(const void* topic);
  int64_t (*timestamp)(const Message*, int32_t* kind);
  int32_t (*headers)(const Message*, const void** found);
  int32_t (*header)(const void* headers, size_t at, const char** name, const char** value, size_t* size);
  const char* (*error_text)(const Message*);
  void (*destroy)(Message*);
};

// Bytes of many messages: message i is data[bounds[i] .. bounds[i + 1]).
struct Bytes {
  std::string data;
  std::vector<int64_t> bounds{0};
  void add(const char* from, size_t size) { data.append(from, size); }
  void end() { bounds.push_back((int64_t)data.size()); }
};

struct Group {
  const void* handle;
  std::string topic;
  int32_t partition;
  std::vector<int64_t> offsets, times;
  std::vector<uint8_t> keyless, null;
  Bytes keys, values, heads;
  size_t count = 0, key_bytes = 0, value_bytes = 0;
  bool has_heads = false;
};

struct Trouble {
  std::string topic, text;
  int32_t partition, code;
  int64_t offset;
};

struct Gathered {
  std::vector<Group> groups;
  std::vector<Trouble> troubles;
};

// What Python reads of a group. Pointers stay as long as the gathered do.
struct GroupView {
  const char* topic;
  int64_t partition, count;
  const int64_t *offsets, *times, *keys, *values, *heads;
  const char *key_data, *value_data, *head_data;
  const uint8_t *keyless, *null;
};
struct TroubleView {
  const char *topic, *text;
  int64_t partition, code, offset;
};

constexpr int32_t NO_ERROR = 0;

size_t group_of(Gathered& g, const Message& m, const Client& client, size_t last) {
  if (last < g.groups.size() && g.groups[last].handle == m.topic && g.groups[last].partition == m.partition) return last;
  for (size_t k = 0; k < g.groups.size(); k++)
    if (g.groups[k].handle == m.topic && g.groups[k].partition == m.partition) return k;
  Group made;
  made.handle = m.topic;
  made.topic = client.topic_name(m.topic);
  made.partition = m.partition;
  g.groups.push_back(std::move(made));
  return g.groups.size() - 1;
}

void add_size(std::string& out, size_t size) {
  uint32_t four = (uint32_t)size;
  out.append((const char*)&four, 4);
}

// As samovar.changelog.batches has headers: (size, name, size, value) for each.
void add_headers(Group& group, const Message* m, const Client& client) {
  const void* found = nullptr;
  if (client.headers(m, &found) == NO_ERROR && found != nullptr) {
    const char *name, *value;
    size_t size;
    for (size_t k = 0; client.header(found, k, &name, &value, &size) == NO_ERROR; k++) {
      group.has_heads = true;
      add_size(group.heads.data, strlen(name));
      group.heads.data += name;
      add_size(group.heads.data, value ? size : 0);
      if (value) group.heads.data.append(value, size);
    }
  }
  group.heads.end();
}

void take(Group& group, const Message* m, const Client& client) {
  int32_t kind = 0;
  group.offsets.push_back(m->offset);
  group.times.push_back(client.timestamp(m, &kind));
  group.keyless.push_back(m->key == nullptr);
  group.null.push_back(m->value == nullptr);
  if (m->key) group.keys.add(m->key, m->key_size);
  if (m->value) group.values.add(m->value, m->value_size);
  group.keys.end();
  group.values.end();
  add_headers(group, m, client);
}

void reserve(Group& group) {
  for (auto* many : {&group.offsets, &group.times}) many->reserve(group.count);
  for (auto* many : {&group.keyless, &group.null}) many->reserve(group.count);
  for (auto* many : {&group.keys, &group.values, &group.heads}) many->bounds.reserve(group.count + 1);
  group.keys.data.reserve(group.key_bytes);
  group.values.data.reserve(group.value_bytes);
}

std::unique_ptr<Gathered> gather(Message** messages, size_t count, const Client& client) {
  auto g = std::make_unique<Gathered>();
  std::vector<uint32_t> places(count);
  size_t last = 0;
  for (size_t k = 0; k < count; k++) {
    const Message* m = messages[k];
    if (m->error != NO_ERROR) {
      const char* text = client.error_text(m);
      const char* topic = m->topic ? client.topic_name(m->topic) : "";
      g->troubles.push_back(Trouble{topic, text ? text : "", m->partition, m->error, m->offset});
      continue;
    }
    last = group_of(*g, *m, client, last);
    places[k] = (uint32_t)last;
    Group& group = g->groups[last];
    group.count++;
    group.key_bytes += m->key_size;
    group.value_bytes += m->value_size;
  }
  for (Group& group : g->groups) reserve(group);
  for (size_t k = 0; k < count; k++) {
    if (messages[k]->error == NO_ERROR) take(g->groups[places[k]], messages[k], client);
    client.destroy(messages[k]);
    messages[k] = nullptr;
  }
  return g;
}
}  // namespace

// Takes the messages over: all of them are destroyed.
SAMOVAR_EXPORT Gathered* samovar_gather(Message** messages, size_t count, const Client* client) {
  Gathered* g = samovar::make_object([&] { return gather(messages, count, *client).release(); });
  for (size_t k = 0; !g && k < count; k++) if (messages[k]) client->destroy(messages[k]);
  return g;
}
SAMOVAR_EXPORT void samovar_gathered_free(Gathered* g) { delete g; }
SAMOVAR_EXPORT size_t samovar_gathered_groups(const Gathered* g) { return g->groups.size(); }
SAMOVAR_EXPORT size_t samovar_gathered_troubles(const Gathered* g) { return g->troubles.size(); }
SAMOVAR_EXPORT void samovar_gathered_group(const Gathered* g, size_t at, GroupView* out) {
  const Group& group = g->groups[at];
  *out = GroupView{group.topic.c_str(), group.partition, (int64_t)group.count,
                   group.offsets.data(), group.times.data(),
                   group.keys.bounds.data(), group.values.bounds.data(), group.has_heads ? group.heads.bounds.data() : nullptr,
                   group.keys.data.data(), group.values.data.data(), group.heads.data.data(),
                   group.keyless.data(), group.null.data()};
}
SAMOVAR_EXPORT void samovar_gathered_trouble(const Gathered* g, size_t at, TroubleView* out) {
  const Trouble& trouble = g->troubles[at];
  *out = TroubleView{trouble.topic.c_str(), trouble.text.c_str(), trouble.partition, trouble.code, trouble.offset};
}
