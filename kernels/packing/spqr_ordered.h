// SpqrOrdered: the same as Spqr where the k of a group may be anywhere, for SpQR with an order of
// inputs. 576 bytes: 4.5 bits per weight, 64 for each group of each column, and outliers as Spqr
// has them.
//
// A record is the codes q, [2 halves][4 z][16 columns] words of 32 bits in which nibble n is that
// of k = 8 z + n, and then [32 k] the number of the group of each k, plus one, in 16 bits. The
// table of a panel has of each group the scales [32] and the zeros [32] in fp32, and before them
// zeros, for k that no weight has been packed at. weight = scale (q - zero).
//
// K keeps its order, because the sums of the recipe fp32 follow it. So there is no product with
// integers, and outliers are added to the weights in all recipes.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/packing/kind.h"
#include "kernels/packing/spqr.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

struct SpqrOrdered {
  static constexpr int kGroups = kPanelColumns * kBlockK / 2;  // bytes from a record's begin
  static constexpr int kRecordBytes = kGroups + kBlockK * 2;
  static constexpr int kSuperBytes = 2 * kPanelColumns * 4;
  static constexpr bool kHasTable = true;
  static constexpr bool kIsPlain = false;
  static constexpr bool kHasIntegerProduct = false;
  static constexpr bool kHasOutliers = true;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return IsSpqr(encoding) && encoding.scale_group == 1 && encoding.groups > 0 &&
           encoding.groups <= std::numeric_limits<uint16_t>::max();
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding& encoding, const WeightRow& row, int k,
                                   int lane, std::byte* record, std::byte* super) {
    uint32_t words[4] = {};
    for (int i = 0; i < kBlockK; ++i) {
      const int group = row.groups[k + i];
      if (group >= encoding.groups) return false;
      const CodedScale& from = row.coded_scales[k + i];
      const float scale = HalfToFloat(from.scale_step) *
                          (static_cast<float>(from.scale_code) - HalfToFloat(from.scale_zero));
      const float zero = HalfToFloat(from.zero_step) *
                         (static_cast<float>(from.zero_code) - HalfToFloat(from.zero_zero));
      std::byte* const to = super + (1 + group) * kSuperBytes + lane * 4;
      StoreAs(to, scale);
      StoreAs(to + kZeros, zero);
      StoreAs(record + kGroups + i * 2, static_cast<uint16_t>(1 + group));
      words[i / 8] |= static_cast<uint32_t>(row.codes[k + i] & 7) << i % 8 * 4;
    }
    for (int z = 0; z < 4; ++z) StoreAs(record + Word(lane, z), words[z]);
    return true;
  }

  static FLOTILLA_INLINE void Decode(const SuperRecord& record, int lane, float* out) {
    for (int k = 0; k < kBlockK; ++k) {
      const std::byte* const group = GroupOf(record, k) + lane * 4;
      const auto code =
          static_cast<int>(LoadAs<uint32_t>(record.record + Word(lane, k / 8)) >> k % 8 * 4 & 7);
      out[k] = LoadAs<float>(group) * (static_cast<float>(code) - LoadAs<float>(group + kZeros));
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const SuperRecord& record, float* out) {
    for (int half = 0; half < 2; ++half) {
      for (int z = 0; z < 4; ++z) {
        auto codes = S::ILoad(record.record + Word(half * 16, z));
        for (int k = z * 8; k < z * 8 + 8; ++k) {
          const auto* const group = reinterpret_cast<const float*>(GroupOf(record, k)) + half * 16;
          const auto code = S::ToFloat(S::IAnd(codes, S::ISet1(7)));
          S::Store(out + k * kPanelColumns + half * 16,
                   S::Mul(S::Load(group), S::Sub(code, S::Load(group + kPanelColumns))));
          codes = S::template Shr<4>(codes);
        }
      }
    }
  }

 private:
  static constexpr int kZeros = kPanelColumns * 4;  // bytes from a group's begin

  static FLOTILLA_INLINE const std::byte* GroupOf(const SuperRecord& record, int k) {
    return record.super + LoadAs<uint16_t>(record.record + kGroups + k * 2) * kSuperBytes;
  }
  static FLOTILLA_INLINE int Word(int lane, int z) {
    return ((lane / 16 * 4 + z) * 16 + lane % 16) * 4;
  }
};

}  // namespace flotilla::kernels
