// How DenseReader reads RoPE and its scalings.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "common/types/text.h"
#include "model/architectures/dense.h"
#include "model/rope_frequencies.h"

namespace flotilla::model {
namespace {

// What frequencies are divided by in llama.cpp's files; the last two are LongRoPE's.
constexpr std::string_view kFactors = "rope_freqs.weight";
constexpr std::string_view kLongFactors = "rope_factors_long.weight";
constexpr std::string_view kShortFactors = "rope_factors_short.weight";

}  // namespace

void DenseReader::ReadRope(Pairs hf_pairs, Pairs llama_cpp_pairs, float local_base) {
  if (!in_.status().ok()) return;
  const auto& latent = layer_.attention.latent;
  const uint32_t dim = latent.has_value() ? latent->rope_dim : layer_.attention.head_dim;
  rope_dim_ = in_.Uint("rope.dimension_count", 2, dim, dim);
  in_.Require(rope_dim_ % 2 == 0, "rope.dimension_count", "is odd");
  if (!in_.status().ok()) return;
  halves_ = (hf() ? hf_pairs : llama_cpp_pairs) == Pairs::kHalves;
  spec_.ropes = {ReadScaledRope(rope_dim_)};
  layer_.attention.rope = 0;
  if (local_base == 0 && checkpoint_.configuration().Has("rope.freq_base_swa")) {
    in_.Fail(Unimplemented("RoPE with other numbers in layers with a window is not supported"));
  }
  if (local_base != 0) spec_.ropes.push_back({RopeFrequencies(rope_dim_, local_base)});
}

void DenseReader::DivideByTensor(std::string_view name, std::vector<float>& frequencies) {
  Add(TensorRole::kRopeFactors, std::string(name), std::string(name), Extent::kPairs);
  const Tensor* factors = checkpoint_.FindTensor(name);
  std::vector<float> values(frequencies.size());
  if (factors == nullptr || factors->dims[0] != values.size()) return;
  in_.Fail(DequantizeRow(factors->type, factors->data, values));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] >= 1e-3f && values[i] <= 1e6f)) {
      in_.Fail(InvalidArgument("tensor ", name, " has ", values[i], ", not 0.001..1e6"));
    }
    frequencies[i] /= values[i];
  }
}

// The scalings of Llama 3.1 and LongRoPE are stated in numbers by Hugging Face, and in tensors by
// llama.cpp, which may not name them.
RopeSpec DenseReader::ReadScaledRope(uint32_t dim) {
  constexpr std::string_view kScaling = "rope.scaling.type";
  const Configuration& configuration = checkpoint_.configuration();
  const float base = in_.Float("rope.freq_base", 1.001, 1e12, 10000.0);
  const bool long_in_tensors = checkpoint_.FindTensor(kLongFactors) != nullptr;
  const auto stated = configuration.String(kScaling);
  if (absl::IsInvalidArgument(stated.status())) in_.Fail(stated.status());
  // llama.cpp takes a factor alone for a linear scaling, and has an older name for it.
  constexpr std::string_view kFactor = "rope.scaling.factor", kOldFactor = "rope.scale_linear";
  const bool is_old = !hf() && !configuration.Has(kFactor) && configuration.Has(kOldFactor);
  const std::string_view factor_key = is_old ? kOldFactor : kFactor;
  const bool is_linear = !stated.ok() && !hf() && configuration.Has(factor_key);
  const std::string_view scaling = is_linear ? "linear" : stated.value_or("none");
  if (!in_.status().ok()) return {};
  RopeSpec rope{RopeFrequencies(dim, base)};
  const auto original = [&](std::optional<uint64_t> fallback = std::nullopt) {
    return static_cast<float>(
        in_.Uint("rope.scaling.original_context_length", 1, kMaxContext, fallback));
  };
  if (scaling == "linear") {
    const bool unscaled = !hf() && configuration.Float(factor_key).value_or(0) == 0;
    const float factor = unscaled ? 1 : in_.Float(factor_key, 1e-3, 1e6, std::nullopt);
    for (float& frequency : rope.frequencies) frequency /= factor;
  } else if (scaling == "llama3") {
    const Llama3Scaling numbers{
        .factor = in_.Float("rope.scaling.factor", 1, 1e6, std::nullopt),
        .low_freq_factor = in_.Float("rope.scaling.low_freq_factor", 1e-3, 1e6, std::nullopt),
        .high_freq_factor = in_.Float("rope.scaling.high_freq_factor", 1e-3, 1e6, std::nullopt),
        .original_context = original()};
    in_.Require(numbers.high_freq_factor > numbers.low_freq_factor, "rope.scaling.high_freq_factor",
                "is not above low_freq_factor");
    if (in_.status().ok()) ScaleAsLlama3(numbers, rope.frequencies);
  } else if (scaling == "yarn") {
    const float trained = original(spec_.context_length);
    // A folder may leave the factor to the two contexts.
    std::optional<double> ratio;
    if (hf() && static_cast<float>(spec_.context_length) > trained) {
      ratio = spec_.context_length / double{trained};
    }
    const YarnScaling numbers{.factor = in_.Float(factor_key, 1, 1e6, ratio),
                              .beta_fast = in_.Float("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32),
                              .beta_slow = in_.Float("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1),
                              .original_context = trained,
                              .truncate = in_.Bool("rope.scaling.yarn_truncate", yarn_truncate_)};
    in_.Require(numbers.beta_fast > numbers.beta_slow, "rope.scaling.yarn_beta_fast",
                "is not above beta_slow");
    if (!in_.status().ok()) return {};
    ScaleAsYarn(numbers, base, rope.frequencies);
    const auto scale = [&](double mscale) {
      return numbers.factor <= 1 ? 1 : 0.1 * mscale * NaturalLog(numbers.factor) + 1;
    };
    double natural = scale(1);
    if (hf()) {
      const double own = in_.FloatOrNone("rope.scaling.mscale", 1e3);
      const double all = in_.FloatOrNone("rope.scaling.mscale_all_dim", 1e3);
      if (own != 0 && all != 0) natural = scale(own) / scale(all);
    }
    // Hugging Face states the whole magnitude, and llama.cpp what it is multiplied by.
    const float stated = in_.Float("rope.scaling.attn_factor", 1e-3, 1e3, hf() ? natural : 1.0);
    rope.magnitude = hf() ? stated : static_cast<float>(natural * stated);
  } else if (scaling == "dynamic") {
    const double factor = in_.Float("rope.scaling.factor", 1, 1e6, std::nullopt);
    in_.Require(dim >= 4, "rope.dimension_count", "is too small for dynamic scaling");
    if (!in_.status().ok()) return {};
    const uint32_t trained = spec_.context_length;
    spec_.longest_context = static_cast<uint32_t>(std::min<double>(trained * factor, kMaxContext));
    if (spec_.served_context > trained) {
      spec_.rope_context = spec_.served_context;
      const double longer = DynamicBase({.factor = factor,
                                         .trained = static_cast<double>(trained),
                                         .served = static_cast<double>(spec_.served_context)},
                                        dim, base);
      rope.frequencies = RopeFrequencies(dim, static_cast<float>(longer));
    }
  } else if (scaling == "longrope" || scaling == "su" || long_in_tensors) {
    const float trained = original(spec_.context_length);
    const bool is_long = static_cast<float>(spec_.served_context) > trained;
    if (!is_long && static_cast<float>(spec_.context_length) > trained) {
      spec_.rope_context = static_cast<uint32_t>(trained);
    }
    std::vector<double> factors;
    if (long_in_tensors) {
      std::vector<float> unused = rope.frequencies;
      DivideByTensor(kLongFactors, is_long ? rope.frequencies : unused);
      DivideByTensor(kShortFactors, is_long ? unused : rope.frequencies);
    } else {
      factors = in_.Numbers(is_long ? "rope.scaling.long_factor" : "rope.scaling.short_factor",
                            rope.frequencies.size(), 1e-3, 1e6);
    }
    for (size_t i = 0; i < factors.size(); ++i) {
      rope.frequencies[i] /= static_cast<float>(factors[i]);
    }
    // Hugging Face may state it.
    const double stated = static_cast<float>(spec_.context_length) / trained;
    const double ratio =
        std::max(1.0, hf() ? double{in_.Float("rope.scaling.factor", 1e-3, 1e6, stated)} : stated);
    const double natural = std::sqrt(1 + NaturalLog(ratio) / NaturalLog(std::max(trained, 2.0f)));
    rope.magnitude = in_.Float("rope.scaling.attn_factor", 1e-3, 1e3, natural);
  } else if (scaling != "none") {
    in_.Fail(Unimplemented(configuration.NameOf(kScaling), " = '", scaling.substr(0, 64),
                           "' is not supported"));
  }
  if (!hf() && (scaling == "linear" || scaling == "none") && !long_in_tensors) {
    rope.magnitude = in_.Float("rope.scaling.attn_factor", 1e-3, 1e3, 1.0);
  }
  if (checkpoint_.FindTensor(kFactors) != nullptr) DivideByTensor(kFactors, rope.frequencies);
  return rope;
}

}  // namespace flotilla::model
