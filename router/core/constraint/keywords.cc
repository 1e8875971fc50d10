#include "router/core/constraint/keywords.h"

#include <algorithm>
#include <iterator>

namespace flotilla::router {
namespace {

constexpr auto kAnnotation = KeywordUse::kAnnotation, kCombination = KeywordUse::kCombination,
               kAssertion = KeywordUse::kAssertion, kRefused = KeywordUse::kRefused;
constexpr unsigned kNumeric = kIntegerType | kNumberType;

constexpr Keyword kKeywords[] = {
    {"type", KeywordUse::kType},
    {"enum", kCombination},
    {"const", kCombination},
    {"$ref", kCombination},
    {"anyOf", kCombination},
    {"oneOf", kCombination},
    {"allOf", kCombination},
    {"minLength", kAssertion, kStringType},
    {"maxLength", kAssertion, kStringType},
    {"pattern", kAssertion, kStringType},
    {"format", kAssertion, kStringType},
    {"minimum", kAssertion, kNumeric},
    {"maximum", kAssertion, kNumeric},
    {"exclusiveMinimum", kAssertion, kNumeric},
    {"exclusiveMaximum", kAssertion, kNumeric},
    {"multipleOf", kAssertion, kNumeric},
    {"items", kAssertion, kArrayType},
    {"prefixItems", kAssertion, kArrayType},
    {"minItems", kAssertion, kArrayType},
    {"maxItems", kAssertion, kArrayType},
    {"uniqueItems", kAssertion, kArrayType},
    {"unevaluatedItems", kAssertion, kArrayType},
    {"properties", kAssertion, kObjectType},
    {"required", kAssertion, kObjectType},
    {"additionalProperties", kAssertion, kObjectType},
    {"unevaluatedProperties", kAssertion, kObjectType},
    {"patternProperties", kAssertion, kObjectType},
    {"propertyNames", kAssertion, kObjectType},
    {"minProperties", kAssertion, kObjectType},
    {"maxProperties", kAssertion, kObjectType},
    // What a schema is made of, and what has no part in what is valid.
    {"$defs", kAnnotation},
    {"definitions", kAnnotation},
    {"$schema", kAnnotation},
    {"$id", kAnnotation},
    {"$comment", kAnnotation},
    {"title", kAnnotation},
    {"description", kAnnotation},
    {"default", kAnnotation},
    {"example", kAnnotation},
    {"examples", kAnnotation},
    {"deprecated", kAnnotation},
    {"readOnly", kAnnotation},
    {"writeOnly", kAnnotation},
    {"contentEncoding", kAnnotation},
    {"contentMediaType", kAnnotation},
    {"contentSchema", kAnnotation},
    {"discriminator", kAnnotation},  // of OpenAPI: "oneOf" is beside it, and is what counts
    {"not", kRefused},
    {"if", kRefused},
    {"then", kRefused},
    {"else", kRefused},
    {"contains", kRefused},
    {"minContains", kRefused},
    {"maxContains", kRefused},
    {"dependentRequired", kRefused},
    {"dependentSchemas", kRefused},
    {"dependencies", kRefused},
    {"additionalItems", kRefused, 0, "is not supported; \"items\" beside \"prefixItems\" is"},
    {"$anchor", kRefused},
    {"$dynamicAnchor", kRefused},
    {"$dynamicRef", kRefused},
    {"$recursiveAnchor", kRefused},
    {"$recursiveRef", kRefused},
    {"$vocabulary", kRefused},
};

constexpr std::string_view kTypeNames[] = {"null",   "boolean", "integer", "number",
                                           "string", "array",   "object"};

}  // namespace

std::span<const Keyword> Keywords() { return kKeywords; }

const Keyword* FindKeyword(std::string_view name) {
  const auto* const row = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                       [name](const Keyword& word) { return word.name == name; });
  return row == std::end(kKeywords) ? nullptr : row;
}

unsigned TypeNamed(std::string_view name) {
  const auto* const type = std::find(std::begin(kTypeNames), std::end(kTypeNames), name);
  return type == std::end(kTypeNames) ? 0 : 1u << (type - std::begin(kTypeNames));
}

}  // namespace flotilla::router
