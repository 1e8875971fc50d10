#include "scheduler/core/admission.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

absl::Status CheckTokens(const std::vector<TokenId>& tokens, std::uint32_t vocab_size,
                         const char* what) {
  for (const TokenId token : tokens) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " has token ", token, " outside the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTop(std::int32_t top, const char* what) {
  if (top < LogprobSpec::kOff || top > LogprobSpec::kMaxTop) {
    return absl::InvalidArgumentError(absl::StrCat(what, " must be -1 to 20, is ", top));
  }
  return absl::OkStatus();
}

absl::Status CheckParameters(const TokenizedRequest& request) {
  const SamplingParams& sampling = request.sampling;
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) {
    return absl::InvalidArgumentError("temperature must be finite and not negative");
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return absl::InvalidArgumentError("top_p must be above 0 and at most 1");
  }
  if (sampling.top_k < 0) return absl::InvalidArgumentError("top_k must not be negative");
  const std::vector<TokenId>& stops = request.stop.stop_tokens;
  if (std::adjacent_find(stops.begin(), stops.end(), std::greater_equal<>()) != stops.end()) {
    return absl::InvalidArgumentError("stop tokens must be sorted and unique");
  }
  if (absl::Status s = CheckTop(request.logprobs.output_top, "output log-probabilities"); !s.ok()) {
    return s;
  }
  return CheckTop(request.logprobs.prompt_top, "prompt log-probabilities");
}

absl::Status CheckFeatures(const TokenizedRequest& request) {
  if (request.branches != 1) {
    return absl::UnimplementedError(
        absl::StrCat("requests with ", request.branches, " branches are not supported"));
  }
  if (request.beam.has_value()) return absl::UnimplementedError("beam search is not supported");
  if (request.constraint != 0) return absl::UnimplementedError("constraints are not supported");
  if (!request.adapter.empty()) {
    return absl::UnimplementedError("adapters are not supported");
  }
  return absl::OkStatus();
}

std::uint64_t BlocksFor(const KvGroup& group, std::uint64_t positions) {
  if (group.kind == KvGroup::Kind::kState) return 1;
  return (positions + group.tokens_per_block - 1) / group.tokens_per_block;
}

}  // namespace

std::uint32_t MaxPositions(std::uint32_t prompt_tokens, std::uint32_t max_tokens) {
  return max_tokens == 0 ? prompt_tokens : prompt_tokens + max_tokens - 1;
}

absl::Status CheckFits(std::uint64_t total_tokens, std::uint32_t max_positions,
                       const ExecutorDescription& description) {
  if (total_tokens > description.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and max_tokens are ", total_tokens,
                                                   " tokens; the context is ",
                                                   description.max_context));
  }
  std::uint64_t blocks = 0;
  for (const KvGroup& group : description.groups) blocks += BlocksFor(group, max_positions);
  const std::uint32_t total = description.block_count - 1;
  if (blocks > total) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and max_tokens may need ", blocks,
                                                   " KV blocks; the pool has ", total));
  }
  return absl::OkStatus();
}

std::uint32_t LongestServable(const ExecutorDescription& description) {
  std::uint32_t fits = 0, longest = description.max_context;
  while (fits < longest) {
    const std::uint32_t middle = longest - (longest - fits) / 2;
    if (CheckFits(middle, middle, description).ok()) {
      fits = middle;
    } else {
      longest = middle - 1;
    }
  }
  return fits;
}

absl::Status CheckServable(const TokenizedRequest& request, const CoreOptions& options,
                           const ExecutorDescription& description) {
  if (absl::Status s = CheckFeatures(request); !s.ok()) return s;
  if (absl::Status s = CheckParameters(request); !s.ok()) return s;
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (request.prompt.size() > options.max_queued_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", request.prompt.size(),
                                                   " tokens; the queue takes ",
                                                   options.max_queued_tokens));
  }
  const std::uint64_t total_tokens = std::uint64_t{request.prompt.size()} + request.stop.max_tokens;
  // The sum is within the context from here on, so 32 bits hold it.
  if (total_tokens > description.max_context) return CheckFits(total_tokens, 0, description);
  const auto positions =
      MaxPositions(static_cast<std::uint32_t>(request.prompt.size()), request.stop.max_tokens);
  if (absl::Status s = CheckFits(total_tokens, positions, description); !s.ok()) return s;
  if (absl::Status s = CheckTokens(request.prompt, description.vocab_size, "the prompt"); !s.ok()) {
    return s;
  }
  if (request.output_prefix.empty()) return absl::OkStatus();
  if (request.output_prefix.size() != 1) {
    return absl::InvalidArgumentError("output_prefix must have one entry per branch");
  }
  if (request.output_prefix[0].size() > request.stop.max_tokens) {
    return absl::InvalidArgumentError("output_prefix is longer than max_tokens");
  }
  return CheckTokens(request.output_prefix[0], description.vocab_size, "output_prefix");
}

absl::Status CheckDescription(const ExecutorDescription& description) {
  const auto bad = [](const char* what) { return absl::InvalidArgumentError(what); };
  if (description.groups.empty()) return bad("the executor describes no KV group");
  for (const KvGroup& group : description.groups) {
    if (group.kind != KvGroup::Kind::kState && group.tokens_per_block == 0) {
      return bad("the executor describes blocks of no tokens");
    }
  }
  if (description.block_count < 2) return bad("the executor's KV pool is empty");
  if (description.max_branches == 0) return bad("the executor takes no branches");
  if (description.max_step_tokens == 0) return bad("the executor takes no tokens");
  if (description.max_context == 0 || description.vocab_size == 0) {
    return bad("the executor describes no model");
  }
  constexpr std::uint32_t kMaxLag = 64;  // stages of a pipeline; far above any use
  if (description.lag == 0 || description.lag > kMaxLag) return bad("lag must be 1 to 64");
  return absl::OkStatus();
}

}  // namespace flotilla
