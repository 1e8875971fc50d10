// str.format.
#include <algorithm>
#include <charconv>
#include <optional>

#include "model/jinja/format.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

bool IsAllDigits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

class BraceFormatter {
 public:
  BraceFormatter(Heap& heap, const Args& args) : heap_(heap), args_(args) {}

  // The format with its fields replaced. The specification of a field may have fields in turn, and
  // theirs may not.
  Text Run(const Text& format, int levels) {
    Text out;
    if (levels == 0) {
      heap_.Fail("fields of a format are nested too deeply");
      return out;
    }
    const std::string_view bytes = format.bytes();
    for (size_t at = 0; at < bytes.size() && heap_.ok();) {
      const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
      if (!heap_.Charge(1 + (brace - at) / 64)) break;
      out.Append(format, at, brace);
      at = brace;
      if (at == bytes.size()) break;
      if (at + 1 < bytes.size() && bytes[at] == bytes[at + 1]) {
        out.Append(format, at, at + 1);
        at += 2;
      } else if (bytes[at] == '}' || at + 1 == bytes.size()) {
        heap_.Fail("a single '", bytes.substr(at, 1), "' in a format string");
      } else {
        at = Field(format, at + 1, levels, out);
      }
    }
    return out;
  }

 private:
  // Appends the field that begins at `begin`, and returns what follows it.
  size_t Field(const Text& format, size_t begin, int levels, Text& out) {
    const std::string_view bytes = format.bytes();
    size_t end = begin;
    for (int open = 1; end < bytes.size(); ++end) {
      open += bytes[end] == '{' ? 1 : bytes[end] == '}' ? -1 : 0;
      if (open == 0) break;
    }
    if (!heap_.ChargeBytes(end - begin)) return end;
    if (end == bytes.size()) {
      heap_.Fail("a field of a format string does not end");
      return end;
    }
    bool bracket = false;
    size_t name_end = begin;
    for (; name_end < end; ++name_end) {
      const char c = bytes[name_end];
      if (c == '[' || c == ']') bracket = c == '[';
      if (c == '{') heap_.Fail("unexpected '{' in the name of a field");
      if (!bracket && (c == ':' || c == '!')) break;
    }
    Value value = Find(bytes.substr(begin, name_end - begin));
    size_t at = name_end;
    if (at < end && bytes[at] == '!') {
      const char conversion = at + 1 < end ? bytes[at + 1] : '\0';
      at += 2;
      if (at < end && bytes[at] != ':') heap_.Fail("expected ':' after a conversion");
      if (heap_.ok()) value = Converted(conversion, value);
    }
    Text spec;
    if (at < end) spec.Append(format, at + 1, end);
    if (heap_.ok()) AppendField(value, Run(spec, levels - 1), out);
    return end + 1;
  }

  // The value of a name such as 0.role or tool[name].
  Value Find(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    const std::string_view first = name.substr(0, first_end);
    std::string_view rest = name.substr(first_end);
    Value value;
    if (name.empty() || IsAllDigits(name)) {
      if (counting_ && *counting_ != name.empty()) {
        return heap_.Fail("a format numbers all of its fields or none");
      }
      counting_ = name.empty();
    }
    if (name.empty() || IsAllDigits(first)) {
      size_t index = next_;
      if (name.empty()) {
        ++next_;
      } else {
        std::from_chars(first.data(), first.data() + first.size(), index);
      }
      if (index >= args_.positional.size()) {
        return heap_.Fail("no argument ", index, " for the format");
      }
      value = args_.positional[index];
    } else {
      const auto named =
          std::ranges::find(args_.named, first, &std::pair<std::string_view, Value>::first);
      if (named == args_.named.end()) {
        return heap_.Fail("no argument '", first, "' for the format");
      }
      value = named->second;
    }
    while (!rest.empty() && heap_.Charge(1)) {
      const bool item = rest[0] == '[';
      const size_t end = std::min(item ? rest.find(']') : rest.find_first_of(".[", 1), rest.size());
      const std::string_view key = rest.substr(1, end - 1);
      if (key.empty() || (item && end == rest.size())) {
        return heap_.Fail("an empty or open attribute in a format");
      }
      rest.remove_prefix(end + (item ? 1 : 0));
      if (item && !rest.empty() && rest[0] != '.' && rest[0] != '[') {
        return heap_.Fail("only '.' or '[' may follow ']' in a format");
      }
      value = item ? Item(value, key) : GetAttribute(heap_, value, KeptName(key));
    }
    return value;
  }

  // A bound method keeps its name, so that it must live as long as the heap.
  std::string_view KeptName(std::string_view name) {
    const Value text = heap_.NewText(name);
    return heap_.ok() ? std::string_view(text.text->bytes()) : std::string_view();
  }

  Value Item(Value value, std::string_view key) {
    int64_t index = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), index);
    const bool numeric = IsAllDigits(key) && parsed.ec == std::errc();
    const Value wanted = numeric ? Value(index) : heap_.NewText(key);
    return heap_.ok() ? GetItem(heap_, value, wanted) : Value();
  }

  Value Converted(char conversion, Value value) {
    if (conversion == 's') return heap_.NewText(AsText(heap_, value));
    if (conversion != 'r') {
      return heap_.Fail("unsupported conversion '", std::string(1, conversion), "' in a format");
    }
    Text text;
    AppendRepr(heap_, value, text);
    return heap_.NewText(std::move(text));
  }

  static char CharAt(std::string_view text, size_t at) {
    return at < text.size() ? text[at] : '\0';
  }

  // Reads [[fill]align][sign][#][0][width][grouping][.precision][type].
  FormatSpec ReadSpec(const Text& text, bool number) {
    const std::string_view bytes = text.bytes();
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    FormatSpec spec;
    size_t at = 0;
    const size_t first = bytes.empty() ? 0 : model::ReadUtf8(bytes, 0).bytes;
    if (is_align(CharAt(bytes, first))) {
      spec.fill.Append(text, 0, first);
      spec.align = bytes[first];
      at = first + 1;
    } else if (is_align(CharAt(bytes, 0))) {
      spec.align = bytes[at++];
    }
    const char sign = CharAt(bytes, at);
    if (sign == '+' || sign == '-' || sign == ' ') {
      spec.sign = bytes[at++];
      has_sign_ = true;
    }
    if (CharAt(bytes, at) == '#') {
      spec.alternate = true;
      ++at;
    }
    if (spec.fill.bytes().empty() && CharAt(bytes, at) == '0') {
      spec.fill = Text("0", false);
      if (spec.align == '\0' && number) spec.align = '=';
      ++at;
    }
    spec.width = ReadCount(heap_, bytes, at);
    if (CharAt(bytes, at) == ',' || CharAt(bytes, at) == '_') spec.grouping = bytes[at++];
    if (CharAt(bytes, at) == '.') {
      const size_t digits = ++at;
      spec.precision = ReadCount(heap_, bytes, at);
      if (at == digits) heap_.Fail("format specifier missing precision");
    }
    if (at < bytes.size()) spec.type = bytes[at++];
    if (at < bytes.size()) heap_.Fail("invalid format specifier '", bytes.substr(0, 40), "'");
    return spec;
  }

  void AppendField(Value value, const Text& spec_text, Text& out) {
    if (!heap_.ok()) return;
    if (spec_text.bytes().empty()) return out.Append(AsText(heap_, value));
    has_sign_ = false;
    const FormatSpec spec = ReadSpec(spec_text, value.is_number());
    if (!heap_.ok()) return;
    constexpr std::string_view kReals = "eEfFgG%", kIntegers = "dxXobc";
    const bool real_type = spec.type != '\0' && kReals.find(spec.type) != std::string_view::npos;
    const bool integer_type =
        spec.type == '\0' || kIntegers.find(spec.type) != std::string_view::npos;
    if (value.is(Type::kText) && (spec.type == '\0' || spec.type == 's')) {
      if (has_sign_ || spec.alternate || spec.align == '=' || spec.grouping != '\0') {
        heap_.Fail("the format of a string has no sign, #, = or grouping");
      }
      return AppendFormatted(heap_, *value.text, spec, out);
    }
    if (value.is_number() && (real_type || (value.is(Type::kFloat) && spec.type == '\0'))) {
      return AppendNumber(heap_, RealText(heap_, value.as_real(), spec), spec, out);
    }
    if (value.is_integer() && integer_type) return AppendInteger(value, spec, out);
    heap_.Fail("unsupported format '", spec_text.bytes().substr(0, 40), "' of a '", TypeName(value),
               "'");
  }

  void AppendInteger(Value value, const FormatSpec& spec, Text& out) {
    const bool decimal = spec.type == '\0' || spec.type == 'd';
    if (spec.precision >= 0 || (spec.grouping == ',' && !decimal) ||
        (spec.type == 'c' && (has_sign_ || spec.grouping != '\0' || spec.alternate))) {
      heap_.Fail("the format of an integer has no such precision, sign or grouping");
    } else if (spec.type == 'c') {
      FormatSpec plain = spec;
      if (plain.align == '=') plain.align = '>';
      AppendFormatted(heap_, CharacterText(heap_, value), plain, out);
    } else {
      AppendNumber(heap_, IntegerText(heap_, value.as_integer(), spec), spec, out);
    }
  }

  Heap& heap_;
  const Args& args_;
  size_t next_ = 0;               // the next argument of a field without a name
  std::optional<bool> counting_;  // fields have no names (or numbers)
  bool has_sign_ = false;         // of the specification that was read last
};

}  // namespace

Value FormatBraces(Heap& heap, const Text& format, const Args& args) {
  constexpr int kLevels = 3;  // the limit of string.Formatter: a format, its fields' and theirs
  Text text = BraceFormatter(heap, args).Run(format, kLevels);
  return heap.ok() ? heap.NewText(std::move(text)) : Value();
}

}  // namespace flotilla::jinja
