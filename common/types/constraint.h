// Constraint: the grammar that an answer must follow, as normalised text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace flotilla {

struct Constraint {
  // The most bytes of `text`.
  static constexpr std::size_t kMaxBytes = 64 * 1024;
  enum class Kind : std::uint8_t {
    kNone,           // the answer is free
    kJsonSchema,     // a JSON schema
    kRegex,          // a regular expression
    kGrammar,        // a grammar in EBNF, as GBNF of llama.cpp and XGrammar write it
    kStructuralTag,  // XGrammar's structural tag, as JSON
  };
  Kind kind = Kind::kNone;
  std::string text;
  // Whose it is: grammars of several tenants are compiled in turn. Only this number's being equal
  // to another one says anything.
  std::uint32_t tenant = 0;

  // Whether the same answers follow it, whoever asks.
  bool HasFormOf(const Constraint& other) const { return kind == other.kind && text == other.text; }
  explicit operator bool() const { return kind != Kind::kNone; }
  bool operator==(const Constraint&) const = default;
};

}  // namespace flotilla
