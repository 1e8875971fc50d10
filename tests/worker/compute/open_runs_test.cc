#include "worker/compute/open_runs.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/kv_layout.h"
#include "tests/support/random.h"

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

OpenRuns Plan(const std::vector<StepSequence>& sequences) { return PlanOpenRuns(sequences, 8); }

TEST(OpenRunsTest, ADecodeStaysInItsRun) {
  const OpenRuns runs = Plan({{.handle = 3, .row_count = 1, .first_position = 130},
                              {.handle = 5, .row_begin = 1, .row_count = 1, .first_position = 63}});
  EXPECT_THAT(runs.ids, ElementsAre(3, 5));
  EXPECT_THAT(runs.begins, ElementsAre(0, 1));
  EXPECT_THAT(runs.full, ElementsAre(OpenRuns::Full{1, 0}));
  EXPECT_THAT(runs.moves, IsEmpty());
}

TEST(OpenRunsTest, AChunkGoesOnIntoRunsBehindTheHandles) {
  // Positions 60 to 199: the end of run 0, runs 1 and 2, and the begin of run 3.
  const OpenRuns runs = Plan({{.handle = 7, .row_count = 140, .first_position = 60},
                              {.handle = 2, .row_begin = 140, .row_count = 64}});
  EXPECT_THAT(runs.ids, ElementsAre(7, 8, 9, 10, 2));
  EXPECT_THAT(runs.begins, ElementsAre(0, 4));
  EXPECT_THAT(runs.full, ElementsAre(OpenRuns::Full{0, 0}, OpenRuns::Full{0, 1},
                                     OpenRuns::Full{0, 2}, OpenRuns::Full{1, 0}));
  EXPECT_THAT(runs.moves, ElementsAre(OpenRuns::Move{10, 7}));
}

TEST(OpenRunsTest, PositionZeroOnceMoreHasNone) {
  const OpenRuns runs = Plan({{.handle = 2, .row_count = 2, .first_position = 64},
                              {.handle = 2, .row_begin = 2, .row_count = 1, .is_first_row = true}});
  EXPECT_THAT(runs.ids, ElementsAre(2));
  EXPECT_THAT(runs.begins, ElementsAre(0, 1));
  EXPECT_THAT(runs.full, IsEmpty());
}

// A fork may begin within it.
TEST(OpenRunsTest, AFullRunMovesToo) {
  const OpenRuns runs = Plan({{.handle = 1, .row_count = 65, .first_position = 63}});
  EXPECT_THAT(runs.ids, ElementsAre(1, 8));
  EXPECT_THAT(runs.moves, ElementsAre(OpenRuns::Move{8, 1}));
}

// Any steps: each run of a step has an id of its own below MostOpenRuns, and what the next step
// finds under a handle is the run of the sequence's last row.
TEST(OpenRunsTest, NoStepNeedsMoreThanThereAreAndNoneIsLost) {
  constexpr int kSequences = 8, kRows = 200;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    testing::Random random(seed);
    std::vector<int> lengths(kSequences);
    std::map<int, std::pair<int, int>> content;  // of ids: whose, and which run
    for (int step = 0; step < 50; ++step) {
      std::vector<StepSequence> sequences;
      int rows = 0;
      for (int handle = 0; handle < kSequences && rows < kRows; ++handle) {
        if (random.OneIn(4)) continue;
        const int most = random.OneIn(2) ? 2 : kRows - rows;
        const int count = std::min(random.Int(1, most), kRows - rows);
        sequences.push_back({.handle = handle,
                             .row_begin = rows,
                             .row_count = count,
                             .first_position = lengths[handle]});
        rows += count;
      }
      const OpenRuns runs = PlanOpenRuns(sequences, kSequences);
      std::vector<int> ids(runs.ids.begin(), runs.ids.end());
      std::sort(ids.begin(), ids.end());
      ASSERT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
      for (const int id : ids) ASSERT_LT(id, MostOpenRuns(kSequences, kRows));
      std::size_t full = 0;
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        const StepSequence& sequence = sequences[i];
        const int first = sequence.first_position / kernels::kKvRunTokens;
        const int end = sequence.first_position + sequence.row_count;
        const int last = (end - 1) / kernels::kKvRunTokens;
        if (sequence.first_position % kernels::kKvRunTokens != 0) {
          ASSERT_EQ(content[sequence.handle], std::pair(sequence.handle, first));
        }
        for (int run = first; run <= last; ++run) {
          content[runs.ids[runs.begins[i] + run - first]] = {sequence.handle, run};
          full += (run + 1) * kernels::kKvRunTokens <= end;
        }
        lengths[sequence.handle] = end;
      }
      ASSERT_EQ(runs.full.size(), full);
      for (const OpenRuns::Move& move : runs.moves) content[move.to] = content[move.from];
      for (const StepSequence& sequence : sequences) {
        const int last = (lengths[sequence.handle] - 1) / kernels::kKvRunTokens;
        ASSERT_EQ(content[sequence.handle], std::pair(sequence.handle, last));
      }
    }
  }
}

}  // namespace
}  // namespace flotilla::worker
