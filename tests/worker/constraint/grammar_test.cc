// Masks of grammars of each kind, against what the tokens' bytes and enumerated languages allow.
#include "worker/constraint/grammar.h"

#include <malloc.h>

#include <algorithm>
#include <climits>
#include <random>
#include <set>

#include "tests/worker/constraint/small_vocabulary.h"
#include "worker/constraint/json_space.h"

namespace flotilla::worker {
namespace {

using Kind = Constraint::Kind;

class GrammarTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Grammar> Compile(Kind kind, const std::string& text) {
    const absl::StatusOr<std::string> compiled =
        CompileConstraint({kind, text}, *vocabulary_, 1 << 24);
    EXPECT_TRUE(compiled.ok()) << compiled.status() << " of " << text;
    if (!compiled.ok()) return nullptr;
    const auto grammar = Grammar::Read(*compiled, {kind, text}, vocabulary_);
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return grammar.ok() ? *grammar : nullptr;
  }
  absl::Status Refusal(Kind kind, const std::string& text) {
    return CompileConstraint({kind, text}, *vocabulary_, 1 << 24).status();
  }
  std::vector<std::uint32_t> Mask(GrammarMatcher& matcher) {
    std::vector<std::uint32_t> mask(vocabulary_->mask_words(), ~0u);
    matcher.Fill(absl::MakeSpan(mask));
    return mask;
  }
  // The tokens whose bits are set.
  std::vector<TokenId> Allowed(GrammarMatcher& matcher) {
    const std::vector<std::uint32_t> mask = Mask(matcher);
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < mask.size() * 32; ++i) {
      if (Has(mask, static_cast<TokenId>(i))) tokens.push_back(static_cast<TokenId>(i));
    }
    return tokens;
  }
  // Walks through a grammar by random allowed tokens. At each place each token must be allowed if,
  // and only if, its bytes are accepted one by one. Returns the text if it ends within `most`
  // tokens.
  std::string WalkAndCheck(const std::shared_ptr<const Grammar>& grammar, std::mt19937& random,
                           int most) {
    GrammarMatcher matcher(grammar);
    std::string text;
    for (int step = 0; step < most; ++step) {
      const std::vector<std::uint32_t> mask = Mask(matcher);
      std::vector<TokenId> allowed;
      for (std::size_t i = 0; i < words_.tokens.size(); ++i) {
        const auto token = static_cast<TokenId>(i);
        GrammarMatcher other = matcher.Fork();
        bool follows = true;
        for (const TokenId byte : Bytes(words_.tokens[i])) follows = follows && other.Accept(byte);
        if (words_.tokens[i].empty()) follows = other.Accept(token);
        EXPECT_EQ(Has(mask, token), follows)
            << "token " << token << " '" << words_.tokens[i] << "' after '" << text << "'";
        if (Has(mask, token)) allowed.push_back(token);
      }
      if (allowed.empty()) break;
      const TokenId next = allowed[random() % allowed.size()];
      EXPECT_TRUE(matcher.Accept(next));
      text += words_.tokens[next];
      if (words_.stops[0] == next) {
        EXPECT_EQ(Allowed(matcher), words_.stops);
        return text;
      }
    }
    return "";
  }

  void AcceptAll(GrammarMatcher& matcher, const std::string& text) {
    for (const TokenId byte : Bytes(text)) ASSERT_TRUE(matcher.Accept(byte)) << text;
  }
  // How many of the allowed tokens begin with white space.
  int CountSpaces(GrammarMatcher& matcher) {
    int count = 0;
    for (const TokenId token : Allowed(matcher)) {
      count += !words_.tokens[token].empty() && IsJsonSpace(words_.tokens[token][0]);
    }
    return count;
  }
  // Walks through a grammar from `begin` on, and writes white space wherever no text may come.
  void WalkInSpace(const std::shared_ptr<const Grammar>& grammar, const std::string& begin,
                   std::mt19937& random) {
    GrammarMatcher matcher(grammar);
    AcceptAll(matcher, begin);
    int spaces = 0;  // at the end
    for (int step = 0; step < 500; ++step) {
      const std::vector<TokenId> allowed = Allowed(matcher);
      const bool is_text = std::ranges::count(allowed, 'Q') + std::ranges::count(allowed, 'z') == 2;
      std::vector<TokenId> nexts[2];  // the second: white space
      for (const TokenId token : allowed) {
        const std::string& bytes = words_.tokens[token];
        nexts[!bytes.empty() && IsJsonSpace(bytes[0])].push_back(token);
      }
      const bool writes_space = !is_text && !nexts[1].empty();
      if (!writes_space && nexts[0].empty()) FAIL() << "nothing but white space may come";
      std::vector<TokenId> next = {nexts[writes_space][random() % nexts[writes_space].size()]};
      for (const char* end : {"\"", "</parameter>", "</arg_value>"}) {
        GrammarMatcher fork = matcher.Fork();
        if (!is_text || random() % 2 == 0) break;
        if (std::ranges::all_of(Bytes(end), [&](TokenId byte) { return fork.Accept(byte); })) {
          next = Bytes(end);
        }
      }
      for (const TokenId token : next) {
        if (words_.stops[0] == token) return;
        ASSERT_TRUE(matcher.Accept(token));
        for (const char byte : words_.tokens[token]) spaces = IsJsonSpace(byte) ? spaces + 1 : 0;
      }
      ASSERT_LE(spaces, is_text ? INT_MAX : kEnoughJsonSpace + 1);  // no token has more than two
    }
  }

  const ConstraintVocabulary words_ = SmallVocabulary();
  const std::shared_ptr<const GrammarVocabulary> vocabulary_ = *GrammarVocabulary::Create(words_);
};

TEST_F(GrammarTest, AllowsWhatBytesAllow) {
  std::mt19937 random(7);
  const std::pair<Kind, const char*> grammars[] = {
      {Kind::kJsonSchema, R"({"type":"object","properties":{"name":{"type":"string"},)"
                          R"("a":{"type":["integer","null"]}},"required":["name"]})"},
      {Kind::kJsonSchema, R"({"type":"array","items":{"enum":[true,false,null,1.5,"é€"]}})"},
      {Kind::kJsonSchema, "{}"},
      {Kind::kJsonSchema, R"({"type":"array","items":{"$ref":"#"}})"},
      {Kind::kRegex, "(ab|ba|c)+[^x]{0,3}"},
      {Kind::kRegex, "(a|b)*abb"},
      {Kind::kGrammar, "root ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= [a-c]+ | root"},
      {Kind::kGrammar, "root ::= root \"a\" | \"b\" | root root \"c\""},
      {Kind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],"tags":[)"
       R"({"type":"tag","begin":"<f>","content":{"type":"regex","pattern":"[ab]+"},"end":"</f>"}]}})"},
  };
  for (const auto& [kind, text] : grammars) {
    const std::shared_ptr<const Grammar> grammar = Compile(kind, text);
    ASSERT_NE(grammar, nullptr);
    for (int i = 0; i < 4; ++i) WalkAndCheck(grammar, random, 30);
    if (HasFailure()) FAIL() << text;
  }
}

// Between parts of JSON, until other text comes. Strings, and what is no JSON, have no bound.
TEST_F(GrammarTest, WhiteSpaceOfJsonHasAnEnd) {
  const TokenId space = Bytes(" ")[0];
  GrammarMatcher json(Compile(Kind::kJsonSchema, R"({"type":"object"})"));
  AcceptAll(json, "{" + std::string(kEnoughJsonSpace - 1, ' '));
  EXPECT_GT(CountSpaces(json), 0);
  GrammarMatcher fork = json.Fork();
  AcceptAll(json, "\n");
  EXPECT_EQ(CountSpaces(json), 0);
  EXPECT_FALSE(json.Accept(space));
  EXPECT_GT(Allowed(json).size(), 0u);
  json.Rollback(1);
  EXPECT_GT(CountSpaces(json), 0);
  AcceptAll(fork, "\t\"" + std::string(2 * kEnoughJsonSpace, ' ') + "\\\"  \"");
  EXPECT_GT(CountSpaces(fork), 0);
  AcceptAll(fork, " : " + std::string(kEnoughJsonSpace - 1, ' '));
  EXPECT_EQ(CountSpaces(fork), 0);
  AcceptAll(fork, "1}");
  EXPECT_EQ(Allowed(fork), words_.stops);

  GrammarMatcher words(Compile(Kind::kRegex, "[ \\n\\r\\t]+b"));
  AcceptAll(words, std::string(3 * kEnoughJsonSpace, ' ') + "b");
  GrammarMatcher string(Compile(Kind::kJsonSchema, R"({"type":"string","pattern":"^ *a$"})"));
  AcceptAll(string, '"' + std::string(3 * kEnoughJsonSpace, ' ') + "a\"");
}

// Thoughts have white space as they like, also where they look like JSON.
TEST_F(GrammarTest, WhiteSpaceOfJsonInTagsHasAnEnd) {
  const auto tag = [](const std::string& begin, const std::string& content,
                      const std::string& end) {
    return R"({"type":"tag","begin":")" + begin + R"(","content":)" + content + R"(,"end":")" +
           end + "\"}";
  };
  const auto grammar = [this](const std::string& format) {
    return Compile(Kind::kStructuralTag, R"({"type":"structural_tag","format":)" + format + "}");
  };
  const std::string any = R"({"type":"any_text"})", much(2 * kEnoughJsonSpace, ' '),
                    schema = R"({"type":"json_schema","json_schema":{"type":"object"}})";
  const std::string formats[] = {
      R"({"type":"sequence","elements":[)" + tag("<t>", any, "</t>") + "," + schema + "]}",
      R"({"type":"sequence","elements":[{"type":"optional","content":)" + tag("<t>", any, "</t>") +
          "}," + tag("", schema, "</f>") + "]}",
      R"({"type":"triggered_tags","triggers":["</t>"],"tags":[)" + tag("</t>", schema, "</f>") +
          "]}"};
  for (const std::string& format : formats) {
    SCOPED_TRACE(format);
    GrammarMatcher matcher(grammar(format));
    AcceptAll(matcher, "<t>{ \"a\" :" + much);
    EXPECT_GT(CountSpaces(matcher), 0);
    AcceptAll(matcher, "}</t>{");
    // Speculation goes on from here, and goes back.
    for (int i = 0; i < 2; ++i) {
      AcceptAll(matcher, std::string(kEnoughJsonSpace - 1, '\t'));
      EXPECT_GT(CountSpaces(matcher), 0);
      GrammarMatcher fork = matcher.Fork();
      AcceptAll(fork, "\r");
      EXPECT_EQ(CountSpaces(fork), 0);
      EXPECT_FALSE(fork.Accept(Bytes("\n")[0]));
      AcceptAll(fork, "\"" + much);
      EXPECT_GT(CountSpaces(fork), 0);
      AcceptAll(fork, "\":1" + std::string(kEnoughJsonSpace, '\n'));
      EXPECT_EQ(CountSpaces(fork), 0);
      AcceptAll(fork, "}");
      matcher.Rollback(kEnoughJsonSpace - 1);
    }
  }

  // The white space between parameters in XML is the same, and a text in them is none.
  GrammarMatcher xml(grammar(tag("<f>",
                                 R"({"type":"json_schema","style":"qwen_xml","json_schema":{)"
                                 R"("type":"object","properties":{"s":{"type":"string"},)"
                                 R"("n":{"type":"integer"}},"required":["s","n"]}})",
                                 "</f>")));
  AcceptAll(xml, "<f>" + std::string(kEnoughJsonSpace, '\n'));
  EXPECT_EQ(CountSpaces(xml), 0);
  AcceptAll(xml, "<parameter=s>" + much);
  EXPECT_GT(CountSpaces(xml), 0);
  AcceptAll(xml, "</parameter>" + std::string(kEnoughJsonSpace, ' '));
  EXPECT_EQ(CountSpaces(xml), 0);
  AcceptAll(xml, "<parameter=n>" + std::string(kEnoughJsonSpace, ' '));
  EXPECT_EQ(CountSpaces(xml), 0);
  AcceptAll(xml, "5" + std::string(kEnoughJsonSpace, ' '));
  EXPECT_EQ(CountSpaces(xml), 0);
  AcceptAll(xml, "</parameter></f>");

  // An expression that has no schema beside it keeps its white space.
  GrammarMatcher expression(grammar(R"({"type":"sequence","elements":[)" + tag("<t>", any, "</t>") +
                                    R"(,{"type":"regex","pattern":"[ \\n\\r\\t]*b"}]})"));
  AcceptAll(expression, "<t></t>" + much + "b");
}

// Whatever the schema has, and wherever it stands.
TEST_F(GrammarTest, NoSchemaHasMoreWhiteSpace) {
  const std::string schemas[] = {
      "{}",
      R"({"type":"object","properties":{"a":{"type":"integer"},"name":{"type":"string"}},)"
      R"("required":["name"]})",
      R"({"type":"object","properties":{"a":{"type":["string","null"]}},)"
      R"("additionalProperties":{"type":"number"}})",
      R"({"type":"object","patternProperties":{"^a+$":{"type":"boolean"}}})",
      R"({"type":"object","propertyNames":{"enum":["a","b"]},"minProperties":1})",
      R"({"type":"object","properties":{"a":{"$ref":"#"},"b":{"const":1.5}},"maxProperties":1})",
      R"({"type":"array","items":{"enum":[true,false,null,"a b"]},"minItems":2,"maxItems":20})",
      R"({"type":"array","prefixItems":[{"type":"integer","minimum":3},{"type":"null"}],)"
      R"("items":{"type":"array","items":{"type":"integer"}}})",
      R"({"anyOf":[{"type":"array","items":{"$ref":"#"}},{"type":"object"},{"type":"null"}]})",
      R"({"const":{"a":[1,2],"b":{}}})"};
  const std::string styles[] = {"", R"("style":"qwen_xml",)", R"("style":"glm_xml",)"};
  std::mt19937 random(11);
  for (const std::string& schema : schemas) {
    for (const std::string& style : styles) {
      if (!style.empty() && schema.find(R"({"type":"object")") != 0) continue;
      SCOPED_TRACE(style + schema);
      const auto grammar =
          Compile(Kind::kStructuralTag,
                  R"({"type":"structural_tag","format":{"type":"tag","begin":"<f>","content":)"
                  R"({"type":"json_schema",)" +
                      style + R"("json_schema":)" + schema + R"(},"end":"</f>"}})");
      ASSERT_NE(grammar, nullptr);
      if (style.empty()) WalkInSpace(Compile(Kind::kJsonSchema, schema), "", random);
      WalkInSpace(grammar, "<f>", random);
    }
  }
}

// Up to 16 repetitions have states of their own, and more are counted.
TEST_F(GrammarTest, AllowsSoManyRepetitions) {
  std::mt19937 random(11);
  for (const auto& [low, high] : {std::pair(0, 16), std::pair(0, 17), std::pair(3, 40),
                                  std::pair(16, 16), std::pair(17, 20), std::pair(60, 90)}) {
    const std::string count = "{" + std::to_string(low) + "," + std::to_string(high) + "}";
    // Of [Ā-׿] the lowest 8 bits are those of all ASCII.
    const std::pair<Kind, std::string> grammars[] = {
        {Kind::kRegex, "[a-c\u0100-\u05ff]" + count},
        {Kind::kRegex, "(ab|[a-c\u0100-\u05ff])" + count + "é"},
        {Kind::kGrammar, "root ::= \"<\" [^\"\\u0100-\\U0010ffff]" + count + " \"\\\"\""},
        {Kind::kJsonSchema,
         R"({"type":"string","pattern":"^[ -!#-\\u{10ffff}])" + count + "é{0}$\"}"},
    };
    for (const auto& [kind, text] : grammars) {
      const std::shared_ptr<const Grammar> grammar = Compile(kind, text);
      ASSERT_NE(grammar, nullptr) << text;
      for (int i = 0; i < 3; ++i) WalkAndCheck(grammar, random, 60);
      if (HasFailure()) FAIL() << text;
    }
    // By bytes, the end comes where it should, and nothing else comes behind the last repetition.
    GrammarMatcher matcher(Compile(Kind::kRegex, "[a-c\u0100-\u05ff]" + count));
    for (int length = 0; length <= high; ++length) {
      const std::vector<std::uint32_t> mask = Mask(matcher);
      EXPECT_EQ(Has(mask, words_.stops[0]), length >= low) << count << " after " << length;
      EXPECT_EQ(Has(mask, 'a'), length < high) << count << " after " << length;
      EXPECT_EQ(Has(mask, TokenOf(words_, std::string(20, 'a'))), length + 20 <= high);
      EXPECT_EQ(Has(mask, TokenOf(words_, std::string(40, 'a'))), length + 40 <= high);
      if (length < high) {
        ASSERT_TRUE(matcher.Accept('a'));
      }
    }
  }
}

// A control token comes where a structural tag names it, and nowhere else, not even where any text
// may come.
TEST_F(GrammarTest, ControlTokensComeWhereTheyAreNamed) {
  constexpr TokenId kControl = 256, kByteFf = 255;
  const auto grammar = Compile(
      Kind::kStructuralTag,
      R"({"type":"structural_tag","format":{"type":"sequence","elements":[)"
      R"({"type":"tag","begin":"<","content":{"type":"any_text"},"end":{"type":"token","token":256}},)"
      R"({"type":"tag","begin":{"type":"token","token":256},"content":{"type":"json_schema",)"
      R"("json_schema":{"type":"string"}},"end":""}]}})");
  ASSERT_NE(grammar, nullptr);
  GrammarMatcher matcher(grammar);
  EXPECT_FALSE(matcher.Accept(kControl));
  ASSERT_TRUE(matcher.Accept('<'));
  ASSERT_TRUE(matcher.Accept('a'));
  std::vector<TokenId> allowed = Allowed(matcher);
  EXPECT_TRUE(std::ranges::count(allowed, 'b') == 1 && std::ranges::count(allowed, kControl) == 1);
  EXPECT_EQ(std::ranges::count(allowed, kByteFf), 0);
  ASSERT_TRUE(matcher.Accept(kControl));
  EXPECT_EQ(Allowed(matcher), std::vector<TokenId>{kControl});
  ASSERT_TRUE(matcher.Accept(kControl));
  ASSERT_TRUE(matcher.Accept('"'));
  EXPECT_FALSE(Has(Mask(matcher), kControl));
  EXPECT_FALSE(matcher.Accept(kControl));
  // XGrammar takes the text between tags, and in front of an end that is a string, byte by byte.
  const std::string tags = R"("triggers":["<f"],"tags":[{"type":"tag","begin":"<f>","content":)"
                           R"({"type":"regex","pattern":"a"},"end":"</f>"}]})";
  const std::string named = R"({"type":"token","token":256})";
  for (const std::string& format :
       {R"({"type":"triggered_tags",)" + tags,
        R"({"type":"sequence","elements":[{"type":"tag","begin":"","content":{"type":"any_text"},)"
        R"("end":"<f>"},)" +
            named + "]}",
        R"({"type":"sequence","elements":[{"type":"tag","begin":"","content":{"type":"any_text"},)"
        R"("end":"<f>"},{"type":"json_schema","json_schema":{"const":)" +
            named + "}}]}"}) {
    const auto text =
        Compile(Kind::kStructuralTag, R"({"type":"structural_tag","format":)" + format + "}");
    ASSERT_NE(text, nullptr) << format;
    GrammarMatcher free(text);
    EXPECT_TRUE(Has(Mask(free), 'a')) << format;
    EXPECT_FALSE(Has(Mask(free), kControl)) << format;
    EXPECT_FALSE(free.Accept(kControl)) << format;
    for (const TokenId byte : Bytes("a<f>")) ASSERT_TRUE(free.Accept(byte)) << format;
    EXPECT_EQ(Has(Mask(free), kControl), format.ends_with(named + "]}")) << format;
  }
}

TEST_F(GrammarTest, AllowsExactlyALanguage) {
  // All words of the language, found without a grammar.
  std::set<std::string> words;
  for (const std::string first : {"ab", "ba", "c"}) {
    for (const std::string second : {"", "ab", "ba", "c"})
      words.insert(first + second + "\xc3\xa9");
  }
  const auto begins_word = [&](const std::string& text) {
    const auto at = words.lower_bound(text);
    return at != words.end() && at->starts_with(text);
  };
  const std::pair<Kind, const char*> grammars[] = {
      {Kind::kRegex, "(ab|ba|c){1,2}é"},
      {Kind::kGrammar, "root ::= w w? \"é\"\nw ::= \"ab\" | \"ba\" | \"c\""},
      {Kind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"regex",)"
                             R"("pattern":"(ab|ba|c)(ab|ba|c)?é"}})"},
  };
  for (const auto& [kind, text] : grammars) {
    const std::shared_ptr<const Grammar> grammar = Compile(kind, text);
    ASSERT_NE(grammar, nullptr);
    // From each beginning, by the tokens that may follow.
    std::vector<std::pair<std::string, GrammarMatcher>> places;
    places.emplace_back("", GrammarMatcher(grammar));
    std::size_t checked = 0;
    while (!places.empty()) {
      auto [begin, matcher] = std::move(places.back());
      places.pop_back();
      const std::vector<std::uint32_t> mask = Mask(matcher);
      for (std::size_t i = 0; i < words_.tokens.size(); ++i, ++checked) {
        const auto token = static_cast<TokenId>(i);
        if (words_.tokens[i].empty()) {
          EXPECT_EQ(Has(mask, token), token == words_.stops[0] && words.contains(begin));
          continue;
        }
        const bool follows = begins_word(begin + words_.tokens[i]);
        ASSERT_EQ(Has(mask, token), follows)
            << text << ": '" << words_.tokens[i] << "' after '" << begin << "'";
        if (!follows) continue;
        places.emplace_back(begin + words_.tokens[i], matcher.Fork());
        ASSERT_TRUE(places.back().second.Accept(token));
      }
    }
    EXPECT_GT(checked, 10 * words_.tokens.size());
  }
}

// Arguments of tools as Qwen3-Coder and GLM write them.
TEST_F(GrammarTest, WritesObjectsInXml) {
  const auto allows = [&](const std::string& style, const std::string& text) {
    GrammarMatcher matcher(
        Compile(Kind::kStructuralTag,
                R"({"type":"structural_tag","format":{"type":"json_schema","style":")" + style +
                    R"(","json_schema":{"type":"object","properties":{"s":{"type":"string"},)"
                    R"("i":{"type":"integer"}},"required":["s"],"additionalProperties":false}}})"));
    for (const TokenId token : Bytes(text)) {
      if (!matcher.Accept(token)) return false;
    }
    return matcher.Accept(words_.stops[0]);
  };
  EXPECT_TRUE(allows("qwen_xml",
                     "<parameter=s>\na \"b\"\n</parameter>\n"
                     "<parameter=i>\n5\n</parameter>\n"));
  EXPECT_FALSE(allows("qwen_xml", "<parameter=s>\na</parameter><parameter=i>\na</parameter>"));
  EXPECT_FALSE(allows("qwen_xml", "<parameter=i>\n5\n</parameter>"));
  EXPECT_FALSE(allows("qwen_xml", R"({"s": "a"})"));
  EXPECT_TRUE(allows("glm_xml", "<arg_key>s</arg_key>\n<arg_value>a\n</arg_value>\n"));
  EXPECT_FALSE(allows("glm_xml", "<arg_key>t</arg_key>\n<arg_value>a\n</arg_value>\n"));
}

TEST_F(GrammarTest, AllowsOnlyStopsAfterAStop) {
  GrammarMatcher matcher(Compile(Kind::kRegex, "a"));
  EXPECT_FALSE(matcher.Accept(257));
  ASSERT_TRUE(matcher.Accept('a'));
  EXPECT_EQ(Allowed(matcher), std::vector<TokenId>{257});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(matcher.Accept(257));
    EXPECT_FALSE(matcher.Accept('a'));
    EXPECT_EQ(Allowed(matcher), std::vector<TokenId>{257});
  }
  matcher.Rollback(2);  // one stop token is left
  EXPECT_EQ(Allowed(matcher), std::vector<TokenId>{257});
  matcher.Rollback(2);
  EXPECT_EQ(Allowed(matcher), std::vector<TokenId>{'a'});
}

TEST_F(GrammarTest, RefusesOtherTokens) {
  GrammarMatcher matcher(Compile(Kind::kRegex, ".*"));
  for (const TokenId token : {-1, 256, static_cast<int>(words_.tokens.size()), 1 << 30}) {
    EXPECT_FALSE(matcher.Accept(token)) << token;
  }
  EXPECT_TRUE(matcher.Accept('x'));
  EXPECT_FALSE(GrammarVocabulary::Create({.tokens = {"a"}, .stops = {1}}).ok());
}

TEST_F(GrammarTest, ForbidsNothingThatAForbiddenTokenEnds) {
  // "ab" comes right before "acab" in the sorted vocabulary.
  const auto vocabulary =
      *GrammarVocabulary::Create({.tokens = {"acab", "ab", "b", ""}, .stops = {3}});
  const auto compiled = CompileConstraint({Kind::kRegex, "(acab)+"}, *vocabulary, 1 << 24);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  GrammarMatcher matcher(*Grammar::Read(*compiled, {}, vocabulary));
  std::uint32_t mask = 0;
  EXPECT_TRUE(matcher.Fill(absl::MakeSpan(&mask, 1)));
  EXPECT_EQ(mask, 0b0001u);
}

TEST_F(GrammarTest, ControlTokensStayForbidden) {
  // The grammar names a control token by its number.
  const absl::StatusOr<std::string> compiled =
      CompileConstraint({Kind::kGrammar, "root ::= Token(256) | \"a\""}, *vocabulary_, 1 << 24);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  GrammarMatcher matcher(*Grammar::Read(*compiled, {}, vocabulary_));
  EXPECT_EQ(Allowed(matcher), std::vector<TokenId>{'a'});
}

TEST_F(GrammarTest, SaysWhyItRefuses) {
  const std::tuple<Kind, std::string, std::string> cases[] = {
      {Kind::kJsonSchema, "{", ""},
      {Kind::kJsonSchema, R"({"type":"foo"})", "Unsupported type \"foo\""},
      {Kind::kJsonSchema, R"({"type":"integer","multipleOf":99991})",
       "multipleOf for type:integer must be > 0 and <= 1024; ignoring multipleOf"},
      {Kind::kJsonSchema, R"({"type":"array","uniqueItems":true})",
       "Keyword uniqueItems is not supported"},
      {Kind::kJsonSchema, R"({"type":"object","properties":{"a":{"not":{"type":"string"}}}})",
       "Keyword not is not supported"},
      {Kind::kRegex, "(", "Regex parsing error at position 2: The parenthesis is not closed."},
      {Kind::kRegex, "(?=a)b", ""},
      {Kind::kRegex, "\xff\xfe", "The regex is not a valid UTF-8 string."},
      {Kind::kGrammar, "x ::= \"a\"",
       "EBNF parser error at line 1, column 1: The root rule with name \"root\" is not found"},
      {Kind::kGrammar, "root ::= \"\xff\"",
       "EBNF lexer error at line 1, column 11: Invalid UTF8 sequence"},
      {Kind::kGrammar, "root ::= x\nx ::=", ""},
      {Kind::kGrammar, "root ::= a\na[max_tokens=3] ::= [a-z]*",
       "max_tokens, max_chars and temperature of a rule are not supported"},
      {Kind::kStructuralTag, "[]", ""},
  };
  for (const auto& [kind, text, words] : cases) {
    const absl::Status status = Refusal(kind, text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    if (!words.empty()) {
      EXPECT_EQ(std::string(status.message()), words) << text;
    }
    EXPECT_FALSE(status.message().empty());
    EXPECT_LE(status.message().size(), 200u);
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos);
    EXPECT_EQ(status.message().find("xgrammar"), absl::string_view::npos) << status;
    EXPECT_EQ(status.message().find(".cc:"), absl::string_view::npos) << status;
  }
}

TEST_F(GrammarTest, RefusesLongTextsOfGrammars) {
  const absl::Status status =
      CompileConstraint({Kind::kRegex, "a{1,1000}b{1,1000}"}, *vocabulary_, 1000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

// A schema of an object that has so many properties, which has some rules for each.
Constraint SchemaOfProperties(int count) {
  std::string properties;
  for (int i = 0; i < count; ++i)
    properties += ",\"p" + std::to_string(i) + "\":{\"type\":\"string\"}";
  return {Kind::kJsonSchema, R"({"type":"object","properties":{)" + properties.substr(1) + "}}"};
}

TEST_F(GrammarTest, TakesAboutTheBytesThatItSays) {
  const Constraint schema = SchemaOfProperties(100);
  const auto compiled = CompileConstraint(schema, *vocabulary_, 1 << 24);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const auto allocated = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const std::size_t before = allocated();
  const auto grammar = Grammar::Read(*compiled, schema, vocabulary_);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const std::size_t taken = allocated() - before;
  if (taken == 0) GTEST_SKIP() << "this allocator does not say";  // a sanitizer's
  EXPECT_GT((*grammar)->bytes(), taken / 2);
  EXPECT_LT((*grammar)->bytes(), taken * 4);
}

// XGrammar's own form has the automaton of all rules for each rule.
TEST_F(GrammarTest, SizesAreLinearInTheNumberOfRules) {
  const auto small = CompileConstraint(SchemaOfProperties(100), *vocabulary_, 1 << 24);
  const auto large = CompileConstraint(SchemaOfProperties(200), *vocabulary_, 1 << 24);
  ASSERT_TRUE(small.ok() && large.ok()) << large.status();
  EXPECT_LT(large->size(), small->size() * 5 / 2);
}

TEST_F(GrammarTest, RepetitionsTakeNoSpace) {
  const auto size = [&](int count) {
    return CompileConstraint({Kind::kRegex, "[a-zĀ-׿]{0," + std::to_string(count) + "}"},
                             *vocabulary_, 1 << 24)
        ->size();
  };
  EXPECT_LT(size(5000), size(20) * 3 / 2);
}

TEST_F(GrammarTest, RefusesBytesThatWereChanged) {
  std::mt19937 random(7);
  for (const Constraint& constraint :
       {Constraint{Kind::kRegex, "[a-c]{2,5}"}, SchemaOfProperties(3)}) {
    const auto compiled = CompileConstraint(constraint, *vocabulary_, 1 << 24);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    for (std::size_t size = 0; size < compiled->size(); size += 1 + size / 16) {
      EXPECT_FALSE(Grammar::Read(compiled->substr(0, size), constraint, vocabulary_).ok()) << size;
    }
    EXPECT_FALSE(Grammar::Read(*compiled + "x", constraint, vocabulary_).ok());
    // Most are refused, and none is read beyond its end.
    for (int i = 0; i < 500; ++i) {
      std::string changed = *compiled;
      changed[random() % changed.size()] = static_cast<char>(random());
      (void)Grammar::Read(changed, constraint, vocabulary_);
    }
  }
}

TEST_F(GrammarTest, RefusesWhatWasCompiledForOthers) {
  const auto compiled = CompileConstraint({Kind::kRegex, "a"}, *vocabulary_, 1 << 24);
  ASSERT_TRUE(compiled.ok());
  ConstraintVocabulary other = words_;
  other.tokens.push_back("more");
  EXPECT_FALSE(Grammar::Read(*compiled, {}, *GrammarVocabulary::Create(other)).ok());
  EXPECT_FALSE(Grammar::Read("{}", {}, vocabulary_).ok());
  EXPECT_FALSE(Grammar::Read("", {}, vocabulary_).ok());
}

TEST_F(GrammarTest, HostileConstraintsEnd) {
  const std::string deep(100000, '[');
  const std::pair<Kind, std::string> cases[] = {
      {Kind::kJsonSchema, deep},
      {Kind::kJsonSchema, R"({"a":)" + deep},
      {Kind::kRegex, std::string(100000, '(')},
      {Kind::kGrammar, "root ::= " + std::string(100000, '(')},
      {Kind::kStructuralTag, deep},
  };
  for (const auto& [kind, text] : cases) {
    EXPECT_EQ(Refusal(kind, text).code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 20);
  }
  std::mt19937 random(3);
  for (const auto& [kind, text] : {std::pair(Kind::kGrammar, "root ::= \"a\"{1,1000000}"),
                                   std::pair(Kind::kRegex, "(a{1,1000}){1,1000}"),
                                   std::pair(Kind::kGrammar, "root ::= root root root | \"\""),
                                   std::pair(Kind::kJsonSchema, R"({"$ref":"#"})"),
                                   std::pair(Kind::kGrammar, "root ::= \"\"")}) {
    WalkAndCheck(Compile(kind, text), random, 5);
  }
}

TEST_F(GrammarTest, SizesGrowWithTheSquareForSomeGrammars) {
  GrammarMatcher matcher(Compile(Kind::kGrammar, "root ::= \"a\" root \"a\" | \"a\""));
  std::size_t before = 0;
  for (int length = 100; length <= 400; length *= 2) {
    for (int i = length / 2; i < length; ++i) ASSERT_TRUE(matcher.Accept('a'));
    if (before != 0) {
      EXPECT_GT(matcher.bytes(), 3 * before);
    }
    before = matcher.bytes();
  }
}

}  // namespace
}  // namespace flotilla::worker
