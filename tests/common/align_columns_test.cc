#include "common/report/align_columns.h"

#include "gtest/gtest.h"

namespace flotilla {
namespace {

TEST(AlignColumnsTest, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(AlignColumns(std::vector<std::vector<std::string>>{{"a", "1"}, {"bcd", "234"}}),
            "a      1\nbcd  234\n");
}

}  // namespace
}  // namespace flotilla
