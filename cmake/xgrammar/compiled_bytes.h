// What XGrammar's interface lacks: a compiled grammar as bytes that are about as many as the memory
// it takes, and are read in about the time of a copy.
//
// XGrammar's own form is JSON. It has a copy of the automaton of all rules for each rule, which is
// quadratic in the number of rules, and a compiled grammar that is read from it has as many; and to
// read it takes ten times its memory.
#pragma once

#include <xgrammar/compiler.h>
#include <xgrammar/tokenizer_info.h>

#include <string>
#include <string_view>
#include <variant>

namespace xgrammar {

// The grammar for another process of the same program. Throws what XGrammar's SerializeJSON throws.
std::string CompiledToBytes(const CompiledGrammar& grammar);

// The grammar, or why the bytes are none. Of bytes that CompiledToBytes has not made, nothing is
// read out of bounds, neither here nor later; `vocabulary` is that of the compiler.
std::variant<CompiledGrammar, std::string> CompiledFromBytes(std::string_view bytes,
                                                             const TokenizerInfo& vocabulary);

}  // namespace xgrammar
