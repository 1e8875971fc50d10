#include "model/huggingface/safetensors_file.h"

#include <cstdio>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/allocations.h"
#include "tests/support/hf_folder.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<SafetensorsFile> Parse(const std::string& bytes) {
  return SafetensorsFile::Parse(std::as_bytes(std::span(bytes)));
}

TEST(SafetensorsFile, ReadsTensorsByViewWhateverTheirOrder) {
  const std::string bytes = testing::Safetensors(
      R"({"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},"__metadata__":{"format":"pt"},)"
      R"("a":{"data_offsets":[0,12],"shape":[2,3],"dtype":"BF16"}}   )",
      "0123456789abcdef");
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  const Tensor& a = file->tensors()[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.type, GgmlType::kBF16);
  EXPECT_EQ(a.rank, 2u);
  EXPECT_EQ(a.dims[0], 3u);  // contiguous
  EXPECT_EQ(a.dims[1], 2u);
  EXPECT_EQ(std::to_integer<char>(a.data[11]), 'b');
  EXPECT_EQ(file->tensors()[1].elements(), 1u);
}

// The header of one tensor of two bytes, with one text replaced by another.
std::string ErrorOf(const std::string& from, const std::string& to,
                    const std::string& data = "xx") {
  const std::string good = R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})";
  const std::string header = absl::StrReplaceAll(good, {{from, to}});
  EXPECT_NE(header, good) << from;
  const auto file = Parse(testing::Safetensors(header, data));
  return std::string(file.status().message());
}

// What the parser keeps of a header has a bound.
TEST(SafetensorsFile, HeadersOfEndlessThingsAreRefused) {
  const std::string digits(70'000, '1');
  EXPECT_THAT(ErrorOf("[1]", absl::StrCat("[", digits, "]")), HasSubstr("a number without an end"));
  std::string header = "{";
  for (int i = 0; i <= 1 << 18; ++i) {
    absl::StrAppend(&header, i == 0 ? "" : ",", "\"", i,
                    R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
  }
  const auto file = Parse(testing::Safetensors(header + "}", ""));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("more than 262144 tensors"));
}

// As many tensors as there may be, and each takes as little of the header as it can. What is kept
// of them, and what it takes to check them, is less than four times the header.
TEST(SafetensorsFile, TheDensestHeaderKeepsTheBoundOfMemory) {
  constexpr std::size_t kTensors = 1 << 18;
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
  // A name of 16 bytes is the first that does not lie in its string.
  for (const std::size_t length : {3u, 16u}) {
    std::string header = "{", name(length, 'n');
    for (std::size_t i = 0; i < kTensors; ++i) {
      name[0] = kDigits[i % 64];
      name[1] = kDigits[i / 64 % 64];
      name[2] = kDigits[i / 64 / 64];
      absl::StrAppend(&header, i == 0 ? "" : ",", "\"", name,
                      R"(":{"dtype":"I8","shape":[0],"data_offsets":[0,0]})");
    }
    const std::string bytes = testing::Safetensors(header + "}", "");
    const testing::PeakMemory memory;
    const auto file = Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->tensors().size(), kTensors);
    EXPECT_LE(memory.bytes(), 4 * bytes.size()) << length;
    std::printf("names of %zu bytes: %.2f times the header\n", length,
                static_cast<double>(memory.bytes()) / static_cast<double>(bytes.size()));
  }
}

TEST(SafetensorsFile, RefusalsNameTheProblem) {
  EXPECT_THAT(ErrorOf("BF16", "F8_E5M2"), HasSubstr("tensor 'a' has the dtype 'F8_E5M2'"));
  EXPECT_THAT(ErrorOf("[0,2]", "[0,3]"), HasSubstr("the data has 2 bytes"));
  EXPECT_THAT(ErrorOf("[0,2]", "[2,0]"), HasSubstr("the data has 2 bytes"));
  EXPECT_THAT(ErrorOf("[0,2]", "[1,3]", "xxx"), HasSubstr("data at 0 must follow"));
  // Two tensors with bytes in common, and one that is another's in whole.
  EXPECT_THAT(ErrorOf("}}", R"(},"b":{"dtype":"BF16","shape":[1],"data_offsets":[1,3]}})", "xxx"),
              HasSubstr("data at 2 must follow"));
  EXPECT_THAT(ErrorOf("}}", R"(},"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})"),
              HasSubstr("data at 2 must follow"));
  EXPECT_THAT(ErrorOf("[0,2]", "[0]"), HasSubstr("not two data_offsets"));
  EXPECT_THAT(ErrorOf("[0,2]", "[0,-2]"), HasSubstr("a negative number"));
  EXPECT_THAT(ErrorOf("[0,2]", "[0,2.5]"), HasSubstr("a fraction"));
  EXPECT_THAT(ErrorOf("[1]", "[2]"), HasSubstr("type and shape need 4 bytes"));
  EXPECT_THAT(ErrorOf("[1]", "[18446744073709551615,18446744073709551615]"),
              HasSubstr("type and shape need"));
  EXPECT_THAT(ErrorOf("[1]", "[1,1,1,1,1]"), HasSubstr("more than 4 numbers"));
  EXPECT_THAT(ErrorOf("[1]", "[[1]]"), HasSubstr("a list out of place"));
  EXPECT_THAT(ErrorOf("[1]", "{}"), HasSubstr("an object where"));
  EXPECT_THAT(ErrorOf("[1]", "null"), HasSubstr("null"));
  EXPECT_THAT(ErrorOf("shape", "size"), HasSubstr("the unknown field 'size'"));
  EXPECT_THAT(ErrorOf(R"("shape":[1],)", ""), HasSubstr("no shape"));
  EXPECT_THAT(ErrorOf(R"("shape":[1])", R"("shape":[1],"shape":[1])"), HasSubstr("appears twice"));
  EXPECT_THAT(ErrorOf(R"({"a")", R"({"")"), HasSubstr("a name of 0 bytes"));
  EXPECT_THAT(ErrorOf(R"({"a")", absl::StrCat(R"({")", std::string(256, 'n'), R"(")")),
              HasSubstr("a name of 256 bytes"));
  EXPECT_THAT(ErrorOf(R"({"a":)", R"({"a":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]},"a":)"),
              HasSubstr("tensor 'a' twice"));
  EXPECT_THAT(ErrorOf("}}", "}"), HasSubstr("no valid JSON"));
  EXPECT_THAT(ErrorOf(R"({"a")", R"([{"a")"), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(ErrorOf("BF16", "F16", "xxx"), HasSubstr("1 bytes after the last tensor"));
}

TEST(SafetensorsFile, LengthsThatLieAreRefused) {
  EXPECT_THAT(std::string(Parse("1234567").status().message()), HasSubstr("no header"));
  std::string bytes = testing::Safetensors("{}", "");
  EXPECT_TRUE(Parse(bytes).ok());
  bytes[0] = 3;
  EXPECT_THAT(std::string(Parse(bytes).status().message()), HasSubstr("a header of 3 bytes"));
  bytes[7] = '\x7f';
  EXPECT_THAT(std::string(Parse(bytes).status().message()), HasSubstr("but 2 are possible"));
}

}  // namespace
}  // namespace flotilla::model
