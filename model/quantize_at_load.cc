#include "model/quantize_at_load.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/types/text.h"
#include "model/load_spec.h"
#include "model/overlay_checkpoint.h"
#include "model/tensor_table.h"

namespace flotilla::model {
namespace {

using Numbers = WeightEncoding::Numbers;
using Scales = WeightEncoding::Scales;
using Values = WeightEncoding::Values;

// No number if a weight is none or infinite: then the scale is refused.
float Largest(std::span<const float> weights) {
  float largest = 0;
  for (const float weight : weights) {
    if (!std::isfinite(weight)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(weight));
  }
  return largest;
}

// Whether weights can be divided by the scale. It is 0 if they are all too small for it.
bool Divides(float scale) { return scale > 0 && std::isfinite(scale); }

// The nearest of the codes from `low` to `high`, which 0 is among.
int8_t NearestCode(float weight, float scale, int low, int high) {
  if (!Divides(scale)) return 0;
  const float code = std::nearbyint(weight / scale);
  return static_cast<int8_t>(std::clamp(code, static_cast<float>(low), static_cast<float>(high)));
}

void EncodeInt8(std::span<const float> weights, int at, WeightRow& out) {
  const uint16_t scale = FloatToHalf(Largest(weights) / 127);
  out.scales[at / kScaleGroup] = scale;
  const float d = HalfToFloat(scale);
  for (size_t i = 0; i < weights.size(); ++i)
    out.codes[at + i] = NearestCode(weights[i], d, -127, 127);
}

void EncodeInt4(std::span<const float> weights, int at, WeightRow& out) {
  const auto [least, greatest] = std::ranges::minmax(weights);
  const float span = std::isfinite(Largest(weights)) ? greatest - least : Largest(weights);
  const uint16_t scale = FloatToHalf(span / 15), minimum = FloatToHalf(least);
  out.scales[at / kScaleGroup] = scale;
  out.minimums[at / kScaleGroup] = minimum;
  const float d = HalfToFloat(scale), m = HalfToFloat(minimum);
  for (size_t i = 0; i < weights.size(); ++i) {
    out.codes[at + i] = NearestCode(weights[i] - m, d, 0, 15);
  }
}

void EncodeNf4(std::span<const float> weights, int at, WeightRow& out) {
  const float scale = Largest(weights);
  for (size_t i = 0; i < weights.size(); i += kScaleGroup) {
    out.wide_scales[(at + static_cast<int>(i)) / kScaleGroup] = scale;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const float value = Divides(scale) ? weights[i] / scale : 0;
    // The first value that is not less, or the one before, if it is nearer.
    int place = 0;
    while (place < 15 && kNf4Values[place] < value) ++place;
    if (place > 0 && value - kNf4Values[place - 1] < kNf4Values[place] - value) --place;
    out.codes[at + i] = static_cast<int8_t>(place);
  }
}

void EncodeFp8(std::span<const float> weights, int at, WeightRow& out) {
  const float scale = Largest(weights) / 448;
  out.wide_scales[at / kLongGroup] = scale;
  for (size_t i = 0; i < weights.size(); ++i) {
    out.codes[at + i] = static_cast<int8_t>(FloatToFp8(Divides(scale) ? weights[i] / scale : 0));
  }
}

struct Method {
  LoadQuantization method;
  std::string_view name;
  std::string_view format;  // for people
  int group;
  WeightEncoding encoding;
  // Encodes a group, which begins at `at` of the window.
  void (*encode)(std::span<const float> weights, int at, WeightRow& out);
};

constexpr Method kMethods[] = {
    {LoadQuantization::kInt8,
     "int8",
     "INT8",
     kScaleGroup,
     {.numbers = Numbers::kCodes, .low = -128, .high = 127},
     EncodeInt8},
    {LoadQuantization::kInt4,
     "int4",
     "INT4",
     kScaleGroup,
     {.numbers = Numbers::kCodes, .low = 0, .high = 15, .has_minimums = true},
     EncodeInt4},
    {LoadQuantization::kNf4,
     "nf4",
     "NF4",
     64,
     {.numbers = Numbers::kCodes, .values = Values::kNf4, .scales = Scales::kFp32},
     EncodeNf4},
    {LoadQuantization::kFp8,
     "fp8",
     "FP8",
     kLongGroup,
     {.numbers = Numbers::kCodes,
      .values = Values::kFp8,
      .scales = Scales::kFp32,
      .scale_group = kLongGroup},
     EncodeFp8}};

// A matrix of numbers as codes, which are made whenever they are read.
class EncodedTensor final : public CompositeTensor {
 public:
  EncodedTensor(const Tensor& tensor, const Method& method)
      : tensor_(tensor),
        method_(method),
        inputs_(static_cast<int64_t>(tensor.dims[0])),
        bytes_(static_cast<int64_t>(InfoOf(tensor.type).block_bytes)),
        parts_{tensor.data} {}

  std::string_view format() const override { return method_.format; }
  const WeightEncoding& encoding() const override { return method_.encoding; }
  int64_t rows() const override { return static_cast<int64_t>(tensor_.elements()) / inputs_; }
  std::span<const std::span<const std::byte>> parts() const override { return parts_; }

  void Read(int64_t row, int64_t k_begin, int64_t k_end, WeightRow& out) const override {
    const int64_t window = k_begin / kPanelWindow * kPanelWindow;
    for (int64_t k = k_begin / method_.group * method_.group; k < k_end; k += method_.group) {
      const auto count = static_cast<size_t>(std::min<int64_t>(method_.group, inputs_ - k));
      float weights[kPanelWindow];
      const std::span<float> group(weights, count);
      const auto at = static_cast<size_t>((row * inputs_ + k) * bytes_);
      // The sizes agree, so this cannot fail.
      static_cast<void>(DequantizeRow(
          tensor_.type, tensor_.data.subspan(at, count * static_cast<size_t>(bytes_)), group));
      method_.encode(group, static_cast<int>(k - window), out);
    }
  }

 private:
  const Tensor tensor_;
  const Method& method_;
  const int64_t inputs_, bytes_;
  const std::array<std::span<const std::byte>, 1> parts_;
};

// Whether matrices of the role are quantised.
bool Takes(const TensorRow& row) {
  switch (row.role) {
    case TensorRole::kQuery:
    case TensorRole::kKey:
    case TensorRole::kValue:
    case TensorRole::kQueryDown:
    case TensorRole::kLatent:
    case TensorRole::kAttentionOutput:
    case TensorRole::kGate:
    case TensorRole::kUp:
    case TensorRole::kDown:
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
    case TensorRole::kExpertDown:
    case TensorRole::kSharedGate:
    case TensorRole::kSharedUp:
    case TensorRole::kSharedDown:
      return !row.transposed;
    default:
      return false;
  }
}

// Matrices of numbers as codes.
class QuantizedCheckpoint final : public OverlayCheckpoint {
 public:
  QuantizedCheckpoint(const std::shared_ptr<const Checkpoint>& file, const Method& method)
      : OverlayCheckpoint(file, Cat(file->format(), ", quantized at load to ", method.name),
                          method.name),
        method_(method) {}

  // Returns how many matrices it has quantised.
  int Quantize(const ModelSpec& spec) {
    int count = 0;
    for (const std::string& name : QuantizableMatrices(*this, spec)) {
      Tensor tensor = *FindTensor(name);
      composites_.push_back(std::make_unique<EncodedTensor>(tensor, method_));
      tensor.composite = composites_.back().get();
      tensor.type = GgmlType::kComposite;
      tensor.data = {};
      Put(tensor);
      ++count;
    }
    return count;
  }

 private:
  const Method& method_;
  std::vector<std::unique_ptr<const CompositeTensor>> composites_;
};

}  // namespace

std::vector<std::string> QuantizableMatrices(const Checkpoint& file, const ModelSpec& spec) {
  std::map<std::string, bool> taken;  // by the name of a tensor, which may have several roles
  for (const TensorRow& row : spec.tensors) {
    for (std::string& name : NamesInFile(row, spec)) {
      bool& all = taken.try_emplace(std::move(name), true).first->second;
      all = all && Takes(row);
    }
  }
  std::vector<std::string> names;
  for (const Tensor& tensor : file.tensors()) {
    const auto found = taken.find(std::string(tensor.name));
    if (found == taken.end() || !found->second || tensor.rank < 2 || tensor.composite != nullptr ||
        !IsPlain(tensor) || tensor.dims[0] % kScaleGroup != 0) {
      continue;
    }
    names.push_back(found->first);
  }
  return names;
}

absl::StatusOr<LoadQuantization> ParseLoadQuantization(std::string_view name) {
  if (name == "none") return LoadQuantization::kNone;
  std::string known = "none";
  for (const Method& method : kMethods) {
    if (method.name == name) return method.method;
    known += Cat(", ", method.name);
  }
  return InvalidArgument("'", name.substr(0, 40), "' is none of ", known);
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> QuantizeAtLoad(
    std::shared_ptr<const Checkpoint> file, LoadQuantization method) {
  if (method == LoadQuantization::kNone) return file;
  const auto spec = LoadSpec(*file);
  if (!spec.ok()) return spec.status();
  const std::string path(file->path());
  const Method& found = *std::ranges::find(kMethods, method, &Method::method);
  const auto quantized = std::make_shared<QuantizedCheckpoint>(file, found);
  if (quantized->Quantize(*spec) > 0) return quantized;
  return InFile(path, InvalidArgument("no matrix can be quantized to ", found.name,
                                      ": the model is quantized already, or its rows are no "
                                      "multiples of 32"));
}

}  // namespace flotilla::model
