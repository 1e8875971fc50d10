#include "router/grpc/structured_outputs.h"

#include <string>
#include <utility>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "router/errors.h"
#include "router/grpc/codec.h"

namespace flotilla::router {
namespace {

absl::StatusOr<ApiRequest> Read(const std::string& outputs) {
  v1::GenerateRequest request;
  const std::string text = "text: 'x' structured_outputs { " + outputs + " }";
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return FromProto(request);
}

TEST(GrpcStructuredOutputs, EachFieldIsAConstraint) {
  using Kind = Constraint::Kind;
  const std::pair<std::string, Constraint> cases[] = {
      {R"(json_schema: '{"type":"null","title":"t"}')", {Kind::kJsonSchema, R"({"type":"null"})"}},
      {"json_object: true", {Kind::kJsonSchema, R"({"type":"object","additionalProperties":{}})"}},
      {"regex: '^a+$'", {Kind::kRegex, "a+"}},
      {R"(grammar: 'root ::= "a"')", {Kind::kGrammar, R"(root ::= "a")"}},
      {"choice { texts: 'a' texts: 'b' }", {Kind::kGrammar, R"(root ::= "a" | "b")"}},
      {R"(structural_tag: '{"format":{"type":"any_text"}}')",
       {Kind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"any_text"}})"}},
  };
  for (const auto& [outputs, constraint] : cases) {
    const auto read = Read(outputs);
    ASSERT_TRUE(read.ok()) << outputs << read.status();
    EXPECT_EQ(read->constraint, constraint) << outputs;
    const std::string name = outputs.substr(0, outputs.find_first_of(" :"));
    EXPECT_EQ(read->constraint_field, "structured_outputs." + name);
  }
}

TEST(GrpcStructuredOutputs, IsRefusedByName) {
  std::string many;
  for (int i = 0; i < 1001; ++i) many += "texts: 'a' ";
  const std::pair<std::string, std::string> cases[] = {
      {"", "structured_outputs"},
      {"json_object: false", "structured_outputs.json_object"},
      {R"(json_schema: '{"not":{}}')", "structured_outputs.json_schema"},
      {"json_schema: '{'", "structured_outputs.json_schema"},
      {"regex: '(?=a)'", "structured_outputs.regex"},
      {"grammar: ''", "structured_outputs.grammar"},
      {"choice { }", "structured_outputs.choice"},
      {"choice { " + many + "}", "structured_outputs.choice"},
      {"structural_tag: '{}'", "structured_outputs.structural_tag"},
  };
  for (const auto& [outputs, field] : cases) {
    const absl::Status status = Read(outputs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << outputs;
    EXPECT_EQ(ErrorField(status), field) << status;
    EXPECT_TRUE(std::string(status.message()).starts_with(field)) << status;
  }
  EXPECT_EQ(Read(R"(json_schema: '{"not":{}}')").status().message(),
            "structured_outputs.json_schema: \"not\" is not supported");
}

}  // namespace
}  // namespace flotilla::router
