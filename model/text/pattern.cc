#include "model/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "common/types/text.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

#define WS FLOTILLA_WHITE_SPACE

// Backtracking steps for one match. Our patterns need a few per character, so
// this serves pieces of megabytes and still ends.
constexpr uint32_t kMatchLimit = 1 << 26;

// JIT code counts few of its steps, and so it does not bound the time that the pattern of a file
// takes: a look-ahead may read all that follows, again for each character. Where it counts, it sees
// no more of the text than this at once. A match that needs more is left to the interpreter, which
// counts each step; it begins with few of them, and with more it tries again if there is time.
constexpr size_t kWindow = 128;
constexpr uint32_t kFirstMatchLimit = 1 << 12;
constexpr uint32_t kMoreSteps = 4;

// Of processor time. Patterns in use take a hundredth of this.
constexpr int64_t kNanosecondsOfText = 10'000'000;
constexpr int64_t kNanosecondsPerByte = 4'000;
constexpr uint32_t kMatchesPerCheck = 16;

// What one match may take to remember where it may go on: JIT code has a stack, the interpreter the
// heap. A group that repeats takes about 32 bytes for each time.
constexpr size_t kMostStackBytes = 8 << 20;
constexpr uint32_t kMostHeapKiB = 64 << 10;

std::string Shown(std::string_view text) {
  return Cat("'", absl::CHexEscape(ToAbsl(text.substr(0, 80))), "'");
}

// Names of properties with the same characters in Oniguruma and PCRE2: general categories.
constexpr std::string_view kCategories[] = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};
// Scripts, which mean the script extensions in PCRE2 if nothing else is said.
constexpr std::string_view kScripts[] = {
    "Arabic",   "Armenian",  "Bengali",   "Bopomofo", "Common",   "Cyrillic", "Devanagari",
    "Ethiopic", "Georgian",  "Greek",     "Gujarati", "Gurmukhi", "Han",      "Hangul",
    "Hebrew",   "Hiragana",  "Inherited", "Kannada",  "Katakana", "Khmer",    "Lao",
    "Latin",    "Malayalam", "Mongolian", "Myanmar",  "Oriya",    "Sinhala",  "Tamil",
    "Telugu",   "Thaana",    "Thai",      "Tibetan"};

icu::UnicodeString Folded(uint32_t c) {
  return icu::UnicodeString(static_cast<UChar32>(c)).foldCase();
}

// The characters that fold to many, as sharp s to ss, with these.
const std::vector<std::pair<uint32_t, icu::UnicodeString>>& ManyOfOne() {
  static const auto* const all = [] {
    auto* found = new std::vector<std::pair<uint32_t, icu::UnicodeString>>;
    constexpr std::pair<uint32_t, uint32_t> kBlocks[] = {{0x80, 0x2000}, {0xfb00, 0xfb20}};
    for (const auto& [begin, end] : kBlocks) {
      for (uint32_t c = begin; c < end; ++c) {
        if (Folded(c).countChar32() > 1) found->emplace_back(c, Folded(c));
      }
    }
    return found;
  }();
  return *all;
}
bool HasFoldingToMany(uint32_t first, uint32_t last) {
  return std::ranges::any_of(
      ManyOfOne(), [&](const auto& one) { return one.first >= first && one.first <= last; });
}

// The pattern of a tokenizer.json, which Oniguruma would read, for PCRE2. What both read alike is
// copied, what differs is spelled out, and the rest is refused.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() && {
    while (at_ < pattern_.size()) {
      if (absl::Status status = Next(); !status.ok()) return status;
    }
    out_.append(open_.back(), ')');
    return std::move(out_);
  }

 private:
  // What a member of a class is.
  enum class Member : uint8_t { kNone, kCharacter, kRange, kSet, kClass };

  absl::Status Has(std::string_view what) const {
    return Unimplemented("the pattern ", Shown(pattern_), " has ", what);
  }
  absl::Status Ends(std::string_view where) const {
    return InvalidArgument("the pattern ", Shown(pattern_), " ends ", where);
  }
  bool Begins(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  absl::Status Next() {
    switch (const char c = pattern_[at_]) {
      case '\\':
        return Escape(/*in_class=*/false).status();
      case '[':
        return Class();
      case '(':
        return Group();
      case '{':
        return Interval();
      case '^':  // of a line
      case '$':
        out_ += c == '^' ? "(?m:^)" : "(?m:$)";
        if (constexpr std::string_view kRepeats = "*+?{";
            at_ + 1 < pattern_.size() && kRepeats.find(pattern_[at_ + 1]) != kRepeats.npos) {
          return Has("a repeated ^ or $");
        }
        break;
      case ')':
        out_.append(open_.back(), ')');
        if (open_.size() > 1) {
          open_.pop_back();
          folds_.pop_back();
        }
        out_ += ')';
        break;
      case '|':
      case '.':
      case '*':
      case '+':
      case '?':
        literal_.remove();
        out_ += c;
        break;
      default: {
        const Utf8Part part = ReadUtf8(pattern_, at_);
        out_ += pattern_.substr(at_, part.bytes);
        at_ += part.bytes;
        return Literal(part.code_point);
      }
    }
    ++at_;
    return absl::OkStatus();
  }

  // With option i, Oniguruma takes for each other a character and what it folds to, also if these
  // are many, and PCRE2 does not.
  absl::Status FoldsToMany() const {
    return Has("characters that are together another case of one, with option i");
  }
  absl::Status Literal(uint32_t c) {
    if (!folds_.back()) literal_.remove();
    if (!folds_.back()) return absl::OkStatus();
    if (HasFoldingToMany(c, c)) return FoldsToMany();
    literal_ += Folded(c);
    const bool many = std::ranges::any_of(
        ManyOfOne(), [&](const auto& one) { return literal_.endsWith(one.second); });
    return many ? FoldsToMany() : absl::OkStatus();
  }

  absl::Status Group() {
    ++at_;
    if (Begins("*")) return Has("(*");
    if (Begins("?")) {
      ++at_;
      if (Begins("#")) return Comment();
      constexpr std::string_view kSame[] = {":", "=", "!", ">", "<=", "<!"};
      const auto same = std::ranges::find_if(kSame, [&](std::string_view m) { return Begins(m); });
      if (same == std::end(kSame)) return Options();
      out_ += Cat("(?", *same);
      at_ += same->size();
    } else {
      out_ += '(';
    }
    open_.push_back(0);
    folds_.push_back(folds_.back());
    return absl::OkStatus();
  }

  absl::Status Comment() {
    for (; !Begins(")"); ++at_) {
      if (Begins("\\")) ++at_;
      if (at_ >= pattern_.size()) return Ends("in a comment");
    }
    ++at_;
    out_ += "(?#)";
    return absl::OkStatus();
  }

  // Options for a group, or for the rest of the group around, with all its alternatives.
  absl::Status Options() {
    std::string options;
    const size_t begin = at_;
    for (; at_ < pattern_.size() && !Begins(":") && !Begins(")"); ++at_) {
      // What i means is the same, and so is - in front of options that are turned off. With m, a
      // dot matches all characters.
      const char c = pattern_[at_];
      if ((c != 'i' && c != 'm' && (c != '-' || options.find('-') != options.npos)) ||
          options.size() == kMostOptions) {
        const size_t shown = absl::ascii_isprint(static_cast<unsigned char>(c)) ? 1 : 0;
        return Has(Cat("(?", pattern_.substr(begin, at_ + shown - begin)));
      }
      options += c == 'm' ? 's' : c;
    }
    if (at_ == pattern_.size()) return Ends("in a group");
    out_ += Cat("(?", options, ":");
    const size_t last = options.rfind('i'), off = options.find('-');
    const bool folds = last == options.npos ? folds_.back() : off == options.npos || last < off;
    if (Begins(":")) {
      open_.push_back(0);
      folds_.push_back(folds);
    } else {
      ++open_.back();
      folds_.back() = folds;
    }
    ++at_;
    return absl::OkStatus();
  }

  // How often something repeats; if it is nothing of the kind, { is a character.
  absl::Status Interval() {
    const auto digits = [&](size_t at) {
      return std::min(pattern_.find_first_not_of("0123456789", at), pattern_.size());
    };
    const size_t least = digits(at_ + 1);
    const bool fixed = least == pattern_.size() || pattern_[least] != ',';
    const size_t end = fixed ? least : digits(least + 1);
    if (end == pattern_.size() || pattern_[end] != '}' || end == at_ + 1 ||
        (least == at_ + 1 && end == least + 1)) {
      out_ += "\\{";
      ++at_;
      return absl::OkStatus();
    }
    out_ += least == at_ + 1 ? "{0" : "{";
    out_ += pattern_.substr(at_ + 1, end - at_);
    at_ = end + 1;
    // More repetition in Oniguruma, another kind of the same in PCRE2.
    if (Begins("+")) return Has("+ behind an interval");
    if (fixed && Begins("?")) return Has("? behind a number of times");
    return absl::OkStatus();
  }

  absl::StatusOr<Member> Escape(bool in_class) {
    constexpr std::string_view kSame = "dDrntf";  // with the same meaning everywhere
    if (++at_ == pattern_.size()) return Ends("with a backslash");
    const char c = pattern_[at_++];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter) literal_.remove();
    member_ = letter ? 0 : static_cast<uint8_t>(c);
    if (c == 's') {
      out_ += in_class ? WS : "[" WS "]";
      return Member::kSet;
    }
    if (c == 'S' && !in_class) {
      out_ += "[^" WS "]";
      return Member::kSet;
    }
    if ((c == 'p' || c == 'P') && in_class && folds_.back()) {
      return Has("a property in a class, with option i");
    }
    if (c == 'p' || c == 'P') return Property(c);
    if ((letter && kSame.find(c) == kSame.npos) || (c >= '0' && c <= '9')) {
      return Has(Cat("\\", std::string_view(&c, 1)));
    }
    out_ += '\\';
    out_ += c;
    if (c == 'd' || c == 'D') return Member::kSet;
    if (static_cast<uint8_t>(c) >= 0x80 && folds_.back()) return Has("a backslash, with option i");
    if (in_class || letter) return Member::kCharacter;
    if (absl::Status status = Literal(static_cast<uint8_t>(c)); !status.ok()) return status;
    return Member::kCharacter;
  }

  // \p or \P, of which the name follows.
  absl::StatusOr<Member> Property(char c) {
    const size_t end = pattern_.find('}', at_);
    if (!Begins("{") || end == pattern_.npos) return Has(Cat("\\", std::string_view(&c, 1)));
    const bool inverted = pattern_[at_ + 1] == '^';
    const size_t begin = at_ + 1 + (inverted ? 1 : 0);
    const std::string_view name = pattern_.substr(begin, end - begin);
    const bool script = std::ranges::find(kScripts, name) != std::end(kScripts);
    if (!script && std::ranges::find(kCategories, name) == std::end(kCategories)) {
      return Has(Cat("\\", std::string_view(&c, 1), "{",
                     absl::CHexEscape(ToAbsl(name.substr(0, 32))), "}"));
    }
    out_ +=
        Cat("\\", std::string_view(&c, 1), inverted ? "{^" : "{", script ? "sc:" : "", name, "}");
    at_ = end + 1;
    return Member::kSet;
  }

  absl::Status Class() {
    literal_.remove();
    out_ += '[';
    ++at_;
    if (Begins("^")) {
      out_ += '^';
      ++at_;
    }
    // The first ] is a character.
    Member last = Member::kNone;
    if (Begins("]")) {
      out_ += "\\]";
      ++at_;
      last = Member::kCharacter;
    }
    const absl::Status status = Members(last);
    out_ += ']';
    return status;
  }

  // Up to the end of a class. A class in a class stands for its members.
  absl::Status Members(Member last) {
    for (; !Begins("]");) {
      if (at_ == pattern_.size()) return Ends("in a class");
      if (Begins("&&")) return Has("an intersection of classes");
      if (Begins("[")) {
        ++at_;
        if (Begins(":")) return Has("[: in a class");
        if (Begins("^")) return Has("a negated class in a class");
        if (Begins("]")) return Has("[] in a class");
        if (++depth_ > kMostDepth) return Has("too many classes in each other");
        if (absl::Status status = Members(Member::kNone); !status.ok()) return status;
        --depth_;
        last = Member::kClass;
        continue;
      }
      const bool range = Begins("-") && !pattern_.substr(at_ + 1).starts_with("]");
      if (range && last == Member::kSet) return Has("a range that begins with a set");
      if (range && last == Member::kCharacter) {
        out_ += '-';
        ++at_;
        const uint32_t begin = member_;
        const auto end = Begins("[") || Begins("&&") ? Member::kSet : OneMember();
        if (!end.ok()) return end.status();
        if (*end == Member::kSet) return Has("a range that ends with a set");
        if (folds_.back() && HasFoldingToMany(begin, member_)) return FoldsToMany();
        last = Member::kRange;
        continue;
      }
      const auto member = OneMember();
      if (!member.ok()) return member.status();
      last = *member;
    }
    ++at_;
    return absl::OkStatus();
  }

  absl::StatusOr<Member> OneMember() {
    if (at_ == pattern_.size()) return Ends("in a class");
    if (Begins("\\")) return Escape(/*in_class=*/true);
    if (absl::ascii_ispunct(static_cast<unsigned char>(pattern_[at_]))) out_ += '\\';
    const Utf8Part part = ReadUtf8(pattern_, at_);
    member_ = part.code_point;
    out_ += pattern_.substr(at_, part.bytes);
    at_ += part.bytes;
    if (folds_.back() && HasFoldingToMany(member_, member_)) return FoldsToMany();
    return Member::kCharacter;
  }

  static constexpr int kMostDepth = 8;
  static constexpr size_t kMostOptions = 8;

  const std::string_view pattern_;
  size_t at_ = 0;  // of pattern_
  int depth_ = 0;  // of classes in a class
  // For the whole and for each open group: the groups in it that end with it.
  std::vector<size_t> open_ = {0};
  std::vector<bool> folds_ = {false};  // of the same: option i is on
  icu::UnicodeString literal_;         // the characters before at_, folded, if option i is on
  uint32_t member_ = 0;                // the last character of a class
  std::string out_;
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeStack {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

// The calling thread's stack for JIT code; null, which stands for 32 KiB of its own: no memory.
pcre2_jit_stack* StackOfThread(void* /*unused*/) {
  constexpr size_t kFirstBytes = 32 << 10;
  thread_local const std::unique_ptr<pcre2_jit_stack, FreeStack> stack(
      pcre2_jit_stack_create(kFirstBytes, kMostStackBytes, nullptr));
  return stack.get();
}

std::unique_ptr<pcre2_match_context, FreeMatchContext> MakeLimits(uint32_t steps) {
  std::unique_ptr<pcre2_match_context, FreeMatchContext> limits(
      pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(limits.get(), steps);
  pcre2_set_heap_limit(limits.get(), kMostHeapKiB);
  pcre2_jit_stack_assign(limits.get(), StackOfThread, nullptr);
  return limits;
}

}  // namespace

int64_t ThreadNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct Pattern::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
  bool trusted = false;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> limits = MakeLimits(kMatchLimit);
};

// The matches of one text. It reads the time only where there are many, or where one takes long.
class Pattern::Search {
 public:
  Search(const Compiled& regex, std::string_view text)
      : regex_(regex), text_(text), match_(pcre2_match_data_create(1, nullptr)) {}

  // The first match at or behind `at`; it is empty, and at the end of the text, if there is none.
  absl::StatusOr<std::pair<size_t, size_t>> Next(size_t at) {
    if (!regex_.trusted && ++matches_ % kMatchesPerCheck == 0 && TookTooLong()) return TooLong(at);
    int matched = PCRE2_ERROR_NOMATCH;
    for (size_t from = at, end = 0; matched == PCRE2_ERROR_NOMATCH && from < text_.size();
         from = end) {
      end = regex_.trusted ? text_.size() : WindowEnd(from);
      matched = Match(from, end, end < text_.size() ? PCRE2_PARTIAL_HARD : 0, regex_.limits.get());
      if (matched == PCRE2_ERROR_NOMATCH || matched > 0 || regex_.trusted) continue;
      for (uint32_t steps = kFirstMatchLimit; steps <= kMatchLimit; steps *= kMoreSteps) {
        if (TookTooLong()) return TooLong(from);
        matched = Match(from, text_.size(), PCRE2_NO_JIT, MakeLimits(steps).get());
        if (matched != PCRE2_ERROR_MATCHLIMIT) break;
      }
      end = text_.size();
    }
    if (matched == PCRE2_ERROR_NOMATCH) return std::pair(text_.size(), text_.size());
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_.get());
    if (matched < 0 || range[1] <= at) {
      return ResourceExhausted("splitting the text stopped at byte ", at, " (PCRE2 ", matched, ")");
    }
    return std::pair(range[0], range[1]);
  }

 private:
  // The end of a window, between two characters.
  size_t WindowEnd(size_t from) const {
    if (text_.size() - from <= kWindow) return text_.size();
    size_t end = from + kWindow;
    while ((static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) --end;
    return end;
  }

  int Match(size_t from, size_t end, uint32_t options, pcre2_match_context* limits) {
    return pcre2_match(regex_.code.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()), end, from,
                       PCRE2_NO_UTF_CHECK | options, match_.get(), limits);
  }

  // The time begins with the first question.
  bool TookTooLong() {
    const int64_t now = ThreadNanoseconds();
    if (end_ns_ == 0) {
      end_ns_ = now + kNanosecondsOfText + kNanosecondsPerByte * static_cast<int64_t>(text_.size());
    }
    return now > end_ns_;
  }

  absl::Status TooLong(size_t at) const {
    return ResourceExhausted("splitting the text stopped at byte ", at, " of ", text_.size(),
                             ": the pattern takes more than ", kNanosecondsPerByte / 1000,
                             " us of processor time for a byte");
  }

  const Compiled& regex_;
  const std::string_view text_;
  std::unique_ptr<pcre2_match_data, FreeMatchData> match_;
  int64_t end_ns_ = 0;  // 0: not asked yet
  uint32_t matches_ = 0;
};

Pattern::Pattern() = default;
Pattern::Pattern(Pattern&&) = default;
Pattern& Pattern::operator=(Pattern&&) = default;
Pattern::~Pattern() = default;

absl::StatusOr<Pattern> Pattern::Compile(std::string_view expression, std::string_view source,
                                         bool trusted) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  auto regex = std::make_unique<Compiled>();
  regex->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()),
                                  expression.size(), PCRE2_UTF | PCRE2_UCP, &error, &error_offset,
                                  nullptr));
  if (regex->code == nullptr) {
    return InvalidArgument("the pattern ", Shown(source), " is no regular expression (PCRE2 ",
                           error, " at ", error_offset, ")");
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(regex->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return Unimplemented("the pattern ", Shown(source), " may match the empty text");
  }
  // Without JIT support PCRE2 uses its interpreter, at a third of the speed.
  pcre2_jit_compile(regex->code.get(), PCRE2_JIT_COMPLETE | (trusted ? 0 : PCRE2_JIT_PARTIAL_HARD));
  regex->trusted = trusted;
  Pattern pattern;
  pattern.regex_ = std::move(regex);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::Pcre2(std::string_view expression) {
  return Compile(expression, expression, /*trusted=*/true);
}

absl::StatusOr<Pattern> Pattern::Regex(std::string_view expression) {
  const auto translated = Translator(expression).Run();
  if (!translated.ok()) return translated.status();
  return Compile(*translated, expression, /*trusted=*/false);
}

Pattern Pattern::Text(std::string text) {
  Pattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

absl::StatusOr<bool> Pattern::Split(std::string_view text, Part part) const {
  std::optional<Search> search;
  if (regex_ != nullptr) search.emplace(*regex_, text);
  for (size_t at = 0; at < text.size();) {
    size_t begin = text.size(), end = begin;
    if (search.has_value()) {
      const auto match = search->Next(at);
      if (!match.ok()) return match.status();
      begin = match->first, end = match->second;
    } else if (const size_t found = text_.empty() ? text.npos : text.find(text_, at);
               found != text.npos) {
      begin = found, end = found + text_.size();
    }
    if (begin > at) {
      const auto more = part(text.substr(at, begin - at), false);
      if (!more.ok() || !*more) return more;
    }
    if (end > begin) {
      const auto more = part(text.substr(begin, end - begin), true);
      if (!more.ok() || !*more) return more;
    }
    at = end;
  }
  return true;
}

}  // namespace flotilla::model
