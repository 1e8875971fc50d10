// Everything that turns text into a model's tokens and back, independent of the file that it came
// from: the vocabulary, how words are split and merged, special tokens, the chat template. A worker
// reads it from its model file, and routers get it over the wire (proto/codec/tokenizer.h).
//
// It holds what the file says. Which kinds can be used is known to model/text/tokenizer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/types/ids.h"

namespace flotilla {

enum class TokenKind : std::uint8_t {
  kNormal = 1,
  kUnknown,
  kControl,      // recognised only where special tokens are allowed
  kUserDefined,  // recognised everywhere
  kUnused,
  kByte,  // stands for one byte
};

// Where text gets a space in front that it does not have. The parts of a text are what is between
// its added tokens.
enum class SpacePrefix : std::uint8_t {
  kNone,
  kParts,         // of each part
  kPartsWithout,  // of each part that does not begin with one
  kTextWithout,   // of the text, if it begins with neither one nor an added token
};

// Which white space an added token takes with it, and where it counts.
struct AddedTokenRule {
  TokenId id = -1;
  bool strips_left = false;
  bool strips_right = false;
  bool whole_word = false;  // not beside a letter, a digit or '_'
  bool in_model = false;    // where it does not count, the model may make it of text
  bool normalized = false;  // it counts in normalised text, written as its own normal form
  bool byte = false;        // the model uses it for the byte that it is called after

  bool operator==(const AddedTokenRule&) const = default;
};

// A step that changes text, splits it, or turns the texts of tokens into text. The names are those
// of tokenizer.json, which says what each does; model/text has the code.
struct TextStep {
  enum class Kind : std::uint8_t {
    // Change text.
    kNfc = 1,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,
    kNmt,
    kBertNormalizer,
    kPrecompiled,    // text: the map of characters; kLongest: as SentencePiece itself reads it
    kSentencePiece,  // what SentencePiece does with white space
    kPrepend,
    // Change text, or the text of each token.
    kReplace,
    kStrip,
    // Split text.
    kWhitespace,
    kWhitespaceSplit,
    kBertPreTokenizer,
    kDigits,
    kPunctuation,
    kSplit,
    // Split text, and turn the texts of tokens back.
    kByteLevel,
    kMetaspace,
    // Turn the texts of tokens into text.
    kByteFallback,
    kFuse,
    kWordPiece,
    kJoin,  // with spaces
    kLast = kJoin,
  };
  // What becomes of the matches that split text.
  enum class Behavior : std::uint8_t {
    kRemoved,
    kIsolated,
    kMergedWithPrevious,
    kMergedWithNext,
    kContiguous,
    kLast = kContiguous,
  };
  enum Flag : std::uint32_t {
    kRegex = 1 << 0,         // pattern is a regular expression
    kInvert = 1 << 1,        // what does not match counts as match
    kLeft = 1 << 2,          // strip the beginning
    kRight = 1 << 3,         // strip the end
    kCleanText = 1 << 4,     // and the next three: of BertNormalizer
    kChinese = 1 << 5,       //
    kAccents = 1 << 6,       //
    kLower = 1 << 7,         //
    kEach = 1 << 8,          // each digit, or each word, is a piece by itself
    kSpaceFirst = 1 << 9,    // a text that has no space in front gets one
    kSpaceAlways = 1 << 10,  // so does each piece
    kRegexSplits = 1 << 11,  // ByteLevel splits by GPT-2's expression
    kCleanUp = 1 << 12,      // no space before punctuation
    kLongest = 1 << 13,      // the longest match of a map counts
    kExtraSpaces = 1 << 14,  // spaces at both ends, and those behind others, vanish
    kSpaceBehind = 1 << 15,  // the space goes behind the text
    kFloatScores = 1 << 16,  // of SentencePiece: Unigram adds scores in single precision
    kAllFlags = (1 << 17) - 1,
  };
  Kind kind = Kind::kNfc;
  std::uint32_t flags = 0;  // of Flag
  Behavior behavior = Behavior::kRemoved;
  std::string pattern;      // what is looked for, or removed
  std::string text;         // what takes its place, or goes in front
  std::uint32_t start = 0;  // how many characters a Strip of tokens takes
  std::uint32_t stop = 0;

  bool has(Flag flag) const { return (flags & flag) != 0; }
  bool operator==(const TextStep&) const = default;
};

struct TextSteps {
  std::vector<TextStep> normalizer;
  std::vector<TextStep> pre_tokenizer;
  std::vector<TextStep> decoder;

  bool operator==(const TextSteps&) const = default;
};

struct NamedTemplate {
  std::string name;
  std::string text;

  bool operator==(const NamedTemplate&) const = default;
};

// A value of the sampling that a model's files recommend.
struct SamplingDefault {
  std::string name;  // of the parameter (common/types/parameters.h)
  double value = 0;  // as the file has it; not a number: the file has something else there

  bool operator==(const SamplingDefault&) const = default;
};

struct TokenizerBundle {
  // As GGUF names it: "gpt2" is byte-level BPE, "llama" SentencePiece's BPE of characters, "t5"
  // Unigram and "bert" WordPiece.
  std::string kind;
  // What comes before and after the model. Without steps, the kind and the fields below say so;
  // "t5" and "bert" have steps.
  std::optional<TextSteps> steps;
  std::string pretokenizer;  // as llama.cpp names it; empty: the file does not say
  // In place of that: regular expressions, each of which splits what the one before left whole
  // into its matches and what is between them.
  std::vector<std::string> split_patterns;
  bool nfc = false;             // with split_patterns: the text is brought to NFC before
  bool ignores_merges = false;  // with split_patterns: a piece that is a token is taken whole
  std::vector<std::string> tokens;
  std::vector<TokenKind> kinds;     // of each token
  std::vector<std::string> merges;  // "left right", the first rule first
  std::vector<double> scores;       // of each token, or empty
  // Ids of special tokens, each a token of the list; -1: none.
  TokenId bos = -1;
  TokenId eos = -1;
  TokenId eot = -1;  // ends a turn
  TokenId eom = -1;  // ends a message
  // Stands for text without a token, which byte-level BPE does not have: there only templates use
  // it.
  TokenId unknown = -1;
  TokenId pad = -1;  // fills batches; only templates use it
  // Tokens that end an answer, beside eos, eot and eom.
  static constexpr std::size_t kMaxEnds = 64;
  std::vector<TokenId> more_ends;
  // None: the file does not say.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  // Tokens that go in front of a text and behind it, beside bos and eos.
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  bool fuses_unknown = true;  // characters without a token that follow each other are one
  std::string word_prefix;    // of WordPiece's tokens that go on with a word
  std::uint32_t max_word_characters = 0;  // of WordPiece; longer words are unknown
  SpacePrefix space_prefix = SpacePrefix::kNone;
  std::vector<AddedTokenRule> added_rules;  // of tokens that have any
  std::optional<std::string> chat_template;
  std::vector<NamedTemplate> more_templates;  // "tool_use" is for requests with tools
  // How the model's authors draw its tokens: each parameter once.
  static constexpr std::size_t kMaxSampling = 32;
  std::vector<SamplingDefault> sampling;

  bool operator==(const TokenizerBundle&) const = default;
};

}  // namespace flotilla
