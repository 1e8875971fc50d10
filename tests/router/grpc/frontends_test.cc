// Both frontends over one service: the same requests are accepted, and the others refused with
// the same code, field and message.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/text/tokenizer.h"
#include "proto/codec/status.h"
#include "router/grpc/server.h"
#include "router/http/server.h"
#include "router/service.h"
#include "tests/router/http_client.h"
#include "tests/support/fake_engine.h"
#include "tests/support/manual_clock.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::router {
namespace {

using nlohmann::json;

// gRPC's code as HTTP has it; docs/api.md has the table.
int HttpStatusOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return 200;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::OUT_OF_RANGE:
      return 400;
    case grpc::StatusCode::NOT_FOUND:
      return 404;
    default:
      return 500;
  }
}

struct Verdict {
  int status = 0;
  std::string message, field, code;
  bool operator==(const Verdict&) const = default;
};
void PrintTo(const Verdict& verdict, std::ostream* out) {
  *out << verdict.status << " '" << verdict.message << "' of '" << verdict.field << "', "
       << verdict.code;
}

class FrontendsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::byte> bytes = testing::TinyGguf();
    auto file = model::ParseCheckpoint(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    TokenizerBundle bundle = *(*file)->ReadTokenizer();
    // The end of thoughts is one token.
    bundle.tokens.back() = "</think>";
    bundle.kinds.back() = TokenKind::kControl;
    tokenizer_ = std::make_unique<model::Tokenizer>(*model::Tokenizer::Create(bundle));
    const std::string text =
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}";
    chat_template_ = std::make_unique<model::ChatTemplate>(*model::ChatTemplate::Compile(text));
    thoughts_template_ = std::make_unique<model::ChatTemplate>(
        *model::ChatTemplate::Compile(text + "{# <think></think> #}"));
    service_ = InferenceService::Create({}, &clock_);
    for (const char* name : {"tiny", "small", "thinker"}) {
      const bool thinks = std::string_view(name) == "thinker";
      service_->AddModel({.id = name,
                          .engine = &engine_,
                          .tokenizer = tokenizer_.get(),
                          .chat_template = (thinks ? thoughts_template_ : chat_template_).get()});
    }
    grpc_ = *GrpcServer::Start({.port = 0}, service_.get());
    stub_ = v1::Inference::NewStub(
        grpc::CreateChannel(grpc_->address(), grpc::InsecureChannelCredentials()));
    http_ = HttpServer::Create({.port = 0}, service_.get());
    http_port_ = *http_->Start();
  }
  void TearDown() override {
    http_->Stop(absl::ZeroDuration());
    grpc_->Stop(absl::ZeroDuration());
  }

  Verdict OverHttp(const std::string& path, const std::string& body) {
    const HttpResponse response = HttpClient(http_port_).Call("POST", path, body);
    if (response.status == 200) return {.status = 200};
    const json error = response.json()["error"];
    const auto text = [&](const char* name) {
      return error[name].is_null() ? std::string() : error[name].get<std::string>();
    };
    return {response.status, text("message"), text("param"), text("code")};
  }
  Verdict OverGrpc(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
    }
    const grpc::Status status = reader->Finish();
    if (status.ok()) return {.status = 200};
    const auto details = codec::DetailsOf(status);
    return {HttpStatusOf(status.error_code()), status.error_message(), details.field,
            details.reason};
  }

  const testing::ManualClock clock_;  // no time passes, so that none is up
  testing::FakeEngine engine_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::unique_ptr<model::ChatTemplate> chat_template_, thoughts_template_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<HttpServer> http_;
  std::uint16_t http_port_ = 0;
};

struct Case {
  std::string http;                    // members of a body, without braces
  std::string proto;                   // the same, as text of a GenerateRequest
  std::string http_field, grpc_field;  // at fault; empty: the request is served
};

// A list of `count` pieces.
std::string Many(int count, const std::string& piece, const std::string& between) {
  std::string text = piece;
  for (int i = 1; i < count; ++i) text += between + piece;
  return text;
}

const char kHi[] = R"("messages":[{"role":"user","content":"hi"}])";
const char kProtoHi[] = R"(chat { messages { role: "user" content: "hi" } })";

std::vector<Case> ChatCases() {
  const auto role = [](const std::string& name, const std::string& field) -> Case {
    return {R"("model":"tiny","messages":[{"role":"user","content":"hi"},{"role":")" + name +
                R"(","content":"x"}])",
            R"(model: "tiny" chat { messages { role: "user" content: "hi" } messages { role: ")" +
                name + R"(" content: "x" } })",
            field, field.empty() ? "" : "chat." + field};
  };
  const auto more = [](const std::string& http, const std::string& proto,
                       const std::string& field) -> Case {
    return {std::string(R"("model":"tiny",)") + kHi + "," + http,
            R"(model: "tiny" chat { messages { role: "user" content: "hi" } )" + proto + " }",
            field, field.empty() ? "" : "chat." + field};
  };
  return {
      role("system", ""),
      role("developer", ""),
      role("user", ""),
      role("assistant", ""),
      role("", "messages[1].role"),
      role("tool", ""),
      role("function", "messages[1].role"),
      role("User", "messages[1].role"),
      role("king", "messages[1].role"),
      role(std::string(1000, 'r'), "messages[1].role"),
      {R"("model":"tiny","messages":[])", R"(model: "tiny" chat {})", "messages", "chat.messages"},
      {R"("model":"tiny","messages":[)" + Many(1025, R"({"role":"user","content":"x"})", ",") + "]",
       R"(model: "tiny" chat {)" + Many(1025, R"(messages { role: "user" content: "x" })", " ") +
           "}",
       "messages", "chat.messages"},
      more(R"("tools":[{"type":"function","function":{"name":"f"}}])", R"(tools { name: "f" })",
           "tools"),
      more(R"("tools":[{"type":"function","function":{"name":"f g"}}])", R"(tools { name: "f g" })",
           "tools"),
      more(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")",
           R"(tools { name: "f" } tool_choice: "none")", ""),
      more(R"("tool_choice":"required")", R"(tool_choice: "required")", "tool_choice"),
      more(R"("documents":[5])", R"(documents: "[5]")", "documents"),
      more(R"("documents":[{"a":5}])", R"(documents: "[{}]")", ""),
      more(R"("chat_template_kwargs":{"tools":5})", R"(chat_template_kwargs: "{\"tools\":5}")",
           "chat_template_kwargs"),
      more(R"("chat_template_kwargs":{"a":5})", R"(chat_template_kwargs: "{\"a\":5}")", ""),
      more(R"("reasoning_effort":"low")", R"(reasoning_effort: "low")", ""),
      more(R"("reasoning_effort":"none")", R"(reasoning_effort: "none")", ""),
      more(R"("reasoning_effort":"lowest")", R"(reasoning_effort: "lowest")", "reasoning_effort"),
      more(R"("reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high"})",
           R"(reasoning_effort: "low" chat_template_kwargs: "{\"reasoning_effort\":\"high\"}")",
           "reasoning_effort"),
      more(R"("continue_final_message":true,"add_generation_prompt":true)",
           "continue_final_message: true add_generation_prompt: true", "continue_final_message"),
      more(R"("continue_final_message":true)", "continue_final_message: true", ""),
      {kHi, kProtoHi, "model", "model"},
      {std::string(R"("model":"",)") + kHi, std::string(R"(model: "" )") + kProtoHi, "model",
       "model"},
      {std::string(R"("model":"tinny",)") + kHi, std::string(R"(model: "tinny" )") + kProtoHi,
       "model", "model"},
      {std::string(R"("model":"small",)") + kHi, std::string(R"(model: "small" )") + kProtoHi, "",
       ""},
  };
}

std::vector<Case> TextCases() {
  const std::string http = R"("model":"tiny","prompt":"hi",)";
  const std::string proto = R"(model: "tiny" text: "hi" max_tokens: 16 )";
  const auto with = [&](const std::string& more, const std::string& proto_more,
                        const std::string& field = "", const std::string& grpc_field = "") -> Case {
    return {http + more, proto + proto_more, field, grpc_field};
  };
  return {
      with(R"("logit_bias":{"5":101})", "sampling { logit_bias { token_id: 5 bias: 101 } }",
           "logit_bias", "sampling.logit_bias"),
      with(R"("logit_bias":{"99999999":1})",
           "sampling { logit_bias { token_id: 99999999 bias: 1 } }", "logit_bias",
           "sampling.logit_bias"),
      with(R"("seed":7)", "sampling { seed: 7 }"),
      with(R"("n":2,"best_of":1)", "n: 2 best_of: 1", "best_of", "best_of"),
      with(R"("use_beam_search":true,"length_penalty":11)", "beam_search { length_penalty: 11 }",
           "length_penalty", "beam_search.length_penalty"),
      with(R"("use_beam_search":true,"seed":1)", "beam_search {} sampling { seed: 1 }", "seed",
           "sampling.seed"),
      with(R"("use_beam_search":true,"stop":"x")", R"(beam_search {} stop { strings: "x" })",
           "stop", "stop.strings"),
      with(R"("stop":"")", R"(stop { strings: "" })", "stop", "stop.strings"),
      with(R"("stop":[)" + Many(17, R"("x")", ",") + "]",
           "stop {" + Many(17, R"(strings: "x")", " ") + "}", "stop", "stop.strings"),
      with(R"("stop":")" + std::string(257, 's') + '"',
           R"(stop { strings: ")" + std::string(257, 's') + R"(" })", "stop", "stop.strings"),
      with(R"("stop_token_ids":[-1])", "stop { token_ids: -1 }", "stop_token_ids",
           "stop.token_ids"),
      with(R"("min_tokens":17,"max_tokens":16)", "stop { min_tokens: 17 }", "min_tokens",
           "stop.min_tokens"),
      with(R"("logprobs":21)", "logprobs { output_top: 21 }", "logprobs", "logprobs.output_top"),
      with(R"("request_id":")" + std::string(257, 'x') + '"',
           R"(request_id: ")" + std::string(257, 'x') + '"', "request_id", "request_id"),
      with(R"("cache_salt":"salt")", R"(cache_salt: "salt")"),
      with(R"("cache_salt":")" + std::string(257, 'x') + '"',
           R"(cache_salt: ")" + std::string(257, 'x') + '"', "cache_salt", "cache_salt"),
      {R"("model":"tiny","prompt":"hi","max_tokens":1000000)",
       R"(model: "tiny" text: "hi" max_tokens: 1000000)", "max_tokens", "max_tokens"},
      {R"("model":"tiny","prompt":"")", R"(model: "tiny" text: "" max_tokens: 16)", "prompt",
       "prompt"},
      {R"("model":"tiny","prompt":[99999999])",
       R"(model: "tiny" token_ids { ids: 99999999 } max_tokens: 16)", "prompt", "prompt"},
      {R"("model":"tiny","prompt":[)" + Many(9000, "5", ",") + "]",
       R"(model: "tiny" token_ids {)" + Many(9000, "ids: 5", " ") + "}", "prompt", "prompt"},
  };
}

// `value` for the parameter of a row, over both APIs.
Case NumberCase(const Parameter& row, double value) {
  const std::string name(row.name), path(row.grpc);
  const auto whole = static_cast<std::int64_t>(value);
  const std::string number =
      static_cast<double>(whole) == value ? absl::StrCat(whole) : absl::StrCat(value);
  const auto dot = path.find('.');
  const std::string field = absl::StrCat(path.substr(dot + 1), ": ", number);
  const bool bounded = row.name != "max_tokens";
  return {absl::StrCat(R"("model":"tiny","prompt":"hi",)", bounded ? R"("max_tokens":16,)" : "",
                       row.modes == Modes::kBeams ? R"("use_beam_search":true,)" : "", "\"", name,
                       "\":", number),
          absl::StrCat(R"(model: "tiny" text: "hi" )", bounded ? "max_tokens: 16 " : "",
                       dot == path.npos ? field : path.substr(0, dot) + " { " + field + " }"),
          name, path};
}

// Numbers outside the range of each row that has one and is on both APIs.
std::vector<Case> RangeCases() {
  std::vector<Case> cases;
  for (const Parameter& row : kParameters) {
    const bool real = std::holds_alternative<Parameter::Member<std::optional<double>>>(row.asked);
    const bool integer =
        std::holds_alternative<Parameter::Member<std::optional<std::int64_t>>>(row.asked);
    if ((!real && !integer) || !row.exceptions.http || row.grpc.empty()) continue;
    const Range& range = row.range;
    const double low = row.exceptions.also_default.value_or(range.low);
    // Integers from 0 on are unsigned over gRPC.
    if (real || low != 0) cases.push_back(NumberCase(row, range.above_low ? low : low - 1));
    const bool constant = range.limit == Limit::kNone;
    cases.push_back(NumberCase(row, constant ? range.high + 1 : 2'000'000'000));
  }
  EXPECT_GT(cases.size(), 20u);
  return cases;
}

TEST_F(FrontendsTest, JudgeAlike) {
  const auto check = [&](const std::string& path, const Case& one) {
    v1::GenerateRequest request;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(one.proto, &request)) << one.proto;
    const std::string shown = one.http.substr(0, 200);
    Verdict http = OverHttp(path, "{" + one.http + "}");
    Verdict grpc = OverGrpc(request);
    EXPECT_EQ(http.status == 200, one.http_field.empty()) << shown << http.message;
    EXPECT_EQ(http.field, one.http_field) << shown << http.message;
    EXPECT_EQ(grpc.field, one.grpc_field) << shown << grpc.message;
    http.field = grpc.field = "";  // each by its own names
    EXPECT_EQ(http, grpc) << shown;
  };
  for (const Case& one : ChatCases()) check("/v1/chat/completions", one);
  for (const Case& one : TextCases()) check("/v1/completions", one);
  for (const Case& one : RangeCases()) check("/v1/completions", one);
}

// --- Numbers at the bounds and far outside, for every parameter that is a number ----------------

// Where a body has a number, and which numbers it may be. The text before it and after it makes the
// rest of the body.
struct NumberField {
  std::string name, before, after;
  double low = 0, high = 0;
  bool above_low = false, whole = false;
  std::optional<double> also;  // allowed besides
  bool null_is_absent = true;
  std::string beyond_high = name;  // the field that is refused for high + 1
};

bool Takes(const NumberField& field, double value) {
  if (value == field.also) return true;
  if (field.whole && value != std::floor(value)) return false;
  return (field.above_low ? value > field.low : value >= field.low) && value <= field.high;
}

bool IsNumberRow(const Parameter& row) {
  return std::holds_alternative<Parameter::Member<std::optional<double>>>(row.asked) ||
         std::holds_alternative<Parameter::Member<std::optional<std::int64_t>>>(row.asked);
}

// The bounds of the row for a prompt of so many tokens and 16 tokens of output.
NumberField FieldOf(const Parameter& row, const EngineDescription& engine,
                    std::size_t prompt_tokens = 1) {
  NumberField field;
  field.name = field.beyond_high = std::string(row.name);
  field.low = row.range.low;
  field.above_low = row.range.above_low;
  field.also = row.exceptions.also_default;
  field.whole = std::holds_alternative<Parameter::Member<std::optional<std::int64_t>>>(row.asked);
  switch (row.range.limit) {
    case Limit::kNone:
      field.high = row.range.high;
      break;
    case Limit::kVocabulary:
      field.high = engine.vocab_size;
      break;
    case Limit::kContext:
      field.high = engine.max_context;
      if (row.name != "max_tokens") break;
      field.high -= prompt_tokens;  // the prompt is then at fault as well
      field.beyond_high = "prompt";
      break;
    case Limit::kMaxTokens:
      field.high = 16;
      break;
    case Limit::kSequences:
      field.high = engine.max_sequences;
      break;
    case Limit::kTimeout:
      field.high = static_cast<double>(RequestLimits().max_timeout_ms);
      break;
  }
  return field;
}

// Of the rows that both HTTP bodies have, and of what lists have.
std::vector<NumberField> HttpFields(const EngineDescription& engine, std::size_t prompt_tokens) {
  std::vector<NumberField> fields;
  for (const Parameter& row : kParameters) {
    if (!IsNumberRow(row) || !row.exceptions.http) continue;
    NumberField& field = fields.emplace_back(FieldOf(row, engine, prompt_tokens));
    field.before = absl::StrCat(row.name == "max_tokens" ? "" : R"("max_tokens":16,)",
                                row.modes == Modes::kBeams ? R"("use_beam_search":true,)" : "",
                                "\"", field.name, "\":");
  }
  EXPECT_GT(fields.size(), 18u);
  for (const char* name : {"stop_token_ids", "allowed_token_ids"}) {
    fields.push_back({.name = name,
                      .before = absl::StrCat("\"", name, "\":["),
                      .after = "]",
                      .high = engine.vocab_size - 1.0,
                      .whole = true,
                      .null_is_absent = false});
  }
  fields.push_back({.name = "logit_bias",
                    .before = R"("logit_bias":{"5":)",
                    .after = "}",
                    .low = -100,
                    .high = 100,
                    .null_is_absent = false});
  return fields;
}

NumberField& Named(std::string_view name, std::vector<NumberField>& fields) {
  return *std::find_if(fields.begin(), fields.end(),
                       [name](const NumberField& field) { return field.name == name; });
}

std::string NumberText(double value) {
  return value == std::floor(value) && std::abs(value) < 1e18
             ? absl::StrCat(static_cast<std::int64_t>(value))
             : absl::StrCat(value);
}

// As JSON; with the number that it is, if it is one.
std::vector<std::pair<std::string, std::optional<double>>> HostileNumbers(
    const NumberField& field) {
  std::vector<std::pair<std::string, std::optional<double>>> texts;
  for (const double value :
       {field.low - 1, field.low, field.high, field.high + 1, 0.0, -1.0, 2147483648.0}) {
    texts.emplace_back(NumberText(value), value);
  }
  texts.emplace_back("9223372036854775808", 9223372036854775808.0);
  texts.emplace_back("-9223372036854775809", -9223372036854775809.0);
  texts.emplace_back("1e300", 1e300);
  for (const char* other : {"NaN", "Infinity", "-Infinity", "1e400", "-1e400", R"("1")", R"("")",
                            "[1]", "{}", "true"}) {
    texts.emplace_back(other, std::nullopt);
  }
  return texts;
}

class NumbersTest : public FrontendsTest {
 protected:
  // `body` is what comes in front of a field.
  void CheckNumbers(const std::string& path, const std::string& body,
                    const std::vector<NumberField>& fields) {
    for (const NumberField& field : fields) {
      auto values = HostileNumbers(field);
      values.emplace_back("null", field.null_is_absent ? std::optional(field.high) : std::nullopt);
      for (const auto& [text, value] : values) {
        const bool served = value.has_value() && Takes(field, *value);
        const std::string whole = absl::StrCat(body, field.before, text, field.after, "}");
        const Verdict verdict = OverHttp(path, whole);
        EXPECT_EQ(verdict.status, served ? 200 : 400) << whole << verdict.message;
        if (served) continue;
        const std::string& refused = value == field.high + 1 ? field.beyond_high : field.name;
        EXPECT_EQ(verdict.field, refused) << whole << verdict.message;
        EXPECT_NE(verdict.message.find(refused), std::string::npos) << whole << verdict.message;
      }
    }
  }
};

TEST_F(NumbersTest, EveryNumberOfACompletionIsServedOrRefusedByName) {
  std::vector<NumberField> fields = HttpFields(*engine_.Describe(), 1);
  Named("thinking_token_budget", fields).high = -1;  // a text has no thoughts
  // Completions have their own form of logprobs.
  fields.push_back({.name = "logprobs",
                    .before = R"("logprobs":)",
                    .high = LogprobSpec::kMaxTop,
                    .whole = true});
  CheckNumbers("/v1/completions", R"({"model":"tiny","prompt":[5],)", fields);
}

TEST_F(NumbersTest, EveryNumberOfAChatIsServedOrRefusedByName) {
  const std::string body = absl::StrCat(R"({"model":"thinker",)", kHi, ",");
  ASSERT_EQ(OverHttp("/v1/chat/completions", body + R"("max_tokens":1})").status, 200);
  const std::size_t prompt_tokens = engine_.submitted().back().prompt.size();
  std::vector<NumberField> fields = HttpFields(*engine_.Describe(), prompt_tokens);
  Named("max_tokens", fields).low = 1;
  NumberField max_tokens = Named("max_tokens", fields);
  max_tokens.name = "max_completion_tokens";
  max_tokens.before = R"("max_completion_tokens":)";
  fields.push_back(max_tokens);
  fields.push_back({.name = "top_logprobs",
                    .before = R"("logprobs":true,"top_logprobs":)",
                    .high = LogprobSpec::kMaxTop,
                    .whole = true});
  CheckNumbers("/v1/chat/completions", body, fields);
}

TEST_F(FrontendsTest, TokensOfABiasAreThoseOfTheVocabulary) {
  const auto verdict = [this](const std::string& token) {
    return OverHttp(
        "/v1/completions",
        absl::StrCat(R"({"model":"tiny","prompt":[5],"logit_bias":{")", token, R"(":1}})"));
  };
  const TokenId last = engine_.Describe()->vocab_size - 1;
  for (const TokenId token : {0, 5, last}) {
    EXPECT_EQ(verdict(absl::StrCat(token)).status, 200) << token;
  }
  for (const std::string& token :
       {absl::StrCat(last + 1), std::string("-1"), std::string("2147483648"),
        std::string("9223372036854775808"), std::string("1e400"), std::string("1.5"),
        std::string("NaN"), std::string("x"), std::string()}) {
    EXPECT_EQ(verdict(token).status, 400) << token;
    EXPECT_EQ(verdict(token).field, "logit_bias") << token;
  }
}

TEST_F(FrontendsTest, ASeedIsAnyIntegerOf64Bits) {
  const auto verdict = [this](const char* seed) {
    return OverHttp("/v1/completions",
                    absl::StrCat(R"({"model":"tiny","prompt":[5],"seed":)", seed, "}"));
  };
  for (const char* seed : {"0", "-1", "2147483648", "9223372036854775808", "18446744073709551615",
                           "-9223372036854775808", "null"}) {
    EXPECT_EQ(verdict(seed).status, 200) << seed;
  }
  for (const char* seed : {"18446744073709551616", "-9223372036854775809", "1.5", "NaN", "Infinity",
                           "1e400", R"("1")", "[1]"}) {
    EXPECT_EQ(verdict(seed).status, 400) << seed;
    EXPECT_EQ(verdict(seed).field, "seed") << seed;
  }
  // gRPC's type has no others.
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1} << 31, std::uint64_t{1} << 63,
                                   std::numeric_limits<std::uint64_t>::max()}) {
    v1::GenerateRequest request;
    request.set_model("tiny");
    request.mutable_token_ids()->add_ids(5);
    request.set_max_tokens(16);
    request.mutable_sampling()->set_seed(seed);
    EXPECT_EQ(OverGrpc(request).status, 200) << seed;
    EXPECT_EQ(engine_.submitted().back().sampling.seed, seed);
  }
}

// Sets a field to a value, if its type has it, and returns the value that it then has.
std::optional<double> SetNumber(const std::string& path, double value,
                                v1::GenerateRequest* request) {
  google::protobuf::Message* message = request;
  std::string name = path;
  if (const auto dot = path.find('.'); dot != path.npos) {
    const auto* outer = message->GetDescriptor()->FindFieldByName(path.substr(0, dot));
    message = message->GetReflection()->MutableMessage(message, outer);
    name = path.substr(dot + 1);
  }
  const auto* field = message->GetDescriptor()->FindFieldByName(name);
  const auto* access = message->GetReflection();
  switch (field->cpp_type()) {
    case google::protobuf::FieldDescriptor::CPPTYPE_FLOAT:
      access->SetFloat(message, field, static_cast<float>(value));
      return static_cast<float>(value);
    case google::protobuf::FieldDescriptor::CPPTYPE_INT32:
      if (!(value >= -2147483648.0 && value <= 2147483647.0)) return std::nullopt;
      access->SetInt32(message, field, static_cast<std::int32_t>(value));
      return value;
    case google::protobuf::FieldDescriptor::CPPTYPE_UINT32:
      if (!(value >= 0 && value <= 4294967295.0)) return std::nullopt;
      access->SetUInt32(message, field, static_cast<std::uint32_t>(value));
      return value;
    default:
      ADD_FAILURE() << path << " has another type";
      return std::nullopt;
  }
}

TEST_F(FrontendsTest, EveryNumberOverGrpcIsServedOrRefusedByName) {
  const EngineDescription engine = *engine_.Describe();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  int set = 0;
  const auto check = [&](const Parameter& row, const NumberField& field, bool chat) {
    for (const double value :
         {field.low - 1, field.low, field.high, field.high + 1, 0.0, -1.0, 2147483647.0,
          2147483648.0, 4294967295.0, 9223372036854775808.0, kInfinity, -kInfinity, 1e38,
          std::numeric_limits<double>::quiet_NaN()}) {
      v1::GenerateRequest request;
      request.set_model(chat ? "thinker" : "tiny");
      if (chat) {
        v1::ChatMessage& message = *request.mutable_chat()->add_messages();
        message.set_role("user");
        message.set_content("hi");
      } else {
        request.mutable_token_ids()->add_ids(5);
      }
      if (row.name != "max_tokens") request.set_max_tokens(16);
      const std::optional<double> has = SetNumber(std::string(row.grpc), value, &request);
      if (!has.has_value()) continue;  // the type does not have it
      ++set;
      const Verdict verdict = OverGrpc(request);
      EXPECT_EQ(verdict.status, Takes(field, *has) ? 200 : 400)
          << request.ShortDebugString() << verdict.message;
      const std::string refused = *has == field.high + 1 && field.beyond_high != field.name
                                      ? "prompt"
                                      : std::string(row.grpc);
      EXPECT_EQ(verdict.field, Takes(field, *has) ? "" : refused)
          << request.ShortDebugString() << verdict.message;
    }
  };
  for (const Parameter& row : kParameters) {
    if (!IsNumberRow(row) || row.grpc.empty()) continue;
    NumberField field = FieldOf(row, engine);
    if (row.name == "thinking_token_budget") {
      check(row, field, /*chat=*/true);
      field.high = -1;  // a text has no thoughts
    }
    check(row, field, /*chat=*/false);
  }
  EXPECT_GT(set, 200);
}

TEST_F(FrontendsTest, NumbersOfListsOverGrpcAreServedOrRefusedByName) {
  const TokenId last = engine_.Describe()->vocab_size - 1;
  const auto check = [this](const std::string& field, bool served, auto set) {
    v1::GenerateRequest request;
    request.set_model("tiny");
    request.mutable_token_ids()->add_ids(5);
    request.set_max_tokens(16);
    set(request);
    const Verdict verdict = OverGrpc(request);
    EXPECT_EQ(verdict.status, served ? 200 : 400) << request.ShortDebugString() << verdict.message;
    EXPECT_EQ(verdict.field, served ? "" : field) << request.ShortDebugString() << verdict.message;
  };
  for (const TokenId token : {-1, 0, last, last + 1, std::numeric_limits<TokenId>::max(),
                              std::numeric_limits<TokenId>::min()}) {
    const bool served = token >= 0 && token <= last;
    check("stop.token_ids", served, [&](auto& r) { r.mutable_stop()->add_token_ids(token); });
    check("sampling.allowed_token_ids", served,
          [&](auto& r) { r.mutable_sampling()->add_allowed_token_ids(token); });
    check("sampling.logit_bias", served,
          [&](auto& r) { r.mutable_sampling()->add_logit_bias()->set_token_id(token); });
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bias : {-101.0f, -100.0f, -1.0f, 0.0f, 100.0f, 101.0f, 2147483648.0f, 1e38f,
                           kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    check("sampling.logit_bias", bias >= -100 && bias <= 100, [&](auto& r) {
      auto* one = r.mutable_sampling()->add_logit_bias();
      one->set_token_id(5);
      one->set_bias(bias);
    });
  }
}

TEST_F(FrontendsTest, EveryParameterOfTheSamplerReachesTheEngine) {
  ForEachOfSampler([this](const Parameter& row, auto member) {
    const bool constant = row.range.limit == Limit::kNone;
    double value = constant ? row.range.low + (row.range.high - row.range.low) / 4 : 5;
    if (std::holds_alternative<std::int32_t SamplingParams::*>(row.sampler)) {
      value = std::floor(value);
    }
    ASSERT_NE(value, row.default_value);
    const Case one = NumberCase(row, value);
    v1::GenerateRequest request;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(one.proto, &request)) << one.proto;
    EXPECT_EQ(OverHttp("/v1/completions", "{" + one.http + "}").status, 200) << one.http;
    EXPECT_EQ(OverGrpc(request).status, 200) << one.proto;
    const auto submitted = engine_.submitted();
    ASSERT_GE(submitted.size(), 2u);
    for (std::size_t i = submitted.size() - 2; i < submitted.size(); ++i) {
      EXPECT_NEAR(submitted[i].sampling.*member, value, 1e-5) << one.proto;
    }
  });
}

TEST_F(FrontendsTest, WhatTheEngineIsToldIsTheSame) {
  const char* http = R"({"model":"tiny","messages":[{"role":"developer","content":"hi"}],
      "cache_salt":"salt","seed":1,"max_tokens":5})";
  v1::GenerateRequest request;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(model: "tiny" chat { messages { role: "developer" content: "hi" } }
         cache_salt: "salt" sampling { seed: 1 } max_tokens: 5)",
      &request));
  EXPECT_EQ(OverHttp("/v1/chat/completions", http).status, 200);
  EXPECT_EQ(OverGrpc(request).status, 200);
  const auto submitted = engine_.submitted();
  ASSERT_EQ(submitted.size(), 2u);
  EXPECT_EQ(submitted[0].prompt, submitted[1].prompt);
  std::string rendered;
  for (TokenId id : submitted[0].prompt) rendered += tokenizer_->TokenBytes(id);
  EXPECT_EQ(rendered, "system:hi;");
  for (const TokenizedRequest& one : submitted) {
    EXPECT_EQ(one.cache_salt, "salt");
    EXPECT_FALSE(one.max_tokens_absent);
  }
}

TEST_F(FrontendsTest, TheEngineIsToldThatMaxTokensAreAbsent) {
  EXPECT_EQ(OverHttp("/v1/chat/completions",
                     R"({"model":"tiny","messages":[{"role":"user","content":"hi"}]})")
                .status,
            200);
  v1::GenerateRequest request;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(model: "tiny" chat { messages { role: "user" content: "hi" } })", &request));
  EXPECT_EQ(OverGrpc(request).status, 200);
  const auto submitted = engine_.submitted();
  ASSERT_EQ(submitted.size(), 2u);
  for (const TokenizedRequest& one : submitted) EXPECT_TRUE(one.max_tokens_absent);
}

}  // namespace
}  // namespace flotilla::router
