#include "model/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "common/types/text.h"

namespace flotilla::model {
namespace {

#define WS FLOTILLA_WHITE_SPACE

// Backtracking steps for one piece. Our patterns need a few per character, so
// this serves pieces of megabytes and still ends.
constexpr uint32_t kMatchLimit = 50'000'000;

// What one match may take to remember where it may go on: JIT code has a stack, the interpreter the
// heap. A group that repeats takes about 32 bytes for each time.
constexpr size_t kMostStackBytes = 8 << 20;
constexpr uint32_t kMostHeapKiB = 64 << 10;

std::string Shown(std::string_view text) {
  return Cat("'", absl::CHexEscape(ToAbsl(text.substr(0, 80))), "'");
}

// The pattern of a tokenizer.json, which Oniguruma or Rust's regex would read, for PCRE2. \s and \S
// are spelled out, because PCRE2's differ; what else differs is refused.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() && {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      absl::Status status;
      if (c == '\\') {
        status = Escape(/*in_class=*/false).status();
      } else if (c == '[') {
        status = Class();
      } else {
        out_ += c;
        ++at_;
      }
      if (!status.ok()) return status;
    }
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

  absl::StatusOr<Member> Escape(bool in_class) {
    constexpr std::string_view kSame = "dDrntf";  // with the same meaning everywhere
    if (++at_ == pattern_.size()) return Ends("with a backslash");
    const char c = pattern_[at_++];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == 's') {
      out_ += in_class ? WS : "[" WS "]";
      return Member::kSet;
    }
    if (c == 'S' && !in_class) {
      out_ += "[^" WS "]";
      return Member::kSet;
    }
    if (c == 'p' || c == 'P') return Property(c);
    if ((letter && kSame.find(c) == kSame.npos) || (c >= '0' && c <= '9')) {
      return Has(Cat("\\", std::string_view(&c, 1)));
    }
    out_ += '\\';
    out_ += c;
    return c == 'd' || c == 'D' ? Member::kSet : Member::kCharacter;
  }

  // \p or \P, of which the name follows.
  absl::StatusOr<Member> Property(char c) {
    out_ += '\\';
    out_ += c;
    const size_t end = pattern_.find('}', at_);
    if (Begins("{") && end != pattern_.npos) {
      out_ += pattern_.substr(at_, end + 1 - at_);
      at_ = end + 1;
    }
    return Member::kSet;
  }

  absl::Status Class() {
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
        const auto end = Begins("[") || Begins("&&") ? Member::kSet : OneMember();
        if (!end.ok()) return end.status();
        if (*end == Member::kSet) return Has("a range that ends with a set");
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
    do {
      out_ += pattern_[at_++];
    } while (at_ < pattern_.size() && (static_cast<uint8_t>(pattern_[at_]) & 0xc0) == 0x80);
    return Member::kCharacter;
  }

  static constexpr int kMostDepth = 8;

  const std::string_view pattern_;
  size_t at_ = 0;  // of pattern_
  int depth_ = 0;  // of classes in a class
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

}  // namespace

struct Pattern::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> limits;
};

Pattern::Pattern() = default;
Pattern::Pattern(Pattern&&) = default;
Pattern& Pattern::operator=(Pattern&&) = default;
Pattern::~Pattern() = default;

absl::StatusOr<Pattern> Pattern::Pcre2(std::string_view expression) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  auto regex = std::make_unique<Compiled>();
  regex->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()),
                                  expression.size(), PCRE2_UTF | PCRE2_UCP, &error, &error_offset,
                                  nullptr));
  if (regex->code == nullptr) {
    return InvalidArgument("the pattern ", Shown(expression), " is no regular expression (PCRE2 ",
                           error, " at ", error_offset, ")");
  }
  // Without JIT support PCRE2 uses its interpreter, at a third of the speed.
  pcre2_jit_compile(regex->code.get(), PCRE2_JIT_COMPLETE);
  regex->limits.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(regex->limits.get(), kMatchLimit);
  pcre2_set_heap_limit(regex->limits.get(), kMostHeapKiB);
  pcre2_jit_stack_assign(regex->limits.get(), StackOfThread, nullptr);
  Pattern pattern;
  pattern.regex_ = std::move(regex);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::Regex(std::string_view expression) {
  const auto translated = Translator(expression).Run();
  if (!translated.ok()) return translated.status();
  return Pcre2(*translated);
}

Pattern Pattern::Text(std::string text) {
  Pattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

absl::StatusOr<bool> Pattern::Split(std::string_view text, Part part) const {
  std::unique_ptr<pcre2_match_data, FreeMatchData> match;
  if (regex_ != nullptr) match.reset(pcre2_match_data_create(1, nullptr));
  for (size_t at = 0; at < text.size();) {
    size_t begin = text.size(), end = begin;
    if (regex_ != nullptr) {
      const int matched =
          pcre2_match(regex_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                      at, PCRE2_NO_UTF_CHECK, match.get(), regex_->limits.get());
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
      if (matched != PCRE2_ERROR_NOMATCH) {
        if (matched < 0 || range[1] <= at) {
          return ResourceExhausted("splitting the text stopped at byte ", at, " (PCRE2 ", matched,
                                   ")");
        }
        begin = range[0], end = range[1];
      }
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
