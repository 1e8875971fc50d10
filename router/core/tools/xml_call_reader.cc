#include "router/core/tools/xml_call_reader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "common/types/text.h"
#include "nlohmann/json.hpp"
#include "router/core/constraint/xml_schema.h"
#include "router/core/tools/json_string.h"

namespace flotilla::router {
namespace {

using Verdict = CallReader::Verdict;

constexpr unsigned kNestedTypes = kObjectType | kArrayType;

// Whether a number is whole, as 5 and 5.0 are.
bool IsWhole(std::string_view number) {
  const std::size_t point = std::min(number.find('.'), number.size() - 1);
  return number.find_first_of("eE") == number.npos &&
         (number[point] != '.' || number.find_first_not_of('0', point + 1) == number.npos);
}

// The type of a JSON value, by its first character; kAllTypes if none begins so.
unsigned TypeOfText(std::string_view text) {
  switch (text.front()) {
    case '{':
      return kObjectType;
    case '[':
      return kArrayType;
    case '"':
      return kStringType;
    case 't':
    case 'f':
      return kBooleanType;
    case 'n':
      return kNullType;
    default:
      return IsWhole(text) ? kIntegerType : kNumberType;
  }
}

// The JSON of a value of one of `types`; none if `text` is none of them. Templates write values of
// earlier calls as Python does, so models do, too.
std::optional<std::string_view> JsonOf(std::string_view text, unsigned types) {
  if (text == "True") text = "true";
  if (text == "False") text = "false";
  if (text == "None") text = "null";
  if (text.empty() || (TypeOfText(text) & types) == 0) return std::nullopt;
  if (!nlohmann::json::accept(text)) return std::nullopt;
  // Some readers take 5.0 for no integer.
  const bool is_integer = TypeOfText(text) == kIntegerType && (types & kNumberType) == 0;
  return is_integer ? text.substr(0, text.find('.')) : text;
}

std::string_view WithoutLines(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// A text of more than `most` characters without white space at its ends, if so much of it can go. A
// grammar counts none that it allows around such a text.
std::string_view Shortened(std::string_view text, std::size_t most) {
  auto length = static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
  std::string_view rest = text;
  for (; length > most && !rest.empty() && IsSpace(rest.back()); --length) rest.remove_suffix(1);
  for (; length > most && !rest.empty() && IsSpace(rest.front()); --length) rest.remove_prefix(1);
  return length > most ? text : rest;
}

}  // namespace

void XmlCallReader::Begin(bool bare) {
  // A name that only a line break ends may be a word of prose.
  bare_ = bare || tags_.name_end.empty();
  committed_ = false;
  tag_.clear();
  step_ = Step::kStart;
  if (bare) BeginName();
}

void XmlCallReader::BeginName() {
  name_.clear();
  tag_.clear();
  has_arguments_ = false;
  step_ = Step::kName;
}

Verdict XmlCallReader::Push(char c, std::vector<OutputEvent>& events) {
  switch (step_) {
    case Step::kStart:
      if (tags_.name_begin.empty() && !IsSpace(c)) {
        BeginName();
        return ReadName(c, events);
      }
      if (!ReadTag(c, {tags_.name_begin})) return Verdict::kNoCall;
      if (!tag_.empty() && tag_ == tags_.name_begin) BeginName();
      return Verdict::kReading;
    case Step::kName:
      return ReadName(c, events);
    case Step::kBetween:
      return ReadBetween(c, events);
    case Step::kKey:
      return ReadKey(c, events);
    case Step::kValueBegin:
      return ReadValueBegin(c, events);
    case Step::kValue:
      return ReadValue(c, events);
    case Step::kAfter:
      return ReadAfter(c, events);
  }
  return Verdict::kReading;
}

bool XmlCallReader::ReadTag(char c, std::initializer_list<std::string_view> tags) {
  if (tag_.empty() && IsSpace(c)) return true;
  tag_.push_back(c);
  return std::any_of(tags.begin(), tags.end(),
                     [this](std::string_view tag) { return tag.starts_with(tag_); });
}

Verdict XmlCallReader::Leave(std::string_view text, std::vector<OutputEvent>& events) {
  left_ = text.substr(0, text.size() - 1);
  if (step_ != Step::kAfter) EndCall(events);
  committed_ = true;
  return Verdict::kLeft;
}

Verdict XmlCallReader::ReadName(char c, std::vector<OutputEvent>& events) {
  const bool ends = tags_.name_end.empty() ? c == '\n' || c == '<' : tags_.name_end[0] == c;
  if (!ends) {
    name_.push_back(c);
    return name_.size() > kMaxXmlNameBytes ? Verdict::kNoCall : Verdict::kReading;
  }
  name_ = std::string(Trimmed(name_));
  if (!Commit(name_, events)) return Verdict::kNoCall;
  step_ = Step::kBetween;
  return c == '<' ? ReadBetween(c, events) : Verdict::kReading;
}

Verdict XmlCallReader::ReadBetween(char c, std::vector<OutputEvent>& events) {
  if (!ReadTag(c, {tags_.key_begin, tags_.body_end, options_.tools->end})) {
    return Leave(tag_, events);
  }
  if (tag_.empty()) return Verdict::kReading;
  if (tag_ == tags_.key_begin) {
    tag_.clear();
    key_.clear();
    step_ = Step::kKey;
  } else if (tag_ == tags_.body_end) {
    EndCall(events);
  } else if (tag_ == options_.tools->end) {
    EndCall(events);
    return Verdict::kEnded;
  }
  return Verdict::kReading;
}

Verdict XmlCallReader::ReadKey(char c, std::vector<OutputEvent>& events) {
  key_.push_back(c);
  if (!key_.ends_with(tags_.key_end)) {
    return key_.size() >= kMaxXmlNameBytes + tags_.key_end.size()
               ? Leave(Cat(tags_.key_begin, key_), events)
               : Verdict::kReading;
  }
  step_ = Step::kValueBegin;
  if (tags_.value_begin.empty()) BeginValue(events);
  return Verdict::kReading;
}

Verdict XmlCallReader::ReadValueBegin(char c, std::vector<OutputEvent>& events) {
  if (!ReadTag(c, {tags_.value_begin})) {
    return Leave(Cat(tags_.key_begin, key_, tag_), events);
  }
  if (tag_ == tags_.value_begin) BeginValue(events);
  return Verdict::kReading;
}

void XmlCallReader::BeginValue(std::vector<OutputEvent>& events) {
  key_.resize(key_.size() - tags_.key_end.size());
  const std::string_view key = Trimmed(key_);
  AddArguments(Cat(std::exchange(has_arguments_, true) ? ", " : "{", JsonQuoted(key), ": "),
               events);
  type_ =
      options_.argument_types == nullptr ? ArgumentType() : options_.argument_types->Of(name_, key);
  if (type_.types == kAllTypes && !tags_.guesses) type_.types = kStringType;
  is_text_ = type_.types == kStringType && !type_.trims && type_.max_length == kNoMaxLength;
  if (is_text_) AddArguments("\"", events);
  tag_.clear();
  value_.clear();
  is_nested_ = in_string_ = escaped_ = owes_tag_ = owes_line_ = false;
  at_begin_ = true;
  step_ = Step::kValue;
}

Verdict XmlCallReader::ReadValue(char c, std::vector<OutputEvent>& events) {
  if (std::exchange(owes_tag_, false)) {
    if (c == '\n') {
      EndValue(events);
      step_ = Step::kBetween;
      return Verdict::kReading;
    }
    AddValue(tags_.value_end, events);
  }
  const std::array<std::string_view, 2> ends{tags_.value_end, tags_.lost_end};
  std::string free;
  const std::optional<std::size_t> end = scanner_.Push(c, ends, free);
  AddValue(free, events);
  if (!end.has_value()) return Verdict::kReading;
  if (in_string_ && *end == 0) {
    owes_tag_ = true;
    return Verdict::kReading;
  }
  // The end of the whole call has a line break, so what is in front of it was no string.
  if (in_string_ && Trimmed(value_).ends_with(tags_.value_end)) {
    value_.resize(value_.rfind(tags_.value_end));
  }
  EndValue(events);
  step_ = Step::kBetween;
  if (*end == 0) return Verdict::kReading;
  EndCall(events);
  return Verdict::kEnded;
}

void XmlCallReader::AddValue(std::string_view text, std::vector<OutputEvent>& events) {
  if (is_text_) return AddText(text, events);
  for (const char c : text) {
    if (in_string_) {
      if (c == '\n') is_nested_ = in_string_ = false;  // no JSON: the next end tag ends it
      if (!std::exchange(escaped_, !escaped_ && c == '\\') && c == '"') in_string_ = false;
    } else if (is_nested_) {
      in_string_ = c == '"';
    } else if (at_begin_ && !IsSpace(c)) {
      at_begin_ = false;
      is_nested_ = !MayBeText() && (TypeOfText({&c, 1}) & type_.types & kNestedTypes) != 0;
    }
  }
  value_ += text;
  if (value_.size() <= OutputParser::kMaxValueBytes) return;
  is_text_ = at_begin_ = true;
  in_string_ = false;
  AddArguments("\"", events);
  AddText(std::exchange(value_, {}), events);
}

void XmlCallReader::AddText(std::string_view text, std::vector<OutputEvent>& events) {
  std::string escaped;
  for (const char c : text) {
    const bool breaks = tags_.has_lines && c == '\n';
    if (std::exchange(at_begin_, false) && breaks) continue;
    if (std::exchange(owes_line_, breaks)) escaped += "\\n";
    if (!breaks) AppendEscaped({&c, 1}, escaped);
  }
  AddArguments(escaped, events);
}

void XmlCallReader::EndValue(std::vector<OutputEvent>& events) {
  if (!is_text_) {
    const std::string value = std::exchange(value_, {});
    const std::string_view trimmed = Trimmed(value);
    // Quotes do not tell a text from what else a value may be, unless nothing is known of it.
    const unsigned types = type_.types == kAllTypes ? kAllTypes : type_.types & ~kStringType;
    if (const auto json = JsonOf(trimmed, types)) return AddArguments(*json, events);
    std::string_view text = type_.trims ? trimmed : value;
    if (!type_.trims && tags_.has_lines) text = WithoutLines(text);
    return AddArguments(JsonQuoted(Shortened(text, type_.max_length)), events);
  }
  AddArguments("\"", events);
}

void XmlCallReader::EndCall(std::vector<OutputEvent>& events) {
  AddArguments(has_arguments_ ? "}" : "{}", events);
  complete_ = begun_;
  tag_.clear();
  step_ = Step::kAfter;
}

Verdict XmlCallReader::ReadAfter(char c, std::vector<OutputEvent>& events) {
  if (!ReadTag(c, {tags_.name_begin, options_.tools->end})) return Leave(tag_, events);
  committed_ = tag_.empty();
  if (tag_ == options_.tools->end) {
    committed_ = true;
    return Verdict::kEnded;
  }
  if (!tag_.empty() && tag_ == tags_.name_begin) BeginName();
  return Verdict::kReading;
}

void XmlCallReader::AddArguments(std::string_view text, std::vector<OutputEvent>& events) {
  AddEvent(OutputEvent::Kind::kArguments, text, begun_ - 1, events);
}

bool XmlCallReader::Finish(std::vector<OutputEvent>& events) {
  if (!committed_) return false;
  if (step_ != Step::kValue) return true;
  if (owes_tag_) AddValue(tags_.value_end, events);
  AddValue(scanner_.Take(), events);
  const std::string_view value = Trimmed(value_);
  if (!value.empty() && (!MayBeText() || (TypeOfText(value) & kNestedTypes) != 0)) {
    AddArguments(value, events);
  } else if (!value.empty()) {
    AddArguments("\"", events);
    at_begin_ = false;
    AddText(value, events);
  }
  if (owes_line_) AddArguments("\\n", events);
  return true;
}

}  // namespace flotilla::router
