// The filters of the template language that take a text or any type, and the look-up of all.
#include <algorithm>
#include <cctype>

#include "model/jinja/builtins.h"
#include "model/jinja/format.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

const Text kEmpty;

// ---- Of any type ----

Value ToJson(Heap& heap, Value input, const Bound& bound, const Args&) {
  JsonStyle style;
  constexpr int64_t kMaxIndent = 64;
  if (bound.has(1) && !bound[1].is(Type::kNone)) {
    style.indent = static_cast<int>(std::clamp<int64_t>(bound.integer(heap, 1, 0), 0, kMaxIndent));
    style.item_separator = ",";
  }
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  if (bound.has(2) && !bound[2].is(Type::kNone)) {
    const Value pair = bound[2];
    if (!pair.is(Type::kList) || pair.list->items.size() != 2 ||
        !pair.list->items[0].is(Type::kText) || !pair.list->items[1].is(Type::kText)) {
      return heap.Fail("separators= wants a pair of strings");
    }
    style.item_separator = pair.list->items[0].text->bytes();
    style.key_separator = pair.list->items[1].text->bytes();
  }
  Text out;
  AppendJson(heap, input, style, out);
  return heap.NewText(std::move(out));
}

Value Default(Heap& heap, Value input, const Bound& bound, const Args&) {
  const bool missing = input.is(Type::kUndefined) || (bound.truth(1, false) && !Truthy(input));
  if (!missing) return input;
  return bound.has(0) ? bound[0] : heap.NewText(kEmpty);
}

// As x.name, but never an item.
Value Attribute(Heap& heap, Value input, const Bound& bound, const Args&) {
  const Text name = AsText(heap, bound[0]);
  if (input.is(Type::kDict) && !HasMethod(input, name.bytes())) return {};
  const Value key = heap.NewText(name);  // a bound method keeps the name
  return heap.ok() ? GetAttribute(heap, input, key.text->bytes()) : Value();
}

// ---- Texts ----

Value Indent(Heap& heap, Value input, const Bound& bound, const Args&) {
  constexpr int64_t kMaxWidth = 1000;
  if (!input.is(Type::kText)) return heap.Fail("indent of a '", TypeName(input), "'");
  Text margin("    ", false);
  if (bound.has(0) && bound[0].is(Type::kText)) {
    margin = *bound[0].text;
  } else if (bound.has(0)) {
    const int64_t width = std::clamp<int64_t>(bound.integer(heap, 0, 4), 0, kMaxWidth);
    margin = Text(std::string(static_cast<size_t>(width), ' '), false);
  }
  const bool first = bound.truth(1, false);
  const bool blank = bound.truth(2, false);
  if (!heap.Charge(input.text->cost())) return {};
  Text text = *input.text;
  text.Append("\n", false);  // an end of line at the end stays, as in Jinja
  const std::vector<Value> lines = SplitLines(heap, text, /*keep_ends=*/false);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!heap.Charge(1 + margin.cost()) || !lines[i].is(Type::kText)) return {};
    const Text& line = *lines[i].text;
    if (i > 0) out.Append("\n", false);
    if (i == 0 ? first : (blank || !line.bytes().empty())) out.Append(margin);
    out.Append(line);
  }
  return heap.NewText(std::move(out));
}

Value ReplaceFilter(Heap& heap, Value input, const Bound& bound, const Args&) {
  const bool counted = bound.has(2) && !bound[2].is(Type::kNone);
  return Replace(heap, AsText(heap, input), AsText(heap, bound[0]), AsText(heap, bound[1]),
                 counted ? bound.integer(heap, 2, -1) : -1);
}

Value Trim(Heap& heap, Value input, const Bound& bound, const Args&) {
  const bool chosen = bound.has(0) && !bound[0].is(Type::kNone);
  return Strip(heap, AsText(heap, input), chosen ? &bound.text(heap, 0, kEmpty) : nullptr, true,
               true);
}

Value Center(Heap& heap, Value input, const Bound& bound, const Args&) {
  constexpr int64_t kWidth = 80;  // Jinja's
  return Aligned(heap, AsText(heap, input), Align::kCenter, bound.integer(heap, 0, kWidth),
                 Text(" ", false));
}

Value Truncate(Heap& heap, Value input, const Bound& bound, const Args&) {
  constexpr int64_t kLength = 255, kLeeway = 5;  // Jinja's
  const Text dots("...", false);
  const int64_t length = bound.integer(heap, 0, kLength);
  const Text& end = bound.text(heap, 2, dots);
  const bool given = bound.has(3) && !bound[3].is(Type::kNone);
  const int64_t leeway = given ? bound.integer(heap, 3, kLeeway) : kLeeway;
  const int64_t keep = length - CountCharacters(heap, end);
  if (keep < 0) return heap.Fail("truncate: the length is less than that of the end");
  if (leeway < 0) return heap.Fail("truncate: the leeway is negative");
  const Value length_of_input = CallFilter(heap, "length", input, {});
  const int64_t size = length_of_input.as_integer();
  if (!heap.ok() || size <= length || size - length <= leeway) return input;
  if (!input.is(Type::kText)) return heap.Fail("truncate of a long '", TypeName(input), "'");
  const Text& text = *input.text;
  const std::string_view bytes = text.bytes();
  size_t cut = 0;
  for (int64_t i = 0; i < keep; ++i) cut += model::ReadUtf8(bytes, cut).bytes;
  if (!bound.truth(1, false)) cut = std::min(cut, bytes.substr(0, cut).rfind(' '));
  Text out;
  out.Append(text, 0, cut);
  out.Append(end);
  return heap.NewText(std::move(out));
}

Value WordCount(Heap& heap, Value input, const Bound&, const Args&) {
  const Text text = AsText(heap, input);
  const std::string& bytes = text.bytes();
  if (!heap.Charge(bytes.size() / 16)) return {};
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < bytes.size();) {
    const model::Utf8Part part = model::ReadUtf8(bytes, at);
    const bool word = part.code_point == '_' || IsAlphanumeric(part.code_point);
    if (word && !std::exchange(inside, word)) ++words;
    inside = word;
    at += part.bytes;
  }
  return Value(words);
}

// Returns the text with each byte that `escape` has a text for as that text.
template <typename Escape>
Value Escaped(Heap& heap, const Text& text, Escape escape) {
  Text out;
  size_t at = 0;
  uint64_t made = 0;
  for (const Text::Run& run : text.runs()) {
    std::string part;
    for (; at < run.end; ++at) {
      const auto escaped = escape(text.bytes()[at]);
      part += escaped.empty() ? text.bytes().substr(at, 1) : std::string(escaped);
      made += escaped.size();
      if (made >= 64 && !heap.Charge(std::exchange(made, 0) / 64)) return {};
    }
    out.Append(part, run.user);
  }
  return heap.NewText(std::move(out));
}

Value EscapeHtml(Heap& heap, Value input, const Bound&, const Args&) {
  return Escaped(heap, AsText(heap, input), [](char c) -> std::string_view {
    switch (c) {
      case '&':
        return "&amp;";
      case '<':
        return "&lt;";
      case '>':
        return "&gt;";
      case '\'':
        return "&#39;";
      case '"':
        return "&#34;";
      default:
        return {};
    }
  });
}

// A part of a query (in which a space is +), or a path.
Value UrlQuoted(Heap& heap, Value value, bool query) {
  return Escaped(heap, AsText(heap, value), [query](char c) -> std::string {
    const bool safe = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                      std::string_view("_.-~").find(c) != std::string_view::npos;
    if (safe || (c == '/' && !query)) return {};
    if (c == ' ' && query) return "+";
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    const auto byte = static_cast<uint8_t>(c);
    return {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  });
}

// A string becomes quoted. A dict, or pairs, become key=value&key=value.
Value UrlEncode(Heap& heap, Value input, const Bound&, const Args&) {
  if (!input.is(Type::kDict) && !input.is(Type::kList)) return UrlQuoted(heap, input, false);
  const Value pairs = input.is(Type::kDict) ? DictItems(heap, *input.dict) : input;
  std::vector<Value> parts;
  for (const Value pair : Items(heap, pairs)) {
    const std::vector<Value> both = Items(heap, pair);
    if (both.size() != 2) return heap.Fail("urlencode wants a string, a dict or pairs");
    parts.push_back(Join(heap, {UrlQuoted(heap, both[0], true), UrlQuoted(heap, both[1], true)},
                         Text("=", false)));
  }
  return Join(heap, parts, Text("&", false));
}

Value Format(Heap& heap, Value input, const Bound&, const Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    return heap.Fail("format takes positional or named arguments, not both");
  }
  const Text format = AsText(heap, input);
  if (args.named.empty()) {
    const std::vector<Value> items(args.positional.begin(), args.positional.end());
    return FormatPercent(heap, format, heap.NewList(items, /*tuple=*/true));
  }
  Dict dict;
  for (const auto& [name, value] : args.named) dict.Set(heap, heap.NewText(name), value);
  return FormatPercent(heap, format, heap.NewDict(std::move(dict)));
}

// A filter that maps a text; AsText turns other values into text.
template <Text (*map)(Heap&, const Text&)>
Value TextFilter(Heap& heap, Value input, const Bound&, const Args&) {
  return heap.NewText(map(heap, AsText(heap, input)));
}

Text Same(Heap&, const Text& text) { return text; }

constexpr Builtin kFilters[] = {
    {"attr", "name", Attribute},
    {"capitalize", "", TextFilter<Capitalized>},
    {"center", "width=", Center},
    {"d", "default_value= boolean=", Default},
    {"default", "default_value= boolean=", Default},
    {"e", "", EscapeHtml},
    {"escape", "", EscapeHtml},
    {"forceescape", "", EscapeHtml},
    {"format", "*", Format},
    {"indent", "width= first= blank=", Indent},
    {"lower", "", TextFilter<Lowered>},
    {"replace", "old new count=", ReplaceFilter},
    {"safe", "", TextFilter<Same>},
    {"string", "", TextFilter<Same>},
    {"title", "", TextFilter<Titled>},
    {"tojson", "ensure_ascii= indent= separators= sort_keys=", ToJson},
    {"trim", "chars=", Trim},
    {"truncate", "length= killwords= end= leeway=", Truncate},
    {"upper", "", TextFilter<Uppered>},
    {"urlencode", "", UrlEncode},
    {"wordcount", "", WordCount},
};

const Builtin* FindFilter(std::string_view name) {
  for (const std::span<const Builtin> table :
       {std::span<const Builtin>(kFilters), ListFilters(), NumberFilters()}) {
    const auto row = std::ranges::find(table, name, &Builtin::name);
    if (row != table.end()) return &*row;
  }
  return nullptr;
}

}  // namespace

bool IsFilter(std::string_view name) { return FindFilter(name) != nullptr; }

Value CallFilter(Heap& heap, std::string_view name, Value input, const Args& args) {
  const Builtin* row = FindFilter(name);
  if (row == nullptr) return heap.Fail("no filter '", name, "'");
  return CallBuiltin(heap, {row, 1}, name, input, args);
}

}  // namespace flotilla::jinja
