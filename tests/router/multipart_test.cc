// Forms of files: however a body is cut into pieces, its parts are the same, and what is no such
// body is refused within bounds.
#include "router/http/multipart.h"

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Keeps the parts as "name|file name|data".
class Parts final : public MultipartSink {
 public:
  absl::Status OnPart(const MultipartPart& part) override {
    EXPECT_FALSE(open_);
    open_ = true;
    parts.push_back(part.name + "|" + (part.is_file ? part.file_name : "-") + "|");
    return absl::OkStatus();
  }
  absl::Status OnData(std::string_view bytes) override {
    EXPECT_TRUE(open_ && !bytes.empty());
    parts.back() += bytes;
    return absl::OkStatus();
  }
  absl::Status OnPartEnd() override {
    EXPECT_TRUE(open_);
    open_ = false;
    return absl::OkStatus();
  }
  std::vector<std::string> parts;

 private:
  bool open_ = false;
};

// What comes of the pieces: "" and the parts, or the error.
std::string ReadAll(const std::vector<std::string_view>& pieces, std::vector<std::string>* parts,
                    const std::string& boundary = "XyZ", MultipartLimits limits = {}) {
  Parts sink;
  MultipartReader reader(boundary, limits, &sink);
  for (std::string_view piece : pieces) {
    if (absl::Status s = reader.Read(piece); !s.ok()) return std::string(s.message());
  }
  *parts = sink.parts;
  return std::string(reader.Finish().message());
}
std::string ReadOne(const std::string& body, MultipartLimits limits = {}) {
  std::vector<std::string> parts;
  return ReadAll({body}, &parts, "XyZ", limits);
}

// The data has what looks like boundaries, and the file name what looks like a path.
const std::string kFormBody =
    "preamble\r\n"
    "--XyZ\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
    "--XyZ \t\r\nContent-Type: text/plain\r\n"
    "Content-Disposition: form-data; filename=\"../../etc/pa\\\"ss\\wd\"; name=file\r\n\r\n"
    "\r\n--Xy\r\n-\r\n--XyYZ\r\r\n\n--XyZ\r\n"
    "\r\n--XyZ\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n"
    "--XyZ--\r\nepilogue";
const std::vector<std::string> kParts = {
    "purpose|-|batch", "file|../../etc/pa\"ss\\wd|\r\n--Xy\r\n-\r\n--XyYZ\r\r\n\n--XyZ\r\n",
    "empty|-|"};

TEST(MultipartTest, EverySplitGivesTheSameParts) {
  const std::string_view body = kFormBody;
  std::vector<std::string> parts;
  for (std::size_t first = 0; first <= body.size(); ++first) {
    ASSERT_EQ(ReadAll({body.substr(0, first), body.substr(first)}, &parts), "") << first;
    ASSERT_EQ(parts, kParts) << first;
    for (std::size_t second = first; second <= body.size(); ++second) {
      ASSERT_EQ(
          ReadAll({body.substr(0, first), body.substr(first, second - first), body.substr(second)},
                  &parts),
          "");
      ASSERT_EQ(parts, kParts) << first << " " << second;
    }
  }
  std::vector<std::string_view> bytes;
  for (std::size_t i = 0; i < body.size(); ++i) bytes.push_back(body.substr(i, 1));
  ASSERT_EQ(ReadAll(bytes, &parts), "");
  EXPECT_EQ(parts, kParts);
}

// Data of the bytes that boundaries are made of, cut at random places.
TEST(MultipartTest, DataThatIsAlmostABoundaryStaysData) {
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string data;
    const std::size_t size = random() % 200;
    while (data.size() < size) data += "\r\n-aab"[random() % 6];
    if (("\r\n" + data).find("\r\n--aa") != std::string::npos) continue;
    const std::string body =
        "--aa\r\nContent-Disposition: form-data; name=d\r\n\r\n" + data + "\r\n--aa--";
    std::vector<std::string_view> pieces;
    for (std::string_view rest = body; !rest.empty();) {
      pieces.push_back(rest.substr(0, 1 + random() % 20));
      rest.remove_prefix(pieces.back().size());
    }
    std::vector<std::string> parts;
    ASSERT_EQ(ReadAll(pieces, &parts, "aa"), "");
    EXPECT_THAT(parts, ElementsAre("d|-|" + data));
  }
}

TEST(MultipartTest, AFormThatIsCutIsNotWhole) {
  std::vector<std::string> parts;
  const std::size_t end = kFormBody.find("--XyZ--") + 7;
  for (std::size_t size = 0; size < end; ++size) {
    EXPECT_THAT(ReadAll({std::string_view(kFormBody).substr(0, size)}, &parts),
                HasSubstr("ends before its last boundary"))
        << size;
  }
}

TEST(MultipartTest, WhatHasNoEndIsRefusedWithinBounds) {
  const std::string part = "\r\n--XyZ\r\nContent-Disposition: form-data; name=a\r\n\r\n";
  std::string many = "--XyZ--";
  for (int i = 0; i < 17; ++i) many = part + many;
  EXPECT_THAT(ReadOne(many), HasSubstr("more than 16 parts"));
  EXPECT_THAT(ReadOne(std::string(5000, 'x')), HasSubstr("does not begin with its boundary"));
  EXPECT_THAT(ReadOne("--XyZ\r\na: " + std::string(5000, 'x')),
              HasSubstr("headers of a part of the form are longer than 4096 bytes"));
  EXPECT_THAT(ReadOne("--XyZ\r\na: " + std::string(5000, 'x') + "\r\n\r\n"),
              HasSubstr("longer than 4096 bytes"));
  EXPECT_THAT(ReadOne("--XyZ" + std::string(5000, ' ')), HasSubstr("too many spaces"));
  EXPECT_THAT(ReadOne("--XyZ--" + std::string(5000, 'x')), HasSubstr("too much follows"));
}

// What is just within a limit is so in pieces, too, and so is what is just beyond it.
TEST(MultipartTest, LimitsHoldForEverySplit) {
  const std::string body =
      "12345\r\n--XyZ\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--XyZ--";
  for (std::size_t limit = 1; limit < 60; ++limit) {
    for (const MultipartLimits limits :
         {MultipartLimits{.header_bytes = limit}, MultipartLimits{.outside_bytes = limit}}) {
      std::vector<std::string> parts, whole_parts;
      const std::string whole = ReadAll({body}, &whole_parts, "XyZ", limits);
      for (std::size_t at = 0; at <= body.size(); ++at) {
        ASSERT_EQ(ReadAll({std::string_view(body).substr(0, at), std::string_view(body).substr(at)},
                          &parts, "XyZ", limits),
                  whole)
            << limit << " " << at;
        ASSERT_EQ(parts, whole_parts);
      }
    }
  }
}

TEST(MultipartTest, APartWithoutAFieldsNameIsRefused) {
  for (const char* headers :
       {"\r\n", "Content-Type: text/plain\r\n", "Content-Disposition: attachment; name=a\r\n",
        "Content-Disposition: form-data\r\n", "Content-Disposition: form-data; name=\"a\r\n",
        "Content-Disposition: form-data; name=a; name=b\r\n", "no colon\r\n",
        "Content-Disposition: form-data; filename=a; filename=b; name=c\r\n",
        "Content-Disposition: form-data; name=a; nonsense\r\n"}) {
    EXPECT_THAT(ReadOne(std::string("--XyZ\r\n") + headers + "\r\nx\r\n--XyZ--"),
                HasSubstr("needs the header Content-Disposition"))
        << headers;
  }
  EXPECT_THAT(ReadOne("--XyZq\r\n"), HasSubstr("no line end follows a boundary"));
}

TEST(MultipartTest, BoundariesAreThoseOfTheRfc) {
  EXPECT_EQ(*MultipartBoundary("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(*MultipartBoundary("Multipart/Form-Data; charset=utf-8; BOUNDARY=\"a b:c\""), "a b:c");
  for (const std::string type :
       {"", "application/json", "multipart/mixed; boundary=a", "multipart/form-data",
        "multipart/form-data; boundary=", "multipart/form-data; boundary=\"\"",
        "multipart/form-data; boundary=\"a \"", "multipart/form-data; boundary=a\"b",
        "multipart/form-data; boundary=a; boundary=b", "multipart/form-data; boundary=\"a",
        "multipart/form-data; boundary=a\r\nb"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(MultipartBoundary(type).status())) << type;
  }
  EXPECT_TRUE(MultipartBoundary("multipart/form-data; boundary=" + std::string(70, 'a')).ok());
  EXPECT_FALSE(MultipartBoundary("multipart/form-data; boundary=" + std::string(71, 'a')).ok());
}

}  // namespace
}  // namespace flotilla::router
