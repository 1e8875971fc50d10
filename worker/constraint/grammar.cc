#include "worker/constraint/grammar.h"

#include <compiled_bytes.h>
#include <matcher_parts.h>
#include <xgrammar/compiler.h>
#include <xgrammar/config.h>
#include <xgrammar/grammar.h>
#include <xgrammar/matcher.h>
#include <xgrammar/tokenizer_info.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <iterator>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/obs/printable.h"
#include "nlohmann/json.hpp"
#include "worker/constraint/json_space.h"

namespace flotilla::worker {
namespace {

// As scripts/fetch_xgrammar, and what we add to the masks.
constexpr char kEngine[] = "xgrammar 0.2.8, control tokens, white space of all JSON";
constexpr std::size_t kMostMessageBytes = 200;
// How deep constraints may be nested. XGrammar's own limit of 10000 is for a larger stack than that
// of a process.
constexpr int kMostDepth = 500;

// The words of an error or a warning of XGrammar for a client: without the time and the place in
// XGrammar's sources that may come first, and without its condition.
std::string ForClient(std::string_view message) {
  for (const std::string_view source : {".cc:", ".h:"}) {
    const std::size_t at = message.find(source);
    const std::size_t end = message.find(": ", at);
    if (message.starts_with('[') && at != message.npos && end != message.npos) {
      message.remove_prefix(end + 2);
      break;
    }
  }
  for (const std::string_view words : {"Warning: ", "Check failed: ", "is false: "}) {
    const std::size_t at = message.find(words);
    const bool is_first = at == 0 || words == "is false: ";
    if (at != message.npos && is_first) message.remove_prefix(at + words.size());
  }
  message = message.substr(0, message.find('\n'));
  std::string words = Printable(message.substr(0, kMostMessageBytes));
  if (words.size() > kMostMessageBytes) {
    std::size_t end = kMostMessageBytes - 3;
    while ((words[end] & 0xc0) == 0x80) --end;  // no part of a character stays
    words = words.substr(0, end) + "...";
  }
  return words.empty() ? "it cannot be compiled" : words;
}

// What XGrammar writes to std::cerr while this lives: its warnings.
class Warnings {
 public:
  Warnings() : before_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Warnings() { std::cerr.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

xgrammar::CompiledGrammar Compile(const Constraint& constraint,
                                  const xgrammar::TokenizerInfo& vocabulary) {
  // One thread, since the process has a limit, and no cache, since each text comes once.
  xgrammar::GrammarCompiler compiler(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false);
  // XGrammar takes it that no rule refers to the root, and forbids tokens that go beyond it. Where
  // one may do so, Union puts another root in front.
  switch (constraint.kind) {
    case Constraint::Kind::kJsonSchema:
      return compiler.CompileGrammar(
          xgrammar::Grammar::Union({xgrammar::Grammar::FromJSONSchema(constraint.text)}));
    case Constraint::Kind::kRegex:
      return compiler.CompileRegex(constraint.text);
    case Constraint::Kind::kGrammar:
      return compiler.CompileGrammar(
          xgrammar::Grammar::Union({xgrammar::Grammar::FromEBNF(constraint.text)}));
    default:
      return compiler.CompileStructuralTag(constraint.text);
  }
}

// Whether a rule has an attribute that changes the masks by what was computed before, which a
// matcher that is rebuilt does not know, or that we would ignore.
bool HasLimitedRule(const std::string& rules) {
  std::istringstream lines(rules);
  for (std::string line; std::getline(lines, line);) {
    const std::string head = line.substr(0, line.find("::="));
    for (const char* attribute : {"max_tokens=", "max_chars=", "temperature="}) {
      if (head.find('[') < head.find(attribute) && head.find(attribute) != head.npos) return true;
    }
  }
  return false;
}

// What the masks of a constraint need to know of it.
struct Formats {
  std::vector<TokenId> tokens;  // that it names
  bool has_schema = false;      // some of the answer is JSON
};

// Adds what is in a format of a structural tag. Schemas and grammars in it name no tokens.
void AddFormat(const nlohmann::json& format, int depth, Formats& formats) {
  if (depth > kMostDepth) return;
  if (format.is_array()) {
    for (const nlohmann::json& each : format) AddFormat(each, depth + 1, formats);
    return;
  }
  if (!format.is_object()) return;
  const nlohmann::json type = format.value("type", nlohmann::json());
  formats.has_schema |= type == "json_schema";
  if (type == "token") {
    const auto token = format.find("token");
    if (token != format.end() && token->is_number_integer()) formats.tokens.push_back(*token);
  }
  for (const char* part : {"elements", "content", "tags", "begin", "end"}) {
    if (const auto found = format.find(part); found != format.end()) {
      AddFormat(*found, depth + 1, formats);
    }
  }
}

Formats FormatsOf(const Constraint& constraint) {
  Formats formats{.has_schema = constraint.kind == Constraint::Kind::kJsonSchema};
  if (constraint.kind != Constraint::Kind::kStructuralTag) return formats;
  const auto tag = nlohmann::json::parse(constraint.text, nullptr, /*allow_exceptions=*/false);
  if (tag.is_object() && tag.contains("format")) AddFormat(tag["format"], 0, formats);
  return formats;
}

bool HasBit(absl::Span<const std::uint32_t> mask, TokenId token) {
  return (mask[token / 32] >> token % 32 & 1) != 0;
}

// Clears the bits of `tokens`, unless no other is set.
void LeaveOut(const std::vector<std::uint32_t>& tokens, absl::Span<std::uint32_t> mask) {
  std::uint32_t others = 0;
  for (std::size_t i = 0; i < mask.size(); ++i) others |= mask[i] & ~tokens[i];
  if (others == 0) return;
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] &= ~tokens[i];
}

}  // namespace

std::string ConstraintEngineVersion() { return kEngine; }

struct GrammarVocabulary::Impl {
  xgrammar::TokenizerInfo info;
  std::vector<TokenId> stops, controls;  // ascending
  // [mask_words]; the second: those that begin with white space.
  std::vector<std::uint32_t> usable, spaces;
};

GrammarVocabulary::GrammarVocabulary(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
GrammarVocabulary::~GrammarVocabulary() = default;

absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::Create(
    const ConstraintVocabulary& vocabulary) {
  const std::size_t size = vocabulary.tokens.size();
  std::vector<std::uint32_t> usable((size + 31) / 32), spaces(usable.size());
  for (std::size_t i = 0; i < size; ++i) {
    const std::string& token = vocabulary.tokens[i];
    if (!token.empty()) usable[i / 32] |= 1u << i % 32;
    if (!token.empty() && IsJsonSpace(token[0])) spaces[i / 32] |= 1u << i % 32;
  }
  for (const auto* tokens : {&vocabulary.stops, &vocabulary.controls}) {
    for (const TokenId token : *tokens) {
      if (token >= 0 && static_cast<std::size_t>(token) < size) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "The control token ", token, " is not in the vocabulary of ", size, " tokens"));
    }
  }
  for (const TokenId stop : vocabulary.stops) usable[stop / 32] |= 1u << stop % 32;
  // XGrammar allows a token without bytes nowhere. No text has this byte.
  std::vector<std::string> bytes = vocabulary.tokens;
  for (const TokenId control : vocabulary.controls) bytes[control] = "\xff";
  return std::shared_ptr<const GrammarVocabulary>(new GrammarVocabulary(std::unique_ptr<const Impl>(
      new Impl{.info = xgrammar::TokenizerInfo(bytes, xgrammar::VocabType::RAW, std::nullopt,
                                               vocabulary.stops),
               .stops = vocabulary.stops,
               .controls = vocabulary.controls,
               .usable = std::move(usable),
               .spaces = std::move(spaces)})));
}

std::size_t GrammarVocabulary::size() const {
  return static_cast<std::size_t>(impl_->info.GetVocabSize());
}

bool GrammarVocabulary::IsStop(TokenId token) const {
  return std::ranges::binary_search(impl_->stops, token);
}

absl::StatusOr<std::string> CompileConstraint(const Constraint& constraint,
                                              const GrammarVocabulary& vocabulary,
                                              std::size_t most_bytes) {
  Warnings warnings;
  try {
    xgrammar::SetMaxRecursionDepth(kMostDepth);
    const xgrammar::CompiledGrammar grammar = Compile(constraint, vocabulary.impl_->info);
    if (!warnings.text().empty()) return absl::InvalidArgumentError(ForClient(warnings.text()));
    if (constraint.kind == Constraint::Kind::kGrammar ||
        constraint.kind == Constraint::Kind::kStructuralTag) {
      if (HasLimitedRule(grammar.GetGrammar().ToString())) {
        return absl::InvalidArgumentError(
            "max_tokens, max_chars and temperature of a rule are not supported");
      }
    }
    std::string bytes = xgrammar::CompiledToBytes(grammar);
    if (bytes.size() <= most_bytes) return bytes;
    return absl::ResourceExhaustedError(absl::StrCat("it is compiled to ", bytes.size(),
                                                     " bytes, but ", most_bytes, " are allowed"));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("it takes too much memory to compile");
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(ForClient(error.what()));
  }
}

struct Grammar::Impl {
  xgrammar::CompiledGrammar compiled;
  std::size_t bytes = 0;
  // The control tokens that the constraint names, ascending.
  std::vector<TokenId> named = {};
  // A control token that it does not name; -1: there is none. XGrammar allows it where any byte may
  // come, and there the named ones are no more than text, too.
  TokenId other = -1;
  bool has_schema = false;  // some of the answer is JSON
};

Grammar::Grammar(std::unique_ptr<const Impl> impl,
                 std::shared_ptr<const GrammarVocabulary> vocabulary)
    : impl_(std::move(impl)), vocabulary_(std::move(vocabulary)) {}
Grammar::~Grammar() = default;

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::Read(
    const std::string& compiled, const Constraint& constraint,
    std::shared_ptr<const GrammarVocabulary> vocabulary) {
  try {
    auto read = xgrammar::CompiledFromBytes(compiled, vocabulary->impl_->info);
    if (const auto* why = std::get_if<std::string>(&read)) return absl::InternalError(*why);
    Formats formats = FormatsOf(constraint);
    auto impl = std::make_unique<Impl>(
        Impl{.compiled = std::get<xgrammar::CompiledGrammar>(std::move(read)),
             .bytes = compiled.size(),
             .has_schema = formats.has_schema});
    const std::vector<TokenId>& controls = vocabulary->impl_->controls;
    std::ranges::sort(formats.tokens);
    std::ranges::set_intersection(formats.tokens, controls, std::back_inserter(impl->named));
    for (const TokenId control : controls) {
      if (!std::ranges::binary_search(impl->named, control)) impl->other = control;
    }
    return std::shared_ptr<const Grammar>(new Grammar(std::move(impl), std::move(vocabulary)));
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

std::size_t Grammar::bytes() const { return impl_->bytes; }

struct GrammarMatcher::Impl {
  xgrammar::GrammarMatcher matcher;
  std::size_t more_stops = 0;  // accepted after the first stop token, of which XGrammar takes one
  // Of an answer with JSON: JsonSpaceAtEnd behind each accepted token.
  std::vector<std::uint8_t> spaces = {};

  // Whether no more white space may come, since JSON has enough of it here.
  bool has_enough_space() const {
    return !spaces.empty() && spaces.back() == kEnoughJsonSpace &&
           xgrammar::IsBetweenParts(matcher);
  }
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)),
      impl_(new Impl{xgrammar::GrammarMatcher(grammar_->impl_->compiled)}) {}
GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::unique_ptr<Impl> impl)
    : grammar_(std::move(grammar)), impl_(std::move(impl)) {}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

bool GrammarMatcher::Accept(TokenId token) {
  const GrammarVocabulary::Impl& vocabulary = *grammar_->vocabulary().impl_;
  if (token < 0 || static_cast<std::size_t>(token) >= grammar_->vocabulary().size()) return false;
  const bool is_usable = HasBit(vocabulary.usable, token);
  if (!is_usable && !std::ranges::binary_search(grammar_->impl_->named, token)) return false;
  // Whether a named token may come here, or one of white space, depends on what else may.
  if (!is_usable || (impl_->has_enough_space() && HasBit(vocabulary.spaces, token))) {
    std::vector<std::uint32_t> mask(grammar_->vocabulary().mask_words());
    if (!Fill(absl::MakeSpan(mask)) || !HasBit(mask, token)) return false;
  }
  if (impl_->matcher.IsTerminated()) {
    if (!grammar_->vocabulary().IsStop(token)) return false;
    ++impl_->more_stops;
    return true;
  }
  try {
    if (!impl_->matcher.AcceptToken(token)) return false;
  } catch (const std::exception&) {
    return false;
  }
  if (grammar_->impl_->has_schema) {
    const std::string& text = vocabulary.info.GetDecodedVocab()[static_cast<std::size_t>(token)];
    impl_->spaces.push_back(JsonSpaceAtEnd(impl_->spaces.empty() ? 0 : impl_->spaces.back(), text));
  }
  return true;
}

void GrammarMatcher::Rollback(std::size_t tokens) {
  const std::size_t stops = std::min(tokens, impl_->more_stops);
  impl_->more_stops -= stops;
  const std::size_t others = tokens - stops;
  if (others > 0) impl_->matcher.Rollback(static_cast<int>(others));
  impl_->spaces.resize(impl_->spaces.size() - std::min(impl_->spaces.size(), others));
}

bool GrammarMatcher::Fill(absl::Span<std::uint32_t> mask) {
  const GrammarVocabulary::Impl& vocabulary = *grammar_->vocabulary().impl_;
  std::ranges::fill(mask, 0);
  if (impl_->matcher.IsTerminated()) {
    for (const TokenId stop : vocabulary.stops) mask[stop / 32] |= 1u << stop % 32;
    return !vocabulary.stops.empty();
  }
  std::int64_t words = static_cast<std::int64_t>(mask.size());
  DLTensor tensor{.data = mask.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = {kDLInt, 32, 1},
                  .shape = &words,
                  .strides = nullptr,
                  .byte_offset = 0};
  try {
    impl_->matcher.FillNextTokenBitmask(&tensor);
  } catch (const std::exception&) {
    std::ranges::fill(mask, 0);
  }
  const Grammar::Impl& grammar = *grammar_->impl_;
  std::vector<TokenId> named;
  if (grammar.other < 0 || !HasBit(mask, grammar.other)) {
    std::ranges::copy_if(grammar.named, std::back_inserter(named),
                         [mask](TokenId token) { return HasBit(mask, token); });
  }
  std::uint32_t any = named.empty() ? 0 : 1;
  for (std::size_t i = 0; i < mask.size(); ++i) any |= mask[i] &= vocabulary.usable[i];
  for (const TokenId token : named) mask[token / 32] |= 1u << token % 32;
  if (impl_->has_enough_space()) LeaveOut(vocabulary.spaces, mask);
  return any != 0;
}

std::size_t GrammarMatcher::bytes() const {
  return xgrammar::MatcherBytes(impl_->matcher) + impl_->spaces.capacity();
}

GrammarMatcher GrammarMatcher::Fork() const {
  return GrammarMatcher(grammar_, std::unique_ptr<Impl>(new Impl{
                                      impl_->matcher.Fork(), impl_->more_stops, impl_->spaces}));
}

}  // namespace flotilla::worker
