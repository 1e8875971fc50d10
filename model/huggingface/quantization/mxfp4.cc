// MXFP4 of gpt-oss (OCP Microscaling Formats; integrations/mxfp4.py of Hugging Face's
// transformers): NAME_blocks [experts, rows, groups, 16] are nibbles, and NAME_scales
// [experts, rows, groups] exponents e. Of a byte the low nibble is the even element.
// weight = 2^(e - 127) FP4, which is 2^(e - 128) kFp4Values.
#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/types/text.h"
#include "model/huggingface/quantization/quantization.h"

namespace flotilla::model {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr int64_t kBlockBytes = 16;
// Weights of larger exponents are not finite in fp32.
constexpr uint32_t kMaxExponent = 252;
constexpr uint32_t kNoNumber = 0x7FC0;  // in bf16

class Mxfp4Tensor final : public CompositeTensor {
 public:
  Mxfp4Tensor(const Tensor& blocks, const Tensor& scales)
      : groups_(static_cast<int64_t>(blocks.dims[1])),
        rows_(static_cast<int64_t>(blocks.dims[2] * blocks.dims[3])),
        parts_{blocks.data, scales.data} {}

  std::string_view format() const override { return "MXFP4"; }
  // That of the GGUF type, whose blocks differ only in where nibbles lie.
  const WeightEncoding& encoding() const override { return encoding_; }
  int64_t rows() const override { return rows_; }
  std::span<const std::span<const std::byte>> parts() const override { return parts_; }

  void Read(int64_t row, int64_t k_begin, int64_t k_end, WeightRow& out) const override {
    for (int64_t k = k_begin; k < k_end; k += kScaleGroup) {
      const int64_t group = row * groups_ + k / kScaleGroup;
      const auto e = std::to_integer<uint32_t>(parts_[1][group]);
      // The bits of a bf16; 2^-128 and 2^-127 are subnormal.
      const uint32_t scale = e < 2 ? 0x20u << e : e > kMaxExponent ? kNoNumber : (e - 1) << 7;
      const int64_t at = k % kPanelWindow;
      out.scales[at / kScaleGroup] = static_cast<uint16_t>(scale);
      const std::byte* const bytes = parts_[0].data() + group * kBlockBytes;
      for (int64_t j = 0; j < kBlockBytes; ++j) {
        const auto packed = std::to_integer<uint32_t>(bytes[j]);
        out.codes[at + 2 * j] = kFp4Values[packed & 15];
        out.codes[at + 2 * j + 1] = kFp4Values[packed >> 4];
      }
    }
  }

 private:
  const WeightEncoding encoding_ = EncodingOf(GgmlType::kMXFP4);
  int64_t groups_, rows_;
  std::array<std::span<const std::byte>, 2> parts_;
};

absl::Status Join(const Json&, FolderTensors& folder) {
  absl::flat_hash_map<std::string_view, const Tensor*, TextHash, TextEqual> scales_of;
  std::vector<Tensor> joined;
  for (const Tensor& tensor : folder.tensors) {
    if (!tensor.name.ends_with(kScales)) continue;
    scales_of[tensor.name.substr(0, tensor.name.size() - kScales.size())] = &tensor;
  }
  for (const Tensor& blocks : folder.tensors) {
    if (!blocks.name.ends_with(kBlocks)) continue;
    const std::string_view stem = blocks.name.substr(0, blocks.name.size() - kBlocks.size());
    if (blocks.type != GgmlType::kI8 || blocks.rank != 4 || blocks.dims[0] != kBlockBytes ||
        blocks.data.empty()) {
      return InvalidArgument("tensor ", blocks.name, " is ", HfShape(blocks),
                             ", not U8 of [experts, rows, groups, 16]");
    }
    const auto found = scales_of.find(stem);
    if (found == scales_of.end()) {
      return InvalidArgument("tensor ", stem, kScales, " is missing");
    }
    const Tensor& scales = *found->second;
    if (scales.type != GgmlType::kI8 || scales.rank != 3 || scales.dims[0] != blocks.dims[1] ||
        scales.dims[1] != blocks.dims[2] || scales.dims[2] != blocks.dims[3]) {
      return InvalidArgument("tensor ", scales.name, " is ", HfShape(scales), ", but ", blocks.name,
                             " is ", HfShape(blocks));
    }
    folder.composites.push_back(std::make_unique<Mxfp4Tensor>(blocks, scales));
    joined.push_back({.name = folder.names.emplace_back(stem),
                      .rank = 3,
                      .dims = {blocks.dims[1] * kScaleGroup, blocks.dims[2], blocks.dims[3], 1},
                      .type = GgmlType::kComposite,
                      .data = {},
                      .composite = folder.composites.back().get()});
    scales_of.erase(found);
  }
  if (joined.empty()) {
    return InvalidArgument("config.json: quant_method = 'mxfp4', but no tensor ends with ",
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

extern const QuantizationMethod kMxfp4Method = {"mxfp4", Join};

}  // namespace flotilla::model
