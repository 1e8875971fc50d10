// The methods of strings in the template language.
#include <algorithm>

#include "model/jinja/builtins.h"
#include "model/jinja/format.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

const Text kEmptyText;

Value Part(Heap& heap, const Text& text, size_t begin, size_t end) {
  Text part;
  part.Append(text, begin, end);
  return heap.NewText(std::move(part));
}

// ---- Searches ----

// The bytes of a text between the characters [start, end) that a method's arguments name.
struct Window {
  size_t begin = 0;
  std::string_view bytes;
  bool empty = false;  // start is after end, so that not even an empty text is found
};

// Start and end are arguments `i` and the one after it; each may be left out.
Window WindowOf(Heap& heap, const Text& text, const Bound& bound, size_t i) {
  Window window;
  window.bytes = text.bytes();
  const auto given = [&](size_t at) { return bound.has(at) && !bound[at].is(Type::kNone); };
  if (!given(i) && !given(i + 1)) return window;
  if (!heap.Charge(text.bytes().size() / 8)) return window;
  const std::vector<size_t> offsets = CharacterOffsets(text.bytes());
  const auto size = static_cast<int64_t>(offsets.size() - 1);
  const auto resolve = [&](size_t at, int64_t fallback) {
    if (!given(at)) return fallback;
    const int64_t place = bound.integer(heap, at, fallback);
    return place < 0 ? std::max<int64_t>(place + size, 0) : place;
  };
  const int64_t start = resolve(i, 0);
  const int64_t end = std::min(resolve(i + 1, size), size);
  window.empty = start > end;
  if (window.empty) return window;
  window.begin = offsets[static_cast<size_t>(start)];
  window.bytes = std::string_view(text.bytes())
                     .substr(window.begin, offsets[static_cast<size_t>(end)] - window.begin);
  return window;
}

// The last place of `wanted`, or npos. It takes time in proportion to the sizes, as FindText.
size_t FindLastText(std::string_view text, std::string_view wanted) {
  const std::string backwards(text.rbegin(), text.rend());
  const std::string wanted_backwards(wanted.rbegin(), wanted.rend());
  const size_t found = FindText(backwards, wanted_backwards);
  return found == std::string_view::npos ? found : text.size() - found - wanted.size();
}

// find, rfind, index and rindex.
template <bool last, bool must_be_there>
Value Find(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::string& wanted = bound.text(heap, 0, kEmptyText).bytes();
  if (!heap.Charge((self.text->bytes().size() + wanted.size()) / 8)) return {};
  const Window window = WindowOf(heap, *self.text, bound, 1);
  const size_t at = window.empty ? std::string_view::npos
                    : last       ? FindLastText(window.bytes, wanted)
                                 : FindText(window.bytes, wanted);
  if (at == std::string_view::npos) {
    return must_be_there ? heap.Fail("substring not found") : Value(int64_t{-1});
  }
  const std::string before = self.text->bytes().substr(0, window.begin + at);
  return Value(CountCharacters(heap, Text(before, false)));
}

Value Count(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::string& wanted = bound.text(heap, 0, kEmptyText).bytes();
  const Window window = WindowOf(heap, *self.text, bound, 1);
  if (!heap.ChargeBytes(window.bytes.size()) || window.empty) return Value(int64_t{0});
  if (wanted.empty()) {  // it is found around each character
    return Value(static_cast<int64_t>(CharacterOffsets(window.bytes).size()));
  }
  int64_t count = 0;
  for (size_t at = FindText(window.bytes, wanted); at != std::string_view::npos && heap.Charge(1);
       at = FindText(window.bytes, wanted, at + wanted.size())) {
    ++count;
  }
  return Value(count);
}

// startswith and endswith; a tuple means any of its strings.
template <bool start>
Value HasAffix(Heap& heap, Value self, const Bound& bound, const Args&) {
  const Window window = WindowOf(heap, *self.text, bound, 1);
  std::vector<Value> affixes = {bound[0]};
  if (bound[0].is(Type::kList) && bound[0].list->tuple) affixes = Items(heap, bound[0]);
  for (const Value affix : affixes) {
    if (!affix.is(Type::kText)) return heap.Fail("a string is wanted");
    const std::string& text = affix.text->bytes();
    if (text.size() <= window.bytes.size() && !heap.ChargeBytes(text.size())) return {};
    if (window.empty) continue;
    if (start ? window.bytes.starts_with(text) : window.bytes.ends_with(text)) return Value(true);
  }
  return Value(false);
}

// removeprefix and removesuffix.
template <bool start>
Value WithoutAffix(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::string_view bytes = self.text->bytes();
  const std::string& affix = bound.text(heap, 0, kEmptyText).bytes();
  if (affix.size() <= bytes.size() && !heap.ChargeBytes(affix.size())) return {};
  const bool has = start ? bytes.starts_with(affix) : bytes.ends_with(affix);
  if (!has) return self;
  return start ? Part(heap, *self.text, affix.size(), bytes.size())
               : Part(heap, *self.text, 0, bytes.size() - affix.size());
}

// ---- Parts ----

struct Span {
  size_t begin, end;
};

// split() and rsplit() without a separator: the words between white space. After `limit` words
// from one side the rest is one item.
Value SplitAtSpace(Heap& heap, const Text& text, int64_t limit, bool from_right) {
  const std::string_view bytes = text.bytes();
  if (!heap.Charge(bytes.size() / 16)) return {};
  std::vector<Span> words;
  bool inside = false;
  for (size_t at = 0; at < bytes.size();) {
    const model::Utf8Part part = model::ReadUtf8(bytes, at);
    const bool space = IsSpace(part.code_point);
    if (!space && !inside) {
      if (!heap.Charge(1)) return {};
      words.push_back({at, at});
    }
    at += part.bytes;
    inside = !space;
    if (inside) words.back().end = at;
  }
  if (limit >= 0 && static_cast<uint64_t>(limit) < words.size()) {
    const auto kept = static_cast<size_t>(limit);
    if (from_right) {
      const size_t joined = words.size() - kept;
      words[joined - 1].begin = 0;
      words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(joined - 1));
    } else {
      words.resize(kept + 1);
      words.back().end = bytes.size();
    }
  }
  std::vector<Value> parts;
  for (const Span word : words) parts.push_back(Part(heap, text, word.begin, word.end));
  return heap.NewList(std::move(parts));
}

// The places between which `separator` lies. From the right, Python takes the last ones first.
std::vector<Span> Separated(Heap& heap, std::string_view bytes, std::string_view separator,
                            int64_t limit) {
  std::vector<Span> parts;
  for (size_t at = 0; heap.Charge(1); --limit) {
    const size_t found = limit == 0 ? std::string_view::npos : FindText(bytes, separator, at);
    parts.push_back({at, std::min(found, bytes.size())});
    if (found == std::string_view::npos) break;
    at = found + separator.size();
  }
  return parts;
}

template <bool from_right>
Value Split(Heap& heap, Value self, const Bound& bound, const Args&) {
  const int64_t limit = bound.integer(heap, 1, -1);
  if (!bound.has(0) || bound[0].is(Type::kNone)) {
    return SplitAtSpace(heap, *self.text, limit, from_right);
  }
  const std::string& separator = bound.text(heap, 0, kEmptyText).bytes();
  if (separator.empty()) return heap.Fail("empty separator");
  const std::string& bytes = self.text->bytes();
  if (!heap.ChargeBytes(bytes.size() + separator.size())) return {};
  std::vector<Span> spans;
  if (from_right) {
    spans = Separated(heap, std::string(bytes.rbegin(), bytes.rend()),
                      std::string(separator.rbegin(), separator.rend()), limit);
    for (Span& span : spans) span = {bytes.size() - span.end, bytes.size() - span.begin};
    std::ranges::reverse(spans);
  } else {
    spans = Separated(heap, bytes, separator, limit);
  }
  std::vector<Value> parts;
  for (const Span span : spans) parts.push_back(Part(heap, *self.text, span.begin, span.end));
  return heap.NewList(std::move(parts));
}

// partition and rpartition: what is before the separator, the separator, and what is after it.
template <bool last>
Value Partition(Heap& heap, Value self, const Bound& bound, const Args&) {
  const Text& separator = bound.text(heap, 0, kEmptyText);
  if (separator.bytes().empty()) return heap.Fail("empty separator");
  const std::string& bytes = self.text->bytes();
  if (!heap.ChargeBytes(2 * (bytes.size() + separator.bytes().size()))) return {};
  const size_t at =
      last ? FindLastText(bytes, separator.bytes()) : FindText(bytes, separator.bytes());
  if (at == std::string::npos) {
    const Value none = heap.NewText(kEmptyText);
    return heap.NewList(last ? std::vector{none, none, self} : std::vector{self, none, none},
                        /*tuple=*/true);
  }
  const size_t after = at + separator.bytes().size();
  return heap.NewList({Part(heap, *self.text, 0, at), Part(heap, *self.text, at, after),
                       Part(heap, *self.text, after, bytes.size())},
                      /*tuple=*/true);
}

Value SplitLinesMethod(Heap& heap, Value self, const Bound& bound, const Args&) {
  return heap.NewList(SplitLines(heap, *self.text, bound.truth(0, false)));
}

template <bool left, bool right>
Value StripMethod(Heap& heap, Value self, const Bound& bound, const Args&) {
  const bool chosen = bound.has(0) && !bound[0].is(Type::kNone);
  return Strip(heap, *self.text, chosen ? &bound.text(heap, 0, kEmptyText) : nullptr, left, right);
}

Value ReplaceMethod(Heap& heap, Value self, const Bound& bound, const Args&) {
  return Replace(heap, *self.text, bound.text(heap, 0, kEmptyText), bound.text(heap, 1, kEmptyText),
                 bound.integer(heap, 2, -1));
}

Value JoinMethod(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::vector<Value> items = Items(heap, bound[0]);
  for (const Value item : items) {
    if (!item.is(Type::kText)) return heap.Fail("join wants strings, not ", TypeName(item));
  }
  return Join(heap, items, *self.text);
}

// ---- Layout ----

template <Align align>
Value AlignedMethod(Heap& heap, Value self, const Bound& bound, const Args&) {
  const Text space(" ", false);
  return Aligned(heap, *self.text, align, bound.integer(heap, 0, 0), bound.text(heap, 1, space));
}

// Zeros on the left, after a sign.
Value ZeroFill(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::string& bytes = self.text->bytes();
  const int64_t size = CountCharacters(heap, *self.text);
  const int64_t width = bound.integer(heap, 0, 0);
  if (width <= size) return self;
  const size_t sign = bytes.starts_with('+') || bytes.starts_with('-') ? 1 : 0;
  Text out;
  out.Append(*self.text, 0, sign);
  AppendFill(heap, Text("0", false), width - size, out);
  out.Append(*self.text, sign, bytes.size());
  return heap.NewText(std::move(out));
}

Value FormatMethod(Heap& heap, Value self, const Bound&, const Args& args) {
  return FormatBraces(heap, *self.text, args);
}

// ---- Characters ----

// True if there is a character and all characters are of a class.
template <bool (*is)(uint32_t)>
Value AllAre(Heap& heap, Value self, const Bound&, const Args&) {
  const std::string& bytes = self.text->bytes();
  if (!heap.Charge(bytes.size() / 16)) return {};
  for (size_t at = 0; at < bytes.size();) {
    const model::Utf8Part part = model::ReadUtf8(bytes, at);
    if (!is(part.code_point)) return Value(false);
    at += part.bytes;
  }
  return Value(!bytes.empty());
}

Value IsAsciiMethod(Heap& heap, Value self, const Bound&, const Args&) {
  const std::string& bytes = self.text->bytes();
  return Value(heap.ChargeBytes(bytes.size()) &&
               std::ranges::all_of(bytes, [](char c) { return static_cast<uint8_t>(c) < 0x80; }));
}

Value IsPrintableMethod(Heap& heap, Value self, const Bound& bound, const Args& args) {
  return self.text->bytes().empty() ? Value(true) : AllAre<IsPrintable>(heap, self, bound, args);
}

template <bool (*is)(std::string_view)>
Value IsTextOfCase(Heap& heap, Value self, const Bound&, const Args&) {
  const std::string& bytes = self.text->bytes();
  return Value(heap.Charge(bytes.size() / 16) && is(bytes));
}

template <Text (*map)(Heap&, const Text&)>
Value Mapped(Heap& heap, Value self, const Bound&, const Args&) {
  return heap.Charge(self.text->cost()) ? heap.NewText(map(heap, *self.text)) : Value();
}

constexpr Builtin kTextMethods[] = {
    {"capitalize", "", Mapped<Capitalized>},
    {"casefold", "", Mapped<CaseFolded>},
    {"center", "width fillchar=", AlignedMethod<Align::kCenter>},
    {"count", "sub start= end=", Count},
    {"endswith", "suffix start= end=", HasAffix<false>},
    {"find", "sub start= end=", Find<false, false>},
    {"format", "*", FormatMethod},
    {"index", "sub start= end=", Find<false, true>},
    {"isalnum", "", AllAre<IsAlphanumeric>},
    {"isalpha", "", AllAre<IsAlpha>},
    {"isascii", "", IsAsciiMethod},
    {"isdecimal", "", AllAre<IsDecimal>},
    {"isdigit", "", AllAre<IsDigit>},
    {"islower", "", IsTextOfCase<IsLowerText>},
    {"isnumeric", "", AllAre<IsNumeric>},
    {"isprintable", "", IsPrintableMethod},
    {"isspace", "", AllAre<IsSpace>},
    {"isupper", "", IsTextOfCase<IsUpperText>},
    {"join", "iterable", JoinMethod},
    {"ljust", "width fillchar=", AlignedMethod<Align::kLeft>},
    {"lower", "", Mapped<Lowered>},
    {"lstrip", "chars=", StripMethod<true, false>},
    {"partition", "sep", Partition<false>},
    {"removeprefix", "prefix", WithoutAffix<true>},
    {"removesuffix", "suffix", WithoutAffix<false>},
    {"replace", "old new count=", ReplaceMethod},
    {"rfind", "sub start= end=", Find<true, false>},
    {"rindex", "sub start= end=", Find<true, true>},
    {"rjust", "width fillchar=", AlignedMethod<Align::kRight>},
    {"rpartition", "sep", Partition<true>},
    {"rsplit", "sep= maxsplit=", Split<true>},
    {"rstrip", "chars=", StripMethod<false, true>},
    {"split", "sep= maxsplit=", Split<false>},
    {"splitlines", "keepends=", SplitLinesMethod},
    {"startswith", "prefix start= end=", HasAffix<true>},
    {"strip", "chars=", StripMethod<true, true>},
    {"swapcase", "", Mapped<SwapCased>},
    {"title", "", Mapped<TitleCased>},
    {"upper", "", Mapped<Uppered>},
    {"zfill", "width", ZeroFill},
};

}  // namespace

std::span<const Builtin> TextMethods() { return kTextMethods; }

}  // namespace flotilla::jinja
