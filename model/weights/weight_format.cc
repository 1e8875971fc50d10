#include "model/weights/weight_format.h"

namespace flotilla::model {

// The rows: each is a file of this folder.
extern const WeightFormat kF32Format, kF64Format, kF16Format, kBf16Format;
extern const WeightFormat kQ4_0Format, kQ4_1Format, kQ5_0Format, kQ5_1Format, kQ8_0Format;
extern const WeightFormat kQ2_KFormat, kQ3_KFormat, kQ4_KFormat, kQ5_KFormat, kQ6_KFormat;
extern const WeightFormat kIQ4_NLFormat, kIQ4_XSFormat, kMXFP4Format, kNVFP4Format;

std::span<const WeightFormat* const> WeightFormats() {
  static constexpr const WeightFormat* kAll[] = {
      &kF32Format,  &kF64Format,  &kF16Format,    &kBf16Format,   &kQ4_0Format,  &kQ4_1Format,
      &kQ5_0Format, &kQ5_1Format, &kQ8_0Format,   &kQ2_KFormat,   &kQ3_KFormat,  &kQ4_KFormat,
      &kQ5_KFormat, &kQ6_KFormat, &kIQ4_NLFormat, &kIQ4_XSFormat, &kMXFP4Format, &kNVFP4Format};
  return kAll;
}

const WeightFormat* FindWeightFormat(GgmlType type) {
  for (const WeightFormat* format : WeightFormats()) {
    if (format->type == type) return format;
  }
  return nullptr;
}

}  // namespace flotilla::model
