// The keywords of JSON Schema, and what becomes of each. Pure data.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace flotilla::router {

// The types of JSON values, as bits of a set.
enum JsonType : unsigned {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kNumberType = 8,
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAllTypes = 127,
};

enum class KeywordUse : std::uint8_t {
  kAnnotation,  // says nothing about what is valid
  kType,
  kCombination,  // takes the place of all other keywords of its schema
  kAssertion,    // of values of some types
  kRefused,
};

struct Keyword {
  std::string_view name;
  KeywordUse use;
  unsigned types = 0;            // of an assertion
  std::string_view reason = "";  // of a refusal; empty: it is not supported
};

// All keywords.
std::span<const Keyword> Keywords();

// Null for a word that is no keyword.
const Keyword* FindKeyword(std::string_view name);

// "integer" etc.; 0 for any other word.
unsigned TypeNamed(std::string_view name);

}  // namespace flotilla::router
