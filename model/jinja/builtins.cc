#include "model/jinja/builtins.h"

#include <algorithm>
#include <charconv>

#include "model/jinja/ast.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

Value LoopAttribute(Heap& heap, Value self, std::string_view name) {
  const Loop& loop = *self.loop;
  if (HasMethod(self, name)) {
    return heap.NewCallable({.kind = Callable::Kind::kMethod, .name = name, .self = self});
  }
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
  if (name == "depth") return Value(loop.depth0 + 1);
  if (name == "depth0") return Value(loop.depth0);
  if (name == "previtem") return index > 0 ? (*loop.items)[index - 1] : Value();
  if (name == "nextitem") return index + 1 < size ? (*loop.items)[index + 1] : Value();
  return {};
}

Value MacroAttribute(Heap& heap, const Stmt& macro, std::string_view name) {
  if (name == "name") {
    return macro.kind == Stmt::Kind::kMacro ? heap.NewText(macro.name) : Value::None();
  }
  if (name == "caller") return Value(macro.takes_caller);
  if (name == "catch_varargs") return Value(macro.takes_varargs);
  if (name == "catch_kwargs") return Value(macro.takes_kwargs);
  if (name != "arguments") return {};
  std::vector<Value> names;
  for (const auto& [param, fallback] : macro.params) names.push_back(heap.NewText(param));
  return heap.NewList(std::move(names), /*tuple=*/true);
}

}  // namespace

Bound::Bound(Heap& heap, std::string_view callee, std::string_view params, const Args& args) {
  if (params == "*") return;
  std::string_view missing;
  for (size_t i = 0; !params.empty(); ++i) {
    const size_t space = std::min(params.find(' '), params.size());
    std::string_view name = params.substr(0, space);
    params.remove_prefix(std::min(space + 1, params.size()));
    const bool optional = name.ends_with('=');
    if (optional) name.remove_suffix(1);
    if (i < args.positional.size()) {
      given_[i] = true;
      values_[i] = args.positional[i];
    }
    for (const auto& [given, value] : args.named) {
      if (given != name) continue;
      given_[i] = true;
      values_[i] = value;
    }
    if (!given_[i] && !optional) missing = name;
  }
  const auto used = static_cast<size_t>(std::ranges::count(given_, true));
  if (used != args.positional.size() + args.named.size()) {
    heap.Fail("'", callee, "' does not take these arguments");
  } else if (!missing.empty()) {
    heap.Fail("'", callee, "' needs the argument '", missing, "'");
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

Text AsText(Heap& heap, Value value) {
  Text text;
  if (heap.Charge(value.is(Type::kText) ? value.text->cost() : 1)) AppendStr(heap, value, text);
  return text;
}

Getter::Getter(Heap& heap, Value path, bool fold_case, Value fallback)
    : fold_case_(fold_case), fallback_(fallback) {
  if (path.is(Type::kNone)) return;
  if (!path.is(Type::kText)) {
    parts_.push_back(path);
    return;
  }
  std::string_view rest = path.text->bytes();
  for (bool more = true; more && heap.ok();) {
    const size_t dot = rest.find('.');
    more = dot != std::string_view::npos;
    const std::string_view name = rest.substr(0, dot);
    rest.remove_prefix(more ? dot + 1 : rest.size());
    int64_t index = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
    parts_.push_back(whole && !name.starts_with('-') ? Value(index) : heap.NewText(name));
  }
}

Value Getter::operator()(Heap& heap, Value item) const {
  for (const Value part : parts_) {
    if (!heap.Charge(1)) return {};
    item = GetItem(heap, item, part);
    if (item.is(Type::kUndefined) && !fallback_.is(Type::kNone)) item = fallback_;
  }
  if (!fold_case_ || !item.is(Type::kText) || !heap.Charge(item.text->cost())) return item;
  return heap.NewText(Lowered(heap, *item.text));
}

Value GetAttribute(Heap& heap, Value object, std::string_view name) {
  if (object.is(Type::kUndefined)) return heap.Fail("'", name, "' of an undefined value");
  if (object.is(Type::kLoop)) return LoopAttribute(heap, object, name);
  if (object.is(Type::kNamespace)) {
    if (!heap.ChargeBytes(name.size())) return {};
    const auto it = object.space->attributes.find(name);
    return it == object.space->attributes.end() ? Value() : it->second;
  }
  if (object.is(Type::kList) && object.list->group && name == "grouper") {
    return object.list->items[0];
  }
  if (object.is(Type::kList) && object.list->group && name == "list") return object.list->items[1];
  if (object.is(Type::kCycler) && name == "current") return object.cycler->items[object.cycler->at];
  if (object.is(Type::kCallable) && object.callable->macro != nullptr) {
    return MacroAttribute(heap, *object.callable->macro, name);
  }
  if (HasMethod(object, name)) {
    return heap.NewCallable({.kind = Callable::Kind::kMethod, .name = name, .self = object});
  }
  if (!object.is(Type::kDict) || IsForbiddenMethod(object.type, name)) return {};
  const Value* item = object.dict->Find(heap, name);
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
  Text out;
  size_t at = 0;
  if (!heap.Charge(text.cost())) return {};
  for (; count != 0 && heap.Charge(1 + to.cost()); --count) {
    const size_t found = FindText(text.bytes(), from.bytes(), at);
    if (found == std::string::npos) break;
    out.Append(text, at, found);
    out.Append(to);
    at = found + from.bytes().size();
    if (!from.bytes().empty()) continue;
    if (at == text.bytes().size()) break;  // an empty string is found before each character, too
    const size_t next = at + model::ReadUtf8(text.bytes(), at).bytes;
    out.Append(text, at, next);
    at = next;
  }
  out.Append(text, at, text.bytes().size());
  return heap.NewText(std::move(out));
}

void AppendFill(Heap& heap, const Text& fill, int64_t count, Text& out) {
  if (count <= 0 || fill.bytes().empty()) return;
  const uint64_t copies = static_cast<uint64_t>(count);
  // The bound keeps the product in range; no budget allows so many steps.
  constexpr uint64_t kMostCopies = 1 << 26;
  if (copies > kMostCopies || !heap.Charge(1 + copies * fill.bytes().size() / 64)) {
    heap.Exhaust("steps");
    return;
  }
  std::string filled;
  for (uint64_t i = 0; i < copies; ++i) filled += fill.bytes();
  out.Append(filled, fill.has_user_text());
}

Value Aligned(Heap& heap, const Text& text, Align align, int64_t width, const Text& fill) {
  if (CountCharacters(heap, fill) != 1) return heap.Fail("the fill is not one character");
  int64_t missing = 0;
  if (__builtin_sub_overflow(width, CountCharacters(heap, text), &missing) || missing <= 0) {
    return heap.NewText(text);
  }
  // Python puts the odd space on the left if the width is odd, too.
  const int64_t left = align == Align::kLeft    ? 0
                       : align == Align::kRight ? missing
                                                : missing / 2 + (missing & width & 1);
  Text out;
  AppendFill(heap, fill, left, out);
  out.Append(text);
  AppendFill(heap, fill, missing - left, out);
  return heap.NewText(std::move(out));
}

int64_t CountCharacters(Heap& heap, const Text& text) {
  if (!heap.ChargeBytes(text.bytes().size())) return 0;
  return std::ranges::count_if(text.bytes(),
                               [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
}

std::vector<Value> SplitLines(Heap& heap, const Text& text, bool keep_ends) {
  const std::string& bytes = text.bytes();
  std::vector<Value> lines;
  size_t begin = 0;
  if (!heap.ChargeBytes(4 * bytes.size())) return {};
  const auto end_line = [&](size_t end, size_t next) {
    Text line;
    line.Append(text, begin, keep_ends ? next : end);
    lines.push_back(heap.NewText(std::move(line)));
    begin = next;
  };
  for (size_t at = 0; at < bytes.size() && heap.ok();) {
    const model::Utf8Part part = model::ReadUtf8(bytes, at);
    const uint32_t c = part.code_point;
    size_t next = at + part.bytes;
    if ((c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
        c == 0x2029) {
      if (c == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      end_line(at, next);
    }
    at = next;
  }
  if (begin < bytes.size()) end_line(bytes.size(), bytes.size());
  return lines;
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
