// What a grammar must enforce so that a model calls a tool, or thinks before an answer of a form,
// or gives that or calls. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/types/constraint.h"
#include "router/core/tools/control_markers.h"
#include "router/core/tools/tool_format.h"

namespace flotilla::router {

struct CallableTool {
  std::string_view name;        // of letters, digits, _ and -
  std::string_view parameters;  // JSON Schema; empty: any object
};

struct ConstraintOptions {
  bool several = false;  // more than one call may come
  // Of the model; null: no thoughts may come in front of the calls.
  const ReasoningFormat* reasoning = nullptr;
  bool begins_in_reasoning = false;  // the prompt has the begin of the thoughts
};

// Returns the JSON text of a structural tag, as XGrammar takes it: an answer that is nothing but
// calls of some of `tools`, written as `format` says, perhaps behind thoughts. There is at least
// one tool.
std::string ToolConstraint(const ToolFormat& format, std::span<const CallableTool> tools,
                           const ConstraintOptions& options);

// A form of answers (constraints.h, json_schema.h) in a whole answer. Thoughts of the model are in
// front of it, if it has any: they must come where the prompt has begun them and may come
// elsewhere. Calls may come in place of the form: `calls` is a structural tag of ToolConstraint
// without thoughts, as constraints.h has checked and written it anew; empty: there are none. The
// text may have more than Constraint::kMaxBytes.
Constraint FormConstraint(const Constraint& form, std::string_view calls,
                          const ReasoningFormat* reasoning, bool begins_in_reasoning,
                          const std::vector<ControlToken>& tokens = {});

}  // namespace flotilla::router
