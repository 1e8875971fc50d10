// FilesService: the files and batches that a router keeps for its clients, and the thread that they
// live on. Owned by main.
//
// I/O threads post functions, which run on the files thread and get the room. None waits for the
// disk. A request has one function posted at a time, and one more when its client leaves, so there
// are at most twice as many as connections, and those that work on batches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"
#include "router/batch/file_ledger.h"
#include "router/files/files_room.h"
#include "router/files/metrics.h"
#include "router/service.h"

namespace flotilla::router {

struct FilesOptions {
  std::string folder;
  FileLimits limits;
  std::uint32_t concurrency = 4;        // requests of batches in flight
  bool permissive = false;              // see ParseOptions
  std::function<std::int64_t()> now_s;  // Unix time
};

class FilesService {
 public:
  // The parts outlive it.
  struct Parts {
    InferenceService* service = nullptr;
    const Clock* clock = nullptr;
    Logger* log = nullptr;
    FilesMetrics* metrics = nullptr;
  };

  // Opens the folder and goes on with the batches in it. Errors: those of FileStore::Open.
  static absl::StatusOr<std::unique_ptr<FilesService>> Open(FilesOptions options,
                                                            const Parts& parts);
  // Nobody posts any more.
  virtual ~FilesService() = default;

  // Runs `work` once, later, on the files thread. Any thread; never blocks.
  virtual void Post(std::function<void(FilesRoom& room)> work) = 0;

  // Drops the requests of batches that are in flight; none starts any more. The next process that
  // opens the folder computes them. Idempotent.
  virtual void StopBatches() = 0;

  virtual std::uint64_t max_file_bytes() const = 0;
};

}  // namespace flotilla::router
