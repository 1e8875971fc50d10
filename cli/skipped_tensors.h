// Says which tensors of a model file the text model does not use, e.g. those of an encoder of
// images, and which take more memory than in the file.
#pragma once

#include <string>

#include "common/obs/log.h"
#include "model/checkpoint.h"

namespace flotilla::cli {

// E.g. "vision_tower. (437, 812.3 MB), multi_modal_projector. (2, 1.0 MB)": the prefix, number and
// size of the tensors. Empty if there are none.
std::string SkippedTensorsText(const model::Checkpoint& file);

// Logs one line about these tensors, if there are any.
void LogSkippedTensors(const model::Checkpoint& file, Logger& log);

// Warns of quantised matrices that no packed kind keeps, so that they take 32 bits for each weight.
void LogUnpackedTensors(const model::Checkpoint& file, Logger& log);

}  // namespace flotilla::cli
