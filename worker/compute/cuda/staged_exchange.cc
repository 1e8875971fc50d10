#include "worker/compute/cuda/staged_exchange.h"

#include <algorithm>
#include <utility>

#include "worker/compute/host/split_weights.h"

namespace flotilla::worker {
namespace {

using Queue = Device::Queue;

std::size_t FloatBytes(std::int64_t floats) {
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace

absl::Status StagedExchange::Reserve(const SumTree& tree, std::int64_t rows, std::int64_t columns) {
  const std::size_t sum = FloatBytes(rows * columns);
  const std::size_t parts = FloatBytes(rows * columns * PartsOf(tree, rank_));
  if (total_.bytes() < sum) {
    auto total = device_.Allocate(sum);
    if (!total.ok()) return total.status();
    auto staged = device_.AllocatePinned(sum);
    if (!staged.ok()) return staged.status();
    total_ = *std::move(total);
    staged_total_ = *std::move(staged);
  }
  if (staged_parts_.bytes() < parts) {
    auto staged = device_.AllocatePinned(parts);
    if (!staged.ok()) return staged.status();
    staged_parts_ = *std::move(staged);
  }
  return absl::OkStatus();
}

absl::Status StagedExchange::Fetch(const float* from, std::int64_t count, float* to) {
  device_.Download(Queue::kCompute, to, from, FloatBytes(count));
  return device_.Synchronize(device_.Record(Queue::kCompute));
}

// The sums go through the host to the other ranks, and the host adds those of all. The memory for
// that is free again: Fetch has waited for all that used it.
absl::StatusOr<const float*> StagedExchange::Sum(const SumTree& tree, const float* parts,
                                                 std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = PartsOf(tree, rank_) * rows * columns;
  auto* const own = staged_parts_.as<float>();
  auto* const total = staged_total_.as<float>();
  if (absl::Status status = Fetch(parts, count, own); !status.ok()) return status;
  std::copy_n(own, count, exchange_.Partials());
  const auto all = exchange_.SharePartials(count);
  pool_.ParallelFor(rows, [&](std::int64_t begin, std::int64_t end) {
    AddParts(ops_, tree, all, rows, columns, begin, end, /*accumulate=*/false, total);
  });
  device_.Upload(Queue::kCompute, total_.data(), total, FloatBytes(rows * columns));
  return total_.as<float>();
}

absl::Status StagedExchange::SendResidual(const float* data, std::int64_t count, Arena& pinned) {
  auto* const staged = pinned.Take<float>(static_cast<std::size_t>(count));
  if (staged == nullptr) return pinned.status();
  const absl::Status status = Fetch(data, count, staged);
  if (status.ok()) exchange_.SendResidual(staged, count);
  return status;
}

absl::Status StagedExchange::ReceiveResidual(float* data, std::int64_t count, Arena& pinned) {
  auto* const staged = pinned.Take<float>(static_cast<std::size_t>(count));
  if (staged == nullptr) return pinned.status();
  exchange_.ReceiveResidual(staged, count);
  device_.Upload(Queue::kCompute, data, staged, FloatBytes(count));
  return absl::OkStatus();
}

}  // namespace flotilla::worker
