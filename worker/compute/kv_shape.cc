#include "worker/compute/kv_shape.h"

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

kernels::KvFormat KvFormats::Of(std::uint32_t layer) const {
  for (const Some& each : some) {
    if (layer >= each.layers.begin && layer < each.layers.end) return each.format;
  }
  return most;
}

std::string KvFormats::Name() const {
  std::string name = kernels::KvFormatName(most);
  for (const Some& each : some) {
    const std::uint32_t last = each.layers.end - 1;
    absl::StrAppend(&name, last == each.layers.begin ? "; layer " : "; layers ", each.layers.begin,
                    last == each.layers.begin ? "" : absl::StrCat("-", last), ": ",
                    kernels::KvFormatName(each.format));
  }
  return name;
}

KvShape KvShape::Equal(kernels::KvFormat format, int layers, int kv_heads,
                       const kernels::KvDims& dims) {
  KvShape shape{.kv_heads = kv_heads, .dims = dims, .layers = {}};
  for (int layer = 0; layer < layers; ++layer) {
    shape.layers.push_back({.format = format, .offset = shape.page_bytes});
    shape.page_bytes += kv_heads * kernels::KvRecordBytes(format, dims);
  }
  return shape;
}

}  // namespace flotilla::worker
