#include "tests/proto/codec/random_values.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "common/types/parameters.h"

namespace flotilla::codec {

std::uint64_t RandomValues::Word() {
  switch (Below(8)) {
    case 0:
      return 0;
    case 1:
      return ~std::uint64_t{0};
    case 2:
      return random_.Next();
    default:
      return random_.Next() >> Below(64);
  }
}

float RandomValues::Logprob() {
  if (Below(16) == 0) return -std::numeric_limits<float>::infinity();
  return -static_cast<float>(Below(1 << 20)) / 4096;
}

std::string RandomValues::Name() {
  std::string name(Below(12), 'a');
  for (char& c : name) c = static_cast<char>('a' + Below(26));
  return name;
}

std::string RandomValues::Text() {
  std::string text(Below(6), '\0');
  for (char& c : text) c = static_cast<char>(random_.Next());
  return text;
}

std::vector<TokenId> RandomValues::Tokens(std::size_t most) {
  std::vector<TokenId> tokens(Below(most + 1));
  for (TokenId& token : tokens) token = Token();
  return tokens;
}

std::vector<LogitBias> RandomValues::Biases() {
  std::vector<LogitBias> biases(Below(4));
  for (LogitBias& entry : biases) entry = {.token = Token(), .bias = Logprob()};
  return biases;
}

std::vector<BlockCopy> RandomValues::Copies() {
  std::vector<BlockCopy> copies(Below(4));
  for (BlockCopy& copy : copies) copy = {.from = Block(), .to = Block()};
  return copies;
}

SamplingParams RandomValues::Sampling() {
  SamplingParams sampling{.dry_breakers = {.heads = Tokens(9), .tail_of = {}, .tails = {}},
                          .logit_bias = Biases(),
                          .allowed_tokens = Tokens(9),
                          .bad_words = {},
                          .constraint = {},
                          .thinking = {},
                          .seed = Word()};
  if (Flip()) {
    sampling.thinking = {
        .begin = Tokens(4), .end = Token(), .forced = Tokens(4), .budget = Number()};
    sampling.thinking.forced.push_back(Token());
  }
  if (Flip()) {
    sampling.constraint = {.kind = static_cast<Constraint::Kind>(1 + Below(4)),
                           .text = Text(),
                           .tenant = static_cast<std::uint32_t>(Below(1000))};
  }
  for (std::uint64_t words = Below(3); words > 0; --words) {
    sampling.bad_words.push_back(Tokens(4));
    sampling.bad_words.back().push_back(Token());
  }
  for (std::size_t i = 0; i < sampling.dry_breakers.heads.size(); ++i) {
    sampling.dry_breakers.tail_of.push_back(Number());
  }
  for (std::uint64_t tails = Below(3); tails > 0; --tails) {
    sampling.dry_breakers.tails.push_back(Tokens(4));
  }
  ForEachOfSampler([&](const Parameter&, auto member) {
    auto& value = sampling.*member;
    value = static_cast<std::remove_reference_t<decltype(value)>>(Below(99)) / 4;
  });
  return sampling;
}

OpenSequence RandomValues::Open() {
  return {.sequence = SequenceHandle(Number()),
          .request = {.incarnation = Word(), .counter = Word()},
          .index = SequenceIndex(Number()),
          .tokens = Tokens(40),
          .prompt_tokens = Number(),
          .cached_tokens = Number(),
          .sampling = Sampling(),
          .stop = {.stop_tokens = Tokens(3), .max_tokens = Number(), .min_tokens = Number()},
          .logprobs = {.output_top = static_cast<std::int32_t>(Below(22)) - 1,
                       .prompt_top = static_cast<std::int32_t>(Below(22)) - 1},
          .micro_batch = Number(),
          .is_beam = Flip()};
}

Run RandomValues::RandomRun() {
  const bool plain = Flip();
  Run run{.sequence = SequenceHandle(Number()), .count = Number(), .sample = Flip()};
  if (plain) return run;
  run.prompt_logprobs = Flip();
  run.append = Tokens(4);
  run.candidates = Number();
  run.pooled = Flip();
  return run;
}

PlanOp RandomValues::Op() {
  switch (Below(std::variant_size_v<PlanOp>)) {
    case 0:
      return Open();
    case 1: {
      GrantBlocks grant{
          .sequence = SequenceHandle(Number()), .group = GroupIndex(Below(3)), .blocks = {}};
      for (std::size_t i = Flip() ? 1 : Below(6); i > 0; --i) grant.blocks.push_back(Block());
      return grant;
    }
    case 2:
      return ForkSequence{.parent = SequenceHandle(Number()),
                          .child = SequenceHandle(Number()),
                          .index = SequenceIndex(Number()),
                          .length = Number(),
                          .tokens = Tokens(4),
                          .copies = Copies(),
                          .micro_batch = Number()};
    case 3:
      return DropSequence{.sequence = SequenceHandle(Number())};
    case 4:
      return RandomRun();
    case 5:
      return Defer{.sequence = SequenceHandle(Number())};
    case 6: {
      BackgroundCopy copy{.id = Word(),
                          .kind = Flip() ? BackgroundCopy::Kind::kOut : BackgroundCopy::Kind::kIn,
                          .tier = Number(),
                          .moves = {}};
      for (std::size_t i = Below(5); i > 0; --i) copy.moves.push_back({Block(), Number()});
      return copy;
    }
    case 7:
      return LoadAdapter{.adapter = Name()};
    case 8:
      return UnloadAdapter{.adapter = Name()};
    case 9:
      return TrimBlocks{.sequence = SequenceHandle(Number()),
                        .group = GroupIndex(static_cast<std::uint32_t>(Below(3))),
                        .count = Flip() ? 1 : Number()};
    case 10:
      return ReleaseBlocks{.sequence = SequenceHandle(Number()),
                           .group = GroupIndex(static_cast<std::uint32_t>(Below(3))),
                           .count = Flip() ? 1 : Number()};
    default:
      return Speculate{.sequence = SequenceHandle(Number()), .depth = Flip() ? 0 : Number()};
  }
}

StepPlan RandomValues::Plan() {
  StepPlan plan{.epoch = Epoch(Word()),
                .step = flotilla::Step(Word()),
                .digest = Word(),
                .ops = {},
                .predicted_ns = static_cast<std::int64_t>(Word())};
  for (std::size_t i = Below(30); i > 0; --i) plan.ops.push_back(Op());
  return plan;
}

std::vector<TopLogprob> RandomValues::Tops() {
  std::vector<TopLogprob> tops(Flip() ? 0 : Below(5));
  for (TopLogprob& top : tops) top = {.token = Token(), .logprob = Logprob()};
  return tops;
}

std::vector<SampledToken> RandomValues::Sampled(std::size_t most) {
  std::vector<SampledToken> tokens(Below(most + 1));
  for (SampledToken& token : tokens) {
    token = {.token = Token(), .logprob = Logprob(), .top = Tops()};
  }
  return tokens;
}

SequenceResult RandomValues::Sequence() {
  SequenceResult sequence{.sequence = SequenceHandle(Number()),
                          .length = Number(),
                          .first_output = Number(),
                          .tokens = Sampled(3)};
  if (Flip()) return sequence;
  sequence.drafted = Number();
  sequence.prompt_first = Number();
  sequence.prompt = Sampled(6);
  sequence.candidates = Tops();
  if (Flip()) sequence.finished = static_cast<FinishReason>(Below(6));
  if (Flip()) {
    sequence.refused = Text().substr(0, SequenceResult::kMaxReason);
    sequence.is_overload = !sequence.refused.empty() && Flip();
  }
  sequence.noop = Flip();
  return sequence;
}

StepResult RandomValues::Result() {
  StepResult result{.epoch = Epoch(Word()),
                    .step = flotilla::Step(Word()),
                    .sequences = {},
                    .copies_done = {},
                    .timings = {.start_ns = static_cast<std::int64_t>(Word()),
                                .compute_ns = static_cast<std::int64_t>(Word()),
                                .rows = Number(),
                                .decode_rows = Number()}};
  for (std::size_t i = Below(20); i > 0; --i) result.sequences.push_back(Sequence());
  for (std::size_t i = Below(3); i > 0; --i) result.copies_done.push_back(Word());
  return result;
}

ExecutorDescription RandomValues::Description() {
  ExecutorDescription description{
      .model_id = Name(),
      .vocab_size = Number(),
      .max_context = Number(),
      .numerics_id = Word(),
      .exactness = Flip() ? Exactness::kBitwise : Exactness::kConsistent,
      .groups = {},
      .block_count = Number(),
      .run_tokens = Number(),
      .max_sequences = Number(),
      .max_step_tokens = Number(),
      .lag = Number(),
      .max_draft_tokens = Number(),
      .prefill_ns_per_token = static_cast<std::int64_t>(Word()),
      .decode_ns_per_step = static_cast<std::int64_t>(Word())};
  for (std::size_t i = Below(4); i > 0; --i) {
    description.groups.push_back({.kind = static_cast<KvGroup::Kind>(Below(3)),
                                  .window = Number(),
                                  .tokens_per_block = Number(),
                                  .bytes_per_block = Word()});
  }
  for (std::size_t i = Below(3); i > 0; --i) {
    description.tiers.push_back({.kind = Flip() ? KvTier::Kind::kHost : KvTier::Kind::kDisk,
                                 .block_count = Number(),
                                 .out_ns_per_block = static_cast<std::int64_t>(Word()),
                                 .in_ns_per_block = static_cast<std::int64_t>(Word())});
  }
  return description;
}

GroupCommand RandomValues::Command() {
  if (Below(4) == 0) return EndEpoch{.epoch = Epoch(Word())};
  return Plan();
}

GroupEvent RandomValues::Event() {
  switch (Below(4)) {
    case 0:
      return GroupReady{.epoch = Epoch(Word()), .description = Description()};
    case 1: {
      Lost lost{.epoch = Epoch(Word()),
                .cause = static_cast<Lost::Cause>(Below(5)),
                .detail = "cut \xe2\x82",
                .started = {},
                .blames_requests = Below(2) == 0,
                .refused = {}};
      for (std::size_t i = Below(4); i > 0; --i) lost.started.emplace_back(Word());
      if (Flip()) lost.refused = Step(Word());
      return lost;
    }
    default:
      return Result();
  }
}

TokenizedRequest RandomValues::Request() {
  TokenizedRequest r;
  r.id = {Word(), Word()};
  r.attempt = Attempt(Number());
  r.prompt = Tokens(5);
  for (std::size_t i = Below(3); i > 0; --i) r.output_prefix.push_back(Tokens(5));
  r.sampling = Sampling();
  r.stop = {.stop_tokens = Tokens(5), .max_tokens = Number(), .min_tokens = Number()};
  r.logprobs = {.output_top = static_cast<std::int32_t>(Below(22)) - 1,
                .prompt_top = static_cast<std::int32_t>(Below(22)) - 1};
  r.sequences = Number();
  if (Flip()) {
    r.beam = BeamOptions{.beams = Number(),
                         .length_penalty = Real(),
                         .early_stopping = BeamOptions::EarlyStopping(Below(3))};
  }
  if (Flip()) {
    r.deadline_ns = static_cast<std::int64_t>(Word() >> 1);
    r.deadline_absent = Flip();
  }
  r.priority = static_cast<std::int32_t>(Number());
  r.tenant = Text();
  r.cache_salt = Text();
  r.adapter = Text();
  r.crash_count = Number();
  r.label = Text();
  r.max_tokens_absent = Flip();
  if (Flip()) r.trace = {Word(), Word(), Word(), Flip()};
  return r;
}

EngineEvent RandomValues::RouterEvent() {
  const RequestId id = {Word(), Word()};
  const Attempt attempt(Number());
  switch (Below(6)) {
    case 0:
      return Accepted{id, attempt, Word()};
    case 1: {
      PromptLogprobs event{.request = id, .attempt = attempt, .first = Number()};
      for (std::size_t i = Below(4); i > 0; --i) {
        event.tokens.push_back({Token(), Logprob(), Tops()});
      }
      return event;
    }
    case 2:
      return TokenEvent{
          id, attempt, SequenceIndex(Number()), Number(), {Token(), Logprob(), Tops()}};
    case 3:
      return CrashCount{id, attempt, Number()};
    case 4:
      return SequenceEnd{id,       attempt, SequenceIndex(Number()), FinishReason(Below(6)),
                         Number(), Real()};
    default:
      return RequestEnd{.request = id,
                        .attempt = attempt,
                        .status = Flip() ? absl::OkStatus() : absl::UnavailableError(Text()),
                        .retry_after_ms = static_cast<std::int64_t>(Word()),
                        .usage = {Number(), Number(), Number(), Number(), Number()}};
  }
}

}  // namespace flotilla::codec
