#include "model/huggingface/quantization/quantization.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "common/types/text.h"

namespace flotilla::model {

// The rows: each is a file of this folder.
extern const QuantizationMethod kAwqMethod, kBitsAndBytesMethod, kCompressedTensorsMethod,
    kFp8Method, kGptqMethod, kMxfp4Method, kSpqrMethod;

absl::StatusOr<Quantization> FindQuantization(const Json& config) {
  static constexpr const QuantizationMethod* kAll[] = {
      &kAwqMethod,   &kBitsAndBytesMethod, &kCompressedTensorsMethod, &kFp8Method, &kGptqMethod,
      &kMxfp4Method, &kSpqrMethod};
  constexpr std::string_view kKey = "quantization_config";
  const Json* settings = Member(&config, kKey);
  if (settings == nullptr) settings = Member(Member(&config, "text_config"), kKey);
  if (settings == nullptr) return Quantization{};
  const Json* const method = Member(settings, "quant_method");
  if (method == nullptr || !method->is_string()) {
    return InvalidArgument("quantization_config has no quant_method");
  }
  const std::string name = method->get<std::string>();
  const auto* const found = std::ranges::find(kAll, name, &QuantizationMethod::name);
  if (found != std::end(kAll)) return Quantization{*found, settings};
  std::string known;
  for (const QuantizationMethod* each : kAll) known += Cat(known.empty() ? "" : ", ", each->name);
  return Unimplemented("quantization_config: quant_method = '",
                       absl::CHexEscape(ToAbsl(std::string_view(name).substr(0, 40))),
                       "' is not supported; supported: ", known,
                       "; there may be a GGUF file of the model");
}

std::string HfShape(const Tensor& tensor) {
  std::string shape = "[";
  for (uint32_t axis = tensor.rank; axis-- > 0;) {
    shape += Cat(tensor.dims[axis], axis == 0 ? "" : ", ");
  }
  return shape + "]";
}

}  // namespace flotilla::model
