// Converts SamplingParams to flotilla.v1.Sampling and back. Only proto/codec uses this; pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/types/sampling.h"
#include "flotilla/v1/sampling.pb.h"

namespace flotilla::codec {

void ToProto(const SamplingParams& sampling, v1::Sampling* proto);
// INVALID_ARGUMENT names a field of `field`. It means lists of unequal length, a negative
// token, or a value that is not a number. The receiver checks ranges (CheckSampling).
absl::Status FromProto(absl::string_view field, const v1::Sampling& proto,
                       SamplingParams& sampling);

}  // namespace flotilla::codec
