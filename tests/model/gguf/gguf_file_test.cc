#include "model/gguf/gguf_file.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tiny_gguf.h"

namespace flotilla::model {
namespace {

using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;

std::vector<std::byte> Bytes(size_t count) { return std::vector<std::byte>(count); }

// A file with one value of each kind and two small tensors.
GgufBuilder Sample() {
  GgufBuilder file;
  file.AddUint32("a.u32", 7);
  file.AddUint64("a.u64", 1ull << 40);
  file.AddFloat("a.f32", 0.5f);
  file.AddBool("a.bool", true);
  file.AddString("a.string", "hello");
  file.AddStrings("a.strings", {"x", "", "yz"});
  file.AddInts("a.ints", {1, -2, 3});
  file.AddTensor("t.one", {32, 3}, GgmlType::kQ8_0, Bytes(3 * 34));
  file.AddTensor("t.two", {5}, GgmlType::kF32, Bytes(20));
  return file;
}

TEST(Gguf, ReadsTypedValuesAndTensors) {
  const std::vector<std::byte> bytes = Sample().Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->GetUint("a.u32"), 7u);
  EXPECT_EQ(*file->GetUint("a.u64"), 1ull << 40);
  EXPECT_EQ(*file->GetFloat("a.f32"), 0.5);
  EXPECT_EQ(*file->GetBool("a.bool"), true);
  EXPECT_EQ(*file->GetString("a.string"), "hello");
  EXPECT_THAT(*file->GetStrings("a.strings"), ElementsAre("x", "", "yz"));
  EXPECT_THAT(*file->GetInts("a.ints"), ElementsAre(1, -2, 3));
  EXPECT_EQ(*file->GetUintOr("absent", 9), 9u);

  ASSERT_EQ(file->tensors().size(), 2u);
  const Tensor* one = file->FindTensor("t.one");
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->dims[0], 32u);
  EXPECT_EQ(one->dims[1], 3u);
  EXPECT_EQ(one->elements(), 96u);
  EXPECT_EQ(one->data.size(), 102u);
  EXPECT_EQ((one->data.data() - bytes.data()) % 32, 0);
  EXPECT_EQ((file->FindTensor("t.two")->data.data() - one->data.data()), 128);
  EXPECT_EQ(file->FindTensor("t.three"), nullptr);
}

TEST(Gguf, WrongTypesAndAbsentKeysAreErrors) {
  const std::vector<std::byte> bytes = Sample().Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->GetUint("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file->GetUint("a.string").status().message()), HasSubstr("a.string"));
  EXPECT_FALSE(file->GetString("a.u32").ok());
  EXPECT_FALSE(file->GetFloat("a.u32").ok());
  EXPECT_FALSE(file->GetBoolOr("a.u32", true).ok());
  EXPECT_FALSE(file->GetStrings("a.ints").ok());
  EXPECT_FALSE(file->GetInts("a.strings").ok());
}

// Elements of one byte would take eight each.
TEST(Gguf, ArraysAreBounded) {
  GgufBuilder builder;
  builder.AddBools("short", {true, false});
  builder.AddBools("long", std::vector<bool>((1 << 21) + 1));
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*file->GetBools("short"), ::testing::ElementsAre(true, false));
  EXPECT_THAT(std::string(file->GetBools("long").status().message()),
              HasSubstr("'long' has 2097153 elements, not at most 2097152"));
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = Sample().Build();
  // The last tensor's padding (12 bytes) carries nothing.
  for (size_t size = 0; size < bytes.size() - 12; ++size) {
    EXPECT_FALSE(GgufFile::Parse(std::span(bytes).first(size)).ok()) << size;
  }
}

struct RefusedFile {
  const char* name;
  std::function<std::vector<std::byte>()> make;
  const char* message;
};

template <typename T>
std::vector<std::byte> Patched(std::vector<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

TEST(Gguf, RefusalsSayWhatAndWhere) {
  const auto tensor = [](std::vector<uint64_t> dims, GgmlType type, size_t bytes) {
    GgufBuilder file;
    file.AddTensor("odd", dims, type, Bytes(bytes));
    return file.Build();
  };
  const auto sample = [] { return Sample().Build(); };
  const RefusedFile cases[] = {
      {"magic", [&] { return Patched(sample(), 0, uint8_t{'X'}); }, "does not start with"},
      {"version 1", [&] { return Patched(sample(), 4, 1u); }, "version 1"},
      {"big endian", [&] { return Patched(sample(), 4, 3u << 24); }, "big-endian"},
      {"tensor count", [&] { return Patched(sample(), 8, ~0ull); }, "cannot fit"},
      {"value count", [&] { return Patched(sample(), 16, 1ull << 40); }, "cannot fit"},
      {"values",
       [&] {
         std::vector<std::byte> file = Patched(sample(), 16, 65537ull);
         file.resize(2 << 20);
         return file;
       },
       "65537 values, not at most 65536"},
      {"tensors",
       [&] {
         std::vector<std::byte> file = Patched(sample(), 8, 262145ull);
         file.resize(16 << 20);
         return file;
       },
       "262145 tensors, not at most 262144"},
      {"key length", [&] { return Patched(sample(), 24, ~0ull); }, "are left"},
      {"empty key",
       [] {
         GgufBuilder f;
         f.AddBool("", true);
         return f.Build();
       },
       "key of a length"},
      {"key text",
       [] {
         GgufBuilder f;
         f.AddBool("a b", true);
         return f.Build();
       },
       "not ASCII"},
      {"value type", [&] { return Patched(sample(), 24 + 8 + 5, 13u); }, "unknown type 13"},
      {"nested array",
       [] {
         GgufBuilder f;
         f.AddInts("k", {1});
         return Patched(f.Build(), 24 + 8 + 1 + 4, 9u);
       },
       "nested"},
      {"bool",
       [] {
         GgufBuilder f;
         f.AddBool("k", true);
         return Patched(f.Build(), 24 + 8 + 1 + 4, uint8_t{2});
       },
       "neither 0 nor 1"},
      {"duplicate key",
       [] {
         GgufBuilder f;
         f.AddBool("k", true);
         f.AddBool("k", true);
         return f.Build();
       },
       "'k': the key appears twice"},
      {"duplicate tensor",
       [] {
         GgufBuilder f;
         f.AddTensor("t", {8}, GgmlType::kF32, Bytes(32));
         f.AddTensor("t", {8}, GgmlType::kF32, Bytes(32));
         return f.Build();
       },
       "the name appears twice"},
      {"rank",
       [&] {
         return tensor({1, 1, 1, 1, 1}, GgmlType::kF32, 4);
       },
       "rank 5"},
      {"zero dimension", [&] { return tensor({0}, GgmlType::kF32, 0); }, "dimensions"},
      {"overflow",
       [&] {
         return tensor({1ull << 33, 1ull << 33}, GgmlType::kF32, 4);
       },
       "dimensions"},
      {"part of a block", [&] { return tensor({33}, GgmlType::kQ4_1, 20); }, "whole blocks"},
      {"retired type", [&] { return tensor({32}, GgmlType{4}, 20); }, "unknown tensor type 4"},
      {"data ends", [&] { return tensor({1 << 20}, GgmlType::kF32, 4); }, "of tensor data"},
      {"alignment",
       [] {
         GgufBuilder f;
         f.AddUint32("general.alignment", 24);
         f.AddTensor("t", {8}, GgmlType::kF32, Bytes(32));
         return f.Build();
       },
       "alignment 24"},
      {"gap",
       [] {  // written for 32, read with 64
         GgufBuilder f;
         f.AddUint32("general.alignment", 64);
         f.AddTensor("t", {8}, GgmlType::kF32, Bytes(32));
         f.AddTensor("u", {8}, GgmlType::kF32, Bytes(32));
         return f.Build();
       },
       "offset 32 where 64 follows"},
  };
  for (const RefusedFile& test : cases) {
    const std::vector<std::byte> bytes = test.make();
    const auto file = GgufFile::Parse(bytes);
    ASSERT_FALSE(file.ok()) << test.name;
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << test.name;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(test.message)) << test.name;
  }
}

TEST(Gguf, OpenReportsTheFile) {
  const auto absent = GgufFile::Open("/nonexistent/model.gguf");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  const std::string path = ::testing::TempDir() + "/tiny.gguf";
  testing::WriteTinyGguf(path);
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE(file->FindTensor("token_embd.weight"), nullptr);
  std::remove(path.c_str());
}

TEST(GgmlType, HalfConversionsAreExactInverses) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    if (std::isnan(value)) continue;
    EXPECT_EQ(FloatToHalf(value), half);
  }
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0f);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);         // halfway to the next: infinity
  EXPECT_EQ(FloatToHalf(1.0f + 0x1p-11f), 0x3c00);  // tie to even
}

}  // namespace
}  // namespace flotilla::model
