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
      {R"({"properties":{")" + std::string(513, 'a') + R"(":{}}})", "which no tag can hold"},
      // Without the null, the reference to the whole schema never ends.
      {R"({"anyOf":[{"type":"object","properties":{"child":{"$ref":"#"}},"required":["child"]},
                    {"type":"null"}]})",
       "comes back to itself in all its objects, so none ends"},
  };
  for (const auto& [schema, message] : refused) {
    EXPECT_NE(written(schema).find(message), std::string::npos) << schema << written(schema);
  }
  std::string wide = R"({"anyOf":[{"type":"object"})";
  for (int i = 0; i < 200; ++i) wide += R"(,{"type":"object"})";
  EXPECT_NE(written(wide + "]}").find("more than 100 options"), std::string::npos);
}

// What references mean is copied, but not more of it than a constraint may have.
TEST(Constraints, ArgumentsInXmlAreBounded) {
  std::string options, values;
  for (int i = 0; i < 90; ++i) options += R"(,{"$ref":"#/$defs/x"})";
  for (int i = 0; i < 30'000; ++i) values += ",1";
  const std::string schema = R"({"anyOf":[)" + options.substr(1) +
                             R"(],"$defs":{"x":{"properties":{"a":{"enum":[)" + values.substr(1) +
                             "]}}}}}";
  EXPECT_NE(
      Tag(R"({"format":{"type":"json_schema","style":"glm_xml","json_schema":)" + schema + "}}")
          .find("is too large as it is compiled, with what it refers to"),
      std::string::npos);
}

// Readers end a value at its end tag, and cut white space around one of some texts.
TEST(Constraints, TextsInXmlHaveNoTags) {
  const auto written = [](const std::string& property) {
    const std::string tag = Tag(
        R"({"format":{"type":"json_schema","style":"glm_xml","json_schema":{"properties":{"a":)" +
        property + R"(},"$defs":{"x":{"pattern":"^[<=>]$"}}}}})");
    const std::string begin = R"("properties":{"a":)", end = R"(},"additionalProperties")";
    const std::size_t at = tag.find(begin);
    if (at == tag.npos) return tag;
    return tag.substr(at + begin.size(), tag.find(end) - at - begin.size());
  };
  const std::string no_tags = R"({"type":"string","pattern":"^[\\u003d-\\u003e]$"})";
  EXPECT_EQ(written(R"({"type":"string"})"), R"({"type":"string"})");
  EXPECT_EQ(written(R"({"pattern":"^[<=>]$"})"), no_tags);
  EXPECT_EQ(written(R"({"$ref":"#/$defs/x"})"), no_tags);
  EXPECT_EQ(written(R"({"anyOf":[{"type":"null"},{"$ref":"#/$defs/x"}]})"),
            R"({"anyOf":[{"type":"null"},)" + no_tags + "]}");
  EXPECT_EQ(written(R"({"maxLength":2})"),
            R"({"type":"string","pattern":"^(?:[\\u0020-\\u0021\\u0023-\\u003b\\u003d-)"
            R"(\\u005b\\u005d-\\u07ff]|[\\u0800-\\ud7ff\\ue000-\\uffff]|)"
            R"([\\u{10000}-\\u{10ffff}]){0,2}$"})");
  EXPECT_EQ(written(R"({"pattern":"^(a|<b>){0,300}$"})"),
            R"({"type":"string","pattern":"^a{0,300}é{0}$"})");
  EXPECT_EQ(written(R"({"pattern":"^(<b>)?$"})"), R"({"enum":[""]})");
  // Within a list or an object it is JSON.
  EXPECT_EQ(written(R"({"type":"array","items":{"pattern":"^[<=>]$"}})"),
            R"({"type":"array","items":{"type":"string","pattern":"^[\\u003c-\\u003e]$"}})");
  EXPECT_EQ(written(R"({"enum":["<","</a>","",5]})"), R"({"enum":["<","</a>","",5]})");
  const std::pair<std::string, std::string> refused[] = {
      {R"({"pattern":"<b>"})", "for 'a' has only values with '<', which no tag can hold"},
      {R"({"enum":["x","y</arg_value>"]})", "for 'a' has the value 'y</arg_value>', which no tag"},
      {R"({"anyOf":[{"const":" x"},{"type":"null"}]})", "for 'a' has the value ' x', which no tag"},
      {R"({"const":"x\n"})", "for 'a' has the value 'x\n', which no tag"},
  };
  for (const auto& [property, message] : refused) {
    EXPECT_NE(written(property).find(message), std::string::npos) << written(property);
  }
}

TEST(Constraints, AnyObject) {
  EXPECT_EQ(JsonObjectConstraint().text, R"({"type":"object","additionalProperties":{}})");
}

}  // namespace
}  // namespace flotilla::router
