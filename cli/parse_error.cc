#include "cli/parse_error.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/suggest.h"

namespace flotilla::cli {
namespace {

// Whether the subcommand is one that a person calls.
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
    const std::vector<std::string> like = NamesLike(word, FlagsOf(app));
    return like.empty() ? absl::StrCat("a command goes before ", word, AllCommands(app))
                        : absl::StrCat("unknown flag ", word, DidYouMean(like));
  }
  const std::string flag = "--" + word;
  return absl::StrCat("unknown command '", word, "'",
                      DidYouMean(Has(app, flag) ? std::vector<std::string>{flag}
                                                : NamesLike(word, NamesOf(Commands(app)))),
                      AllCommands(app));
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

// A required flag that is missing. A word without a flag may be the value of that flag.
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

// The flag that the library's message names. Messages look like "--NAME: TEXT" or
// "Could not convert: --NAME = VALUE".
const CLI::Option* Blamed(const CLI::App& command, std::string_view text) {
  const std::size_t begin = text.find("--");
  if (begin == std::string_view::npos) return nullptr;
  const std::string_view from = text.substr(begin);
  return command.get_option_no_throw(std::string(from.substr(0, from.find_first_of(" :=,"))));
}

// "a", "a or b", "a, b or c".
std::string OneOf(const std::vector<std::string>& choices) {
  const std::vector<std::string> first(choices.begin(), choices.end() - 1);
  return first.empty() ? choices.back()
                       : absl::StrCat(absl::StrJoin(first, ", "), " or ", choices.back());
}

// What a flag takes, by the name of its type. The type of a number is its unit in small letters
// or the library's own name; choices have bars between them; other types are in capitals.
std::string Needs(const std::string& type) {
  if (absl::StrContains(type, '|')) return OneOf(absl::StrSplit(type, '|'));
  const bool is_number = type == "INT" || type == "UINT" || type == "FLOAT" ||
                         std::any_of(type.begin(), type.end(), absl::ascii_islower);
  return is_number ? "a number" : absl::StrCat("a value (", type, ")");
}

std::string WrongCount(const CLI::Option& option, const std::string& name) {
  const std::size_t times = option.results().size();
  if (times == 0) return absl::StrCat(name, " needs ", Needs(option.get_type_name()));
  return times == 2 ? name + " is given twice" : absl::StrCat(name, " is given ", times, " times");
}

// A bound in the library's message, without the zeros after the decimal point.
std::string Bound(std::string_view text) {
  double number = 0;
  const bool is_whole =
      absl::SimpleAtod({text.data(), text.size()}, &number) && number == std::floor(number);
  return std::string(is_whole ? text.substr(0, text.find('.')) : text);
}

// Names the allowed values if the library's text says that a value is not allowed. Empty if
// the text is about something else.
std::string WrongValue(std::string_view text, const std::string& name, const std::string& value) {
  constexpr std::string_view kRange = " not in range ", kSet = " not in {";
  const std::string but = absl::StrCat(", not '", value, "'");
  if (const std::size_t at = text.rfind(kRange); at != std::string_view::npos) {
    const std::vector<std::string> bounds =
        absl::StrSplit(std::string(text.substr(at + kRange.size())), " to ");
    if (bounds.size() != 2) return "";
    return absl::StrCat(name, " must be a number from ", Bound(bounds[0]), " to ", Bound(bounds[1]),
                        but);
  }
  if (const std::size_t at = text.rfind(kSet); at != std::string_view::npos) {
    std::string_view all = text.substr(at + kSet.size());
    all = all.substr(0, all.find('}'));
    return absl::StrCat(name, " must be ", OneOf(absl::StrSplit(std::string(all), ',')), but);
  }
  return "";
}

// Says what is wrong with the value of a known flag.
std::string WrongUse(const CLI::App& command, const CLI::ParseError& error) {
  const std::string text = error.what();
  const CLI::Option* option = Blamed(command, text);
  if (option == nullptr) return text;
  const std::string name = option->get_name();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return WrongCount(*option, name);
  }
  const std::string value = option->results().empty() ? "" : option->results().back();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    if (option->get_expected_max() == 0) return name + " takes no value";
    return absl::StrCat(name, " must be a whole number, not '", value, "'");
  }
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    if (std::string said = WrongValue(text, name, value); !said.empty()) return said;
  }
  return text;
}

std::string Explain(const CLI::App& app, const CLI::App* command, const CLI::ParseError& error) {
  if (command == nullptr) {
    const std::vector<std::string> unknown = app.remaining();
    return unknown.empty() ? absl::StrCat("a command is missing", AllCommands(app))
                           : UnknownCommand(app, unknown.front());
  }
  const std::vector<std::string> unknown = command->remaining();
  // The value of an unknown flag may be an unknown word too, so the flag is reported first.
  const auto flag = std::find_if(unknown.begin(), unknown.end(), [](const std::string& word) {
    return absl::StartsWith(word, "-") && word != "--";
  });
  if (flag != unknown.end()) return UnknownFlag(app, *command, *flag);
  if (!unknown.empty()) return UnexpectedWord(*command, unknown.front());
  return WrongUse(*command, error);
}

}  // namespace

std::string ExplainParseError(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  const CLI::App* command = parsed.empty() ? nullptr : parsed.front();
  const std::string called =
      command == nullptr ? app.get_name() : absl::StrCat(app.get_name(), " ", command->get_name());
  return absl::StrCat(called, ": ", Explain(app, command, error), "\n`", called,
                      " --help` explains the usage.");
}

}  // namespace flotilla::cli
