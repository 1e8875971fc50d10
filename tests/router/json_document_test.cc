// Tests bodies as documents: which are refused, with which message, and that the largest bodies
// cost bounded time and memory.
#include "router/http/json_document.h"

#include <chrono>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "router/errors.h"
#include "router/generate_request.h"
#include "router/http/api_error.h"
#include "router/http/openai_request.h"
#include "tests/router/large_bodies.h"
#include "tests/support/allocations.h"

namespace flotilla::router {
namespace {

constexpr std::size_t kBodyBytes = 4u << 20;  // HttpLimits::body_bytes

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(JsonDocument, RefusesWhatIsNotOneCleanObject) {
  for (const char* body : {"", "[]", "5", "{", "{}x", R"({"a":1,"a":2})", R"({"a":{"b":1,"b":1}})",
                           "{\"a\":\"\xff\"}", R"({"a":"\ud800"})", R"({"a":1e999})",
                           R"({"a":NaN})", "{\"a\":\"\x01\"}", "{'a':1}", "{\"a\":1,}"}) {
    const absl::Status status = ParseJsonObject(body).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_EQ(ErrorCode(status), "invalid_json") << body;
  }
  const auto nested = [](int depth) {
    return R"({"a":)" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_TRUE(ParseJsonObject(nested(kMaxJsonDepth)).ok());
  EXPECT_FALSE(ParseJsonObject(nested(kMaxJsonDepth + 1)).ok());
}

TEST(JsonDocument, IsWhatTheLibraryReads) {
  const std::string body =
      R"({"a":[1,-2,3.5,true,false,null,"x\u00e9\n",[],{},{"b":[[0]],"c":"","":{}}],"d":18446744073709551615})";
  const absl::StatusOr<JsonDocument> document = ParseJsonObject(body);
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(document->root(), Json::parse(body));
  EXPECT_EQ(document->root().dump(), Json::parse(body).dump());
}

TEST(JsonDocument, SaysWhatIsWrong) {
  const auto message = [](std::string_view body) {
    return std::string(ParseJsonObject(body).status().message());
  };
  EXPECT_EQ(message("{\"a\":\"xyz\xff\"}"), "the request body is not valid UTF-8 at byte 10");
  EXPECT_EQ(message("{\"a\":\"\xc3(\"}"), "the request body is not valid UTF-8 at byte 7");
  EXPECT_EQ(message("\xff{}"), "the request body is not valid UTF-8 at byte 1");
  EXPECT_EQ(message("{\"a\":\"x\xf0\x9f"), "the request body is not valid UTF-8 at byte 8");
  // The first error in the text is reported.
  EXPECT_EQ(message("{\"a\" 1, \"b\":\"\xff\"}"),
            "the request body is not a JSON object: syntax error at byte 6, in 'a'");
  EXPECT_EQ(message("[1]"), "the request body is not a JSON object: it is of another type");
  EXPECT_EQ(message(R"({"a":1,"a":2})"),
            "the request body is not a JSON object: duplicate key 'a'");
  EXPECT_EQ(message(R"({"a":1e999})"),
            "the request body is not a JSON object: a number is out of range, in 'a'");
}

TEST(JsonDocument, NamesTheMemberWhoseValueIsWrong) {
  const auto field = [](std::string_view body) {
    return ErrorField(ParseJsonObject(body).status());
  };
  EXPECT_EQ(field(R"({"a":1,"b":NaN})"), "b");
  EXPECT_EQ(field(R"({"a":{"c":1},"b":[0,{"c":1e999}]})"), "b");
  EXPECT_EQ(field(R"({"a":[],"b":-Infinity})"), "b");
  EXPECT_EQ(field(R"({"a":1 x})"), "");
  EXPECT_EQ(field(R"({"a":[1]]})"), "");
  EXPECT_EQ(field(R"({"a":{} "b":1})"), "");
  EXPECT_EQ(field("{\"" + std::string(500, 'k') + "\":x}"), std::string(100, 'k'));
}

TEST(JsonDocument, AListEndsTheParseAtItsBound) {
  const ListBound bound{"list", 3, InvalidField("list", "too long")};
  EXPECT_TRUE(ParseJsonObject(R"({"list":[1,{},[0,0,0,0]],"x":[1,2,3,4]})", &bound).ok());
  EXPECT_TRUE(ParseJsonObject(R"({"list":{"list":[1,2,3,4]}})", &bound).ok());
  // The text after the bound is not read.
  EXPECT_EQ(ParseJsonObject(R"({"list":[1,2,3,4 and no JSON)", &bound).status(), bound.too_long);
  EXPECT_EQ(ParseJsonObject(R"({"x":[],"list":[[],[],[],[)", &bound).status(), bound.too_long);
}

TEST(JsonDocument, ALongConversationIsRefusedWhileItIsRead) {
  std::string turns;
  for (int i = 0; i < 1024; ++i) turns += R"({"role":"user","content":"x"},)";
  const auto body = [&](const std::string& more) {
    return R"({"model":"m","messages":[)" + turns + more;
  };
  EXPECT_TRUE(ParseChatCompletion(
                  R"({"model":"m","messages":[)" + turns.substr(0, turns.size() - 1) + "]}", {})
                  .ok());
  for (const auto& status : {ParseChatCompletion(body("{} broken"), {}).status(),
                             ParseTokenize(body("{} broken"), {}).status()}) {
    EXPECT_EQ(ErrorField(status), "messages");
    EXPECT_EQ(status, TooManyMessages(RequestLimits()));
  }
}

// Runs every parser and the Validator on the largest bodies. The time must be linear in the length.
// A parser by callbacks took 17 s for 750 KB of the first body.
TEST(JsonDocument, TheLargestBodiesCostLittle) {
  const ModelLimits model{"m", 50'000, 8192, /*max_sequences=*/32, /*end_tokens=*/{2}};
  const Validator validator{RequestLimits{}};
  double slowest = 0;
  std::size_t most = 0;
  bool permissive = false;  // in turns
  for (const auto& [name, body] : LargeBodies(kBodyBytes)) {
    ASSERT_LE(body.size(), kBodyBytes + 1) << name;
    ASSERT_GE(body.size(), kBodyBytes - 110'000) << name;
    permissive = !permissive;
    const ParseOptions options{.permissive = permissive};
    const testing::AllocationCount allocated;
    const double seconds = SecondsOf([&] {
      for (auto* parse : {&ParseChatCompletion, &ParseCompletion}) {
        absl::StatusOr<OpenAiBody<ApiRequest>> parsed = (*parse)(body, options);
        absl::Status status = parsed.status();
        for (std::size_t i = 0; status.ok() && i < parsed->prompts.size(); ++i) {
          status = validator.Validate(std::move(parsed->prompts[i]), model).status();
        }
        EXPECT_LT(ErrorJson(status).size(), 1000u) << name;
      }
      (void)ParseTokenize(body, options);
      (void)ParseDetokenize(body, options);
    });
    // Each of the four parsers may take 0.3 s. The limit is ten times higher, for slow machines.
    EXPECT_LT(seconds, 4 * 3.0) << name;
    // These are all bytes that the four parsers have allocated, growing lists included.
    EXPECT_LT(allocated.bytes(), std::size_t{4} * (96u << 20)) << name;
    slowest = std::max(slowest, seconds);
    most = std::max(most, allocated.bytes());
  }
  RecordProperty("slowest of four parsers, s", std::to_string(slowest));
  RecordProperty("most bytes asked for by four parsers", std::to_string(most));
}

// Four times as many objects take about four times as long. The sizes are below all bounds, and too
// large for a CPU cache.
TEST(JsonDocument, TimeIsLinear) {
  const auto body = [](std::size_t objects) {
    std::string text = R"({"list":[)";
    for (std::size_t i = 0; i < objects; ++i) text += "{},";
    text.back() = ']';
    return text + "}";
  };
  const auto best = [&](std::size_t objects) {
    const std::string text = body(objects);
    double seconds = 1e9;
    for (int i = 0; i < 5; ++i) {
      seconds = std::min(seconds, SecondsOf([&] { EXPECT_TRUE(ParseJsonObject(text).ok()); }));
    }
    return seconds;
  };
  // Quadratic: 16 times. On a busy machine a time may be that of other work, too.
  double ratio = best(160'000) / best(40'000);
  for (int i = 0; i < 9 && ratio >= 10; ++i) ratio = best(160'000) / best(40'000);
  EXPECT_LT(ratio, 10);
}

TEST(JsonDocument, MemoryIsBoundedAndTokenIdsFit) {
  const auto status = [](const std::string& body) { return ParseJsonObject(body).status(); };
  const auto list = [](const std::string& piece, std::size_t count) {
    std::string text = R"({"list":[)";
    for (std::size_t i = 0; i < count; ++i) text += piece;
    text.back() = ']';
    return text + "}";
  };
  EXPECT_TRUE(status(list("12345,", kBodyBytes / 6 - 10)).ok());  // 4 MiB of token ids
  EXPECT_TRUE(status(list("1,", 1'000'000)).ok());
  for (const std::string& body : {list("1,", 1'100'000), list("{},", 300'000), list("[],", 400'000),
                                  list("\"\",", 300'000)}) {
    const testing::AllocationCount allocated;
    EXPECT_EQ(status(body).message(),
              "the request body has too many values: they would take more than 16 MiB of memory");
    EXPECT_LT(allocated.bytes(), 5 * kMaxJsonBytes);  // with the lists that grew
  }
}

}  // namespace
}  // namespace flotilla::router
