#include "tests/sim/plan_hash.h"

#include <bit>

namespace flotilla::testing {
namespace {

std::uint64_t Word(TokenId token) { return static_cast<std::uint64_t>(token); }
template <class Tag, class Rep>
std::uint64_t Word(StrongId<Tag, Rep> id) {
  return id.value();
}

// The numbers of the kinds of operations. They do not depend on the order in the variant.
enum Kind : std::uint64_t {
  kOpen = 1,
  kGrant,
  kFork,
  kDrop,
  kRun,
  kDefer,
  kCopy,
  kLoad,
  kUnload,
  kTrim,
  kSpeculate,
  kRelease,
};

}  // namespace

void PlanHash::Add(float number) { Add(std::uint64_t{std::bit_cast<std::uint32_t>(number)}); }

void PlanHash::Add(const std::string& text) {
  Add(std::uint64_t{text.size()});
  for (const char c : text) Add(std::uint64_t{static_cast<unsigned char>(c)});
}

template <class Id>
void PlanHash::AddIds(const std::vector<Id>& ids) {
  Add(std::uint64_t{ids.size()});
  for (const Id id : ids) Add(Word(id));
}

void PlanHash::Add(const SamplingParams& sampling) {
  Add(sampling.temperature);
  Add(static_cast<std::uint64_t>(sampling.top_k));
  Add(sampling.top_p);
  Add(sampling.min_p);
  Add(sampling.repetition_penalty);
  Add(sampling.frequency_penalty);
  Add(sampling.presence_penalty);
  Add(std::uint64_t{sampling.logit_bias.size()});
  for (const LogitBias& bias : sampling.logit_bias) {
    Add(Word(bias.token));
    Add(bias.bias);
  }
  Add(sampling.seed);
  if (sampling.constraint) Add(static_cast<std::uint64_t>(sampling.constraint.kind));
}

void PlanHash::Add(const OpenSequence& op) {
  Add(std::uint64_t{kOpen});
  Add(Word(op.sequence));
  Add(op.request.incarnation);
  Add(op.request.counter);
  Add(Word(op.index));
  AddIds(op.tokens);
  Add(std::uint64_t{op.prompt_tokens});
  Add(std::uint64_t{op.cached_tokens});
  Add(op.sampling);
  AddIds(op.stop.stop_tokens);
  Add(std::uint64_t{op.stop.max_tokens});
  Add(std::uint64_t{op.stop.min_tokens});
  Add(static_cast<std::uint64_t>(op.logprobs.output_top));
  Add(static_cast<std::uint64_t>(op.logprobs.prompt_top));
  Add(std::uint64_t{op.micro_batch});
  Add(std::uint64_t{op.is_beam});
}

void PlanHash::Add(const GrantBlocks& op) {
  Add(std::uint64_t{kGrant});
  Add(Word(op.sequence));
  Add(Word(op.group));
  AddIds(op.blocks);
}

void PlanHash::Add(const ForkSequence& op) {
  Add(std::uint64_t{kFork});
  Add(Word(op.parent));
  Add(Word(op.child));
  Add(Word(op.index));
  Add(std::uint64_t{op.length});
  AddIds(op.tokens);
  Add(std::uint64_t{op.copies.size()});
  for (const BlockCopy& copy : op.copies) {
    Add(Word(copy.from));
    Add(Word(copy.to));
  }
  Add(std::uint64_t{op.micro_batch});
}

void PlanHash::Add(const DropSequence& op) {
  Add(std::uint64_t{kDrop});
  Add(Word(op.sequence));
}

void PlanHash::Add(const Run& op) {
  Add(std::uint64_t{kRun});
  Add(Word(op.sequence));
  Add(std::uint64_t{op.count});
  Add(std::uint64_t{op.sample});
  Add(std::uint64_t{op.prompt_logprobs});
  AddIds(op.append);
  Add(std::uint64_t{op.candidates});
  Add(std::uint64_t{op.pooled});
}

void PlanHash::Add(const Defer& op) {
  Add(std::uint64_t{kDefer});
  Add(Word(op.sequence));
}

void PlanHash::Add(const BackgroundCopy& op) {
  Add(std::uint64_t{kCopy});
  Add(op.id);
  Add(std::uint64_t{op.kind == BackgroundCopy::Kind::kIn});
  Add(std::uint64_t{op.tier});
  Add(std::uint64_t{op.moves.size()});
  for (const BackgroundCopy::Move& move : op.moves) {
    Add(Word(move.block));
    Add(std::uint64_t{move.slot});
  }
}

void PlanHash::Add(const LoadAdapter& op) {
  Add(std::uint64_t{kLoad});
  Add(op.adapter);
}

void PlanHash::Add(const UnloadAdapter& op) {
  Add(std::uint64_t{kUnload});
  Add(op.adapter);
}

void PlanHash::Add(const TrimBlocks& op) {
  Add(std::uint64_t{kTrim});
  Add(Word(op.sequence));
  Add(Word(op.group));
  Add(std::uint64_t{op.count});
}

void PlanHash::Add(const ReleaseBlocks& op) {
  Add(std::uint64_t{kRelease});
  Add(Word(op.sequence));
  Add(Word(op.group));
  Add(std::uint64_t{op.count});
}

void PlanHash::Add(const Speculate& op) {
  Add(std::uint64_t{kSpeculate});
  Add(Word(op.sequence));
  Add(std::uint64_t{op.depth});
}

void PlanHash::Add(const StepPlan& plan) {
  Add(plan.epoch.value());
  Add(plan.step.value());
  Add(plan.digest);
  Add(static_cast<std::uint64_t>(plan.predicted_ns));
  Add(std::uint64_t{plan.ops.size()});
  for (const PlanOp& op : plan.ops) {
    std::visit([this](const auto& one) { Add(one); }, op);
  }
}

}  // namespace flotilla::testing
