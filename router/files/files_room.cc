#include "router/files/files_room.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "common/rt/write_to_file.h"
#include "common/types/text.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
// A batch that cannot go on, e.g. because the disk is full, is tried again after this time.
constexpr std::int64_t kRetryNs = 30 * kSecondNs;
// A router that has just started may not have met all of its models for so long.
constexpr std::int64_t kModelsDueNs = 60 * kSecondNs;
// What is too old is dropped at most this late. (Nobody sees it in between.)
constexpr std::int64_t kLongestRestNs = 60 * kSecondNs;
// While a file comes, it is synced in between, so that the last sync takes no long time.
constexpr std::uint64_t kSyncBytes = 8 << 20;

absl::Status NoSuchFile(std::string_view id) {
  return absl::NotFoundError(Cat("there is no file '", id.substr(0, 200), "'"));
}

}  // namespace

FilesRoom::FilesRoom(Parts parts)
    : parts_(std::move(parts)), models_due_ns_(parts_.clock->NowNs() + kModelsDueNs) {}

// --- Files -------------------------------------------------------------------

IncomingFile::~IncomingFile() {
  store_.ledger().Release(tenant_, bytes_);
  if (!added_) store_.RemoveData(id_);
  on_gone_();
}

absl::Status IncomingFile::Write(std::string_view bytes) {
  const std::uint64_t most = store_.ledger().limits().file_bytes;
  if (bytes.size() > most - bytes_) {
    return InvalidField("file", Cat("the file is longer than ", most, " bytes"));
  }
  if (absl::Status s = store_.ledger().Reserve(tenant_, bytes.size()); !s.ok()) return s;
  bytes_ += bytes.size();
  unsynced_ += bytes.size();
  bool kept = WriteToFile(fd_.get(), bytes);
  if (kept && unsynced_ >= kSyncBytes) {
    unsynced_ = 0;
    kept = store_.disk().Sync(fd_.get());
  }
  if (kept) return absl::OkStatus();
  return absl::UnavailableError(Cat("cannot keep it: ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<IncomingFile>> FilesRoom::BeginFile(const std::string& tenant) {
  if (absl::Status s = ledger().CheckRoomForFile(tenant); !s.ok()) return s;
  if (absl::Status s = parts_.store->CheckJournal(); !s.ok()) return s;
  const auto at = uploads_.find(tenant);
  const std::size_t running = at == uploads_.end() ? 0 : at->second;
  // Without keys all clients are one tenant.
  const std::size_t most = tenant.empty() ? kMaxUploads : kTenantUploads;
  if (running >= most || all_uploads_ >= kMaxUploads) {
    return WithRetryAfter(
        absl::ResourceExhaustedError(all_uploads_ < kMaxUploads
                                         ? Cat(kTenantUploads, " of your uploads are running")
                                         : Cat(kMaxUploads, " uploads of all clients are running")),
        kSecondNs / 1'000'000);
  }
  std::string id = parts_.new_id("file-");
  absl::StatusOr<UniqueFd> fd = parts_.store->CreateData(id);
  if (!fd.ok()) return fd.status();
  ++uploads_[tenant];
  ++all_uploads_;
  return std::make_unique<IncomingFile>(parts_.store, tenant, std::move(id), *std::move(fd),
                                        [this, tenant] {
                                          --all_uploads_;
                                          if (--uploads_[tenant] == 0) uploads_.erase(tenant);
                                        });
}

absl::StatusOr<StoredFile> FilesRoom::AddFile(IncomingFile& file, std::string name,
                                              std::int64_t life_s) {
  const std::int64_t now_s = parts_.now_s();
  absl::StatusOr<LedgerRecord> record =
      ledger().AddFile({.id = file.id_,
                        .tenant = file.tenant_,
                        .name = std::move(name),
                        .purpose = "batch",
                        .bytes = file.bytes_,
                        .created_s = now_s,
                        .expires_s = life_s > 0 ? now_s + life_s : 0});
  if (!record.ok()) return record.status();
  if (absl::Status s = parts_.store->SyncData(file.fd_.get()); !s.ok()) return s;
  StoredFile added = record->files.front();
  const bool was_broken = parts_.store->broken();
  // If nobody knows whether the journal has it on the disk, even after an exception, the bytes
  // stay. Once the store is repaired it removes them; or the next process finds it out.
  file.added_ = !was_broken;
  const absl::Status s = Commit(*std::move(record));
  file.added_ = s.ok() || (!was_broken && parts_.store->broken());
  if (!s.ok()) return s;
  return added;
}

absl::StatusOr<StoredFile> FilesRoom::GetFile(const std::string& tenant,
                                              std::string_view id) const {
  const StoredFile* const file = ledger().FindFile(tenant, id, parts_.now_s());
  if (file == nullptr) return NoSuchFile(id);
  return *file;
}

absl::StatusOr<LedgerPage<StoredFile>> FilesRoom::ListFiles(const std::string& tenant,
                                                            const PageOrder& order) const {
  return ledger().Files(tenant, order, parts_.now_s());
}

absl::Status FilesRoom::RemoveFile(const std::string& tenant, std::string_view id) {
  absl::StatusOr<LedgerRecord> record = ledger().RemoveFile(tenant, id, parts_.now_s());
  return record.ok() ? Commit(*std::move(record)) : record.status();
}

absl::StatusOr<FileContent> FilesRoom::OpenFile(const std::string& tenant,
                                                std::string_view id) const {
  const StoredFile* const file = ledger().FindFile(tenant, id, parts_.now_s());
  if (file == nullptr) return NoSuchFile(id);
  absl::StatusOr<UniqueFd> fd = parts_.store->OpenData(file->id);
  if (!fd.ok()) return fd.status();
  return FileContent{.fd = *std::move(fd), .bytes = file->bytes};
}

// --- Batches -----------------------------------------------------------------

absl::StatusOr<StoredBatch> FilesRoom::AddBatch(const std::string& tenant, BatchOrder order) {
  absl::StatusOr<LedgerRecord> record =
      ledger().AddBatch(tenant, std::move(order), parts_.new_id("batch_"), parts_.new_id("file-"),
                        parts_.new_id("file-"), parts_.now_s());
  if (!record.ok()) return record.status();
  StoredBatch batch = *record->batch;
  if (absl::Status s = Commit(*std::move(record)); !s.ok()) return s;
  parts_.on_reply();
  return batch;
}

absl::StatusOr<StoredBatch> FilesRoom::GetBatch(const std::string& tenant,
                                                std::string_view id) const {
  const StoredBatch* const batch = ledger().FindBatch(tenant, id);
  if (batch == nullptr) {
    return absl::NotFoundError(Cat("there is no batch '", id.substr(0, 200), "'"));
  }
  return WithCounts(*batch);
}

absl::StatusOr<std::pair<std::vector<StoredBatch>, bool>> FilesRoom::ListBatches(
    const std::string& tenant, const PageOrder& order) const {
  const absl::StatusOr<LedgerPage<StoredBatch>> page = ledger().Batches(tenant, order);
  if (!page.ok()) return page.status();
  std::pair<std::vector<StoredBatch>, bool> list{{}, page->has_more};
  for (const StoredBatch* batch : page->entries) list.first.push_back(WithCounts(*batch));
  return list;
}

absl::StatusOr<StoredBatch> FilesRoom::CancelBatch(const std::string& tenant, std::string_view id) {
  absl::StatusOr<std::optional<LedgerRecord>> record = ledger().Cancel(tenant, id, parts_.now_s());
  if (!record.ok()) return record.status();
  if (record->has_value()) {
    if (absl::Status s = Commit(**std::move(record)); !s.ok()) return s;
    parts_.on_reply();
  }
  return GetBatch(tenant, id);
}

StoredBatch FilesRoom::WithCounts(const StoredBatch& batch) const {
  StoredBatch now = batch;
  const auto work = works_.find(batch.id);
  if (work != works_.end() && work->second->phase() == BatchWork::Phase::kAnswering) {
    now.counts = work->second->counts();
  }
  return now;
}

// --- Work --------------------------------------------------------------------

std::int64_t FilesRoom::Step() {
  if (stopped_) return kLongestRestNs;
  WatchDisk();
  ExpireOld();
  StartWorks();
  const std::int64_t now_ns = parts_.clock->NowNs();
  std::int64_t due_ns = now_ns + kLongestRestNs;
  for (auto at = works_.begin(); at != works_.end();) {
    BatchWork& work = *at->second;
    work.SetConcurrency(
        std::max<std::uint32_t>(1, parts_.concurrency / static_cast<std::uint32_t>(works_.size())));
    const absl::StatusOr<bool> goes_on = OrNoMemory([&] { return StepWork(work); });
    Count(work);
    if (goes_on.ok() && *goes_on) {
      const bool at_once = work.phase() != BatchWork::Phase::kAnswering;
      due_ns = std::min(due_ns, at_once ? now_ns : work.due_ns(now_ns, kLongestRestNs));
      const std::int64_t left_s = ledger().FindBatch(work.id())->expires_s - parts_.now_s();
      due_ns = std::min(due_ns, now_ns + std::max<std::int64_t>(left_s, 0) * kSecondNs);
      ++at;
      continue;
    }
    if (!goes_on.ok() && Retry(work, goes_on.status())) {
      retry_ns_[work.id()] = now_ns + kRetryNs;
      kept_[work.id()] = work.kept();
    } else {
      kept_.erase(work.id());
      due_ns = now_ns;  // another batch has its turn
    }
    counted_.erase(work.id());
    at = works_.erase(at);
  }
  for (const auto& [id, retry_ns] : retry_ns_) due_ns = std::min(due_ns, retry_ns);
  if (parts_.store->broken()) due_ns = std::min(due_ns, std::max(now_ns, repair_ns_));
  parts_.metrics->OnState(ledger().file_count(), ledger().file_bytes(), ledger().Open().size(),
                          works_.size());
  return std::max<std::int64_t>(due_ns - now_ns, 0);
}

void FilesRoom::WatchDisk() {
  const std::uint64_t failed = parts_.store->disk().failures() - failed_syncs_;
  failed_syncs_ += failed;
  if (failed > 0) {
    parts_.log->Error("the disk did not keep what it took of files and batches",
                      {{"failed_syncs", failed}});
  }
  const std::int64_t now_ns = parts_.clock->NowNs();
  if (parts_.store->broken() && now_ns >= repair_ns_) {
    repair_ns_ = now_ns + kRetryNs;
    const absl::Status repaired = parts_.store->Repair();
    if (repaired.ok()) {
      parts_.log->Info("the journal of files and batches was written anew", {});
    } else {
      parts_.log->Error("files and batches do not change until their journal can be written",
                        {{"reason", repaired}});
    }
  }
  parts_.metrics->OnDisk(failed, parts_.store->broken());
}

absl::Status FilesRoom::Commit(LedgerRecord record) {
  absl::Status s = parts_.store->Commit(std::move(record));
  // The next step tells of a disk that fails. It may have kept this change, but not its successor.
  if (!s.ok() || parts_.store->broken()) parts_.on_reply();
  return s;
}

void FilesRoom::StartWorks() {
  const std::int64_t now_ns = parts_.clock->NowNs();
  absl::erase_if(retry_ns_, [now_ns](const auto& retry) { return retry.second <= now_ns; });
  if (parts_.store->broken()) return;  // they could not end
  std::set<std::string> busy;
  for (const auto& [id, work] : works_) busy.insert(work->tenant());
  for (const StoredBatch* batch : ledger().Open()) {
    if (works_.size() >= kMaxWorks) return;
    if (!busy.insert(batch->tenant).second) continue;
    if (retry_ns_.contains(batch->id)) continue;
    works_[batch->id] =
        std::make_unique<BatchWork>(BatchWork::Parts{.store = parts_.store,
                                                     .handler = parts_.handler,
                                                     .clock = parts_.clock,
                                                     .on_reply = parts_.on_reply,
                                                     .models_due_ns = models_due_ns_},
                                    *batch, kept_[batch->id]);
  }
}

absl::StatusOr<bool> FilesRoom::StepWork(BatchWork& work) {
  using Phase = BatchWork::Phase;
  const StoredBatch& batch = *ledger().FindBatch(work.id());
  const bool never_began = batch.since_s[static_cast<std::size_t>(BatchStatus::kInProgress)] == 0;
  const bool cancelled = batch.status == BatchStatus::kCancelling;
  const bool late = batch.expires_s <= parts_.now_s();
  if (never_began && cancelled) return EndWork(work, BatchStatus::kCancelled);
  if (never_began && late) return EndWork(work, BatchStatus::kExpired);
  if (work.phase() == Phase::kReading) {
    if (absl::Status s = work.Read(); !s.ok()) return s;
  }
  if (work.phase() == Phase::kWrong) return EndWork(work, BatchStatus::kFailed);
  if (work.phase() == Phase::kRead) {
    if (never_began) {
      if (absl::Status s = Advance(work, BatchStatus::kInProgress); !s.ok()) return s;
    }
    if (absl::Status s = work.Begin(); !s.ok()) return s;
  }
  if (work.phase() == Phase::kRecovering) {
    if (absl::Status s = work.Recover(); !s.ok()) return s;
    counted_[work.id()] = work.counts();  // an earlier process counted these
    if (work.phase() == Phase::kAnswering && work.damaged()) {
      parts_.log->Warning("answers of a batch were damaged, so they and later ones do not count",
                          {{"batch", work.id()}, {"tenant", work.tenant()}});
    }
  }
  if (work.phase() != Phase::kAnswering) return true;
  if (cancelled) return EndWork(work, BatchStatus::kCancelled);
  if (work.complete()) return EndWork(work, work.complete_status());
  if (late) return EndWork(work, BatchStatus::kExpired);
  if (absl::Status s = work.Step(); !s.ok()) return s;
  return work.complete() ? EndWork(work, work.complete_status()) : absl::StatusOr<bool>(true);
}

absl::StatusOr<bool> FilesRoom::EndWork(BatchWork& work, BatchStatus status) {
  work.Stop();
  if (work.phase() == BatchWork::Phase::kAnswering) {
    if (status == BatchStatus::kExpired) {
      if (absl::Status s = work.FailTheRest(); !s.ok()) return s;
    }
    if (absl::Status s = work.Sync(); !s.ok()) return s;
    if (status == BatchStatus::kCompleted &&
        ledger().FindBatch(work.id())->status == BatchStatus::kInProgress) {
      if (absl::Status s = Advance(work, BatchStatus::kFinalizing); !s.ok()) return s;
    }
  }
  if (absl::Status s = CommitEnd(work.id(), work.End(status)); !s.ok()) return s;
  return false;
}

bool FilesRoom::Retry(BatchWork& work, const absl::Status& why) {
  const StoredBatch& batch = *ledger().FindBatch(work.id());
  const bool began = batch.since_s[static_cast<std::size_t>(BatchStatus::kInProgress)] != 0;
  const bool no_room = ErrorCode(why) == kQuotaExceeded;
  const bool late = batch.expires_s <= parts_.now_s();
  // What the disk does not take now, it may take later: the answers, or the record of the end that
  // the batch has come to. Only what cannot be read is not waited for when the window is over.
  const bool reads = began && (work.phase() == BatchWork::Phase::kReading ||
                               work.phase() == BatchWork::Phase::kRecovering);
  const bool waits = absl::IsUnavailable(why) && !reads;
  parts_.log->Warning("batch cannot go on",
                      {{"batch", work.id()}, {"tenant", work.tenant()}, {"reason", why}});
  work.Stop();
  // What may not be on the disk is not counted for good: a new work writes it again.
  const bool synced = work.Sync().ok();
  if (synced && (no_room || (late && !waits))) {
    const bool cancelled = batch.status == BatchStatus::kCancelling;
    BatchEnd end = work.End(cancelled ? BatchStatus::kCancelled : BatchStatus::kFailed);
    // The log has the other reasons, which name paths of this server.
    end.errors.push_back(
        {.code = no_room ? std::string(kQuotaExceeded) : "server_error",
         .message = no_room ? std::string(why.message())
                            : "the server could not go on with the batch until its window was over",
         .param = "",
         .line = 0});
    if (CommitEnd(work.id(), std::move(end)).ok()) return false;
  }
  parts_.metrics->OnStuck();
  return true;
}

absl::Status FilesRoom::Advance(const BatchWork& work, BatchStatus status) {
  return Commit(ledger().Advance(work.id(), status, parts_.now_s()));
}

absl::Status FilesRoom::CommitEnd(std::string_view id, BatchEnd end) {
  const BatchStatus status = end.status;
  const RequestCounts counts = end.counts;
  absl::Status s = Commit(ledger().End(id, std::move(end), parts_.now_s()));
  if (!s.ok()) return s;
  parts_.metrics->OnBatchOver(status);
  parts_.log->Info("batch over", {{"batch", id},
                                  {"status", NameOf(status)},
                                  {"requests", counts.total},
                                  {"completed", counts.completed},
                                  {"failed", counts.failed}});
  return s;
}

void FilesRoom::Count(const BatchWork& work) {
  if (work.phase() != BatchWork::Phase::kAnswering) return;
  RequestCounts& before = counted_[work.id()];
  const RequestCounts now = work.counts();
  parts_.metrics->OnAnswered(now.completed - before.completed, now.failed - before.failed);
  before = now;
}

void FilesRoom::ExpireOld() {
  const std::int64_t now_ns = parts_.clock->NowNs();
  if (now_ns < expire_ns_) return;
  std::optional<LedgerRecord> record = ledger().Expire(parts_.now_s());
  if (!record.has_value()) return;
  const absl::Status dropped = Commit(*std::move(record));
  if (dropped.ok()) return;
  parts_.log->Warning("files cannot be dropped", {{"reason", dropped}});
  expire_ns_ = now_ns + kRetryNs;
}

void FilesRoom::Stop() {
  stopped_ = true;
  for (auto& [id, work] : works_) {
    work->Stop();
    work->Sync().IgnoreError();  // the next process writes the answers again
  }
  works_.clear();
  retry_ns_.clear();
}

}  // namespace flotilla::router
