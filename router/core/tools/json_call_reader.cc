#include "router/core/tools/json_call_reader.h"

#include <algorithm>
#include <utility>

namespace flotilla::router {
namespace {

using Kind = OutputEvent::Kind;
using Verdict = CallReader::Verdict;

constexpr std::size_t kMaxHeaderBytes = 512;

}  // namespace

void JsonCallReader::Begin(bool bare) {
  bare_ = bare;
  in_list_ = committed_ = false;
  step_ = Step::kStart;
}

void JsonCallReader::BeginObject() {
  step_ = Step::kKey;
  key_.clear();
  name_.clear();
  held_arguments_.clear();
  header_.clear();
  maybe_end_.clear();
  committed_ = has_arguments_ = is_nested_ = fenced_ = in_string_ = escaped_ = false;
}

Verdict JsonCallReader::Push(char c, std::vector<OutputEvent>& events) {
  switch (step_) {
    case Step::kStart:
      return ReadStart(c);
    case Step::kHeader:
      return ReadHeader(c, events);
    case Step::kKey:
      if (IsSpace(c)) return Verdict::kReading;
      if (c == '}') return EndObject(events);
      if (c != '"') return Break();
      key_.clear();
      text_ = {};
      step_ = Step::kKeyText;
      return Verdict::kReading;
    case Step::kKeyText:
      if (text_.Push(c, key_)) step_ = Step::kColon;
      return Verdict::kReading;
    case Step::kColon:
      if (IsSpace(c)) return Verdict::kReading;
      if (c != ':') return Break();
      step_ = Step::kValue;
      return Verdict::kReading;
    case Step::kValue:
      return IsSpace(c) ? Verdict::kReading : ReadValue(c, events);
    case Step::kNameText:
      if (text_.Push(c, name_)) step_ = Step::kComma;
      return Verdict::kReading;
    case Step::kArguments:
    case Step::kSkipped:
      return ReadArguments(c, events);
    case Step::kArgumentsText: {
      std::string piece;
      if (text_.Push(c, piece)) step_ = Step::kComma;
      AddArguments(piece, events);
      return Verdict::kReading;
    }
    case Step::kSkippedText: {
      std::string piece;
      if (text_.Push(c, piece)) step_ = Step::kComma;
      return Verdict::kReading;
    }
    case Step::kArgumentsWord:
    case Step::kSkippedWord:
      if (!IsSpace(c) && c != ',' && c != '}' && c != ']') {
        word_.push_back(c);
        return word_.size() > kMaxHeaderBytes ? Break() : Verdict::kReading;
      }
      if (step_ == Step::kArgumentsWord) AddArguments(word_ == "null" ? "{}" : word_, events);
      step_ = Step::kComma;
      return ReadComma(c, events);
    case Step::kComma:
      return ReadComma(c, events);
    case Step::kAfter:
      return ReadAfter(c);
  }
  return Verdict::kReading;
}

Verdict JsonCallReader::ReadStart(char c) {
  if (IsSpace(c)) return Verdict::kReading;
  if (c == '{') {
    BeginObject();
    return Verdict::kReading;
  }
  if (c == '[' && !bare_ && !in_list_) {
    in_list_ = true;
    return Verdict::kReading;
  }
  const bool named = options_.tools->shape == ToolFormat::Shape::kNamed;
  if (!named || in_list_ || bare_) return committed_ ? Verdict::kLeft : Verdict::kNoCall;
  BeginObject();
  header_ = c;
  step_ = Step::kHeader;
  return Verdict::kReading;
}

std::optional<std::string> JsonCallReader::NameOf(std::string_view header) const {
  const ToolFormat& format = *options_.tools;
  std::string_view name = header, rest;
  if (!format.separator.empty()) {
    const std::size_t at = header.find(format.separator);
    if (at == header.npos) return std::nullopt;
    name = header.substr(0, at);
    rest = Trimmed(header.substr(at + format.separator.size()));
  }
  if (!format.aside.empty()) name = name.substr(0, name.find(format.aside));
  // "function", separator, name and the begin of a fenced block.
  if (!rest.empty()) {
    const std::size_t line = std::min(rest.find('\n'), rest.size());
    name = rest.substr(0, line);
    rest = Trimmed(rest.substr(line));
    if (!rest.empty() && !rest.starts_with("```")) return std::nullopt;
  }
  name = Trimmed(name);
  return IsName(name) ? std::optional(std::string(name)) : std::nullopt;
}

Verdict JsonCallReader::ReadHeader(char c, std::vector<OutputEvent>& events) {
  if (c != '{') {
    header_.push_back(c);
    return header_.size() > kMaxHeaderBytes ? Verdict::kNoCall : Verdict::kReading;
  }
  std::optional<std::string> name = NameOf(header_);
  if (!name.has_value()) return Verdict::kNoCall;
  fenced_ = header_.find("```") != header_.npos;
  name_ = *std::move(name);
  if (!Commit(name_, events)) return Verdict::kNoCall;
  has_arguments_ = true;
  step_ = Step::kArguments;
  depth_ = 0;
  return ReadArguments(c, events);
}

Verdict JsonCallReader::ReadValue(char c, std::vector<OutputEvent>& events) {
  const bool opens = c == '{' || c == '[';
  depth_ = 0;
  text_ = {};
  word_.clear();
  if (key_ == "name" && name_.empty()) {
    if (c != '"') return Break();
    step_ = Step::kNameText;
    return Verdict::kReading;
  }
  if ((key_ == "arguments" || key_ == "parameters") && !has_arguments_) {
    has_arguments_ = true;
    if (!name_.empty() && !Commit(name_, events)) return Verdict::kNoCall;
    step_ = opens ? Step::kArguments : c == '"' ? Step::kArgumentsText : Step::kArgumentsWord;
  } else if (key_ == "function" && c == '{' && !is_nested_) {
    is_nested_ = true;
    step_ = Step::kKey;
    return Verdict::kReading;
  } else {
    step_ = opens ? Step::kSkipped : c == '"' ? Step::kSkippedText : Step::kSkippedWord;
  }
  if (opens) return ReadArguments(c, events);
  if (c != '"') word_ = c;
  return Verdict::kReading;
}

Verdict JsonCallReader::ReadArguments(char c, std::vector<OutputEvent>& events) {
  const auto add = [&](std::string_view text) {
    if (step_ == Step::kArguments) AddArguments(text, events);
  };
  if (in_string_) {
    add({&c, 1});
    if (!std::exchange(escaped_, !escaped_ && c == '\\') && c == '"') in_string_ = false;
    return Verdict::kReading;
  }
  // The end marker is no JSON, so outside of strings it ends the call.
  maybe_end_.push_back(c);
  const std::string_view end = options_.tools->end;
  while (!maybe_end_.empty() && !end.starts_with(maybe_end_)) {
    const char own = maybe_end_.front();
    maybe_end_.erase(0, 1);
    add({&own, 1});
    if (own == '"') in_string_ = true;
    if (own == '{' || own == '[') ++depth_;
    if ((own == '}' || own == ']') && --depth_ == 0) {
      step_ = Step::kComma;
      if (!header_.empty()) EndCall();
      return Verdict::kReading;
    }
  }
  if (end.empty() || maybe_end_ != end) return Verdict::kReading;
  maybe_end_.clear();
  if (!committed_) return Verdict::kNoCall;
  EndCall();
  return Verdict::kEnded;
}

Verdict JsonCallReader::ReadComma(char c, std::vector<OutputEvent>& events) {
  if (IsSpace(c)) return Verdict::kReading;
  if (c == '}') return EndObject(events);
  if (c != ',') return Break();
  step_ = Step::kKey;
  return Verdict::kReading;
}

Verdict JsonCallReader::EndObject(std::vector<OutputEvent>& events) {
  if (std::exchange(is_nested_, false)) {
    step_ = Step::kComma;
    return Verdict::kReading;
  }
  if (!committed_) {
    if (name_.empty() || !Commit(name_, events)) return Verdict::kNoCall;
    if (!has_arguments_) held_arguments_ = "{}";
    AddArguments(std::exchange(held_arguments_, {}), events);
  }
  EndCall();
  return Verdict::kReading;
}

Verdict JsonCallReader::Break() {
  if (!committed_) return Verdict::kNoCall;
  EndCall();
  return Verdict::kLeft;
}

Verdict JsonCallReader::ReadAfter(char c) {
  if (IsSpace(c) || (fenced_ && c == '`')) return Verdict::kReading;
  if (in_list_) {
    if (c == ',') {
      step_ = Step::kStart;
      return Verdict::kReading;
    }
    if (c != ']') return Verdict::kLeft;
    in_list_ = false;
    return Verdict::kReading;
  }
  // Llama 3 puts a semicolon between calls.
  if (bare_ && c == ';') return Verdict::kReading;
  if (c != '{' || options_.tools->shape != ToolFormat::Shape::kJson) return Verdict::kLeft;
  BeginObject();
  return Verdict::kReading;
}

void JsonCallReader::AddArguments(std::string_view text, std::vector<OutputEvent>& events) {
  if (!committed_) {
    held_arguments_ += text;
  } else {
    AddEvent(Kind::kArguments, text, begun_ - 1, events);
  }
}

void JsonCallReader::EndCall() {
  step_ = Step::kAfter;
  complete_ = begun_;
}

bool JsonCallReader::Finish(std::vector<OutputEvent>& events) {
  if (!committed_) return false;
  if (step_ == Step::kArguments) AddArguments(std::exchange(maybe_end_, {}), events);
  if (step_ == Step::kArgumentsWord) AddArguments(word_, events);
  return true;
}

}  // namespace flotilla::router
