// Tests which regular expressions are read, and how they are written for XGrammar.
#include "router/core/constraint/regex.h"

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::router {
namespace {

std::string WrittenRegex(std::string_view pattern, RegexUse use = RegexUse::kAnswer) {
  const absl::StatusOr<RegexNode> node = ParseRegex(pattern, use);
  return node.ok() ? WriteRegex(*node) : std::string(node.status().message());
}

TEST(Regex, IsWrittenInFewForms) {
  const std::pair<std::string, std::string> cases[] = {
      {"abc", "abc"},
      {"^abc$", "abc"},
      {"^(?:a|b)$", "a|b"},
      {"(?<name>a)(?P<b>c)", "ac"},
      {"a*?b+?c??", "a*b+c?"},
      {"x{2}y{2,}z{2,3}w{0,1}", "x{2}y{2,}z{2,3}w?"},
      {"(ab){2}", "(?:ab){2}"},
      {"(a|)b", "a?b"},
      {"a{0}b", "b"},
      {R"(\d\w\s)", R"([0-9][0-9A-Z\u005fa-z][\u0009-\u000d\u0020])"},
      {R"(\.\*\/\-\_ \x41\u00e9)", R"(\.\*/-_ A\u00e9)"},
      {R"([a-c\d_-])", R"([\u002d0-9\u005fa-c])"},
      // In front, the escape of '^' would complement the class.
      {R"([\^_])", R"([\u005f^])"},
      {R"([\^a])", R"([a\u005e])"},
      {R"([^b])",
       "(?:[\\u0000-ac-\\u07ff]|[\\u0800-\\ud7ff\\ue000-\\uffff]|"
       "[\\u{10000}-\\u{10ffff}])"},
      // Whatever a dialect takes for a digit is no \D.
      {R"([^\W])", R"([0-9A-Z\u005fa-z])"},
      {"a{8}", "a{8}"},
      {"[^\\x00-\u07fe]{9}", "[\\u07ff-\\ud7ff\\ue000-\\u{10ffff}]{9}\u00e9{0}"},
  };
  for (const auto& [pattern, written] : cases) EXPECT_EQ(WrittenRegex(pattern), written) << pattern;
  EXPECT_EQ(WrittenRegex(R"(\D)").find("\\u0660"), std::string::npos);
  EXPECT_NE(WrittenRegex(R"(\D)").find("\\u065f"), std::string::npos);
}

TEST(Regex, InAJsonStringIsFoundAnywhere) {
  const std::string any =
      R"((?:[\u0020-\u0021\u0023-\u005b\u005d-\u07ff]|[\u0800-\ud7ff\ue000-\uffff]|)"
      R"([\u{10000}-\u{10ffff}])*)";
  const auto json = [](std::string_view pattern) {
    return WrittenRegex(pattern, RegexUse::kJsonString);
  };
  EXPECT_EQ(json("^a$"), "a");
  EXPECT_EQ(json("a"), any + "a" + any);
  EXPECT_EQ(json("^a"), "a" + any);
  EXPECT_EQ(json("^a|b$"), "a" + any + "|" + any + "b");
  EXPECT_EQ(json(R"(^["\n\\x]$)"), "x");
  EXPECT_EQ(json(R"(^"$)"), "matches nothing without a character that JSON escapes");
}

TEST(Regex, RefusesByName) {
  const std::pair<std::string, std::string> cases[] = {
      {"a(?=b)", "lookahead"},
      {"(?!a)", "lookahead"},
      {"(?<=a)b", "lookbehind"},
      {"(?<!a)b", "lookbehind"},
      {"(?i)a", "flag"},
      {"(?>a)", "flag"},
      {R"(\bx)", "word boundary"},
      {R"(\B)", "word boundary"},
      {R"((a)\1)", "reference to a group"},
      {R"(\k<a>)", "reference to a group"},
      {R"(\p{L})", "Unicode property"},
      {R"(\Z)", R"(escape '\Z')"},
      {R"(\ud800)", "surrogate"},
      {R"(\u12)", "hexadecimal"},
      {"a^b", "anchor '^'"},
      {"(^a)", "anchor '^'"},
      {"a$b", "anchor '$'"},
      {"a++", "possessive"},
      {"a**", "without a group"},
      {"*a", "repetition of nothing"},
      {"a{2,1}", "begins no repetition"},
      {"a{,2}", "begins no repetition"},
      {"a{x}", "begins no repetition"},
      {"a{99999999999}", "repeats more than"},
      {"(?:a{60000}){60000}", "repetitions of more than"},
      {"[]", "empty class"},
      {"[^]", "empty class"},
      {"[a", "without its ']'"},
      {"[z-a]", "range of characters"},
      {R"([a-\d])", "range of characters"},
      {"[[:alpha:]]", "POSIX"},
      {"(a", "without its ')'"},
      {"a)", "without its '('"},
      {"a\\", "backslash"},
      {"\xff", "UTF-8"},
      {std::string(100, '(') + std::string(100, ')'), "nested deeper"},
      {std::string(kMaxRegexBytes + 1, 'a'), "bytes long"},
  };
  for (const auto& [pattern, what] : cases) {
    const std::string message = WrittenRegex(pattern);
    EXPECT_NE(message.find(what), std::string::npos) << pattern << ": " << message;
  }
}

TEST(Regex, AllButWords) {
  const std::string written = WriteRegex(AllBut({U"ab", U"c"}));
  // Nothing, "a" and longer texts are others; so are texts that begin in another way.
  EXPECT_TRUE(written.starts_with("(?:a(?:b["));
  EXPECT_TRUE(written.ends_with(")?\u00e9{0}"));
  // A key with a quote is written with an escape, which no other key has.
  EXPECT_EQ(WriteRegex(AllBut({U"\""})), WriteRegex(AllBut({})));
}

TEST(Regex, ALargeClassTakesLittleTime) {
  std::string pattern = "[";
  for (char32_t c = 0x800; pattern.size() < kMaxRegexBytes - 4; c += 2) {
    for (const int bits : {12, 6, 0}) {
      pattern +=
          static_cast<char>((bits == 12 ? 0xe0 : 0x80) | (c >> bits & (bits == 12 ? 15 : 63)));
    }
  }
  const std::clock_t begin = std::clock();
  const auto node = ParseRegex(pattern + "]", RegexUse::kAnswer);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.5);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->set.ranges().size(), pattern.size() / 3);
}

TEST(Regex, KnowsItsLengths) {
  const auto lengths = [](std::string_view pattern) {
    return LengthsOf(*ParseRegex(pattern, RegexUse::kAnswer));
  };
  EXPECT_EQ(lengths("a(b|cde){2,3}f?").min, 3u);
  EXPECT_EQ(lengths("a(b|cde){2,3}f?").max, 11u);
  EXPECT_EQ(lengths("a*").max, std::nullopt);
}

}  // namespace
}  // namespace flotilla::router
