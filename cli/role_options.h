// What the roles have in common: flags turned into the options of libraries, and how a
// process says that it is ready.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/flags.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "model/gguf.h"
#include "rpc/credentials.h"
#include "scheduler/server/engine_loop.h"
#include "worker/rank.h"

namespace flotilla {

// The model's name for clients: as the flags say, or as the file is called.
std::string ModelId(const RoleFlags& flags);
absl::StatusOr<RankOptions> MakeRankOptions(const RoleFlags& flags, const std::string& model_id);
// Preemptions go to `log`, which outlives the engine. INVALID_ARGUMENT names the flag.
absl::StatusOr<InProcessEngineOptions> MakeEngineOptions(const RoleFlags& flags,
                                                         TokenizerContent tokenizer, Logger* log);
TokenizerContent TokenizerContentOf(const GgufFile& file, const std::string& model_id);

// What this process shows to the rest of the fleet, and demands of it. `clock` and `log`
// outlive it. INVALID_ARGUMENT and others name the flag or the file; FAILED_PRECONDITION:
// a role that listens for the fleet would take anybody.
absl::StatusOr<std::shared_ptr<rpc::Credentials>> MakeCredentials(const RoleFlags& flags,
                                                                  bool listens, const Clock* clock,
                                                                  Logger* log);

// Whether this process could listen where the flags say: on its ports for the fleet if
// `listens`, else on those for clients. To be asked before what takes long. UNAVAILABLE or
// INVALID_ARGUMENT: "cannot listen on HOST:PORT (gRPC): ...", with the flag to change.
absl::Status CheckPorts(const RoleFlags& flags, bool listens);

// "host:port", brackets around an IPv6 address.
std::string HostPort(const std::string& host, int port);
// Writes {"NAME":PORT,...,"pid":PID}, unless `path` is empty. Readers see the whole
// file or none.
absl::Status WriteReadyFile(const std::string& path,
                            const std::vector<std::pair<std::string, int>>& ports);

}  // namespace flotilla
