// Finds the names that a scope hides before it assigns them.
//
// Jinja's compiler decides where a name belongs before a template runs. A scope that assigns a name
// without reading it first has the name from its start, undefined, also for the scopes inside of
// it. So {% for x in y %}{{ z }}{% endfor %}{% set z = 1 %} prints nothing in the loop, whatever z
// the caller of the template passes.
#pragma once

#include "model/jinja/ast.h"

namespace flotilla::jinja {

// Fills in `hidden` and `else_hidden` of the program and its statements, with the names that scopes
// inside read.
void FindHiddenNames(Template& program);

}  // namespace flotilla::jinja
