#include "worker/constraint/constraint_masks.h"

#include <algorithm>
#include <utility>

namespace flotilla::worker {
namespace {

// A sequence that waits for its grammar asks for it in each round. One that has not asked in so
// many is gone, or asks anew.
constexpr std::uint64_t kWaitingRounds = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<ConstraintMasks>> ConstraintMasks::Create(
    ConstraintMasksOptions options) {
  absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> vocabulary =
      GrammarVocabulary::Create(options.vocabulary);
  if (!vocabulary.ok()) return vocabulary.status();
  return std::unique_ptr<ConstraintMasks>(
      new ConstraintMasks(std::move(options), *std::move(vocabulary)));
}

ConstraintMasks::ConstraintMasks(ConstraintMasksOptions options,
                                 std::shared_ptr<const GrammarVocabulary> vocabulary)
    : options_(std::move(options)),
      vocabulary_(std::move(vocabulary)),
      matchers_(options_.matchers),
      compiler_(std::make_unique<GrammarCompiler>(options_.compiler, options_.vocabulary,
                                                  vocabulary_, *options_.clock, [this] {
                                                    absl::MutexLock lock(&mu_);
                                                    compiled_ = true;
                                                  })) {}

ConstraintMasks::~ConstraintMasks() {
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    stops_ = true;
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

ConstraintMasks::Known& ConstraintMasks::Find(SequenceHandle sequence, const Constraint& constraint,
                                              std::size_t outputs) {
  Known& known = known_[sequence];
  const bool is_same = known.entry != nullptr && known.entry->constraint.HasFormOf(constraint) &&
                       compiler_->IsUsable(*known.entry) && !known.lateness->is_over;
  if (!is_same) {
    known = {.entry = compiler_->Get(constraint), .lateness = std::make_shared<MaskLateness>()};
  } else if (outputs < known.outputs) {
    known.lateness = std::make_shared<MaskLateness>();
  }
  known.outputs = outputs;
  known.step = step_;
  return known;
}

bool ConstraintMasks::Prepare(SequenceHandle sequence, const Constraint& constraint,
                              std::size_t outputs) {
  return !compiler_->IsDone(*Find(sequence, constraint, outputs).entry);
}

std::shared_ptr<StepMasks> ConstraintMasks::Begin(absl::Span<const MaskItem> items,
                                                  bool only_these) {
  ++step_;
  absl::erase_if(known_, [&](const auto& one) {
    const std::uint64_t idle = step_ - one.second.step;
    return idle > options_.matchers.idle_steps || (idle > kWaitingRounds * options_.steps_per_row &&
                                                   !compiler_->IsDone(*one.second.entry));
  });
  const std::size_t words = vocabulary_->mask_words();
  std::vector<StepMasks::Item> held;
  std::vector<StepMasks::Progress> progress;
  held.reserve(items.size());
  progress.reserve(items.size());
  bool has_others = !only_these;
  for (const MaskItem& item : items) {
    const Known& known = Find(item.sequence, *item.constraint, item.outputs.size());
    progress.push_back({.compiling = !compiler_->IsDone(*known.entry)});
    has_others |= !progress.back().compiling && known.lateness->late_at != item.outputs.size() + 1;
    held.push_back({.sequence = item.sequence,
                    .entry = known.entry,
                    .outputs = {item.outputs.begin(), item.outputs.end()},
                    .drafts = {item.drafts.begin(), item.drafts.end()},
                    .lateness = known.lateness,
                    .masks = std::make_unique_for_overwrite<std::uint32_t[]>(
                        (item.drafts.size() + 1) * words)});
  }
  std::shared_ptr<StepMasks> step(new StepMasks(
      std::move(held), std::move(progress), has_others, words, step_ / options_.steps_per_row,
      options_.compiler.patience, options_.late_limit, *options_.clock, culprit_));
  absl::MutexLock lock(&mu_);
  // Without items only matchers may have to be dropped.
  if (items.empty() && (!thread_.joinable() || step_ % 64 != 0)) return step;
  queue_.push_back(step);
  if (!thread_.joinable() && !stops_) thread_ = std::thread([this] { Loop(); });
  return step;
}

std::vector<std::size_t> ConstraintMasks::CheckDrafts(absl::Span<const MaskItem> items,
                                                      absl::Duration patience) {
  auto check = std::make_shared<DraftCheck>();
  for (const MaskItem& item : items) {
    const Known& known = Find(item.sequence, *item.constraint, item.outputs.size());
    check->items.push_back({.sequence = item.sequence,
                            .entry = known.entry,
                            .outputs = {item.outputs.begin(), item.outputs.end()},
                            .drafts = {item.drafts.begin(), item.drafts.end()},
                            .lateness = known.lateness});
  }
  check->allowed.resize(items.size());
  {
    absl::MutexLock lock(&mu_);
    checks_.push_back(check);
    if (!thread_.joinable() && !stops_) thread_ = std::thread([this] { Loop(); });
    if (mu_.AwaitWithTimeout(absl::Condition(&check->done), patience)) return check->allowed;
  }
  // No sequence is to blame: the checks of all of them share this time.
  return std::vector<std::size_t>(items.size());
}

std::size_t ConstraintMasks::Check(const DraftCheck::Item& item) {
  if (!compiler_->IsDone(*item.entry)) return 0;
  const absl::StatusOr<std::shared_ptr<const Grammar>> grammar = compiler_->GrammarOf(*item.entry);
  if (!grammar.ok()) return 0;
  const absl::StatusOr<Matchers::Place*> place =
      matchers_.MoveTo(item.sequence, *grammar, item.outputs);
  if (!place.ok()) return 0;
  GrammarMatcher& matcher = (*place)->matcher();
  std::size_t allowed = 0;
  while (allowed < item.drafts.size() && matcher.Accept(item.drafts[allowed])) ++allowed;
  matcher.Rollback(allowed);
  return allowed;
}

void ConstraintMasks::Loop() {
  while (true) {
    std::vector<std::weak_ptr<StepMasks>> steps;
    std::deque<std::shared_ptr<DraftCheck>> checks;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &ConstraintMasks::HasWorkOrStops));
      if (stops_) return;
      if (std::exchange(compiled_, false)) steps.swap(compiling_);
      steps.insert(steps.end(), queue_.begin(), queue_.end());
      queue_.clear();
      checks.swap(checks_);
    }
    for (const std::shared_ptr<DraftCheck>& check : checks) {
      if (check.use_count() == 1) continue;  // nobody waits for it any more
      for (std::size_t i = 0; i < check->items.size(); ++i) {
        culprit_->Set(check->items[i].lateness);
        check->allowed[i] = Check(check->items[i]);
        culprit_->Set(nullptr);
      }
      absl::MutexLock lock(&mu_);
      check->done = true;
    }
    for (const std::weak_ptr<StepMasks>& held : steps) {
      matchers_.NextStep();
      const std::shared_ptr<StepMasks> step = held.lock();
      if (step != nullptr && Compute(*step)) compiling_.push_back(step);
    }
  }
}

bool ConstraintMasks::Compute(StepMasks& step) {
  struct Task {
    std::size_t item;
    std::shared_ptr<const Grammar> grammar;
    std::size_t missing;
  };
  std::vector<Task> tasks;
  bool left = false;
  for (std::size_t i = 0; i < step.items_.size(); ++i) {
    const StepMasks::Item& item = step.items_[i];
    if (step.IsOver(i)) continue;
    if (!compiler_->IsDone(*item.entry)) {
      step.SetCompiling(i, true);
      left = true;
      continue;
    }
    step.SetCompiling(i, false);
    absl::StatusOr<std::shared_ptr<const Grammar>> grammar = compiler_->GrammarOf(*item.entry);
    if (!grammar.ok()) {
      step.Refuse(i, grammar.status());
      continue;
    }
    const std::size_t missing = matchers_.Missing(item.sequence, **grammar, item.outputs);
    tasks.push_back({i, *std::move(grammar), missing});
  }
  // Whoever only goes on does not wait for matchers that are rebuilt.
  std::ranges::stable_sort(tasks, {}, &Task::missing);
  for (const Task& task : tasks) {
    culprit_->Set(step.items_[task.item].lateness, step.round_);
    ComputeItem(step, task.item, task.grammar);
    culprit_->Set(nullptr);
  }
  return left;
}

void ConstraintMasks::ComputeItem(StepMasks& step, std::size_t i,
                                  const std::shared_ptr<const Grammar>& grammar) {
  const StepMasks::Item& item = step.items_[i];
  if (step.IsLateForGood(item)) {
    item.lateness->is_over = true;
    step.Refuse(i, absl::DeadlineExceededError("The grammar's masks take too long"));
    return;
  }
  const absl::StatusOr<Matchers::Place*> place =
      matchers_.MoveTo(item.sequence, grammar, item.outputs);
  if (!place.ok()) {
    step.Refuse(i, place.status());
    return;
  }
  const absl::Span<const std::uint32_t> mask = (*place)->Mask();
  if (mask.empty()) {
    step.Refuse(
        i, absl::NotFoundError("The grammar allows no token of the vocabulary here, and no end"));
    return;
  }
  std::ranges::copy(mask, step.Row(i, 0).begin());
  step.AddReady(i);
  GrammarMatcher& matcher = (*place)->matcher();
  std::size_t accepted = 0;
  for (std::size_t row = 1; row <= item.drafts.size(); ++row) {
    const bool follows = accepted == row - 1 && matcher.Accept(item.drafts[row - 1]);
    if (follows) {
      ++accepted;
      matcher.Fill(step.Row(i, row));
    } else {
      std::ranges::fill(step.Row(i, row), 0);
    }
    step.AddReady(i);
  }
  matcher.Rollback(accepted);
}

}  // namespace flotilla::worker
