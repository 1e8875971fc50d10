#include "router/core/tools/channel_parser.h"

namespace flotilla::router {
namespace {

using Kind = OutputEvent::Kind;

constexpr std::string_view kMarkerBegin = "<|";

enum Marker : std::size_t { kStart, kChannel, kConstrain, kMessage, kEnd, kCallEnd, kReturn };

// The word of the header behind `mark`; empty: there is none.
std::string_view WordBehind(std::string_view header, std::string_view mark) {
  const std::size_t at = header.find(mark);
  if (at == header.npos) return {};
  const std::string_view rest = header.substr(at + mark.size());
  return rest.substr(0, rest.find_first_of(" \t\n<"));
}

}  // namespace

void ChannelParser::Push(std::string_view text, std::vector<OutputEvent>& events) {
  for (char c : text) {
    if (finished_) return;
    std::string free;
    const auto marker = scanner_.Push(c, kChannelMarkers, free);
    OnText(free, events);
    if (marker.has_value()) OnMarker(*marker, events);
  }
}

void ChannelParser::OnMarker(std::size_t marker, std::vector<OutputEvent>& events) {
  if (in_header_) {
    if (marker == kMessage) return BeginBody(events);
    if (marker < kEnd) return OnText(kChannelMarkers[marker], events);
    if (!header_.starts_with(kMarkerBegin)) GiveUpHeader(events);
    header_.clear();
    in_header_ = true;
    return;
  }
  if (marker == kMessage || marker == kConstrain) return BodyText(kChannelMarkers[marker], events);
  EndBody(events);
  in_header_ = true;
  header_ = marker < kEnd ? kChannelMarkers[marker] : "";
}

void ChannelParser::OnText(std::string_view text, std::vector<OutputEvent>& events) {
  if (!in_header_) return BodyText(text, events);
  header_ += text;
  if (header_.size() > kMaxHeaderBytes) GiveUpHeader(events);
}

void ChannelParser::BeginBody(std::vector<OutputEvent>& events) {
  constexpr std::string_view kFunctions = "functions.";
  const std::string_view recipient = WordBehind(header_, "to=");
  const bool is_call = options_.tools != nullptr && recipient.starts_with(kFunctions) &&
                       recipient.size() > kFunctions.size() && calls_ < kMaxCalls;
  if (is_call) {
    body_ = Kind::kCall;
    AddEvent(Kind::kCall, recipient.substr(kFunctions.size()), calls_, events);
  } else {
    const bool thinks = WordBehind(header_, kChannelMarkers[kChannel]) == "analysis";
    body_ = thinks && options_.reasoning != nullptr ? Kind::kReasoning : Kind::kContent;
  }
  header_.clear();
  in_header_ = false;
  body_is_empty_ = true;
}

void ChannelParser::BodyText(std::string_view text, std::vector<OutputEvent>& events) {
  if (text.empty()) return;
  const bool first = std::exchange(body_is_empty_, false);
  if (body_ == Kind::kCall) return AddEvent(Kind::kArguments, text, calls_, events);
  // Several messages of a kind are one text, on lines of their own.
  bool& has_some = body_ == Kind::kReasoning ? has_reasoning_ : has_content_;
  if (first && std::exchange(has_some, true)) AddEvent(body_, "\n", 0, events);
  AddEvent(body_, text, 0, events);
}

void ChannelParser::EndBody(std::vector<OutputEvent>& events) {
  if (body_ != Kind::kCall) return;
  if (body_is_empty_) AddEvent(Kind::kArguments, "{}", calls_, events);
  ++calls_;
  finished_ = options_.one_call;
}

void ChannelParser::GiveUpHeader(std::vector<OutputEvent>& events) {
  const std::string header = std::exchange(header_, {});
  in_header_ = false;
  body_ = Kind::kContent;
  body_is_empty_ = true;
  BodyText(header, events);
}

void ChannelParser::Finish(std::vector<OutputEvent>& events) {
  if (finished_) return;
  OnText(scanner_.Take(), events);
  // A header that was cut off is no text of the answer. Without a marker it never was a header.
  if (in_header_ && !header_.starts_with(kMarkerBegin)) GiveUpHeader(events);
  if (!in_header_) EndBody(events);
}

}  // namespace flotilla::router
