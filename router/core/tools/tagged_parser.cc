#include "router/core/tools/tagged_parser.h"

#include <algorithm>
#include <utility>

#include "common/types/text.h"

namespace flotilla::router {
namespace {

using Kind = OutputEvent::Kind;
using Verdict = CallReader::Verdict;

constexpr std::string_view kWhitespace = " \t\r\n";
// Of an answer that begins with more white space it is content, and no thoughts follow.
constexpr std::size_t kMostSpaces = 1024;

}  // namespace

TaggedParser::TaggedParser(OutputOptions options)
    : options_(std::move(options)), reader_(MakeCallReader(options_)) {
  thought_ = options_.reasoning == nullptr;
  if (thought_ || !options_.begins_in_reasoning) return;
  place_ = Place::kReasoning;
  after_marker_ = true;
}

void TaggedParser::Push(std::string_view text, std::vector<OutputEvent>& events) {
  todo_ = text;
  Run(events);
}

void TaggedParser::Run(std::vector<OutputEvent>& events) {
  std::string now = std::exchange(todo_, {});
  for (std::size_t at = 0; at < now.size() && !finished();) {
    Read(now[at++], events);
    // What is read again takes the place that it had. So the text behind it moves only if some
    // of it came before `now`, which is once at most.
    const std::size_t again = std::min(todo_.size(), at);
    at -= again;
    now.replace(at, again, std::exchange(todo_, {}));
  }
}

void TaggedParser::Read(char c, std::vector<OutputEvent>& events) {
  switch (place_) {
    case Place::kBegin:
      return ReadBegin(c, events);
    case Place::kReasoning: {
      const std::array<std::string_view, 1> end{options_.reasoning->end};
      std::string free;
      const bool ended = scanner_.Push(c, end, free).has_value();
      AddText(Kind::kReasoning, free, events);
      if (!ended) return;
      spaces_.clear();
      after_marker_ = true;
      thought_ = true;
      place_ = Place::kBegin;
      return;
    }
    case Place::kContent:
      return ReadContent(c, events);
    case Place::kCall:
      return ReadCall(c, events);
  }
}

void TaggedParser::ReadBegin(char c, std::vector<OutputEvent>& events) {
  undecided_.push_back(c);
  std::string_view text = undecided_;
  text.remove_prefix(std::min(text.find_first_not_of(kWhitespace), text.size()));
  if (text.empty() && undecided_.size() < kMostSpaces) return;
  if (!thought_ && !text.empty() && options_.reasoning->begin.starts_with(text)) {
    if (text != options_.reasoning->begin) return;
    undecided_.clear();
    after_marker_ = true;
    place_ = Place::kReasoning;
    return;
  }
  thought_ = true;
  const BareCall bare = BareCallIn(text);
  if (bare == BareCall::kMayBegin) return;
  if (bare == BareCall::kBegun) {
    place_ = Place::kCall;
    literal_ = undecided_.size() - text.size();
    const std::string own(text);
    undecided_.resize(literal_);
    reader_->Begin(/*bare=*/true);
    for (char each : own) ReadCall(each, events);
    return;
  }
  place_ = Place::kContent;
  todo_ = std::exchange(undecided_, {});
}

TaggedParser::BareCall TaggedParser::BareCallIn(std::string_view text) const {
  if (options_.tools == nullptr || !options_.tools->bare || !text.starts_with('{')) {
    return BareCall::kNone;
  }
  // The answer may be JSON of another form, which has no markers either. Calls are written as the
  // grammar has them.
  if (!options_.text_or_calls) return BareCall::kBegun;
  BareCall found = BareCall::kNone;
  for (const std::string& name : options_.tool_names) {
    const std::string begin =
        Cat(options_.tools->before_name, name, options_.tools->before_arguments);
    if (text.starts_with(begin)) return BareCall::kBegun;
    if (begin.starts_with(text)) found = BareCall::kMayBegin;
  }
  return found;
}

void TaggedParser::ReadContent(char c, std::vector<OutputEvent>& events) {
  std::string free;
  if (!calls_may_come()) {
    AddText(Kind::kContent, scanner_.Take(), events);  // what might have been a marker
    return AddText(Kind::kContent, {&c, 1}, events);
  }
  const ToolFormat& tools = *options_.tools;
  const std::array<std::string_view, 5> markers{tools.begin, tools.xml.name_begin,
                                                tools.section_begin, tools.section_end,
                                                tag_is_open_ ? tools.end : std::string_view()};
  const auto marker = scanner_.Push(c, markers, free);
  AddText(Kind::kContent, free, events);
  if (!marker.has_value()) return;
  if (*marker < 2) {  // models may forget `begin` in front of XML
    place_ = Place::kCall;
    undecided_ = markers[*marker];
    literal_ = undecided_.size();
    tag_is_open_ = false;
    return reader_->Begin(/*bare=*/*marker == 1);
  }
  if (*marker == 4) tag_is_open_ = false;
  after_marker_ = true;
}

void TaggedParser::ReadCall(char c, std::vector<OutputEvent>& events) {
  undecided_.push_back(c);
  const Verdict verdict = reader_->Push(c, events);
  if (verdict == Verdict::kNoCall || undecided_.size() > kMaxHeldBytes) return GiveUpCall(events);
  if (reader_->is_certain()) {
    undecided_.clear();
    literal_ = 0;
  }
  if (verdict == Verdict::kReading) return;
  after_marker_ = true;
  place_ = Place::kContent;
  tag_is_open_ = verdict == Verdict::kLeft;
  if (verdict == Verdict::kLeft) todo_ = reader_->left() + c;
}

void TaggedParser::GiveUpCall(std::vector<OutputEvent>& events) {
  place_ = Place::kContent;
  const std::size_t again = undecided_.size() - literal_;
  if (again <= kMaxReadAgain - read_again_) {
    read_again_ += again;
    todo_ = undecided_.substr(literal_);
    undecided_.resize(literal_);
  }
  AddText(Kind::kContent, std::exchange(undecided_, {}), events);
  literal_ = 0;
}

void TaggedParser::AddText(Kind kind, std::string_view text, std::vector<OutputEvent>& events) {
  for (char c : text) {
    if (kWhitespace.find(c) != kWhitespace.npos) {
      spaces_.push_back(c);
      continue;
    }
    // White space beside markers stays only between two parts of the content.
    if (std::exchange(after_marker_, false) && !has_content_) spaces_.clear();
    has_content_ |= kind == Kind::kContent;
    AddEvent(kind, std::exchange(spaces_, {}), 0, events);
    AddEvent(kind, {&c, 1}, 0, events);
  }
  // It is held back only where a marker may follow.
  if (kind == Kind::kContent && !calls_may_come() && !after_marker_) {
    AddEvent(kind, std::exchange(spaces_, {}), 0, events);
  }
}

void TaggedParser::Finish(std::vector<OutputEvent>& events) {
  while (!finished()) {
    if (place_ == Place::kCall) {
      if (reader_->Finish(events)) return;
      GiveUpCall(events);
    } else if (place_ == Place::kBegin && !undecided_.empty()) {
      place_ = Place::kContent;
      todo_ = std::exchange(undecided_, {});
    } else {
      break;
    }
    Run(events);
  }
  if (finished()) return;
  const Kind kind = place_ == Place::kReasoning ? Kind::kReasoning : Kind::kContent;
  AddText(kind, scanner_.Take(), events);
  if (kind == Kind::kContent && !after_marker_)
    AddEvent(kind, std::exchange(spaces_, {}), 0, events);
}

}  // namespace flotilla::router
