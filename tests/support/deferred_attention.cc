// This part of Device computes attention.
#include "tests/support/deferred_device.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/kv_codec.h"

namespace flotilla::testing {
namespace {

// A token's elements as the cache gives them back; `given` as in kernels::KvScaleOf.
void Store(kernels::KvType type, const float* from, int count, float given, float* to) {
  const int span = kernels::KvScaleSpan(type, count);
  for (int begin = 0; begin < count; begin += span) {
    const int end = std::min(begin + span, count);
    const kernels::KvScale scale = kernels::KvScaleOf(type, from + begin, end - begin, given);
    for (int d = begin; d < end; ++d) {
      std::byte word[16] = {};  // as much as an element may lie in
      kernels::KvEncode(type, from[d], scale, /*index=*/0, word);
      to[d] = kernels::KvDecode(type, word, /*index=*/0, scale);
    }
  }
}

// How the elements that a step reads are given to the reference kernels.
constexpr kernels::KvFormat kGathered = kernels::KvFormat::kF32;

}  // namespace

absl::Status DeferredBackend::Device::CheckAttention(const AttentionOp& attention,
                                                     const Buffer& qkv) const {
  const std::int64_t keys = std::int64_t{attention.projected_heads} + attention.projected_kv_heads;
  const std::int64_t values = attention.dims.prefix ? 0 : attention.kv_heads;
  const bool rotates = attention.rope.valid();
  const bool fits = attention.kv_heads == kv_shape_.kv_heads && attention.kv_heads > 0 &&
                    attention.heads % attention.kv_heads == 0 && attention.dims == kv_shape_.dims &&
                    attention.head_dim <= attention.dims.key &&
                    attention.result_dim <= attention.dims.value && attention.layer >= 0 &&
                    attention.layer < static_cast<int>(kv_shape_.layers.size()) &&
                    attention.first_head + attention.heads <= attention.projected_heads &&
                    attention.first_kv_head + attention.kv_heads <= attention.projected_kv_heads &&
                    attention.head_places.size() == static_cast<std::size_t>(attention.heads) &&
                    attention.group.value() < inputs().group_count &&
                    (!rotates || attention.rope_at + ropes_.at(attention.rope.index()).dim() <=
                                     attention.dims.key) &&
                    qkv.width >= keys * attention.dims.key + values * attention.dims.value;
  return fits ? absl::OkStatus() : Misfit("attention");
}

void DeferredBackend::Device::NormHeads(const AttentionOp& attention, float* heads, int count,
                                        const NormOp& norm) const {
  const bool all = attention.head_norms == model::HeadNorms::kAllHeads;
  const int n = attention.head_dim * (all ? count : 1);
  for (int i = 0; i < (all ? 1 : count); ++i) {
    const int own = attention.head_norms == model::HeadNorms::kOwn ? i * n : 0;
    float* const head = heads + i * (all ? n : attention.dims.key);
    const std::vector<float> normed = Normed(norm, head, n, own);
    std::copy(normed.begin(), normed.end(), head);
  }
}

std::vector<float> DeferredBackend::Device::MultiplyHead(const Weights& matrix,
                                                         const float* x) const {
  Operand operand = matrix.OperandOf(options_.recipe, x);
  std::vector<float> out(static_cast<std::size_t>(matrix.columns()), kNaN);
  matrix.Multiply(operand, out.data());
  return out;
}

absl::Status DeferredBackend::Device::Absorb(const worker::LatentOp& op, BufferHandle queries,
                                             BufferHandle latent, BufferHandle out_handle) {
  const HeadMatrices& keys = head_matrices_.at(op.keys.index());
  const Buffer &q = buffers_.at(queries.index()), &c = buffers_.at(latent.index());
  Buffer& out = buffers_.at(out_handle.index());
  const auto heads = static_cast<std::int64_t>(keys.size());
  const std::int64_t rank = keys.front().columns(), nope = keys.front().k(), rope = op.rope_dim;
  if (q.width < heads * (nope + rope) || c.width < rank + rope || SizeOf(op.norm) != rank ||
      out.width < (heads + 1) * (rank + rope)) {
    return Misfit("Absorb");
  }
  out.Poison();
  for (std::size_t row = 0; row < rows(); ++row) {
    const float* query = q.rows[row].data();
    float* to = out.rows[row].data();
    for (const Weights& matrix : keys) {
      const std::vector<float> absorbed = MultiplyHead(matrix, query);
      to = std::copy(absorbed.begin(), absorbed.end(), to);
      to = std::copy_n(query + nope, rope, to);
      query += nope + rope;
    }
    const float* const own = c.rows[row].data();
    const std::vector<float> normed = Normed(op.norm, own, rank);
    to = std::copy(normed.begin(), normed.end(), to);
    std::copy_n(own + rank, rope, to);
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::MultiplyHeads(BufferHandle x_handle,
                                                    HeadMatricesHandle handle,
                                                    const std::vector<std::int32_t>& places,
                                                    BufferHandle out_handle) {
  const HeadMatrices& matrices = head_matrices_.at(handle.index());
  const Buffer& x = buffers_.at(x_handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  const std::int64_t k = matrices.front().k(), columns = matrices.front().columns();
  const bool outside = std::any_of(places.begin(), places.end(), [&](std::int32_t place) {
    return place < 0 || place + columns > out.width;
  });
  if (outside || places.size() != matrices.size() || x_handle.index() == out_handle.index() ||
      x.width < static_cast<std::int64_t>(matrices.size()) * k) {
    return Misfit("MultiplyHeads");
  }
  out.Poison();
  for (std::size_t row = 0; row < rows(); ++row) {
    std::fill_n(out.rows[row].begin(), out.width, 0.0f);
    for (std::size_t head = 0; head < matrices.size(); ++head) {
      const std::vector<float> sums =
          MultiplyHead(matrices[head], x.rows[row].data() + static_cast<std::int64_t>(head) * k);
      std::copy(sums.begin(), sums.end(), out.rows[row].begin() + places[head]);
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::RopeAndStore(const AttentionOp& attention,
                                                   BufferHandle handle) {
  Buffer& qkv = buffers_.at(handle.index());
  if (absl::Status s = CheckAttention(attention, qkv); !s.ok()) return s;
  const int dim = attention.dims.key;
  const bool norms = attention.head_norms != model::HeadNorms::kNone;
  const auto size = [&](int heads) {
    if (attention.head_norms == model::HeadNorms::kShared) {
      return std::int64_t{attention.head_dim};
    }
    return std::int64_t{heads} * attention.head_dim;
  };
  if (norms && (SizeOf(attention.query_norm) != size(attention.projected_heads) ||
                SizeOf(attention.key_norm) != size(attention.projected_kv_heads))) {
    return Misfit("the norms of heads");
  }
  for (std::size_t s = 0; s < inputs().sequences.size(); ++s) {
    const StepSequence& sequence = inputs().sequences[s];
    const std::int32_t* table = inputs().table(s, attention.group);
    for (int i = 0; i < sequence.row_count; ++i) {
      const auto row = static_cast<std::size_t>(sequence.row_begin + i);
      const int position = sequence.first_position + i;
      float* const q = qkv.rows[row].data();
      float* const k = q + attention.projected_heads * dim;
      float* const v = k + attention.projected_kv_heads * dim;
      if (norms) {
        NormHeads(attention, q, attention.projected_heads, attention.query_norm);
        NormHeads(attention, k, attention.projected_kv_heads, attention.key_norm);
      }
      if (attention.rope.valid()) {
        const kernels::RopeTable& rope = ropes_.at(attention.rope.index());
        Reference().rope({.x = q + attention.rope_at,
                          .token_stride = qkv.width,
                          .heads = attention.projected_heads + attention.projected_kv_heads,
                          .head_stride = dim,
                          .dim = rope.dim(),
                          .positions = &inputs().positions[row],
                          .table = rope.data()},
                         0, 1);
      }
      const auto block = static_cast<std::uint32_t>(table[position / kKvRecordTokens]);
      for (int head = 0; head < attention.kv_heads; ++head) {
        WriteKv(block, PlaneOf(attention, head), position % kKvRecordTokens, attention.kv_scales,
                k + (attention.first_kv_head + head) * dim, v + head * attention.dims.value);
      }
    }
  }
  return absl::OkStatus();
}

void DeferredBackend::Device::WriteKv(std::uint32_t id, std::size_t plane, int slot,
                                      const model::KvScales& scales, const float* k,
                                      const float* v) {
  const auto dim = static_cast<std::size_t>(kv_shape_.dims.key),
             value_dim = static_cast<std::size_t>(kv_shape_.dims.value);
  Block& block = kv_[id];
  const bool has_v = !kv_shape_.dims.prefix;
  if (block.empty()) {
    const std::vector<float> keys(kKvRecordTokens * dim, kNaN),
        values(has_v ? kKvRecordTokens * value_dim : 0, kNaN);
    block.resize(kv_shape_.layers.size() * static_cast<std::size_t>(kv_shape_.kv_heads),
                 {keys, values});
  }
  const kernels::KvFormat format =
      kv_shape_.layers[plane / static_cast<std::size_t>(kv_shape_.kv_heads)].format;
  float* const keys = block[plane].keys.data() + static_cast<std::size_t>(slot) * dim;
  Store(format.key, k, kv_shape_.dims.key, scales.key, keys);
  if (!has_v) return;
  float* const values = block[plane].values.data() + static_cast<std::size_t>(slot) * value_dim;
  Store(format.value, v, kv_shape_.dims.value, scales.value, values);
  // kv_write does the same to the other half of a pair.
  if (format.value == kernels::KvType::kBf16 && slot % 2 == 0) {
    std::fill_n(values + value_dim, value_dim, 0.0f);
  }
}

std::vector<DeferredBackend::Device::Line> DeferredBackend::Device::GatherKv(
    const std::int32_t* table, int count, std::size_t plane) const {
  const kernels::KvDims& dims = kv_shape_.dims;
  const std::int64_t record = kernels::KvRecordBytes(kGathered, dims);
  std::vector<Line> lines(static_cast<std::size_t>(count * record) / sizeof(Line));
  // All ones is NaN.
  std::memset(lines.data(), 0xFF, lines.size() * sizeof(Line));
  for (int i = 0; i < count; ++i) {
    const auto block = kv_.find(static_cast<std::uint32_t>(table[i]));
    if (block == kv_.end()) continue;
    std::byte* const at = lines.front().bytes + i * record;
    auto* const keys = reinterpret_cast<float*>(at);
    auto* const values = reinterpret_cast<float*>(at + kernels::KvValueOffset(kGathered, dims));
    const Plane& from = block->second[plane];
    for (int slot = 0; slot < kKvRecordTokens; ++slot) {
      for (int d = 0; d < dims.key; ++d) {
        keys[kernels::KvKeyIndex(kGathered.key, slot, d)] =
            from.keys[static_cast<std::size_t>(slot * dims.key + d)];
      }
      for (int d = 0; !from.values.empty() && d < dims.value; ++d) {
        values[kernels::KvValueIndex(kGathered.value, dims.value, slot, d)] =
            from.values[static_cast<std::size_t>(slot * dims.value + d)];
      }
    }
  }
  return lines;
}

absl::Status DeferredBackend::Device::Attend(const AttentionOp& attention, BufferHandle in,
                                             BufferHandle out_handle) {
  const Buffer& qkv = buffers_.at(in.index());
  Buffer& out = buffers_.at(out_handle.index());
  if (absl::Status s = CheckAttention(attention, qkv); !s.ok()) return s;
  const int dim = attention.dims.key, group = attention.heads / attention.kv_heads;
  for (const std::int32_t place : attention.head_places) {
    if (place < 0 || place + attention.result_dim > out.width) return Misfit("the places of heads");
  }
  if (in.index() == out_handle.index()) return Misfit("Attend");
  out.Poison();
  for (std::vector<float>& row : out.rows) std::fill_n(row.begin(), out.width, 0.0f);
  for (std::size_t s = 0; s < inputs().sequences.size(); ++s) {
    const StepSequence& sequence = inputs().sequences[s];
    const int keys = sequence.first_position + sequence.row_count;
    const int blocks = (keys + kKvRecordTokens - 1) / kKvRecordTokens;
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));  // of the gathered blocks
    std::iota(table.begin(), table.end(), 0);
    for (int kv_head = 0; kv_head < attention.kv_heads; ++kv_head) {
      std::vector<Line> records =
          GatherKv(inputs().table(s, attention.group), blocks, PlaneOf(attention, kv_head));
      for (int i = 0; i < sequence.row_count * group; ++i) {
        const int token = i / group, head = kv_head * group + i % group;
        const auto row = static_cast<std::size_t>(sequence.row_begin + token);
        const float *const slopes = DataOf(attention.slopes), *const sinks =
                                                                  DataOf(attention.sinks);
        kernels::AttentionArgs args{
            .cache = {},
            .kv_head = 0,
            .first_position = sequence.first_position + token,
            .heads = 1,
            .q = qkv.rows[row].data() + (attention.first_head + head) * dim,
            .q_stride = qkv.width,
            .scale = attention.scale,
            .window = attention.window,
            .softcap = attention.softcap,
            .slopes = slopes == nullptr ? nullptr : slopes + head,
            .sinks = sinks == nullptr ? nullptr : sinks + head,
            .out_dim = attention.result_dim,
            .out = out.rows[row].data() + attention.head_places[static_cast<std::size_t>(head)],
            .out_stride = out.width};
        args.cache.format = kGathered;
        args.cache.dims = attention.dims;
        args.cache.base = records.front().bytes;
        args.cache.block_stride = kernels::KvRecordBytes(kGathered, attention.dims);
        args.cache.block_table = table.data();
        Reference().paged_attention(args, 0, 1);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::testing
