// What the arguments of tools may be by their schemas.
#include "router/core/tools/argument_types.h"

#include <ctime>
#include <string>

#include <gtest/gtest.h>

namespace flotilla::router {
namespace {

unsigned TypesIn(const std::string& schema, const std::string& name = "a") {
  ArgumentTypes types;
  types.Add("f", schema);
  return types.Of("f", name).types;
}
unsigned TypesOfProperty(const std::string& property) {
  return TypesIn(R"({"properties":{"a":)" + property +
                 R"(},"$defs":{"x":{"type":"null"},"y":{"$ref":"#/$defs/y"}}})");
}

TEST(ArgumentTypes, AreThoseOfTheSchema) {
  EXPECT_EQ(TypesOfProperty(R"({"type":"string"})"), unsigned{kStringType});
  EXPECT_EQ(TypesOfProperty(R"({"type":"number"})"), kNumberType | kIntegerType);
  EXPECT_EQ(TypesOfProperty(R"({"type":["array","null"]})"), kArrayType | kNullType);
  EXPECT_EQ(TypesOfProperty(R"({"enum":["a",5]})"), kStringType | kIntegerType);
  EXPECT_EQ(TypesOfProperty(R"({"const":true})"), unsigned{kBooleanType});
  EXPECT_EQ(TypesOfProperty(R"({"minLength":1})"), unsigned{kStringType});
  EXPECT_EQ(TypesOfProperty(R"({"title":"x","properties":{}})"), unsigned{kObjectType});
  EXPECT_EQ(TypesOfProperty(R"({"minimum":1})"), kNumberType | kIntegerType);
  EXPECT_EQ(TypesOfProperty(R"({"anyOf":[{"type":"object"},{"$ref":"#/$defs/x"}]})"),
            kObjectType | kNullType);
  EXPECT_EQ(TypesOfProperty(R"({"type":["string","integer"],"allOf":[{"type":"integer"}]})"),
            unsigned{kIntegerType});
}

TEST(ArgumentTypes, AreAllWhereNothingIsKnown) {
  for (const char* property : {"{}", "true", "5", R"({"type":"text"})", R"({"$ref":"#/$defs/y"})",
                               R"({"$ref":"#/$defs/z"})", R"({"$ref":"https://example.com/"})",
                               R"({"anyOf":[{"type":"string"},{}]})"}) {
    EXPECT_EQ(TypesOfProperty(property), unsigned{kAllTypes}) << property;
  }
  for (const char* schema : {"", "no JSON", "5", "{}", R"({"properties":5})"}) {
    EXPECT_EQ(TypesIn(schema), unsigned{kAllTypes}) << schema;
  }
  EXPECT_EQ(ArgumentTypes().Of("f", "a").types, unsigned{kAllTypes});
}

TEST(ArgumentTypes, AreFoundInAllFormsOfAnObject) {
  EXPECT_EQ(TypesIn(R"({"additionalProperties":{"type":"integer"}})"), unsigned{kIntegerType});
  EXPECT_EQ(TypesIn(R"({"patternProperties":{"^a":{"type":"null"}}})"), unsigned{kNullType});
  EXPECT_EQ(TypesIn(R"({"$ref":"#/definitions/x",
                        "definitions":{"x":{"properties":{"a":{"type":"null"}}}}})"),
            unsigned{kNullType});
  EXPECT_EQ(TypesIn(R"({"anyOf":[{"properties":{"a":{"type":"null"}}},
                                 {"properties":{"a":{"type":"array"}}}]})"),
            kNullType | kArrayType);
}

TEST(ArgumentTypes, WhiteSpaceIsNoPartOfChosenTexts) {
  ArgumentTypes types;
  types.Add("f", R"({"properties":{"a":{"type":"string"},"b":{"enum":["x"]},
                                   "c":{"type":"string","maxLength":9},
                                   "d":{"type":"string","format":"date"},
                                   "e":{"type":"string","maxLength":5.0},
                                   "f":{"type":"string","maxLength":1e300}}})");
  EXPECT_FALSE(types.Of("f", "a").trims);
  EXPECT_TRUE(types.Of("f", "b").trims);
  EXPECT_FALSE(types.Of("f", "c").trims);
  EXPECT_TRUE(types.Of("f", "d").trims);
  EXPECT_EQ(types.Of("f", "c").max_length, 9u);
  EXPECT_EQ(types.Of("f", "d").max_length, kNoMaxLength);
  EXPECT_EQ(types.Of("f", "e").max_length, 5u);
  EXPECT_EQ(types.Of("f", "f").max_length, kNoMaxLength);
}

// Each option refers to all of them, so to read each as often as it is met never ends.
TEST(ArgumentTypes, SchemasThatReferToThemselvesEnd) {
  std::string options = R"({"$ref":"#"})";
  for (int i = 0; i < 50; ++i) options += R"(,{"$ref":"#"})";
  const std::string schema =
      R"({"properties":{"a":{"$ref":"#"}},"type":"object","anyOf":[)" + options + "]}";
  EXPECT_EQ(TypesIn(schema) & kObjectType, unsigned{kObjectType});
}

// Each reference would read all that it means again.
TEST(ArgumentTypes, WhatIsReferredToOftenTakesLittleTime) {
  std::string references, members;
  for (int i = 0; i < 900; ++i) references += R"({"$ref":"#/$defs/a"},)";
  for (int i = 0; i < 30'000; ++i) members += R"(,"m)" + std::to_string(i) + R"(":0)";
  const std::string schema = R"({"properties":{"a":{"anyOf":[)" + references +
                             R"({}]}},"$defs":{"a":{"title":"")" + members + "}}}";
  const std::clock_t begin = std::clock();
  EXPECT_EQ(TypesIn(schema), unsigned{kAllTypes});
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.2);
}

}  // namespace
}  // namespace flotilla::router
