#include "worker/compute/host/split_weights.h"

#include <algorithm>

namespace flotilla::worker {
namespace {

// Registers of a tree over kMaxSplits splits, of columns that stay in L1.
constexpr int kTreeDepth = 10;
constexpr std::int64_t kTreeColumns = 256;
static_assert(kernels::kMaxSplits < 1 << (kTreeDepth - 1));

}  // namespace

SplitWeights WeightsOfSplits(const ProjectionSource& source, absl::Span<const SplitPlace> places,
                             IndexRange range) {
  const auto inputs = static_cast<std::int64_t>(source.tensor->dims[source.transposed ? 1 : 0]);
  SplitWeights weights{.part = {.tensor = source.tensor,
                                .rows = {0, static_cast<std::uint32_t>(
                                                source.tensor->dims[source.transposed ? 0 : 1])},
                                .map = {},
                                .transposed = source.transposed},
                       .segments = {},
                       .ends = {}};
  const std::int32_t at = places[range.begin].at;
  std::vector<WeightPacker::Segment>& segments = weights.segments;
  for (std::uint32_t split = range.begin; split < range.end; ++split) {
    const SplitPlace& place = places[split];
    weights.ends.push_back(place.at + place.width - at);
    // The last blocks of a row may not be whole.
    const std::int64_t first = place.first();
    const std::int64_t count = std::min<std::int64_t>(place.width, inputs - first);
    if (!segments.empty() && segments.back().first + segments.back().count == first) {
      segments.back().count += count;
    } else {
      segments.push_back({.first = first, .count = count, .at = place.at - at});
    }
  }
  return weights;
}

void AddParts(const kernels::Ops& ops, const SumTree& tree, absl::Span<const float* const> parts,
              std::int64_t rows, std::int64_t hidden, std::int64_t begin, std::int64_t end,
              bool accumulate, float* out) {
  float registers[kTreeDepth][kTreeColumns];
  for (std::int64_t at = begin * hidden; at < end * hidden; at += kTreeColumns) {
    const std::int64_t n = std::min(kTreeColumns, end * hidden - at);
    for (const TreeStep& step : tree.program.steps) {
      if (step.load) {
        const SumTree::Part& part = tree.parts[step.from];
        std::copy_n(parts[part.rank] + part.place * rows * hidden + at, n, registers[step.to]);
      } else {
        ops.add(registers[step.to + 1], registers[step.to], n);
      }
    }
    if (accumulate) {
      ops.add(registers[0], out + at, n);
    } else {
      std::copy_n(registers[0], n, out + at);
    }
  }
}

}  // namespace flotilla::worker
