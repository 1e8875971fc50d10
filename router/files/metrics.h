// FilesMetrics: the metrics of the files and batches that a router keeps. docs/api.md lists them.
// Any thread; nothing blocks.
#pragma once

#include <array>
#include <cstdint>

#include "common/obs/metrics.h"
#include "router/batch/file_ledger.h"

namespace flotilla::router {

class FilesMetrics {
 public:
  // `metrics` outlives this object.
  explicit FilesMetrics(Metrics& metrics);

  // Bytes of an upload came, or an upload was refused.
  void OnUploaded(std::uint64_t bytes);
  void OnUploadRefused();
  // What is kept now; batches that are not over, and those of them that are worked on.
  void OnState(std::uint64_t files, std::uint64_t bytes, std::uint64_t open, std::uint64_t working);
  // A batch is over.
  void OnBatchOver(BatchStatus status);
  // So many requests of batches were answered, with status 200 or with another one.
  void OnAnswered(std::uint64_t completed, std::uint64_t failed);
  // A batch could not go on, and is tried again later.
  void OnStuck();
  // So many more syncs have failed; whether nothing changes because of the journal.
  void OnDisk(std::uint64_t failed_syncs, bool read_only);

 private:
  Gauge& files_;
  Gauge& bytes_;
  Gauge& open_;
  Gauge& working_;
  Counter& uploaded_;
  Counter& refused_;
  Counter& stuck_;
  Counter& failed_syncs_;
  Gauge& read_only_;
  Counter& completed_;
  Counter& failed_;
  std::array<Counter*, kBatchStatuses> over_ = {};  // null for a status that ends no batch
};

}  // namespace flotilla::router
