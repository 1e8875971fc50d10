// What is said of a command line that cannot be understood: first of all the word that
// nobody knows, and what was probably meant. (The library would speak of a required flag
// that is missing, because the one that was meant was misspelled.)
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace flotilla {

// `app` is the program, whose commands are its subcommands, after a parse that ended with
// `error`. One or two lines, without a newline at the end.
std::string ExplainParseError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace flotilla
