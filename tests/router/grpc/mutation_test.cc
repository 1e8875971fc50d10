// Broken and hostile request bytes: refused or understood, never a crash, and
// what passes the Validator is in range.
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "router/grpc/codec.h"
#include "tests/support/allocations.h"

namespace flotilla::router {
namespace {

std::vector<std::string> Seeds() {
  v1::GenerateRequest text;
  text.set_model("m");
  text.set_text("The quick brown fox \xe2\x82\xac");
  text.mutable_sampling()->set_temperature(0.7f);
  text.mutable_sampling()->set_top_p(0.9f);
  text.mutable_sampling()->set_top_k(40);
  text.mutable_sampling()->set_seed(7);
  text.mutable_sampling()->set_repetition_penalty(1.1f);
  text.mutable_sampling()->add_logit_bias()->set_token_id(5);
  text.mutable_stop()->add_strings("\n\n");
  text.mutable_stop()->add_token_ids(2);
  text.set_max_tokens(16);
  text.mutable_logprobs()->set_output_top(3);
  text.set_request_id("label");
  v1::GenerateRequest tokens = text;
  for (int i = 0; i < 40; ++i) tokens.mutable_token_ids()->add_ids(i * 7 % 1000);
  v1::GenerateRequest chat = text;
  for (const char* role : {"system", "user", "assistant", "user"}) {
    auto* message = chat.mutable_chat()->add_messages();
    message->set_role(role);
    message->set_content("hello");
  }
  v1::GenerateRequest tools = chat;
  auto* call = tools.mutable_chat()->mutable_messages(2)->add_tool_calls();
  call->set_name("f");
  call->set_arguments("{\"a\":1}");
  auto* tool = tools.mutable_chat()->add_tools();
  tool->set_name("f");
  tool->set_parameters("{\"type\":\"object\"}");
  tools.mutable_chat()->set_tool_choice("auto");
  tools.mutable_chat()->set_documents("[{\"a\":[1,{}]}]");
  tools.mutable_chat()->set_chat_template_kwargs("{\"a\":1}");
  v1::GenerateRequest sampled = text;
  sampled.set_n(2);
  sampled.set_best_of(4);
  v1::GenerateRequest beams;
  beams.set_model("m");
  beams.set_text("The quick brown fox");
  beams.set_n(3);
  beams.mutable_beam_search()->set_length_penalty(0.5f);
  beams.mutable_beam_search()->set_early_stopping(v1::BeamSearch::EARLY_STOPPING_NEVER);
  return {text.SerializeAsString(),  tokens.SerializeAsString(),  chat.SerializeAsString(),
          tools.SerializeAsString(), sampled.SerializeAsString(), beams.SerializeAsString()};
}

std::string Mutate(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (std::size_t edits = 1 + below(4); edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = below(bytes.size());
    switch (below(5)) {
      case 0:
        bytes[at] ^= static_cast<char>(1u << below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(at, 1 + below(10), static_cast<char>(random()));
        break;
      case 4:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(32)));
        break;
    }
  }
  return bytes;
}

void CheckInRange(const ApiRequest& api, const ModelLimits& model) {
  EXPECT_TRUE(*api.temperature >= 0 && *api.temperature <= 2);
  EXPECT_TRUE(*api.top_p > 0 && *api.top_p <= 1);
  EXPECT_TRUE(*api.top_k >= 0);
  EXPECT_LE(api.max_tokens.value_or(0), model.max_context);
  EXPECT_TRUE(api.logprobs.value_or(0) >= 0 && api.logprobs.value_or(0) <= 20);
  const std::int64_t best_of = api.best_of.value_or(*api.n);
  EXPECT_TRUE(*api.n >= 1 && *api.n <= best_of && best_of <= model.max_sequences);
  EXPECT_TRUE(std::abs(api.length_penalty.value_or(1)) <= 10);  // and a number
  EXPECT_TRUE(!api.use_beam_search || api.stop.empty());
  if (const auto* tokens = std::get_if<std::vector<std::int64_t>>(&api.prompt)) {
    EXPECT_FALSE(tokens->empty());
    for (const auto token : *tokens) EXPECT_TRUE(token >= 0 && token < model.vocab_size);
  }
}

TEST(GrpcMutation, GenerateRequestBytes) {
  const int count = std::getenv("FLOTILLA_LONG") != nullptr ? 100'000 : 5'000;
  constexpr std::uint64_t kSeed = 20240601;
  RecordProperty("seed", std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  google::protobuf::LogSilencer quiet;
  const std::vector<std::string> seeds = Seeds();
  const ModelLimits model{
      .id = "m", .vocab_size = 1000, .max_context = 64, .max_sequences = 8, .end_tokens = {2}};
  const Validator validator{RequestLimits()};
  int parsed = 0, passed = 0;
  std::size_t most = 0;
  for (int i = 0; i < count; ++i) {
    const std::string bytes = Mutate(seeds[i % seeds.size()], random);
    const testing::AllocationCount allocated;
    v1::GenerateRequest request;
    if (!request.ParseFromString(bytes)) continue;
    ++parsed;
    auto call = FromProto(request);
    if (!call.ok()) {
      EXPECT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    const auto validated = validator.Validate(*std::move(call), model);
    most = std::max(most, allocated.bytes());
    ASSERT_LE(allocated.bytes(), (16u << 10) + 100 * bytes.size());
    if (!validated.ok()) continue;
    ++passed;
    CheckInRange(validated->api(), model);
  }
  RecordProperty("mutated gRPC bodies; most bytes allocated for one",
                 std::to_string(count) + "; " + std::to_string(most));
  // The mutations reach every stage.
  EXPECT_GT(parsed, count / 20);
  EXPECT_LT(parsed, count);
  EXPECT_GT(passed, count / 100);
  EXPECT_LT(passed, parsed);
}

}  // namespace
}  // namespace flotilla::router
