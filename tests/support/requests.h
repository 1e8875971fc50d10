// The requests of tests, as an engine or a scheduler gets them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/types/request.h"

namespace flotilla::testing {

// `count` tokens that go up by `step` from `first`, below `vocab_size`.
inline std::vector<TokenId> CountingPrompt(std::uint64_t first, std::uint32_t count,
                                           std::uint32_t vocab_size = 1000,
                                           std::uint32_t step = 1) {
  std::vector<TokenId> prompt;
  for (std::uint32_t i = 0; i < count; ++i) {
    prompt.push_back(static_cast<TokenId>((first + std::uint64_t{i} * step) % vocab_size));
  }
  return prompt;
}

// One sequence, with the request's number as its seed, so that fakes answer each request
// differently.
inline TokenizedRequest TestRequest(const RequestId& id, std::vector<TokenId> prompt,
                                    std::uint32_t max_tokens) {
  TokenizedRequest request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.sampling.seed = id.counter;
  request.stop.max_tokens = max_tokens;
  return request;
}

}  // namespace flotilla::testing
