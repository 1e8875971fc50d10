#include "model/stop_tokens.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

namespace flotilla::model {
namespace {

constexpr std::string_view kEnds[] = {
    "<|im_end|>",    "<|eot_id|>",      "<|eom_id|>", "<|end|>",  "<end_of_turn>",
    "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>", "</s>",
    "<|endofturn|>", "<|end_of_turn|>", "<EOT>",      "[EOS]",    "<eos>",
};

// The end of a message that is not the last one, where the vocabulary has gpt-oss' ends of answers.
// Elsewhere (Phi 3) it ends the answer.
constexpr std::string_view kEndOfMessage = "<|end|>";
constexpr std::string_view kEndsOfAnswers[] = {"<|return|>", "<|call|>"};

}  // namespace

std::vector<TokenId> StopTokens(const TokenizerBundle& tokenizer) {
  std::vector<TokenId> ids = tokenizer.more_ends;
  for (const TokenId id : {tokenizer.eos, tokenizer.eot, tokenizer.eom}) {
    if (id >= 0) ids.push_back(id);
  }
  std::ptrdiff_t ends_of_answers = 0;
  TokenId end_of_message = -1;
  for (size_t id = 0; id < tokenizer.tokens.size(); ++id) {
    if (tokenizer.kinds[id] != TokenKind::kControl) continue;
    const std::string_view text = tokenizer.tokens[id];
    ends_of_answers += std::ranges::count(kEndsOfAnswers, text);
    if (text == kEndOfMessage) end_of_message = static_cast<TokenId>(id);
    if (std::ranges::find(kEnds, text) != std::end(kEnds)) ids.push_back(static_cast<TokenId>(id));
  }
  if (ends_of_answers == std::ssize(kEndsOfAnswers)) std::erase(ids, end_of_message);
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace flotilla::model
