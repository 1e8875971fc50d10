// MXFP4 of gpt-oss (OCP Microscaling Formats; integrations/mxfp4.py of Hugging Face's
// transformers): NAME_blocks [experts, rows, groups, 16] are nibbles, and NAME_scales
// [experts, rows, groups] exponents e. Of a byte the low nibble is the even element.
// weight = 2^(e - 127) FP4, which is 2^(e - 128) kFp4Values.
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/types/text.h"
#include "model/huggingface/quantization/grouped_tensor.h"
#include "model/huggingface/quantization/quantization.h"

namespace flotilla::model {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr uint64_t kBlockBytes = 16;
absl::Status JoinMxfp4(const Json&, FolderTensors& folder) {
  absl::flat_hash_map<std::string_view, const Tensor*, TextHash, TextEqual> scales_of;
  std::vector<Tensor> joined;
  for (const Tensor& tensor : folder.tensors) {
    if (!tensor.name.ends_with(kScales)) continue;
    scales_of[tensor.name.substr(0, tensor.name.size() - kScales.size())] = &tensor;
  }
  for (const Tensor& blocks : folder.tensors) {
    if (!blocks.name.ends_with(kBlocks)) continue;
    const std::string_view stem = blocks.name.substr(0, blocks.name.size() - kBlocks.size());
    if (blocks.type != GgmlType::kU8 || blocks.rank != 4 || blocks.dims[0] != kBlockBytes ||
        blocks.data.empty()) {
      return InvalidArgument("tensor ", blocks.name, " is ", HfShape(blocks),
                             ", not U8 of [experts, rows, groups, 16]");
    }
    const auto found = scales_of.find(stem);
    if (found == scales_of.end()) {
      return InvalidArgument("tensor ", stem, kScales, " is missing");
    }
    const Tensor& scales = *found->second;
    if (scales.type != GgmlType::kU8 || scales.rank != 3 || scales.dims[0] != blocks.dims[1] ||
        scales.dims[1] != blocks.dims[2] || scales.dims[2] != blocks.dims[3]) {
      return InvalidArgument("tensor ", scales.name, " is ", HfShape(scales), ", but ", blocks.name,
                             " is ", HfShape(blocks));
    }
    const auto groups = static_cast<int64_t>(blocks.dims[1]);
    folder.composites.push_back(std::make_unique<Fp4Tensor>(
        GroupedTensor::Shape{.format = "MXFP4",
                             .rows = static_cast<int64_t>(blocks.dims[2] * blocks.dims[3]),
                             .inputs = groups * kScaleGroup,
                             .group = kScaleGroup,
                             .order = {}},
        blocks.data, NumberGrid{scales.data, GgmlType::kU8, groups, 1}, 1.0f,
        std::vector{blocks.data, scales.data}));
    joined.push_back({.name = folder.names.emplace_back(stem),
                      .rank = 3,
                      .dims = {blocks.dims[1] * kScaleGroup, blocks.dims[2], blocks.dims[3], 1},
                      .type = GgmlType::kComposite,
                      .data = {},
                      .composite = folder.composites.back().get()});
    scales_of.erase(found);
  }
  if (joined.empty()) {
    return InvalidArgument("quantization_config: quant_method = 'mxfp4', but no tensor ends with ",
                           kBlocks);
  }
  // Scales without blocks stay, and are refused by name like any tensor that has no meaning.
  std::erase_if(folder.tensors, [&](const Tensor& tensor) {
    if (tensor.name.ends_with(kBlocks)) return true;
    return tensor.name.ends_with(kScales) &&
           !scales_of.contains(tensor.name.substr(0, tensor.name.size() - kScales.size()));
  });
  folder.tensors.insert(folder.tensors.end(), joined.begin(), joined.end());
  return absl::OkStatus();
}

}  // namespace

extern const QuantizationMethod kMxfp4Method = {"mxfp4", JoinMxfp4};

}  // namespace flotilla::model
