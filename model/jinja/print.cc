// str, repr and json.dumps of template values, as Python prints them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "model/jinja/ast.h"
#include "model/jinja/letter_case.h"
#include "model/jinja/value.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

// Python's repr(float): the fewest digits that read back as the same number, in fixed
// notation for exponents from -4 to 15.
std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// Appends a character as \xNN, \uNNNN or \UNNNNNNNN (or a surrogate pair, for JSON).
void AppendEscape(uint32_t code_point, bool json, std::string& out) {
  char buffer[16];
  if (code_point > 0xffff && json) {
    const uint32_t rest = code_point - 0x10000;
    std::snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x", 0xd800 + (rest >> 10),
                  0xdc00 + (rest & 0x3ff));
  } else if (code_point > 0xffff) {
    std::snprintf(buffer, sizeof buffer, "\\U%08x", code_point);
  } else if (code_point > 0xff || json) {
    std::snprintf(buffer, sizeof buffer, "\\u%04x", code_point);
  } else {
    std::snprintf(buffer, sizeof buffer, "\\x%02x", code_point);
  }
  out += buffer;
}

// repr of a string: single quotes unless only they occur inside.
std::string TextRepr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const model::Utf8Part part = model::ReadUtf8(text, at);
    const uint32_t c = part.code_point;
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\' || c == static_cast<uint32_t>(quote)) {
      out += {'\\', static_cast<char>(c)};
    } else if (c < 0x20 || (c >= 0x7f && !IsPrintable(c))) {
      AppendEscape(c, /*json=*/false, out);
    } else {
      out += text.substr(at, part.bytes);
    }
    at += part.bytes;
  }
  return out + quote;
}

std::string JsonString(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const model::Utf8Part part = model::ReadUtf8(text, at);
    const uint32_t c = part.code_point;
    constexpr std::string_view kShort = "\"\\\n\r\t\b\f";
    constexpr std::string_view kLetters = "\"\\nrtbf";
    const size_t known = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out += {'\\', kLetters[known]};
    } else if (c < 0x20 || (ensure_ascii && c > 0x7e)) {
      AppendEscape(c, /*json=*/true, out);
    } else {
      out += text.substr(at, part.bytes);
    }
    at += part.bytes;
  }
  return out + '"';
}

// A text printed in quotes counts as a user's if any part of it does.
void AppendQuoted(Heap& heap, const Text& text, std::string quoted, Text& out) {
  if (heap.Charge(quoted.size() / 16)) out.Append(quoted, text.has_user_text());
}

void AppendJsonKey(Heap& heap, Value key, const JsonStyle& style, Text& out) {
  Text name;
  if (key.is(Type::kText)) {
    name = *key.text;
  } else if (key.is(Type::kList) || key.is(Type::kUndefined)) {
    heap.Fail("a key of JSON of type '", TypeName(key), "'");
  } else {  // json.dumps turns true, None and numbers into strings
    AppendJson(heap, key, style, name);
  }
  AppendQuoted(heap, name, JsonString(name.bytes(), style.ensure_ascii), out);
}

void AppendJsonBreak(Heap& heap, const JsonStyle& style, int level, Text& out) {
  if (style.indent < 0) return;
  const size_t spaces = static_cast<size_t>(style.indent) * level;
  if (heap.ChargeBytes(spaces)) out.Append("\n" + std::string(spaces, ' '), false);
}

void AppendSeparator(Heap& heap, const std::string& separator, Text& out) {
  if (heap.ChargeBytes(separator.size())) out.Append(separator, false);
}

// The comma and line break between items (none before the first).
void AppendJsonItemStart(Heap& heap, const JsonStyle& style, bool first, int level, Text& out) {
  if (!first) AppendSeparator(heap, style.item_separator, out);
  AppendJsonBreak(heap, style, level, out);
}

}  // namespace

void AppendStr(Heap& heap, Value value, Text& out) {
  if (value.is(Type::kText)) {
    out.Append(*value.text);
  } else if (!value.is(Type::kUndefined)) {
    AppendRepr(heap, value, out);
  }
}

void AppendRepr(Heap& heap, Value value, Text& out) {
  if (!heap.Charge(1)) return;
  switch (value.type) {
    case Type::kUndefined:
      return out.Append("Undefined", false);
    case Type::kNone:
      return out.Append("None", false);
    case Type::kBool:
      return out.Append(value.boolean ? "True" : "False", false);
    case Type::kInt:
      return out.Append(Cat(value.integer), false);
    case Type::kFloat:
      return out.Append(FloatRepr(value.real), false);
    case Type::kText:
      return AppendQuoted(heap, *value.text, TextRepr(value.text->bytes()), out);
    case Type::kList: {
      const List& list = *value.list;
      out.Append(list.tuple ? "(" : "[", false);
      for (size_t i = 0; i < list.items.size() && heap.ok(); ++i) {
        if (i > 0) out.Append(", ", false);
        AppendRepr(heap, list.items[i], out);
      }
      return out.Append(!list.tuple ? "]" : list.items.size() == 1 ? ",)" : ")", false);
    }
    case Type::kDict: {
      out.Append("{", false);
      bool first = true;
      for (const auto& [key, item] : value.dict->items) {
        if (!heap.ok()) return;
        if (!std::exchange(first, false)) out.Append(", ", false);
        AppendRepr(heap, key, out);
        out.Append(": ", false);
        AppendRepr(heap, item, out);
      }
      return out.Append("}", false);
    }
    case Type::kLoop: {
      const Loop& loop = *value.loop;
      const size_t length = loop.items == nullptr ? 0 : loop.items->size();
      return out.Append(Cat("<LoopContext ", loop.index0 + 1, "/", length, ">"), false);
    }
    case Type::kCallable:
      if (const Stmt* macro = value.callable->macro) {
        const bool named = macro->kind == Stmt::Kind::kMacro;
        return out.Append(named ? Cat("<Macro '", macro->name, "'>") : "<Macro anonymous>", false);
      }
      [[fallthrough]];
    default:
      out.Append(Cat("<", TypeName(value), ">"), false);
  }
}

void AppendJson(Heap& heap, Value value, const JsonStyle& style, Text& out, int level) {
  if (!heap.Charge(1)) return;
  switch (value.type) {
    case Type::kNone:
      return out.Append("null", false);
    case Type::kBool:
      return out.Append(value.boolean ? "true" : "false", false);
    case Type::kInt:
      return AppendRepr(heap, value, out);
    case Type::kFloat:
      if (std::isfinite(value.real)) return AppendRepr(heap, value, out);
      return out.Append(std::isnan(value.real) ? "NaN"
                        : value.real < 0       ? "-Infinity"
                                               : "Infinity",
                        false);
    case Type::kText:
      return AppendQuoted(heap, *value.text, JsonString(value.text->bytes(), style.ensure_ascii),
                          out);
    case Type::kList: {
      if (value.list->items.empty()) return out.Append("[]", false);
      out.Append("[", false);
      bool first = true;
      for (const Value item : value.list->items) {
        if (!heap.ok()) return;
        AppendJsonItemStart(heap, style, std::exchange(first, false), level + 1, out);
        AppendJson(heap, item, style, out, level + 1);
      }
      AppendJsonBreak(heap, style, level, out);
      return out.Append("]", false);
    }
    case Type::kDict: {
      if (value.dict->items.empty()) return out.Append("{}", false);
      auto items = value.dict->items;
      if (style.sort_keys) {
        std::ranges::stable_sort(
            items, [&](const auto& a, const auto& b) { return Less(heap, a.first, b.first); });
      }
      out.Append("{", false);
      bool first = true;
      for (const auto& [key, item] : items) {
        if (!heap.ok()) return;
        AppendJsonItemStart(heap, style, std::exchange(first, false), level + 1, out);
        AppendJsonKey(heap, key, style, out);
        AppendSeparator(heap, style.key_separator, out);
        AppendJson(heap, item, style, out, level + 1);
      }
      AppendJsonBreak(heap, style, level, out);
      return out.Append("}", false);
    }
    default:
      heap.Fail("Object of type ", TypeName(value), " is not JSON serializable");
  }
}

}  // namespace flotilla::jinja
