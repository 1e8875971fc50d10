#include "worker/compute/cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/weight_kind.h"
#include "kernels/packed_matrix.h"

namespace flotilla::worker {
namespace {

using kernels::cuda::Matrix;

constexpr std::size_t kStageBytes = std::size_t{8} << 20;

}  // namespace

absl::StatusOr<const Matrix*> DeviceWeights::Add(std::vector<MatrixPart> parts, std::int64_t k,
                                                 std::vector<WeightPacker::Segment> segments,
                                                 absl::Span<const std::int32_t> split_ends) {
  const WeightEncoding encoding = parts.front().encoding();
  const auto packed = kernels::KindFor(encoding);
  if (!packed.ok()) return packed.status();
  const auto kind = kernels::cuda::WeightKindOf(*packed);
  if (!kind.has_value()) {
    return absl::UnimplementedError(absl::StrCat(
        std::string(parts.front().tensor->name),
        ": GPUs do not multiply weights of this format yet; they multiply F32, F16, BF16, Q4_0, "
        "Q4_1 and Q8_0. --device cpu serves this model."));
  }
  std::int64_t columns = 0;
  for (const MatrixPart& part : parts) columns += part.count();
  const std::int64_t whole = (k + kernels::kBlockK - 1) / kernels::kBlockK * kernels::kBlockK;
  Matrix& matrix = matrices_.emplace_back(
      Matrix{.kind = *kind,
             .columns = static_cast<int>(columns),
             .k = static_cast<int>(whole),
             .split_count = static_cast<int>(std::max<std::size_t>(split_ends.size(), 1))});
  listed_.push_back({.parts = std::move(parts),
                     .k = k,
                     .segments = std::move(segments),
                     .split_ends = {split_ends.begin(), split_ends.end()},
                     .matrix = &matrix});
  return &matrix;
}

absl::Status DeviceWeights::Load(ThreadPool& pool, LoadProgress* progress,
                                 model::PageReleaser* pages) {
  for (Stage& stage : stages_) {
    auto memory = device_.AllocatePinned(kStageBytes);
    if (!memory.ok()) return memory.status();
    stage.memory = *std::move(memory);
  }
  if (progress != nullptr) {
    std::uint64_t bytes = 0;
    for (const Listed& listed : listed_) {
      for (const MatrixPart& part : listed.parts) {
        const std::uint64_t outputs = part.tensor->dims[part.transposed ? 0 : 1];
        bytes += part.tensor->bytes() / std::max<std::uint64_t>(outputs, 1) * part.rows.size();
      }
    }
    progress->Begin(LoadPhase::kWeights, bytes);
  }
  for (Listed& listed : listed_) {
    const absl::Status status = LoadOne(listed, pool, progress, pages);
    if (!status.ok()) return status;
  }
  listed_.clear();
  for (Stage& stage : stages_) {
    if (stage.done == 0) continue;
    const absl::Status status = device_.Synchronize(std::exchange(stage.done, 0));
    if (!status.ok()) return status;
  }
  for (Stage& stage : stages_) stage.memory = {};
  return absl::OkStatus();
}

absl::Status DeviceWeights::LoadOne(const Listed& listed, ThreadPool& pool, LoadProgress* progress,
                                    model::PageReleaser* pages) {
  WeightPacker packer;
  const auto packed = listed.segments.empty()
                          ? packer.Add(listed.parts, listed.k)
                          : packer.Add(listed.parts, listed.k, listed.segments, listed.split_ends);
  if (!packed.ok()) return packed.status();
  if (absl::Status status = packer.Pack(pool, progress, pages); !status.ok()) return status;
  const kernels::MatrixView view = (*packed)->view();
  const auto panels = Copy(view.panels_begin, static_cast<std::size_t>((*packed)->panel_bytes()));
  if (!panels.ok()) return panels.status();
  const auto ends = Copy(reinterpret_cast<const std::byte*>(view.split_ends),
                         static_cast<std::size_t>(view.split_count) * sizeof *view.split_ends);
  if (!ends.ok()) return ends.status();
  listed.matrix->panels = *panels;
  listed.matrix->panel_bytes = view.panel_bytes;
  listed.matrix->split_ends = reinterpret_cast<const std::int32_t*>(*ends);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> DeviceWeights::Copy(const std::byte* from, std::size_t bytes) {
  auto memory = device_.Allocate(bytes);
  if (!memory.ok()) return memory.status();
  for (std::size_t at = 0; at < bytes; at += kStageBytes) {
    Stage& stage = stages_[next_stage_];
    next_stage_ = 1 - next_stage_;
    if (stage.done != 0) {
      const absl::Status status = device_.Synchronize(std::exchange(stage.done, 0));
      if (!status.ok()) return status;
    }
    const std::size_t count = std::min(kStageBytes, bytes - at);
    std::memcpy(stage.memory.data(), from + at, count);
    device_.Upload(Device::Queue::kCompute, memory->data() + at, stage.memory.data(), count);
    stage.done = device_.Record(Device::Queue::kCompute);
  }
  bytes_ += static_cast<std::int64_t>(bytes);
  memory_.push_back(*std::move(memory));
  return memory_.back().data();
}

}  // namespace flotilla::worker
