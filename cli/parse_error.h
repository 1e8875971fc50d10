// The error message for a command line that does not parse. It names an unknown word first,
// and what the user probably meant. (The library would instead report that a required flag is
// missing, when the user misspelled that flag.)
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace flotilla::cli {

// `app` is the program, whose commands are its subcommands, after a parse that ended with
// `error`. The message has one or two lines, without a newline at the end.
std::string ExplainParseError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace flotilla::cli
