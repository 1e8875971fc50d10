// The operators of the template language, as Python defines them.
#pragma once

#include "model/jinja/ast.h"
#include "model/jinja/value.h"

namespace flotilla::jinja {

// + - * / // % ** on numbers; + and * on texts and lists too, and % on a text, which it formats.
// Fails for other types, division by zero and integers past 64 bits.
Value Arithmetic(Heap& heap, Op op, Value a, Value b);

// == != < <= > >= in, not in.
bool Compare(Heap& heap, Op op, Value a, Value b);

// x[start:stop:step] of a text or list; undefined or none bounds are left out.
Value Slice(Heap& heap, Value object, Value start, Value stop, Value step);

}  // namespace flotilla::jinja
