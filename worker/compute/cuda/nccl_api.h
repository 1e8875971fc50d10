// NcclApi: the functions of NCCL that flotilla calls, as a table. The library is opened when a
// group needs it, and nothing links it. Tests put their own functions into the table.
//
// The declarations here are flotilla's own and have the ABI of nccl.h, against which
// nccl_exchange_test.cc checks them. NCCL reads as much of a Config as its `size` says, so the
// layout of version 2.18 is good for every later one.
#pragma once

#include <climits>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/ops.h"

namespace flotilla::worker {

struct NcclApi {
  // Results of calls (ncclResult_t) that have a meaning here. All others are errors.
  static constexpr int kSuccess = 0, kInProgress = 7;
  static constexpr int kFloat32 = 7;  // ncclDataType_t
  // The first version with the layout of Config, as NCCL counts.
  static constexpr int kOldestVersion = 21800;

  struct UniqueId {
    char bytes[128];
  };
  using Comm = struct OpaqueComm*;
  struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = kOldestVersion;
    int blocking = 0;
    // NCCL chooses the rest.
    int cga_cluster_size = INT_MIN;
    int min_ctas = INT_MIN;
    int max_ctas = INT_MIN;
    const char* net_name = nullptr;
    int split_share = INT_MIN;
  };

  std::function<int(int*)> get_version;
  std::function<const char*(int)> get_error_string;
  std::function<const char*(Comm)> get_last_error;
  std::function<int(UniqueId*)> get_unique_id;
  std::function<int(Comm*, int ranks, UniqueId, int rank, Config*)> comm_init_rank_config;
  std::function<int(Comm, int*)> comm_get_async_error;
  std::function<int(Comm)> comm_abort;
  std::function<int()> group_start;
  std::function<int()> group_end;
  std::function<int(const void*, std::size_t, int type, int peer, Comm, kernels::cuda::Stream)>
      send;
  std::function<int(void*, std::size_t, int type, int peer, Comm, kernels::cuda::Stream)> recv;

  // E.g. "2.28.9"; set by CheckNccl.
  std::string version;
};

// Opens the library: `path`, or libnccl.so.2 where the system finds it. NOT_FOUND: there is none,
// or it lacks a function; FAILED_PRECONDITION: it is too old. The message is one line.
absl::StatusOr<std::shared_ptr<const NcclApi>> OpenNccl(const std::string& path = "libnccl.so.2");

// Asks the table for its version, and refuses old ones as OpenNccl does.
absl::Status CheckNccl(NcclApi& api);

}  // namespace flotilla::worker
