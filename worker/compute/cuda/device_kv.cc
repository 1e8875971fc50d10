#include "worker/compute/cuda/device_kv.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/kv_layout.h"

namespace flotilla::worker {
namespace {

using Queue = Device::Queue;

kernels::cuda::KvType TypeOf(const kernels::KvFormat& format) {
  return format == kernels::KvFormat::kBf16 ? kernels::cuda::KvType::kBf16
                                            : kernels::cuda::KvType::kF32;
}

}  // namespace

absl::StatusOr<DeviceKv> DeviceKv::Create(Device& device, const KvShape& shape,
                                          std::uint32_t blocks) {
  for (const KvLayer& layer : shape.layers) {
    if (layer.format != kernels::KvFormat::kBf16 && layer.format != kernels::KvFormat::kF32) {
      return absl::UnimplementedError(absl::StrCat("GPUs do not keep K and V as ",
                                                   kernels::KvFormatName(layer.format),
                                                   " yet, but as bf16 or fp32; --device cpu does"));
    }
    // A record has the same size in both layouts, so that pages are laid out alike.
    if (kernels::cuda::KvRecordBytes(TypeOf(layer.format), shape.dims.key) !=
        kernels::KvRecordBytes(layer.format, shape.dims)) {
      return absl::InternalError("the records of K and V differ in size");
    }
  }
  DeviceKv kv(device, shape);
  auto memory = device.Allocate(kv.bytes() * blocks);
  if (!memory.ok()) return memory.status();
  kv.memory_ = *std::move(memory);
  return kv;
}

kernels::cuda::KvView DeviceKv::Layer(int layer) const {
  const KvLayer& place = shape_.layers[static_cast<std::size_t>(layer)];
  return {.type = TypeOf(place.format),
          .dim = shape_.dims.key,
          .base = memory_.data() + place.offset,
          .block_stride = shape_.bytes_per_block(),
          .head_stride = kernels::KvHeadBytes(place.format, shape_.dims, shape_.block_tokens)};
}

void DeviceKv::Poison(BlockId id) { device_->Fill(Queue::kCompute, block(id), 0xFF, bytes()); }

void DeviceKv::Copy(BlockId from, BlockId to) {
  device_->Copy(Queue::kCompute, block(to), block(from), bytes());
}

void DeviceKv::LetTiersFollow() { device_->Wait(Queue::kCopy, device_->Record(Queue::kCompute)); }

absl::StatusOr<std::byte*> DeviceKv::Reserve(std::uint32_t blocks) {
  auto memory = device_->AllocatePinned(bytes() * blocks);
  if (!memory.ok()) return memory.status();
  reserved_.push_back(*std::move(memory));
  return reserved_.back().data();
}

absl::Status DeviceKv::CopyOut(BlockId from, std::byte* to) {
  device_->Download(Queue::kCopy, to, block(from), bytes());
  return device_->Synchronize(device_->Record(Queue::kCopy));
}

absl::Status DeviceKv::CopyIn(const std::byte* from, BlockId to) {
  device_->Upload(Queue::kCopy, block(to), from, bytes());
  return device_->Synchronize(device_->Record(Queue::kCopy));
}

}  // namespace flotilla::worker
