// Every schema that routers accept compiles without a warning of XGrammar, and has a first token.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "router/core/constraint/json_schema.h"
#include "tests/worker/constraint/small_vocabulary.h"
#include "worker/constraint/grammar.h"

namespace flotilla::worker {
namespace {

void CompileFile(const std::string& path, int accepted) {
  const auto vocabulary = GrammarVocabulary::Create(SmallVocabulary());
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << "run the test from the source folder";
  int compiled = 0;
  for (std::string line; std::getline(file, line);) {
    const auto test = *router::ParseOrderedJson(line);
    const auto& json = *router::Find(test, "schema");
    const auto schema = json.is_string()
                            ? router::JsonSchemaConstraintFromText(json.get<std::string>())
                            : router::JsonSchemaConstraint(json);
    if (!schema.ok()) continue;
    const auto bytes = CompileConstraint(*schema, **vocabulary, 1 << 24);
    EXPECT_TRUE(bytes.ok()) << bytes.status() << " of " << line;
    if (!bytes.ok()) continue;
    const auto grammar = Grammar::Read(*bytes, *schema, *vocabulary);
    ASSERT_TRUE(grammar.ok()) << grammar.status() << " of " << line;
    GrammarMatcher matcher(*grammar);
    std::vector<std::uint32_t> mask((*vocabulary)->mask_words(), ~0u);
    matcher.Fill(absl::MakeSpan(mask));
    EXPECT_TRUE(std::ranges::any_of(mask, [](std::uint32_t word) { return word != 0; })) << line;
    ++compiled;
  }
  EXPECT_EQ(compiled, accepted);
}

TEST(AcceptedSchemas, OfClientsCompile) { CompileFile("tests/data/schemas/own.jsonl", 186); }
TEST(AcceptedSchemas, OfTheSuiteCompile) {
  CompileFile("tests/data/schemas/draft2020-12.jsonl", 201);
}

}  // namespace
}  // namespace flotilla::worker
