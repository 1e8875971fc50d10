// Mutated forms of answers: JSON schemas, structural tags, regular expressions, grammars, the
// bodies that have them, and the messages to the process that compiles them. An input begins with a
// character that says what it is.
//
// A schema that is accepted is written in the forms that XGrammar keeps, and nothing else.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/constraint.h"
#include "nlohmann/json.hpp"
#include "router/core/constraint/constraints.h"
#include "router/core/constraint/json_schema.h"
#include "router/core/constraint/ordered_json.h"
#include "router/core/constraint/regex.h"
#include "router/core/tools/argument_types.h"
#include "router/core/tools/tool_constraint.h"
#include "router/core/tools/tool_format.h"
#include "router/http/foreign_fields.h"
#include "router/http/json_document.h"
#include "router/http/json_input.h"
#include "router/http/structured_output.h"
#include "tests/fuzz/input_limits.h"
#include "worker/constraint/compile_messages.h"

namespace {

using namespace flotilla::router;
using flotilla::Constraint;

[[noreturn]] void Fail(const char* what, std::string_view which) {
  std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(which.size()), which.data());
  std::abort();
}

// A pattern that was written must be one that can be read again.
void CheckPattern(std::string_view pattern) {
  const bool anchored = pattern.size() >= 2 && pattern.starts_with('^') && pattern.ends_with('$');
  if (!anchored || !ParseRegex(pattern, RegexUse::kWritten).ok()) {
    Fail("a pattern cannot be read again", pattern);
  }
}

// Checks that a written schema has only the forms of json_schema.h.
void CheckWritten(const OrderedJson& schema) {
  constexpr std::string_view kKnown[] = {"$ref",          "$defs",
                                         "enum",          "anyOf",
                                         "type",          "pattern",
                                         "minimum",       "maximum",
                                         "multipleOf",    "exclusiveMinimum",
                                         "items",         "exclusiveMaximum",
                                         "minItems",      "maxItems",
                                         "properties",    "prefixItems",
                                         "required",      "additionalProperties",
                                         "x-number",      "patternProperties",
                                         "propertyNames", "minProperties",
                                         "maxProperties"};
  if (schema.is_boolean()) return;
  if (!schema.is_object()) Fail("this is no schema", schema.dump());
  for (const auto& [name, value] : schema.get_ref<const OrderedJson::object_t&>()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown)) {
      Fail("a written schema has another keyword", name);
    }
    if (name == "pattern") CheckPattern(value.get_ref<const std::string&>());
    if (name == "anyOf" || name == "prefixItems") {
      std::for_each(value.begin(), value.end(), CheckWritten);
    }
    if (name == "items" || name == "additionalProperties") CheckWritten(value);
    if (name != "properties" && name != "$defs" && name != "patternProperties") continue;
    for (const auto& [key, property] : value.get_ref<const OrderedJson::object_t&>()) {
      if (name == "patternProperties") CheckPattern(key);
      CheckWritten(property);
    }
  }
}

void CheckText(const absl::StatusOr<Constraint>& constraint) {
  if (!constraint.ok()) {
    if (!absl::IsInvalidArgument(constraint.status()) || constraint.status().message().empty()) {
      Fail("a refusal says nothing", constraint.status().ToString());
    }
    return;
  }
  if (!*constraint || constraint->text.size() > Constraint::kMaxBytes) {
    Fail("a constraint is empty, or too large", constraint->text);
  }
  const std::string message = flotilla::worker::EncodeConstraint(*constraint);
  const auto decoded = flotilla::worker::DecodeConstraint(message);
  if (!decoded.ok() || *decoded != *constraint) Fail("a constraint changes", constraint->text);
  if (constraint->kind == Constraint::Kind::kStructuralTag &&
      !OrderedJson::accept(constraint->text)) {
    Fail("a structural tag is no JSON", constraint->text);
  }
}

void UseSchema(std::string_view text) {
  const absl::StatusOr<Constraint> constraint = JsonSchemaConstraintFromText(text);
  CheckText(constraint);
  if (constraint.ok()) CheckWritten(OrderedJson::parse(constraint->text));
  ArgumentTypes types;
  types.Add("f", text);
  types.Of("f", "a");
  if (!ParseOrderedJson(text).ok()) return;
  for (const ToolFormat& format : ToolFormats()) {
    if (format.name != "qwen3_coder" && format.name != "hermes") continue;
    const CallableTool tool{.name = "f", .parameters = text};
    CheckText(StructuralTagConstraintFromText(ToolConstraint(format, {&tool, 1}, {})));
  }
}

void UseRegex(std::string_view text) {
  CheckText(RegexConstraint(text));
  for (const RegexUse use : {RegexUse::kAnswer, RegexUse::kJsonString}) {
    const absl::StatusOr<RegexNode> node = ParseRegex(text, use);
    if (!node.ok()) continue;
    const std::string written = WriteRegex(*node);
    if (written.size() + 2 > kMaxRegexBytes) continue;
    const auto again = ParseRegex(std::string("^" + written + "$"), RegexUse::kWritten);
    if (!again.ok()) Fail("an expression cannot be read again", written);
    const Lengths lengths = LengthsOf(*node), others = LengthsOf(*again);
    if (lengths.min != others.min || lengths.max != others.max) {
      Fail("an expression has other lengths", written);
    }
  }
}

void UseBody(std::string_view text) {
  const absl::StatusOr<JsonDocument> document = ParseJsonObject(text);
  if (!document.ok()) return;
  ObjectReader reader(document->root(), "");
  for (const std::string_view penalty :
       {"frequency_penalty", "presence_penalty", "repetition_penalty"}) {
    reader.Number(penalty);
  }
  reader.Int("max_tokens");
  CheckForeignFields(reader);
  flotilla::RequestParameters read;
  ReadConstraint(text, reader, read);
  if (reader.ok() && read.constraint) CheckText(read.constraint);
  std::vector<std::string> ignored;
  const bool permissive = text.size() % 2 == 0;
  reader.Finish(permissive, &ignored).IgnoreError();
  if (ignored.size() > kMaxIgnored) Fail("too many names are kept", text);
}

void UseMessage(std::string_view text) {
  namespace worker = flotilla::worker;
  const absl::string_view message(text.data(), text.size());
  if (const auto setup = worker::DecodeSetup(message); setup.ok()) {
    if (worker::EncodeSetup(*setup) != text) Fail("a set-up changes", text);
  }
  if (const auto constraint = worker::DecodeConstraint(message); constraint.ok()) {
    if (worker::EncodeConstraint(*constraint) != text) Fail("a constraint changes", text);
  }
  if (const auto compiled = worker::DecodeCompiled(message); compiled.ok()) {
    if (worker::EncodeCompiled(compiled) != text) Fail("a compiled grammar changes", text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(input) + 1, size - 1);
  const flotilla::testing::InputLimits limits(size);
  switch (input[0]) {
    case 'r':
      UseRegex(text);
      break;
    case 't':
      CheckText(StructuralTagConstraintFromText(text));
      break;
    case 'g':
      CheckText(GrammarConstraint(text));
      break;
    case 'b':
      UseBody(text);
      break;
    case 'm':
      UseMessage(text);
      break;
    default:
      UseSchema(text);
      break;
  }
  return 0;
}
