// SchemaWalk: reads one schema and writes the one for XGrammar (json_schema.h). Used once, on the
// stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/constraint.h"
#include "router/core/constraint/ordered_json.h"
#include "router/core/constraint/regex.h"
#include "router/core/constraint/schema_document.h"
#include "router/core/constraint/schema_overlap.h"

namespace flotilla::router {

class SchemaWalk {
 public:
  // `root` outlives the walk.
  explicit SchemaWalk(const OrderedJson& root) : root_(root), overlap_(root) {}

  absl::StatusOr<OrderedJson> Run();

 private:
  // One schema on its way: what the client wrote, where, and how deep.
  struct Schema {
    const OrderedJson& json;
    const Place& place;
    int depth;
  };

  // Each returns what is written for a schema; `false` if nothing is valid for it. Once a schema
  // is refused, what is returned does not matter.
  OrderedJson Write(const Schema& schema);
  OrderedJson WriteUnder(const Schema& schema, std::string_view keyword);
  OrderedJson WriteUnder(const Schema& schema, std::string_view keyword, std::string_view name);
  OrderedJson WriteUnder(const Schema& schema, std::string_view keyword, std::size_t index);

  // schema_walk.cc
  OrderedJson Combination(const Schema& schema, std::string_view keyword);
  OrderedJson Reference(const Schema& schema);
  OrderedJson Values(const Schema& schema, std::string_view keyword);
  OrderedJson Options(const Schema& schema, std::string_view keyword);
  unsigned TypesAsked(const Schema& schema);
  OrderedJson OfType(const Schema& schema, unsigned type);

  // schema_values.cc
  OrderedJson String(const Schema& schema);
  std::optional<RegexNode> Pattern(const Schema& schema);
  OrderedJson Integer(const Schema& schema);
  OrderedJson Number(const Schema& schema);
  OrderedJson Array(const Schema& schema);
  void MultipleOf(const Schema& schema, bool bounded_low, bool bounded_high, std::int64_t low,
                  std::int64_t high, OrderedJson& written);

  // schema_object.cc
  struct ObjectParts;
  OrderedJson Object(const Schema& schema);
  void ReadProperties(const Schema& schema, ObjectParts& parts);
  void ReadRequired(const Schema& schema, ObjectParts& parts);
  void ReadOthers(const Schema& schema, ObjectParts& parts);
  void ReadPatterns(const Schema& schema, ObjectParts& parts);
  void ReadNames(const Schema& schema, ObjectParts& parts);
  void AddRequired(const Schema& schema, ObjectParts& parts);
  void AddOther(const Schema& schema, std::string_view keyword, const std::string& name,
                const OrderedJson& other, ObjectParts& parts);
  OrderedJson WriteObject(const Schema& schema, ObjectParts& parts);

  // Keeps the first refusal. Returns false, as a schema.
  OrderedJson Refuse(const Place& place, std::string_view keyword, std::string_view why);
  bool ok() const { return status_.ok(); }
  // The value of a keyword: a whole number of at least 0, at most `cap`; no value if the schema
  // does not have the keyword.
  std::optional<std::int64_t> Count(const Schema& schema, std::string_view keyword,
                                    std::int64_t cap);
  void CheckKeywords(const Schema& schema);
  // The value of a keyword that must be an object or a list; null if there is none.
  const OrderedJson* ObjectOf(const Schema& schema, std::string_view keyword);
  const OrderedJson* ListOf(const Schema& schema, std::string_view keyword);

  const OrderedJson& root_;
  SchemaOverlap overlap_;
  // The schemas that references mean, by their numbers in "$defs", and where each was met first.
  std::map<const OrderedJson*, std::size_t> numbers_;
  std::vector<const OrderedJson*> targets_;
  std::deque<std::string> target_places_;  // a Place may show one, so none moves
  int subschemas_ = 0;
  // Bytes that are left for copies of schemas, of which each name may need one, and for schemas of
  // names, of which each reference may mean the same.
  std::size_t room_ = Constraint::kMaxBytes, names_room_ = 4 * Constraint::kMaxBytes;
  bool old_dialect_ = false;  // before draft 2020-12
  absl::Status status_;
};

}  // namespace flotilla::router
