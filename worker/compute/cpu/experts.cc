// The mixtures of experts of CpuBackend. The rows of a step are sorted by expert, so that each
// expert multiplies all of its rows at once; a row that goes through two experts is there twice.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/scalar_math.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/host/split_weights.h"

namespace flotilla::worker {
namespace {

using kernels::kBlockK;
using kernels::kPanelColumns;
using kernels::kSumSpan;
using kernels::MatrixView;
using kernels::PackedMatrix;

// One panel of the matrix, of the inputs of one split only.
MatrixView SplitOf(const MatrixView& matrix, const SplitPlace& split, int panel) {
  MatrixView view = matrix.From(panel, split.at / kBlockK);
  view.columns = std::min(matrix.columns - panel * kPanelColumns, kPanelColumns);
  view.k = split.width;
  view.split_count = 1;
  view.split_ends = &split.width;
  return view;
}

}  // namespace

absl::StatusOr<ExpertsHandle> CpuBackend::AddExperts(const ExpertsSource& source) {
  NoteMove();
  Experts experts;
  experts.spec = source.spec;
  experts.router_bias = source.router_bias;
  experts.choice_bias = source.choice_bias;
  const auto hidden = static_cast<int64_t>(source.router.tensor->dims[0]);
  const auto router = packer_.Add({source.router}, hidden);
  if (!router.ok()) return router.status();
  experts.router = *router;
  experts.shared_router = nullptr;
  if (source.shared_router.has_value()) {
    const auto shared = packer_.Add({*source.shared_router}, hidden);
    if (!shared.ok()) return shared.status();
    experts.shared_router = *shared;
  }
  const ProjectionSource& down = source.experts.front().down;
  const IndexRange own = down.splits[options_.tensor_rank];
  const std::vector<SplitPlace> places = PlaceSplits(down.split_ends);
  for (uint32_t split = own.begin; split < own.end; ++split) {
    experts.splits.push_back(places[split]);
    experts.splits.back().at -= places[own.begin].at;
  }
  experts.inputs = experts.splits.back().at + experts.splits.back().width;
  const auto all = static_cast<uint32_t>(down.split_ends.size());
  experts.products = MakeSplitPrograms(own, all);
  if (!alone()) experts.tree = MakeSumTree(down.splits, all);
  for (const ExpertsSource::Expert& each : source.experts) {
    std::vector<MatrixPart> parts = each.gate_up;
    FollowActivations(parts, /*equal=*/true);
    const auto gate_up = packer_.Add(std::move(parts), hidden);
    if (!gate_up.ok()) return gate_up.status();
    SplitWeights weights = WeightsOfSplits(each.down, places, own);
    weights.part.fast = options_.recipe == Recipe::kFast;
    const auto packed =
        packer_.Add({weights.part}, weights.k(), std::move(weights.segments), weights.ends);
    if (!packed.ok()) return packed.status();
    experts.experts.push_back(
        {.gate_up = *gate_up, .bias = each.bias, .down = *packed, .down_bias = each.down.bias});
  }
  ReserveRouting(experts, hidden);
  experts_.push_back(std::move(experts));
  return ExpertsHandle(static_cast<int32_t>(experts_.size() - 1));
}

void CpuBackend::ReserveRouting(const Experts& experts, int64_t hidden) {
  const auto grow = [](auto& buffer, int64_t size) {
    if (buffer.size() < size) buffer = std::decay_t<decltype(buffer)>(size);
  };
  const int64_t rows = options_.max_rows, pairs = rows * experts.spec.chosen;
  const int64_t widest = std::max(hidden, experts.inputs);
  const auto count = static_cast<size_t>(experts.spec.experts);
  routing_.begins.resize(std::max(routing_.begins.size(), count + 1));
  routing_.places.resize(std::max(routing_.places.size(), count));
  routing_.used.reserve(count);
  routing_.rows.resize(std::max(routing_.rows.size(), static_cast<size_t>(pairs)));
  grow(routing_.ids, pairs);
  grow(routing_.row_weights, pairs);
  grow(routing_.weights, pairs);
  grow(routing_.logits, rows * experts.spec.experts);
  grow(routing_.shared, rows);
  grow(routing_.x, pairs * hidden);
  if (options_.recipe != Recipe::kFp32) {
    grow(routing_.values, pairs * widest);
    grow(routing_.group_sums, pairs * widest / kSumSpan);
    grow(routing_.scales, pairs * static_cast<int64_t>(experts.splits.size()));
    // Rows that are quantised before they are copied.
    widest_ = std::max(widest_, hidden);
  }
  uint32_t depth = 0;
  for (const TreeProgram& program : experts.products) depth = std::max(depth, program.depth);
  if (routing_.scratch.empty()) {
    routing_.scratch.resize(static_cast<size_t>(pool_.threads()));
    routing_.taken = std::vector<std::atomic<bool>>(routing_.scratch.size());
  }
  for (AlignedBuffer<float>& scratch : routing_.scratch) {
    grow(scratch, (depth + 1) * rows * kPanelColumns);
  }
}

void CpuBackend::RouteRows(BufferHandle in, const std::optional<NormOp>& norm, ExpertsHandle handle,
                           BufferHandle to) {
  NoteMove();
  const Experts& experts = experts_[handle.index()];
  const Buffer& x = At(in);
  Buffer& out = At(to);
  ForRows(rows(), x.width, [&](int64_t begin, int64_t end) {
    if (norm.has_value()) {
      NormRows(*norm, x.data.data(), x.width, static_cast<int>(x.width), out.data.data(), out.width,
               begin, end);
    } else {
      std::copy(x.data.data() + begin * x.width, x.data.data() + end * x.width,
                out.data.data() + begin * x.width);
    }
  });
  const auto logits = [&](const PackedMatrix& matrix, float* to_logits) {
    pool_.ParallelFor(matrix.view().panels(), [&](int64_t begin, int64_t end) {
      ops_.matmul_f32({.weights = matrix.view(),
                       .x = out.data.data(),
                       .x_stride = out.width,
                       .rows = rows(),
                       .out = to_logits,
                       .out_stride = matrix.columns()},
                      static_cast<int>(begin), static_cast<int>(end));
    });
  };
  const int64_t count = experts.spec.experts;
  logits(*experts.router, routing_.logits.data());
  if (experts.shared_router != nullptr) logits(*experts.shared_router, routing_.shared.data());
  const kernels::ChooseExpertsArgs choose{
      .logits = routing_.logits.data(),
      .stride = count,
      .experts = static_cast<int>(count),
      .chosen = static_cast<int>(experts.spec.chosen),
      .scores = experts.spec.scores,
      .bias = experts.choice_bias.empty() ? nullptr : experts.choice_bias.data(),
      .groups = static_cast<int>(experts.spec.groups),
      .kept_groups = static_cast<int>(experts.spec.kept_groups),
      .group_pairs = experts.spec.group_pairs,
      .normalised = experts.spec.normalised,
      .factor = experts.spec.factor,
      .ids = routing_.ids.data(),
      .weights = routing_.row_weights.data()};
  ForRows(rows(), count * experts.spec.chosen, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end && !experts.router_bias.empty(); ++r) {
      ops_.add(experts.router_bias.data(), routing_.logits.data() + r * count, count);
    }
    ops_.choose_experts(choose, static_cast<int>(begin), static_cast<int>(end));
  });
  SortRows(experts);
}

void CpuBackend::SortRows(const Experts& experts) {
  const int64_t chosen = experts.spec.chosen, count = experts.spec.experts;
  Routing& to = routing_;
  std::fill_n(to.begins.begin(), count + 1, 0);
  for (int64_t i = 0; i < rows() * chosen; ++i) ++to.begins[to.ids.data()[i] + 1];
  to.used.clear();
  for (int64_t i = 0; i < count; ++i) {
    if (to.begins[i + 1] > 0) to.used.push_back(static_cast<int32_t>(i));
    to.begins[i + 1] += to.begins[i];
    to.places[i] = to.begins[i];
  }
  for (int64_t i = 0; i < rows() * chosen; ++i) {
    const int32_t place = to.places[to.ids.data()[i]]++;
    to.rows[place] = static_cast<int32_t>(i / chosen);
    to.weights.data()[place] = to.row_weights.data()[i];
  }
}

void CpuBackend::GatherRows(const Experts& experts, const Buffer& x) {
  const int64_t hidden = x.width, sums = hidden / kSumSpan;
  Routing& to = routing_;
  // Rows of 16 bits are the same for all experts; those of 8 bits are made for each.
  bool quantized = false, bytes = false, plain = false;
  for (const int32_t expert : to.used) {
    const MatrixView matrix = experts.experts[expert].gate_up->view();
    (!Quantizes(matrix) ? plain : kernels::HasInt8Product(matrix.kind) ? bytes : quantized) = true;
  }
  const auto all = static_cast<int32_t>(hidden);
  const kernels::QuantizeArgs quantize{
      .x = x.data.data(),
      .x_stride = hidden,
      .k = all,
      .split_count = 1,
      .split_ends = &all,
      .out = {quantized_.data(), group_sums_.data(), scales_.data()}};
  if (quantized) {
    ForRows(rows(), hidden, [&](int64_t begin, int64_t end) {
      ops_.quantize_rows(quantize, static_cast<int>(begin), static_cast<int>(end));
    });
  }
  ForRows(Pairs(experts), hidden, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = to.rows[i];
      if (plain) std::copy_n(x.data.data() + row * hidden, hidden, to.x.data() + i * hidden);
      const MatrixView matrix =
          bytes ? experts.experts[to.ExpertOf(i)].gate_up->view() : MatrixView{};
      if (matrix.activations.kind != ActivationScheme::Kind::kNone) {
        ops_.quantize_rows({.x = x.data.data() + row * hidden,
                            .x_stride = hidden,
                            .k = all,
                            .split_count = 1,
                            .split_ends = &all,
                            .activations = matrix.activations,
                            .out = {to.values.data() + i * hidden, to.group_sums.data() + i * sums,
                                    to.scales.data() + i}},
                           0, 1);
        continue;
      }
      if (!quantized) continue;
      std::copy_n(quantized_.data() + row * hidden, hidden, to.values.data() + i * hidden);
      std::copy_n(group_sums_.data() + row * sums, sums, to.group_sums.data() + i * sums);
      to.scales.data()[i] = scales_.data()[row];
    }
  });
}

void CpuBackend::GateUpExperts(BufferHandle in, ExpertsHandle handle, const FfnOp& ffn,
                               BufferHandle to) {
  const Experts& experts = experts_[handle.index()];
  const Buffer& x = At(in);
  Buffer& out = At(to);
  GatherRows(experts, x);
  const int64_t hidden = x.width, out_width = out.width / experts.spec.chosen;
  const int64_t width = experts.experts.front().gate_up->columns() / (ffn.gated ? 2 : 1);
  const int64_t panels = Panels(width), chunks = (panels + kFusedPanels - 1) / kFusedPanels;
  const auto run = [&](int32_t expert, int64_t panel) {
    const Experts::Expert& weights = experts.experts[expert];
    const MatrixView matrix = weights.gate_up->view();
    const int64_t first = routing_.begins[expert], last = std::min(panel + kFusedPanels, panels);
    const int64_t column = panel * kPanelColumns;
    const int64_t count = std::min(last * kPanelColumns, width) - column;
    float* const rows_out = out.data.data() + first * out_width;
    const Product product{.matrix = matrix,
                          .x = routing_.x.data() + first * hidden,
                          .x_stride = hidden,
                          .out = rows_out,
                          .out_stride = out_width,
                          .rows = routing_.begins[expert + 1] - routing_.begins[expert]};
    const kernels::QuantizedRows quantized{routing_.values.data() + first * hidden,
                                           routing_.group_sums.data() + first * (hidden / kSumSpan),
                                           routing_.scales.data() + first};
    const auto multiply = [&](int64_t from) {
      const int64_t at = from * kPanelColumns;
      MatMul(product, quantized, from, from + last - panel);
      for (int r = 0; r < product.rows && !weights.bias.empty(); ++r) {
        ops_.add(weights.bias.data() + at, rows_out + r * out_width + at, count);
      }
    };
    multiply(panel);
    if (ffn.gated) multiply(panels + panel);
    float* const gate = rows_out + column;
    ops_.activate({.activation = ffn.activation,
                   .gate = gate,
                   .up = ffn.gated ? gate + width : nullptr,
                   .in_stride = out_width,
                   .n = static_cast<int>(count),
                   .out = gate,
                   .out_stride = out_width},
                  0, product.rows);
  };
  pool_.ParallelFor(static_cast<int64_t>(routing_.used.size()) * chunks,
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        run(routing_.used[i / chunks], i % chunks * kFusedPanels);
                      }
                    });
}

void CpuBackend::ScaleShared(ExpertsHandle /*experts*/, BufferHandle handle) {
  Buffer& x = At(handle);
  ForRows(rows(), x.width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float factor = 1.0f / (1.0f + kernels::Exp(-routing_.shared.data()[r]));
      ops_.scale(x.data.data() + r * x.width, factor, x.width);
    }
  });
}

void CpuBackend::QuantizeSplits(const Experts& experts, const float* x, int64_t x_stride) {
  const int64_t pairs = Pairs(experts);
  // Pairs [begin, end), whose experts have the same activations.
  const auto quantize = [&](const ActivationScheme& activations, int64_t begin, int64_t end) {
    for (size_t i = 0; i < experts.splits.size(); ++i) {
      const SplitPlace& split = experts.splits[i];
      ops_.quantize_rows({.x = x + split.at,
                          .x_stride = x_stride,
                          .k = split.width,
                          .split_count = 1,
                          .split_ends = &split.width,
                          .activations = activations,
                          .out = {routing_.values.data() + pairs * split.at,
                                  routing_.group_sums.data() + pairs * split.at / kSumSpan,
                                  routing_.scales.data() + pairs * static_cast<int64_t>(i)}},
                         static_cast<int>(begin), static_cast<int>(end));
    }
  };
  const auto down = [&](int32_t expert) { return experts.experts[expert].down->view(); };
  const bool any = std::any_of(routing_.used.begin(), routing_.used.end(),
                               [&](int32_t expert) { return Quantizes(down(expert)); });
  if (!any) return;
  ForRows(static_cast<int>(pairs), experts.inputs, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int32_t expert = routing_.ExpertOf(begin);
      int64_t last = std::min<int64_t>(end, routing_.begins[expert + 1]);
      while (last < end && down(routing_.ExpertOf(last)).activations == down(expert).activations) {
        last = std::min<int64_t>(end, routing_.begins[routing_.ExpertOf(last) + 1]);
      }
      quantize(down(expert).activations, begin, last);
      begin = last;
    }
  });
}

const float* CpuBackend::MixPanel(const Experts& experts, size_t product, int panel, const float* x,
                                  int64_t x_stride, float* scratch) {
  const int64_t pairs = Pairs(experts), size = int64_t{rows()} * kPanelColumns;
  // The last register is where a product goes.
  const TreeProgram& program = experts.products[product];
  float* const partials = scratch + program.depth * size;
  for (const TreeStep& step : program.steps) {
    float* const sums = scratch + step.to * size;
    if (!step.load) {
      ops_.add(sums + size, sums, size);
      continue;
    }
    std::fill_n(sums, size, 0.0f);
    const SplitPlace& split = experts.splits[step.from];
    for (const int32_t expert : routing_.used) {
      const int64_t first = routing_.begins[expert];
      const MatrixView matrix = SplitOf(experts.experts[expert].down->view(), split, panel);
      const Product part{.matrix = matrix,
                         .x = x + first * x_stride + split.at,
                         .x_stride = x_stride,
                         .out = partials,
                         .out_stride = kPanelColumns,
                         .rows = routing_.begins[expert + 1] - routing_.begins[expert]};
      const int64_t at = pairs * split.at + first * split.width;
      MatMul(part,
             {routing_.values.data() + at, routing_.group_sums.data() + at / kSumSpan,
              routing_.scales.data() + pairs * step.from + first},
             0, 1);
      for (int i = 0; i < part.rows; ++i) {
        ops_.add_scaled(partials + i * kPanelColumns, routing_.weights.data()[first + i],
                        sums + int64_t{routing_.rows[first + i]} * kPanelColumns, matrix.columns);
      }
    }
  }
  return scratch;
}

void CpuBackend::RunMixture(BufferHandle in, ExpertsHandle handle, bool accumulate,
                            BufferHandle to) {
  const Experts& experts = experts_[handle.index()];
  const Buffer& x = At(in);
  Buffer& out = At(to);
  const int64_t hidden = out.width, panels = Panels(hidden);
  const int64_t x_stride = x.width / experts.spec.chosen;
  const auto products = static_cast<int64_t>(experts.products.size());
  float* const outgoing = alone() ? nullptr : options_.exchange->Partials();
  QuantizeSplits(experts, x.data.data(), x_stride);
  pool_.ParallelFor(products * panels, [&](int64_t begin, int64_t end) {
    size_t mine = 0;
    while (routing_.taken[mine].exchange(true, std::memory_order_acquire)) {
      mine = (mine + 1) % routing_.taken.size();
    }
    for (int64_t i = begin; i < end; ++i) {
      const int64_t product = i / panels, panel = i % panels, column = panel * kPanelColumns;
      const int64_t count = std::min<int64_t>(kPanelColumns, hidden - column);
      const float* const sums =
          MixPanel(experts, static_cast<size_t>(product), static_cast<int>(panel), x.data.data(),
                   x_stride, routing_.scratch[mine].data());
      float* const base =
          (alone() ? out.data.data() : outgoing + product * rows() * hidden) + column;
      for (int64_t r = 0; r < rows(); ++r) {
        if (alone() && accumulate) {
          ops_.add(sums + r * kPanelColumns, base + r * hidden, count);
        } else {
          std::copy_n(sums + r * kPanelColumns, count, base + r * hidden);
        }
      }
    }
    routing_.taken[mine].store(false, std::memory_order_release);
  });
  if (!alone()) {
    const auto parts = options_.exchange->SharePartials(products * rows() * hidden);
    ForRows(rows(), hidden * static_cast<int64_t>(experts.tree.parts.size()),
            [&](int64_t begin, int64_t end) {
              AddParts(ops_, experts.tree, parts, rows(), hidden, begin, end, accumulate,
                       out.data.data());
            });
  }
  AddDownBiases(experts, out);
}

void CpuBackend::AddDownBiases(const Experts& experts, Buffer& out) {
  if (experts.experts.front().down_bias.empty()) return;
  const int64_t chosen = experts.spec.chosen;
  ForRows(rows(), out.width * chosen, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * chosen; i < end * chosen; ++i) {
      ops_.add_scaled(experts.experts[routing_.ids.data()[i]].down_bias.data(),
                      routing_.row_weights.data()[i], out.data.data() + i / chosen * out.width,
                      out.width);
    }
  });
}

}  // namespace flotilla::worker
