// LogprobText: writes log-probabilities as the OpenAI API does, token by token. Chat answers
// have a list of objects; completions have four parallel columns. There is one per choice, on
// the I/O thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "common/types/sampling.h"
#include "router/service.h"

namespace flotilla::router {

// Bytes of a token that are not whole characters have no text of their own: they are spelled out,
// as at OpenAI, so that names stay distinct.
std::string TokenName(std::string_view bytes);

// Appends an entry of vLLM's prompt_logprobs: the token and its `most` best alternatives, by id.
// The rank of a token that is not among those is not known.
using TokenBytesOf = std::function<std::string_view(TokenId)>;
void AppendPromptLogprobs(const SampledToken& token, std::size_t most, const TokenBytesOf& bytes_of,
                          std::string& out);

class LogprobText {
 public:
  struct Style {
    bool chat = false;
    bool tokens_as_token_ids = false;  // "token_id:N" instead of the token's text
  };
  using BytesOf = TokenBytesOf;

  LogprobText(Style style, BytesOf bytes_of) : style_(style), bytes_of_(std::move(bytes_of)) {}

  // Adds a token without log-probabilities: the first of an echoed prompt.
  void AddUnscored(TokenId token);
  // With at most `most` alternatives.
  void Add(const SampledToken& token, std::size_t most = LogprobSpec::kMaxTop);

  // Appends the value of a "logprobs" member to `out` and begins anew. The text_offset of
  // completions continues to count.
  void Take(std::string& out);

  bool empty() const { return count_ == 0; }

 private:
  std::string Name(TokenId token) const;
  void AppendChatToken(TokenId token, float logprob, std::string& out) const;
  void AddColumns(TokenId token, std::string_view logprob, std::string_view top);

  Style style_;
  BytesOf bytes_of_;
  std::size_t count_ = 0;   // tokens since the last Take
  std::size_t offset_ = 0;  // characters of all tokens so far
  std::string tokens_;      // chat: the objects; else the column of names
  std::string logprobs_, top_, offsets_;
};

}  // namespace flotilla::router
