// The ledger of files and batches, and its journal: what tenants may have, who sees what, and that
// a process that dies at any byte of the journal finds all that it had told its clients.
#include "router/batch/file_ledger.h"

#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/batch/file_journal.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kDay = 86'400;

std::string TextOf(const FileLedger& ledger) {
  std::string text;
  for (const LedgerRecord& record : ledger.Snapshot()) text += JournalLine(record);
  return text;
}

class FileLedgerTest : public ::testing::Test {
 protected:
  static FileLimits Limits() {
    FileLimits limits;
    limits.tenant_bytes = 100;
    limits.tenant_files = 3;
    limits.tenant_batches = 2;
    limits.life_s = 30 * kDay;
    return limits;
  }
  absl::Status Add(const std::string& tenant, const std::string& id, std::uint64_t bytes,
                   std::int64_t now_s = 1000, std::int64_t expires_s = 0) {
    absl::StatusOr<LedgerRecord> record = ledger_.AddFile({.id = id,
                                                           .tenant = tenant,
                                                           .name = "n",
                                                           .purpose = "batch",
                                                           .bytes = bytes,
                                                           .created_s = now_s,
                                                           .expires_s = expires_s});
    return record.ok() ? ledger_.Apply(*std::move(record)) : record.status();
  }
  absl::Status Order(const std::string& tenant, const std::string& input, const std::string& id,
                     std::int64_t now_s = 1000) {
    absl::StatusOr<LedgerRecord> record = ledger_.AddBatch(tenant,
                                                           {.input_file_id = input,
                                                            .endpoint = "/v1/completions",
                                                            .completion_window = "24h",
                                                            .window_s = kDay,
                                                            .metadata = "null"},
                                                           id, id + "-out", id + "-err", now_s);
    return record.ok() ? ledger_.Apply(*std::move(record)) : record.status();
  }
  void Go(const std::string& id, BatchStatus status, std::int64_t now_s = 2000) {
    ASSERT_TRUE(ledger_.Apply(ledger_.Advance(id, status, now_s)).ok());
  }
  std::vector<std::string> Files(const std::string& tenant, const PageOrder& order,
                                 std::int64_t now_s = 1000) {
    std::vector<std::string> ids;
    const auto page = ledger_.Files(tenant, order, now_s);
    EXPECT_TRUE(page.ok()) << page.status();
    for (const StoredFile* file : page->entries) ids.push_back(file->id);
    if (page->has_more) ids.push_back("...");
    return ids;
  }

  FileLedger ledger_{Limits()};
};

TEST_F(FileLedgerTest, ATenantHasAQuotaOfBytesAndOfFiles) {
  EXPECT_TRUE(ledger_.Reserve("a", 60).ok());
  EXPECT_EQ(ErrorCode(ledger_.Reserve("a", 41)), kQuotaExceeded);
  EXPECT_TRUE(ledger_.Reserve("a", 40).ok());
  EXPECT_TRUE(ledger_.Reserve("b", 100).ok());  // another tenant's is untouched
  ledger_.Release("a", 100);
  ASSERT_TRUE(Add("a", "f1", 90).ok());
  EXPECT_EQ(ledger_.UsedBytes("a"), 90u);
  const absl::Status full = ledger_.Reserve("a", 11);
  EXPECT_THAT(std::string(full.message()), HasSubstr("100 bytes in all, of which 90 are used"));
  ASSERT_TRUE(Add("a", "f2", 0).ok());
  ASSERT_TRUE(Add("a", "f3", 0).ok());
  EXPECT_EQ(ErrorCode(Add("a", "f4", 0)), kQuotaExceeded);
  ASSERT_TRUE(ledger_.Apply(*ledger_.RemoveFile("a", "f1", 1000)).ok());
  EXPECT_TRUE(Add("a", "f4", 0).ok());
  EXPECT_TRUE(ledger_.Reserve("a", 100).ok());
}

TEST_F(FileLedgerTest, NobodySeesWhatAnotherHas) {
  ASSERT_TRUE(Add("a", "f1", 1).ok());
  ASSERT_TRUE(Order("a", "f1", "b1").ok());
  EXPECT_EQ(ledger_.FindFile("b", "f1", 1000), nullptr);
  EXPECT_EQ(ledger_.FindBatch("b", "b1"), nullptr);
  EXPECT_TRUE(absl::IsNotFound(ledger_.RemoveFile("b", "f1", 1000).status()));
  EXPECT_TRUE(absl::IsNotFound(ledger_.Cancel("b", "b1", 1000).status()));
  EXPECT_TRUE(absl::IsNotFound(Order("b", "f1", "b2")));
  EXPECT_THAT(Files("b", {}), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(ledger_.Files("b", {.after = "f1"}, 1000).status()));
  EXPECT_TRUE(ledger_.Batches("b", {})->entries.empty());
}

TEST_F(FileLedgerTest, ListsComeInPages) {
  for (const char* id : {"f1", "f2", "f3"}) ASSERT_TRUE(Add("a", id, 1).ok());
  EXPECT_THAT(Files("a", {.limit = 2}), ElementsAre("f3", "f2", "..."));
  EXPECT_THAT(Files("a", {.limit = 2, .after = "f2"}), ElementsAre("f1"));
  EXPECT_THAT(Files("a", {.limit = 3}), ElementsAre("f3", "f2", "f1"));
  EXPECT_THAT(Files("a", {.limit = 1, .after = "f1", .newest_first = false}),
              ElementsAre("f2", "..."));
  EXPECT_THAT(Files("a", {.purpose = "batch_output"}), IsEmpty());
}

TEST_F(FileLedgerTest, ABatchKeepsItsInputAndLeavesFiles) {
  ASSERT_TRUE(Add("a", "f1", 10, 1000, 5000).ok());
  ASSERT_TRUE(Order("a", "f1", "b1").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger_.RemoveFile("a", "f1", 1000).status()));
  EXPECT_TRUE(ledger_.Needs("b1-out"));
  EXPECT_FALSE(ledger_.Expire(6000).has_value());
  EXPECT_NE(ledger_.FindFile("a", "f1", 6000), nullptr);
  Go("b1", BatchStatus::kInProgress);
  Go("b1", BatchStatus::kFinalizing);
  const LedgerRecord end = ledger_.End("b1",
                                       {.status = BatchStatus::kCompleted,
                                        .counts = {.total = 2, .completed = 2},
                                        .output_bytes = 7},
                                       3000);
  ASSERT_TRUE(ledger_.Apply(end).ok());
  const StoredBatch& batch = *ledger_.FindBatch("a", "b1");
  EXPECT_TRUE(batch.has_output && !batch.has_errors);
  EXPECT_FALSE(ledger_.Needs("b1-err"));
  const StoredFile& output = *ledger_.FindFile("a", "b1-out", 3000);
  EXPECT_EQ(output.name, "b1_output.jsonl");
  EXPECT_EQ(output.purpose, "batch_output");
  EXPECT_EQ(ledger_.UsedBytes("a"), 17u);
  // The input's time was over while the batch read it.
  EXPECT_EQ(ledger_.FindFile("a", "f1", 6000), nullptr);
  EXPECT_EQ(ledger_.next_expiry_s(), 5000);
  EXPECT_THAT(ledger_.Expire(6000)->removed, ElementsAre("f1"));
  EXPECT_TRUE(absl::IsInvalidArgument(Order("a", "b1-out", "b2")));  // an output is no input
  // What is over is forgotten with its output.
  ASSERT_TRUE(ledger_.Apply(*ledger_.Expire(3000 + 31 * kDay)).ok());
  EXPECT_EQ(TextOf(ledger_), "");
}

TEST_F(FileLedgerTest, TheOldestBatchThatIsOverMakesRoom) {
  ASSERT_TRUE(Add("a", "f1", 10).ok());
  ASSERT_TRUE(Order("a", "f1", "b1").ok());
  ASSERT_TRUE(Order("a", "f1", "b2").ok());
  EXPECT_EQ(ErrorCode(Order("a", "f1", "b3")), kQuotaExceeded);
  ASSERT_TRUE(ledger_.Apply(ledger_.End("b2", {.status = BatchStatus::kFailed}, 1500)).ok());
  ASSERT_TRUE(Order("a", "f1", "b3").ok());
  EXPECT_EQ(ledger_.FindBatch("b2"), nullptr);
  EXPECT_NE(ledger_.FindBatch("b1"), nullptr);
}

TEST_F(FileLedgerTest, OnlyWhatRunsCanBeCancelled) {
  ASSERT_TRUE(Add("a", "f1", 10).ok());
  ASSERT_TRUE(Order("a", "f1", "b1").ok());
  ASSERT_TRUE(ledger_.Apply(**ledger_.Cancel("a", "b1", 1100)).ok());
  EXPECT_FALSE(ledger_.Cancel("a", "b1", 1200)->has_value());  // it is so already
  ASSERT_TRUE(ledger_.Apply(ledger_.End("b1", {.status = BatchStatus::kCancelled}, 1300)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger_.Cancel("a", "b1", 1400).status()));
  EXPECT_EQ(ledger_.FindBatch("b1")->since_s[static_cast<int>(BatchStatus::kCancelled)], 1300);
}

TEST_F(FileLedgerTest, ARecordThatDoesNotFitChangesNothing) {
  ASSERT_TRUE(Add("a", "f1", 10).ok());
  ASSERT_TRUE(Order("a", "f1", "b1").ok());
  const std::string before = TextOf(ledger_);
  LedgerRecord completed = ledger_.Advance("b1", BatchStatus::kCompleted, 1);  // never in progress
  LedgerRecord twice = *ledger_.AddFile({.id = "f1", .tenant = "a"});
  LedgerRecord unknown{.files = {}, .batch = std::nullopt, .removed = {"f9"}};
  for (const LedgerRecord& record : {completed, twice, unknown}) {
    EXPECT_TRUE(absl::IsDataLoss(ledger_.Apply(record)));
    EXPECT_EQ(TextOf(ledger_), before);
  }
}

// Nobody has made such records, but a journal may have them. The ledger stays one that can be used.
TEST_F(FileLedgerTest, ARecordThatContradictsItselfChangesNothing) {
  ASSERT_TRUE(Add("a", "f1", 10).ok());
  ASSERT_TRUE(Order("a", "f1", "b1").ok());
  const std::string before = TextOf(ledger_);
  const StoredBatch& batch = *ledger_.FindBatch("b1");
  const auto file = [](const char* id, std::uint64_t number) {
    return StoredFile{.id = id, .number = number, .tenant = "a"};
  };
  LedgerRecord twins{.files = {file("f2", 3), file("f3", 3)}}, same{.files = {file("f2", 3)}};
  same.files.push_back(file("f2", 4));
  LedgerRecord last{.files = {file("f2", ~std::uint64_t{0})}};
  LedgerRecord open{.removed = {"b1"}}, twice{.removed = {"f1", "f1"}};
  LedgerRecord other_input = ledger_.Advance("b1", BatchStatus::kInProgress, 1);
  other_input.batch->order.input_file_id = "f9";
  LedgerRecord other_output = ledger_.Advance("b1", BatchStatus::kInProgress, 1);
  other_output.batch->output_id = "f9";
  LedgerRecord shared{.batch = batch};
  shared.batch->id = "b2";
  shared.batch->number = 3;
  LedgerRecord both{.files = {file("b2", 3)}, .batch = shared.batch};
  both.batch->output_id = "o";
  both.batch->error_id = "e";
  for (const LedgerRecord& record :
       {twins, same, last, open, twice, other_input, other_output, shared, both}) {
    EXPECT_TRUE(absl::IsDataLoss(ledger_.Apply(record))) << JournalLine(record);
    EXPECT_EQ(TextOf(ledger_), before);
  }
  // Times have no end that a sum could go beyond.
  StoredBatch over = batch;
  over.id = "b3";
  over.number = 3;
  over.status = BatchStatus::kFailed;
  over.since_s[static_cast<std::size_t>(BatchStatus::kFailed)] =
      std::numeric_limits<std::int64_t>::max();
  ASSERT_TRUE(ledger_.Apply({.files = {}, .batch = over, .removed = {}}).ok());
  EXPECT_FALSE(ledger_.Expire(4000).has_value());
}

// --- The journal ---------------------------------------------------------------

// Makes random changes, and keeps the journal and what the ledger was behind each record.
class Life {
 public:
  explicit Life(std::uint32_t seed) : random_(seed), ledger_(Limits()) {}

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      now_s_ += random_() % 50'000;
      Change();
      CheckSums();
    }
  }
  const std::string& journal() const { return journal_; }
  // By the bytes of the journal.
  const std::map<std::size_t, std::string>& states() const { return states_; }
  static FileLimits Limits() {
    FileLimits limits;
    limits.tenant_bytes = 1000;
    limits.tenant_files = 5;
    limits.tenant_batches = 3;
    limits.life_s = 10 * kDay;
    return limits;
  }

 private:
  std::string Tenant() { return std::string(1, static_cast<char>('a' + random_() % 3)); }
  std::string NewId() { return "id" + std::to_string(++ids_); }
  std::string AnyId() { return "id" + std::to_string(1 + random_() % (ids_ + 1)); }
  void Take(absl::StatusOr<LedgerRecord> record) {
    if (!record.ok()) return;
    journal_ += JournalLine(*record);
    ASSERT_TRUE(ledger_.Apply(*std::move(record)).ok());
    states_[journal_.size()] = TextOf(ledger_);
  }
  void Change() {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2: {
        const std::string tenant = Tenant();
        const std::uint64_t bytes = random_() % 400;
        if (!ledger_.Reserve(tenant, bytes).ok()) return;
        Take(ledger_.AddFile({.id = NewId(),
                              .tenant = tenant,
                              .name = "\"\n\xc3\xa9",
                              .purpose = "batch",
                              .bytes = bytes,
                              .created_s = now_s_}));
        return ledger_.Release(tenant, bytes);
      }
      case 3:
        return Take(ledger_.RemoveFile(Tenant(), AnyId(), now_s_));
      case 4:
        return Take(ledger_.AddBatch(
            Tenant(), {.input_file_id = AnyId(), .window_s = kDay, .metadata = "{\"k\":\"v\"}"},
            NewId(), NewId(), NewId(), now_s_));
      case 5: {
        const auto record = ledger_.Cancel(Tenant(), AnyId(), now_s_);
        if (record.ok() && record->has_value()) Take(**record);
        return;
      }
      case 6:
        if (auto record = ledger_.Expire(now_s_)) Take(*std::move(record));
        return;
      default:
        return GoOn();
    }
  }
  void GoOn() {
    const std::vector<const StoredBatch*> open = ledger_.Open();
    if (open.empty()) return;
    const StoredBatch& batch = *open[random_() % open.size()];
    const auto next = static_cast<BatchStatus>(random_() % kBatchStatuses);
    if (!Follows(batch.status, next)) return;
    if (!IsOver(next)) return Take(ledger_.Advance(batch.id, next, now_s_));
    BatchEnd end{.status = next, .output_bytes = random_() % 100, .error_bytes = random_() % 2};
    if (next == BatchStatus::kFailed) end.errors.push_back({"code", "why", "", 7});
    Take(ledger_.End(batch.id, end, now_s_));
  }
  void CheckSums() {
    std::uint64_t all = 0;
    for (const char* tenant : {"a", "b", "c"}) {
      std::uint64_t bytes = 0;
      PageOrder order;
      order.limit = 1000;
      const auto page = ledger_.Files(tenant, order, 0);
      for (const StoredFile* file : page->entries) {
        EXPECT_EQ(file->tenant, tenant);
        bytes += file->bytes;
      }
      EXPECT_EQ(ledger_.UsedBytes(tenant), bytes);
      all += bytes;
    }
    EXPECT_EQ(ledger_.file_bytes(), all);
  }

  std::mt19937 random_;
  FileLedger ledger_;
  std::int64_t now_s_ = 1'000'000;
  std::uint32_t ids_ = 0;
  std::string journal_;
  std::map<std::size_t, std::string> states_ = {{0, ""}};
};

TEST(FileJournalTest, AProcessThatDiesAtAnyByteFindsWhatWasWhole) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Life life(seed);
    life.Run(60);
    for (std::size_t bytes = 0; bytes <= life.journal().size(); ++bytes) {
      // Every byte behind a record, and a sample of the others.
      if (!life.states().contains(bytes) && bytes % 37 != seed % 37) continue;
      FileLedger ledger(Life::Limits());
      const auto whole = ReplayJournal(life.journal().substr(0, bytes), ledger);
      ASSERT_TRUE(whole.ok()) << whole.status();
      const auto state = --life.states().upper_bound(bytes);
      ASSERT_EQ(*whole, state->first);
      ASSERT_EQ(TextOf(ledger), state->second);
      // A journal that is written anew says the same.
      FileLedger again(Life::Limits());
      ASSERT_TRUE(ReplayJournal(TextOf(ledger), again).ok());
      ASSERT_EQ(TextOf(again), state->second);
    }
  }
}

TEST(FileJournalTest, DamageAtTheEndIsCutOffAndElsewhereAnError) {
  Life life(7);
  life.Run(40);
  const std::string& journal = life.journal();
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string torn = journal;
    const std::size_t at = random() % torn.size();
    torn[at] = torn[at] == '#' ? '%' : '#';
    FileLedger ledger(Life::Limits());
    const auto whole = ReplayJournal(torn, ledger);
    if (torn.find('\n', at) >= torn.size() - 1) {
      ASSERT_TRUE(whole.ok()) << whole.status();  // in the last line
      EXPECT_LT(*whole, torn.size());
    } else {
      EXPECT_TRUE(absl::IsDataLoss(whole.status())) << at;
      EXPECT_THAT(std::string(whole.status().message()), HasSubstr("line "));
    }
  }
  FileLedger ledger(Life::Limits());
  EXPECT_TRUE(ReplayJournal(journal + std::string(4096, '\0') + "\n", ledger).ok());
}

TEST(FileJournalTest, LinesOfAnotherVersionAreRefused) {
  for (const char* text : {R"({"files":[{"id":"x"}]})", R"({"batch":7})", R"({"removed":[1]})"}) {
    EXPECT_TRUE(absl::IsDataLoss(ReadJournalLine(text).status()));
  }
}

}  // namespace
}  // namespace flotilla::router
