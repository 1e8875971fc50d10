#include "worker/compute/kv_shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

kernels::KvFormat KvFormats::Of(std::uint32_t layer) const {
  for (const Some& each : some) {
    if (layer >= each.layers.begin && layer < each.layers.end) return each.format;
  }
  return most;
}

bool KvFormats::has_runs() const {
  return most.has_runs() || std::any_of(some.begin(), some.end(),
                                        [](const Some& each) { return each.format.has_runs(); });
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

void KvShape::AddLayer(kernels::KvFormat format, std::int64_t& end) {
  layers.push_back({.format = format, .offset = end, .open_offset = open_bytes});
  end += kv_heads * kernels::KvHeadBytes(format, dims, block_tokens);
  open_bytes += kv_heads * kernels::KvOpenBytes(format, dims);
  page_bytes = std::max(page_bytes, end);
}

KvShape KvShape::Equal(kernels::KvFormat format, int layers, int kv_heads,
                       const kernels::KvDims& dims) {
  KvShape shape{.kv_heads = kv_heads,
                .dims = dims,
                .layers = {},
                .block_tokens = KvFormats(format).block_tokens()};
  std::int64_t end = 0;
  for (int layer = 0; layer < layers; ++layer) shape.AddLayer(format, end);
  return shape;
}

}  // namespace flotilla::worker
