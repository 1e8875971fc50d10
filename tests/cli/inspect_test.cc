#include "cli/inspect.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/encode_weights.h"
#include "tests/support/hf_folder.h"
#include "tests/support/quantised_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"
#include "tests/support/with_kv_scales.h"

namespace flotilla::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Printed(const std::vector<std::byte>& bytes) {
  const auto file = model::ParseCheckpoint(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  std::ostringstream out;
  PrintCheckpoint(**file, {.bytes = 1 << 30, .whose = "this machine"}, out);
  return out.str();
}

TEST(InspectTest, ShowsEveryKindOfValueAndTheTensors) {
  testing::GgufBuilder builder;
  builder.AddString("general.name", "tiny");
  builder.AddUint64("a.big", 1ull << 40);
  builder.AddFloat("a.float", 0.5f);
  builder.AddBool("a.yes", true);
  builder.AddStrings("a.words", {"one", "two"});
  builder.AddInts("a.many", {1, 2, 3, 4, 5, 6, 7, 8});
  builder.AddTensor("w", {32, 2}, model::GgmlType::kF32,
                    testing::EncodeTensor(model::GgmlType::kF32, std::vector<float>(64)));
  const std::string text = Printed(builder.Build());
  EXPECT_THAT(text, HasSubstr("GGUF v3, 1 tensors"));
  EXPECT_THAT(text, HasSubstr("\"tiny\""));
  EXPECT_THAT(text, HasSubstr("1099511627776"));
  EXPECT_THAT(text, HasSubstr("0.5"));
  EXPECT_THAT(text, HasSubstr("true"));
  EXPECT_THAT(text, HasSubstr("[\"one\", \"two\"]"));
  EXPECT_THAT(text, HasSubstr("[1, 2, 3, 4, 5, 6, ...]"));
  EXPECT_THAT(text, HasSubstr("[2, 32]"));
}

TEST(InspectTest, SaysWhatTheModelIs) {
  const std::string text = Printed(testing::TinyGguf());
  // 14 matrices of 5 bits, and the token vectors of 8.5.
  EXPECT_THAT(text, HasSubstr("matrices in memory: 0.2 MB\n"));
  // Two layers of two heads of 32, K and V: 256 elements.
  EXPECT_THAT(text, HasSubstr("KV bytes of a token: fp32 1024 (1048576 per GiB); fp16 512 "
                              "(2097152 per GiB); bf16 512 (2097152 per GiB); fp8 272 (3947580 per "
                              "GiB); fp8_e5m2 256 (4194304 per GiB); int8 288 (3728270 per GiB); "
                              "int4 152 (7064091 per GiB) and 33280 for a sequence; int2 88 "
                              "(12201612 per GiB) and 33280 for a sequence\n"));
  EXPECT_THAT(text, HasSubstr("llama: 2 layers of 128, 4 query and 2 KV heads of 32, FFN of 288, "
                              "320 tokens, context 512"));
  EXPECT_THAT(Printed(testing::TinyGguf({.value_dim = 40})),
              HasSubstr("4 query and 2 KV heads of 32 (V of 40), FFN"));
  EXPECT_THAT(text, ::testing::ContainsRegex("blk.1.attn_output.weight .* MB  attention output"));
}

// The types stand in one column behind the longest name.
TEST(InspectTest, LongNamesKeepTheirColumn) {
  testing::GgufBuilder builder;
  const std::string name(50, 'n');
  const auto data = testing::EncodeTensor(model::GgmlType::kF32, std::vector<float>(64));
  builder.AddTensor("w", {32, 2}, model::GgmlType::kF32, data);
  builder.AddTensor(name, {32, 2}, model::GgmlType::kF32, data);
  const std::string text = Printed(builder.Build());
  EXPECT_THAT(text, HasSubstr("\n  " + name + " F32 "));
  EXPECT_THAT(text, HasSubstr("\n  w" + std::string(50, ' ') + "F32 "));
}

// Rows beyond the tokens are no tokens.
TEST(InspectTest, CountsTokensAlike) {
  const std::string text = Printed(testing::TinyGguf({.padding = 20}));
  EXPECT_THAT(text, HasSubstr(", 300 tokens of 320 rows, "));
  EXPECT_THAT(text, HasSubstr("tokenizer: gpt2, 300 tokens"));
}

TEST(InspectTest, SaysWhatALatentModelIs) {
  const auto file = model::OpenCheckpoint("tests/data/tiny/deepseek_v3_mla");
  ASSERT_TRUE(file.ok()) << file.status();
  std::ostringstream out;
  PrintCheckpoint(**file, {}, out);
  EXPECT_THAT(out.str(),
              HasSubstr("deepseek_v3: 3 layers of 64, 4 query heads of 32, a latent of "
                        "32 + 16, FFN of 160, 2 of 8 experts of 48, shared expert of 48, "
                        "256 tokens, context 512"));
}

// What is printed of the model of the folder `from` with quantised layers.
std::string PrintedQuantised(const std::string& from, const testing::QuantisedLayers& layers) {
  const testing::ScratchDirectory folder;
  testing::WriteQuantisedFolder(from, layers, /*seed=*/1, folder.path());
  const auto file = model::OpenCheckpoint(folder.path());
  EXPECT_TRUE(file.ok()) << file.status();
  std::ostringstream out;
  PrintCheckpoint(**file, {.bytes = 1 << 30, .whose = "this machine"}, out);
  return out.str();
}

// Three layers of four experts: gate and up are 64 x 160 weights.
TEST(InspectTest, CountsExpertsThatAreUnpacked) {
  const auto printed = [](const char* format) {
    return PrintedQuantised("tests/data/tiny/mixtral", {.name = "", .formats = {format}});
  };
  EXPECT_THAT(printed("gptq_own_order"),
              HasSubstr("matrices in memory: 1.2 MB; gate and up of 12 experts differ in format or "
                        "order, and take 1.0 MB in fp32\n"));
  EXPECT_THAT(printed("gptq_order"), HasSubstr("matrices in memory: 0.4 MB\n"));
}

TEST(InspectTest, SaysWhatFastMultipliesByActivationsOf8Bits) {
  const auto printed = [](const testing::QuantisedLayers& layers) {
    return PrintedQuantised("tests/data/tiny/llama", layers);
  };
  EXPECT_THAT(printed({.name = "", .formats = {"w8a8"}}),
              ContainsRegex("activations of quantised matrices with --compute fast: 8 bits, [0-9]+ "
                            "with a scale of each token; with accurate: 16 bits\n"));
  EXPECT_THAT(printed({.name = "", .formats = {"w8a8_static"}}),
              ContainsRegex(": 8 bits, [0-9]+ with a static scale; with accurate"));
  EXPECT_THAT(printed({.name = "", .formats = {"int8"}}), Not(HasSubstr("--compute fast")));
}

TEST(InspectTest, NamesWhatIsNotUsedForText) {
  const testing::ScratchDirectory folder;
  testing::WriteFile(folder.path() + "/config.json", R"({"text_config": {"model_type": "llama"}})");
  testing::WriteFile(folder.path() + "/model.safetensors",
                     testing::Safetensors({{"vision_tower.a", "F32", {2}, std::string(8, 'x')},
                                           {"vision_tower.b", "F32", {2}, std::string(8, 'x')},
                                           {"model.visual.b", "F32", {2}, std::string(8, 'x')}}));
  const auto file = model::OpenCheckpoint(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  std::ostringstream out;
  PrintCheckpoint(**file, {}, out);
  EXPECT_THAT(out.str(), HasSubstr("tensors not used for text: vision_tower. (2, 0.0 MB), "
                                   "visual. (1, 0.0 MB)\n"));
}

TEST(InspectTest, NamesScalesOfKAndVThatAreNotUsed) {
  const testing::ScratchDirectory folder;
  testing::WriteFile(folder.path() + "/config.json",
                     R"({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}})");
  const std::string layer = "model.layers.0.self_attn.k_proj", scale(4, '\x3F');
  testing::WriteFile(
      folder.path() + "/model.safetensors",
      testing::Safetensors({{layer + ".weight", "F8_E4M3", {1, 32}, std::string(32, '1')},
                            {layer + ".weight_scale", "F32", {1}, scale},
                            {layer + ".k_scale", "F32", {2}, scale + scale}}));
  const auto file = model::OpenCheckpoint(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  std::ostringstream out;
  PrintCheckpoint(**file, {}, out);
  EXPECT_THAT(out.str(), HasSubstr("tensors not used for text: scales of K and V (1, 0.0 MB)\n"));
}

TEST(InspectTest, CountsLayersWithScalesOfKAndV) {
  const auto printed = [](const std::vector<model::KvScales>& scales) {
    auto file = model::OpenCheckpoint("tests/data/tiny/llama");
    EXPECT_TRUE(file.ok()) << file.status();
    std::ostringstream out;
    PrintCheckpoint(testing::WithKvScales(*std::move(file), scales), {}, out);
    return out.str();
  };
  EXPECT_THAT(printed({{}, {0, 0.5f}}),
              HasSubstr("scales of K and V in the file, for --kv-type fp8: of 1 of 3 layers\n"));
  EXPECT_THAT(printed({}), Not(HasSubstr("scales of K and V")));
}

TEST(InspectTest, SaysThatNoChatTemplateIsTheDefault) {
  testing::GgufBuilder builder = testing::TinyGgufBuilder();
  builder.AddStrings("tokenizer.chat_templates", {"tool_use"});
  builder.AddString("tokenizer.chat_template.tool_use", "x");
  std::vector<std::byte> bytes = builder.Build();
  constexpr std::string_view kDefault = "tokenizer.chat_template";
  const auto found = std::ranges::search(bytes, std::as_bytes(std::span(kDefault)));
  ASSERT_FALSE(found.empty());
  found.back() = std::byte{'x'};  // another key
  EXPECT_THAT(Printed(bytes),
              HasSubstr("; no chat template called default; unused chat templates: tool_use\n"));
}

TEST(InspectTest, NamesUnusedChatTemplates) {
  testing::GgufBuilder builder = testing::TinyGgufBuilder();
  builder.AddStrings("tokenizer.chat_templates", {"tool_use", "rag"});
  builder.AddString("tokenizer.chat_template.tool_use", "x");
  builder.AddString("tokenizer.chat_template.rag", "x");
  EXPECT_THAT(Printed(builder.Build()), HasSubstr("; chat template; unused chat templates: rag\n"));
}

// 10 layers with a window fill 5 groups of 2, and the one without has a group that is short.
TEST(InspectTest, CountsUnusedPlacesOfKvGroups) {
  testing::GgufBuilder builder = testing::TinyGgufBuilder({.layers = 11});
  builder.AddUint32("llama.attention.sliding_window", 64);
  builder.AddInts("llama.attention.sliding_window_pattern", {1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1});
  EXPECT_THAT(Printed(builder.Build()),
              HasSubstr("KV in 6 groups of 2 layers (5 of a window of 64), 1 of 12 places unused"));
}

// Blocks of 8 KiB: half of 1 GiB less 0.2 MB of matrices.
TEST(InspectTest, SaysWhatFitsInTheMachine) {
  EXPECT_THAT(Printed(testing::TinyGguf()),
              HasSubstr("KV pool in bf16 on CPUs, by 50 % of the 1.0 GiB that this machine has "
                        "available, less the matrices: "));
}

TEST(InspectTest, SaysWhyAModelCannotBeServed) {
  testing::GgufBuilder builder;
  builder.AddString("general.architecture", "b\x1b[2Jrt");
  EXPECT_THAT(Printed(builder.Build()), HasSubstr("cannot be served: architecture 'b\\033[2Jrt'"));
}

TEST(InspectTest, AFileCannotWriteToTheTerminal) {
  testing::GgufBuilder builder;
  builder.AddString("evil", "\x1b[2J" + std::string(1000, 'x'));
  const std::string text = Printed(builder.Build());
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("\\033[2J"));
  EXPECT_LT(text.size(), 400u);
}

TEST(InspectTest, AMissingFileIsAnError) {
  EXPECT_EQ(RunInspect("no/such/file.gguf", "none").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(RunInspect("tests/data/tiny/llama", "int3").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(RunInspect("tests/data/tiny/llama", "int4").ok());
}

}  // namespace
}  // namespace flotilla::cli
