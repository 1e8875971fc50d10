// Tests the suggestions for unknown paths and names.
#include "router/names.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "router/http/route_hint.h"

namespace flotilla::router {
namespace {

TEST(Names, EditDistance) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("model", "modle"), 1u) << "neighbours that changed places";
  EXPECT_EQ(EditDistance("ab", "ba"), 1u);
  EXPECT_EQ(EditDistance("model", "mdel"), 1u);
  EXPECT_EQ(EditDistance("model", "mmodel"), 1u);
  EXPECT_EQ(EditDistance("model", "modal"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("sitting", "kitten"), 3u);
  EXPECT_EQ(EditDistance(std::string(1'000'000, 'a'), std::string(1'000'000, 'b')), 64u);
}

TEST(Names, TheNearestComeFirst) {
  EXPECT_EQ(NearestNames("x", {}), "");
  EXPECT_EQ(NearestNames("smolm2", {"llama", "smollm2"}), "'smollm2' and 'llama'");
  EXPECT_EQ(NearestNames("", {"b", "a", "c"}), "'b', 'a' and 'c'");
  EXPECT_EQ(NearestNames("f", {"a", "b", "c", "d", "e", "f"}),
            "'f', 'a', 'b', 'c', 'd' and 1 other");
  const std::vector<std::string> many(100'000, std::string(1000, 'n'));
  EXPECT_LT(NearestNames(std::string(1000, 'm'), many).size(), 600u);
}

TEST(Names, PathsAreFoundAgain) {
  const std::vector<std::string_view> paths = {
      "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{id}", "/tokenize",
      "/detokenize",          "/health",         "/"};
  for (const auto& [asked, meant] : std::vector<std::pair<std::string, std::string>>{
           {"/chat/completions", "/v1/chat/completions"},
           {"/v1/v1/chat/completions", "/v1/chat/completions"},
           {"/v1/chat/completions/", "/v1/chat/completions"},
           {"//v1//chat/completions", "/v1/chat/completions"},
           {"/api/v1/chat/completions", "/v1/chat/completions"},
           {"/v1/chat/completion", "/v1/chat/completions"},
           {"/completions", "/v1/completions"},
           {"/v1/completion", "/v1/completions"},
           {"/models", "/v1/models"},
           {"/models/x", "/v1/models/{id}"},
           {"/v1/tokenize", "/tokenize"},
           {"/v1/health", "/health"},
           {"/healthz", "/health"},
           {"/", ""},
           {"/v1", ""},
           {"/nothing", ""},
           {"/v1/embeddings", ""},
           {"/" + std::string(1'000'000, 'x'), ""},
       }) {
    EXPECT_EQ(NearestPath(asked, paths), meant) << asked;
  }
}

}  // namespace
}  // namespace flotilla::router
