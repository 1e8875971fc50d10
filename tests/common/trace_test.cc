#include "common/obs/trace.h"

#include "gtest/gtest.h"

namespace flotilla {
namespace {

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceTest, ReadsATraceparent) {
  const auto trace = ParseTraceparent(kParent);
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(*trace, (TraceContext{.trace_high = 0x0af7651916cd43dd,
                                  .trace_low = 0x8448eb211c80319c,
                                  .span = 0xb7ad6b7169203331,
                                  .sampled = true}));
  EXPECT_EQ(TraceIdText(*trace), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(SpanIdText(trace->span), "b7ad6b7169203331");
}

TEST(TraceTest, ReadsFlagsAndLaterVersions) {
  std::string text = kParent;
  text.back() = '2';
  EXPECT_FALSE(ParseTraceparent(text)->sampled);
  text.back() = '3';
  EXPECT_TRUE(ParseTraceparent(text)->sampled);
  text.replace(0, 2, "cc");
  EXPECT_TRUE(ParseTraceparent(text).has_value());
  EXPECT_TRUE(ParseTraceparent(text + "-what-comes").has_value());
}

TEST(TraceTest, RefusesWhatIsNone) {
  const std::string parent = kParent;
  const auto with = [&](std::size_t at, std::string_view part) {
    std::string text = parent;
    return text.replace(at, part.size(), part);
  };
  for (const std::string& text :
       {std::string(), parent.substr(0, 54), parent + "0", parent + "-x", with(0, "ff"),
        with(2, "_"), with(35, "0"), with(52, "_"), with(3, "0AF7"), with(53, "0x"),
        with(3, std::string(32, '0')), with(36, std::string(16, '0'))}) {
    EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
  }
}

TEST(TraceTest, NamesARequest) { EXPECT_EQ(RequestName({0xabc, 17}), "abc-17"); }

}  // namespace
}  // namespace flotilla
