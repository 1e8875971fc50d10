// Tests choices, regular expressions, grammars and structural tags as constraints.
#include "router/core/constraint/constraints.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::router {
namespace {

std::string Text(const absl::StatusOr<Constraint>& constraint) {
  return constraint.ok() ? constraint->text : std::string(constraint.status().message());
}
std::string Tag(std::string_view tag) { return Text(StructuralTagConstraintFromText(tag)); }

TEST(Constraints, ChoicesAreAGrammar) {
  const auto constraint = ChoiceConstraint({"yes", "\"no\"\n", "a\\b", "\u00e9"});
  ASSERT_TRUE(constraint.ok());
  EXPECT_EQ(constraint->kind, Constraint::Kind::kGrammar);
  EXPECT_EQ(constraint->text, "root ::= \"yes\" | \"\\\"no\\\"\\u000a\" | \"a\\\\b\" | \"\u00e9\"");
  EXPECT_FALSE(ChoiceConstraint({}).ok());
  EXPECT_FALSE(ChoiceConstraint({""}).ok());
  EXPECT_FALSE(ChoiceConstraint({"a", "b", "a"}).ok());
  EXPECT_FALSE(ChoiceConstraint({"\xff"}).ok());
  EXPECT_FALSE(ChoiceConstraint({std::string(Constraint::kMaxBytes, 'x')}).ok());
  std::vector<std::string> many;
  for (std::size_t i = 0; i < kMaxChoices; ++i) many.push_back(std::to_string(i));
  EXPECT_TRUE(ChoiceConstraint(many).ok());
  many.push_back("x");
  EXPECT_FALSE(ChoiceConstraint(many).ok());
}

TEST(Constraints, Regexes) {
  const auto constraint = RegexConstraint("^[ab]+$");
  ASSERT_TRUE(constraint.ok());
  EXPECT_EQ(constraint->kind, Constraint::Kind::kRegex);
  EXPECT_EQ(constraint->text, "[a-b]+");
  EXPECT_EQ(Text(RegexConstraint("a(?=b)")),
            "the regex has a lookahead, which is not supported, at character 5");
  EXPECT_EQ(Text(RegexConstraint("[^a]")), "[\\u0000-\\u0060b-\\ud7ff\\ue000-\\u{10ffff}]");
  EXPECT_FALSE(RegexConstraint("").ok());
}

TEST(Constraints, GrammarsHaveARoot) {
  EXPECT_EQ(GrammarConstraint("root ::= \"a\"")->kind, Constraint::Kind::kGrammar);
  EXPECT_TRUE(GrammarConstraint("# x\nx ::= \"b\"\n  root\t ::= x").ok());
  EXPECT_FALSE(GrammarConstraint("").ok());
  EXPECT_FALSE(GrammarConstraint("rooted ::= \"a\"\n# root ::= x").ok());
  EXPECT_FALSE(GrammarConstraint(std::string("root ::= \0", 10)).ok());
  EXPECT_FALSE(
      GrammarConstraint("root ::= \"" + std::string(Constraint::kMaxBytes, 'x') + "\"").ok());
}

TEST(Constraints, StructuralTags) {
  EXPECT_EQ(
      Tag(R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],"tags":[
          {"begin":"<f>","content":{"type":"json_schema","json_schema":{"properties":{"a":true}}},
           "end":"</f>"}],"at_least_one":true}})"),
      R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],"tags":[)"
      R"({"type":"tag","begin":"<f>","content":{"type":"json_schema","json_schema":{"type":"object",)"
      R"("properties":{"a":{}},"additionalProperties":false}},"end":"</f>"}],"at_least_one":true}})");
  // vLLM's older form is the same.
  EXPECT_EQ(Tag(R"({"triggers":["<f"],"structures":[{"begin":"<f>","schema":{"type":"null"},
                   "end":"</f>"}]})"),
            Tag(R"({"format":{"type":"triggered_tags","triggers":["<f"],"tags":[{"begin":"<f>",
                   "content":{"type":"json_schema","json_schema":{"type":"null"}},
                   "end":"</f>"}]}})"));
  const std::pair<std::string, std::string> refused[] = {
      {R"([])", "must be an object with \"format\""},
      {R"({"format":{"type":"json_schema","json_schema":{"properties":{"a":{"not":{}}}}}})",
       "/format/json_schema is refused: /properties/a: \"not\" is not supported"},
      {R"x({"format":{"type":"regex","pattern":"(?=a)"}})x",
       "/format/pattern is refused: has a lookahead"},
      {R"({"format":{"type":"grammar","grammar":"x ::= \"\""}})", "/format/grammar is refused"},
      {R"({"format":{"type":"token","token":5}})", "/format is of type 'token'"},
      {R"({"format":{"type":"json_schema","json_schema":{},"style":"kimi_k3_xml"}})",
       "/format/style must be \"json\", \"qwen_xml\" or \"glm_xml\""},
      {R"({"format":{"type":"or","elements":[]}})", "/format/elements must be a list"},
      {R"({"format":{"type":"or","elements":[{"type":"star"}]}})",
       "/format/elements/0/content is missing"},
      {R"({"format":{"type":"const_string","value":"a","x":1}})", "/format/x is no field"},
      {R"({"format":{"value":"a"}})", "/format must have a \"type\""},
      {R"({"format":{"type":"const_string","value":"a"},"x":1})", "/x is not supported"},
  };
  for (const auto& [tag, message] : refused) {
    EXPECT_NE(Tag(tag).find(message), std::string::npos) << tag << ": " << Tag(tag);
  }
  std::string deep = R"({"type":"any_text"})";
  for (int i = 0; i < kMaxFormatDepth; ++i) deep = R"({"type":"star","content":)" + deep + "}";
  EXPECT_NE(Tag(R"({"format":)" + deep + "}").find("nested deeper than 16"), std::string::npos);
}

// The outermost object of a style in XML has its names in tags.
TEST(Constraints, ArgumentsInXml) {
  const auto written = [](const std::string& schema) {
    return Tag(R"({"format":{"type":"json_schema","json_schema":)" + schema +
               R"(,"style":"qwen_xml"}})");
  };
  const auto expected = [](const std::string& schema) {
    return R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":)" + schema +
           R"(,"style":"qwen_xml"}})";
  };
  const std::string closed =
      R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false})";
  const std::string any = R"({"type":"object","additionalProperties":{}})";
  const std::string a = R"("properties":{"a":{"type":"integer"}})";
  EXPECT_EQ(written("{" + a + "}"), expected(closed));
  EXPECT_EQ(written("{" + a + R"(,"additionalProperties":true})"), expected(closed));
  EXPECT_EQ(written("{}"), expected(any));
  EXPECT_EQ(written(R"({"type":"object"})"), expected(any));
  EXPECT_EQ(written(R"({"anyOf":[{"type":"null"},{)" + a + "}]}"), expected(closed));
  EXPECT_EQ(written(R"({"$ref":"#/$defs/x","$defs":{"x":{)" + a + "}}}"),
            expected(closed.substr(0, closed.size() - 1) + R"(,"$defs":{"0":)" + closed + "}}"));
  const std::pair<std::string, std::string> refused[] = {
      {R"({"type":"string"})", "takes no object"},
      {R"({"properties":{"a>b":{}}})", "has a property 'a>b', which no tag can hold"},
      {R"({"patternProperties":{"^x":{}}})", "must name its properties"},
  };
  for (const auto& [schema, message] : refused) {
    EXPECT_NE(written(schema).find(message), std::string::npos) << schema << written(schema);
  }
  std::string wide = R"({"anyOf":[{"type":"object"})";
  for (int i = 0; i < 200; ++i) wide += R"(,{"type":"object"})";
  EXPECT_NE(written(wide + "]}").find("more than 100 options"), std::string::npos);
}

TEST(Constraints, AnyObject) {
  EXPECT_EQ(JsonObjectConstraint().text, R"({"type":"object","additionalProperties":{}})");
}

}  // namespace
}  // namespace flotilla::router
