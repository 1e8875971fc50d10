#include "router/batch/file_ledger.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/types/text.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

constexpr std::array<std::string_view, kBatchStatuses> kStatusNames = {
    "validating", "failed",  "in_progress", "finalizing",
    "completed",  "expired", "cancelling",  "cancelled"};

absl::Status NoSuch(std::string_view what, std::string_view id) {
  return absl::NotFoundError(Cat("there is no ", what, " '", id.substr(0, 200), "'"));
}

absl::Status QuotaExceeded(std::string_view message) {
  return WithField(absl::ResourceExhaustedError(Cat(message)), "", kQuotaExceeded);
}

absl::Status Lost(std::string_view message) { return absl::DataLossError(Cat(message)); }

// The end of a span that is not negative. Times of a journal may be any.
std::int64_t After(std::int64_t time_s, std::int64_t span_s) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  return time_s > kLast - span_s ? kLast : time_s + span_s;
}

// Whether one batch becomes the other.
bool GoesOn(const StoredBatch& before, const StoredBatch& after) {
  return before.number == after.number && before.tenant == after.tenant &&
         before.order.input_file_id == after.order.input_file_id &&
         before.output_id == after.output_id && before.error_id == after.error_id &&
         Follows(before.status, after.status);
}

// The entries of `numbers` that `find` returns, as a page.
template <class Entry, class Find>
LedgerPage<Entry> PageOf(const std::set<std::uint64_t>& numbers, std::uint64_t after,
                         const PageOrder& order, Find find) {
  LedgerPage<Entry> page;
  // False: the page is full.
  const auto take = [&](std::uint64_t number) {
    const Entry* entry = find(number);
    if (entry == nullptr) return true;
    page.has_more = page.entries.size() == order.limit;
    if (!page.has_more) page.entries.push_back(entry);
    return !page.has_more;
  };
  if (order.newest_first) {
    auto at = after == 0 ? numbers.end() : numbers.lower_bound(after);
    while (at != numbers.begin() && take(*--at)) {
    }
  } else {
    auto at = after == 0 ? numbers.begin() : numbers.upper_bound(after);
    while (at != numbers.end() && take(*at)) ++at;
  }
  return page;
}

}  // namespace

std::string_view NameOf(BatchStatus status) {
  return kStatusNames[static_cast<std::size_t>(status)];
}

std::optional<BatchStatus> BatchStatusNamed(std::string_view name) {
  const auto* const at = std::find(kStatusNames.begin(), kStatusNames.end(), name);
  if (at == kStatusNames.end()) return std::nullopt;
  return static_cast<BatchStatus>(at - kStatusNames.begin());
}

bool IsOver(BatchStatus status) {
  return status == BatchStatus::kFailed || status == BatchStatus::kCompleted ||
         status == BatchStatus::kExpired || status == BatchStatus::kCancelled;
}

bool Follows(BatchStatus before, BatchStatus after) {
  using enum BatchStatus;
  switch (before) {
    case kValidating:
      return after == kInProgress || after == kFailed || after == kExpired || after == kCancelling;
    case kInProgress:
      return after == kFinalizing || after == kFailed || after == kExpired || after == kCancelling;
    case kFinalizing:
      return after == kCompleted || after == kFailed;
    case kCancelling:
      return after == kCancelled;
    default:
      return false;
  }
}

absl::Status FileLedger::Check(const LedgerRecord& record) const {
  // What is new is so in the ledger and within the record.
  std::set<std::string_view> ids, removed;
  std::set<std::uint64_t> numbers;
  const auto is_new = [&](const std::string& id, std::uint64_t number) {
    constexpr std::uint64_t kEnd = std::numeric_limits<std::uint64_t>::max();  // none follows it
    return !id.empty() && NumberOf(id) == 0 && ids.insert(id).second && number >= next_number_ &&
           number < kEnd && numbers.insert(number).second;
  };
  for (const StoredFile& file : record.files) {
    if (!is_new(file.id, file.number)) return Lost(Cat("the file '", file.id, "' comes twice"));
  }
  if (record.batch.has_value()) {
    const StoredBatch& batch = *record.batch;
    const StoredBatch* before = FindBatch(batch.id);
    if (before == nullptr ? !is_new(batch.id, batch.number) : !GoesOn(*before, batch)) {
      return Lost(Cat("the batch '", batch.id, "' comes to ", NameOf(batch.status),
                      " from another status"));
    }
    const bool has_outputs = before == nullptr && !IsOver(batch.status);
    if (has_outputs && (batch.output_id == batch.error_id || outputs_.contains(batch.output_id) ||
                        outputs_.contains(batch.error_id))) {
      return Lost(Cat("the batch '", batch.id, "' writes what another one writes"));
    }
  }
  for (const std::string& id : record.removed) {
    if (NumberOf(id) == 0 || !removed.insert(id).second) {
      return Lost(Cat("'", id, "' is removed and does not exist"));
    }
    if (const StoredBatch* batch = FindBatch(id); batch != nullptr && !IsOver(batch->status)) {
      return Lost(Cat("the batch '", id, "' is removed before it is over"));
    }
  }
  return absl::OkStatus();
}

absl::Status FileLedger::Apply(LedgerRecord record) {
  if (absl::Status s = Check(record); !s.ok()) return s;
  for (const std::string& id : record.removed) Remove(id);
  if (record.batch.has_value()) Put(*std::move(record.batch));
  for (StoredFile& file : record.files) Put(std::move(file));
  return absl::OkStatus();
}

std::vector<LedgerRecord> FileLedger::Snapshot() const {
  std::vector<LedgerRecord> records;
  records.reserve(files_.size() + batches_.size());
  auto file = files_.begin();
  auto batch = batches_.begin();
  while (file != files_.end() || batch != batches_.end()) {
    LedgerRecord& record = records.emplace_back();
    if (batch == batches_.end() || (file != files_.end() && file->first < batch->first)) {
      record.files.push_back((file++)->second);
    } else {
      record.batch = (batch++)->second;
    }
  }
  return records;
}

void FileLedger::Put(StoredFile file) {
  Tenant& tenant = tenants_[file.tenant];
  tenant.files.insert(file.number);
  tenant.bytes += file.bytes;
  file_bytes_ += file.bytes;
  numbers_[file.id] = file.number;
  next_number_ = std::max(next_number_, file.number + 1);
  Watch(file.number, ExpiryOf(file));
  files_[file.number] = std::move(file);
}

void FileLedger::Put(StoredBatch batch) {
  const bool was_open = open_.contains(batch.number);
  const bool is_open = !IsOver(batch.status);
  const std::string& input = batch.order.input_file_id;
  if (is_open && !was_open) {
    open_.insert(batch.number);
    ++readers_[input];
    outputs_[batch.output_id] = outputs_[batch.error_id] = batch.number;
  } else if (was_open && !is_open) {
    open_.erase(batch.number);
    if (--readers_[input] == 0) readers_.erase(input);
    outputs_.erase(batch.output_id);
    outputs_.erase(batch.error_id);
  }
  if (const std::uint64_t number = NumberOf(input); files_.contains(number)) {
    Watch(number, ExpiryOf(files_.at(number)));
  }
  tenants_[batch.tenant].batches.insert(batch.number);
  numbers_[batch.id] = batch.number;
  next_number_ = std::max(next_number_, batch.number + 1);
  Watch(batch.number, ExpiryOf(batch));
  batches_[batch.number] = std::move(batch);
}

void FileLedger::Remove(std::string_view id) {
  const std::uint64_t number = NumberOf(id);
  Watch(number, 0);
  numbers_.erase(std::string(id));
  std::string owner;
  if (const auto file = files_.find(number); file != files_.end()) {
    owner = file->second.tenant;
    Tenant& tenant = tenants_[owner];
    tenant.files.erase(number);
    tenant.bytes -= file->second.bytes;
    file_bytes_ -= file->second.bytes;
    files_.erase(file);
  } else if (const auto batch = batches_.find(number); batch != batches_.end()) {
    owner = batch->second.tenant;
    tenants_[owner].batches.erase(number);
    batches_.erase(batch);
  }
  DropIfEmpty(owner);
}

void FileLedger::DropIfEmpty(const std::string& tenant) {
  const auto at = tenants_.find(tenant);
  if (at != tenants_.end() && at->second.empty()) tenants_.erase(at);
}

void FileLedger::Watch(std::uint64_t number, std::int64_t expiry_s) {
  if (const auto at = watched_.find(number); at != watched_.end()) {
    expiries_.erase({at->second, number});
    watched_.erase(at);
  }
  if (expiry_s == 0) return;
  watched_[number] = expiry_s;
  expiries_.insert({expiry_s, number});
}

std::int64_t FileLedger::ExpiryOf(const StoredFile& file) const {
  return Reads(file.id) ? 0 : file.expires_s;
}

std::int64_t FileLedger::ExpiryOf(const StoredBatch& batch) const {
  if (!IsOver(batch.status)) return 0;
  return After(batch.since_s[static_cast<std::size_t>(batch.status)], limits_.life_s);
}

bool FileLedger::Reads(const std::string& file_id) const { return readers_.contains(file_id); }

// --- Quota -------------------------------------------------------------------

absl::Status FileLedger::Reserve(const std::string& tenant, std::uint64_t bytes) {
  const std::uint64_t used = UsedBytes(tenant);
  if (bytes > limits_.tenant_bytes - std::min(limits_.tenant_bytes, used)) {
    return QuotaExceeded(Cat("files may have ", limits_.tenant_bytes, " bytes in all, of which ",
                             used, " are used; delete files"));
  }
  Hold(tenant, bytes);
  return absl::OkStatus();
}

void FileLedger::Hold(const std::string& tenant, std::uint64_t bytes) {
  if (bytes > 0) tenants_[tenant].reserved += bytes;
}

void FileLedger::Release(const std::string& tenant, std::uint64_t bytes) {
  const auto at = tenants_.find(tenant);
  if (at == tenants_.end()) return;
  at->second.reserved -= std::min(at->second.reserved, bytes);
  DropIfEmpty(tenant);
}

absl::Status FileLedger::CheckRoomForFile(const std::string& tenant) const {
  const Tenant* const owner = TenantOf(tenant);
  if (owner != nullptr && owner->files.size() >= limits_.tenant_files) {
    return QuotaExceeded(Cat("there may be ", limits_.tenant_files, " files; delete files"));
  }
  if (numbers_.size() >= limits_.entries) {
    return QuotaExceeded(Cat("this server keeps ", limits_.entries,
                             " files and batches of all clients, and has no room for another"));
  }
  return absl::OkStatus();
}

std::uint64_t FileLedger::UsedBytes(const std::string& tenant) const {
  const Tenant* const owner = TenantOf(tenant);
  return owner == nullptr ? 0 : owner->bytes + owner->reserved;
}

// --- Changes -----------------------------------------------------------------

absl::StatusOr<LedgerRecord> FileLedger::AddFile(StoredFile file) const {
  if (absl::Status s = CheckRoomForFile(file.tenant); !s.ok()) return s;
  file.number = next_number_;
  if (file.expires_s == 0) file.expires_s = After(file.created_s, limits_.life_s);
  LedgerRecord record;
  record.files.push_back(std::move(file));
  return record;
}

absl::StatusOr<LedgerRecord> FileLedger::RemoveFile(const std::string& tenant, std::string_view id,
                                                    std::int64_t now_s) const {
  const StoredFile* const file = FindFile(tenant, id, now_s);
  if (file == nullptr) return NoSuch("file", id);
  if (Reads(file->id)) {
    return absl::FailedPreconditionError(
        Cat("a batch that is not over reads '", id, "'; cancel this batch first"));
  }
  return LedgerRecord{.files = {}, .batch = std::nullopt, .removed = {file->id}};
}

absl::StatusOr<LedgerRecord> FileLedger::AddBatch(const std::string& tenant, BatchOrder order,
                                                  std::string id, std::string output_id,
                                                  std::string error_id, std::int64_t now_s) const {
  const StoredFile* const input = FindFile(tenant, order.input_file_id, now_s);
  if (input == nullptr) {
    return WithField(NoSuch("file", order.input_file_id), "input_file_id", "");
  }
  if (input->purpose != "batch") {
    return InvalidField("input_file_id", Cat("'", input->id, "' has the purpose ", input->purpose,
                                             "; a batch reads files of the purpose batch"));
  }
  if (absl::Status s = CheckRoomForFile(tenant); !s.ok()) return s;
  LedgerRecord record;
  const Tenant& owner = *TenantOf(tenant);  // who has the input
  if (owner.batches.size() >= limits_.tenant_batches) {
    const auto over = std::find_if(owner.batches.begin(), owner.batches.end(),
                                   [&](std::uint64_t number) { return !open_.contains(number); });
    if (over == owner.batches.end()) {
      return QuotaExceeded(Cat("there may be ", limits_.tenant_batches,
                               " batches that are not over; cancel one, or wait"));
    }
    record.removed.push_back(batches_.at(*over).id);
  }
  StoredBatch& batch = record.batch.emplace();
  batch.id = std::move(id);
  batch.number = next_number_;
  batch.tenant = tenant;
  batch.since_s[0] = now_s;
  batch.expires_s = After(now_s, order.window_s);
  batch.order = std::move(order);
  batch.output_id = std::move(output_id);
  batch.error_id = std::move(error_id);
  return record;
}

absl::StatusOr<std::optional<LedgerRecord>> FileLedger::Cancel(const std::string& tenant,
                                                               std::string_view id,
                                                               std::int64_t now_s) const {
  const StoredBatch* const batch = FindBatch(tenant, id);
  if (batch == nullptr) return NoSuch("batch", id);
  if (batch->status == BatchStatus::kCancelling) return std::optional<LedgerRecord>();
  if (!Follows(batch->status, BatchStatus::kCancelling)) {
    return absl::FailedPreconditionError(
        Cat("a batch whose status is ", NameOf(batch->status), " cannot be cancelled"));
  }
  return std::optional(Advance(id, BatchStatus::kCancelling, now_s));
}

LedgerRecord FileLedger::Advance(std::string_view id, BatchStatus status,
                                 std::int64_t now_s) const {
  LedgerRecord record;
  StoredBatch& batch = record.batch.emplace(*FindBatch(id));
  batch.status = status;
  batch.since_s[static_cast<std::size_t>(status)] = std::max(now_s, batch.created_s());
  return record;
}

LedgerRecord FileLedger::End(std::string_view id, BatchEnd end, std::int64_t now_s) const {
  LedgerRecord record = Advance(id, end.status, now_s);
  StoredBatch& batch = *record.batch;
  batch.counts = end.counts;
  batch.errors = std::move(end.errors);
  batch.has_output = end.output_bytes > 0;
  batch.has_errors = end.error_bytes > 0;
  const std::int64_t life_s =
      batch.order.output_life_s > 0 ? batch.order.output_life_s : limits_.life_s;
  const auto add = [&](const std::string& file_id, std::string_view kind, std::uint64_t bytes) {
    if (bytes == 0) return;
    record.files.push_back({.id = file_id,
                            .number = next_number_ + record.files.size(),
                            .tenant = batch.tenant,
                            .name = Cat(batch.id, "_", kind, ".jsonl"),
                            .purpose = "batch_output",
                            .bytes = bytes,
                            .created_s = now_s,
                            .expires_s = After(now_s, life_s)});
  };
  add(batch.output_id, "output", end.output_bytes);
  add(batch.error_id, "error", end.error_bytes);
  return record;
}

std::optional<LedgerRecord> FileLedger::Expire(std::int64_t now_s) const {
  LedgerRecord record;
  for (const auto& [expiry_s, number] : expiries_) {
    if (expiry_s > now_s) break;
    const auto file = files_.find(number);
    record.removed.push_back(file != files_.end() ? file->second.id : batches_.at(number).id);
  }
  if (record.removed.empty()) return std::nullopt;
  return record;
}

std::optional<std::int64_t> FileLedger::next_expiry_s() const {
  if (expiries_.empty()) return std::nullopt;
  return expiries_.begin()->first;
}

// --- Look-ups ----------------------------------------------------------------

std::uint64_t FileLedger::NumberOf(std::string_view id) const {
  const auto at = numbers_.find(ToAbsl(id));
  return at == numbers_.end() ? 0 : at->second;
}

const FileLedger::Tenant* FileLedger::TenantOf(const std::string& name) const {
  const auto at = tenants_.find(name);
  return at == tenants_.end() ? nullptr : &at->second;
}

const StoredFile* FileLedger::FindFile(const std::string& tenant, std::string_view id,
                                       std::int64_t now_s) const {
  const auto at = files_.find(NumberOf(id));
  if (at == files_.end() || at->second.tenant != tenant) return nullptr;
  const std::int64_t expiry_s = ExpiryOf(at->second);
  return expiry_s != 0 && expiry_s <= now_s ? nullptr : &at->second;
}

const StoredBatch* FileLedger::FindBatch(std::string_view id) const {
  const auto at = batches_.find(NumberOf(id));
  return at == batches_.end() ? nullptr : &at->second;
}

const StoredBatch* FileLedger::FindBatch(const std::string& tenant, std::string_view id) const {
  const StoredBatch* const batch = FindBatch(id);
  return batch != nullptr && batch->tenant == tenant ? batch : nullptr;
}

absl::StatusOr<LedgerPage<StoredFile>> FileLedger::Files(const std::string& tenant,
                                                         const PageOrder& order,
                                                         std::int64_t now_s) const {
  const StoredFile* const after = FindFile(tenant, order.after, now_s);
  if (!order.after.empty() && after == nullptr) return NoSuch("file", order.after);
  const Tenant* const owner = TenantOf(tenant);
  if (owner == nullptr) return LedgerPage<StoredFile>();
  return PageOf<StoredFile>(owner->files, after == nullptr ? 0 : after->number, order,
                            [&](std::uint64_t number) -> const StoredFile* {
                              const StoredFile& file = files_.at(number);
                              if (!order.purpose.empty() && file.purpose != order.purpose) {
                                return nullptr;
                              }
                              return FindFile(tenant, file.id, now_s);
                            });
}

absl::StatusOr<LedgerPage<StoredBatch>> FileLedger::Batches(const std::string& tenant,
                                                            const PageOrder& order) const {
  const StoredBatch* const after = FindBatch(tenant, order.after);
  if (!order.after.empty() && after == nullptr) return NoSuch("batch", order.after);
  const Tenant* const owner = TenantOf(tenant);
  if (owner == nullptr) return LedgerPage<StoredBatch>();
  return PageOf<StoredBatch>(owner->batches, after == nullptr ? 0 : after->number, order,
                             [&](std::uint64_t number) { return &batches_.at(number); });
}

std::vector<const StoredBatch*> FileLedger::Open() const {
  std::vector<const StoredBatch*> open;
  open.reserve(open_.size());
  for (const std::uint64_t number : open_) open.push_back(&batches_.at(number));
  return open;
}

bool FileLedger::Needs(std::string_view id) const {
  return files_.contains(NumberOf(id)) || outputs_.contains(ToAbsl(id));
}

}  // namespace flotilla::router
