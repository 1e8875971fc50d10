// Syncs that fail: what a client was told stays true when the machine then dies, and a process that
// comes later believes nothing that is not on the disk.
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "tests/router/files_fixture.h"

namespace flotilla::router {
namespace {

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
};

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
