// UnreadOutput: what all calls of a gRPC server together hold for clients that do not read. When it
// is too much, the call is found that is to be cut off. Used on the I/O loop's thread.
#pragma once

#include <cstddef>
#include <map>

#include "absl/time/time.h"

namespace flotilla::router {

class GenerateStream;

class UnreadOutput {
 public:
  // A client that has taken nothing for `patience` may be cut off when more than `limit` bytes are
  // held.
  UnreadOutput(std::size_t limit, absl::Duration patience) : limit_(limit), patience_(patience) {}

  // The call holds `bytes` from now on; its client last took something at `taken`. 0 bytes: the
  // call is forgotten.
  void Set(GenerateStream* call, std::size_t bytes, absl::Time taken);
  // The call that holds most of those that may be cut off at `now`; null: there is none, or it is
  // not too much.
  GenerateStream* Worst(absl::Time now) const;

 private:
  struct Held {
    std::size_t bytes = 0;
    absl::Time taken;
  };

  const std::size_t limit_;
  const absl::Duration patience_;
  std::map<GenerateStream*, Held> calls_;
  std::size_t bytes_ = 0;
};

}  // namespace flotilla::router
