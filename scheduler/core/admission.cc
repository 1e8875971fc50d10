#include "scheduler/core/admission.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/types/kv_needs.h"
#include "scheduler/core/beam_search.h"

namespace flotilla::scheduler {
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

absl::Status CheckParameters(const TokenizedRequest& request, std::uint32_t vocab_size) {
  absl::Status s = CheckSampling(request.sampling, vocab_size);
  s.Update(CheckStopRule(request.stop));
  s.Update(CheckLogprobs(request.logprobs));
  return s;
}

absl::Status CheckBeam(const TokenizedRequest& request, const ExecutorDescription& description) {
  const BeamOptions& beam = *request.beam;
  if (!std::isfinite(beam.length_penalty)) {
    return absl::InvalidArgumentError("length_penalty must be finite");
  }
  if (request.sequences > beam.beams) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.sequences, " sequences of ", beam.beams, " beams were asked for"));
  }
  if (request.stop.max_tokens == 0) {
    return absl::InvalidArgumentError("beam search needs max_tokens of at least 1");
  }
  if (!request.output_prefix.empty()) {
    return absl::InvalidArgumentError("beam search cannot go on from an output_prefix");
  }
  const std::uint32_t candidates = BeamSearch::Candidates(beam, request.stop.stop_tokens.size());
  const std::uint32_t most = std::min(BeamOptions::kMaxCandidates, description.vocab_size);
  if (candidates > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        beam.beams, " beams with ", request.stop.stop_tokens.size(), " stop tokens need ",
        candidates, " candidates; at most ", most, " are possible"));
  }
  return absl::OkStatus();
}

absl::Status CheckSequences(const TokenizedRequest& request, const CoreOptions& options,
                            const ExecutorDescription& description) {
  if (request.sequences == 0) return absl::InvalidArgumentError("a request has no sequences");
  const std::uint32_t width = request.beam ? request.beam->beams : request.sequences;
  const std::uint32_t most = MaxSequences(options, description);
  // BeamGroup::cancelled has an entry per answer, so their number is limited too.
  if (width > most || request.sequences > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::max(width, request.sequences), " sequences; at most ", most, " can run"));
  }
  if (request.beam.has_value()) {
    if (absl::Status s = CheckBeam(request, description); !s.ok()) return s;
  }
  if (!request.adapter.empty()) {
    return absl::UnimplementedError("adapters are not supported");
  }
  return absl::OkStatus();
}

absl::Status CheckPrefixes(const TokenizedRequest& request,
                           const ExecutorDescription& description) {
  if (request.output_prefix.empty()) return absl::OkStatus();
  if (request.output_prefix.size() != request.sequences) {
    return absl::InvalidArgumentError("output_prefix must have one entry per sequence");
  }
  for (const std::vector<TokenId>& prefix : request.output_prefix) {
    if (prefix.size() > request.stop.max_tokens) {
      return absl::InvalidArgumentError("output_prefix is longer than max_tokens");
    }
    if (absl::Status s = CheckTokens(prefix, description.vocab_size, "output_prefix"); !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::uint32_t MaxPositions(std::uint32_t prompt_tokens, std::uint32_t max_tokens) {
  return max_tokens == 0 ? prompt_tokens : prompt_tokens + max_tokens - 1;
}

std::uint32_t MaxSequences(const CoreOptions& options, const ExecutorDescription& description) {
  return std::min({options.max_seqs, description.max_sequences, options.max_step_tokens,
                   description.max_step_tokens});
}

// The sequences of one request surely share the blocks before the last token of the prompt, except
// where they cannot be forked (KvCacheManager::can_fork). While some are not open, the others keep
// what these will share, so a window saves nothing for sure where there are several.
std::uint64_t MostBlocks(const Extent& extent, const ExecutorDescription& description) {
  const std::uint32_t positions = MaxPositions(extent.prompt_tokens, extent.max_tokens);
  const bool can_fork =
      std::none_of(description.groups.begin(), description.groups.end(),
                   [](const KvGroup& group) { return group.kind == KvGroup::Kind::kState; });
  std::uint64_t blocks = 0;
  for (const KvGroup& group : description.groups) {
    if (extent.width == 1) {
      blocks += MostNamed(group, positions, RowsOfPlans(description));
      continue;
    }
    const std::uint64_t each = TableEntries(group, positions);
    const std::uint64_t shared = can_fork ? (extent.prompt_tokens - 1) / group.tokens_per_block : 0;
    blocks += shared + extent.width * (each - shared);
  }
  return blocks;
}

absl::Status CheckFits(const Extent& extent, const ExecutorDescription& description) {
  const std::uint64_t tokens = std::uint64_t{extent.prompt_tokens} + extent.max_tokens;
  if (tokens > description.max_context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt and max_tokens are ", tokens, " tokens; the context is ", description.max_context));
  }
  const std::uint64_t blocks = MostBlocks(extent, description);
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
    if (CheckFits({.prompt_tokens = middle}, description).ok()) {
      fits = middle;
    } else {
      longest = middle - 1;
    }
  }
  return fits;
}

std::uint32_t MaxQueuedTokens(const CoreOptions& options, const ExecutorDescription& description) {
  constexpr std::uint32_t kDefault = 65536;
  if (options.max_queued_tokens > 0) return options.max_queued_tokens;
  return std::max(kDefault, LongestServable(description));
}

absl::Status CheckQueueTokens(const CoreOptions& options, const ExecutorDescription& description) {
  const std::uint32_t queue = MaxQueuedTokens(options, description);
  const std::uint32_t longest = LongestServable(description);
  if (queue >= longest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--queue-tokens is ", queue, ", but a prompt may have ", longest,
                   " tokens: set --queue-tokens to ", longest, " or more, or leave it out"));
}

absl::Status CheckServable(const TokenizedRequest& request, const CoreOptions& options,
                           const ExecutorDescription& description) {
  if (absl::Status s = CheckSequences(request, options, description); !s.ok()) return s;
  if (absl::Status s = CheckParameters(request, description.vocab_size); !s.ok()) return s;
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  const std::uint32_t queue = MaxQueuedTokens(options, description);
  if (request.prompt.size() > queue) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", request.prompt.size(), " tokens; the queue takes ", queue));
  }
  const Extent extent{.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size()),
                      .max_tokens = request.stop.max_tokens,
                      .width = request.beam ? request.beam->beams : request.sequences};
  if (absl::Status s = CheckFits(extent, description); !s.ok()) return s;
  if (absl::Status s = CheckTokens(request.prompt, description.vocab_size, "the prompt"); !s.ok()) {
    return s;
  }
  return CheckPrefixes(request, description);
}

absl::Status CheckDescription(const ExecutorDescription& description) {
  const auto bad = [](const char* what) { return absl::InvalidArgumentError(what); };
  if (description.groups.empty()) return bad("the executor describes no KV group");
  for (const KvGroup& group : description.groups) {
    if (group.kind != KvGroup::Kind::kState && group.tokens_per_block == 0) {
      return bad("the executor describes blocks of no tokens");
    }
    if (group.kind == KvGroup::Kind::kWindow && group.window == 0) {
      return bad("the executor describes a window of no tokens");
    }
    if (description.run_tokens > 0 && group.tokens_per_block != description.run_tokens) {
      return bad("the executor describes runs that are not blocks");
    }
  }
  if (description.block_count < 2) return bad("the executor's KV pool is empty");
  if (description.max_sequences == 0) return bad("the executor takes no sequences");
  if (description.max_step_tokens == 0) return bad("the executor takes no tokens");
  if (description.max_context == 0 || description.vocab_size == 0) {
    return bad("the executor describes no model");
  }
  constexpr std::uint32_t kMaxLag = 64;  // stages of a pipeline; far above any use
  if (description.lag == 0 || description.lag > kMaxLag) return bad("lag must be 1 to 64");
  return absl::OkStatus();
}

}  // namespace flotilla::scheduler
