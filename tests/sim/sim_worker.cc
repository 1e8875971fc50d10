#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_random.h"

namespace flotilla {
namespace {

std::uint64_t Written(std::uint64_t seed, std::uint32_t position, TokenId token) {
  return SimMix(seed ^ SimMix((std::uint64_t{position} << 32) + static_cast<std::uint64_t>(token)));
}

}  // namespace

SimWorker::SimWorker(Epoch epoch, const ExecutorDescription& description, FindClient find_client)
    : lag_(description.lag),
      block_tokens_(description.groups[0].tokens_per_block),
      find_client_(std::move(find_client)),
      state_(epoch, description),
      kv_(std::size_t{description.block_count} * block_tokens_),
      owner_(description.block_count),
      owned_(description.block_count) {}

// Nothing is shared yet: a block belongs to one branch from grant to drop.
absl::Status SimWorker::TrackBlocks(const StepPlan& plan) {
  for (const PlanOp& op : plan.ops) {
    if (const auto* drop = std::get_if<DropBranch>(&op)) {
      for (std::size_t block = 0; block < owned_.size(); ++block) {
        if (owned_[block] && owner_[block] == drop->branch) owned_[block] = false;
      }
    } else if (const auto* grant = std::get_if<GrantBlocks>(&op)) {
      for (const BlockId block : grant->blocks) {
        if (owned_[block.value()]) {
          return absl::InternalError(
              absl::StrCat("invariant 6: block ", block.value(), " granted while it is in use"));
        }
        owned_[block.value()] = true;
        owner_[block.value()] = grant->branch;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SimWorker::Apply(const StepPlan& plan) {
  if (absl::Status s = TrackBlocks(plan); !s.ok()) return s;
  absl::StatusOr<Batch> batch = state_.Apply(plan);
  if (!batch.ok()) return batch.status();
  Computing work{.step = plan.step, .outputs = std::vector<ItemOutput>(batch->items.size())};
  for (std::size_t i = 0; i < batch->items.size(); ++i) {
    if (absl::Status s = RunItem(*batch, i, work.outputs[i]); !s.ok()) return s;
  }
  computing_.push_back(std::move(work));
  return absl::OkStatus();
}

absl::Status SimWorker::RunItem(const Batch& batch, std::size_t item, ItemOutput& output) {
  const BatchItem& rows = batch.items[item];
  const SimClient& client = find_client_(state_.View(rows.branch)->request);
  const std::uint64_t seed = client.request().sampling.seed;
  const absl::Span<const std::int32_t> table = batch.table(item, GroupIndex(0));
  const auto slot = [&](std::uint32_t position) -> std::uint64_t& {
    const std::int32_t block = table[position / block_tokens_];
    return kv_[static_cast<std::size_t>(block) * block_tokens_ + position % block_tokens_];
  };
  const std::uint32_t end = rows.first_position + rows.row_count;
  for (std::uint32_t position = rows.first_position; position < end; ++position) {
    const TokenId token = batch.tokens[rows.row_begin + position - rows.first_position];
    if (token != client.TokenAt(position)) return absl::InternalError("a row has a wrong token");
    slot(position) = Written(seed, position, token);
  }
  for (std::uint32_t position = 0; position < end; ++position) {
    if (slot(position) != Written(seed, position, client.TokenAt(position))) {
      return absl::InternalError(absl::StrCat("KV of request ", client.request().id.counter,
                                              " position ", position, " was overwritten"));
    }
  }
  if (rows.samples) {
    output.sampled = SampledToken{.token = SimToken(seed, rows.output_index)};
  }
  std::uint32_t index = rows.first_position + 1;
  for (const TokenId token : rows.prompt_targets) {
    output.prompt.push_back({.token = token, .logprob = SimPromptLogprob(seed, index++, token)});
  }
  return absl::OkStatus();
}

absl::StatusOr<SimResult> SimWorker::Complete() {
  const Computing work = std::move(computing_.front());
  computing_.pop_front();
  absl::StatusOr<StepResult> result = state_.Complete(work.step, work.outputs);
  if (!result.ok()) return result.status();
  SimResult out{.result = *std::move(result), .marks = {}};
  for (const BranchResult& branch : out.result.branches) {
    const std::optional<BranchView> view = state_.View(branch.branch);
    if (!view.has_value()) continue;  // dropped by a plan applied meanwhile
    out.marks.push_back({.branch = branch.branch,
                         .request = view->request,
                         .length = branch.length,
                         .tokens = view->tokens.size(),
                         .finished = view->finished.has_value()});
  }
  return out;
}

}  // namespace flotilla
