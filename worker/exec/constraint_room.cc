#include "worker/exec/constraint_room.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

// How long a step waits for a grammar if it computes nothing but rows that wait for one. Without
// this such steps would take the processor from the process that compiles it.
constexpr absl::Duration kPause = absl::Milliseconds(20);

// How long a step waits to learn which draft tokens grammars allow. That takes microseconds, unless
// the thread is still busy with a slow grammar.
constexpr absl::Duration kDraftPatience = absl::Milliseconds(1);

// Whether the batch has tokens of constrained answers, and nothing else.
bool HasOnlyConstrainedTokens(const Batch& batch) {
  return !batch.items.empty() &&
         std::all_of(batch.items.begin(), batch.items.end(), [](const BatchItem& item) {
           return item.is_constrained() && item.row_count == 1 + item.drafts;
         });
}

// Whether rows of a prompt, which give no token, are followed by at most two chunks as long. A
// grammar that is asked for much earlier would be compiled, with what processor time the prompt
// leaves, for a request that may be gone by then.
bool SamplesSoon(const BatchItem& item) {
  const std::size_t rows = item.row_count, end = item.first_position + rows;
  return item.stop->max_tokens > 0 && item.known.size() <= end + 2 * rows;
}

RowMask Refused(const absl::Status& why) {
  return {.state = absl::IsResourceExhausted(why) ? RowMask::State::kNoRoom
                   : absl::IsNotFound(why)        ? RowMask::State::kNoToken
                                                  : RowMask::State::kRefused,
          .allowed = {},
          .reason = std::string(why.message().substr(0, SequenceResult::kMaxReason))};
}

// The same for every row.
class SameMasks final : public RowMasks {
 public:
  explicit SameMasks(RowMask mask) : mask_(std::move(mask)) {}
  RowMask Wait(std::size_t, std::uint32_t, absl::Duration) override { return mask_; }

 private:
  const RowMask mask_;
};

class MasksOfStep final : public RowMasks {
 public:
  explicit MasksOfStep(std::shared_ptr<StepMasks> masks) : masks_(std::move(masks)) {}

  RowMask Wait(std::size_t item, std::uint32_t at, absl::Duration patience) override {
    const MaskOutcome outcome = masks_->Wait(item, at, patience);
    switch (outcome.state) {
      case MaskOutcome::State::kReady:
        return {.state = RowMask::State::kReady, .allowed = outcome.allowed, .reason = {}};
      case MaskOutcome::State::kLate:
        return {.was_awaited = outcome.was_awaited, .allowed = {}, .reason = {}};
      case MaskOutcome::State::kRefused:
        break;
    }
    return Refused(outcome.refusal);
  }

 private:
  const std::shared_ptr<StepMasks> masks_;
};

}  // namespace

ConstraintRoom::~ConstraintRoom() {
  if (opener_.joinable()) opener_.join();
}

absl::StatusOr<std::unique_ptr<ConstraintMasks>> ConstraintRoom::Open() const {
  auto bundle = file_->ReadTokenizer();
  if (!bundle.ok()) return bundle.status();
  auto vocabulary = ReadConstraintVocabulary(*bundle);
  if (!vocabulary.ok()) return vocabulary.status();
  ConstraintMasksOptions options{
      .vocabulary = *std::move(vocabulary), .steps_per_row = micro_batches_, .clock = &clock_};
  options.compiler.program = program_;
  options.compiler.limits = limits_;
  return ConstraintMasks::Create(std::move(options));
}

std::shared_ptr<RowMasks> ConstraintRoom::Begin(const Batch& batch,
                                                absl::Span<const std::size_t> items) {
  if (!opener_.joinable()) {
    opener_ = std::thread([this] {
      auto masks = Open();
      absl::MutexLock lock(&mu_);
      masks_ = std::move(masks);
      is_open_ = true;
    });
  }
  const bool only_constrained = HasOnlyConstrainedTokens(batch);
  // After a step of others it does not pause: steps of these may alternate with steps of those that
  // the scheduler isolates.
  const bool may_pause = micro_batches_ == 1 && only_constrained && was_only_constrained_;
  was_only_constrained_ = only_constrained;
  ConstraintMasks* masks = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (may_pause) mu_.AwaitWithTimeout(absl::Condition(&is_open_), kPause);
    if (!is_open_) return std::make_shared<SameMasks>(RowMask());
    if (!masks_.ok()) {
      return std::make_shared<SameMasks>(Refused(absl::UnimplementedError(absl::StrCat(
          "there are no grammars for the model's tokenizer: ", masks_.status().message()))));
    }
    masks = masks_->get();
  }
  std::vector<MaskItem> wanted;
  wanted.reserve(items.size());
  bool all_compile = true;  // those of the rows that other ranks draw
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const BatchItem& item = batch.items[i];
    if (!item.sampling->constraint) continue;
    if (!item.is_constrained()) {
      if (SamplesSoon(item)) {
        masks->Prepare(item.sequence, item.sampling->constraint, item.output_index);
      }
      continue;
    }
    if (wanted.size() == items.size() || items[wanted.size()] != i) {
      all_compile &= masks->Prepare(item.sequence, item.sampling->constraint, item.output_index);
      continue;
    }
    const std::size_t first_draft = item.row_begin + item.row_count - item.drafts;
    wanted.push_back(
        {.sequence = item.sequence,
         .constraint = &item.sampling->constraint,
         .outputs = item.known.last(item.output_index),
         .drafts = absl::MakeConstSpan(batch.tokens).subspan(first_draft, item.drafts)});
  }
  std::shared_ptr<StepMasks> step = masks->Begin(wanted, only_constrained);
  if (may_pause && all_compile) step->AwaitGrammars(kPause);
  return std::make_shared<MasksOfStep>(std::move(step));
}

std::vector<std::size_t> ConstraintRoom::CheckDrafts(
    absl::Span<const DraftRequest* const> requests) {
  ConstraintMasks* masks = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (is_open_ && masks_.ok()) masks = masks_->get();
  }
  if (masks == nullptr || requests.empty()) return std::vector<std::size_t>(requests.size());
  std::vector<MaskItem> items;
  for (const DraftRequest* request : requests) {
    items.push_back({.sequence = request->sequence,
                     .constraint = &request->sampling->constraint,
                     .outputs = request->tokens.last(request->output_index),
                     .drafts = request->drafts});
  }
  return masks->CheckDrafts(items, kDraftPatience);
}

}  // namespace flotilla::worker
