// Encoder: what of a request becomes tokens of a model: its prompt, bad words and breakers.
//
// It belongs to the service, and works on the threads of the tokenizer pool. An error here is the
// input's fault, whichever bound it hit. Immutable but for its caches; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/constraint.h"
#include "common/types/ids.h"
#include "model/text/tokenizer.h"
#include "router/chat_prompt.h"
#include "router/conversation.h"
#include "router/dry_breakers.h"

namespace flotilla::router {

using Input = std::variant<std::string, Conversation>;

// The bytes that this input counts in the pool's queue.
std::size_t InputBytes(const Input& input);

class Encoder {
 public:
  explicit Encoder(ChatPrompt::Parts parts)
      : tokenizer_(parts.tokenizer), dry_breakers_(tokenizer_), chat_prompt_(std::move(parts)) {}

  const ChatPrompt& chat_prompt() const { return chat_prompt_; }
  const DryBreakerFinder& dry_breakers() const { return dry_breakers_; }

  // The tokens of each word at the begin of a text and those behind a space, without the spaces
  // that it begins with.
  absl::StatusOr<std::vector<std::vector<TokenId>>> EncodeBadWords(
      const std::vector<std::string>& words) const;

  // The tokens of a prompt, whether it ends with the begin of thoughts, what the answer must
  // follow, and what the tools' arguments may be (ChatPrompt::ArgumentTypesOf).
  struct Prompt {
    std::vector<TokenId> tokens;
    bool in_reasoning = false;
    Constraint constraint = {};
    ThinkingLimit thinking = {};
    std::shared_ptr<const ArgumentTypes> argument_types = nullptr;
  };
  // `form` is what a client asked for the answer to follow, in `form_field`, and `budget` how many
  // tokens it lets the model think (below 0: any number), which only a conversation may have.
  // OUT_OF_RANGE about the prompt if it has more tokens than the options allow.
  absl::StatusOr<Prompt> Encode(const Input& input, const model::EncodeOptions& options,
                                const Constraint& form = {}, std::string_view form_field = {},
                                std::int64_t budget = -1) const;

 private:
  const model::Tokenizer* tokenizer_;
  const DryBreakerFinder dry_breakers_;
  const ChatPrompt chat_prompt_;
};

}  // namespace flotilla::router
