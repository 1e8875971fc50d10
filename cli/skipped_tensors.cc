#include "cli/skipped_tensors.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/load_spec.h"
#include "model/tensor_table.h"

namespace flotilla::cli {

std::string SkippedTensorsText(const model::Checkpoint& file) {
  std::vector<std::string> parts;
  for (const model::SkippedTensors& skipped : file.skipped_tensors()) {
    parts.push_back(absl::StrFormat("%s (%d, %.1f MB)", skipped.prefix, skipped.count,
                                    static_cast<double>(skipped.bytes) / 1e6));
  }
  return absl::StrJoin(parts, ", ");
}

void LogSkippedTensors(const model::Checkpoint& file, Logger& log) {
  std::uint64_t count = 0;
  for (const model::SkippedTensors& skipped : file.skipped_tensors()) count += skipped.count;
  if (count == 0) return;
  log.Info("tensors are not used for text",
           {{"tensors", count}, {"prefixes", SkippedTensorsText(file)}});
}

UnpackedExperts FindUnpackedExperts(const model::Checkpoint& file, const model::ModelSpec& spec) {
  UnpackedExperts found;
  const model::TensorRow* const gates = model::FindRow(spec, model::TensorRole::kExpertGate);
  const model::TensorRow* const ups = model::FindRow(spec, model::TensorRole::kExpertUp);
  if (gates == nullptr || ups == nullptr || gates->name == ups->name) return found;
  for (std::uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const auto& moe = spec.layers[layer].moe;
    for (std::uint32_t i = 0; moe.has_value() && i < moe->experts; ++i) {
      const auto gate = model::FindWeight(file, spec, *gates, layer, i);
      const auto up = model::FindWeight(file, spec, *ups, layer, i);
      if (!gate.ok() || !up.ok() || model::EncodingOf(*gate) == model::EncodingOf(*up)) continue;
      ++found.count;
      found.file_bytes += gate->bytes() + up->bytes();
      found.memory_bytes += (gate->elements() + up->elements()) * sizeof(float);
      found.tensors.insert({gate->name, up->name});
    }
  }
  return found;
}

void LogUnpackedTensors(const model::Checkpoint& file, const model::ModelSpec& spec, Logger& log) {
  std::uint64_t count = 0, packed = 0, bytes = 0;
  std::string format;
  for (const model::Tensor& tensor : file.tensors()) {
    if (tensor.composite == nullptr ||
        tensor.composite->encoding().numbers == WeightEncoding::Numbers::kCodes) {
      continue;
    }
    ++count;
    packed += tensor.bytes();
    bytes += tensor.elements() * sizeof(float);
    format = model::TypeName(tensor);
  }
  if (count > 0) {
    log.Warning(
        "quantised matrices are unpacked to fp32, since no packed kind has their groups, scales or "
        "table",
        {{"tensors", count},
         {"type", format},
         {"file_mb", packed / 1'000'000},
         {"memory_mb", bytes / 1'000'000}});
  }
  const UnpackedExperts experts = FindUnpackedExperts(file, spec);
  if (experts.count == 0) return;
  log.Warning(
      "experts are unpacked to fp32, since their gate and up matrices differ in format or order",
      {{"experts", experts.count},
       {"file_mb", experts.file_bytes / 1'000'000},
       {"memory_mb", experts.memory_bytes / 1'000'000}});
}

void LogKvScales(const model::ModelSpec& spec, const worker::KvFormats& kv, Logger& log) {
  std::uint32_t layers = 0;
  for (std::uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const kernels::KvFormat format = kv.Of(layer);
    const model::KvScales scales = spec.KvScalesOf(layer);
    layers += (format.key == kernels::KvType::kFp8 && scales.key != 0) ||
              (format.value == kernels::KvType::kFp8 && scales.value != 0);
  }
  if (layers > 0) log.Info("K and V in FP8 have the scales of the file", {{"layers", layers}});
}

void LogTensors(const model::Checkpoint& file, const worker::KvFormats& kv, Logger& log) {
  LogSkippedTensors(file, log);
  const auto spec = model::LoadSpec(file);
  if (!spec.ok()) return;
  LogUnpackedTensors(file, *spec, log);
  LogKvScales(*spec, kv, log);
}

}  // namespace flotilla::cli
