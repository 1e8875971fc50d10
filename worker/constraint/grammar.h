// Grammars of structured output, by XGrammar, whose headers only grammar.cc includes.
//
// A constraint is compiled with a vocabulary in one process (compile_child.h) and read in another,
// where matchers follow answers token by token. Grammars and vocabularies are immutable, and any
// thread may use them. XGrammar's exceptions end here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/constraint.h"
#include "common/types/ids.h"
#include "worker/constraint/vocabulary.h"

namespace flotilla::worker {

// Name and version of the engine. Another version may give other masks.
std::string ConstraintEngineVersion();

// A vocabulary in XGrammar's form.
class GrammarVocabulary {
 public:
  // INVALID_ARGUMENT: a stop or control token is not in the vocabulary.
  static absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> Create(
      const ConstraintVocabulary& vocabulary);
  ~GrammarVocabulary();

  std::size_t size() const;
  // Words of a mask of all tokens: bit t % 32 of word t / 32 belongs to token t.
  std::size_t mask_words() const { return (size() + 31) / 32; }
  bool IsStop(TokenId token) const;

 private:
  friend class Grammar;
  friend class GrammarMatcher;
  friend absl::StatusOr<std::string> CompileConstraint(const Constraint&, const GrammarVocabulary&,
                                                       std::size_t);
  struct Impl;
  explicit GrammarVocabulary(std::unique_ptr<const Impl> impl);
  const std::unique_ptr<const Impl> impl_;
};

// Compiles a constraint into a text that Grammar::Read takes. It may take any time and memory, so
// it is for a process with limits. While it runs, std::cerr is redirected. INVALID_ARGUMENT:
// XGrammar refuses the constraint, or would ignore a part of it; RESOURCE_EXHAUSTED: memory ends,
// or the text would have more than `most_bytes`. The message is one line of at most 200 bytes for
// the client.
absl::StatusOr<std::string> CompileConstraint(const Constraint& constraint,
                                              const GrammarVocabulary& vocabulary,
                                              std::size_t most_bytes);

// A compiled grammar.
class Grammar {
 public:
  // Reads what CompileConstraint returned for the same constraint and vocabulary. INTERNAL: it is
  // something else.
  static absl::StatusOr<std::shared_ptr<const Grammar>> Read(
      const std::string& compiled, const Constraint& constraint,
      std::shared_ptr<const GrammarVocabulary> vocabulary);
  ~Grammar();

  // About the memory that it takes.
  std::size_t bytes() const;
  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }

 private:
  friend class GrammarMatcher;
  struct Impl;
  Grammar(std::unique_ptr<const Impl> impl, std::shared_ptr<const GrammarVocabulary> vocabulary);
  const std::unique_ptr<const Impl> impl_;
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

// The place in a grammar that an answer has reached. One thread at a time uses it.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher();

  // Goes on by a token. False: the grammar does not allow it, and nothing has changed.
  bool Accept(TokenId token);
  // Goes back by the last `tokens` accepted ones, at most all.
  void Rollback(std::size_t tokens);
  // Sets the bits of the allowed tokens, and clears all others. After a stop token only stop tokens
  // are allowed. Between the parts of JSON of a schema, the mask leaves out white space where there
  // is enough of it (json_space.h). If a structural tag has a schema, the same holds for [ \n\r\t]*
  // in its other parts. `mask` has mask_words() words. False: no token is allowed.
  bool Fill(absl::Span<std::uint32_t> mask);
  // About the memory that it takes, which some grammars make grow with the square of the answer.
  std::size_t bytes() const;
  // A copy that goes on by itself.
  GrammarMatcher Fork() const;

 private:
  struct Impl;
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::unique_ptr<Impl> impl);
  std::shared_ptr<const Grammar> grammar_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flotilla::worker
