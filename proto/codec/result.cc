#include "proto/codec/result.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/columns.h"

namespace flotilla::codec {
namespace {

using columns::At;
using columns::CheckColumn;
using columns::CheckCounts;
using columns::CheckRows;
using columns::CheckTokens;
using columns::ColumnReader;
using columns::DropUsual;
using columns::Wrong;

void WriteTop(const TopLogprob& top, v1::TokenLogprobs* proto) {
  proto->add_ids(top.token);
  proto->add_logprobs(top.logprob);
}

void WriteSampled(const SampledToken& token, v1::SampledTokens* proto) {
  WriteTop({token.token, token.logprob}, proto->mutable_tokens());
  proto->add_top_counts(static_cast<std::uint32_t>(token.top.size()));
  for (const TopLogprob& top : token.top) WriteTop(top, proto->mutable_tops());
}

v1::StepResult::Finish ToProto(const std::optional<FinishReason>& reason) {
  if (!reason.has_value()) return v1::StepResult::FINISH_NONE;
  switch (*reason) {
    case FinishReason::kStop:
      return v1::StepResult::FINISH_STOP;
    case FinishReason::kLength:
      return v1::StepResult::FINISH_LENGTH;
    case FinishReason::kCancelled:
      return v1::StepResult::FINISH_CANCELLED;
    case FinishReason::kDeadline:
      return v1::StepResult::FINISH_DEADLINE;
    case FinishReason::kError:
      return v1::StepResult::FINISH_ERROR;
    case FinishReason::kMoved:
      return v1::StepResult::FINISH_MOVED;
  }
  return v1::StepResult::FINISH_NONE;
}

absl::Status ReadFinish(int value, std::optional<FinishReason>& reason) {
  constexpr std::optional<FinishReason> kReasons[] = {std::nullopt,
                                                      FinishReason::kStop,
                                                      FinishReason::kLength,
                                                      FinishReason::kCancelled,
                                                      FinishReason::kDeadline,
                                                      FinishReason::kError,
                                                      FinishReason::kMoved};
  if (value < 0 || value > v1::StepResult::FINISH_MOVED) {
    return Wrong("finished", absl::StrCat(value));
  }
  reason = kReasons[value];
  return absl::OkStatus();
}

void WriteSequence(const SequenceResult& sequence, v1::StepResult* proto) {
  proto->mutable_sequences()->Add(sequence.sequence.value());
  proto->add_lengths(sequence.length);
  proto->add_first_outputs(sequence.first_output);
  proto->add_token_counts(static_cast<std::uint32_t>(sequence.tokens.size()));
  for (const SampledToken& token : sequence.tokens) WriteSampled(token, proto->mutable_tokens());
  proto->add_drafted(sequence.drafted);
  proto->add_prompt_firsts(sequence.prompt_first);
  proto->add_prompt_counts(static_cast<std::uint32_t>(sequence.prompt.size()));
  for (const SampledToken& token : sequence.prompt) WriteSampled(token, proto->mutable_prompt());
  proto->add_candidate_counts(static_cast<std::uint32_t>(sequence.candidates.size()));
  for (const TopLogprob& top : sequence.candidates) WriteTop(top, proto->mutable_candidates());
  proto->add_finished(ToProto(sequence.finished));
  proto->add_noops(sequence.noop);
  if (sequence.refused.empty()) return;
  v1::StepResult::Refusal& refusal = *proto->add_refusals();
  refusal.set_row(static_cast<std::uint32_t>(proto->sequences_size() - 1));
  refusal.set_reason(sequence.refused);
  refusal.set_is_overload(sequence.is_overload);
}

void DropUsualColumns(v1::StepResult* proto) {
  DropUsual(0u, proto->mutable_lengths());
  DropUsual(0u, proto->mutable_first_outputs());
  DropUsual(1u, proto->mutable_token_counts());
  DropUsual(0u, proto->mutable_drafted());
  DropUsual(0u, proto->mutable_prompt_firsts());
  DropUsual(0u, proto->mutable_prompt_counts());
  DropUsual(0u, proto->mutable_candidate_counts());
  DropUsual<int>(v1::StepResult::FINISH_NONE, proto->mutable_finished());
  DropUsual(false, proto->mutable_noops());
  if (proto->has_tokens()) DropUsual(0u, proto->mutable_tokens()->mutable_top_counts());
  if (proto->has_prompt()) DropUsual(0u, proto->mutable_prompt()->mutable_top_counts());
}

// Reads tokens with log-probabilities one after another.
class TopReader {
 public:
  // `proto` outlives the reader.
  explicit TopReader(const v1::TokenLogprobs& proto) : proto_(proto) {}

  static absl::Status Check(absl::string_view field, const v1::TokenLogprobs& proto) {
    if (absl::Status s = CheckRows(field, proto.logprobs_size(), proto.ids_size()); !s.ok()) {
      return s;
    }
    for (const float logprob : proto.logprobs()) {
      if (std::isnan(logprob)) return Wrong(field, "a log-probability is no number");
    }
    return CheckTokens(field, proto.ids());
  }

  TopLogprob Next() {
    const TopLogprob top{.token = proto_.ids(at_), .logprob = proto_.logprobs(at_)};
    ++at_;
    return top;
  }

  std::vector<TopLogprob> Next(std::uint32_t count) {
    std::vector<TopLogprob> tops;
    tops.reserve(count);
    while (tops.size() < count) tops.push_back(Next());
    return tops;
  }

 private:
  const v1::TokenLogprobs& proto_;
  int at_ = 0;
};

// Reads tokens with alternatives one after another.
class SampledReader {
 public:
  explicit SampledReader(const v1::SampledTokens& proto)
      : proto_(proto), tokens_(proto.tokens()), tops_(proto.tops()) {}

  static absl::Status Check(absl::string_view field, const v1::SampledTokens& proto) {
    if (absl::Status s = TopReader::Check(field, proto.tokens()); !s.ok()) return s;
    if (absl::Status s = TopReader::Check(absl::StrCat(field, ".tops"), proto.tops()); !s.ok()) {
      return s;
    }
    const auto rows = static_cast<std::size_t>(proto.tokens().ids_size());
    return CheckCounts(absl::StrCat(field, ".top_counts"), proto.top_counts(), 0, rows,
                       proto.tops().ids_size());
  }

  std::vector<SampledToken> Next(std::uint32_t count) {
    std::vector<SampledToken> tokens;
    tokens.reserve(count);
    while (tokens.size() < count) {
      const TopLogprob own = tokens_.Next();
      tokens.push_back({.token = own.token,
                        .logprob = own.logprob,
                        .top = tops_.Next(At(proto_.top_counts(), row_++, 0u))});
    }
    return tokens;
  }

 private:
  const v1::SampledTokens& proto_;
  TopReader tokens_, tops_;
  std::size_t row_ = 0;
};

absl::Status CheckColumns(const v1::StepResult& proto) {
  const auto rows = static_cast<std::size_t>(proto.sequences_size());
  const std::pair<absl::string_view, int> columns[] = {
      {"lengths", proto.lengths_size()},   {"first_outputs", proto.first_outputs_size()},
      {"drafted", proto.drafted_size()},   {"prompt_firsts", proto.prompt_firsts_size()},
      {"finished", proto.finished_size()}, {"noops", proto.noops_size()},
  };
  for (const auto& [field, size] : columns) {
    if (absl::Status s = CheckColumn(field, size, rows); !s.ok()) return s;
  }
  absl::Status s = SampledReader::Check("tokens", proto.tokens());
  s.Update(SampledReader::Check("prompt", proto.prompt()));
  s.Update(TopReader::Check("candidates", proto.candidates()));
  s.Update(CheckCounts("token_counts", proto.token_counts(), 1, rows,
                       proto.tokens().tokens().ids_size()));
  s.Update(CheckCounts("prompt_counts", proto.prompt_counts(), 0, rows,
                       proto.prompt().tokens().ids_size()));
  s.Update(CheckCounts("candidate_counts", proto.candidate_counts(), 0, rows,
                       proto.candidates().ids_size()));
  return s;
}

absl::Status ReadRefusals(const v1::StepResult& proto, std::vector<SequenceResult>& sequences) {
  std::size_t next = 0;
  for (const v1::StepResult::Refusal& refusal : proto.refusals()) {
    if (refusal.row() < next || refusal.row() >= sequences.size() || refusal.reason().empty() ||
        refusal.reason().size() > SequenceResult::kMaxReason) {
      return Wrong("refusals", absl::StrCat("row ", refusal.row(), " with ",
                                            refusal.reason().size(), " bytes"));
    }
    sequences[refusal.row()].refused = refusal.reason();
    sequences[refusal.row()].is_overload = refusal.is_overload();
    next = refusal.row() + std::size_t{1};
  }
  return absl::OkStatus();
}

absl::Status ReadSequences(const v1::StepResult& proto, std::vector<SequenceResult>& sequences) {
  ColumnReader handles(proto.sequences());
  SampledReader tokens(proto.tokens()), prompt(proto.prompt());
  TopReader candidates(proto.candidates());
  const auto rows = static_cast<std::size_t>(proto.sequences_size());
  sequences.reserve(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    SequenceResult& sequence = sequences.emplace_back();
    sequence.sequence = SequenceHandle(handles.Next());
    sequence.length = At(proto.lengths(), row, 0u);
    sequence.first_output = At(proto.first_outputs(), row, 0u);
    sequence.tokens = tokens.Next(At(proto.token_counts(), row, 1u));
    sequence.drafted = At(proto.drafted(), row, 0u);
    sequence.prompt_first = At(proto.prompt_firsts(), row, 0u);
    sequence.prompt = prompt.Next(At(proto.prompt_counts(), row, 0u));
    sequence.candidates = candidates.Next(At(proto.candidate_counts(), row, 0u));
    sequence.noop = At(proto.noops(), row, false);
    const int finished = At<int>(proto.finished(), row, v1::StepResult::FINISH_NONE);
    if (absl::Status s = ReadFinish(finished, sequence.finished); !s.ok()) return s;
  }
  return ReadRefusals(proto, sequences);
}

}  // namespace

void ToProto(const StepResult& result, v1::StepResult* proto) {
  proto->set_epoch(result.epoch.value());
  proto->set_step(result.step.value());
  for (const SequenceResult& sequence : result.sequences) WriteSequence(sequence, proto);
  DropUsualColumns(proto);
  proto->mutable_copies_done()->Add(result.copies_done.begin(), result.copies_done.end());
  v1::StepTimings& timings = *proto->mutable_timings();
  timings.set_start_ns(result.timings.start_ns);
  timings.set_compute_ns(result.timings.compute_ns);
  timings.set_rows(result.timings.rows);
  timings.set_decode_rows(result.timings.decode_rows);
}

absl::StatusOr<StepResult> FromProto(const v1::StepResult& proto) {
  if (absl::Status s = CheckColumns(proto); !s.ok()) return s;
  StepResult result{.epoch = Epoch(proto.epoch()),
                    .step = Step(proto.step()),
                    .sequences = {},
                    .copies_done = {proto.copies_done().begin(), proto.copies_done().end()},
                    .timings = {.start_ns = proto.timings().start_ns(),
                                .compute_ns = proto.timings().compute_ns(),
                                .rows = proto.timings().rows(),
                                .decode_rows = proto.timings().decode_rows()}};
  if (absl::Status s = ReadSequences(proto, result.sequences); !s.ok()) return s;
  return result;
}

}  // namespace flotilla::codec
