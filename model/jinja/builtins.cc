#include "model/jinja/builtins.h"

#include <algorithm>
#include <cctype>

#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

Value LoopAttribute(Heap& heap, const Loop& loop, std::string_view name) {
  if (loop.items == nullptr) return heap.Fail("'loop' is used after its loop");
  const auto size = static_cast<int64_t>(loop.items->size());
  const auto index = static_cast<int64_t>(loop.index0);
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(size - index);
  if (name == "revindex0") return Value(size - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index == size - 1);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(int64_t{1});  // for recursive loops, which are unsupported
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return index > 0 ? (*loop.items)[index - 1] : Value();
  if (name == "nextitem") return index + 1 < size ? (*loop.items)[index + 1] : Value();
  return {};
}

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
bool IsLetter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

bool IsSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

Bound::Bound(Heap& heap, std::string_view callee, std::string_view params, const Args& args) {
  size_t count = 0;
  for (; !params.empty() && params != "*"; ++count) {
    const size_t space = std::min(params.find(' '), params.size());
    const std::string_view name = params.substr(0, space);
    params.remove_prefix(std::min(space + 1, params.size()));
    if (count < args.positional.size()) {
      given_[count] = true;
      values_[count] = args.positional[count];
    }
    for (const auto& [given, value] : args.named) {
      if (given != name) continue;
      given_[count] = true;
      values_[count] = value;
    }
  }
  const auto used = static_cast<size_t>(std::ranges::count(given_, true));
  if (params != "*" && used != args.positional.size() + args.named.size()) {
    heap.Fail("'", callee, "' does not take these arguments");
  }
}

const Text& Bound::text(Heap& heap, size_t i, const Text& fallback) const {
  if (!given_[i]) return fallback;
  if (values_[i].is(Type::kText)) return *values_[i].text;
  heap.Fail("a string is wanted, not '", TypeName(values_[i]), "'");
  return fallback;
}

int64_t Bound::integer(Heap& heap, size_t i, int64_t fallback) const {
  if (!given_[i]) return fallback;
  if (values_[i].is_integer()) return values_[i].as_integer();
  heap.Fail("an integer is wanted, not '", TypeName(values_[i]), "'");
  return fallback;
}

Value CallBuiltin(Heap& heap, std::span<const Builtin> table, std::string_view name, Value self,
                  const Args& args) {
  const auto row = std::ranges::find(table, name, &Builtin::name);
  if (row == table.end()) return heap.Fail("no function '", name, "'");
  const Bound bound(heap, name, row->params, args);
  return heap.ok() ? row->call(heap, self, bound, args) : Value();
}

Value GetAttribute(Heap& heap, Value object, std::string_view name) {
  if (object.is(Type::kUndefined)) return heap.Fail("'", name, "' of an undefined value");
  if (object.is(Type::kLoop)) return LoopAttribute(heap, *object.loop, name);
  if (object.is(Type::kNamespace)) {
    if (!heap.ChargeBytes(name.size())) return {};
    const auto it = object.space->attributes.find(name);
    return it == object.space->attributes.end() ? Value() : it->second;
  }
  if (HasMethod(object, name)) {
    return heap.NewCallable({.kind = Callable::Kind::kMethod, .name = name, .self = object});
  }
  const Value* item = object.is(Type::kDict) ? object.dict->Find(heap, name) : nullptr;
  return item == nullptr ? Value() : *item;
}

Value GetItem(Heap& heap, Value object, Value key) {
  if (object.is(Type::kUndefined)) return heap.Fail("an item of an undefined value");
  if (object.is(Type::kDict)) {
    if (const Value* item = object.dict->Find(heap, key)) return *item;
  } else if (key.is_integer() && (object.is(Type::kList) || object.is(Type::kText))) {
    std::vector<size_t> offsets;
    if (object.is(Type::kText)) {
      if (!heap.Charge(object.text->bytes().size() / 8)) return {};
      offsets = CharacterOffsets(object.text->bytes());
    }
    const auto size = static_cast<int64_t>(object.is(Type::kText) ? offsets.size() - 1
                                                                  : object.list->items.size());
    const int64_t index = key.as_integer();
    if (index < -size || index >= size) return {};
    const auto at = static_cast<size_t>(index < 0 ? index + size : index);
    if (object.is(Type::kList)) return object.list->items[at];
    Text character;
    character.Append(*object.text, offsets[at], offsets[at + 1]);
    return heap.NewText(std::move(character));
  }
  return key.is(Type::kText) ? GetAttribute(heap, object, key.text->bytes()) : Value();
}

Value Strip(Heap& heap, const Text& text, const Text* characters, bool left, bool right) {
  const std::string_view bytes = text.bytes();
  const auto goes = [&](std::string_view character) {
    if (characters != nullptr) return characters->bytes().find(character) != std::string::npos;
    return IsSpace(model::ReadUtf8(character, 0).code_point);
  };
  const uint64_t cost = 1 + (characters == nullptr ? 0 : characters->bytes().size() / 64);
  size_t begin = 0;
  size_t end = bytes.size();
  while (left && begin < end && heap.Charge(cost)) {
    const size_t size = model::ReadUtf8(bytes, begin).bytes;
    if (!goes(bytes.substr(begin, size))) break;
    begin += size;
  }
  while (right && begin < end && heap.Charge(cost)) {
    size_t last = end - 1;  // back to the first byte of the last character
    while (last > begin && (static_cast<unsigned char>(bytes[last]) & 0xc0) == 0x80) --last;
    if (!goes(bytes.substr(last, end - last))) break;
    end = last;
  }
  Text out;
  out.Append(text, begin, end);
  return heap.NewText(std::move(out));
}

Value Replace(Heap& heap, const Text& text, const Text& from, const Text& to, int64_t count) {
  if (from.bytes().empty()) return heap.Fail("replacing an empty string is not supported");
  Text out;
  size_t at = 0;
  if (!heap.Charge(text.cost())) return {};
  for (; count != 0 && heap.Charge(1 + to.cost()); --count) {
    const size_t found = FindText(text.bytes(), from.bytes(), at);
    if (found == std::string::npos) break;
    out.Append(text, at, found);
    out.Append(to);
    at = found + from.bytes().size();
  }
  out.Append(text, at, text.bytes().size());
  return heap.NewText(std::move(out));
}

Text Lowered(const Text& text) {
  return text.Mapped([](char c, size_t) { return Lower(c); });
}

Text Uppered(const Text& text) {
  return text.Mapped([](char c, size_t) { return Upper(c); });
}

Text Capitalized(const Text& text) {
  return text.Mapped([](char c, size_t i) { return i == 0 ? Upper(c) : Lower(c); });
}

Text TitleCased(const Text& text) {
  char previous = ' ';
  return text.Mapped([&](char c, size_t) {
    const char out = IsLetter(previous) ? Lower(c) : Upper(c);
    previous = c;
    return out;
  });
}

Text Titled(const Text& text) {
  constexpr std::string_view kBefore = "-({[< \t\n\r\f\v";
  bool starts = true;
  return text.Mapped([&](char c, size_t) {
    const char out = starts ? Upper(c) : Lower(c);
    starts = kBefore.find(c) != std::string_view::npos;
    return out;
  });
}

Value DictItems(Heap& heap, const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.items) {
    if (!heap.ok()) break;
    pairs.push_back(heap.NewList({key, value}, /*tuple=*/true));
  }
  return heap.NewList(std::move(pairs));
}

Value Join(Heap& heap, const std::vector<Value>& items, const Text& separator) {
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    const uint64_t added =
        separator.cost() + (items[i].is(Type::kText) ? items[i].text->cost() : 0);
    if (!heap.Charge(1 + added)) return {};
    if (i > 0) out.Append(separator);
    AppendStr(heap, items[i], out);
  }
  return heap.NewText(std::move(out));
}

}  // namespace flotilla::jinja
