// Syncs that fail: what a client was told stays true when the machine then dies, and a process that
// comes later believes nothing that is not on the disk.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router/files_fixture.h"

namespace flotilla::router {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kRetryNs = 31'000'000'000;

class FileSyncTest : public FilesTest {
 protected:
  // Syncs of files whose path has `part` fail from now on.
  void Fail(const std::string& part) {
    disk_.fails = [part](std::string_view path) {
      return path.find(part) != std::string_view::npos;
    };
  }
  void Heal() { disk_.fails = nullptr; }
  // The time after which a batch that could not go on is tried again.
  void Wait() {
    clock_.AdvanceNs(kRetryNs);
    Steps(8);
  }
  // A batch of six lines. Two answers are on the disk, and two more are written and not yet synced.
  std::string AnswerFour() {
    Restart();
    const std::string id = Order("a", Upload("a", Input(6)));
    Steps();
    for (int i = 0; i < 2; ++i) handler_.Answer();
    Steps();
    clock_.AdvanceNs(200'000'000);
    Steps();
    for (int i = 0; i < 2; ++i) handler_.Answer();
    Steps();
    EXPECT_EQ(Batch("a", id).counts.completed, 4u);
    EXPECT_EQ(disk_.Lost(folder_), 0u);
    return id;
  }
  // The sync of those two fails.
  void LoseTwo() {
    Fail("/data/file-");
    clock_.AdvanceNs(200'000'000);
    Steps();
    EXPECT_TRUE(handler_.waiting.empty());  // no answer is computed for a file that keeps none
  }
  // What the batch counts is in its file, also when the machine has died.
  void ExpectKept(const std::string& id, BatchStatus status, const std::vector<std::string>& ids) {
    for (const bool crashed : {false, true}) {
      SCOPED_TRACE(crashed ? "after the crash" : "before the crash");
      const StoredBatch batch = Batch("a", id);
      EXPECT_EQ(batch.status, status);
      EXPECT_EQ(batch.counts.completed, ids.size());
      EXPECT_EQ(Ids(Content("a", batch.output_id)), ids);
      EXPECT_EQ(disk_.Lost(folder_), 0u);
      if (crashed) continue;
      End();
      disk_.Crash(folder_);
      Restart();
    }
  }
};

TEST_F(FileSyncTest, ABatchInProgressKeepsItsAnswersAndEndsOnceTheyAreOnTheDisk) {
  const std::string id = AnswerFour();
  LoseTwo();
  EXPECT_GT(disk_.Lost(folder_), 0u);
  Wait();  // the disk still fails
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  Heal();
  Wait();
  Finish();
  ExpectKept(id, BatchStatus::kCompleted, {"r0", "r1", "r2", "r3", "r4", "r5"});
  const auto sent = [this](const std::string& line) {
    return std::count_if(handler_.requests.begin(), handler_.requests.end(),
                         [&](const HttpRequest& request) { return request.request_id == line; });
  };
  EXPECT_EQ(sent("r0"), 1);
  EXPECT_EQ(sent("r3"), 1);  // its answer was there, and is not computed again
}

TEST_F(FileSyncTest, ABatchIsNotCancelledBeforeItsAnswersAreOnTheDisk) {
  const std::string id = AnswerFour();
  EXPECT_TRUE(room_->CancelBatch("a", id).ok());
  LoseTwo();
  EXPECT_GT(disk_.Lost(folder_), 0u);
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kCancelling);
  Heal();
  Wait();
  ExpectKept(id, BatchStatus::kCancelled, {"r0", "r1", "r2", "r3"});
}

TEST_F(FileSyncTest, ABatchDoesNotExpireBeforeItsAnswersAreOnTheDisk) {
  const std::string id = AnswerFour();
  now_s_ += 86'400;
  LoseTwo();
  EXPECT_GT(disk_.Lost(folder_), 0u);
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  Heal();
  Wait();
  ExpectKept(id, BatchStatus::kExpired, {"r0", "r1", "r2", "r3"});
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.counts.failed, 2u);
  EXPECT_THAT(Ids(Content("a", batch.error_id)), ElementsAre("r4", "r5"));
}

TEST_F(FileSyncTest, TheNextProcessDoesNotBelieveWhatASyncHasLost) {
  const std::string id = AnswerFour();
  EXPECT_TRUE(room_->CancelBatch("a", id).ok());
  LoseTwo();
  Heal();
  Restart();
  Steps(8);
  ExpectKept(id, BatchStatus::kCancelled, {"r0", "r1", "r2", "r3"});
}

TEST_F(FileSyncTest, AnswersThatAreGoneDoNotCount) {
  // Some systems drop what a failed sync was to write, so it cannot be read any more.
  const std::string cancelled = AnswerFour();
  EXPECT_TRUE(room_->CancelBatch("a", cancelled).ok());
  LoseTwo();
  disk_.Crash(folder_);
  Heal();
  Wait();
  ExpectKept(cancelled, BatchStatus::kCancelled, {"r0", "r1"});
}

TEST_F(FileSyncTest, AnswersThatAreGoneAreComputedAgain) {
  const std::string id = AnswerFour();
  LoseTwo();
  disk_.Crash(folder_);
  Heal();
  Wait();
  EXPECT_EQ(Batch("a", id).counts.completed, 2u);
  Finish();
  ExpectKept(id, BatchStatus::kCompleted, {"r0", "r1", "r2", "r3", "r4", "r5"});
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(store_->ledger().UsedBytes("a"),
            Input(6).size() + Content("a", batch.output_id).size());
}

TEST_F(FileSyncTest, ABatchWhoseWindowIsOverStaysExpiredWhenItsEndIsTriedAgain) {
  Restart();
  const std::string id = Order("a", Upload("a", Input(6)));
  Steps();
  handler_.Answer();
  Steps();
  now_s_ += 86'400;
  Fail("/data/file-");
  Steps();
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  Heal();
  Wait();
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.status, BatchStatus::kExpired);
  EXPECT_EQ(batch.counts, (RequestCounts{.total = 6, .completed = 1, .failed = 5}));
}

}  // namespace
}  // namespace flotilla::router
