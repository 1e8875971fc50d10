#include "quantize/gguf_types.h"

#include <algorithm>

#include "common/types/text.h"

namespace flotilla::quantize {
namespace {

using model::GgmlType;

// Q4_K is "mostly Q4_K, small", the one of two numbers that has the fewer matrices in other types.
constexpr GgufTarget kTargets[] = {
    {"q4_0", GgmlType::kQ4_0, 2},  {"q4_1", GgmlType::kQ4_1, 3}, {"q5_0", GgmlType::kQ5_0, 8},
    {"q5_1", GgmlType::kQ5_1, 9},  {"q8_0", GgmlType::kQ8_0, 7}, {"q4_k", GgmlType::kQ4_K, 14},
    {"q6_k", GgmlType::kQ6_K, 18},
};

}  // namespace

std::span<const GgufTarget> GgufTargets() { return kTargets; }

std::string GgufTargetNames() {
  std::string names;
  for (const GgufTarget& target : kTargets) {
    names += Cat(names.empty() ? "" : ", ", target.name);
  }
  return names;
}

absl::StatusOr<GgufTarget> FindGgufTarget(std::string_view name) {
  const auto* const found = std::ranges::find(kTargets, name, &GgufTarget::name);
  if (found != std::end(kTargets)) return *found;
  return InvalidArgument("--type: '", name.substr(0, 40), "' is none of ", GgufTargetNames());
}

bool IsQuantized(const model::Tensor& tensor) {
  const std::string_view name = tensor.name;
  if (tensor.rank < 2 || !name.ends_with(".weight")) return false;
  if (name == "token_embd.weight" || name == "output.weight") return true;
  return name.starts_with("blk.") && name.find("_norm") == std::string_view::npos &&
         name.find("ffn_gate_inp") == std::string_view::npos;
}

GgmlType TypeOf(const model::Tensor& tensor, GgmlType target, bool is_output,
                std::string_view architecture) {
  GgmlType wanted = target;
  if (is_output && target != GgmlType::kQ8_0) {
    wanted = architecture == "falcon" ? GgmlType::kQ8_0 : GgmlType::kQ6_K;
  }
  return FitRow(tensor.dims[0], wanted);
}

GgmlType FitRow(uint64_t elements, GgmlType wanted) {
  const auto fits = [&](GgmlType type) {
    return elements % model::InfoOf(type).block_elements == 0;
  };
  if (!fits(wanted) && wanted == GgmlType::kQ4_K) wanted = GgmlType::kQ5_0;
  if (!fits(wanted) && wanted == GgmlType::kQ6_K) wanted = GgmlType::kQ8_0;
  return fits(wanted) ? wanted : GgmlType::kF16;
}

}  // namespace flotilla::quantize
