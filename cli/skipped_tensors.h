// Says which tensors of a model file the text model does not use, e.g. those of an encoder of
// images; which of them take more memory than in the file; and whether K and V have scales of it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "common/obs/log.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/compute/kv_shape.h"

namespace flotilla::cli {

// E.g. "vision_tower. (437, 812.3 MB), multi_modal_projector. (2, 1.0 MB)": the prefix, number and
// size of the tensors. Empty if there are none.
std::string SkippedTensorsText(const model::Checkpoint& file);

// Logs one line about these tensors, if there are any.
void LogSkippedTensors(const model::Checkpoint& file, Logger& log);

// Experts whose gate and up matrices differ in format, or in which k a group has. The two matrices
// of an expert are multiplied together, so both are unpacked to fp32.
struct UnpackedExperts {
  std::uint64_t count = 0;  // in all layers
  std::uint64_t file_bytes = 0, memory_bytes = 0;
  std::set<std::string_view> tensors;  // their names in the file
};
UnpackedExperts FindUnpackedExperts(const model::Checkpoint& file, const model::ModelSpec& spec);

// Warns of quantised matrices that take 32 bits for each weight: of those that no packed kind
// keeps, and of unpacked experts.
void LogUnpackedTensors(const model::Checkpoint& file, const model::ModelSpec& spec, Logger& log);

// Logs one line if K or V of any layer is FP8 and takes its scale from the file.
void LogKvScales(const model::ModelSpec& spec, const worker::KvFormats& kv, Logger& log);

// Logs all of these lines. Of a file that is no model it logs the first one, and the start fails.
void LogTensors(const model::Checkpoint& file, const worker::KvFormats& kv, Logger& log);

}  // namespace flotilla::cli
