#include "router/grpc/outbox.h"

#include <utility>

#include "absl/strings/string_view.h"

namespace flotilla::router {
namespace {

// The most bytes of a nested message's tag and length, or of a token id.
constexpr std::size_t kFieldBytes = 6;

// The longest prefix of `text` that ends between characters and has at most
// `limit` bytes; `text` is valid UTF-8 and `limit` at least 4.
std::string_view WholeCharacters(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  while ((static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit);
}

}  // namespace

void Outbox::Add(v1::Accepted accepted) {
  v1::GenerateResponse& message = Back();
  *message.mutable_accepted() = std::move(accepted);
  Count(message.accepted().ByteSizeLong());
}

void Outbox::Add(const PromptScores& scores) {
  for (std::size_t i = 0; i < scores.tokens.size(); ++i) {
    v1::PromptLogprobs& proto = *Back().mutable_prompt_logprobs();
    if (proto.positions().empty()) proto.set_first(scores.first + i);
    v1::PositionLogprobs* position = proto.add_positions();
    ToProto(scores.tokens[i], options_.token_bytes, position);
    Count(position->ByteSizeLong() + kFieldBytes);
  }
}

void Outbox::Add(const Delta& delta) {
  const auto add = [this](std::string_view text, auto append) {
    while (!text.empty()) {
      const std::string_view piece = WholeCharacters(text, kMaxMessageBytes);
      append(piece);
      Count(piece.size() + kFieldBytes);
      text.remove_prefix(piece.size());
    }
  };
  add(delta.reasoning,
      [&](std::string_view piece) { DeltaOf(delta.choice).mutable_reasoning()->append(piece); });
  add(delta.text,
      [&](std::string_view piece) { DeltaOf(delta.choice).mutable_text()->append(piece); });
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.id.empty()) {
      v1::ToolCallDelta* begin = DeltaOf(delta.choice).add_tool_calls();
      begin->set_index(call.index);
      begin->set_id(call.id);
      begin->set_name(call.name);
      Count(begin->ByteSizeLong() + kFieldBytes);
    }
    add(call.arguments, [&](std::string_view piece) {
      v1::Delta& proto = DeltaOf(delta.choice);
      const int count = proto.tool_calls_size();
      const bool goes_on = count > 0 && proto.tool_calls(count - 1).index() == call.index;
      v1::ToolCallDelta* to =
          goes_on ? proto.mutable_tool_calls(count - 1) : proto.add_tool_calls();
      to->set_index(call.index);
      to->mutable_arguments()->append(piece);
    });
  }
  if (!options_.token_ids && !options_.logprobs) return;
  for (const SampledToken& token : delta.tokens) {
    v1::Delta& proto = DeltaOf(delta.choice);
    std::size_t bytes = 0;
    if (options_.token_ids) {
      proto.add_token_ids(token.token);
      bytes += kFieldBytes;
    }
    if (options_.logprobs) {
      v1::PositionLogprobs* position = proto.add_logprobs();
      ToProto(token, options_.token_bytes, position);
      bytes += position->ByteSizeLong() + kFieldBytes;
    }
    Count(bytes);
  }
}

void Outbox::Add(const ChoiceEnd& end) {
  v1::Finish* finish = Back().add_finishes();
  ToProto(end, finish);
  Count(finish->ByteSizeLong());
}

void Outbox::Add(const Usage& usage) {
  v1::GenerateResponse& message = Back();
  ToProto(usage, message.mutable_usage());
  Count(message.usage().ByteSizeLong());
}

v1::GenerateResponse Outbox::Take() {
  Entry entry = std::move(messages_.front());
  messages_.pop_front();
  bytes_ -= entry.bytes;
  return std::move(entry.message);
}

void Outbox::Clear() {
  messages_.clear();
  bytes_ = 0;
}

v1::GenerateResponse& Outbox::Back() {
  if (messages_.empty() || messages_.back().bytes >= kMaxMessageBytes) messages_.emplace_back();
  return messages_.back().message;
}

v1::Delta& Outbox::DeltaOf(std::uint32_t choice) {
  v1::GenerateResponse& message = Back();
  for (v1::Delta& delta : *message.mutable_deltas()) {
    if (delta.choice() == choice) return delta;
  }
  v1::Delta* delta = message.add_deltas();
  delta->set_choice(choice);
  return *delta;
}

void Outbox::Count(std::size_t bytes) {
  messages_.back().bytes += bytes;
  bytes_ += bytes;
}

}  // namespace flotilla::router
