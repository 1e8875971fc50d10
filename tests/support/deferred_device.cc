// This part of Device adds and loads what a step needs, before the first step.
#include "tests/support/deferred_device.h"

#include <unistd.h>

#include <numeric>

#include "absl/strings/str_cat.h"

namespace flotilla::testing {

absl::Status CheckMemory(const worker::KvShape& shape, std::uint32_t blocks) {
  if (shape.open_bytes > 0) return absl::UnimplementedError("K and V by runs");
  std::int64_t bytes;
  if (__builtin_mul_overflow(shape.bytes_per_block(), std::int64_t{blocks}, &bytes) ||
      bytes > std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(blocks, " blocks of KV are more than the machine's memory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<MatrixHandle> DeferredBackend::Device::AddMatrix(
    std::vector<worker::MatrixPart> parts, std::vector<float> bias) {
  auto weights = MixedWeights::Create(std::move(parts));
  if (!weights.ok()) return weights.status();
  if (!bias.empty() && static_cast<std::int64_t>(bias.size()) != weights->columns()) {
    return Misfit("the bias of a matrix");
  }
  return Keep<MatrixHandle>(matrices_,
                            Matrix{.weights = *std::move(weights), .bias = std::move(bias)});
}

absl::StatusOr<HeadMatricesHandle> DeferredBackend::Device::AddHeadMatrices(
    std::vector<worker::MatrixPart> parts) {
  HeadMatrices matrices;
  for (worker::MatrixPart& part : parts) {
    auto weights = Weights::Create({part});
    if (!weights.ok()) return weights.status();
    matrices.push_back(*std::move(weights));
    if (matrices.back().k() != matrices.front().k() ||
        matrices.back().columns() != matrices.front().columns()) {
      return Misfit("the matrices of heads");
    }
  }
  if (matrices.empty()) return Misfit("the matrices of no heads");
  return Keep<HeadMatricesHandle>(head_matrices_, std::move(matrices));
}

absl::StatusOr<ProjectionHandle> DeferredBackend::Device::AddProjection(
    const worker::ProjectionSource& source) {
  const auto all = static_cast<std::uint32_t>(source.split_ends.size());
  if (source.splits.size() != options_.tensor_ranks) return Misfit("splits are not those of ranks");
  const worker::IndexRange own = source.splits[options_.tensor_rank];
  if (own.begin >= own.end || own.end > all) return Misfit("this rank has no splits");
  const std::vector<worker::SplitPlace> places = worker::PlaceSplits(source.split_ends);
  const std::int32_t own_at = places[own.begin].at;
  Projection projection;
  projection.inputs = places[own.end - 1].at + places[own.end - 1].width - own_at;
  projection.columns = static_cast<std::int64_t>(source.tensor->dims[source.transposed ? 0 : 1]);
  projection.bias = source.bias;
  projection.tree = worker::MakeSumTree(source.splits, all);
  if (!source.bias.empty() && static_cast<std::int64_t>(source.bias.size()) != projection.columns) {
    return Misfit("the bias of a projection");
  }
  for (const worker::IndexRange& subtree : worker::SubtreesOf(own, all)) {
    auto weights = Weights::Create({{.tensor = source.tensor,
                                     .rows = {0, static_cast<std::uint32_t>(projection.columns)},
                                     .map = {},
                                     .transposed = source.transposed}},
                                   {places.begin() + subtree.begin, places.begin() + subtree.end});
    if (!weights.ok()) return weights.status();
    projection.products.push_back(
        {.first_k = places[subtree.begin].at - own_at, .weights = *std::move(weights)});
  }
  return Keep<ProjectionHandle>(projections_, std::move(projection));
}

absl::StatusOr<ExpertsHandle> DeferredBackend::Device::AddExperts(
    const worker::ExpertsSource& source) {
  Experts experts;
  experts.spec = source.spec;
  experts.router_bias = source.router_bias;
  experts.choice_bias = source.choice_bias;
  auto router = Weights::Create({source.router});
  if (!router.ok()) return router.status();
  experts.router = *std::move(router);
  experts.hidden = experts.router.k();
  if (source.shared_router.has_value()) {
    auto shared = Weights::Create({*source.shared_router});
    if (!shared.ok()) return shared.status();
    experts.shared_router = *std::move(shared);
  }
  if (source.experts.size() != source.spec.experts ||
      experts.router.columns() != static_cast<std::int64_t>(source.experts.size())) {
    return Misfit("the number of experts");
  }
  const worker::ProjectionSource& first = source.experts.front().down;
  if (first.splits.size() != options_.tensor_ranks) return Misfit("splits are not those of ranks");
  const auto all = static_cast<std::uint32_t>(first.split_ends.size());
  const worker::IndexRange own = first.splits[options_.tensor_rank];
  if (own.begin >= own.end || own.end > all) return Misfit("this rank has no splits");
  const std::vector<worker::SplitPlace> places = worker::PlaceSplits(first.split_ends);
  for (std::uint32_t split = own.begin; split < own.end; ++split) {
    experts.splits.push_back(places[split]);
    experts.splits.back().at -= places[own.begin].at;
  }
  experts.tree = worker::MakeSumTree(first.splits, all);
  experts.products = worker::MakeSplitPrograms(own, all);
  for (const worker::ExpertsSource::Expert& each : source.experts) {
    auto gate_up = Weights::Create(each.gate_up);
    if (!gate_up.ok()) return gate_up.status();
    if (!each.bias.empty() && static_cast<std::int64_t>(each.bias.size()) != gate_up->columns()) {
      return Misfit("the bias of an expert");
    }
    Experts::Expert& expert =
        experts.experts.emplace_back(Experts::Expert{.gate_up = *std::move(gate_up),
                                                     .bias = each.bias,
                                                     .down = {},
                                                     .down_bias = each.down.bias});
    const std::uint64_t outputs = each.down.tensor->dims[each.down.transposed ? 0 : 1];
    for (std::uint32_t split = own.begin; split < own.end; ++split) {
      auto down = Weights::Create({{.tensor = each.down.tensor,
                                    .rows = {0, static_cast<std::uint32_t>(outputs)},
                                    .map = {},
                                    .transposed = each.down.transposed}},
                                  {places[split]});
      if (!down.ok()) return down.status();
      expert.down.push_back(*std::move(down));
    }
  }
  return Keep<ExpertsHandle>(experts_, std::move(experts));
}

absl::StatusOr<HeadHandle> DeferredBackend::Device::AddHead(const worker::HeadSource& source) {
  HeadWeights head{.hidden = static_cast<std::int64_t>(source.part.tensor->dims[0]),
                   .vocabulary = source.vocabulary,
                   .shard = source.shard,
                   .weights = std::nullopt,
                   .bias = source.bias,
                   .factor = source.factor,
                   .softcap = source.softcap};
  if (source.part.rows.size() > 0) {
    auto weights = Weights::Create({source.part});
    if (!weights.ok()) return weights.status();
    head.weights = *std::move(weights);
  }
  const std::int64_t end = source.shard.first_token + head.tokens();
  const std::int64_t sum =
      std::accumulate(source.shard.subtrees.begin(), source.shard.subtrees.end(), std::int64_t{0});
  if (sum != head.tokens() || end > head.vocabulary || (alone() && sum != head.vocabulary)) {
    return Misfit("the head's rows are not the tokens of its shard");
  }
  return Keep<HeadHandle>(heads_, std::move(head));
}

absl::Status DeferredBackend::Device::Load() {
  absl::Status status;
  for (auto& [handle, matrix] : matrices_) status.Update(matrix.weights.Load());
  for (auto& [handle, matrices] : head_matrices_) {
    for (Weights& matrix : matrices) status.Update(matrix.Load());
  }
  for (auto& [handle, projection] : projections_) {
    for (SubtreeProduct& product : projection.products) status.Update(product.weights.Load());
  }
  for (auto& [handle, experts] : experts_) {
    status.Update(experts.router.Load());
    if (experts.shared_router.has_value()) status.Update(experts.shared_router->Load());
    for (Experts::Expert& expert : experts.experts) {
      status.Update(expert.gate_up.Load());
      for (Weights& down : expert.down) status.Update(down.Load());
    }
  }
  for (auto& [handle, head] : heads_) {
    if (head.weights.has_value()) status.Update(head.weights->Load());
  }
  return status;
}

absl::Status DeferredBackend::Device::CreateKv(const worker::KvShape& shape, std::uint32_t blocks,
                                               std::size_t tiers) {
  if (absl::Status s = CheckMemory(shape, blocks); !s.ok()) return s;
  kv_shape_ = shape;
  block_count_ = blocks;
  slots_.resize(tiers);
  return absl::OkStatus();
}

std::int64_t DeferredBackend::Device::weight_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [handle, matrix] : matrices_) bytes += matrix.weights.bytes();
  for (const auto& [handle, matrices] : head_matrices_) {
    for (const Weights& matrix : matrices) bytes += matrix.bytes();
  }
  for (const auto& [handle, projection] : projections_) {
    for (const SubtreeProduct& product : projection.products) bytes += product.weights.bytes();
  }
  for (const auto& [handle, experts] : experts_) {
    bytes += experts.router.bytes();
    for (const Experts::Expert& expert : experts.experts) {
      bytes += expert.gate_up.bytes();
      for (const Weights& down : expert.down) bytes += down.bytes();
    }
  }
  for (const auto& [handle, head] : heads_) {
    if (head.weights.has_value()) bytes += head.weights->bytes();
  }
  return bytes;
}

std::int64_t DeferredBackend::Device::buffer_bytes() const {
  std::int64_t floats = 0;
  for (const auto& [handle, buffer] : buffers_) {
    floats += (buffer.width + kRowPadding) * options_.max_rows;
  }
  return floats * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace flotilla::testing
