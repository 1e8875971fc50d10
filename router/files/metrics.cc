#include "router/files/metrics.h"

#include <cstddef>
#include <string>

namespace flotilla::router {

FilesMetrics::FilesMetrics(Metrics& metrics)
    : files_(metrics.AddGauge("flotilla_router_files", "Files kept for clients.")),
      bytes_(metrics.AddGauge("flotilla_router_file_bytes", "Bytes of files kept for clients.")),
      open_(metrics.AddGauge("flotilla_router_batches_open", "Batches that are not over.")),
      working_(metrics.AddGauge("flotilla_router_batches_running",
                                "Batches whose requests are being answered.")),
      uploaded_(metrics.AddCounter("flotilla_router_uploaded_bytes_total",
                                   "Bytes of files that clients have sent.")),
      refused_(metrics.AddCounter("flotilla_router_uploads_refused_total",
                                  "Uploads of files that were refused.")),
      stuck_(metrics.AddCounter("flotilla_router_batch_retries_total",
                                "Times that a batch could not go on and was tried again later.")),
      failed_syncs_(metrics.AddCounter(
          "flotilla_router_file_sync_failures_total",
          "Times that the disk did not keep what it took of files and batches.")),
      read_only_(metrics.AddGauge(
          "flotilla_router_files_read_only",
          "1: files and batches do not change, because their journal cannot be written.")),
      completed_(metrics.AddCounter("flotilla_router_batch_requests_total",
                                    "Requests of batches that were answered, by result.",
                                    {{"result", "completed"}})),
      failed_(metrics.AddCounter("flotilla_router_batch_requests_total",
                                 "Requests of batches that were answered, by result.",
                                 {{"result", "failed"}})) {
  for (std::size_t i = 0; i < kBatchStatuses; ++i) {
    const auto status = static_cast<BatchStatus>(i);
    if (!IsOver(status)) continue;
    over_[i] = &metrics.AddCounter("flotilla_router_batches_total", "Batches that are over.",
                                   {{"status", std::string(NameOf(status))}});
  }
}

void FilesMetrics::OnUploaded(std::uint64_t bytes) {
  uploaded_.Increment(static_cast<double>(bytes));
}
void FilesMetrics::OnUploadRefused() { refused_.Increment(); }

void FilesMetrics::OnState(std::uint64_t files, std::uint64_t bytes, std::uint64_t open,
                           std::uint64_t working) {
  files_.Set(static_cast<double>(files));
  bytes_.Set(static_cast<double>(bytes));
  open_.Set(static_cast<double>(open));
  working_.Set(static_cast<double>(working));
}

void FilesMetrics::OnBatchOver(BatchStatus status) {
  over_[static_cast<std::size_t>(status)]->Increment();
}

void FilesMetrics::OnAnswered(std::uint64_t completed, std::uint64_t failed) {
  completed_.Increment(static_cast<double>(completed));
  failed_.Increment(static_cast<double>(failed));
}

void FilesMetrics::OnStuck() { stuck_.Increment(); }

void FilesMetrics::OnDisk(std::uint64_t failed_syncs, bool read_only) {
  failed_syncs_.Increment(static_cast<double>(failed_syncs));
  read_only_.Set(read_only ? 1 : 0);
}

}  // namespace flotilla::router
