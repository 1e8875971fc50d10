#include "quantize/layer_runner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "common/types/text.h"
#include "model/tensor_table.h"
#include "worker/comm/exchange.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/decoder/decoder.h"
#include "worker/core/split_layout.h"

namespace flotilla::quantize {
namespace {

constexpr int kRowsOfAStep = 512;

// Takes residuals from an array and puts them there.
class ArrayExchange final : public worker::Exchange {
 public:
  float* place = nullptr;  // of the rows of the step
  bool keep = true;

  void ReceiveResidual(float* data, std::int64_t count) override {
    std::copy_n(place, count, data);
  }
  void SendResidual(const float* data, std::int64_t count) override {
    if (keep) std::copy_n(data, count, place);
  }
  // One rank shares nothing.
  float* Partials() override { return nullptr; }
  absl::Span<const float* const> SharePartials(std::int64_t) override { return {}; }
  float* Logits() override { return nullptr; }
  void ShareLogits(std::int64_t, LogitReaders) override {}
  void Abort() override {}
};

// The backend, which shows the inputs of the matrices.
class ObservedBackend final : public worker::CpuBackend {
 public:
  ObservedBackend(const worker::BackendOptions& options, const InputObserver* observer)
      : CpuBackend(options), observer_(observer) {}

  // What the observer or the layer has failed with.
  const absl::Status& status() const { return status_; }

  absl::StatusOr<worker::MatrixHandle> AddMatrix(std::vector<worker::MatrixPart> parts,
                                                 std::vector<float> bias) override {
    Seen seen{.name = std::string(parts.front().tensor->name),
              .places = {{.end = static_cast<int32_t>(parts.front().tensor->dims[0])}}};
    auto handle = CpuBackend::AddMatrix(std::move(parts), std::move(bias));
    if (handle.ok()) Keep(matrices_, *handle, std::move(seen));
    return handle;
  }
  absl::StatusOr<worker::ProjectionHandle> AddProjection(
      const worker::ProjectionSource& source) override {
    Seen seen{.name = std::string(source.tensor->name),
              .places = worker::PlaceSplits(source.split_ends)};
    auto handle = CpuBackend::AddProjection(source);
    if (handle.ok()) Keep(projections_, *handle, std::move(seen));
    return handle;
  }

  void Multiply(worker::BufferHandle x, worker::MatrixHandle matrix,
                worker::BufferHandle out) override {
    Show(x, matrices_[matrix.index()]);
    CpuBackend::Multiply(x, matrix, out);
  }
  void GateUp(worker::BufferHandle x, worker::MatrixHandle gate_up, const worker::FfnOp& ffn,
              worker::BufferHandle out) override {
    Show(x, matrices_[gate_up.index()]);
    CpuBackend::GateUp(x, gate_up, ffn, out);
  }
  void AddProjection(worker::BufferHandle x, worker::ProjectionHandle projection,
                     worker::BufferHandle residual) override {
    Show(x, projections_[projection.index()]);
    CpuBackend::AddProjection(x, projection, residual);
  }
  void Project(worker::BufferHandle x, worker::ProjectionHandle projection,
               worker::BufferHandle out) override {
    Show(x, projections_[projection.index()]);
    CpuBackend::Project(x, projection, out);
  }
  void RouteRows(worker::BufferHandle x, const std::optional<worker::NormOp>& norm,
                 worker::ExpertsHandle experts, worker::BufferHandle out) override {
    if (observer_ != nullptr) status_.Update(absl::UnimplementedError(kNoExperts));
    CpuBackend::RouteRows(x, norm, experts, out);
  }
  void Absorb(const worker::LatentOp& op, worker::BufferHandle queries, worker::BufferHandle latent,
              worker::BufferHandle qkv) override {
    if (observer_ != nullptr) status_.Update(absl::UnimplementedError(kNoExperts));
    CpuBackend::Absorb(op, queries, latent, qkv);
  }

 private:
  static constexpr char kNoExperts[] =
      "the inputs of experts and of a latent are not calibrated yet; --method rtn needs none";
  // A matrix, and where its inputs lie in a row.
  struct Seen {
    std::string name;
    std::vector<worker::SplitPlace> places;
  };

  template <class Handle>
  static void Keep(std::vector<Seen>& all, Handle handle, Seen seen) {
    all.resize(std::max(all.size(), static_cast<size_t>(handle.index()) + 1));
    all[handle.index()] = std::move(seen);
  }

  void Show(worker::BufferHandle x, const Seen& seen) {
    if (observer_ == nullptr || !status_.ok()) return;
    const absl::Span<const float> all = RowsOf(x);
    const auto width = static_cast<int64_t>(all.size()) / rows();
    const bool together = seen.places.size() == 1 || std::ranges::all_of(seen.places, [](auto& p) {
                            return p.own_at() == p.begin;
                          });
    if (together) {
      status_.Update((*observer_)(seen.name, all.data(), rows(), width));
      return;
    }
    const int64_t inputs = seen.places.back().end;
    std::vector<float> gathered(static_cast<size_t>(rows() * inputs));
    for (int64_t row = 0; row < rows(); ++row) {
      for (const worker::SplitPlace& place : seen.places) {
        std::copy_n(all.data() + row * width + place.own_at(), place.end - place.begin,
                    gathered.data() + row * inputs + place.begin);
      }
    }
    status_.Update((*observer_)(seen.name, gathered.data(), rows(), inputs));
  }

  const InputObserver* const observer_;
  absl::Status status_;
  std::vector<Seen> matrices_, projections_;
};

}  // namespace

// Scores the logits of each place by the token that follows.
class LayerRunner::TokenScorer final : public worker::RowReceiver {
 public:
  TokenScorer(uint32_t tokens, const std::vector<BestTokens>* reference)
      : tokens_(tokens), reference_(reference) {}

  // Asks for the logits of `rows` tokens of the text from `begin` on, but for the last one of the
  // text.
  void Ask(absl::Span<const TokenId> text, size_t begin, size_t rows, worker::StepInputs& inputs) {
    next_.clear();
    first_ = places_.size();
    for (size_t i = 0; i < rows && begin + i + 1 < text.size(); ++i) {
      worker::RowRequest& request = inputs.requests.emplace_back();
      request.row = static_cast<int32_t>(i);
      request.full_row = true;
      next_.push_back(text[begin + i + 1]);
    }
    places_.resize(first_ + next_.size());
  }

  // Rows come on several threads, each to a place of its own.
  void TakeRow(int request, absl::Span<const float> logits) override {
    const auto index = static_cast<size_t>(request);
    const auto own = logits.subspan(0, tokens_);
    const double largest = *std::max_element(own.begin(), own.end());
    double total = 0;
    for (const float logit : own) total += std::exp(logit - largest);
    const double scale = largest + std::log(total);
    Place& place = places_[first_ + index];
    place.next = logits[static_cast<size_t>(next_[index])] - scale;
    std::array<TokenId, std::tuple_size_v<BestTokens>> best;
    std::vector<TokenId> all(own.size());
    std::iota(all.begin(), all.end(), TokenId{0});
    std::partial_sort_copy(
        all.begin(), all.end(), best.begin(), best.end(), [&](TokenId a, TokenId b) {
          const float x = own[static_cast<size_t>(a)], y = own[static_cast<size_t>(b)];
          return x != y ? x > y : a < b;
        });
    for (size_t i = 0; i < best.size(); ++i) {
      place.best[i] = {best[i], own[static_cast<size_t>(best[i])] - scale};
    }
    if (reference_ == nullptr || first_ + index >= reference_->size()) return;
    for (const auto& [token, logprob] : (*reference_)[first_ + index]) {
      place.error += std::abs(own[static_cast<size_t>(token)] - scale - logprob);
    }
  }

  // Sums in the order of the texts, whatever order rows came in.
  TextScores Scores() const {
    TextScores scores;
    double next = 0, error = 0;
    for (const Place& place : places_) {
      next += place.next;
      error += place.error;
      scores.best.push_back(place.best);
      scores.next.push_back(place.next);
    }
    const auto count = static_cast<double>(places_.size());
    scores.perplexity = std::exp(-next / count);
    scores.top5_error = error / (count * static_cast<double>(std::tuple_size_v<BestTokens>));
    return scores;
  }
  bool empty() const { return places_.empty(); }

 private:
  struct Place {
    double next = 0, error = 0;
    BestTokens best;
  };

  const uint32_t tokens_;
  const std::vector<BestTokens>* const reference_;
  std::vector<Place> places_;
  size_t first_ = 0;           // of the step's places
  std::vector<TokenId> next_;  // of each request
};

int64_t Stream::tokens() const {
  int64_t count = 0;
  for (const auto& text : texts) count += static_cast<int64_t>(text.size());
  return count;
}

LayerRunner::LayerRunner(const model::ModelSpec& spec, kernels::Isa isa, int threads,
                         const Clock& clock, worker::Recipe recipe)
    : spec_(spec), isa_(isa), threads_(threads), clock_(clock), recipe_(recipe) {
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    worker::ModelShard& shard = shards_.emplace_back(worker::WholeModel(spec));
    shard.layers = {layer, layer + 1};
  }
}

absl::Status LayerRunner::Run(const model::Checkpoint& file, uint32_t layer, Stream& stream,
                              const InputObserver* observer, bool keep) {
  return RunLayer(file, layer, stream, observer, keep, nullptr);
}

absl::StatusOr<TextScores> LayerRunner::Score(const model::Checkpoint& file, Stream& stream,
                                              const std::vector<BestTokens>* reference) {
  if (spec_.tokens < std::tuple_size_v<BestTokens>) {
    return InvalidArgument("the vocabulary has fewer than five tokens");
  }
  TokenScorer scorer(spec_.tokens, reference);
  const absl::Status status = RunLayer(file, static_cast<uint32_t>(shards_.size()) - 1, stream,
                                       nullptr, /*keep=*/true, &scorer);
  if (!status.ok()) return status;
  if (scorer.empty()) return InvalidArgument("no text has two tokens");
  return scorer.Scores();
}

absl::Status LayerRunner::RunLayer(const model::Checkpoint& file, uint32_t layer, Stream& stream,
                                   const InputObserver* observer, bool keep, TokenScorer* scorer) {
  stream.residuals.resize(static_cast<size_t>(stream.tokens() * spec_.hidden));
  size_t longest = 1;
  for (const auto& text : stream.texts) longest = std::max(longest, text.size());
  ArrayExchange exchange;
  exchange.keep = keep;
  ObservedBackend backend({.recipe = recipe_,
                           .isa = isa_,
                           .threads = threads_,
                           .max_rows = kRowsOfAStep,
                           .max_positions = static_cast<int>(longest),
                           .clock = &clock_,
                           .exchange = &exchange},
                          observer);
  const worker::ParallelShape shape{.tensor = 1, .pipeline = static_cast<uint32_t>(shards_.size())};
  const auto decoder = worker::Decoder::Load(file, spec_, shards_, shape, layer, backend);
  if (!decoder.ok()) return decoder.status();
  const auto blocks = static_cast<int32_t>((longest + 15) / 16);
  const auto groups = static_cast<uint32_t>(spec_.kv_groups.size());
  absl::Status status =
      backend.CreateKv(worker::KvShapeOf(spec_, kernels::KvFormat::kF32, shards_[layer].layers,
                                         spec_.attention().kv_heads),
                       static_cast<uint32_t>(blocks) + 1, {});
  if (!status.ok()) return status;
  // The layer is of one group, so all groups may have the same blocks.
  std::vector<int32_t> table;
  for (int32_t block = 1; block <= blocks; ++block) table.push_back(block);
  const std::vector<absl::Span<const int32_t>> tables(groups, table);
  float* place = stream.residuals.data();
  for (const auto& text : stream.texts) {
    for (size_t begin = 0; begin < text.size(); begin += kRowsOfAStep) {
      const auto tokens = absl::MakeConstSpan(text).subspan(begin, kRowsOfAStep);
      worker::StepInputs inputs;
      inputs.group_count = groups;
      worker::AddSequence(SequenceHandle{0}, static_cast<int32_t>(begin), tokens, tables, inputs);
      if (scorer != nullptr) scorer->Ask(text, begin, tokens.size(), inputs);
      exchange.place = place;
      decoder->Start(std::move(inputs), scorer);
      const auto finished = backend.Finish();
      if (!finished.ok()) return finished.status();
      if (!backend.status().ok()) return backend.status();
      place += tokens.size() * spec_.hidden;
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::quantize
