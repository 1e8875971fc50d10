// Mutated journals of files and batches. A line of an input that begins with '{' gets its checksum
// here, which mutations would never hit. Whatever the journal, a ledger is made of it that can be
// used, or it is refused, and what is written of the ledger makes the same one again.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "router/batch/file_journal.h"
#include "router/batch/file_ledger.h"
#include "router/files/disk.h"
#include "router/files/file_store.h"
#include "tests/fuzz/input_limits.h"
#include "tests/fuzz/model_folder.h"

namespace {

using namespace flotilla::router;

[[noreturn]] void Fail(const char* what, const std::string& which) {
  std::fprintf(stderr, "%s: %s\n", what, which.c_str());
  std::abort();
}

std::string WithChecksums(std::string_view input) {
  std::string journal;
  while (!input.empty()) {
    const std::size_t end = input.find('\n');
    const std::string_view line = input.substr(0, end);
    if (line.starts_with('{')) {
      std::uint64_t hash = 0xcbf29ce484222325ull;
      for (const unsigned char c : line) hash = (hash ^ c) * 0x100000001b3ull;
      journal += absl::StrFormat("%016x ", hash);
    }
    journal += line;
    if (end == std::string_view::npos) break;
    journal += '\n';
    input.remove_prefix(end + 1);
  }
  return journal;
}

// All that a ledger says, as text.
std::string Describe(const FileLedger& ledger, std::int64_t now_s) {
  std::string text;
  const auto add = [&text](const std::string& word) { text += word + "\n"; };
  for (const LedgerRecord& record : ledger.Snapshot()) {
    text += JournalLine(record);
    for (const StoredFile& file : record.files) {
      const bool found = ledger.FindFile(file.tenant, file.id, now_s) != nullptr;
      add(absl::StrFormat("%d %d %d", found, ledger.Needs(file.id), ledger.UsedBytes(file.tenant)));
      if (const auto page = ledger.Files(file.tenant, {.after = file.id}, now_s); page.ok()) {
        for (const StoredFile* each : page->entries) add(each->id);
      }
    }
    if (!record.batch.has_value()) continue;
    const StoredBatch& batch = *record.batch;
    if (ledger.FindBatch(batch.tenant, batch.id) == nullptr) Fail("a batch is not found", batch.id);
    add(absl::StrFormat("%d %d", ledger.Needs(batch.output_id), ledger.Needs(batch.error_id)));
    const auto page = ledger.Batches(batch.tenant, {.after = batch.id, .newest_first = false});
    for (const StoredBatch* each : page->entries) add(each->id);
  }
  for (const StoredBatch* batch : ledger.Open()) add("open " + batch->id);
  add(absl::StrFormat("%d %d %d", ledger.file_count(), ledger.file_bytes(),
                      ledger.next_expiry_s().value_or(0)));
  return text;
}

// The sums of a ledger are those of what is in it.
void CheckSums(const FileLedger& ledger) {
  std::uint64_t bytes = 0;
  std::size_t files = 0;
  for (const LedgerRecord& record : ledger.Snapshot()) {
    for (const StoredFile& file : record.files) {
      bytes += file.bytes;
      ++files;
    }
  }
  if (bytes != ledger.file_bytes() || files != ledger.file_count()) {
    Fail("the sums are not those of the files", std::to_string(bytes));
  }
}

std::int64_t TimeOf(const FileLedger& ledger) { return ledger.next_expiry_s().value_or(0); }

// Goes on with a ledger as a router does: what is due expires, and batches go on.
void GoOn(FileLedger& ledger) {
  for (int round = 0; round < 2; ++round) {
    if (std::optional<LedgerRecord> record = ledger.Expire(TimeOf(ledger))) {
      if (!ledger.Apply(*std::move(record)).ok()) Fail("what is due cannot expire", "");
    }
    std::vector<std::string> open;
    for (const StoredBatch* batch : ledger.Open()) open.push_back(batch->id);
    for (const std::string& id : open) {
      const StoredBatch& batch = *ledger.FindBatch(id);
      const std::string tenant = batch.tenant;
      const BatchStatus status =
          batch.status == BatchStatus::kCancelling ? BatchStatus::kCancelled : BatchStatus::kFailed;
      if (!ledger.Apply(ledger.End(id, {.status = status, .output_bytes = 7}, 1'000'000)).ok()) {
        Fail("a batch cannot end", id);
      }
    }
    absl::StatusOr<LedgerRecord> added =
        ledger.AddFile({.id = "new" + std::to_string(round), .tenant = "t", .bytes = 1});
    if (added.ok()) ledger.Apply(*std::move(added)).IgnoreError();
    CheckSums(ledger);
  }
}

// A folder with this journal.
class StoreFolder {
 public:
  StoreFolder() {
    std::filesystem::create_directory(path());
    std::filesystem::create_directory(path() + "/data");
  }
  std::string path() const { return folder_.path() + "/store"; }
  std::string Open(std::string_view journal) const {
    folder_.Write("store/journal", journal);
    folder_.Write("store/data/file-stray", "x");
    const auto store = FileStore::Open(path(), {}, disk_.get());
    if (!store.ok()) return std::string(store.status().message());
    return Describe((*store)->ledger(), TimeOf((*store)->ledger()));
  }

 private:
  // Nothing needs to outlive the machine.
  class NoDisk final : public Disk {
    bool DoSync(int) override { return true; }
  };
  const flotilla::testing::ModelFolder folder_;
  const std::unique_ptr<Disk> disk_ = std::make_unique<NoDisk>();
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  static const StoreFolder folder;
  const std::string journal = WithChecksums({reinterpret_cast<const char*>(input), size});
  const flotilla::testing::InputLimits limits(size);
  FileLedger ledger({});
  const absl::StatusOr<std::size_t> whole = ReplayJournal(journal, ledger);
  if (whole.ok() && *whole > journal.size()) Fail("more than the journal counts", journal);
  if (!whole.ok()) return 0;
  CheckSums(ledger);
  const std::int64_t now_s = TimeOf(ledger);
  const std::string before = Describe(ledger, now_s);
  // What counts of the journal makes the same ledger, and so does its snapshot.
  FileLedger cut({}), again({});
  if (*whole < journal.size()) {
    const auto cut_whole = ReplayJournal(std::string_view(journal).substr(0, *whole), cut);
    if (!cut_whole.ok() || *cut_whole != *whole) Fail("what counts does not count again", journal);
    if (Describe(cut, now_s) != before) Fail("what counts is another ledger", before);
  }
  std::string text;
  for (const LedgerRecord& record : ledger.Snapshot()) text += JournalLine(record);
  const auto again_whole = ReplayJournal(text, again);
  if (!again_whole.ok() || *again_whole != text.size()) Fail("a snapshot is no journal", text);
  if (const std::string after = Describe(again, now_s); after != before) {
    Fail("a snapshot is another ledger", before + "\n---\n" + after);
  }
  // On a disk, too, where each opening costs as much as a hundred of the above.
  if (size % 64 == 0) {
    const std::string stored = folder.Open(journal);
    if (stored != before) Fail("a store has another ledger", before + "\n---\n" + stored);
  }
  GoOn(ledger);
  return 0;
}
