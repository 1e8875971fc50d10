// --kv-type, --kv-value-type and --kv-layers.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/role_options.h"

namespace flotilla::cli {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<worker::KvFormats> Formats(const std::string& layers) {
  RoleFlags flags;
  flags.kv_type = "int8";
  flags.kv_value_type = "fp16";
  flags.kv_layers = layers;
  return KvFormatsOf(flags);
}

TEST(KvFormatsTest, LayersMayHaveTypesOfTheirOwn) {
  EXPECT_EQ(Formats("")->Name(), "int8, V fp16");
  EXPECT_FALSE(Formats("")->has_runs());
  const auto formats = Formats("0-1=bf16,7=int8/int4,8=int8/fp16");
  ASSERT_TRUE(formats.ok()) << formats.status();
  EXPECT_EQ(formats->Name(), "int8, V fp16; layers 0-1: bf16; layer 7: int8, V int4");
  using enum kernels::KvType;
  EXPECT_EQ(formats->Of(1), (kernels::KvFormat{kBf16, kBf16}));
  EXPECT_EQ(formats->Of(2), (kernels::KvFormat{kInt8, kF16}));
  EXPECT_EQ(formats->Of(7), (kernels::KvFormat{kInt8, kInt4}));
  EXPECT_TRUE(formats->has_runs());
}

TEST(KvFormatsTest, AWrongEntryIsRefusedByName) {
  for (const char* entry :
       {"1", "=bf16", "1=", "1=int3", "2-1=bf16", "a-2=bf16", "-1=bf16", "1=bf16/",
        "1=bf16/fp16/fp8", "1-2-3=bf16", "99999999=bf16", "1=int1"}) {
    const auto formats = Formats("0=bf16," + std::string(entry));
    EXPECT_THAT(formats.status().message(),
                HasSubstr("--kv-layers: '" + std::string(entry) + "' is not LAYERS=TYPE"))
        << entry;
  }
  EXPECT_THAT(Formats("3-5=bf16,5=fp32").status().message(),
              HasSubstr("'5=fp32' does not come after the layers before it"));
}

}  // namespace
}  // namespace flotilla::cli
