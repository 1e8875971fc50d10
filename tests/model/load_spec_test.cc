#include "model/load_spec.h"

#include <cmath>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/content_hash.h"
#include "model/stop_tokens.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/test_model.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TinyGguf;
using testing::TinyModelOptions;

// Replaces the first occurrence of `from`; both have one length.
std::vector<std::byte> Replaced(std::vector<std::byte> bytes, std::string_view from,
                                std::string_view to) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string_view::npos) << from;
  std::copy_n(reinterpret_cast<const std::byte*>(to.data()), to.size(), bytes.begin() + at);
  return bytes;
}

TEST(LoadSpec, ReadsTheTinyModel) {
  const auto bytes = testing::TinyGguf();
  const auto file = ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto spec = LoadSpec(**file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const TinyModelOptions tiny;
  EXPECT_EQ(spec->architecture, "llama");
  EXPECT_EQ(spec->hidden, tiny.hidden);
  EXPECT_EQ(spec->layers.size(), tiny.layers);
  EXPECT_EQ(spec->attention().heads, tiny.heads);
  EXPECT_EQ(spec->attention().kv_heads, tiny.kv_heads);
  EXPECT_EQ(spec->attention().head_dim, tiny.head_dim);
  EXPECT_EQ(spec->vocab, tiny.vocab);
  EXPECT_EQ(spec->ropes[0].frequencies.size(), tiny.head_dim / 2);
  EXPECT_EQ(spec->ropes[0].frequencies[0], 1.0f);
  EXPECT_TRUE(spec->tied_embedding);
  EXPECT_EQ(spec->attention_splits(), 2u);
  EXPECT_EQ(spec->ffn_splits(), 5u);  // 4 of 64 columns, and one of 32
}

TEST(LoadSpec, ReadsTheRealModel) {
  const auto file = OpenCheckpoint(testing::ModelPath());
  ASSERT_TRUE(file.ok()) << "the test model is missing (scripts/test fetches it): "
                         << file.status();
  const auto spec = LoadSpec(**file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->hidden, 576u);
  EXPECT_EQ(spec->layers.size(), 30u);
  EXPECT_EQ(spec->attention().heads, 9u);
  EXPECT_EQ(spec->attention().kv_heads, 3u);
  EXPECT_EQ(spec->attention().head_dim, 64u);
  EXPECT_EQ(spec->ffn().width, 1536u);
  EXPECT_EQ(spec->ffn_splits(), 12u);
  EXPECT_EQ(spec->vocab, 49152u);
  EXPECT_EQ(spec->context_length, 8192u);
  EXPECT_NEAR(spec->ropes[0].frequencies[31], std::pow(100000.0, -62.0 / 64), 1e-11);
  EXPECT_TRUE(spec->tied_embedding);
  const TokenizerBundle tokenizer = *(*file)->ReadTokenizer();
  EXPECT_THAT(StopTokens(tokenizer), ElementsAre(0, 2));
  EXPECT_EQ(TokenizerHash(tokenizer), 0x94eb524f711ffcb7);  // as in earlier versions
}

// gpt-oss ends messages with "<|end|>" and answers with two others; Phi 3 ends answers with it.
TEST(StopTokens, AnAnswerOfSeveralMessagesGoesOn) {
  TokenizerBundle tokenizer;
  tokenizer.tokens = {"<|end|>", "<|return|>", "<|call|>", "a"};
  tokenizer.kinds = {TokenKind::kControl, TokenKind::kControl, TokenKind::kControl,
                     TokenKind::kNormal};
  tokenizer.eos = 1;
  tokenizer.eot = 0;
  EXPECT_THAT(StopTokens(tokenizer), ElementsAre(1, 2));
  tokenizer.tokens[2] = "<|tool|>";
  EXPECT_THAT(StopTokens(tokenizer), ElementsAre(0, 1));
}

// 128 columns each; half as many, down to 32, while there are fewer than 4 splits, and twice as
// many while there are more than 256. The last split may be short.
TEST(FfnSpec, HasSplitsOfItsWidth) {
  struct Row {
    uint32_t width, split, splits;
  };
  constexpr Row kRows[] = {{16, 32, 1},         {96, 32, 3},       {128, 32, 4},
                           {224, 64, 4},        {288, 64, 5},      {384, 64, 6},
                           {512, 128, 4},       {1536, 128, 12},   {32768, 128, 256},
                           {32769, 256, 129},   {65536, 256, 256}, {65537, 512, 129},
                           {1 << 20, 4096, 256}};
  for (const auto& [width, split, splits] : kRows) {
    const FfnSpec ffn{.width = width};
    EXPECT_EQ(ffn.split(), split) << width;
    EXPECT_EQ(ffn.splits(), splits) << width;
  }
}

// Rows of the table without a token are listed as unused tokens, or not at all.
TEST(LoadSpec, RowsBeyondTheTokensBelongToNone) {
  for (const bool lists_padding : {true, false}) {
    TinyModelOptions options{.padding = 20, .lists_padding = lists_padding};
    const auto bytes = testing::TinyGguf(options);
    const auto file = ParseCheckpoint(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->token_count(), 300u);
    const auto spec = LoadSpec(**file);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->vocab, 320u);
    EXPECT_EQ(spec->tokens, 300u);
  }
  // Other unused tokens are tokens.
  const auto bytes = testing::TinyGguf();
  EXPECT_EQ(LoadSpec(**ParseCheckpoint(bytes))->tokens, 320u);
  const auto padded = testing::TinyGguf({.padding = 20});
  EXPECT_EQ(LoadSpec(**ParseCheckpoint(Replaced(padded, "[PAD310]", "[PAD311]")))->tokens, 311u);
}

TEST(LoadSpec, OutputMatrixEndsTying) {
  TinyModelOptions options;
  options.tied_embedding = false;
  const auto bytes = testing::TinyGguf(options);
  const auto spec = LoadSpec(**ParseCheckpoint(bytes));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->tied_embedding);
}

std::string LoadError(const std::vector<std::byte>& bytes) {
  const auto file = ParseCheckpoint(bytes);
  if (!file.ok()) return std::string(file.status().message());
  return std::string(LoadSpec(**file).status().message());
}

TEST(LoadSpec, ATensorThatTheArchitectureHasNoUseForIsRefused) {
  for (const char* name : {"blk.0.attn_sub_norm.weight", "blk.2.attn_norm.weight", "extra"}) {
    testing::GgufBuilder builder = testing::TinyGgufBuilder();
    builder.AddTensor(name, {32}, GgmlType::kF32, std::vector<std::byte>(128));
    EXPECT_THAT(LoadError(builder.Build()),
                HasSubstr(absl::StrCat("tensor ", name, " has no meaning in this architecture")));
  }
}

// As llama.cpp reads them: a factor alone is a linear scaling, and has an older name; 0 is no
// factor.
TEST(LoadSpec, ReadsOldAndNewScalingsOfRope) {
  const auto rope = [](const auto& add) {
    testing::GgufBuilder builder = testing::TinyGgufBuilder();
    add(builder);
    const auto bytes = builder.Build();
    const auto spec = LoadSpec(**ParseCheckpoint(bytes));
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->ropes[0] : RopeSpec{.frequencies = {0, 0}};
  };
  const float plain = rope([](auto&) {}).frequencies[1];
  EXPECT_EQ(rope([](auto& file) { file.AddFloat("llama.rope.scale_linear", 4); }).frequencies[1],
            plain / 4);
  EXPECT_EQ(rope([](auto& file) { file.AddFloat("llama.rope.scale_linear", 0); }).frequencies[1],
            plain);
  EXPECT_EQ(rope([](auto& file) { file.AddFloat("llama.rope.scaling.factor", 2); }).frequencies[1],
            plain / 2);
  const auto both = rope([](auto& file) {
    file.AddFloat("llama.rope.scale_linear", 4);
    file.AddFloat("llama.rope.scaling.factor", 2);
    file.AddFloat("llama.rope.scaling.attn_factor", 1.5);
  });
  EXPECT_EQ(both.frequencies[1], plain / 2);
  EXPECT_EQ(both.magnitude, 1.5f);
  const auto none = rope([](auto& file) {
    file.AddString("llama.rope.scaling.type", "none");
    file.AddFloat("llama.rope.scaling.factor", 2);
  });
  EXPECT_EQ(none.frequencies[1], plain);
  const auto yarn = [&](const char* key) {
    return rope([&](auto& file) {
      file.AddString("llama.rope.scaling.type", "yarn");
      file.AddUint32("llama.rope.scaling.original_context_length", 64);
      file.AddFloat(key, 8);
    });
  };
  EXPECT_EQ(yarn("llama.rope.scale_linear").frequencies,
            yarn("llama.rope.scaling.factor").frequencies);
  testing::GgufBuilder both_ways = testing::TinyGgufBuilder();
  both_ways.AddBool("llama.attention.causal", false);
  EXPECT_THAT(LoadError(both_ways.Build()),
              HasSubstr("llama.attention.causal is false, which is not supported"));
}

TEST(LoadSpec, RefusalsNameTheProblem) {
  const auto tiny = testing::TinyGguf();
  EXPECT_THAT(LoadError(Replaced(tiny, "llama", "mamba")), HasSubstr("'mamba'"));
  EXPECT_THAT(LoadError(Replaced(tiny, "llama", "mamba")), HasSubstr("supported: bloom, cohere"));
  EXPECT_THAT(LoadError(Replaced(tiny, "attn_q.w", "attn_z.w")),
              HasSubstr("blk.0.attn_q.weight is missing"));
  EXPECT_THAT(LoadError(Replaced(tiny, "llama.block_count", "llama.block_sount")),
              HasSubstr("llama.block_count"));
  EXPECT_THAT(
      LoadError(Replaced(tiny, "llama.attention.head_count_kv", "llama.attention.xxxx_count_kv")),
      HasSubstr("blk.0.attn_k.weight is [128, 64, 1, 1], not [128, 128, 1, 1]"));

  TinyModelOptions deep;
  deep.layers = 513;
  deep.hidden = deep.ffn = 32;
  deep.heads = deep.kv_heads = 1;
  EXPECT_THAT(LoadError(testing::TinyGguf(deep)),
              HasSubstr("llama.block_count = 513 is not in 1..512"));
  TinyModelOptions narrow;
  narrow.matrix_type = GgmlType::kF32;
  narrow.head_dim = 25;
  EXPECT_THAT(LoadError(testing::TinyGguf(narrow)),
              HasSubstr("llama.rope.dimension_count = 25 is odd"));
  narrow.head_dim = 264;
  EXPECT_THAT(LoadError(testing::TinyGguf(narrow)),
              HasSubstr("llama.attention.key_length = 264 is not in 2..256"));
}

// llama.cpp computes with 10000, which is another model.
TEST(LoadSpec, AFileOfFalcon11bMustStateItsBaseOfRope) {
  const auto message = [](uint32_t layers, float base) {
    testing::GgufBuilder file;
    file.AddString("general.architecture", "falcon");
    const std::pair<const char*, uint32_t> sizes[] = {
        {"block_count", layers},  {"embedding_length", 4096},   {"feed_forward_length", 16384},
        {"context_length", 8192}, {"attention.head_count", 32}, {"attention.head_count_kv", 8}};
    for (const auto& [key, value] : sizes) file.AddUint32(absl::StrCat("falcon.", key), value);
    file.AddFloat("falcon.attention.layer_norm_epsilon", 1e-5f);
    if (base > 0) file.AddFloat("falcon.rope.freq_base", base);
    const std::vector<std::byte> bytes = file.Build();
    return std::string(LoadSpec(**ParseCheckpoint(bytes)).status().message());
  };
  const auto missing = HasSubstr("falcon.rope.freq_base is missing");
  EXPECT_THAT(message(60, 0), missing);
  EXPECT_THAT(message(60, 500042), Not(missing));
  EXPECT_THAT(message(32, 0), Not(missing));
}

// As those of folders do.
TEST(LoadSpec, RefusalsNameTheFile) {
  const testing::ScratchDirectory scratch;
  const std::string path = scratch.path() + "/tiny.gguf";
  const auto refusal = [&](const std::vector<std::byte>& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    const auto file = OpenCheckpoint(path);
    if (!file.ok()) return std::string(file.status().message());
    const auto spec = LoadSpec(**file);
    if (!spec.ok()) return std::string(spec.status().message());
    return std::string((*file)->ReadTokenizer().status().message());
  };
  const auto tiny = testing::TinyGguf();
  EXPECT_EQ(refusal(tiny), "");
  EXPECT_EQ(refusal(Replaced(tiny, "attn_q.w", "attn_z.w")),
            path + ": tensor blk.0.attn_q.weight is missing");
  EXPECT_EQ(refusal(Replaced(tiny, "llama.block_count", "llama.block_sount")),
            path + ": GGUF key 'llama.block_count' is missing");
  EXPECT_THAT(refusal(Replaced(tiny, "llama", "mamba")),
              ::testing::StartsWith(path + ": architecture 'mamba' is not supported"));
  EXPECT_EQ(refusal(Replaced(tiny, "tokenizer.ggml.model", "tokenizer.ggml.xodel")),
            path + ": GGUF key 'tokenizer.ggml.model' is missing");
}

TEST(ContentHash, SeesTheTokenizerAlone) {
  TinyModelOptions options;
  const auto first = testing::TinyGguf(options);
  options.seed = 2;
  const auto second = testing::TinyGguf(options);
  const auto a = ParseCheckpoint(first), b = ParseCheckpoint(second);
  const auto hash = [](const auto& file) { return TokenizerHash(*(*file)->ReadTokenizer()); };
  EXPECT_EQ(hash(a), hash(b));
  const auto renamed = Replaced(first, "assistant\n", "Assistant\n");
  const auto c = ParseCheckpoint(renamed);
  EXPECT_NE(hash(a), hash(c));
}

}  // namespace
}  // namespace flotilla::model
