#include "rpc/interposed.h"

#include "gtest/gtest.h"
#include "rpc/guards.h"

// In the place of those of interposed_library.cc, which return 1.
extern "C" {
int open_caller();
int closed_caller();
int open_called() { return 2; }
int closed_called() { return 2; }
int only_here() { return 2; }
}

namespace flotilla::rpc {
namespace {

TEST(InterposedTest, TellsWhetherALibrarysOwnCallsComeHere) {
  // Before and after the first call, since the dynamic linker may bind at that.
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(IsInterposed("open_called", reinterpret_cast<const void*>(&open_called)));
    EXPECT_FALSE(IsInterposed("closed_called", reinterpret_cast<const void*>(&closed_called)));
    EXPECT_EQ(open_caller(), 2);
    EXPECT_EQ(closed_caller(), 1);
  }
}

TEST(InterposedTest, NothingStandsInForAFunctionThatNoLibraryHas) {
  EXPECT_FALSE(IsInterposed("only_here", reinterpret_cast<const void*>(&only_here)));
  EXPECT_FALSE(IsInterposed("open_called", reinterpret_cast<const void*>(&only_here)));
  EXPECT_FALSE(IsInterposed("no_such_function", nullptr));
}

TEST(InterposedTest, GrpcIsGuarded) { EXPECT_EQ(CheckGuards(), absl::OkStatus()); }

}  // namespace
}  // namespace flotilla::rpc
