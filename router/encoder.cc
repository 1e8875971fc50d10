#include "router/encoder.h"

#include <string_view>

#include "common/types/sampling.h"
#include "common/types/text.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

// The cost of a conversation's turn in the template, besides its text, as the number of bytes
// that take as long to encode.
constexpr std::size_t kTurnBytes = 64;

// The result of a prompt, or why the field is wrong.
absl::StatusOr<Encoder::Prompt> Blame(std::string_view field,
                                      absl::StatusOr<std::vector<TokenId>> encoded,
                                      const model::EncodeOptions& options,
                                      bool in_reasoning = false) {
  if (encoded.ok()) return Encoder::Prompt{*std::move(encoded), in_reasoning};
  if (absl::IsOutOfRange(encoded.status())) {
    return WithField(absl::OutOfRangeError(Cat("the prompt has more than ", options.max_tokens,
                                               " tokens; the model's context is ",
                                               options.max_tokens, " tokens")),
                     "prompt", kContextLengthExceeded);
  }
  return InvalidField(field, std::string(encoded.status().message()));
}

}  // namespace

std::size_t InputBytes(const Input& input) {
  if (const auto* text = std::get_if<std::string>(&input)) return text->size();
  const auto& conversation = std::get<Conversation>(input);
  std::size_t bytes = conversation.documents.size() + conversation.template_kwargs.size();
  for (const Tool& tool : conversation.tools) {
    bytes += kTurnBytes + tool.name.size() + tool.description.size() + tool.parameters.size();
  }
  for (const ChatTurn& turn : conversation.turns) {
    bytes += kTurnBytes + turn.role.size() + turn.content.size() + turn.reasoning_content.size();
    for (const ToolCall& call : turn.tool_calls) {
      bytes += kTurnBytes + call.name.size() + call.arguments.size();
    }
  }
  return bytes;
}

absl::StatusOr<std::vector<std::vector<TokenId>>> Encoder::EncodeBadWords(
    const std::vector<std::string>& words) const {
  std::vector<std::vector<TokenId>> encoded;
  const model::EncodeOptions options{.parse_special = false,
                                     .add_special = false,
                                     .max_tokens = SamplingParams::kMaxBadWordTokens};
  for (const std::string& word : words) {
    const std::size_t begin = word.find_first_not_of(" \t\n\r\f\v");
    const std::string text = begin == std::string::npos ? word : word.substr(begin);
    auto alone = tokenizer_->Encode(text, options);
    auto spaced = tokenizer_->Encode(Cat(" ", text), options);
    for (const auto* tokens : {&alone, &spaced}) {
      if (absl::IsOutOfRange(tokens->status())) {
        return InvalidField("bad_words",
                            Cat("a bad word has more than ", options.max_tokens, " tokens"));
      }
      if (!tokens->ok()) {
        return InvalidField("bad_words", std::string(tokens->status().message()));
      }
    }
    if (alone->empty()) return InvalidField("bad_words", "a bad word has no tokens");
    const bool differ = *spaced != *alone;
    encoded.push_back(*std::move(alone));
    if (differ) encoded.push_back(*std::move(spaced));
  }
  return encoded;
}

absl::StatusOr<Encoder::Prompt> Encoder::Encode(const Input& input,
                                                const model::EncodeOptions& options,
                                                const Constraint& form, std::string_view form_field,
                                                std::int64_t budget) const {
  if (const auto* text = std::get_if<std::string>(&input)) {
    auto prompt = Blame("prompt", tokenizer_->Encode(*text, options), options);
    if (prompt.ok()) prompt->constraint = form;
    return prompt;
  }
  const auto& conversation = std::get<Conversation>(input);
  const auto rendered = chat_prompt_.Render(conversation);
  if (!rendered.ok()) return rendered.status();
  bool in_reasoning = rendered->in_reasoning;
  absl::StatusOr<Constraint> constraint = form;
  if (conversation.must_call()) {
    constraint = chat_prompt_.ConstraintOf(conversation, in_reasoning);
  } else if (form) {
    constraint = chat_prompt_.FormOf(form, form_field, conversation, *rendered);
    // Without thoughts the form begins with the answer.
    in_reasoning = in_reasoning && chat_prompt_.MayThink(conversation, *rendered);
  }
  if (!constraint.ok()) return constraint.status();
  auto prompt =
      Blame("messages", tokenizer_->EncodePieces(rendered->pieces, options), options, in_reasoning);
  if (!prompt.ok()) return prompt;
  prompt->constraint = *std::move(constraint);
  prompt->argument_types = chat_prompt_.ArgumentTypesOf(conversation);
  if (budget < 0) return prompt;
  auto limit = chat_prompt_.LimitOf(static_cast<std::uint32_t>(budget), *rendered);
  if (!limit.ok()) return limit.status();
  prompt->thinking = *std::move(limit);
  return prompt;
}

}  // namespace flotilla::router
