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

}  // namespace

std::vector<TokenId> StopTokens(const TokenizerBundle& tokenizer) {
  std::vector<TokenId> ids = tokenizer.more_ends;
  for (const TokenId id : {tokenizer.eos, tokenizer.eot, tokenizer.eom}) {
    if (id >= 0) ids.push_back(id);
  }
  for (size_t id = 0; id < tokenizer.tokens.size(); ++id) {
    if (tokenizer.kinds[id] != TokenKind::kControl) continue;
    if (std::ranges::find(kEnds, tokenizer.tokens[id]) != std::end(kEnds)) {
      ids.push_back(static_cast<TokenId>(id));
    }
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace flotilla::model
