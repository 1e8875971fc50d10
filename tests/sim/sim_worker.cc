#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_random.h"

namespace flotilla {
namespace {

// What the model writes at each position of a request below `end`: a function of
// the tokens so far and, so that scopes that share a block are caught, of its scope.
std::vector<std::uint64_t> Written(const SimClient& client, std::uint32_t end) {
  std::uint64_t hash = SimMix(std::hash<std::string>()(client.request().tenant) ^
                              3 * std::hash<std::string>()(client.request().cache_salt));
  std::vector<std::uint64_t> all;
  for (std::uint32_t position = 0; position < end; ++position) {
    hash = SimMix(hash ^ (static_cast<std::uint64_t>(client.TokenAt(position)) + 1));
    all.push_back(hash);
  }
  return all;
}

}  // namespace

SimWorker::SimWorker(Epoch epoch, const ExecutorDescription& description, FindClient find_client)
    : lag_(description.lag),
      block_tokens_(description.groups[0].tokens_per_block),
      find_client_(std::move(find_client)),
      state_(epoch, description),
      kv_(std::size_t{description.block_count} * block_tokens_),
      tables_naming_(description.block_count) {}

// A block is granted to one branch at a time, but for those that an OpenBranch
// says are cached: they may be in other tables too.
absl::Status SimWorker::TrackBlocks(const StepPlan& plan) {
  for (const PlanOp& op : plan.ops) {
    if (const auto* drop = std::get_if<DropBranch>(&op)) {
      for (const BlockId block : blocks_of_[drop->branch]) --tables_naming_[block.value()];
      blocks_of_.erase(drop->branch);
    } else if (const auto* open = std::get_if<OpenBranch>(&op)) {
      cached_blocks_left_[open->branch] = open->cached_tokens / block_tokens_;
    } else if (const auto* grant = std::get_if<GrantBlocks>(&op)) {
      std::uint32_t& cached = cached_blocks_left_[grant->branch];
      for (const BlockId block : grant->blocks) {
        if (cached > 0) {
          --cached;
        } else if (tables_naming_[block.value()] > 0) {
          return absl::InternalError(
              absl::StrCat("invariant 6: block ", block.value(), " granted while it is in use"));
        }
        ++tables_naming_[block.value()];
        blocks_of_[grant->branch].push_back(block);
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
  // All writes before all reads, as executors promise.
  for (std::size_t i = 0; i < batch->items.size(); ++i) {
    if (absl::Status s = WriteItem(*batch, i); !s.ok()) return s;
  }
  for (std::size_t i = 0; i < batch->items.size(); ++i) {
    if (absl::Status s = ReadItem(*batch, i, work.outputs[i]); !s.ok()) return s;
  }
  computing_.push_back(std::move(work));
  return absl::OkStatus();
}

std::size_t SimWorker::SlotOf(const Batch& batch, std::size_t item, std::uint32_t position) const {
  const std::int32_t block = batch.table(item, GroupIndex(0))[position / block_tokens_];
  return static_cast<std::size_t>(block) * block_tokens_ + position % block_tokens_;
}

absl::Status SimWorker::WriteItem(const Batch& batch, std::size_t item) {
  const BatchItem& rows = batch.items[item];
  const SimClient& client = find_client_(state_.View(rows.branch)->request);
  const std::uint32_t end = rows.first_position + rows.row_count;
  const std::vector<std::uint64_t> written = Written(client, end);
  for (std::uint32_t position = rows.first_position; position < end; ++position) {
    const TokenId token = batch.tokens[rows.row_begin + position - rows.first_position];
    if (token != client.TokenAt(position)) return absl::InternalError("a row has a wrong token");
    kv_[SlotOf(batch, item, position)] = written[position];
  }
  return absl::OkStatus();
}

absl::Status SimWorker::ReadItem(const Batch& batch, std::size_t item, ItemOutput& output) const {
  const BatchItem& rows = batch.items[item];
  const SimClient& client = find_client_(state_.View(rows.branch)->request);
  const std::uint64_t seed = client.request().sampling.seed;
  const std::uint32_t end = rows.first_position + rows.row_count;
  const std::vector<std::uint64_t> written = Written(client, end);
  for (std::uint32_t position = 0; position < end; ++position) {
    if (kv_[SlotOf(batch, item, position)] != written[position]) {
      return absl::InternalError(absl::StrCat("KV of request ", client.request().id.counter,
                                              " position ", position, " is not its own"));
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
