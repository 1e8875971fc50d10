// Models in several GGUF files.
#include "model/gguf/gguf_parts.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/content_hash.h"
#include "model/load_spec.h"
#include "tests/support/hf_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;

class GgufPartsTest : public ::testing::Test {
 protected:
  GgufPartsTest() { Write(builder_.BuildParts(3)); }

  std::string PathOf(std::size_t number, std::size_t count = 3) const {
    return scratch_.path() + "/" + absl::StrFormat("m-%05d-of-%05d.gguf", number, count);
  }
  void Write(const std::vector<std::vector<std::byte>>& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) WriteTo(PathOf(i + 1), parts[i]);
  }
  static void WriteTo(const std::string& path, const std::vector<std::byte>& bytes) {
    testing::WriteFile(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  std::string ErrorOf(const std::string& path) const {
    const auto file = OpenCheckpoint(path);
    EXPECT_FALSE(file.ok());
    return std::string(file.status().message());
  }
  std::string Error() const { return ErrorOf(PathOf(1)); }
  // The second part, with a change.
  static std::vector<std::byte> Second(void (*change)(testing::GgufBuilder&)) {
    testing::GgufBuilder part;
    change(part);
    part.AddTensor("more", {1}, GgmlType::kF32, std::vector<std::byte>(4));
    return part.Build();
  }

  const testing::GgufBuilder builder_ = testing::TinyGgufBuilder();
  const testing::ScratchDirectory scratch_;
};

TEST_F(GgufPartsTest, AreTheModelThatOneFileIs) {
  const auto bytes = builder_.Build();
  const auto whole = ParseCheckpoint(bytes);
  const auto parts = OpenCheckpoint(PathOf(1));
  ASSERT_TRUE(whole.ok() && parts.ok()) << parts.status();
  EXPECT_EQ((*parts)->format(), "GGUF v3 in 3 parts");
  ASSERT_EQ((*parts)->tensors().size(), (*whole)->tensors().size());
  for (const Tensor& tensor : (*whole)->tensors()) {
    const Tensor* same = (*parts)->FindTensor(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(same->dims, tensor.dims));
    EXPECT_TRUE(std::ranges::equal(same->data, tensor.data)) << tensor.name;
  }
  const auto spec = LoadSpec(**parts), expected = LoadSpec(**whole);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers, expected->layers);
  EXPECT_EQ(TokenizerHash(*(*parts)->ReadTokenizer()), TokenizerHash(*(*whole)->ReadTokenizer()));
  (*parts)->ReleasePages();
  EXPECT_EQ((*parts)->FindTensor("no such tensor"), nullptr);
}

TEST_F(GgufPartsTest, TheFirstMayHaveNoTensors) {
  // `gguf-split --no-tensor-first-split`: here there are more parts than tensors.
  testing::GgufBuilder few;
  few.AddTensor("t", {1}, GgmlType::kF32, std::vector<std::byte>(4));
  Write(few.BuildParts(3));
  const auto file = OpenCheckpoint(PathOf(1));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE((*file)->FindTensor("t"), nullptr);
}

TEST_F(GgufPartsTest, EachPartCountsInTheHashOfTheMetadata) {
  const std::uint64_t before = (*OpenCheckpoint(PathOf(1)))->MetadataHash();
  auto parts = builder_.BuildParts(3);
  parts[2][24 + 8] = std::byte{'x'};  // a letter of its first key
  WriteTo(PathOf(3), parts[2]);
  EXPECT_THAT(Error(), HasSubstr("split.no"));
  auto more = testing::TinyGgufBuilder().BuildParts(3);
  EXPECT_EQ(more[1], parts[1]);
  testing::GgufBuilder changed = testing::TinyGgufBuilder();
  changed.AddUint32("general.more", 1);
  Write(changed.BuildParts(3));
  EXPECT_NE((*OpenCheckpoint(PathOf(1)))->MetadataHash(), before);
}

TEST_F(GgufPartsTest, OnlyTheFirstPartOpensAModel) {
  EXPECT_EQ(
      ErrorOf(PathOf(2)),
      absl::StrCat(PathOf(2), ": GGUF key 'split.no' = 1; a model is opened by its first part, ",
                   PathOf(1)));
  std::filesystem::rename(PathOf(1), scratch_.path() + "/other.gguf");
  EXPECT_THAT(ErrorOf(scratch_.path() + "/other.gguf"),
              HasSubstr("other.gguf: GGUF key 'split.count' = 3; the first of these parts has a "
                        "name that ends with -00001-of-00003.gguf"));
  std::filesystem::rename(scratch_.path() + "/other.gguf", PathOf(1, 4));
  EXPECT_THAT(ErrorOf(PathOf(1, 4)), HasSubstr("ends with -00001-of-00003.gguf"));
  const auto bytes = builder_.BuildParts(3)[0];
  EXPECT_THAT(std::string(ParseCheckpoint(bytes).status().message()),
              HasSubstr("GGUF key 'split.count' = 3; there are 1 parts"));
}

TEST_F(GgufPartsTest, PartsThatDoNotBelongTogetherAreNamed) {
  const auto parts = builder_.BuildParts(3);
  std::filesystem::remove(PathOf(3));
  EXPECT_THAT(Error(), HasSubstr(absl::StrCat("cannot open ", PathOf(3))));
  WriteTo(PathOf(3), parts[1]);
  EXPECT_THAT(Error(), HasSubstr(absl::StrCat(PathOf(3), ": GGUF key 'split.no' = 1, not 2")));
  WriteTo(PathOf(3), testing::TinyGgufBuilder({.layers = 3}).BuildParts(3)[2]);
  EXPECT_THAT(Error(), HasSubstr("00003.gguf: GGUF key 'split.tensors.count' = 29, not 20"));
  WriteTo(PathOf(3), builder_.BuildParts(4)[2]);
  EXPECT_THAT(Error(), HasSubstr(absl::StrCat(PathOf(3), ": GGUF key 'split.count' = 4, not 3")));
  WriteTo(PathOf(3), builder_.Build());
  EXPECT_THAT(Error(), HasSubstr("00003.gguf: GGUF key 'split.count' is missing"));
  Write(parts);
  WriteTo(PathOf(2), Second([](testing::GgufBuilder& part) {
            part.AddUint32("split.count", 3);
            part.AddString("split.no", "1");
          }));
  EXPECT_THAT(Error(), HasSubstr("00002-of-00003.gguf: GGUF key 'split.no' is not"));
  Write(parts);
  WriteTo(PathOf(2), Second([](testing::GgufBuilder& part) {
            part.AddUint32("split.count", 3);
            part.AddUint32("split.no", 1);
            part.AddUint32("split.tensors.count", 20);
          }));
  EXPECT_THAT(Error(), HasSubstr("00001-of-00003.gguf: GGUF key 'split.tensors.count' = 20; the "
                                 "parts have 14 tensors"));
  // All numbers are right, but a tensor is in two parts.
  testing::GgufBuilder twice;
  for (int i = 0; i < 2; ++i) {
    twice.AddTensor("twice", {1}, GgmlType::kF32, std::vector<std::byte>(4));
  }
  const auto both = twice.BuildParts(2);
  WriteTo(PathOf(1, 2), both[0]);
  WriteTo(PathOf(2, 2), both[1]);
  EXPECT_THAT(ErrorOf(PathOf(1, 2)),
              HasSubstr(absl::StrCat(PathOf(2, 2), ": tensor twice is in another part, too")));
}

TEST_F(GgufPartsTest, PartsThatAreLinksStayInTheirFolder) {
  namespace fs = std::filesystem;
  const testing::ScratchDirectory elsewhere;
  const auto move = [](const std::string& from, const std::string& to) {
    fs::rename(from, to);
    fs::create_symlink(to, from);
  };
  move(PathOf(2), scratch_.path() + "/second");
  EXPECT_TRUE(OpenCheckpoint(PathOf(1)).ok());
  move(scratch_.path() + "/second", elsewhere.path() + "/second");
  EXPECT_EQ(Error(), absl::StrCat(PathOf(2), " is a link out of its folder"));
  // The cache of Hugging Face's hub has all of them in another folder.
  move(PathOf(1), elsewhere.path() + "/first");
  move(PathOf(3), elsewhere.path() + "/third");
  const auto file = OpenCheckpoint(PathOf(1));
  EXPECT_TRUE(file.ok()) << file.status();
  fs::remove(elsewhere.path() + "/third");
  EXPECT_EQ(Error(), absl::StrCat("cannot open ", PathOf(3)));
}

TEST_F(GgufPartsTest, TheNumberOfPartsIsBounded) {
  for (const std::uint64_t count : {1001ull, 1ull << 40}) {
    testing::GgufBuilder part;
    part.AddUint32("split.no", 0);
    part.AddUint64("split.count", count);
    WriteTo(PathOf(1), part.Build());
    EXPECT_THAT(Error(),
                HasSubstr(absl::StrCat("GGUF key 'split.count' = ", count, " is more than 1000")));
  }
  // A file that was merged is whole.
  testing::GgufBuilder merged = testing::TinyGgufBuilder();
  merged.AddUint32("split.count", 0);
  WriteTo(PathOf(1), merged.Build());
  EXPECT_TRUE(OpenCheckpoint(PathOf(1)).ok());
}

TEST(ModelNameOf, LeavesOutFormatAndPart) {
  EXPECT_EQ(ModelNameOf("m.Q4_1.gguf"), "m.Q4_1");
  EXPECT_EQ(ModelNameOf("m-00001-of-00005.gguf"), "m");
  EXPECT_EQ(ModelNameOf("m-0001-of-00005.gguf"), "m-0001-of-00005");
  EXPECT_EQ(ModelNameOf("-00001-of-00005.gguf"), "-00001-of-00005");
  EXPECT_EQ(ModelNameOf("Qwen3-0.6B"), "Qwen3-0.6B");
  EXPECT_EQ(ModelNameOf(".gguf"), ".gguf");
}

}  // namespace
}  // namespace flotilla::model
