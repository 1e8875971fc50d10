#include "common/obs/printable.h"

#include <string>

#include "gtest/gtest.h"

namespace flotilla {
namespace {

std::string Utf8(char32_t c) {
  std::string text;
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    text += static_cast<char>(0xe0 | c >> 12);
    text += static_cast<char>(0x80 | (c >> 6 & 0x3f));
  } else {
    text += static_cast<char>(0xf0 | c >> 18);
    text += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    text += static_cast<char>(0x80 | (c >> 6 & 0x3f));
  }
  if (c >= 0x80) text += static_cast<char>(0x80 | (c & 0x3f));
  return text;
}

TEST(PrintableTest, WhatHidesTurnsOrCommandsIsEscaped) {
  for (const auto& [first, last] : {std::pair<char32_t, char32_t>{0x80, 0x9f},
                                    {0x200b, 0x200f},
                                    {0x2028, 0x202e},
                                    {0x2066, 0x2069},
                                    {0xfeff, 0xfeff},
                                    {0xe0001, 0xe007f}}) {
    for (char32_t c = first; c <= last; ++c) {
      char wanted[16];
      std::snprintf(wanted, sizeof(wanted), "\\u{%x}", static_cast<unsigned>(c));
      EXPECT_EQ(Printable(Utf8(c)), wanted);
      EXPECT_FALSE(IsPrintable(Utf8(c)));
    }
  }
  EXPECT_EQ(Printable("\a\x1b]0;\x7f\n\r\t"), R"(\x07\x1b]0;\x7f\n\r\t)");
}

TEST(PrintableTest, OtherTextStays) {
  for (const char32_t c : {U'a', U'~', U'\u00a0', U'\u00e9', U'\u2027', U'\u4e2d', U'\U0001f600'}) {
    EXPECT_EQ(Printable(Utf8(c)), Utf8(c));
    EXPECT_TRUE(IsPrintable(Utf8(c)));
  }
  EXPECT_EQ(Printable("a\\b\"c"), "a\\b\"c");
  EXPECT_EQ(Printable("a\\b\"c", /*quoted=*/true), R"(a\\b\"c)");
}

TEST(PrintableTest, BytesThatAreNoUtf8AreShownAsBytes) {
  EXPECT_EQ(Printable("\x80"), R"(\x80)");          // goes on from nothing
  EXPECT_EQ(Printable("\xe2\x80"), R"(\xe2\x80)");  // cut off
  EXPECT_EQ(Printable("\xe2\x80z"), R"(\xe2\x80z)");
  EXPECT_EQ(Printable("\xc0\x9b"), R"(\xc0\x9b)");  // overlong
  EXPECT_EQ(Printable("\xe0\x80\x9b"), R"(\xe0\x80\x9b)");
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), R"(\xf4\x90\x80\x80)");  // beyond the last
  EXPECT_EQ(Printable("\xf8\x88\x80\x80"), R"(\xf8\x88\x80\x80)");
}

}  // namespace
}  // namespace flotilla
