#include "model/jinja/value.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

constexpr uint64_t kItemsPerStep = 4;

// Makes the identity of a dict key: two keys have equal identities if, and only if, they
// are equal.
// Returns false for values that cannot be keys.
bool KeyIdentity(Heap& heap, Value key, std::string& out) {
  switch (key.type) {
    case Type::kText:
      if (!heap.ChargeBytes(key.text->bytes().size())) return false;
      out = "s" + key.text->bytes();
      return true;
    case Type::kInt:
    case Type::kBool:
      out = Cat("i", key.as_integer());
      return true;
    case Type::kFloat:  // 1.0 is the same key as 1
      out = key.real == std::trunc(key.real) && std::fabs(key.real) < 0x1p63
                ? Cat("i", static_cast<int64_t>(key.real))
                : Cat("f", std::bit_cast<uint64_t>(key.real));
      return true;
    case Type::kNone:
      out = "n";
      return true;
    case Type::kList: {
      if (!key.list->hashable) return false;
      out = "t";
      for (const Value item : key.list->items) {
        std::string identity;
        if (!KeyIdentity(heap, item, identity) || !heap.Charge(1 + identity.size() / 64)) {
          return false;
        }
        out += Cat(identity.size(), ":", identity);
      }
      return true;
    }
    case Type::kUndefined:
      out = "u";
      return true;
    case Type::kDict:
      return false;
    default:  // one of the others is equal to itself alone
      out = Cat("p", reinterpret_cast<uintptr_t>(key.space));
      return true;
  }
}

}  // namespace

void Text::Append(std::string_view text, bool user) {
  if (text.empty()) return;
  bytes_ += text;
  if (runs_.empty() || runs_.back().user != user) runs_.push_back({0, user});
  runs_.back().end = bytes_.size();
}

void Text::Append(const Text& other, size_t begin, size_t end) {
  auto run = std::ranges::upper_bound(other.runs_, begin, {}, &Run::end);
  for (; begin < end; ++run) {
    const size_t stop = std::min(end, run->end);
    Append(std::string_view(other.bytes_).substr(begin, stop - begin), run->user);
    begin = stop;
  }
}

bool Text::has_user_text() const { return std::ranges::any_of(runs_, &Run::user); }

const Value* Dict::Find(Heap& heap, Value key) const {
  std::string identity;
  if (!KeyIdentity(heap, key, identity)) return nullptr;
  const auto it = index.find(identity);
  return it == index.end() ? nullptr : &items[it->second].second;
}

const Value* Dict::Find(Heap& heap, std::string_view key) const {
  if (!heap.ChargeBytes(key.size())) return nullptr;
  const auto it = index.find(Cat("s", key));
  return it == index.end() ? nullptr : &items[it->second].second;
}

bool Dict::Set(Heap& heap, Value key, Value value) {
  std::string identity;
  if (!KeyIdentity(heap, key, identity)) return false;
  const auto [it, added] = index.try_emplace(std::move(identity), items.size());
  if (added) {
    items.emplace_back(key, value);
  } else {
    items[it->second].second = value;
  }
  return true;
}

bool Heap::Charge(uint64_t steps) {
  if (!ok()) return false;
  if (steps > steps_left_) {
    Exhaust("steps");
    return false;
  }
  steps_left_ -= steps;
  return true;
}

Value Heap::Raise(std::string_view message) {
  if (ok()) status_ = InvalidArgument(message);
  return {};
}

Value Heap::Exhaust(std::string_view what) {
  if (ok()) {
    status_ = ResourceExhausted("template line ", line_, ": the bound on ", what, " is reached");
  }
  return {};
}

Value Heap::NewText(Text text) {
  if (!Charge(1 + text.cost())) return {};
  return Value(static_cast<const Text*>(&texts_.emplace_back(std::move(text))));
}

static int DepthOf(Value value) {
  if (value.is(Type::kList)) return value.list->depth;
  if (value.is(Type::kDict)) return value.dict->depth;
  return 0;
}

Value Heap::NewList(std::vector<Value> items, bool tuple, bool group) {
  if (!Charge(1 + items.size() / kItemsPerStep)) return {};
  int depth = 1;
  bool hashable = tuple;
  for (const Value item : items) {
    depth = std::max(depth, 1 + DepthOf(item));
    hashable = hashable && IsHashable(item);
  }
  if (depth > kMaxValueDepth) return Exhaust("nesting");
  return Value(static_cast<const List*>(
      &lists_.emplace_back(List{std::move(items), tuple, group, hashable, depth})));
}

Value Heap::NewDict(Dict dict) {
  if (!Charge(1 + dict.items.size())) return {};
  for (const auto& [key, value] : dict.items) dict.depth = std::max(dict.depth, 1 + DepthOf(value));
  if (dict.depth > kMaxValueDepth) return Exhaust("nesting");
  return Value(static_cast<const Dict*>(&dicts_.emplace_back(std::move(dict))));
}

std::string_view TypeName(Value value) {
  switch (value.type) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kText:
      return "str";
    case Type::kList:
      return value.list->tuple ? "tuple" : "list";
    case Type::kDict:
      return "dict";
    case Type::kNamespace:
      return "Namespace";
    case Type::kCallable:
      return "function";
    case Type::kCycler:
      return "Cycler";
    case Type::kLoop:
      return "LoopContext";
  }
  return "?";
}

bool Truthy(Value value) {
  switch (value.type) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
      return value.boolean;
    case Type::kInt:
      return value.integer != 0;
    case Type::kFloat:
      return value.real != 0;
    case Type::kText:
      return !value.text->bytes().empty();
    case Type::kList:
      return !value.list->items.empty();
    case Type::kDict:
      return !value.dict->items.empty();
    default:
      return true;
  }
}

bool IsHashable(Value value) {
  if (!value.is(Type::kList)) return !value.is(Type::kDict);
  return value.list->hashable;
}

static bool EqualDicts(Heap& heap, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    const Value* other = b.Find(heap, key);
    if (other == nullptr || !Equal(heap, value, *other)) return false;
  }
  return true;
}

bool Equal(Heap& heap, Value a, Value b) {
  if (!heap.Charge(1)) return false;
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_integer() == b.as_integer();
    return a.as_real() == b.as_real();
  }
  if (a.type != b.type) return false;
  switch (a.type) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kText:
      if (a.text->bytes().size() != b.text->bytes().size()) return false;
      return heap.ChargeBytes(a.text->bytes().size()) && a.text->bytes() == b.text->bytes();
    case Type::kList:
      return a.list->tuple == b.list->tuple &&
             std::ranges::equal(a.list->items, b.list->items,
                                [&](Value x, Value y) { return Equal(heap, x, y); });
    case Type::kDict:
      return EqualDicts(heap, *a.dict, *b.dict);
    default:
      return a.space == b.space;
  }
}

bool Less(Heap& heap, Value a, Value b) {
  if (!heap.Charge(1)) return false;
  if (a.is_integer() && b.is_integer()) return a.as_integer() < b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  if (a.is(Type::kText) && b.is(Type::kText)) {
    const std::string &x = a.text->bytes(), &y = b.text->bytes();
    return heap.ChargeBytes(std::min(x.size(), y.size())) && x < y;
  }
  if (a.is(Type::kList) && b.is(Type::kList) && a.list->tuple == b.list->tuple) {
    const auto &x = a.list->items, &y = b.list->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equal(heap, x[i], y[i])) return Less(heap, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  heap.Fail("'<' is not supported between '", TypeName(a), "' and '", TypeName(b), "'");
  return false;
}

// glibc's memmem takes time in proportion to the sizes; std::string::find does not.
size_t FindText(std::string_view text, std::string_view wanted, size_t begin) {
  if (begin > text.size()) return std::string_view::npos;
  const void* found =
      memmem(text.data() + begin, text.size() - begin, wanted.data(), wanted.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::vector<size_t> CharacterOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t at = 0; at < text.size(); at += model::ReadUtf8(text, at).bytes) {
    offsets.push_back(at);
  }
  offsets.push_back(text.size());
  return offsets;
}

std::vector<Value> Items(Heap& heap, Value value) {
  std::vector<Value> items;
  if (value.is(Type::kList)) {
    heap.Charge(1 + value.list->items.size() / kItemsPerStep);
    items = value.list->items;
  } else if (value.is(Type::kDict)) {
    if (!heap.Charge(1 + value.dict->items.size() / kItemsPerStep)) return {};
    for (const auto& item : value.dict->items) items.push_back(item.first);
  } else if (value.is(Type::kText)) {
    const std::string& bytes = value.text->bytes();
    if (!heap.Charge(bytes.size())) return {};
    const std::vector<size_t> offsets = CharacterOffsets(bytes);
    for (size_t i = 0; i + 1 < offsets.size() && heap.ok(); ++i) {
      Text character;
      character.Append(*value.text, offsets[i], offsets[i + 1]);
      items.push_back(heap.NewText(std::move(character)));
    }
  } else if (!value.is(Type::kUndefined)) {
    heap.Fail("'", TypeName(value), "' object is not iterable");
  }
  return items;
}

Value FromJson(Heap& heap, const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) return heap.Exhaust("nesting");
  if (!heap.Charge(1)) return {};
  using Json = nlohmann::ordered_json;
  switch (json.type()) {
    case Json::value_t::null:
      return Value::None();
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) {
        return heap.Fail("an integer of the input is too large");
      }
      return Value(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return heap.NewText(json.get_ref<const std::string&>(), /*user=*/true);
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(FromJson(heap, item, depth + 1));
      return heap.NewList(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        dict.Set(heap, heap.NewText(key, /*user=*/true), FromJson(heap, item, depth + 1));
      }
      return heap.NewDict(std::move(dict));
    }
    default:
      return heap.Fail("the input holds binary data");
  }
}

}  // namespace flotilla::jinja
