#include "cli/parse_error.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::cli {
namespace {

using ::testing::HasSubstr;

// Returns the error that the program prints for these words; "" if it understands them.
std::string Say(std::vector<std::string> words) {
  CLI::App app{"test", "flotilla"};
  app.set_version_flag("--version", "1");
  app.require_subcommand(1);
  RoleFlags serve, router, scheduler, rank;
  AddRoleFlags(*app.add_subcommand("serve", ""), Role::kServe, &serve);
  AddRoleFlags(*app.add_subcommand("router", ""), Role::kRouter, &router);
  AddRoleFlags(*app.add_subcommand("scheduler", ""), Role::kScheduler, &scheduler);
  AddRoleFlags(*app.add_subcommand("rank", "")->group(""), Role::kRank, &rank);
  std::string path;
  app.add_subcommand("inspect", "")->add_option("model", path)->required();
  std::reverse(words.begin(), words.end());  // CLI11 takes a vector from its back
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    const std::string text = ExplainParseError(app, error);
    return text.substr(0, text.find('\n'));
  }
  return "";
}

TEST(ParseErrorTest, AnUnknownFlagIsNamedBeforeWhatIsMissing) {
  EXPECT_EQ(Say({"serve", "--modle", "m.gguf"}),
            "flotilla serve: unknown flag --modle; did you mean --model?");
  EXPECT_EQ(Say({"serve", "--modle=m.gguf"}),
            "flotilla serve: unknown flag --modle; did you mean --model?");
  EXPECT_EQ(Say({"serve", "--model", "m", "--port", "1"}),
            "flotilla serve: unknown flag --port; did you mean --http-port or --grpc-port or "
            "--health-port?");
  EXPECT_EQ(Say({"serve", "--model", "m", "--accelerate"}),
            "flotilla serve: unknown flag --accelerate");
  EXPECT_EQ(Say({"serve", "-m", "m"}), "flotilla serve: unknown flag -m");
}

TEST(ParseErrorTest, AnotherCommandsFlagIsKnown) {
  EXPECT_EQ(Say({"router", "--model", "x"}),
            "flotilla router: router has no flag --model; serve, scheduler have it");
  EXPECT_EQ(Say({"serve", "--scheduler", "x"}),
            "flotilla serve: serve has no flag --scheduler; router has it");
  EXPECT_EQ(Say({"serve", "--model", "m", "--group-dir", "x"}),
            "flotilla serve: unknown flag --group-dir")
      << "a rank's flags are nobody's business";
}

TEST(ParseErrorTest, AWordWithoutAFlagIsNamed) {
  EXPECT_EQ(Say({"serve", "m.gguf"}),
            "flotilla serve: serve takes no argument 'm.gguf'; did you mean --model m.gguf?");
  EXPECT_EQ(Say({"router", "127.0.0.1:7002"}),
            "flotilla router: router takes no argument '127.0.0.1:7002'; did you mean --scheduler "
            "127.0.0.1:7002?");
  EXPECT_EQ(Say({"serve", "--model", "m", "n"}), "flotilla serve: serve takes no argument 'n'");
  EXPECT_EQ(Say({"inspect", "m", "n"}), "flotilla inspect: inspect takes no further argument 'n'");
}

TEST(ParseErrorTest, AnUnknownCommandIsNamedWithThoseThereAre) {
  const std::string all = " (commands: serve, router, scheduler, inspect)";
  EXPECT_EQ(Say({"frobnicate"}), "flotilla: unknown command 'frobnicate'" + all);
  EXPECT_EQ(Say({"sreve", "--model", "m"}),
            "flotilla: unknown command 'sreve'; did you mean serve?" + all);
  EXPECT_EQ(Say({"--model", "m"}), "flotilla: a command goes before --model" + all);
  EXPECT_EQ(Say({}), "flotilla: a command is missing" + all);
}

TEST(ParseErrorTest, AFlagOfTheProgramIsHinted) {
  const std::string all = " (commands: serve, router, scheduler, inspect)";
  EXPECT_EQ(Say({"help"}), "flotilla: unknown command 'help'; did you mean --help?" + all);
  EXPECT_EQ(Say({"version"}), "flotilla: unknown command 'version'; did you mean --version?" + all);
  EXPECT_EQ(Say({"--versoin"}), "flotilla: unknown flag --versoin; did you mean --version?");
}

TEST(ParseErrorTest, AFlagThatIsUsedWronglySaysHowItIsUsed) {
  const auto serve = [](std::vector<std::string> words) {
    words.insert(words.begin(), "serve");
    return Say(std::move(words));
  };
  EXPECT_EQ(serve({"--model", "a", "--model", "b"}), "flotilla serve: --model is given twice");
  EXPECT_EQ(serve({"--model", "a", "--model=b", "--model", "c"}),
            "flotilla serve: --model is given 3 times");
  EXPECT_EQ(serve({"--max-seqs"}), "flotilla serve: --max-seqs needs a number");
  EXPECT_EQ(serve({"--model"}), "flotilla serve: --model needs a value (PATH)");
  EXPECT_EQ(serve({"--cpu-isa"}),
            "flotilla serve: --cpu-isa needs auto, reference, avx2 or avx512");
  EXPECT_EQ(serve({"--model", "m", "--permissive=foo"}),
            "flotilla serve: --permissive takes no value");
  EXPECT_EQ(serve({"--model", "m", "--http-port", "abc"}),
            "flotilla serve: --http-port must be a number from 0 to 65535, not 'abc'");
  EXPECT_EQ(serve({"--model", "m", "--http-port", "99999"}),
            "flotilla serve: --http-port must be a number from 0 to 65535, not '99999'");
  EXPECT_EQ(serve({"--model", "m", "--http-port", "1 not in range 2 to 3"}),
            "flotilla serve: --http-port must be a number from 0 to 65535, not '1 not in range 2 "
            "to 3'");
  EXPECT_EQ(
      serve({"--model", "m", "--kv-type", "int3"}),
      "flotilla serve: --kv-type must be bf16, fp16, fp32, fp8, fp8_e5m2, int8, int4 or int2, not "
      "'int3'");
}

TEST(ParseErrorTest, TheRestIsTheLibrarys) {
  EXPECT_THAT(Say({"serve"}), HasSubstr("--model"));
  EXPECT_THAT(Say({"scheduler", "--tp", "2"}), HasSubstr("--tp requires --model"));
  EXPECT_EQ(Say({"serve", "--model", "m"}), "");
}

}  // namespace
}  // namespace flotilla::cli
