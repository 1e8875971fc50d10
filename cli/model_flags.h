// Checks the flags whose valid values depend on the model, before its weights are loaded and before
// processes are started for it. Errors name the flags as the user typed them. Libraries check their
// options too, but their messages are for programmers.
#pragma once

#include "absl/status/status.h"
#include "cli/flags.h"
#include "model/checkpoint.h"
#include "worker/exec/rank.h"

namespace flotilla::cli {

// `options` come from MakeRankOptions(flags). INVALID_ARGUMENT and RESOURCE_EXHAUSTED name a
// flag and its value; other errors are about the file.
absl::Status CheckModelFlags(const RoleFlags& flags, const worker::RankOptions& options,
                             const model::Checkpoint& file);

}  // namespace flotilla::cli
