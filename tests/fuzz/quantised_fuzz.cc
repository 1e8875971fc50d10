// Mutated layers of quantised Hugging Face folders: an input is one line with the object
// quantization_config, and then a safetensors file. Each method has a fuzzer with its own corpus.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "model/huggingface/quantization/quantization.h"
#include "model/huggingface/safetensors_file.h"
#include "model/tensor.h"
#include "tests/fuzz/input_limits.h"

namespace {

namespace model = flotilla::model;

// An input with its parts; without an end of line all of it is the object.
struct Parts {
  std::string_view settings;
  std::span<const uint8_t> file;

  Parts(const uint8_t* input, size_t size) {
    const auto* const end = std::find(input, input + size, '\n');
    settings = {reinterpret_cast<const char*>(input), static_cast<size_t>(end - input)};
    if (end != input + size) file = {end + 1, input + size};
  }
};

// Reads some rows in both ways, which must agree.
void Read(const model::Tensor& tensor) {
  constexpr int64_t kMostWeights = 1 << 16;
  const auto inputs = static_cast<int64_t>(tensor.dims[0]);
  const auto rows = static_cast<int64_t>(tensor.elements() / tensor.dims[0]);
  if (inputs > kMostWeights) return;
  const auto panel = std::make_unique<flotilla::WeightPanel>();
  std::vector<float> weights(static_cast<size_t>(inputs));
  const int64_t most = std::min(rows, std::max<int64_t>(1, kMostWeights / inputs));
  for (int64_t i = 0; i < most; ++i) {
    const int64_t row = i % 2 == 0 ? i / 2 : rows - 1 - i / 2;  // from both ends
    if (!model::DecodeRow(tensor, row, weights).ok()) std::abort();
    const std::vector<int64_t> wanted = {row};
    for (int64_t k = 0; k < inputs; k += flotilla::kPanelWindow) {
      const int64_t end = std::min<int64_t>(k + flotilla::kPanelWindow, inputs);
      // In its own encoding, which is what is packed.
      model::ReadPanel(tensor, wanted, k, end, model::EncodingOf(tensor), *panel).IgnoreError();
      model::ReadPanel(tensor, wanted, k, end, model::FastEncodingOf(tensor), *panel).IgnoreError();
      // What is not finite is refused.
      const absl::Status status =
          model::ReadPanel(tensor, wanted, k, end, flotilla::WeightEncoding{}, *panel);
      if (!status.ok()) continue;
      const auto bytes = static_cast<size_t>(end - k) * sizeof(float);
      if (std::memcmp(panel->rows[0].numbers, weights.data() + k, bytes) != 0) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  const flotilla::testing::InputLimits limits(size);
  const Parts parts(input, size);
  auto settings = model::ParseJsonObject(parts.settings, "settings", model::JsonBounds{});
  const auto file = model::SafetensorsFile::Parse(std::as_bytes(parts.file));
  if (!settings.ok() || !file.ok()) return 0;
  const model::Json config = {{"quantization_config", *std::move(settings)}};
  const auto quantization = model::FindQuantization(config);
  if (!quantization.ok()) return 0;
  model::FolderTensors folder;
  folder.tensors.assign(file->tensors().begin(), file->tensors().end());
  if (!quantization->method->join(*quantization->settings, folder).ok()) return 0;
  for (const model::Tensor& tensor : folder.tensors) {
    if (tensor.composite != nullptr) Read(tensor);
  }
  for (const model::KvScales& scales : folder.kv_scales) {
    for (const float scale : {scales.key, scales.value}) {
      const bool good = scale >= model::KvScales::kLeast && scale <= model::KvScales::kLargest;
      if (scale != 0 && !good) std::abort();
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Changes the object, the header or the data, and keeps the length of the header true.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  const Parts parts(data, size);
  constexpr size_t kLengthBytes = sizeof(uint64_t);
  if (parts.file.size() < kLengthBytes || seed % 16 == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  uint64_t length = 0;
  std::memcpy(&length, parts.file.data(), kLengthBytes);
  length = std::min<uint64_t>(length, parts.file.size() - kLengthBytes);
  std::vector<uint8_t> pieces[3];
  pieces[0].assign(parts.settings.begin(), parts.settings.end());
  const auto content = parts.file.subspan(kLengthBytes);
  pieces[1].assign(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(length));
  pieces[2].assign(content.begin() + static_cast<std::ptrdiff_t>(length), content.end());
  std::vector<uint8_t>& changed = pieces[seed % 3];
  const size_t before = changed.size(), room = max_size - size;
  if (before + room == 0) return size;
  changed.resize(before + room);
  changed.resize(LLVMFuzzerMutate(changed.data(), before, before + room));
  std::replace(pieces[0].begin(), pieces[0].end(), uint8_t{'\n'}, uint8_t{' '});
  length = pieces[1].size();
  uint8_t* out = std::ranges::copy(pieces[0], data).out;
  *out++ = '\n';
  std::memcpy(out, &length, kLengthBytes);
  out = std::ranges::copy(pieces[1], out + kLengthBytes).out;
  out = std::ranges::copy(pieces[2], out).out;
  return static_cast<size_t>(out - data);
}
