// The flags that only the model can judge, judged before its weights are loaded and before
// processes are started for it, by the names that their user typed. Libraries check their
// options all the same; what they say of them is for programmers.
#pragma once

#include "absl/status/status.h"
#include "cli/flags.h"
#include "model/gguf.h"
#include "worker/rank.h"

namespace flotilla {

// `options` are those of MakeRankOptions(flags). INVALID_ARGUMENT or RESOURCE_EXHAUSTED: a
// flag, named with its value; other errors are about the file.
absl::Status CheckModelFlags(const RoleFlags& flags, const RankOptions& options,
                             const GgufFile& file);

}  // namespace flotilla
