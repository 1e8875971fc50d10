// What the roles have in common: how flags become the options of libraries, and how a
// process reports that it is ready.
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
#include "common/types/tokenizer_bundle.h"
#include "rpc/credentials.h"
#include "scheduler/server/engine_loop.h"
#include "worker/compute/kv_shape.h"
#include "worker/exec/rank.h"

namespace flotilla::cli {

// The model's name for clients: the name that the flags give, or else the file's name.
std::string ModelId(const RoleFlags& flags);
// The types of K and V. INVALID_ARGUMENT names the entry of --kv-layers.
absl::StatusOr<worker::KvFormats> KvFormatsOf(const RoleFlags& flags);
absl::StatusOr<worker::RankOptions> MakeRankOptions(const RoleFlags& flags,
                                                    const std::string& model_id);
// The engine logs preemptions to `log`, which outlives it. INVALID_ARGUMENT names the flag.
absl::StatusOr<scheduler::InProcessEngineOptions> MakeEngineOptions(const RoleFlags& flags,
                                                                    TokenizerContent tokenizer,
                                                                    Logger* log);
TokenizerContent TokenizerContentOf(const TokenizerBundle& tokenizer, const std::string& model_id);
// Reads TokenizerContent::content as a replica sent it. A replica of an earlier version sends a
// model file without tensors. INVALID_ARGUMENT: it is neither.
absl::StatusOr<TokenizerBundle> ReadTokenizerContent(const std::string& content);

// The credentials that this process shows to the rest of the fleet, and those that it demands.
// `clock` and `log` outlive the result. INVALID_ARGUMENT and other errors name the flag or the
// file. FAILED_PRECONDITION: a role that listens for the fleet would accept anybody.
absl::StatusOr<std::shared_ptr<rpc::Credentials>> MakeCredentials(const RoleFlags& flags,
                                                                  bool listens, const Clock* clock,
                                                                  Logger* log);

// Checks that this process can listen where the flags say: on its ports for the fleet if
// `listens`, else on its ports for clients. Call it before work that takes long. UNAVAILABLE or
// INVALID_ARGUMENT: "cannot listen on HOST:PORT (gRPC): ...", with the flag to change.
absl::Status CheckPorts(const RoleFlags& flags, bool listens);

// "host:port", with brackets around an IPv6 address.
std::string HostPort(const std::string& host, int port);
// Writes {"NAME":PORT,...,"pid":PID}, unless `path` is empty. Readers see the whole
// file or none.
absl::Status WriteReadyFile(const std::string& path,
                            const std::vector<std::pair<std::string, int>>& ports);

}  // namespace flotilla::cli
