#include "cli/parse_error.h"

#include <string>
#include <vector>

#include "cli/flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the program would say of these words; "" when it understands them.
std::string Say(std::vector<std::string> words) {
  CLI::App app{"test", "flotilla"};
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
            "flotilla serve: unknown flag --port; did you mean --http-port or --grpc-port?");
  EXPECT_EQ(Say({"serve", "--model", "m", "--gpu"}), "flotilla serve: unknown flag --gpu");
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
  EXPECT_EQ(Say({}), "flotilla: say what to do" + all);
}

TEST(ParseErrorTest, TheRestIsTheLibrarys) {
  EXPECT_THAT(Say({"serve"}), HasSubstr("--model"));
  EXPECT_THAT(Say({"serve", "--model", "m", "--http-port", "99999"}),
              StartsWith("flotilla serve: --http-port: "));
  EXPECT_THAT(Say({"serve", "--model"}), HasSubstr("--model"));
  EXPECT_EQ(Say({"serve", "--model", "m"}), "");
}

}  // namespace
}  // namespace flotilla
