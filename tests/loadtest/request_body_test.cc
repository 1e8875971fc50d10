#include "loadtest/request_body.h"

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

using Json = nlohmann::json;

TEST(RequestBodyTest, AChatHasItsTurns) {
  const Json body = Json::parse(RequestBody({.model = "m\"1"}, {"a", "b \"c\"\n", "d"}, 7));
  EXPECT_EQ(body["model"], "m\"1");
  EXPECT_EQ(body["max_tokens"], 7);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(body["ignore_eos"], true);
  ASSERT_EQ(body["messages"].size(), 3u);
  EXPECT_EQ(body["messages"][1], Json({{"role", "assistant"}, {"content", "b \"c\"\n"}}));
  EXPECT_EQ(body["messages"][2]["role"], "user");
}

TEST(RequestBodyTest, ACompletionGoesOn) {
  const RequestShape shape{.model = "m",
                           .chat = false,
                           .ignore_eos = false,
                           .extra = "{\"top_p\": 0.5, \"max_tokens\": 3}"};
  const Json body = Json::parse(RequestBody(shape, {"a", "b"}, 7));
  EXPECT_EQ(body["prompt"], "a b");
  EXPECT_EQ(body["top_p"], 0.5);
  EXPECT_EQ(body["max_tokens"], 3);
  EXPECT_FALSE(body.contains("ignore_eos"));
  EXPECT_FALSE(body.contains("messages"));
}

TEST(RequestBodyTest, ExtraFieldsAreAnObject) {
  EXPECT_TRUE(CheckShape({.extra = ""}).ok());
  EXPECT_TRUE(CheckShape({.extra = "{}"}).ok());
  EXPECT_FALSE(CheckShape({.extra = "[1]"}).ok());
  EXPECT_FALSE(CheckShape({.extra = "{"}).ok());
}

}  // namespace
}  // namespace flotilla::loadtest
