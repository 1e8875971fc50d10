#include "cli/parse_error.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/suggest.h"

namespace flotilla {
namespace {

// One that a person calls.
bool IsCommand(const CLI::App* one) { return !one->get_group().empty(); }

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands(IsCommand);
}

std::vector<std::string> FlagsOf(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

bool Has(const CLI::App& command, const std::string& flag) {
  const std::vector<std::string> names = FlagsOf(command);
  return std::find(names.begin(), names.end(), flag) != names.end();
}

std::string DidYouMean(const std::vector<std::string>& names) {
  return names.empty() ? "" : absl::StrCat("; did you mean ", absl::StrJoin(names, " or "), "?");
}

std::vector<std::string> NamesOf(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

std::string AllCommands(const CLI::App& app) {
  return absl::StrCat(" (commands: ", absl::StrJoin(NamesOf(Commands(app)), ", "), ")");
}

std::string UnknownCommand(const CLI::App& app, const std::string& word) {
  if (absl::StartsWith(word, "-")) {
    return absl::StrCat("a command goes before ", word, AllCommands(app));
  }
  return absl::StrCat("unknown command '", word, "'",
                      DidYouMean(NamesLike(word, NamesOf(Commands(app)))), AllCommands(app));
}

std::string UnknownFlag(const CLI::App& app, const CLI::App& command, const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  const std::vector<std::string> others = NamesOf(
      app.get_subcommands([&](const CLI::App* one) { return IsCommand(one) && Has(*one, flag); }));
  if (!others.empty()) {
    return absl::StrCat(command.get_name(), " has no flag ", flag, "; ",
                        absl::StrJoin(others, ", "), others.size() == 1 ? " has" : " have", " it");
  }
  return absl::StrCat("unknown flag ", flag, DidYouMean(NamesLike(flag, FlagsOf(command))));
}

// The flag that has to be there and is not, which a word without a flag may belong to.
std::optional<std::string> MissingFlag(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_required() && option->count() == 0 && !option->get_lnames().empty()) {
      return "--" + option->get_lnames().front();
    }
  }
  return std::nullopt;
}

std::string UnexpectedWord(const CLI::App& command, const std::string& word) {
  const std::vector<const CLI::Option*> options = command.get_options();
  const bool takes_words =
      std::any_of(options.begin(), options.end(),
                  [](const CLI::Option* option) { return option->get_positional(); });
  const std::string says = absl::StrCat(command.get_name(), " takes no ",
                                        takes_words ? "further " : "", "argument '", word, "'");
  const std::optional<std::string> flag = MissingFlag(command);
  return flag.has_value() ? says + DidYouMean({absl::StrCat(*flag, " ", word)}) : says;
}

std::string Explain(const CLI::App& app, const CLI::App* command, const CLI::ParseError& error) {
  if (command == nullptr) {
    const std::vector<std::string> unknown = app.remaining();
    return unknown.empty() ? absl::StrCat("say what to do", AllCommands(app))
                           : UnknownCommand(app, unknown.front());
  }
  const std::vector<std::string> unknown = command->remaining();
  // A flag that nobody knows may have left its value behind: it comes first.
  const auto flag = std::find_if(unknown.begin(), unknown.end(), [](const std::string& word) {
    return absl::StartsWith(word, "-") && word != "--";
  });
  if (flag != unknown.end()) return UnknownFlag(app, *command, *flag);
  if (!unknown.empty()) return UnexpectedWord(*command, unknown.front());
  return error.what();
}

}  // namespace

std::string ExplainParseError(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  const CLI::App* command = parsed.empty() ? nullptr : parsed.front();
  const std::string called =
      command == nullptr ? app.get_name() : absl::StrCat(app.get_name(), " ", command->get_name());
  return absl::StrCat(called, ": ", Explain(app, command, error), "\n`", called,
                      " --help` says what there is.");
}

}  // namespace flotilla
