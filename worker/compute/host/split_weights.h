// What backends share about products whose sums ranks share (Backend::AddProjection): which weights
// of a tensor a range of splits has, and how the parts of all ranks are added.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/compute/backend.h"
#include "worker/compute/host/weight_packer.h"
#include "worker/core/sharding.h"
#include "worker/core/split_layout.h"

namespace flotilla::worker {

// The weights of splits [range.begin, range.end) of a product, as WeightPacker::Add takes them.
struct SplitWeights {
  MatrixPart part;
  std::vector<WeightPacker::Segment> segments;
  std::vector<std::int32_t> ends;  // of the splits

  std::int64_t k() const { return ends.back(); }
};
SplitWeights WeightsOfSplits(const ProjectionSource& source, absl::Span<const SplitPlace> places,
                             IndexRange range);

// Adds what all ranks have exchanged, `parts`, to rows [begin, end) of `out`, or puts it there.
// Rows of `out` and of parts have `hidden` floats, and a part has `rows` of them.
void AddParts(const kernels::Ops& ops, const SumTree& tree, absl::Span<const float* const> parts,
              std::int64_t rows, std::int64_t hidden, std::int64_t begin, std::int64_t end,
              bool accumulate, float* out);

}  // namespace flotilla::worker
