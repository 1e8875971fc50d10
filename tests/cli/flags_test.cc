#include "cli/flags.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

// Parses as the program would; the error's text, or "" when all is well.
std::string Parse(std::vector<std::string> args, RoleFlags* flags) {
  CLI::App app{"test", "test"};
  AddRoleFlags(app, Role::kServe, flags);
  std::reverse(args.begin(), args.end());  // CLI11 takes a vector from its back
  try {
    app.parse(args);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(FlagsTest, DefaultsThatOthersRelyOn) {
  RoleFlags flags;
  ASSERT_EQ(Parse({"--model", "m.gguf"}, &flags), "");
  EXPECT_EQ(flags.model, "m.gguf");
  EXPECT_EQ(flags.host, "127.0.0.1");
  EXPECT_EQ(flags.http_port, 8080);
  EXPECT_EQ(flags.grpc_port, 50051);
  EXPECT_EQ(flags.compute, "accurate");
  EXPECT_EQ(flags.kv_type, "bf16");
  EXPECT_EQ(flags.kv_blocks, 4096);
  EXPECT_EQ(flags.block_tokens, 16);
  EXPECT_EQ(flags.max_batch_tokens, 256);
  EXPECT_EQ(flags.max_chunk_tokens, 256);
  EXPECT_EQ(flags.max_seqs, 64);
  EXPECT_EQ(flags.queue_tokens, 65536);
  EXPECT_EQ(flags.cpu_isa, "auto");
  EXPECT_FALSE(flags.lenient);
}

TEST(FlagsTest, EveryKindOfKnobIsRead) {
  RoleFlags flags;
  ASSERT_EQ(Parse({"--model=m", "--http-port=0", "--kv-type", "fp32", "--lenient"}, &flags), "");
  EXPECT_EQ(flags.http_port, 0);
  EXPECT_EQ(flags.kv_type, "fp32");
  EXPECT_TRUE(flags.lenient);
}

TEST(FlagsTest, ValuesOutsideTheBoundsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"--http-port", "65536"},
      {"--speculation", "eagle"},
      {"--draft-tokens", "0"},
      {"--http-port", "-1"},
      {"--http-port", "http"},
      {"--kv-blocks", "1"},
      {"--block-tokens", "32"},
      {"--max-batch-tokens", "0"},
      {"--threads", "9999999999"},
      {"--kv-type", "int3"},
      {"--cpu-isa", "neon"},
      {"--compute", "sloppy"},
      {"--kv-blocks", "99999999999999999999"},
  };
  for (const auto& [name, value] : bad) {
    RoleFlags flags;
    EXPECT_THAT(Parse({"--model", "m", name, value}, &flags), HasSubstr(name)) << value;
  }
}

TEST(FlagsTest, UnknownFlagsAndAMissingModelAreRefused) {
  RoleFlags flags;
  EXPECT_THAT(Parse({"--model", "m", "--gpu"}, &flags), HasSubstr("--gpu"));
  EXPECT_THAT(Parse({}, &flags), HasSubstr("--model"));
}

TEST(FlagsTest, HelpShowsUnitsBoundsAndDefaults) {
  CLI::App app{"test", "test"};
  RoleFlags flags;
  AddRoleFlags(app, Role::kServe, &flags);
  const std::string help = app.help();
  EXPECT_THAT(help, HasSubstr("--kv-blocks blocks"));
  EXPECT_THAT(help, HasSubstr("[2..67108864, default 4096]"));
  EXPECT_THAT(help, HasSubstr("auto|reference|avx2|avx512"));
}

}  // namespace
}  // namespace flotilla
