// FakeNccl: NCCL without GPUs, for tests. Its ranks are threads of this process, and device memory
// is memory of the host (SimulatedDevice). A message is moved when both ranks have posted it; until
// then, and for some looks more, a call is in progress.
//
// Callers that break NCCL's contract get an error that says so: a send of another count than its
// receive, a call before the last one has ended, a call with a communicator that was aborted.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/compute/cuda/nccl_api.h"

namespace flotilla::testing {

struct FakeNcclOptions {
  std::uint64_t seed = 0;
  int most_looks = 0;  // that a call stays in progress at most, after its messages were moved
  int version = 22809;
};

class FakeNccl {
 public:
  explicit FakeNccl(const FakeNcclOptions& options = {});

  // The functions. They may outlive this object.
  std::shared_ptr<const worker::NcclApi> api() const { return api_; }
  absl::StatusOr<std::shared_ptr<const worker::NcclApi>> Open() const;

  // The rank that makes the n-th call from now on of those that begin something (1: the next) makes
  // no call any more: this one stays in progress, until it is aborted.
  void DieAt(int rank, int call);
  // The communicator of the rank has an error from now on, which nobody has asked for.
  void FailLater(int rank);

  int aborts(int rank) const;
  int messages() const;         // that were moved
  std::int64_t floats() const;  // in them
  int calls(int rank) const;    // that begin something

 private:
  struct World;
  const std::shared_ptr<World> world_;
  std::shared_ptr<worker::NcclApi> api_;
  absl::Status checked_;
};

}  // namespace flotilla::testing
