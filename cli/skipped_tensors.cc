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

}  // namespace flotilla::cli
