// What the kinds of plain numbers share: a record is [32 k][32 columns] numbers as the file has
// them. `Kind` adds what a number means: Widen(number), and Load<S>(weights, i).
#pragma once

#include "kernels/packing/kind.h"

namespace flotilla::kernels {

template <class Kind, typename Number, WeightEncoding::Numbers kNumbers>
struct PlainNumbers {
  static constexpr int kRecordBytes = kBlockK * kPanelColumns * sizeof(Number);
  static constexpr bool kIsPlain = true;
  static constexpr bool kHasIntegerProduct = false;

  static constexpr bool Packs(const WeightEncoding& encoding) {
    return encoding.numbers == kNumbers;
  }

  static FLOTILLA_INLINE bool Pack(const WeightEncoding&, const WeightRow& row, int k, int lane,
                                   std::byte* record) {
    for (int i = 0; i < kBlockK; ++i) {
      std::memcpy(record + (i * kPanelColumns + lane) * sizeof(Number),
                  row.numbers + (k + i) * sizeof(Number), sizeof(Number));
    }
    return true;
  }

  static FLOTILLA_INLINE void Decode(const std::byte* record, int lane, float* out) {
    for (int i = 0; i < kBlockK; ++i) {
      const std::byte* number = record + (i * kPanelColumns + lane) * sizeof(Number);
      out[i] = Kind::Widen(LoadAs<Number>(number));
    }
  }

  template <class S>
  static FLOTILLA_INLINE void DecodeRecord(const std::byte* record, float* out) {
    for (int i = 0; i < kBlockK * kPanelColumns; i += 16) {
      S::Store(out + i, Kind::template Load<S>(record, i));
    }
  }
};

}  // namespace flotilla::kernels
