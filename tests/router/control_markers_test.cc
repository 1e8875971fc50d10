// Structural tags that name control tokens.
#include "router/core/tools/control_markers.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "router/core/tools/tool_constraint.h"

namespace flotilla::router {
namespace {

const std::vector<ControlToken> kTokens = {{"[A]", 7}, {"[A]+", 8}, {"[END]", 9, true}};

std::string With(const std::string& format) {
  return WithControlTokens(OrderedJson::parse(format), kTokens).dump();
}
std::string Literal(const std::string& value) {
  return R"({"type":"const_string","value":")" + value + R"("})";
}
std::string Named(int id) { return R"({"type":"token","token":)" + std::to_string(id) + "}"; }
std::string Sequence(const std::string& elements) {
  return R"({"type":"sequence","elements":[)" + elements + "]}";
}
std::string Tag(const std::string& begin, const std::string& content, const std::string& end) {
  return R"({"type":"tag","begin":)" + begin + R"(,"content":)" + content + R"(,"end":)" + end +
         "}";
}
const char kAny[] = R"({"type":"any_text"})";

TEST(ControlMarkers, TextIsSplitAtTheLongestOfThem) {
  EXPECT_EQ(With(Literal("a [B")), Literal("a [B"));
  EXPECT_EQ(With(Literal("[A]")), Named(7));
  EXPECT_EQ(With(Literal("x[A]+y[A]")),
            Sequence(Literal("x") + "," + Named(8) + "," + Literal("y") + "," + Named(7)));
  EXPECT_EQ(With(R"({"type":"optional","content":)" + Sequence(Literal("[A]") + "," + kAny) + "}"),
            R"({"type":"optional","content":)" + Sequence(Named(7) + "," + kAny) + "}");
}

TEST(ControlMarkers, ATagEndsWhereItsEndBegins) {
  EXPECT_EQ(With(Tag(R"("a")", kAny, R"("b")")), Tag(R"("a")", kAny, R"("b")"));
  EXPECT_EQ(With(Tag(R"("[A]")", kAny, R"("b")")), Tag(Named(7), kAny, R"("b")"));
  EXPECT_EQ(With(Tag(R"("")", kAny, R"("[A]b[A]")")),
            Sequence(Tag(R"("")", kAny, Named(7)) + "," + Literal("b") + "," + Named(7)));
  EXPECT_EQ(With(Tag(R"("[A]b")", kAny, R"("x[A]")")),
            Sequence(Named(7) + "," + Tag(R"("b")", kAny, R"("x")") + "," + Named(7)));
  // A token that ends the answer is no part of the grammar.
  EXPECT_EQ(With(Tag(R"("a")", kAny, R"("[END]b")")), Tag(R"("a")", kAny, R"("")"));
}

TEST(ControlMarkers, TagsOfAListStayTags) {
  const auto list = [](const std::string& tag, const std::string& separator, bool one) {
    return R"({"type":"tags_with_separator","tags":[)" + tag + R"(],"separator":")" + separator +
           R"(","at_least_one":true,"stop_after_first":)" + (one ? "true" : "false") + "}";
  };
  EXPECT_EQ(
      With(list(Tag(R"("[A]b[A]")", kAny, R"("c[A]")"), ", ", false)),
      list(Tag(Named(7), Sequence(Literal("b") + "," + Named(7) + "," + kAny + "," + Literal("c")),
               Named(7)),
           ", ", false));
  EXPECT_EQ(With(list(Tag(R"("a")", kAny, R"("[END]")"), "[A]", false)),
            list(Tag(R"("a")", kAny, R"("")"), "", true));
}

// No text of a marker is left in any format whose markers are control tokens.
TEST(ControlMarkers, EveryFormatCanNameThem) {
  const CallableTool tools[] = {{"add", ""}};
  for (const ToolFormat& format : ToolFormats()) {
    std::vector<ControlToken> tokens;
    for (std::string_view marker :
         {format.begin, format.end, format.section_begin, format.section_end, format.separator}) {
      if (marker.empty()) continue;
      tokens.push_back({std::string(marker), static_cast<TokenId>(tokens.size())});
    }
    const auto tag = OrderedJson::parse(ToolConstraint(format, tools, {.several = true}));
    const std::string text = WithControlTokens(tag["format"], tokens).dump();
    for (const ControlToken& token : tokens) {
      EXPECT_EQ(text.find(OrderedJson(token.text).dump().substr(1, token.text.size())),
                std::string::npos)
          << format.name << ": " << token.text << " in " << text;
    }
  }
}

}  // namespace
}  // namespace flotilla::router
