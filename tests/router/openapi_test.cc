// Tests the description of the HTTP API: what it says of parameters and errors, and who gets it.
#include "router/http/openapi.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "common/types/parameters.h"
#include "tests/router/http_fixture.h"

namespace flotilla::router {
namespace {

json OpenApi() { return json::parse(OpenApiText()); }

// The properties of the body of a generation endpoint.
json PropertiesOf(const std::string& request) {
  return OpenApi().at("components").at("schemas").at(request).at("properties");
}

template <class T>
bool IsA(const Parameter& row) {
  return std::holds_alternative<Parameter::Member<std::optional<T>>>(row.asked);
}

TEST(OpenApi, BothRequestsHaveTheParametersWithTypeRangeAndDefault) {
  for (const char* request : {"ChatRequest", "CompletionRequest"}) {
    const json properties = PropertiesOf(request);
    for (const Parameter& row : kParameters) {
      if (!row.exceptions.http) continue;
      const std::string name(row.name);
      SCOPED_TRACE(request + (" " + name));
      ASSERT_TRUE(properties.contains(name));
      if (!IsA<double>(row) && !IsA<std::int64_t>(row)) continue;
      const json& schema = properties[name];
      const bool of_chat = request == std::string("ChatRequest") && name == "max_tokens";
      EXPECT_EQ(schema["type"], (json{IsA<double>(row) ? "number" : "integer", "null"}));
      EXPECT_EQ(schema.value(row.range.above_low ? "exclusiveMinimum" : "minimum", 1e9f),
                of_chat ? 1.0f : float(row.exceptions.also_default.value_or(row.range.low)));
      if (row.range.limit == Limit::kNone) {
        EXPECT_EQ(schema.value("maximum", 1e9f), float(row.range.high));
      }
      EXPECT_EQ(schema.contains("default"), row.default_value.has_value());
      EXPECT_EQ(schema.value("default", 0.0f), float(row.default_value.value_or(0)));
    }
  }
}

TEST(OpenApi, HasASchemaForEachKindOfParameter) {
  const std::map<std::string, const char*> expected = {
      {"temperature", R"({"type":["number","null"],"minimum":0,"maximum":2,"default":1})"},
      {"top_p", R"({"type":["number","null"],"exclusiveMinimum":0,"maximum":1,"default":1})"},
      {"top_k", R"({"type":["integer","null"],"minimum":-1,"default":0,
                    "description":"At most the size of the vocabulary. -1 stands for the default."})"},
      {"top_n_sigma", R"({"type":["number","null"],"minimum":-1,"maximum":100,"default":0,
                          "description":"-1 stands for the default."})"},
      {"xtc_threshold", R"({"type":["number","null"],"minimum":0,"maximum":1,"default":0.1})"},
      {"repetition_penalty",
       R"({"type":["number","null"],"minimum":0.01,"maximum":100,"default":1})"},
      {"dry_base", R"({"type":["number","null"],"minimum":1,"maximum":100,"default":1.75})"},
      {"dry_sequence_breakers", R"({"anyOf":[
          {"type":["string","null"],"minLength":1,"maxLength":40},
          {"type":"array","maxItems":16,
           "items":{"type":"string","minLength":1,"maxLength":40}}]})"},
      {"logit_bias", R"({"type":["object","null"],"propertyNames":{"pattern":"^[0-9]+$"},
                         "additionalProperties":{"type":"number","minimum":-100,"maximum":100},
                         "maxProperties":1024})"},
      {"allowed_token_ids", R"({"type":["array","null"],"maxItems":4096,
                                "items":{"type":"integer","minimum":0}})"},
      {"bad_words", R"({"anyOf":[
          {"type":["string","null"],"minLength":1,"maxLength":256},
          {"type":"array","maxItems":64,
           "items":{"type":"string","minLength":1,"maxLength":256}}]})"},
      {"stop", R"({"anyOf":[
          {"type":["string","null"],"minLength":1,"maxLength":256},
          {"type":"array","maxItems":16,
           "items":{"type":"string","minLength":1,"maxLength":256}}]})"},
      {"stop_token_ids", R"({"type":["array","null"],"maxItems":64,
                             "items":{"type":"integer","minimum":0}})"},
      {"ignore_eos", R"({"$ref":"#/components/schemas/Flag","default":false})"},
      {"skip_special_tokens", R"({"$ref":"#/components/schemas/Flag","default":true})"},
      {"min_tokens", R"({"type":["integer","null"],"minimum":0,"default":0,
                         "description":"At most `max_tokens`."})"},
      {"seed", R"({"type":["integer","null"],"minimum":-9223372036854775808,
                   "maximum":18446744073709551615})"},
      {"timeout_ms", R"({"type":["integer","null"],"minimum":1,"maximum":3600000})"},
      {"cache_salt", R"({"$ref":"#/components/schemas/Label"})"},
      {"best_of", R"({"type":["integer","null"],"minimum":1,
          "description":"At most the server's `--max-seqs`."})"},
      {"early_stopping", R"({"enum":[true,false,"never",null]})"},
      {"truncate_prompt_tokens", R"({"type":["integer","null"],"minimum":1,
                                     "description":"At most the model's context."})"},
  };
  for (const auto& [name, schema] : expected) {
    EXPECT_EQ(PropertiesOf("ChatRequest")[name], json::parse(schema)) << name;
    EXPECT_EQ(PropertiesOf("CompletionRequest")[name], json::parse(schema)) << name;
  }
  EXPECT_EQ(OpenApi()["components"]["schemas"]["Label"],
            json::parse(R"({"type":["string","null"],"maxLength":256})"));
}

TEST(OpenApi, WhatARequestSaysItselfOfAParameterCounts) {
  EXPECT_EQ(PropertiesOf("ChatRequest")["max_tokens"]["minimum"], 1);
  EXPECT_EQ(PropertiesOf("CompletionRequest")["max_tokens"]["minimum"], 0);
  EXPECT_EQ(PropertiesOf("ChatRequest")["logprobs"]["$ref"], "#/components/schemas/Flag");
  EXPECT_EQ(PropertiesOf("CompletionRequest")["logprobs"]["maximum"], 20);
}

// Calls visit(value) for each value of the document, and for those within it.
template <class Visit>
void ForEachValue(const json& value, Visit visit) {
  visit(value);
  if (!value.is_structured()) return;
  for (const json& inner : value) ForEachValue(inner, visit);
}

TEST(OpenApi, RefersToWhatItHas) {
  const json document = OpenApi();
  int references = 0;
  ForEachValue(document, [&](const json& value) {
    if (!value.is_object() || !value.contains("$ref")) return;
    const std::string reference = value["$ref"];
    EXPECT_TRUE(document.contains(json::json_pointer(reference.substr(1)))) << reference;
    ++references;
  });
  EXPECT_GT(references, 100);
  // A request refuses properties that it does not have itself, so those of `allOf` are in it.
  ForEachValue(document, [](const json& value) { EXPECT_FALSE(value.contains("allOf")); });
}

TEST(OpenApi, OperationsHaveTheUsualErrorsOrThoseTheyList) {
  const std::set<std::string> usual = {"200", "400", "401", "403", "404", "405", "408",
                                       "413", "415", "429", "431", "500", "503", "504"};
  const std::set<std::string> ready = {"200", "400", "403", "405", "408",
                                       "413", "431", "500", "503"};
  const json document = OpenApi();
  for (const auto& [path, operations] : document["paths"].items()) {
    for (const json& operation : operations) {
      std::set<std::string> statuses;
      for (const auto& [status, response] : operation["responses"].items()) {
        statuses.insert(status);
        // /ready answers 503 with a status.
        if (status == "200" || (path == "/ready" && status == "503")) continue;
        EXPECT_EQ(response["$ref"], "#/components/responses/Error") << path;
      }
      EXPECT_EQ(statuses, path == "/ready" ? ready : usual) << path;
    }
  }
}

TEST_F(HttpTest, DescribesItselfToTools) {
  Serve();
  const HttpResponse response = HttpClient(port_).Call("GET", "/openapi.json");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  EXPECT_EQ(response.body, OpenApiText());
  Fixture setup;
  setup.http.health_only = true;
  server_.reset();
  Serve(setup);
  EXPECT_EQ(HttpClient(port_).Call("GET", "/health").status, 200);
  EXPECT_EQ(HttpClient(port_).Call("GET", "/openapi.json").status, 404);
}

}  // namespace
}  // namespace flotilla::router
