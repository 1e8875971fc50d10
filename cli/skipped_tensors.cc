#include "cli/skipped_tensors.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

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

void LogUnpackedTensors(const model::Checkpoint& file, Logger& log) {
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
  if (count == 0) return;
  log.Warning(
      "quantised matrices are unpacked to fp32, since no packed kind has their groups, scales or "
      "table",
      {{"tensors", count},
       {"type", format},
       {"file_mb", packed / 1'000'000},
       {"memory_mb", bytes / 1'000'000}});
}

}  // namespace flotilla::cli
