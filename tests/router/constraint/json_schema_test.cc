// Tests which schemas are accepted, which are refused and with which message, and what is written.
#include "router/core/constraint/json_schema.h"

#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "router/core/constraint/keywords.h"

namespace flotilla::router {
namespace {

std::string Written(std::string_view schema) {
  const auto constraint = JsonSchemaConstraintFromText(schema);
  if (!constraint.ok()) return std::string(constraint.status().message());
  EXPECT_EQ(constraint->kind, Constraint::Kind::kJsonSchema);
  return constraint->text;
}

// Each line has a schema, or its text, and "refused" with the message unless it is accepted.
void CheckFile(const std::string& path, std::size_t least) {
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << "run the test from the source folder";
  std::size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const OrderedJson test = *ParseOrderedJson(line);
    const OrderedJson& json = *Find(test, "schema");
    const auto schema = json.is_string() ? JsonSchemaConstraintFromText(json.get<std::string>())
                                         : JsonSchemaConstraint(json);
    const OrderedJson* refused = Find(test, "refused");
    EXPECT_EQ(schema.ok() ? "" : std::string(schema.status().message()),
              refused == nullptr ? "" : refused->get<std::string>())
        << line;
  }
  EXPECT_GE(count, least);
}

TEST(JsonSchema, OfClients) { CheckFile("tests/data/schemas/own.jsonl", 200); }
TEST(JsonSchema, OfTheSuite) { CheckFile("tests/data/schemas/draft2020-12.jsonl", 438); }

TEST(JsonSchema, IsWrittenAsXGrammarKeepsIt) {
  const std::pair<std::string, std::string> cases[] = {
      // Properties stay in the client's order, and there are no others.
      {R"({"type":"object","properties":{"b":{"type":"integer","title":"B"},"a":{"const":1}}})",
       R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"enum":[1]}},)"
       R"("additionalProperties":false})"},
      {R"({"type":"object"})", R"({"type":"object","additionalProperties":{}})"},
      {R"({"type":["null","string"]})", R"({"anyOf":[{"type":"null"},{"type":"string"}]})"},
      {R"({"minLength":1,"minimum":2})",
       R"({"anyOf":[{"type":"number","minimum":2.0},{"type":"string","pattern":)"
       R"("^(?:[\\u0020-\\u0021\\u0023-\\u005b\\u005d-\\u07ff]|[\\u0800-\\ud7ff\\ue000-\\uffff]|)"
       R"([\\u{10000}-\\u{10ffff}])+$"}]})"},
      {R"({"type":"integer","minimum":0.5,"exclusiveMaximum":7})",
       R"({"type":"integer","minimum":1,"maximum":6})"},
      {R"({"type":"array","prefixItems":[true,{"type":"null"}],"maxItems":1})",
       R"({"type":"array","prefixItems":[{}],"items":false})"},
      {R"({"oneOf":[{"type":"null"},{"type":"string"}]})",
       R"({"anyOf":[{"type":"null"},{"type":"string"}]})"},
      {R"({"$ref":"#/definitions/a~1b%20c","definitions":{"a/b c":{"$ref":"#/definitions/x"},)"
       R"("x":{"type":"null"}}})",
       R"({"$ref":"#/$defs/0","$defs":{"0":{"$ref":"#/$defs/1"},"1":{"type":"null"}}})"},
      {R"({"type":"object","propertyNames":{"enum":["a","b"]},"additionalProperties":{"type":"null"}})",
       R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},)"
       R"("additionalProperties":false})"},
      {R"({"type":"object","properties":{"a":false,"b":true},"required":["b","c"]})",
       R"({"type":"object","properties":{"b":{},"c":{}},"required":["b","c"],)"
       R"("additionalProperties":false})"},
      {R"({"type":"string","pattern":"^[a-z]*$","minLength":2,"maxLength":4})",
       R"({"type":"string","pattern":"^[a-z]{2,4}$"})"},
      {R"({"type":"string","pattern":"^$"})", R"({"enum":[""]})"},
  };
  for (const auto& [schema, written] : cases) EXPECT_EQ(Written(schema), written) << schema;
}

// XGrammar takes these for one schema, if nothing else tells them apart.
TEST(JsonSchema, NamesThatXGrammarOverlooksAreToldApart) {
  const std::string written =
      Written(R"({"anyOf":[{"type":"object","properties":{"title":{"type":"string"}}},)"
              R"({"type":"object","properties":{"title":{"type":"null"}}}]})");
  EXPECT_NE(written.find(R"("x-number":0)"), std::string::npos) << written;
  EXPECT_NE(written.find(R"("x-number":1)"), std::string::npos) << written;
}

TEST(JsonSchema, EqualSchemasHaveEqualTexts) {
  EXPECT_EQ(Written(R"({"description":"x","type":"integer","title":"y","minimum":1})"),
            Written(R"({ "minimum" : 1.0, "type" : "integer" })"));
}

TEST(JsonSchema, ErrorsNameThePlaceBehindManyReferences) {
  std::string references, definitions;
  for (char name = 'b'; name <= 'z'; ++name) {
    const std::string quoted = std::string("\"") + name + "\"";
    references += quoted + R"(:{"$ref":"#/$defs/)" + name + "\"},";
    definitions += "," + quoted + R"(:{"type":"null"})";
  }
  EXPECT_EQ(Written(R"({"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"properties":{)" +
                    references + R"("x~":{"not":{}}}})" + definitions + "}}"),
            R"(/$defs/a/properties/x~0: "not" is not supported)");
}

TEST(JsonSchema, ErrorsNameThePlace) {
  EXPECT_EQ(Written(R"({"type":"object","properties":{"a":{"type":"array","items":{"not":{}}}}})"),
            R"(/properties/a/items: "not" is not supported)");
  EXPECT_EQ(
      Written(R"({"anyOf":[{"type":"null"},{"$ref":"#/$defs/a~1"}],"$defs":{"a/":{"if":1}}})"),
      R"(/$defs/a~1: "if" is not supported)");
  EXPECT_EQ(Written(R"({"properties":{"~/":{"contains":{}}}})"),
            R"(/properties/~0~1: "contains" is not supported)");
  const std::string long_name(60, 'n');
  EXPECT_EQ(Written(R"({"anyOf":[{"type":"null"},{"$ref":"#/$defs/)" + long_name +
                    R"("}],"$defs":{")" + long_name + R"(":{"required":["a"],"properties":{"a":)" +
                    R"({"$ref":"#/$defs/)" + long_name + R"("}}}}})"),
            "/$defs/" + long_name +
                ": \"$ref\" comes back to its own schema in all its values, so none ends");
  // A long name is cut between two characters.
  std::string name;
  for (int i = 0; i < 5000; ++i) name += "\u00e9";
  const std::string message = Written(R"({"properties":{")" + name + R"(":{"not":{}}}})");
  EXPECT_LT(message.size(), 200u);
  EXPECT_NE(message.find("\u00e9..."), std::string::npos) << message;
}

TEST(JsonSchema, IsBounded) {
  const auto nested = [](int depth) {
    std::string schema = R"({"type":"null"})";
    for (int i = 1; i < depth; ++i) schema = R"({"type":"array","items":)" + schema + "}";
    return schema;
  };
  EXPECT_EQ(Written(nested(kMaxSchemaDepth)).front(), '{');
  EXPECT_NE(Written(nested(kMaxSchemaDepth + 1)).find("nested deeper than 16"), std::string::npos);
  EXPECT_NE(Written(nested(5000)).find("nested deeper"), std::string::npos);

  const auto many = [](int count) {
    std::string schema = R"({"properties":{"a":{"type":"null"})";
    for (int i = 2; i < count; ++i) schema += R"(,")" + std::to_string(i) + R"(":{"type":"null"})";
    return schema + "}}";
  };
  EXPECT_EQ(Written(many(kMaxSubschemas)).front(), '{');
  EXPECT_NE(Written(many(kMaxSubschemas + 1)).find("more than 1000"), std::string::npos);

  const std::string large = R"({"enum":[")" + std::string(Constraint::kMaxBytes, 'x') + R"("]})";
  EXPECT_NE(Written(large).find("at most 65536"), std::string::npos);
  std::string values = R"({"enum":[0)";
  for (std::size_t i = 0; i < kMaxOrderedValues; ++i) values += ",0";
  EXPECT_NE(Written(values + "]}").find("more than 32768 values"), std::string::npos);
}

// Options that refer to options, and values that are compared in pairs, are not read for ever.
TEST(JsonSchema, LooksForOverlapsWithinABound) {
  std::string references, values, more, names, properties;
  for (int i = 0; i < 200; ++i) references += R"(,{"$ref":"#"})";
  for (int i = 0; i < 7000; ++i) {
    values += ',' + std::to_string(i);
    more += ',' + std::to_string(i + 7000);
  }
  for (int i = 0; i < 40; ++i) {
    const std::string name = "\"p" + std::to_string(i) + "\"";
    names += ',' + name;
    properties += ',' + name + R"(:{"$ref":"#/oneOf/0"})";
  }
  properties = R"({"type":"object","properties":{)" + properties.substr(1) + R"(},"required":[)" +
               names.substr(1) + "]}";
  references.erase(0, 1), values.erase(0, 1), more.erase(0, 1);
  // Definitions behind many others, and values of many members in front of what differs.
  std::string others, last, far, members, large;
  for (int i = 0; i < 30'000; ++i) others += "\"u" + std::to_string(i) + "\":0,";
  for (int i = 0; i < 490; ++i) {
    const std::string name = "z" + std::to_string(i);
    last += ",\"" + name + "\":{\"const\":" + std::to_string(i) + "}";
    far += ",{\"$ref\":\"#/$defs/" + name + "\"}";
  }
  for (int i = 0; i < 10'000; ++i) members += ",\"m" + std::to_string(i) + "\":0";
  for (int i = 0; i < 300; ++i) {
    large += R"(,{"type":"object","properties":{"m":{"$ref":"#/$defs/m"},"k":{"const":)" +
             std::to_string(i) + R"(}},"required":["m","k"]})";
  }
  for (const std::string& schema :
       {R"({"type":"object","anyOf":[)" + references + "]}",
        R"({"type":"object","oneOf":[)" + references + "]}",
        R"({"oneOf":[)" + properties + "," + properties + "]}",
        R"({"oneOf":[{"enum":[)" + values + R"(]},{"enum":[)" + more + "]}]}",
        R"({"oneOf":[)" + far.substr(1) + R"(],"$defs":{)" + others + last.substr(1) + "}}",
        R"({"oneOf":[)" + large.substr(1) + R"(],"$defs":{"m":{"const":{)" + members.substr(1) +
            "}}}}"}) {
    const std::clock_t begin = std::clock();
    const auto constraint = JsonSchemaConstraintFromText(schema);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_FALSE(constraint.ok());
    EXPECT_LT(seconds, 1) << schema.substr(0, 60);  // without a bound it is minutes
  }
  // Pairs of many options that a constant tells apart are within it.
  std::string options;
  for (int i = 0; i < 300; ++i) {
    options += R"(,{"type":"object","properties":{"k":{"const":)" + std::to_string(i) +
               R"(}},"required":["k"],"additionalProperties":false})";
  }
  EXPECT_TRUE(JsonSchemaConstraintFromText(R"({"oneOf":[)" + options.substr(1) + "]}").ok());
}

// The last of many names shows late that it ends.
TEST(JsonSchema, WhatEndsIsFoundInLittleTime) {
  std::string names, definitions;
  for (int i = 0; i < 1700; ++i) names += "\"n" + std::to_string(i) + "\",";
  for (int i = 0; i < 300; ++i) {
    definitions += "\"d" + std::to_string(i) +
                   R"(":{"type":"object","required":["a"],"properties":{"a":{"$ref":"#/$defs/d)" +
                   std::to_string(i + 1) + R"("}}},)";
  }
  const std::clock_t begin = std::clock();
  const auto schema =
      JsonSchemaConstraintFromText(R"({"type":"object","required":[)" + names +
                                   R"("z"],"properties":{"z":{"$ref":"#/$defs/d0"}},)" +
                                   R"("$defs":{)" + definitions + R"("d300":{"type":"null"}}})");
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.5);
  EXPECT_TRUE(schema.ok()) << schema.status();
}

// Each name that is required without being a property has a copy of the schema of others, in which
// there are copies again. And each reference to names means all of them.
TEST(JsonSchema, CopiesForNamesAreBounded) {
  std::string names, nested = "{}", properties;
  for (int i = 0; i < 20; ++i) names += ",\"n" + std::to_string(i) + '"';
  for (int depth = 0; depth < 4; ++depth) {
    nested = R"({"required":[)" + names.substr(1) + R"(],"additionalProperties":)" + nested + "}";
  }
  const std::string why =
      " makes the schema too large, which has the schema of other properties for each name";
  EXPECT_EQ(Written(nested), "/additionalProperties: \"required\"" + why);
  const std::string enumerated =
      R"({"propertyNames":{"enum":[)" + names.substr(1) + R"(]},"additionalProperties":)";
  EXPECT_EQ(Written(enumerated + enumerated + enumerated + enumerated + "{}}}}}"),
            "/additionalProperties: \"propertyNames\"" + why);

  for (int i = 20; i < 2000; ++i) names += ",\"n" + std::to_string(i) + '"';
  for (int i = 0; i < 300; ++i) {
    properties += ",\"p" + std::to_string(i) +
                  R"(":{"propertyNames":{"$ref":"#/$defs/n"},"additionalProperties":false})";
  }
  EXPECT_EQ(Written(R"({"properties":{)" + properties.substr(1) + R"(},"$defs":{"n":{"enum":[)" +
                    names.substr(1) + "]}}}"),
            "/properties/p17/propertyNames: this is too large, with what it and others refer to");
}

TEST(JsonSchema, KeywordsAreDocumented) {
  std::ifstream file("docs/api.md");
  ASSERT_TRUE(file.is_open()) << "run the test from the source folder";
  const std::string text(std::istreambuf_iterator<char>(file), {});
  for (const Keyword& keyword : Keywords()) {
    EXPECT_NE(text.find('`' + std::string(keyword.name) + '`'), std::string::npos)
        << keyword.name << " is not in docs/api.md";
  }
}

TEST(JsonSchema, WhatIsNoJsonIsRefused) {
  for (const char* text : {"", "{", "[1,2", R"({"a":1,"a":2})", "\"\xff\"", R"({"enum":[1e999]})",
                           R"({"enum":[99999999999999999999]})"}) {
    EXPECT_FALSE(JsonSchemaConstraintFromText(text).ok()) << text;
  }
  EXPECT_EQ(Written("[]"), "this must be an object, true or false");
}

}  // namespace
}  // namespace flotilla::router
