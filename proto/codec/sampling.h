// SamplingParams as flotilla.v1.Sampling. Used by proto/codec alone; pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/types/sampling.h"
#include "flotilla/v1/sampling.pb.h"

namespace flotilla {

void ToProto(const SamplingParams& sampling, v1::Sampling* proto);
// INVALID_ARGUMENT naming a field of `field`: lists of unequal length, a negative
// token, not a number. Ranges are for the receiver to judge (CheckSampling).
absl::Status FromProto(absl::string_view field, const v1::Sampling& proto,
                       SamplingParams& sampling);

}  // namespace flotilla
