// The fields of HTTP bodies that ask for a form: what each means, and what is refused.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "router/errors.h"
#include "router/generate_request.h"
#include "router/http/openai_request.h"

namespace flotilla::router {
namespace {

const ModelLimits kModelLimits{"m", 1000, 512, /*max_sequences=*/32, /*end_tokens=*/{2}};

// Parses `more` on both endpoints, which must agree, and validates it.
absl::StatusOr<Constraint> Read(const std::string& more, bool permissive = false) {
  const std::string chat =
      R"({"model":"m","messages":[{"role":"user","content":"x"}],)" + more + "}";
  const std::string text = R"({"model":"m","prompt":"x",)" + more + "}";
  const auto read = [](absl::StatusOr<OpenAiBody<ApiRequest>> body) -> absl::StatusOr<Constraint> {
    if (!body.ok()) return body.status();
    auto valid = Validator(RequestLimits{}).Validate(std::move(body->prompts[0]), kModelLimits);
    if (!valid.ok()) return valid.status();
    return valid->api().constraint;
  };
  const auto of_chat = read(ParseChatCompletion(chat, {.permissive = permissive}));
  const auto of_text = read(ParseCompletion(text, {.permissive = permissive}));
  EXPECT_EQ(of_chat.status(), of_text.status()) << more;
  if (of_chat.ok() && of_text.ok()) {
    EXPECT_EQ(*of_chat, *of_text) << more;
  }
  return of_chat;
}

constexpr auto kSchema = Constraint::Kind::kJsonSchema, kRegex = Constraint::Kind::kRegex,
               kGrammar = Constraint::Kind::kGrammar, kTag = Constraint::Kind::kStructuralTag;

TEST(StructuredOutput, EachFieldIsAConstraint) {
  const std::string null = R"({"type":"null"})",
                    any = R"({"type":"object","additionalProperties":{}})";
  const std::string tag = R"({"type":"structural_tag","format":{"type":"any_text"}})";
  const std::pair<std::string, Constraint> cases[] = {
      {R"("response_format":{"type":"text"})", {}},
      {R"("response_format":null,"structured_outputs":null,"guided_json":null,"grammar":"")", {}},
      {R"("response_format":{"type":"json_object"})", {kSchema, any}},
      {R"("response_format":{"type":"json_object","schema":{"type":"null"}})", {kSchema, null}},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","description":null,
          "strict":true,"schema":{"type":"null"}}})",
       {kSchema, null}},
      {R"("response_format":{"type":"structural_tag","format":{"type":"any_text"}})", {kTag, tag}},
      {R"("structured_outputs":{"json":{"type":"null"},"disable_any_whitespace":false})",
       {kSchema, null}},
      {R"("structured_outputs":{"json":"{\"type\":\"null\"}","regex":null})", {kSchema, null}},
      {R"("structured_outputs":{"json_object":true})", {kSchema, any}},
      {R"("structured_outputs":{"regex":"^a+$"})", {kRegex, "a+"}},
      {R"("structured_outputs":{"choice":["a","b"]})", {kGrammar, R"(root ::= "a" | "b")"}},
      {R"("structured_outputs":{"grammar":"root ::= \"a\""})", {kGrammar, R"(root ::= "a")"}},
      {R"("structured_outputs":{"structural_tag":"{\"format\":{\"type\":\"any_text\"}}"})",
       {kTag, tag}},
      {R"("guided_json":{"type":"null"},"guided_decoding_backend":"xgrammar")", {kSchema, null}},
      {R"("guided_regex":"a+")", {kRegex, "a+"}},
      {R"("guided_choice":["a"])", {kGrammar, R"(root ::= "a")"}},
      {R"("guided_grammar":"root ::= \"a\"")", {kGrammar, R"(root ::= "a")"}},
      {R"("structural_tag":{"format":{"type":"any_text"}})", {kTag, tag}},
      {R"("json_schema":{"type":"null"})", {kSchema, null}},
      {R"("json_schema":"{\"type\":\"null\"}")", {kSchema, null}},
      {R"("grammar":"root ::= \"a\"")", {kGrammar, R"(root ::= "a")"}},
      {R"("regex":"a+")", {kRegex, "a+"}},
      {R"("ebnf":"root ::= \"a\"")", {kGrammar, R"(root ::= "a")"}},
      // The model's own end, and n answers.
      {R"("regex":"a","stop_token_ids":[2],"min_tokens":0,"n":2,"best_of":3,"stop":[])",
       {kRegex, "a"}},
  };
  for (const auto& [more, constraint] : cases) {
    const auto read = Read(more);
    ASSERT_TRUE(read.ok()) << more << read.status();
    EXPECT_EQ(*read, constraint) << more << read->text;
  }
}

TEST(StructuredOutput, PropertiesKeepTheClientsOrder) {
  EXPECT_EQ(
      Read(R"("guided_json":{"properties":{"z":true,"a":true,"m":true}})")->text,
      R"({"type":"object","properties":{"z":{},"a":{},"m":{}},"additionalProperties":false})");
}

TEST(StructuredOutput, IsRefusedByName) {
  struct Case {
    std::string more, field, message;
  };
  const Case cases[] = {
      {R"("response_format":"json")", "response_format", "must be an object"},
      {R"("response_format":{})", "response_format.type", "must be \"text\""},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema",
       "with 'schema'"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
       "response_format.json_schema.schema", "is missing"},
      {R"("response_format":{"type":"json_object","x":1})", "response_format.x", "unknown field"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":
          {"properties":{"a":{"not":{}}}}}})",
       "response_format.json_schema.schema",
       "response_format.json_schema.schema: /properties/a: \"not\" is not supported"},
      {R"("structured_outputs":{})", "structured_outputs", "must have one of"},
      {R"("structured_outputs":{"json_object":false})", "structured_outputs", "must have one of"},
      {R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs.choice",
       "'structured_outputs.choice' and 'structured_outputs.regex' exclude each other"},
      {R"("structured_outputs":{"regex":"a","whitespace_pattern":" "})",
       "structured_outputs.whitespace_pattern", "is not supported"},
      {R"("structured_outputs":{"regex":"a","disable_any_whitespace":true})",
       "structured_outputs.disable_any_whitespace", "is not supported"},
      {R"("structured_outputs":{"regex":"a","x":1})", "structured_outputs.x", "unknown field"},
      {R"("structured_outputs":{"choice":"a"})", "structured_outputs.choice", "a list of strings"},
      {R"("structured_outputs":{"json":"{"})", "structured_outputs.json", "is not JSON"},
      {R"("guided_json":5)", "guided_json", "must be an object, true or false"},
      {R"("guided_regex":5)", "guided_regex", "must be a string"},
      {R"x("regex":"(?=a)")x", "regex", "has a lookahead"},
      {R"("ebnf":"x ::= y")", "ebnf", "no rule 'root'"},
      {R"("guided_whitespace_pattern":" ")", "guided_whitespace_pattern", "is not supported"},
      {R"("response_format":{"type":"json_object"},"regex":"a")", "regex",
       "'regex' and 'response_format' exclude each other"},
      // What else ends an answer, or keeps it going.
      {R"("regex":"a","ignore_eos":true)", "ignore_eos", "with structured output"},
      {R"("regex":"a","stop":"b")", "stop", "with structured output"},
      {R"("regex":"a","stop_token_ids":[2,3])", "stop_token_ids", "with structured output"},
      {R"("regex":"a","min_tokens":1)", "min_tokens", "with structured output"},
  };
  for (const Case& c : cases) {
    for (const bool permissive : {false, true}) {
      const auto read = Read(c.more, permissive);
      ASSERT_FALSE(read.ok()) << c.more;
      EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << c.more;
      EXPECT_EQ(ErrorField(read.status()), c.field) << c.more << read.status();
      EXPECT_NE(read.status().message().find(c.message), absl::string_view::npos)
          << c.more << read.status();
    }
  }
  const auto beams = Read(R"("regex":"a","use_beam_search":true,"n":2)", false);
  EXPECT_TRUE(beams.ok()) << beams.status();
}

// A body may have a schema of hundreds of thousands of keys.
TEST(StructuredOutput, LargeSchemasCostBoundedTime) {
  std::string keys;
  for (int i = 0; i < 100'000; ++i) keys += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  const auto read = Read(R"("guided_json":{"properties":{)" + keys + "}}");
  EXPECT_EQ(ErrorField(read.status()), "guided_json");
  EXPECT_NE(read.status().message().find("more than 32768 values"), absl::string_view::npos);
  // Beside a constraint, other fields may be as large as they are.
  EXPECT_TRUE(Read(R"("regex":"a","metadata":{)" + keys + "}").ok());
}

}  // namespace
}  // namespace flotilla::router
